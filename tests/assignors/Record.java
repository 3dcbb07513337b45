// Runs Kafka's own assignors over cases from stdin and prints each case with its result: see tests/support/assignments.py.
//   java -cp kafka-clients.jar:slf4j-api.jar Record.java <cases >recorded
// A case is "assignor|topic=partitions ...|member=topic,topic member:instance=topic ..."; a result "member=topic-partition,... ".

import java.util.*;
import java.util.stream.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.common.*;

class Record {
    public static void main(String[] args) {
        new Scanner(System.in).useDelimiter("\n").forEachRemaining(line -> System.out.println(line + "|" + run(line)));
    }

    static String run(String line) {
        String[] parts = line.split("\\|", -1);
        List<PartitionInfo> partitions = new ArrayList<>();
        for (String topic : parts[1].split(" ")) {
            String[] pair = topic.split("=");
            for (int i = 0; i < Integer.parseInt(pair[1]); i++) partitions.add(new PartitionInfo(pair[0], i, null, null, null));
        }
        Map<String, Subscription> members = new HashMap<>();
        for (String member : parts[2].split(" ")) {
            String[] pair = member.split("=", -1), names = pair[0].split(":");
            Subscription subscription = new Subscription(Arrays.stream(pair[1].split(",")).filter(t -> !t.isEmpty()).toList());
            if (names.length > 1) subscription.setGroupInstanceId(Optional.of(names[1]));
            members.put(names[0], subscription);
        }
        ConsumerPartitionAssignor assignor = parts[0].equals("range") ? new RangeAssignor() : new RoundRobinAssignor();
        Cluster cluster = new Cluster("c", List.of(), partitions, Set.of(), Set.of());
        Map<String, Assignment> result = assignor.assign(cluster, new GroupSubscription(members)).groupAssignment();
        return new TreeMap<>(result).entrySet().stream().map(each -> each.getKey() + "=" + each.getValue().partitions().stream()
            .map(TopicPartition::toString).collect(Collectors.joining(","))).collect(Collectors.joining(" "));
    }
}
