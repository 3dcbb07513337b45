import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Tests of consumers with JUnit: a rebalance, and an error that a client has to get over. */
class OrdersTest {
    private Kcoord kcoord;

    @BeforeEach
    void start() throws Exception {
        kcoord = new Kcoord("--topics", "orders:4");
    }

    @AfterEach
    void stop() throws Exception {
        kcoord.close();
    }

    @Test
    void aSecondConsumerTakesHalfOfThePartitions() throws Exception {
        try (var first = consumer(); var second = consumer()) {
            pollUntil(() -> first.assignment().size() == 2 && second.assignment().size() == 2, first, second);
            int before = first.groupMetadata().generationId();
            kcoord.post("/groups/billing/rebalance", "{\"reason\": \"what becomes of it?\"}");
            pollUntil(() -> first.groupMetadata().generationId() > before, first, second);
            assertTrue(kcoord.get("/rebalances?group=billing").contains("what becomes of it?"));
        }
    }

    @Test
    void aCommitIsRepeatedWhileTheCoordinatorLoads() throws Exception {
        try (var consumer = consumer()) {
            pollUntil(() -> consumer.assignment().size() == 4, consumer);
            kcoord.post("/faults", """
                {"action": "error", "api": "OffsetCommit", "topic": "orders",
                 "error": "COORDINATOR_LOAD_IN_PROGRESS", "count": 2}""");
            TopicPartition partition = new TopicPartition("orders", 3);
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(7)));
            assertTrue(kcoord.get("/faults").contains("\"hits\": 2"));
            assertEquals(7, consumer.committed(Set.of(partition)).get(partition).offset());
        }
    }

    private KafkaConsumer<String, String> consumer() {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", kcoord.address,
                "group.id", "billing",
                "enable.auto.commit", false,
                "heartbeat.interval.ms", 100,
                "retry.backoff.ms", 10);
        var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of("orders"));
        return consumer;
    }

    private static void pollUntil(BooleanSupplier condition, KafkaConsumer<?, ?>... consumers) {
        for (long end = System.nanoTime() + Duration.ofMinutes(1).toNanos(); !condition.getAsBoolean(); ) {
            assertTrue(System.nanoTime() < end, "not within a minute");
            for (KafkaConsumer<?, ?> each : consumers) {
                each.poll(Duration.ofMillis(50));
            }
        }
    }
}
