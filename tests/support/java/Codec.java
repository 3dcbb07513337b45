// Measures kafka-clients' message classes on the bytes that come as one line of JSON, and answers with a line of JSON.
//
//   {"key": api key, "request": is it one, "version": n, "data": base64, "warm": s, "seconds": s, "batch": n}
//       reads the bytes and writes them again, n at a time: for `warm` seconds unmeasured, then for `seconds`, at least once
//   "frame": {"number": correlation id, "client": client id}
//       the bytes are a frame, header and body, as AbstractRequest and AbstractResponse read it, and RequestUtils writes it
//   answer: {"data": base64 of what it wrote, "decode": [nanoseconds a call, a batch], "encode": likewise, "kept": likewise}
//       all of processor time of the calling thread alone, without the JVM's compilers and garbage collector
//       encode: into a buffer of its own, kept: into one buffer that is there

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.management.*;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.function.Supplier;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.requests.*;

public class Codec {
    static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    static Object sink, more; // what a call made, so that the compiler cannot leave the call out

    // What the program does to the bytes of a question.
    interface Task {
        void decode();

        ByteBuffer encode();

        void write(ByteBuffer kept);
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        JsonNode asked = json.readTree(new java.io.BufferedReader(new java.io.InputStreamReader(System.in)).readLine());
        byte[] data = asked.get("data").binaryValue();
        int batch = asked.get("batch").asInt();
        Task task = task(asked, data);
        ByteBuffer written = task.encode(), kept = ByteBuffer.allocate(data.length);
        task.write(kept);
        if (!written.equals(kept.flip())) throw new AssertionError("other bytes into a kept buffer");
        Map<String, Runnable> calls = new LinkedHashMap<>();
        calls.put("decode", task::decode);
        calls.put("encode", () -> sink = task.encode());
        calls.put("kept", () -> task.write(kept.clear()));
        Map<String, Object> answer = new HashMap<>();
        answer.put("data", Arrays.copyOf(written.array(), written.limit()));
        for (Map.Entry<String, Runnable> each : calls.entrySet()) {
            rounds(each.getValue(), batch, asked.get("warm").asDouble());
            answer.put(each.getKey(), rounds(each.getValue(), batch, asked.get("seconds").asDouble()));
        }
        System.out.println(json.writeValueAsString(answer));
    }

    static Task task(JsonNode asked, byte[] data) {
        ApiKeys api = ApiKeys.forId(asked.get("key").asInt());
        short version = (short) asked.get("version").asInt();
        boolean request = asked.get("request").asBoolean();
        if (!asked.has("frame")) return request ? body(api.messageType::newRequest, data, version) : body(api.messageType::newResponse, data, version);
        int number = asked.get("frame").get("number").asInt();
        RequestHeader header = new RequestHeader(api, version, asked.get("frame").get("client").asText(), number);
        return request ? request(data, header) : response(data, header);
    }

    static Task body(Supplier<ApiMessage> make, byte[] data, short version) {
        ApiMessage message = make.get();
        message.read(new ByteBufferAccessor(ByteBuffer.wrap(data)), version);
        return new Task() {
            public void decode() {
                ApiMessage message = make.get();
                message.read(new ByteBufferAccessor(ByteBuffer.wrap(data)), version);
                sink = message;
            }

            public ByteBuffer encode() {
                ObjectSerializationCache cache = new ObjectSerializationCache();
                ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
                message.write(new ByteBufferAccessor(buffer), cache, version);
                return buffer.flip();
            }

            public void write(ByteBuffer kept) {
                ObjectSerializationCache cache = new ObjectSerializationCache();
                message.size(cache, version);
                message.write(new ByteBufferAccessor(kept), cache, version);
            }
        };
    }

    static Task request(byte[] data, RequestHeader header) {
        ByteBuffer buffer = ByteBuffer.wrap(data);
        RequestHeader.parse(buffer);
        AbstractRequest message = AbstractRequest.parseRequest(header.apiKey(), header.apiVersion(), new ByteBufferAccessor(buffer)).request;
        return new Task() {
            public void decode() {
                ByteBuffer buffer = ByteBuffer.wrap(data);
                RequestHeader header = RequestHeader.parse(buffer);
                sink = AbstractRequest.parseRequest(header.apiKey(), header.apiVersion(), new ByteBufferAccessor(buffer));
                more = header;
            }

            public ByteBuffer encode() {
                return message.serializeWithHeader(header());
            }

            public void write(ByteBuffer kept) {
                RequestHeader header = header();
                both(kept, header.data(), header.headerVersion(), message.data(), header.apiVersion());
            }

            RequestHeader header() {
                return new RequestHeader(header.apiKey(), header.apiVersion(), header.clientId(), header.correlationId());
            }
        };
    }

    static Task response(byte[] data, RequestHeader asked) {
        ApiMessage message = AbstractResponse.parseResponse(ByteBuffer.wrap(data), asked).data();
        short version = asked.apiVersion(), headerVersion = asked.apiKey().responseHeaderVersion(version);
        return new Task() {
            public void decode() {
                sink = AbstractResponse.parseResponse(ByteBuffer.wrap(data), asked);
            }

            public ByteBuffer encode() {
                return RequestUtils.serialize(header(), headerVersion, message, version);
            }

            public void write(ByteBuffer kept) {
                both(kept, header(), headerVersion, message, version);
            }

            ResponseHeaderData header() {
                return new ResponseHeader(asked.correlationId(), headerVersion).data();
            }
        };
    }

    // RequestUtils.serialize, into a buffer that is there.
    static void both(ByteBuffer kept, Message header, short headerVersion, Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        header.size(cache, headerVersion);
        message.size(cache, version);
        ByteBufferAccessor writable = new ByteBufferAccessor(kept);
        header.write(writable, cache, headerVersion);
        message.write(writable, cache, version);
    }

    static List<Double> rounds(Runnable call, int batch, double seconds) {
        List<Double> made = new ArrayList<>();
        long end = THREADS.getCurrentThreadCpuTime() + (long) (seconds * 1e9);
        do {
            long before = THREADS.getCurrentThreadCpuTime();
            for (int i = 0; i < batch; i++) call.run();
            made.add((THREADS.getCurrentThreadCpuTime() - before) / (double) batch);
        } while (THREADS.getCurrentThreadCpuTime() < end);
        return made;
    }
}
