// Reads messages by Kafka's own generated classes and writes them again.
//
// Each line of standard input is a class, a version and a message: its body in hex, or JSON in the form of the class's
// JsonConverter. The line that answers it is the body in hex and the message as JSON, "none" where the class lacks the
// version, or "error" and the reason; a tab separates them.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.*;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.*;

public class Rewrite {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        for (String line; (line = lines.readLine()) != null; ) {
            String[] parts = line.split("\t", 3);
            out.println(answer(mapper, parts[0], Short.parseShort(parts[1]), parts[2]));
        }
    }

    private static String answer(ObjectMapper mapper, String name, short version, String given) throws Exception {
        Message message = (Message) Class.forName(name).getConstructor().newInstance();
        if (version < message.lowestSupportedVersion() || version > message.highestSupportedVersion()) return "none";
        Class<?> converter = Class.forName(name + "JsonConverter");
        try {
            if (given.startsWith("{")) {
                message = (Message) converter.getMethod("read", JsonNode.class, short.class)
                    .invoke(null, mapper.readTree(given), version);
            } else {
                ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(given));
                message.read(new ByteBufferAccessor(bytes), version);
                if (bytes.hasRemaining()) return "error\t" + bytes.remaining() + " bytes are left";
            }
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(written), cache, version);
            Object json = converter.getMethod("write", message.getClass(), short.class, boolean.class)
                .invoke(null, message, version, false);
            return HexFormat.of().formatHex(written.array()) + "\t" + json;
        } catch (InvocationTargetException refused) {
            return "error\t" + refused.getCause();
        } catch (RuntimeException refused) {
            return "error\t" + refused;
        }
    }
}
