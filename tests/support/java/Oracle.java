// What the generated messages of a Kafka jar make of values and of bytes: a line of JSON for each on standard input.
//
//   {"list": package}                                      answer: {"messages": [[name, lowest, highest version], ...]}
//   {"name": class}                                        answer: {"values": those of a new message}
//   {"name": class, "version": number, "values": {...}}    answer: {"hex": the bytes}
//   {"name": class, "version": number, "hex": the bytes}   answer: {"values": ..., "left": bytes, "again": hex or null}
//
// The values are those of the Java fields, by name; bytes, records and UUIDs are hex. A refusal is {"error": text}.

import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.*;
import java.lang.reflect.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.jar.JarFile;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.RawTaggedField;

public class Oracle {
    static final ObjectMapper JSON =
        JsonMapper.builder().disable(JsonWriteFeature.WRITE_NAN_AS_STRINGS).build();
    static final String TAGS = "_unknownTags";

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(
            new BufferedOutputStream(new FileOutputStream(FileDescriptor.out)), false, StandardCharsets.UTF_8);
        for (String line; (line = lines.readLine()) != null; ) out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        out.flush();
    }

    static Map<String, ?> answer(JsonNode asked) throws Exception {
        if (asked.has("list")) return Map.of("messages", list(asked.get("list").asText()));
        Message message = (Message) Class.forName(asked.get("name").asText()).getConstructor().newInstance();
        if (!asked.has("version")) return Map.of("values", values(message));
        short version = (short) asked.get("version").asInt();
        try {
            if (asked.has("values")) {
                fill(message, asked.get("values"));
                return Map.of("hex", written(message, version));
            }
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(asked.get("hex").asText()));
            message.read(new ByteBufferAccessor(bytes), version);
            Map<String, Object> found = new HashMap<>(Map.of("values", values(message), "left", bytes.remaining()));
            found.put("again", again(message, version));
            return found;
        } catch (RuntimeException refused) {
            return Map.of("error", refused.toString());
        }
    }

    static String again(Message message, short version) {
        try {
            return written(message, version);
        } catch (RuntimeException refused) {
            return null;
        }
    }

    static String written(Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer bytes = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(bytes), cache, version);
        if (bytes.hasRemaining()) throw new IllegalStateException("size() was not that of the bytes");
        return HexFormat.of().formatHex(bytes.array());
    }

    static List<List<Object>> list(String in) throws Exception {
        List<List<Object>> found = new ArrayList<>();
        for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
            if (!path.endsWith(".jar")) continue;
            try (JarFile jar = new JarFile(path)) {
                for (var entries = jar.entries(); entries.hasMoreElements(); ) {
                    String name = entries.nextElement().getName().replace('/', '.');
                    if (!name.startsWith(in + ".") || !name.endsWith(".class") || name.contains("$")) continue;
                    Class<?> type = Class.forName(name.substring(0, name.length() - ".class".length()));
                    if (!Message.class.isAssignableFrom(type) || type.isInterface()) continue;
                    Message message = (Message) type.getConstructor().newInstance();
                    found.add(List.of(type.getName(), message.lowestSupportedVersion(), message.highestSupportedVersion()));
                }
            }
        }
        return found;
    }

    // ---- values into a message

    static void fill(Message message, JsonNode values) {
        for (var entry : values.properties()) {
            if (entry.getKey().equals(TAGS)) {
                for (JsonNode tag : entry.getValue()) {
                    message.unknownTaggedFields().add(new RawTaggedField(tag.get(0).asInt(), hex(tag.get(1))));
                }
                continue;
            }
            try {
                Field field = message.getClass().getDeclaredField(entry.getKey());
                field.setAccessible(true);
                field.set(message, value(field.getGenericType(), entry.getValue()));
            } catch (ReflectiveOperationException error) {
                throw new AssertionError(error);
            }
        }
    }

    static Object value(Type type, JsonNode value) throws ReflectiveOperationException {
        if (value.isNull()) return null;
        if (type == boolean.class) return value.asBoolean();
        if (type == byte.class) return (byte) value.asInt();
        if (type == short.class) return (short) value.asInt();
        if (type == int.class || type == Integer.class) return value.asInt();
        if (type == Short.class) return (short) value.asInt();
        if (type == Byte.class) return (byte) value.asInt();
        if (type == long.class || type == Long.class) return value.asLong();
        if (type == double.class) return value.asDouble();
        if (type == String.class) return value.asText();
        if (type == byte[].class) return hex(value);
        if (type == ByteBuffer.class) return ByteBuffer.wrap(hex(value));
        if (type == Uuid.class) {
            ByteBuffer bytes = ByteBuffer.wrap(hex(value));
            return new Uuid(bytes.getLong(), bytes.getLong());
        }
        if (type.getTypeName().endsWith(".BaseRecords")) return records((Class<?>) type, ByteBuffer.wrap(hex(value)));
        if (type instanceof Class && Message.class.isAssignableFrom((Class<?>) type)) {
            Message made = (Message) ((Class<?>) type).getConstructor().newInstance();
            fill(made, value);
            return made;
        }
        Type of = element(type);
        @SuppressWarnings("unchecked")
        Collection<Object> made = type instanceof Class
            ? (Collection<Object>) ((Class<?>) type).getConstructor().newInstance() : new ArrayList<>();
        for (JsonNode element : value) {
            if (!made.add(value(of, element))) throw new AssertionError("twice in " + type);
        }
        return made;
    }

    /** MemoryRecords, whose package is another one from 4.4 on. */
    static Object records(Class<?> base, ByteBuffer bytes) throws ReflectiveOperationException {
        Class<?> type = Class.forName(base.getPackageName() + ".MemoryRecords");
        return type.getMethod("readableRecords", ByteBuffer.class).invoke(null, bytes);
    }

    static ByteBuffer buffer(Object records) throws ReflectiveOperationException {
        return (ByteBuffer) records.getClass().getMethod("buffer").invoke(records);
    }

    /** A List of something, or a class of its own that extends a collection of something. */
    static Type element(Type type) {
        Type generic = type instanceof Class ? ((Class<?>) type).getGenericSuperclass() : type;
        return ((ParameterizedType) generic).getActualTypeArguments()[0];
    }

    static byte[] hex(JsonNode value) {
        return HexFormat.of().parseHex(value.asText());
    }

    // ---- the values of a message

    static Map<String, Object> values(Message message) throws ReflectiveOperationException {
        Map<String, Object> found = new LinkedHashMap<>();
        for (Field field : message.getClass().getDeclaredFields()) {
            boolean isLink = field.getName().equals("prev") || field.getName().equals("next");
            if (Modifier.isStatic(field.getModifiers()) || isLink || field.getName().startsWith("_")) continue;
            field.setAccessible(true);
            found.put(field.getName(), plain(field.get(message)));
        }
        List<Object> tags = new ArrayList<>();
        for (RawTaggedField tag : message.unknownTaggedFields()) {
            tags.add(List.of(Integer.toUnsignedLong(tag.tag()), HexFormat.of().formatHex(tag.data())));
        }
        if (!tags.isEmpty()) found.put(TAGS, tags);
        return found;
    }

    static Object plain(Object value) throws ReflectiveOperationException {
        if (value instanceof Message) return values((Message) value);
        if (value instanceof byte[]) return HexFormat.of().formatHex((byte[]) value);
        if (value instanceof ByteBuffer) return plain((ByteBuffer) value);
        if (value != null && value.getClass().getSimpleName().equals("MemoryRecords")) return plain(buffer(value));
        if (value instanceof Uuid) {
            Uuid uuid = (Uuid) value;
            return String.format("%016x%016x", uuid.getMostSignificantBits(), uuid.getLeastSignificantBits());
        }
        if (!(value instanceof Collection)) return value;
        List<Object> elements = new ArrayList<>();
        for (Object element : (Collection<?>) value) elements.add(plain(element));
        return elements;
    }

    static String plain(ByteBuffer value) {
        byte[] bytes = new byte[value.remaining()];
        value.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
