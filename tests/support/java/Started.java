import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A test of another language: it starts kcoord serve as a process, waits for its line, and uses it.
 *
 * Arguments: the command, as in `python -m kcoord_wire`. It writes the values that a group's member has read, a line
 * each, and then the status with which the process has ended after SIGTERM.
 */
public final class Started {
    private static final Pattern READY = Pattern.compile("^kcoord serves on ([^, ]+),.*");
    private static final int RECORDS = 4;

    public static void main(String[] arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of(arguments));
        command.addAll(List.of("serve", "--port", "0", "--topics", "orders:2"));
        Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        try {
            use(address(process));
        } finally {
            process.destroy();
        }
        System.out.println(process.waitFor());
    }

    private static String address(Process process) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream()));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Matcher found = READY.matcher(line);
            if (found.matches()) {
                return found.group(1);
            }
        }
        throw new IllegalStateException("it has ended without its line");
    }

    private static void use(String address) throws Exception {
        try (var producer = new KafkaProducer<String, String>(
                Map.of("bootstrap.servers", address), new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < RECORDS; number++) {
                producer.send(new ProducerRecord<>("orders", "order " + number)).get();
            }
        }
        Map<String, Object> settings =
                Map.of("bootstrap.servers", address, "group.id", "billing", "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<String, String>(
                settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("orders"));
            for (int read = 0; read < RECORDS; ) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(record.value());
                    read++;
                }
            }
        }
    }
}
