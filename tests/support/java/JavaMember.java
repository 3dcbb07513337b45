import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A member by kafka-clients. It speaks the line protocol of tests/support/clients/lines.py. */
public final class JavaMember implements ConsumerRebalanceListener {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String END = "";
    private static final Map<String, String> ASSIGNORS = Map.of(
        "range", "RangeAssignor",
        "roundrobin", "RoundRobinAssignor",
        "sticky", "StickyAssignor",
        "cooperative-sticky", "CooperativeStickyAssignor");
    private static final PrintStream OUT = System.out;

    private final JsonNode settings;
    private final JsonNode bounce; // of tests/bench/bounce/member.py; null: partitions take no time
    private final String topic;
    private final TreeSet<Integer> owned = new TreeSet<>();
    private final TreeMap<Integer, Long> next = new TreeMap<>(); // partition -> offset behind the last record told
    private KafkaConsumer<String, String> consumer;

    private JavaMember(JsonNode settings) throws IOException {
        String times = System.getenv("BOUNCE");
        this.settings = settings;
        this.bounce = times == null ? null : JSON.readTree(times);
        this.topic = settings.get("topic").asText();
    }

    public static void main(String[] arguments) throws Exception {
        System.setErr(new PrintStream(new Log(System.err), true, StandardCharsets.UTF_8));
        JavaMember member = new JavaMember(JSON.readTree(arguments[0]));
        LinkedBlockingQueue<String> waiting = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> read(waiting));
        reader.setDaemon(true);
        reader.start();
        while (true) {
            String line = member.consumer == null ? waiting.take() : waiting.poll();
            if (line == null) {
                member.look();
            } else if (line.equals(END)) {
                Runtime.getRuntime().halt(0);
            } else {
                member.obey(JSON.readTree(line));
            }
        }
    }

    private static void read(LinkedBlockingQueue<String> waiting) {
        try (var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                waiting.add(line);
            }
        } catch (IOException error) {
            tell("log", Map.of("level", "error", "text", error.toString()));
        }
        waiting.add(END);
    }

    private static synchronized void tell(String event, Map<String, ?> fields) {
        var told = new TreeMap<String, Object>(fields);
        told.put("event", event);
        try {
            OUT.println(JSON.writeValueAsString(told));
            OUT.flush();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private void obey(JsonNode command) {
        String what = command.get("do").asText();
        try {
            tell(what, switch (what) {
                case "join" -> join();
                case "produce" -> produce(command.get("records"));
                case "commit" -> commit(command.get("offsets"));
                case "subscribe" -> subscribe(command.get("topics"));
                case "stall" -> stall(command.get("ms").asLong());
                case "rebalance" -> rebalance(command.get("reason").asText());
                case "leave" -> leave();
                default -> throw new IllegalArgumentException(what);
            });
        } catch (Exception error) {
            tell("failed", Map.of("do", what, "text", error.toString()));
        }
    }

    private Properties options() {
        var options = new Properties();
        options.put("bootstrap.servers", settings.get("bootstrap").asText());
        options.put("client.id", settings.get("client_id").asText());
        return options;
    }

    private Map<String, ?> join() {
        work("starts", List.of());
        Properties options = options();
        options.put("group.id", settings.get("group").asText());
        if (!settings.get("instance_id").isNull()) {
            options.put("group.instance.id", settings.get("instance_id").asText());
        }
        var assignors = new ArrayList<String>();
        for (String name : settings.get("assignor").asText().split(",")) {
            assignors.add("org.apache.kafka.clients.consumer." + ASSIGNORS.get(name));
        }
        options.put("partition.assignment.strategy", assignors);
        options.put("session.timeout.ms", settings.get("session_timeout_ms").asText());
        options.put("heartbeat.interval.ms", settings.get("heartbeat_interval_ms").asText());
        options.put("max.poll.interval.ms", settings.get("rebalance_timeout_ms").asText());
        options.put("auto.offset.reset", "earliest");
        options.put("enable.auto.commit", "false");
        JsonNode more = settings.path("options");
        more.fieldNames().forEachRemaining(name -> {
            if (more.get(name).isNull()) {
                options.remove(name);
            } else {
                options.put(name, more.get(name).asText());
            }
        });
        consumer = new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer());
        if (topic.startsWith("^")) {
            consumer.subscribe(Pattern.compile(topic), this);
        } else {
            consumer.subscribe(List.of(topic), this);
        }
        return Map.of();
    }

    private Map<String, ?> produce(JsonNode records) throws Exception {
        var sent = new ArrayList<Future<RecordMetadata>>();
        var told = new ArrayList<List<Object>>();
        try (var producer = new KafkaProducer<>(options(), new StringSerializer(), new StringSerializer())) {
            for (JsonNode record : records) {
                sent.add(producer.send(new ProducerRecord<>(topic, record.get(0).asInt(), null, record.get(1).asText())));
            }
            for (int i = 0; i < sent.size(); i++) {
                RecordMetadata metadata = sent.get(i).get();
                told.add(List.of(metadata.partition(), metadata.offset(), records.get(i).get(1).asText()));
            }
        }
        return Map.of("records", told);
    }

    private Map<String, ?> subscribe(JsonNode topics) {
        var names = new ArrayList<String>();
        topics.forEach(name -> names.add(name.asText()));
        consumer.subscribe(names, this);
        return Map.of();
    }

    private Map<String, ?> stall(long milliseconds) throws InterruptedException {
        Thread.sleep(milliseconds);
        return Map.of();
    }

    private Map<String, ?> rebalance(String reason) {
        consumer.enforceRebalance(reason);
        return Map.of();
    }

    private Map<String, ?> commit(JsonNode wanted) {
        var offsets = new TreeMap<Integer, OffsetAndMetadata>();
        if (wanted == null) {
            next.forEach((partition, offset) -> offsets.put(partition, new OffsetAndMetadata(offset)));
        } else {
            wanted.forEach(pair -> offsets.put(pair.get(0).asInt(), new OffsetAndMetadata(pair.get(1).asLong())));
        }
        var named = new java.util.HashMap<TopicPartition, OffsetAndMetadata>();
        offsets.forEach((partition, offset) -> named.put(new TopicPartition(topic, partition), offset));
        consumer.commitSync(named);
        var told = new ArrayList<List<Long>>();
        offsets.forEach((partition, offset) -> told.add(List.of((long) partition, offset.offset())));
        return Map.of("offsets", told);
    }

    private Map<String, ?> leave() {
        work("stops", List.of());
        consumer.close();
        consumer = null;
        return Map.of();
    }

    private void look() {
        var told = new ArrayList<List<Object>>();
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
            next.put(record.partition(), record.offset() + 1);
            told.add(List.of(record.partition(), record.offset(), record.value()));
        }
        if (!told.isEmpty()) {
            tell("records", Map.of("records", told));
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        own(List.of(), numbers(partitions));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        own(numbers(partitions), List.of());
    }

    private static List<Integer> numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::partition).sorted().toList();
    }

    /** Give up and take partitions, and report it; in a bounce each takes its time. */
    private void own(List<Integer> closed, List<Integer> opened) {
        boolean works = !closed.isEmpty() || !opened.isEmpty();
        if (bounce != null && works) {
            work("blocks", List.of());
            work("drops", closed);
            sleep(closed.size() * bounce.get("revoke_ms").asLong() + opened.size() * bounce.get("assign_ms").asLong());
        }
        owned.addAll(opened);
        owned.removeAll(closed);
        next.keySet().retainAll(owned);
        if (bounce == null) {
            tell("owns", Map.of("partitions", owned));
        } else if (works) {
            work("takes", opened);
            work("resumes", List.of());
        }
    }

    private void work(String what, List<Integer> partitions) {
        if (bounce != null) { // nanoTime is CLOCK_MONOTONIC on Linux, as Python's
            tell("work", Map.of("at", System.nanoTime() / 1e6, "what", what, "partitions", partitions));
        }
    }

    private static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Standard error, on which warnings and errors of the logger are told as events; the rest goes on to people. */
    private static final class Log extends OutputStream {
        private final PrintStream rest;
        private final ByteArrayOutputStream line = new ByteArrayOutputStream();

        private Log(PrintStream rest) {
            this.rest = rest;
        }

        @Override
        public synchronized void write(int octet) {
            if (octet != '\n') {
                line.write(octet);
                return;
            }
            String text = line.toString(StandardCharsets.UTF_8);
            line.reset();
            if (text.startsWith("WARN ")) {
                tell("log", Map.of("level", "warning", "text", text));
            } else if (text.startsWith("ERROR ")) {
                tell("log", Map.of("level", "error", "text", text));
            } else {
                rest.println(text);
            }
        }
    }
}
