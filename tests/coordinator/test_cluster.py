"""Several brokers in one process: groups move, brokers stop, pause and come back."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

import kcoord_wire as kw
from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import (
    become_stable,
    commit,
    committed,
    join_request,
)
from tests.support.waiting import eventually
from tests.support.wire import Wire


def found(c: Coordinator, group: str, at: int) -> int:
    """The coordinator of a group, as a broker names it."""
    with Wire(c.addresses[at]) as wire:
        (answer,) = wire.call(kw.FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators
    assert c.addresses[answer.node_id] == f"{answer.host}:{answer.port}"
    node: int = answer.node_id
    return node


def test_every_broker_names_all_brokers_leaders_and_coordinators(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=3)
    assert len(set(c.ports)) == 3
    for address in c.addresses:
        with Wire(address) as wire:
            answer = wire.call(kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name="orders")]), 9)
        assert [f"{broker.host}:{broker.port}" for broker in answer.brokers] == c.addresses
        assert answer.controller_id == 0
        (topic,) = answer.topics
        leaders = [partition.leader_id for partition in topic.partitions]
        assert leaders == [c.leader_of("orders", index) for index in range(len(leaders))]
    assert {found(c, "g", at) for at in range(3)} == {c.coordinator_of("g")}


def created(
    c: Coordinator, name: str, replicas: int = -1, on: tuple[list[int], ...] = (), partitions: int = -1
) -> None:
    part = kw.CreateTopicsRequestCreatableReplicaAssignment
    topic = kw.CreateTopicsRequestCreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[part(partition_index=index, broker_ids=ids) for index, ids in enumerate(on)],
    )
    with Wire(c.addresses[0]) as wire:
        assert wire.call(kw.CreateTopicsRequest(topics=[topic], timeout_ms=1_000), 7).topics[0].error_code == 0


def grown(c: Coordinator, name: str, count: int, *on: list[int]) -> tuple[int, str | None]:
    assignments = [kw.CreatePartitionsRequestCreatePartitionsAssignment(broker_ids=ids) for ids in on] or None
    wanted = kw.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=count, assignments=assignments)
    with Wire(c.addresses[0]) as wire:
        (answer,) = wire.call(kw.CreatePartitionsRequest(topics=[wanted], timeout_ms=1_000), 3).results
    return answer.error_code, answer.error_message


def placed(c: Coordinator, name: str) -> list[tuple[int, int, list[int], list[int], list[int]]]:
    """Of each partition: error, leader, replicas, those in sync, those that are offline."""
    with Wire(c.addresses[0]) as wire:
        (topic,) = wire.call(kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name=name)]), 12).topics
    return [
        (each.error_code, each.leader_id, each.replica_nodes, each.isr_nodes, each.offline_replicas)
        for each in topic.partitions
    ]


def test_replicas_are_where_a_client_has_put_them(coordinator: StartCoordinator, tmp_path: Path) -> None:
    """As three nodes of Kafka 4.4.0 answered: what is wanted, what is added, what is refused, what a stop leaves."""
    c = coordinator(brokers=3, data_dir=tmp_path)
    created(c, "both", on=([2, 0], [1, 2]))
    created(c, "single", on=([1],))
    assert placed(c, "both") == [(0, 2, [2, 0], [2, 0], []), (0, 1, [1, 2], [1, 2], [])]
    assert grown(c, "both", 3, [0, 1]) == (0, None)
    error, text = grown(c, "both", 4, [0])
    assert error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert text is not None
    assert text.startswith("The manual partition assignment includes a partition with 1 replica(s), but this is not")
    assert text.endswith("which have 2 replica(s).")
    assert grown(c, "single", 2, [2]) == (0, None)
    c.stop_broker(2)
    expected = [(0, 0, [2, 0], [0], [2]), (0, 1, [1, 2], [1], [2]), (0, 0, [0, 1], [0, 1], [])]
    assert placed(c, "both") == expected
    lost = (ErrorCode.LEADER_NOT_AVAILABLE, -1, [2], [], [2])
    assert placed(c, "single") == [(0, 1, [1], [1], []), lost]
    c.restart_broker(2)
    whole = placed(c, "both"), placed(c, "single")
    assert whole[1][1] == (0, 2, [2], [2], [])
    c.stop()
    again = coordinator(brokers=3, data_dir=tmp_path)
    assert (placed(again, "both"), placed(again, "single")) == whole
    again.stop()
    fewer = coordinator(brokers=2, data_dir=tmp_path)
    assert [replicas for _, _, replicas, _, _ in placed(fewer, "both")] == [[0], [1], [0, 1]]


@pytest.mark.parametrize("replicas", [1, 2, 3, -1])
def test_a_topic_has_as_many_replicas_as_it_asks_for(replicas: int, coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=3)
    created(c, "new", replicas, partitions=6)
    assert grown(c, "new", 9) == (0, None)
    found = placed(c, "new")
    wanted = 3 if replicas == -1 else replicas
    assert [len(set(nodes)) for _, _, nodes, _, _ in found] == [wanted] * 9
    assert sorted(leader for _, leader, _, _, _ in found) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    c.stop_broker(1)
    errors = [error for error, _, _, _, _ in placed(c, "new")]
    assert errors.count(ErrorCode.LEADER_NOT_AVAILABLE) == (3 if replicas == 1 else 0)


def test_a_group_moves_with_its_members_and_offsets(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=3)
    old = c.coordinator_of("g")
    new = (old + 1) % 3
    with Wire(c.addresses[old]) as at_old, Wire(c.addresses[new]) as at_new:
        beat = become_stable(at_old, "g")
        assert commit(at_old, "other", 1) in (0, ErrorCode.NOT_COORDINATOR)
        mine = kw.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        topics = [kw.OffsetCommitRequestTopic(name="orders", partitions=[mine])]
        request = kw.OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=1, member_id=beat.member_id, topics=topics
        )
        assert at_old.call(request, 8).topics[0].partitions[0].error_code == 0
        assert at_new.call(beat, 4).error_code == ErrorCode.NOT_COORDINATOR
        c.move_coordinator("g", new)
        assert at_old.call(beat, 4).error_code == ErrorCode.NOT_COORDINATOR
        assert at_new.call(beat, 4).error_code == 0
        assert committed(at_new, "g") == 7
    assert {found(c, "g", at) for at in range(3)} == {new}


def test_states_of_share_partitions_are_at_a_broker_that_runs(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=2)
    asked = kw.FindCoordinatorRequest(coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAQ:0"], key_type=2)

    def named(at: int) -> int:
        with Wire(c.addresses[at]) as wire:
            (answer,) = wire.call(asked, 6).coordinators
        return int(answer.node_id)

    before = named(0)
    c.stop_broker(before)
    assert named(1 - before) == 1 - before
    c.restart_broker(before)
    assert named(1 - before) == before


@pytest.mark.parametrize("kept", [False, True])
def test_a_transaction_goes_on_at_the_next_coordinator(
    kept: bool, coordinator: StartCoordinator, tmp_path: Path
) -> None:
    c = coordinator(brokers=2, data_dir=tmp_path if kept else None)
    find = kw.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
    with Wire(c.addresses[0]) as wire:
        old = wire.call(find, 4).coordinators[0].node_id

    def add(wire: Wire, partition: int) -> int:
        topics = [kw.AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name="orders", partitions=[partition])]
        request = kw.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=topics,
        )
        code: int = wire.call(request, 3).results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        return code

    with Wire(c.addresses[old]) as wire:
        asked = kw.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=600_000)
        producer = wire.call(asked, 4)
        assert add(wire, 0) == 0
    with Wire(c.addresses[1 - old]) as wire:
        assert add(wire, 1) == ErrorCode.NOT_COORDINATOR
        c.stop_broker(old)
        assert add(wire, 1) == 0
        (described,) = wire.call(kw.DescribeTransactionsRequest(transactional_ids=["tx"]), 0).transaction_states
        assert described.transaction_state == "Ongoing"
        assert described.topics[0].partitions == [0, 1]
        ended = kw.EndTxnRequest(
            transactional_id="tx",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=True,
        )
        assert wire.call(ended, 4).error_code == 0


def test_parked_requests_of_a_group_that_moves_are_refused(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=2, config=GroupConfig(initial_rebalance_delay_ms=60_000))
    old = c.coordinator_of("g")
    with Wire(c.addresses[old]) as wire:
        first = wire.call(join_request("g"), 9)
        parked = wire.send(join_request("g", first.member_id), 9)
        eventually(lambda: "PreparingRebalance" in c.metrics())
        c.move_coordinator("g", 1 - old)
        assert wire.receive(parked).error_code == ErrorCode.NOT_COORDINATOR
        assert wire.call(join_request("g"), 9).error_code == ErrorCode.NOT_COORDINATOR
    with Wire(c.addresses[1 - old]) as wire:
        assert wire.call(join_request("g"), 9).error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_a_stopped_broker_is_replaced_and_comes_back(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=3)
    node = c.coordinator_of("g")
    with Wire(c.addresses[node]) as wire:
        beat = become_stable(wire, "g")
        c.stop_broker(node)
        assert wire.is_closed_by_peer()
    assert c.brokers[node] == "stopped"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", c.ports[node]))
    other = c.coordinator_of("g")
    assert other != node
    with Wire(c.addresses[other]) as wire:
        assert wire.call(beat, 4).error_code == 0
        brokers = wire.call(kw.MetadataRequest(topics=[]), 9).brokers
        assert [broker.node_id for broker in brokers] == [each for each in range(3) if each != node]
        assert all(c.leader_of("orders", index) != node for index in range(2))
        c.stop_broker(node)  # once more changes nothing
        c.restart_broker(node)
        assert wire.call(beat, 4).error_code == ErrorCode.NOT_COORDINATOR
    assert c.coordinator_of("g") == node
    with Wire(c.addresses[node]) as wire:
        assert wire.call(beat, 4).error_code == 0


def test_a_paused_broker_accepts_and_answers_nothing(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=3)
    node = c.coordinator_of("g")
    with Wire(c.addresses[node]) as wire:
        beat = become_stable(wire, "g")
        c.pause_broker(node)
        assert c.brokers[node] == "paused"
        asked = wire.send(beat, 4)
        with Wire(c.addresses[node], timeout=0.3) as late, pytest.raises(TimeoutError):
            late.call(beat, 4)
        assert c.coordinator_of("g") == node
        c.resume_broker(node)
        assert wire.receive(asked).error_code == 0


def test_what_a_paused_broker_led_moves_after_a_time(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=3)
    node = c.coordinator_of("g")
    with Wire(c.addresses[node]) as wire:
        beat = become_stable(wire, "g")
        c.pause_broker(node, failover_ms=50)
        eventually(lambda: c.coordinator_of("g") != node)
        with Wire(c.addresses[c.coordinator_of("g")]) as other:
            eventually(lambda: other.call(beat, 4).error_code == 0)
        c.resume_broker(node)
        assert wire.call(beat, 4).error_code == 0


def test_a_single_broker_can_be_stopped_and_restarted(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with Wire(c.addresses[0]) as wire:
        assert commit(wire, "g", 5) == 0
    c.stop_broker(0)
    assert c.coordinator_of("g") == -1
    c.restart_broker(0)
    with Wire(c.addresses[0]) as wire:
        assert committed(wire, "g") == 5


def test_a_taken_port_leaves_a_broker_stopped(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=2)
    c.stop_broker(1)
    with closing(socket.create_server(("127.0.0.1", c.ports[1]))):
        with pytest.raises(OSError, match=str(c.ports[1])):
            c.restart_broker(1)
        assert c.brokers == ["running", "stopped"]
    c.restart_broker(1)
    assert c.brokers == ["running", "running"]


def test_produce_and_fetch_are_refused_elsewhere(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=2, topics={"orders": 2})
    wrong = 1 - c.leader_of("orders", 0)
    with Wire(c.addresses[wrong]) as wire:
        part = kw.ListOffsetsRequestListOffsetsPartition(partition_index=0, timestamp=-1)
        asked = kw.ListOffsetsRequestListOffsetsTopic(name="orders", partitions=[part])
        answer = wire.call(kw.ListOffsetsRequest(topics=[asked]), 7)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def elected(c: Coordinator, at: int, election: int, *indexes: int) -> list[int]:
    """The outcomes of an election of partitions of orders."""
    part = kw.ElectLeadersRequestTopicPartitions(topic="orders", partitions=list(indexes))
    with Wire(c.addresses[at]) as wire:
        answer = wire.call(kw.ElectLeadersRequest(election_type=election, topic_partitions=[part], timeout_ms=1_000), 2)
    return [each.error_code for each in answer.replica_election_results[0].partition_result]


def test_there_is_no_leader_to_elect(coordinator: StartCoordinator) -> None:
    """What could be elected is by itself; a stopped broker cannot be."""
    c = coordinator(brokers=3)
    preferred = c.leader_of("orders", 0)
    other = (preferred + 1) % 3
    not_needed, unknown = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert elected(c, other, 0, 0, 99) == [not_needed, unknown]
    c.stop_broker(preferred)
    assert elected(c, other, 0, 0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    assert elected(c, other, 1, 0) == [not_needed]
    c.restart_broker(preferred)
    assert (elected(c, other, 0, 0), c.leader_of("orders", 0)) == ([not_needed], preferred)


def test_an_admin_client_asks_for_elections(coordinator: StartCoordinator) -> None:
    admin = AdminClient({"bootstrap.servers": coordinator(brokers=2).address})
    wanted = [TopicPartition("orders", 0), TopicPartition("nope", 0)]
    outcome = admin.elect_leaders(ElectionType.PREFERRED, wanted).result(30)
    codes = {(each.topic, each.partition): error.code() for each, error in outcome.items()}
    assert codes == {("orders", 0): ErrorCode.ELECTION_NOT_NEEDED, ("nope", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert admin.elect_leaders(ElectionType.UNCLEAN, None).result(30) == {}  # of all, what needs none is left out


def test_node_ids_begin_where_one_chooses(coordinator: StartCoordinator) -> None:
    """What names a broker is its id: answers, a client's assignment, and what is asked of the coordinator."""
    c = coordinator(brokers=3, node_id=101)
    ids = [101, 102, 103]
    assert c.node_ids == ids
    admin = AdminClient({"bootstrap.servers": c.address})
    cluster = admin.describe_cluster().result(30)
    assert {node.id: f"{node.host}:{node.port}" for node in cluster.nodes} == dict(zip(ids, c.addresses, strict=True))
    assert cluster.controller.id == 101
    created(c, "placed", on=([103, 101],))
    assert grown(c, "placed", 2, [102, 103]) == (0, None)
    assert placed(c, "placed") == [(0, 103, [103, 101], [103, 101], []), (0, 102, [102, 103], [102, 103], [])]
    assert [c.leader_of("placed", at) for at in range(2)] == [103, 102]
    assert [each.leader for each in c.partitions("placed")] == [103, 102]
    for node in ids:
        asked = ConfigResource(ConfigResource.Type.BROKER, str(node))
        (configs,) = admin.describe_configs([asked]).values()
        assert configs.result(30)["node.id"].value == str(node)
    c.stop_broker(103)
    assert c.brokers == ["running", "running", "stopped"]
    assert [c.leader_of("placed", at) for at in range(2)] == [101, 102]
    c.restart_broker(103)
    c.move_coordinator("g", 103)
    (group,) = admin.describe_consumer_groups(["g"]).values()
    assert (c.coordinator_of("g"), group.result(30).coordinator.id) == (103, 103)
    assert set(c.changes().leaders) == set(ids)
    for unknown in (0, 1, 100, 104):
        with pytest.raises(ValueError, match="there are 101 to 103"):
            c.pause_broker(unknown)


@pytest.mark.parametrize("node_id", [-1, 2**31 - 1, "1"])
def test_wrong_node_ids_are_refused(node_id: object) -> None:
    with pytest.raises(ValueError, match="node ids are 0 to 2147483647"):
        Coordinator(brokers=2, node_id=node_id)  # type: ignore[arg-type]


def reassigned(c: Coordinator, name: str, version: int = 1, may_resize: bool = True, **on: list[int] | None) -> Any:
    """Reassign partitions, as ``_0=[1, 2]``; the error and text of each."""
    part = kw.AlterPartitionReassignmentsRequestReassignablePartition
    parts = [part(partition_index=int(at[1:]), replicas=brokers) for at, brokers in on.items()]
    request = kw.AlterPartitionReassignmentsRequest(
        topics=[kw.AlterPartitionReassignmentsRequestReassignableTopic(name=name, partitions=parts)],
        allow_replication_factor_change=may_resize,
    )
    with Wire(c.addresses[0]) as wire:
        answer = wire.call(request, version)
        assert wire.call(kw.ListPartitionReassignmentsRequest(), 0).topics == []
    assert (answer.error_code, answer.error_message, answer.allow_replication_factor_change) == (0, None, may_resize)
    assert [each.name for each in answer.responses] == [name]
    return [(each.error_code, each.error_message) for each in answer.responses[0].partitions]


def epochs(c: Coordinator, name: str) -> list[int]:
    with Wire(c.addresses[0]) as wire:
        (topic,) = wire.call(kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name=name)]), 12).topics
    return [each.leader_epoch for each in topic.partitions]


@pytest.mark.parametrize("version", [0, 1])
def test_a_partition_moves_where_a_client_puts_it(version: int, coordinator: StartCoordinator, tmp_path: Path) -> None:
    """Another first replica leads at once, and where one leaves or the leader changes, a new epoch begins."""
    c = coordinator(brokers=3, node_id=1, data_dir=tmp_path)
    created(c, "new", on=([1, 2], [2, 3], [3, 1]))
    assert reassigned(c, "new", version, _0=[3, 2], _1=[2, 3, 1], _2=[3]) == [(0, None)] * 3
    expected = [(0, 3, [3, 2], [3, 2], []), (0, 2, [2, 3, 1], [2, 3, 1], []), (0, 3, [3], [3], [])]
    assert placed(c, "new") == expected
    assert epochs(c, "new") == [1, 0, 1]
    assert reassigned(c, "new", version, _0=[3, 2], _1=[3, 1, 2]) == [(0, None)] * 2
    assert (placed(c, "new")[1], epochs(c, "new")) == ((0, 3, [3, 1, 2], [3, 1, 2], []), [1, 1, 1])
    c.stop_broker(3)
    assert reassigned(c, "new", version, _2=[3, 1]) == [(0, None)]
    assert placed(c, "new")[2] == (0, 1, [3, 1], [1], [3])
    c.restart_broker(3)
    whole = placed(c, "new")
    assert whole[2] == (0, 3, [3, 1], [3, 1], [])
    c.stop()
    assert placed(coordinator(brokers=3, node_id=1, data_dir=tmp_path), "new") == whole


def test_added_partitions_are_as_large_as_the_first(coordinator: StartCoordinator) -> None:
    """As Kafka counts the replicas of new partitions."""
    c = coordinator(brokers=3)
    created(c, "new", 2, partitions=3)
    before = placed(c, "new")
    assert reassigned(c, "new", _0=[0]) == [(0, None)]
    assert grown(c, "new", 5) == (0, None)
    found = placed(c, "new")
    assert found[1:3] == before[1:]
    assert [len(replicas) for _, _, replicas, _, _ in found] == [1, 2, 2, 1, 1]


def test_a_reassignment_moves_groups_and_is_kept(coordinator: StartCoordinator, tmp_path: Path) -> None:
    """Where `__consumer_offsets` is, groups are coordinated."""
    config = GroupConfig(initial_rebalance_delay_ms=0, offsets_topic_partitions=1)
    c = coordinator(brokers=3, data_dir=tmp_path, config=config)
    old = c.coordinator_of("g")
    new = (old + 1) % 3
    with Wire(c.addresses[old]) as at_old, Wire(c.addresses[new]) as at_new:
        beat = become_stable(at_old, "g")
        assert commit(at_old, "h", 7) == 0
        assert reassigned(c, "__consumer_offsets", _0=[new, old]) == [(0, None)]
        assert at_old.call(beat, 4).error_code == ErrorCode.NOT_COORDINATOR
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        eventually(lambda: at_new.call(beat, 4).error_code in (0, loading) and committed(at_new, "h") == 7)
    assert {found(c, "g", at) for at in range(3)} == {new}
    c.stop()
    for brokers, expected in ((3, [new, old]), (1, [0])):
        again = coordinator(brokers=brokers, data_dir=tmp_path, config=config)
        assert placed(again, "__consumer_offsets") == [(0, expected[0], expected, expected, [])]
        again.stop()


def test_what_cannot_be_reassigned(coordinator: StartCoordinator) -> None:
    """With Kafka's errors and texts; what is beside it is reassigned."""
    c = coordinator(brokers=3)
    created(c, "new", on=([0, 1], [1, 2]))
    invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    none_in_progress = (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    empty = "The manual partition assignment includes an empty replica list."
    unknown = "The manual partition assignment includes broker 9, but no such broker is registered."
    twice = "The manual partition assignment includes the broker 1 more than once."
    missing = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition new:2.")
    resized = (ErrorCode.INVALID_REPLICATION_FACTOR, "The replication factor is changed from 2 to 3")
    before = placed(c, "new")
    for brokers, expected in (
        (None, none_in_progress),
        ([], (invalid, empty)),
        ([0, 9], (invalid, unknown)),
        ([1, 0, 1], (invalid, twice)),
        ([2, 1, 0], resized),
    ):
        assert reassigned(c, "new", may_resize=False, _0=brokers, _2=[0, 1]) == [expected, missing]
    assert reassigned(c, "nope", _0=[1]) == [(missing[0], "Unable to find a topic named nope.")]
    assert (placed(c, "new"), epochs(c, "new")) == (before, [0, 0])
    assert reassigned(c, "new", may_resize=False, _0=None, _1=[0, 1]) == [none_in_progress, (0, None)]
    assert [replicas for _, _, replicas, _, _ in placed(c, "new")] == [[0, 1], [0, 1]]
