// Runs the assignor of streams groups (KIP-1071) on the groups that come as lines of JSON, and answers each with a line.
//
//   {"subtopologies": {id: [tasks, true if they have a state]}, "standbys": n,
//    "members": {member id: {"process": id, "active": [[id, partition], ...], "standby": [...],
//                            "offsets": [[id, partition, offset], ...]}}}
//   answer: {member id: {"active": [[id, partition], ...], "standby": [...]}}, ascending

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.coordinator.group.api.streams.assignor.*;
import org.apache.kafka.coordinator.group.streams.assignor.*;

public class AssignTasks {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        for (String line; (line = lines.readLine()) != null; ) {
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
            out.flush();
        }
    }

    static Map<String, ?> answer(JsonNode asked) {
        Map<String, MemberMetadataAndStateImpl> members = new HashMap<>();
        asked.get("members").fields().forEachRemaining(member -> {
            JsonNode of = member.getValue();
            members.put(member.getKey(), new MemberMetadataAndStateImpl(
                Optional.empty(), Optional.empty(), of.get("process").asText(), Map.of(),
                tasks(of.get("active")), tasks(of.get("standby")), Map.of(), offsets(of.get("offsets")), Map.of()));
        });
        JsonNode subtopologies = asked.get("subtopologies");
        TopologyDescriber topology = new TopologyDescriber() {
            @Override public List<String> subtopologies() {
                Set<String> names = new TreeSet<>();
                subtopologies.fieldNames().forEachRemaining(names::add);
                return new ArrayList<>(names);
            }

            @Override public int maxNumInputPartitions(String id) { return subtopologies.get(id).get(0).asInt(); }

            @Override public boolean isStateful(String id) { return subtopologies.get(id).get(1).asBoolean(); }
        };
        AssignmentConfigs configs = new AssignmentConfigsImpl(asked.get("standbys").asInt(), List.of());
        Map<String, Map<String, List<List<Object>>>> answer = new TreeMap<>();
        new StickyTaskAssignor().assign(new GroupSpecImpl(members, configs), topology).members().forEach((member, given) ->
            answer.put(member, Map.of("active", listed(given.activeTasks()), "standby", listed(given.standbyTasks()))));
        return answer;
    }

    static Map<String, Set<Integer>> tasks(JsonNode listed) {
        Map<String, Set<Integer>> tasks = new HashMap<>();
        for (JsonNode task : listed) tasks.computeIfAbsent(task.get(0).asText(), id -> new HashSet<>()).add(task.get(1).asInt());
        return tasks;
    }

    static Map<String, Map<Integer, Long>> offsets(JsonNode listed) {
        Map<String, Map<Integer, Long>> offsets = new HashMap<>();
        for (JsonNode task : listed)
            offsets.computeIfAbsent(task.get(0).asText(), id -> new HashMap<>()).put(task.get(1).asInt(), task.get(2).asLong());
        return offsets;
    }

    static List<List<Object>> listed(Map<String, Set<Integer>> tasks) {
        List<List<Object>> all = new ArrayList<>();
        new TreeMap<>(tasks).forEach((id, partitions) -> new TreeSet<>(partitions).forEach(each -> all.add(List.of(id, each))));
        return all;
    }
}
