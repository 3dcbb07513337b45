// The bytes that Kafka's own generated classes write.
//
// Each line of standard input is a class, a version and a message as JSON, in the form of the class's JsonConverter; the
// line that answers it is the message's body in hex, "none" where the class lacks the version, or "error" and the reason.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

public class MessageBytes {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", 3);
            System.out.println(answer(parts[0], Short.parseShort(parts[1]), mapper.readTree(parts[2])));
        }
    }

    private static String answer(String name, short version, JsonNode json) throws Exception {
        Message empty = (Message) Class.forName(name).getConstructor().newInstance();
        if (version < empty.lowestSupportedVersion() || version > empty.highestSupportedVersion()) return "none";
        try {
            Class<?> converter = Class.forName(name + "JsonConverter");
            Object message = converter.getMethod("read", JsonNode.class, short.class).invoke(null, json, version);
            byte[] bytes = MessageUtil.toByteBufferAccessor((Message) message, version).buffer().array();
            return HexFormat.of().formatHex(bytes);
        } catch (InvocationTargetException error) {
            return "error " + error.getCause();
        } catch (RuntimeException error) {
            return "error " + error;
        }
    }
}
