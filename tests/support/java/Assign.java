// Runs assignors of Kafka on the groups that come as lines of JSON, and answers each with a line of JSON.
//
//   {"assignor": class, "topics": {topic: [[rack, ...], ...]}, "members": {member id: {"subscription": base64, "instance": id or null}}}
//       one entry of racks for each partition; the subscription as it is in JoinGroup
//   answer: {member id: {topic: [partition, ...]}}, or {"raised": text} where the assignor raises
//
//   {"assignor": class, "size": [members, topics, partitions of each], "odd": true if one member subscribes to a topic less,
//    "change": "none", "join" or "leave", "calls": n, "seconds": s}
//       assigns afresh, or again after one member has joined or left: at most n times in a row, for s seconds of
//       processor time or three times
//   answer: {"cpu": [seconds of this process, a call], "thread_cpu": [seconds of the calling thread alone, a call]}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.management.OperatingSystemMXBean;
import java.io.*;
import java.lang.management.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.*;

public class Assign {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        for (String line; (line = lines.readLine()) != null; ) {
            JsonNode asked = JSON.readTree(line);
            out.println(JSON.writeValueAsString(answer(asked)));
            out.flush();
        }
    }

    static Map<String, ?> answer(JsonNode asked) throws ReflectiveOperationException {
        Object assignor = Class.forName(asked.get("assignor").asText()).getDeclaredConstructor().newInstance();
        if (asked.has("size")) return measure((AbstractPartitionAssignor) assignor, asked);
        try {
            return assign((ConsumerPartitionAssignor) assignor, asked);
        } catch (RuntimeException error) {
            return Map.of("raised", error.toString());
        }
    }

    // ---- one group

    static Map<String, Map<String, List<Integer>>> assign(ConsumerPartitionAssignor assignor, JsonNode asked) {
        Map<String, Node> nodes = new TreeMap<>(); // one broker in each rack
        List<PartitionInfo> partitions = new ArrayList<>();
        asked.get("topics").fields().forEachRemaining(topic -> {
            int number = 0;
            for (JsonNode racks : topic.getValue()) {
                List<Node> replicas = new ArrayList<>();
                racks.forEach(rack -> replicas.add(
                    nodes.computeIfAbsent(rack.asText(), name -> new Node(nodes.size(), "host", 9092, name))));
                Node[] all = replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(topic.getKey(), number++, all.length > 0 ? all[0] : null, all, all));
            }
        });
        Map<String, Subscription> members = new HashMap<>();
        asked.get("members").fields().forEachRemaining(member -> {
            byte[] bytes = Base64.getDecoder().decode(member.getValue().get("subscription").asText());
            Subscription subscription = ConsumerProtocol.deserializeSubscription(ByteBuffer.wrap(bytes));
            JsonNode instance = member.getValue().get("instance");
            if (!instance.isNull()) subscription.setGroupInstanceId(Optional.of(instance.asText()));
            members.put(member.getKey(), subscription);
        });
        Cluster cluster = new Cluster("c", nodes.values(), partitions, Set.of(), Set.of());
        Map<String, Map<String, List<Integer>>> answer = new TreeMap<>();
        assignor.assign(cluster, new GroupSubscription(members)).groupAssignment().forEach((member, given) -> {
            Map<String, List<Integer>> has = new TreeMap<>();
            for (TopicPartition each : given.partitions())
                has.computeIfAbsent(each.topic(), topic -> new ArrayList<>()).add(each.partition());
            answer.put(member, has);
        });
        return answer;
    }

    // ---- processor time

    static Map<String, List<Double>> measure(AbstractPartitionAssignor assignor, JsonNode asked) {
        int count = asked.get("size").get(0).asInt(), topics = asked.get("size").get(1).asInt();
        Map<String, List<PartitionInfo>> infos = new HashMap<>();
        List<String> names = new ArrayList<>();
        for (int topic = 0; topic < topics; topic++) {
            String name = String.format("topic-%04d", topic);
            names.add(name);
            List<PartitionInfo> all = new ArrayList<>();
            for (int number = 0; number < asked.get("size").get(2).asInt(); number++)
                all.add(new PartitionInfo(name, number, null, new Node[0], new Node[0]));
            infos.put(name, all);
        }
        String change = asked.get("change").asText();
        boolean odd = asked.get("odd").asBoolean();
        Map<String, Subscription> members = new HashMap<>();
        for (int member = 0; member < count; member++)
            members.put(name(member), new Subscription(wanted(names, odd && member == 0)));
        if (!change.equals("none")) {
            Map<String, List<TopicPartition>> given = assignor.assignPartitions(infos, members);
            members.replaceAll((member, fresh) -> holding(assignor, fresh.topics(), given.get(member)));
            if (change.equals("join")) members.put(name(count), new Subscription(names));
            else members.remove(name(count / 2));
        }
        List<Double> cpu = new ArrayList<>(), threadCpu = new ArrayList<>();
        ThreadMXBean thread = ManagementFactory.getThreadMXBean();
        OperatingSystemMXBean process = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        double left = asked.get("seconds").asDouble();
        while (cpu.size() < asked.get("calls").asInt() && (cpu.size() < 3 || left > 0)) {
            members.values().forEach(member -> { if (member.userData() != null) member.userData().rewind(); });
            long before = process.getProcessCpuTime(), threadBefore = thread.getCurrentThreadCpuTime();
            int assigned = assignor.assignPartitions(infos, members).size();
            threadCpu.add((thread.getCurrentThreadCpuTime() - threadBefore) / 1e9);
            left -= threadCpu.get(threadCpu.size() - 1);
            cpu.add((process.getProcessCpuTime() - before) / 1e9);
            if (assigned != members.size()) throw new IllegalStateException(assigned + " of " + members.size());
        }
        return Map.of("cpu", cpu, "thread_cpu", threadCpu);
    }

    static String name(int member) {
        return String.format("member-%05d", member);
    }

    static List<String> wanted(List<String> names, boolean odd) {
        return odd ? new ArrayList<>(names.subList(1, names.size())) : new ArrayList<>(names);
    }

    /** The subscription of a member that has its partitions since generation 1; an eager one has given them up. */
    static Subscription holding(AbstractPartitionAssignor assignor, List<String> topics, List<TopicPartition> given) {
        assignor.onAssignment(new Assignment(given), new ConsumerGroupMetadata("g", 1, "m", Optional.empty()));
        ByteBuffer data = assignor.subscriptionUserData(new HashSet<>(topics));
        boolean cooperative = assignor.supportedProtocols().contains(RebalanceProtocol.COOPERATIVE);
        return new Subscription(topics, data, cooperative ? given : List.of(), cooperative ? 1 : -1, Optional.empty());
    }
}
