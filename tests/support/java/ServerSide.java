// Kafka's server-side assignors (KIP-848, KIP-932) behind the interface of the client-side ones, so that Assign.java runs both.
// A topic's id has its place in the alphabet as its number, so that ids sort as names do.

import java.util.*;
import java.util.function.Function;
import java.util.stream.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.common.*;
import org.apache.kafka.coordinator.group.api.assignor.*;
import org.apache.kafka.coordinator.group.modern.*;

public abstract class ServerSide implements ConsumerPartitionAssignor {
    public static class Uniform extends ServerSide {
        public Uniform() { super(new org.apache.kafka.coordinator.group.assignor.UniformAssignor()); }
    }

    public static class Range extends ServerSide {
        public Range() { super(new org.apache.kafka.coordinator.group.assignor.RangeAssignor()); }
    }

    public static class Simple extends ServerSide {
        public Simple() { super(new org.apache.kafka.coordinator.group.assignor.SimpleAssignor()); }
    }

    private final PartitionAssignor assignor;

    ServerSide(PartitionAssignor assignor) { this.assignor = assignor; }

    @Override public String name() { return assignor.name(); }

    @Override public GroupAssignment assign(Cluster cluster, GroupSubscription group) {
        Map<String, Subscription> subscriptions = group.groupSubscription();
        List<String> names = new ArrayList<>(new TreeSet<>(cluster.topics()));
        Map<String, Uuid> ids = new HashMap<>();
        for (String name : names) ids.put(name, new Uuid(1, names.indexOf(name) + 1));
        Function<Uuid, String> name = id -> names.get((int) id.getLeastSignificantBits() - 1);

        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Map<Uuid, Map<Integer, String>> holders = new HashMap<>();
        subscriptions.forEach((memberId, member) -> {
            Map<Uuid, Set<Integer>> owned = new HashMap<>();
            for (TopicPartition each : member.ownedPartitions()) {
                owned.computeIfAbsent(ids.get(each.topic()), id -> new HashSet<>()).add(each.partition());
                holders.computeIfAbsent(ids.get(each.topic()), id -> new HashMap<>()).put(each.partition(), memberId);
            }
            Set<Uuid> wanted = member.topics().stream().filter(ids::containsKey).map(ids::get).collect(Collectors.toSet());
            members.put(memberId, new MemberSubscriptionAndAssignmentImpl(
                member.rackId(), member.groupInstanceId(), wanted, new org.apache.kafka.coordinator.group.modern.Assignment(owned)));
        });
        long different = members.values().stream().map(MemberSubscriptionAndAssignmentImpl::subscribedTopicIds).distinct().count();
        SubscriptionType type = different == 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;

        Map<String, Assignment> answer = new HashMap<>();
        assignor.assign(new GroupSpecImpl(members, type, holders), new SubscribedTopicDescriber() {
            @Override public int numPartitions(Uuid id) { return cluster.partitionCountForTopic(name.apply(id)); }

            @Override public Set<String> racksForPartition(Uuid id, int number) {
                return Arrays.stream(cluster.partition(new TopicPartition(name.apply(id), number)).replicas())
                    .map(Node::rack).collect(Collectors.toSet());
            }
        }).members().forEach((memberId, given) -> answer.put(memberId, new Assignment(given.partitions().entrySet().stream()
            .flatMap(each -> each.getValue().stream().map(number -> new TopicPartition(name.apply(each.getKey()), number)))
            .toList())));
        subscriptions.keySet().forEach(memberId -> answer.putIfAbsent(memberId, new Assignment(List.of())));
        return new GroupAssignment(answer);
    }
}
