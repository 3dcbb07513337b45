// Measures kafka-clients' message classes on the bytes that come as one line of JSON, and answers with a line of JSON.
//
//   {"message": "JoinGroupResponse", "version": 7, "data": base64 of the body, "warm": s, "seconds": s, "batch": n}
//       reads the body and writes it again, n at a time: for `warm` seconds unmeasured, then for `seconds`, each at least once
//   answer: {"data": base64 of what it wrote, "decode": [nanoseconds a call, a batch], "encode": likewise}
//       processor time of the calling thread alone, without the JVM's compilers and garbage collector

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.management.*;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.function.Supplier;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.protocol.*;

public class Codec {
    static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    static final Map<String, Supplier<ApiMessage>> MESSAGES = Map.of(
        "HeartbeatRequest", HeartbeatRequestData::new,
        "JoinGroupRequest", JoinGroupRequestData::new,
        "JoinGroupResponse", JoinGroupResponseData::new,
        "SyncGroupRequest", SyncGroupRequestData::new,
        "MetadataResponse", MetadataResponseData::new,
        "OffsetFetchResponse", OffsetFetchResponseData::new);
    static Object sink; // what a call made, so that the compiler cannot leave the call out

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        JsonNode asked = json.readTree(new java.io.BufferedReader(new java.io.InputStreamReader(System.in)).readLine());
        Supplier<ApiMessage> make = MESSAGES.get(asked.get("message").asText());
        short version = (short) asked.get("version").asInt();
        byte[] data = asked.get("data").binaryValue();
        int batch = asked.get("batch").asInt();
        ApiMessage message = decode(make, data, version);
        Runnable read = () -> sink = decode(make, data, version);
        Runnable write = () -> sink = encode(message, version);
        Map<String, Object> answer = new HashMap<>();
        answer.put("data", encode(message, version));
        for (Map.Entry<String, Runnable> each : Map.of("decode", read, "encode", write).entrySet()) {
            rounds(each.getValue(), batch, asked.get("warm").asDouble());
            answer.put(each.getKey(), rounds(each.getValue(), batch, asked.get("seconds").asDouble()));
        }
        System.out.println(json.writeValueAsString(answer));
    }

    static ApiMessage decode(Supplier<ApiMessage> make, byte[] data, short version) {
        ApiMessage message = make.get();
        message.read(new ByteBufferAccessor(ByteBuffer.wrap(data)), version);
        return message;
    }

    static byte[] encode(ApiMessage message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return buffer.array();
    }

    static List<Double> rounds(Runnable call, int batch, double seconds) {
        List<Double> made = new ArrayList<>();
        long end = System.nanoTime() + (long) (seconds * 1e9);
        do {
            long before = THREADS.getCurrentThreadCpuTime();
            for (int i = 0; i < batch; i++) call.run();
            made.add((THREADS.getCurrentThreadCpuTime() - before) / (double) batch);
        } while (System.nanoTime() < end);
        return made;
    }
}
