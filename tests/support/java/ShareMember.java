import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a share group. Each line of its input is a command, each line of its output the answer:
 * "poll MS [RECORDS]" polls until there are so many records (default 1) or the time is up: "PARTITION:OFFSET:DELIVERIES ..."
 * "TYPE OFFSET ..." acknowledges records of partition 0 that were polled last
 * "commit" sends what was acknowledged: "PARTITION:ERROR ...", where no error is "ok"
 * "close" ends the session.
 */
public final class ShareMember {
    private static final Map<String, AcknowledgeType> TYPES = Map.of(
        "accept", AcknowledgeType.ACCEPT,
        "release", AcknowledgeType.RELEASE,
        "reject", AcknowledgeType.REJECT,
        "renew", AcknowledgeType.RENEW);

    private final KafkaShareConsumer<String, String> consumer;
    private final TreeMap<Long, ConsumerRecord<String, String>> polled = new TreeMap<>(); // by offset

    private ShareMember(String bootstrap, String group, String topic, String[] options) {
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", group);
        for (String option : options) {
            String[] parts = option.split("=", 2);
            properties.put(parts[0], parts[1]);
        }
        consumer = new KafkaShareConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
    }

    public static void main(String[] arguments) throws Exception {
        String[] options = List.of(arguments).subList(3, arguments.length).toArray(new String[0]);
        var member = new ShareMember(arguments[0], arguments[1], arguments[2], options);
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                answer = member.obey(line.split(" "));
            } catch (RuntimeException error) {
                answer = error.getClass().getSimpleName() + ": " + error.getMessage();
            }
            System.out.println(answer);
            System.out.flush();
        }
    }

    private String obey(String[] command) {
        switch (command[0]) {
            case "poll":
                return poll(Long.parseLong(command[1]), command.length > 2 ? Integer.parseInt(command[2]) : 1);
            case "commit":
                var outcomes = new ArrayList<String>();
                consumer.commitSync(Duration.ofSeconds(30)).forEach((partition, error) ->
                    outcomes.add(partition.partition() + ":" + error.map(e -> e.getClass().getSimpleName()).orElse("ok")));
                return String.join(" ", outcomes);
            case "close":
                consumer.close();
                return "closed";
            default:
                for (int at = 1; at < command.length; at++) {
                    consumer.acknowledge(polled.get(Long.parseLong(command[at])), TYPES.get(command[0]));
                }
                return "acknowledged";
        }
    }

    private String poll(long ms, int least) {
        var found = new ArrayList<String>();
        long end = System.nanoTime() + ms * 1_000_000;
        while (found.size() < least && System.nanoTime() < end) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                polled.put(record.offset(), record);
                found.add(record.partition() + ":" + record.offset() + ":" + record.deliveryCount().orElse((short) -1));
            }
        }
        return String.join(" ", found);
    }
}
