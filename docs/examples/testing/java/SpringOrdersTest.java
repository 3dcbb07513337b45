import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.context.annotation.Bean;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.test.context.DynamicPropertyRegistrar;

/** Tests of a listener of Spring Boot: a rebalance, and an error that its container has to get over. */
@SpringBootTest(
        properties = {
            "spring.kafka.consumer.auto-offset-reset=earliest",
            "spring.kafka.consumer.properties.heartbeat.interval.ms=100",
        })
class SpringOrdersTest {
    @SpringBootConfiguration
    @EnableAutoConfiguration
    static class Application {
        final BlockingQueue<String> read = new LinkedBlockingQueue<>();

        @KafkaListener(topics = "orders", groupId = "billing", concurrency = "2")
        void read(String order) {
            read.add(order);
        }

        @Bean // ended after the listeners
        Kcoord kcoord() throws IOException {
            return new Kcoord("--topics", "orders:4");
        }

        @Bean
        DynamicPropertyRegistrar settings(Kcoord kcoord) {
            return registry -> registry.add("spring.kafka.bootstrap-servers", () -> kcoord.address);
        }
    }

    @Autowired private Application application;
    @Autowired private Kcoord kcoord;
    @Autowired private KafkaTemplate<String, String> orders;

    @BeforeEach
    void waitUntilStable() throws Exception {
        kcoord.post("/groups/billing/wait-until-stable", "{\"members\": 2}");
    }

    @Test
    void nothingIsLostInARebalance() throws Exception {
        kcoord.post("/groups/billing/rebalance", "{\"reason\": \"what becomes of it?\"}");
        orders.send("orders", "a book").get();
        assertEquals("a book", application.read.poll(1, TimeUnit.MINUTES));
        waitUntilStable();
        assertTrue(kcoord.get("/rebalances?group=billing").contains("what becomes of it?"));
    }

    @Test
    void aCommitIsRepeatedWhileTheCoordinatorLoads() throws Exception {
        kcoord.post("/faults", """
            {"action": "error", "api": "OffsetCommit", "topic": "orders",
             "error": "COORDINATOR_LOAD_IN_PROGRESS", "count": 2}""");
        var sent = orders.send("orders", "a pen").get().getRecordMetadata();
        assertEquals("a pen", application.read.poll(1, TimeUnit.MINUTES));
        kcoord.post("/groups/billing/wait-for-commit", """
            {"topic": "orders", "partition": %d, "offset": %d}""".formatted(sent.partition(), sent.offset() + 1));
        assertTrue(kcoord.get("/faults").contains("\"hits\": 2"));
    }
}
