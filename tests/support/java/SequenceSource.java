import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/**
 * A source connector whose tasks number their records, each task for itself, and go on where the topic of offsets says.
 *
 * <p>A task writes the number after the last committed one when it starts, and a line when it stops.
 */
public final class SequenceSource extends SourceConnector {
    private Map<String, String> settings;

    @Override
    public void start(Map<String, String> given) {
        settings = given;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return SequenceTask.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        List<Map<String, String>> tasks = new ArrayList<>();
        for (int number = 0; number < most; number++) {
            tasks.add(Map.of("topic", settings.get("topic"), "number", String.valueOf(number)));
        }
        return tasks;
    }

    @Override
    public void stop() {}

    @Override
    public ConfigDef config() {
        return new ConfigDef().define("topic", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "where records go");
    }

    @Override
    public String version() {
        return "1";
    }

    /** A task: its records are {@code number:0}, {@code number:1} and so on. */
    public static final class SequenceTask extends SourceTask {
        private static final long PAUSE_MS = 20;
        private String topic;
        private String number;
        private long next;

        @Override
        public void start(Map<String, String> given) {
            topic = given.get("topic");
            number = given.get("number");
            Map<String, Object> offset = context.offsetStorageReader().offset(Map.of("task", number));
            next = offset == null ? 0 : (Long) offset.get("at") + 1;
            say("starts");
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            Thread.sleep(PAUSE_MS);
            long at = next++;
            String value = number + ":" + at;
            return List.of(new SourceRecord(
                Map.of("task", number), Map.of("at", at), topic, null, Schema.STRING_SCHEMA, number, Schema.STRING_SCHEMA, value));
        }

        @Override
        public void stop() {
            say("stops");
        }

        private void say(String what) {
            System.out.println("{\"task\":" + number + ",\"does\":\"" + what + "\",\"next\":" + next + "}");
        }

        @Override
        public String version() {
            return "1";
        }
    }
}
