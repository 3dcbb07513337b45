// The bytes that Kafka Connect and Kafka Streams put into the byte fields of JoinGroup and SyncGroup, made by their own
// classes: a line for each, with the message's name, its version and the bytes in hex.

import java.net.URI;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.runtime.distributed.*;
import org.apache.kafka.connect.util.ConnectorTaskId;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.internals.assignment.*;
import org.apache.kafka.streams.state.HostInfo;

public class EmbeddedBytes {
    public static void main(String[] arguments) {
        connect();
        for (int version = 1; version <= 11; version++) {
            streams(version);
        }
    }

    private static void connect() {
        List<String> connectors = List.of("sink");
        List<ConnectorTaskId> tasks = List.of(new ConnectorTaskId("sink", 0), new ConnectorTaskId("sink", 2),
            new ConnectorTaskId("quelle-\u00e9", 1));
        String url = "http://worker-1:8083/";
        print("ConnectProtocolMetadata", 0,
            ConnectProtocol.serializeMetadata(new ConnectProtocol.WorkerState(url, 41)));
        print("ConnectProtocolAssignment", 0, ConnectProtocol.serializeAssignment(
            new ConnectProtocol.Assignment(ConnectProtocol.Assignment.NO_ERROR, "worker-1", url, 41, connectors, tasks)));
        for (int version = 1; version <= 2; version++) {
            ExtendedAssignment some = new ExtendedAssignment((short) version, ConnectProtocol.Assignment.NO_ERROR,
                "worker-1", url, 42, connectors, tasks, List.of("old"), List.of(new ConnectorTaskId("old", 7)), 300_000);
            ExtendedAssignment none = new ExtendedAssignment((short) version, ConnectProtocol.Assignment.CONFIG_MISMATCH,
                "worker-1", url, -1, List.of(), List.of(), List.of(), List.of(), 0);
            boolean sessioned = version == 2;
            for (ExtendedAssignment each : List.of(some, none)) {
                print("ConnectProtocolAssignment", version,
                    IncrementalCooperativeConnectProtocol.serializeAssignment(each, sessioned));
            }
            for (ExtendedAssignment each : Arrays.asList(some, null)) {
                print("ConnectProtocolMetadata", version, IncrementalCooperativeConnectProtocol.serializeMetadata(
                    new ExtendedWorkerState(url, 42, each), sessioned));
            }
        }
    }

    private static void streams(int version) {
        String name = version < 10 ? null : "billing";
        TaskId first = new TaskId(0, 1, name);
        TaskId second = new TaskId(2, 3, version < 10 ? null : "\u00e9\ud83d\ude00");
        TaskId third = new TaskId(0, 2);
        ProcessId process = new ProcessId(new UUID(0x0102030405060708L, 0x8899aabbccddeeffL));
        Map<TaskId, Long> sums = new LinkedHashMap<>();
        sums.put(first, -2L);
        sums.put(second, 1_234_567_890_123L);
        sums.put(third, 0L);
        Map<String, String> tags = version < 11 ? Map.of() : Map.of("zone", "eu-\u00e9");
        print("StreamsSubscriptionInfo", version, new SubscriptionInfo(
            version, 11, process, "host-1:8080", sums, (byte) 5, version < 9 ? 0 : 1, tags).encode());
        print("StreamsSubscriptionInfo", version, new SubscriptionInfo(
            version, 11, process, null, Map.of(), (byte) 0, 0, Map.of()).encode());
        Map<TaskId, Set<TopicPartition>> standby = Map.of(second, Set.of(new TopicPartition("orders", 3)));
        Map<HostInfo, Set<TopicPartition>> active = Map.of(
            new HostInfo("host-1", 8080), Set.of(new TopicPartition("orders", 1)));
        Map<HostInfo, Set<TopicPartition>> copies = Map.of(
            new HostInfo("host-2", 8081), Set.of(new TopicPartition("payments", 3)));
        AssignmentInfo some = new AssignmentInfo(version, 11, List.of(first, third), standby, active, copies, 3);
        some.setNextRebalanceTime(1_800_000_000_000L);
        print("StreamsAssignmentInfo", version, some.encode());
        print("StreamsAssignmentInfo", version,
            new AssignmentInfo(version, 11, List.of(), Map.of(), Map.of(), Map.of(), 0).encode());
    }

    private static void print(String name, int version, ByteBuffer bytes) {
        byte[] content = new byte[bytes.remaining()];
        bytes.get(content);
        System.out.println(name + "\t" + version + "\t" + HexFormat.of().formatHex(content));
    }
}
