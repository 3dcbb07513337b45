// Reads messages by the classes of kafka-clients and writes them again, a line for each.
//
//   in the file named by the argument: message version hex     on standard output: hex, as written again, and JSON

import java.io.*;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.protocol.Readable;

public class Rewrite {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new FileReader(arguments[0]));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] parts = line.split(" ", -1);
            Class<?> type = Class.forName("org.apache.kafka.common.message." + parts[0] + "Data");
            short version = Short.parseShort(parts[1]);
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(parts[2]));
            ApiMessage message = (ApiMessage) type.getConstructor(Readable.class, short.class)
                .newInstance(new ByteBufferAccessor(bytes), version);
            if (bytes.hasRemaining()) throw new IllegalStateException("left over: " + line);
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(written), cache, version);
            Object json = Class.forName(type.getName() + "JsonConverter")
                .getMethod("write", type, short.class, boolean.class).invoke(null, message, version, false);
            System.out.println(HexFormat.of().formatHex(written.array()) + " " + json);
        }
    }
}
