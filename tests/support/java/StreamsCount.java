import java.time.Duration;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TaskMetadata;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * An instance of an application that counts words: a topic for repartitioning, a store with a changelog and standbys.
 *
 * <p>Arguments: the topic of words, the topic of counts, and settings as NAME=VALUE. It writes a line of JSON when its
 * tasks change, and closes in order when it is terminated.
 */
public final class StreamsCount {
    private static final long LOOK_MS = 100;
    private static final Duration CLOSING = Duration.ofSeconds(30);

    private StreamsCount() {}

    public static void main(String[] arguments) throws InterruptedException {
        Properties settings = new Properties();
        for (int at = 2; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            settings.setProperty(pair[0], pair[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[0])
            .selectKey((key, word) -> word)
            .groupByKey(Grouped.as("words"))
            .count(Materialized.as("counts"))
            .toStream()
            .to(arguments[1], Produced.with(Serdes.String(), Serdes.Long()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(CLOSING)));
        streams.start();
        for (String told = ""; streams.state() != KafkaStreams.State.ERROR; Thread.sleep(LOOK_MS)) {
            String now = tasks(streams);
            if (!now.equals(told)) {
                System.out.println(now);
                told = now;
            }
        }
        Runtime.getRuntime().halt(1);
    }

    private static String tasks(KafkaStreams streams) {
        Set<String> active = new TreeSet<>();
        Set<String> standby = new TreeSet<>();
        for (ThreadMetadata thread : streams.metadataForLocalThreads()) {
            add(thread.activeTasks(), active);
            add(thread.standbyTasks(), standby);
        }
        return "{\"state\":\"" + streams.state() + "\",\"active\":" + list(active) + ",\"standby\":" + list(standby) + "}";
    }

    private static void add(Set<TaskMetadata> tasks, Set<String> names) {
        tasks.forEach(task -> names.add(task.taskId().toString()));
    }

    private static String list(Set<String> names) {
        return names.stream().map(name -> "\"" + name + "\"").collect(Collectors.joining(",", "[", "]"));
    }
}
