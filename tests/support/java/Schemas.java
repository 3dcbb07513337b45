// Reads and writes messages by the schemas of an old kafka-clients (0.8.2, Protocol.java), a line of JSON for each.
//
//   {"api": key, "version": number, "request": true, "values": [...]}   answer: {"hex": the bytes}
//   {"api": key, "version": number, "request": true, "hex": the bytes}  answer: {"values": [...], "hex": written again}
//
// The values are those of the fields in wire order; the fields of a struct stand in the place of the struct, an array is
// a list of its elements, an element that is a struct of several fields a list of them.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.common.protocol.ProtoUtils;
import org.apache.kafka.common.protocol.types.*;

public class Schemas {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        for (String line; (line = lines.readLine()) != null; ) {
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
            out.flush();
        }
    }

    static Map<String, ?> answer(JsonNode asked) {
        int api = asked.get("api").asInt(), version = asked.get("version").asInt();
        boolean request = asked.get("request").asBoolean();
        Schema schema = request ? ProtoUtils.requestSchema(api, version) : ProtoUtils.responseSchema(api, version);
        if (asked.has("values")) return Map.of("hex", hex(struct(schema, asked.get("values").iterator())));
        Struct read = (Struct) schema.read(ByteBuffer.wrap(HexFormat.of().parseHex(asked.get("hex").asText())));
        List<Object> values = new ArrayList<>();
        flatten(read, values);
        return Map.of("values", values, "hex", hex(read));
    }

    static String hex(Struct message) {
        ByteBuffer bytes = ByteBuffer.allocate(message.sizeOf());
        message.writeTo(bytes);
        return HexFormat.of().formatHex(bytes.array());
    }

    static Struct struct(Schema schema, Iterator<JsonNode> values) {
        Struct made = new Struct(schema);
        for (Field field : schema.fields()) made.set(field, value(field.type, values));
        return made;
    }

    static Object value(Type type, Iterator<JsonNode> values) {
        if (type instanceof Schema) return struct((Schema) type, values);
        JsonNode next = values.next();
        if (type == Type.STRING) return next.asText();
        if (type == Type.INT16) return (short) next.asInt();
        if (type == Type.INT32) return next.asInt();
        if (type == Type.INT64) return next.asLong();
        Type of = ((ArrayOf) type).type();
        List<Object> elements = new ArrayList<>();
        for (JsonNode element : next) {
            Iterator<JsonNode> inside = isList(of) ? element.iterator() : List.of(element).iterator();
            elements.add(value(of, inside));
        }
        return elements.toArray();
    }

    static boolean isList(Type element) {
        return element instanceof Schema && ((Schema) element).numFields() > 1;
    }

    static void flatten(Object value, List<Object> values) {
        if (value instanceof Struct) {
            for (Field field : ((Struct) value).schema().fields()) flatten(((Struct) value).get(field), values);
        } else if (value instanceof Object[]) {
            List<Object> elements = new ArrayList<>();
            for (Object element : (Object[]) value) {
                List<Object> inside = new ArrayList<>();
                flatten(element, inside);
                boolean list = element instanceof Struct && isList(((Struct) element).schema());
                elements.add(list ? inside : inside.get(0));
            }
            values.add(elements);
        } else {
            values.add(value);
        }
    }
}
