import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Copies a topic to another in transactions: bootstrap, transactional id, in, out, group, number of the last record. */
public final class Transform {
    public static void main(String[] arguments) {
        Properties common = new Properties();
        common.put("bootstrap.servers", arguments[0]);
        Properties reading = new Properties();
        reading.putAll(common);
        reading.put("group.id", arguments[4]);
        reading.put("enable.auto.commit", "false");
        reading.put("auto.offset.reset", "earliest");
        reading.put("isolation.level", "read_committed");
        reading.put("session.timeout.ms", "20000");
        reading.put("max.poll.records", "7");
        Properties writing = new Properties();
        writing.putAll(common);
        writing.put("transactional.id", arguments[1]);
        int last = Integer.parseInt(arguments[5]);
        try (KafkaConsumer<String, String> consumer =
                    new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
                KafkaProducer<String, String> producer =
                    new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(arguments[2]));
            int seen = -1;
            for (int round = 0; seen < last; round++) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(arguments[3], record.value()));
                    offsets.put(
                        new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    seen = Integer.parseInt(record.value());
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (round % 3 == 1) { // what an application does that fails: everything again
                    producer.abortTransaction();
                    Map<TopicPartition, OffsetAndMetadata> before = consumer.committed(consumer.assignment());
                    for (TopicPartition partition : consumer.assignment()) {
                        OffsetAndMetadata committed = before.get(partition);
                        consumer.seek(partition, committed == null ? 0 : committed.offset());
                    }
                    seen = -1;
                } else {
                    producer.commitTransaction();
                    System.out.println(seen);
                }
            }
        }
    }
}
