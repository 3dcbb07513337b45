"""CreateTopics, DeleteTopics and CreatePartitions: what is done, and what is refused with which code and text."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.topics.catalog import TopicLimits
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.broker import GOOD, Broker, batch, sequenced, values, versions


def topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> m.CreateTopicsRequestCreatableTopic:
    return m.CreateTopicsRequestCreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replicas, **more
    )


def assigned(*broker_ids: list[int], **more: Any) -> m.CreateTopicsRequestCreatableTopic:
    assignment = m.CreateTopicsRequestCreatableReplicaAssignment
    parts = [assignment(partition_index=index, broker_ids=ids) for index, ids in enumerate(broker_ids)]
    return topic("new", **{"partitions": -1, "replicas": -1, **more}, assignments=parts)


def config(name: str, value: str | None) -> m.CreateTopicsRequestCreatableTopicConfig:
    return m.CreateTopicsRequestCreatableTopicConfig(name=name, value=value)


def create(broker: Broker, *topics: Any, version: int = 7, **more: Any) -> dict[str, Any]:
    response = broker.ask(m.CreateTopicsRequest(topics=list(topics), **more), version, m.CreateTopicsResponse)
    return {answer.name: answer for answer in response.topics}


# ---- CreateTopics


@versions(19)
def test_a_created_topic_exists(broker: Broker, version: int) -> None:
    answer = create(broker, topic("new", 3), version=version)["new"]
    assert answer.error_code == E.NONE
    assert broker.topics.partitions("new") == 3
    if version >= 5:
        assert (answer.num_partitions, answer.replication_factor) == (3, 1)
    if version >= 7:
        assert answer.topic_id == broker.topics.id_of("new")
    assert broker.produce(GOOD, topic="new", partition=2).base_offset == 0


def test_its_configs_are_kept_and_answered(broker: Broker) -> None:
    own = [config("retention.ms", "1000"), config("cleanup.policy", "compact,delete")]
    answer = create(broker, topic("new", configs=own))["new"]
    described = {entry.name: (entry.value, entry.config_source) for entry in answer.configs}
    assert described["retention.ms"] == ("1000", 1)
    assert described["cleanup.policy"] == ("compact,delete", 1)
    assert described["max.message.bytes"] == ("1048588", 5)
    kept = broker.topics.catalog.named("new")
    assert kept is not None
    assert kept.configs == {"retention.ms": "1000", "cleanup.policy": "compact,delete"}


def test_the_broker_chooses_partitions_and_replicas() -> None:
    for auto_create, expected in ((None, 1), (4, 4)):
        broker = Broker(auto_create_partitions=auto_create)
        answer = create(broker, topic("new", -1, -1))["new"]
        assert (answer.num_partitions, answer.replication_factor) == (expected, 1)


def test_validating_creates_nothing(broker: Broker) -> None:
    answers = create(broker, topic("new", 2), topic("orders"), validate_only=True)
    assert (answers["new"].error_code, answers["new"].num_partitions) == (E.NONE, 2)
    assert answers["orders"].error_code == E.TOPIC_ALREADY_EXISTS
    assert broker.topics.partitions("new") is None


REFUSED = [
    (topic("orders"), E.TOPIC_ALREADY_EXISTS, "Topic 'orders' already exists."),
    (topic(""), E.INVALID_TOPIC_EXCEPTION, "empty string"),
    (topic(".."), E.INVALID_TOPIC_EXCEPTION, "'..' is not allowed"),
    (topic("a b"), E.INVALID_TOPIC_EXCEPTION, "'a b' contains"),
    (topic("a" * 250), E.INVALID_TOPIC_EXCEPTION, "longer than"),
    (topic("__cluster_metadata"), E.INVALID_REQUEST, "prohibited"),
    (topic("x.y"), E.INVALID_TOPIC_EXCEPTION, "collides with existing topic: x_y"),
    (topic("new", 0), E.INVALID_PARTITIONS, "non-positive"),
    (topic("new", -2), E.INVALID_PARTITIONS, "non-positive"),
    (topic("new", 1, 0), E.INVALID_REPLICATION_FACTOR, "larger than 0"),
    (topic("new", 1, 3), E.INVALID_REPLICATION_FACTOR, "only 1 broker(s) are registered"),
    (topic("new", configs=[config("nonsense", "1")]), E.INVALID_CONFIG, "Unknown topic config name: nonsense"),
    (topic("new", configs=[config("retention.ms", "soon")]), E.INVALID_CONFIG, "Not a number of type LONG"),
    (topic("new", configs=[config("retention.ms", None)]), E.INVALID_CONFIG, "Null value not supported"),
    (topic("new", 1_000), E.POLICY_VIOLATION, "room for 97"),
    (assigned([3], [3], partitions=2), E.INVALID_REQUEST, "numPartitions was not set to -1"),
    (assigned([3], replicas=1), E.INVALID_REQUEST, "replication factor was not set to -1"),
    (assigned([]), E.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
    (assigned([7]), E.INVALID_REPLICA_ASSIGNMENT, "broker 7, but no such broker"),
    (assigned([3, 3]), E.INVALID_REPLICA_ASSIGNMENT, "broker 3 more than once"),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "error", "text"), REFUSED, ids=[text for _, _, text in REFUSED])
def test_what_cannot_be_created(wanted: Any, error: E, text: str) -> None:
    broker = Broker({"orders": 2, "x_y": 1}, limits=TopicLimits(max_partitions=100))
    answers = create(broker, wanted, topic("beside"))
    answer = answers[wanted.name]
    assert (answer.error_code, text in answer.error_message) == (error, True), answer.error_message
    assert answers["beside"].error_code == E.NONE
    assert {each.name for each in broker.topics.catalog} == {"orders", "x_y", "beside"}


def test_partitions_are_assigned_by_hand(broker: Broker) -> None:
    assert create(broker, assigned([5], [5]))["new"].error_code == E.INVALID_REPLICA_ASSIGNMENT
    assert create(broker, assigned([3], [3]))["new"].num_partitions == 2
    gap = assigned([3])
    gap.assignments[0].partition_index = 1
    gap.name = "gap"
    assert create(broker, gap)["gap"].error_message == "partitions should be a consecutive 0-based integer sequence"


@versions(19, 1)
def test_the_longest_name_is_refused_with_a_text(broker: Broker, version: int) -> None:
    answer = create(broker, topic("x" * 32_767), version=version)["x" * 32_767]
    assert answer.error_code == E.INVALID_TOPIC_EXCEPTION
    assert len(answer.error_message) == 1_000
    answer = create(broker, topic("new", configs=[config("x" * 32_767, "1")]), version=version)["new"]
    assert answer.error_code == E.INVALID_CONFIG


def test_a_name_that_is_there_twice_is_refused_once(broker: Broker) -> None:
    answers = create(broker, topic("new"), topic("new"))
    assert answers["new"].error_message == "Duplicate topic name."
    assert broker.topics.partitions("new") is None


def test_clients_cannot_exceed_the_partitions_together() -> None:
    broker = Broker({}, limits=TopicLimits(max_partitions=5))
    answers = create(broker, topic("a", 3), topic("b", 3), topic("c", 2))
    assert [answer.error_code for answer in answers.values()] == [0, E.POLICY_VIOLATION, 0]


# ---- DeleteTopics


def delete(broker: Broker, *wanted: str | uuid.UUID, version: int = 6) -> list[tuple[Any, int]]:
    if version < 6:
        request = m.DeleteTopicsRequest(topic_names=[str(name) for name in wanted])
    else:
        state = m.DeleteTopicsRequestDeleteTopicState
        states = [state(name=w) if isinstance(w, str) else state(name=None, topic_id=w) for w in wanted]
        request = m.DeleteTopicsRequest(topics=states)
    response = broker.ask(request, version, m.DeleteTopicsResponse)
    return [(answer.name, answer.error_code) for answer in response.responses]


@versions(20)
def test_a_deleted_topic_is_gone(broker: Broker, version: int) -> None:
    assert delete(broker, "orders", "nope", version=version) == [("orders", 0), ("nope", 3)]
    assert broker.topics.partitions("orders") is None
    assert broker.deleted == ["orders"]
    assert broker.produce(GOOD).error_code == E.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_are_deleted_by_id() -> None:
    broker = Broker({"a": 1, "b": 1})
    ids = {name: broker.topics.id_of(name) for name in ("a", "b")}
    assert ids["a"] is not None
    assert ids["b"] is not None
    unknown, none = uuid.UUID(int=9), uuid.UUID(int=0)
    assert delete(broker, ids["a"], unknown, none) == [("a", 0), (None, E.UNKNOWN_TOPIC_ID), (None, E.INVALID_REQUEST)]
    assert delete(broker, "b", ids["b"]) == [("b", 0), ("b", E.INVALID_REQUEST)]
    assert broker.deleted == ["a", "b"]


def test_a_topic_that_is_named_twice_is_not_deleted(broker: Broker) -> None:
    assert delete(broker, "orders", "orders") == [("orders", E.INVALID_REQUEST)]
    both = m.DeleteTopicsRequestDeleteTopicState(name="orders", topic_id=broker.topics.id_of("orders"))
    response = broker.ask(m.DeleteTopicsRequest(topics=[both]), 6, m.DeleteTopicsResponse)
    assert response.responses[0].error_code == E.INVALID_REQUEST
    assert broker.topics.partitions("orders") == 2


def test_a_fetch_that_waits_for_it_is_answered(broker: Broker) -> None:
    assert broker.send(broker.fetch_request(0, 11), 11) == []
    state = m.DeleteTopicsRequestDeleteTopicState(name="orders")
    replies = broker.send(m.DeleteTopicsRequest(topics=[state]), 6)
    assert [reply.token for reply in replies] == [2, 1]
    assert replies[1].message.responses[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.due() is None


def test_its_records_make_room_for_others() -> None:
    broker = Broker({"orders": 1, "other": 1}, limits=TopicLimits(retention_bytes=100_000))
    large = batch(bytes(30_000))
    broker.produce(large)
    broker.produce(large)
    delete(broker, "orders")
    for _ in range(2):
        broker.produce(large, topic="other")
    assert broker.fetch(0, topic="other").log_start_offset == 0
    create(broker, topic("orders"))
    assert broker.fetch(0).high_watermark == 0


# ---- CreatePartitions


def grow(broker: Broker, name: str, count: int, version: int = 3, **more: Any) -> tuple[int, str | None]:
    validate = more.pop("validate_only", False)
    wanted = m.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=count, **{"assignments": None, **more})
    request = m.CreatePartitionsRequest(topics=[wanted], validate_only=validate)
    (answer,) = broker.ask(request, version, m.CreatePartitionsResponse).results
    return answer.error_code, answer.error_message


def on(*broker_ids: list[int]) -> list[m.CreatePartitionsRequestCreatePartitionsAssignment]:
    return [m.CreatePartitionsRequestCreatePartitionsAssignment(broker_ids=ids) for ids in broker_ids]


@versions(37)
def test_a_topic_grows(broker: Broker, version: int) -> None:
    assert grow(broker, "orders", 5, version, validate_only=True) == (0, None)
    assert broker.topics.partitions("orders") == 2
    assert grow(broker, "orders", 5, version) == (0, None)
    assert broker.topics.partitions("orders") == 5
    assert broker.produce(GOOD, partition=4).base_offset == 0


@pytest.mark.parametrize(
    ("name", "count", "assignments", "error", "text"),
    [
        ("nope", 5, None, E.UNKNOWN_TOPIC_OR_PARTITION, "topic"),
        ("orders", 2, None, E.INVALID_PARTITIONS, "already has 2 partition(s)"),
        ("orders", 1, None, E.INVALID_PARTITIONS, "1 would not be an increase"),
        ("orders", 3, on(), E.INVALID_REPLICA_ASSIGNMENT, "1 additional partition(s), but only 0"),
        ("orders", 3, on([4]), E.INVALID_REPLICA_ASSIGNMENT, "no such broker"),
        ("orders", 3, on([3], [3]), E.INVALID_REPLICA_ASSIGNMENT, "1 additional"),
        ("orders", 11, None, E.POLICY_VIOLATION, "room for 8"),
    ],
)
def test_what_cannot_grow(name: str, count: int, assignments: Any, error: E, text: str) -> None:
    broker = Broker(limits=TopicLimits(max_partitions=10))
    found, message = grow(broker, name, count, assignments=assignments)
    assert (found, text in (message or "")) == (error, True), message
    assert broker.topics.partitions("orders") == 2


# ---- DeleteRecords, DescribeProducers and DescribeLogDirs


def partition_admin_delete(
    broker: Broker, offset: int, version: int = 2, topic: str = "orders", partition: int = 0
) -> tuple[int, int]:
    """Delete records, and return the error and the low watermark."""
    wanted = m.DeleteRecordsRequestDeleteRecordsPartition(partition_index=partition, offset=offset)
    part = m.DeleteRecordsRequestDeleteRecordsTopic(name=topic, partitions=[wanted])
    response = broker.ask(m.DeleteRecordsRequest(topics=[part]), version, m.DeleteRecordsResponse)
    (answer,) = response.topics[0].partitions
    return answer.error_code, answer.low_watermark


@versions(21)
def test_records_are_deleted_up_to_an_offset(broker: Broker, version: int) -> None:
    for _ in range(3):
        broker.produce(GOOD)
    assert partition_admin_delete(broker, 3, version) == (0, 3)
    assert broker.fetch(0).error_code == E.OFFSET_OUT_OF_RANGE
    assert broker.list_offset(-2).offset == 3
    assert [offset for offset, _ in values(broker.fetch(3).records) if offset >= 3] == [3, 4, 5]
    assert partition_admin_delete(broker, 1, version) == (0, 3)
    assert partition_admin_delete(broker, -1, version) == (0, 6)
    assert (broker.list_offset(-2).offset, broker.list_offset(-1).offset) == (6, 6)
    assert broker.produce(GOOD).base_offset == 6


@pytest.mark.parametrize(
    ("offset", "topic", "partition", "error"),
    [
        (3, "orders", 0, E.OFFSET_OUT_OF_RANGE),
        (-2, "orders", 0, E.OFFSET_OUT_OF_RANGE),
        (0, "nope", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
        (0, "orders", 9, E.UNKNOWN_TOPIC_OR_PARTITION),
        (0, "compacted", 0, E.POLICY_VIOLATION),
    ],
)
def test_what_is_not_deleted(broker: Broker, offset: int, topic: str, partition: int, error: E) -> None:
    broker.topics.create("compacted", 1, {"cleanup.policy": "compact"})
    broker.produce(GOOD)
    assert partition_admin_delete(broker, offset, topic=topic, partition=partition) == (error, -1)
    assert broker.list_offset(-2).offset == 0


def producers(broker: Broker, topic: str, *partitions: int) -> list[Any]:
    part = m.DescribeProducersRequestTopicRequest(name=topic, partition_indexes=list(partitions))
    response = broker.ask(m.DescribeProducersRequest(topics=[part]), 0, m.DescribeProducersResponse)
    return list(response.topics[0].partitions)


def test_producers_are_described(broker: Broker) -> None:
    broker.produce(sequenced(0))
    broker.produce(sequenced(2))
    broker.produce(sequenced(0, producer_id=6, epoch=1))
    broker.produce(GOOD)
    known, none, unknown = producers(broker, "orders", 0, 1, 9)
    assert [(p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp) for p in known.active_producers] == [
        (5, 0, 3, 101),
        (6, 1, 1, 101),
    ]
    assert {p.current_txn_start_offset for p in known.active_producers} == {-1}
    assert (none.error_code, none.active_producers) == (0, [])
    assert unknown.error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert [p.error_code for p in producers(broker, "nope", 0)] == [E.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_partition_that_is_named_often_is_described_once(broker: Broker) -> None:
    broker.produce(sequenced(0))
    part = m.DescribeProducersRequestTopicRequest(name="orders", partition_indexes=[0, 1, 0, 0])
    response = broker.ask(m.DescribeProducersRequest(topics=[part, part]), 0, m.DescribeProducersResponse)
    (topic,) = response.topics
    assert [(p.partition_index, len(p.active_producers)) for p in topic.partitions] == [(0, 1), (1, 0)]


@versions(35)
def test_sizes_of_partitions(broker: Broker, version: int) -> None:
    broker.produce(GOOD)

    def sizes(topics: Any) -> dict[str, list[tuple[int, int]]]:
        response = broker.ask(m.DescribeLogDirsRequest(topics=topics), version, m.DescribeLogDirsResponse)
        (folder,) = response.results
        return {
            topic.name: [(p.partition_index, p.partition_size) for p in topic.partitions] for topic in folder.topics
        }

    part = m.DescribeLogDirsRequestDescribableLogDirTopic
    assert sizes(None) == {"orders": [(0, len(GOOD)), (1, 0)]}
    assert sizes([part(topic="orders", partitions=[1, 9]), part(topic="nope", partitions=[0])]) == {"orders": [(1, 0)]}
    assert sizes([]) == {}


# ---- DescribeCluster, DescribeTopicPartitions with its cursor, and what there is none of: reassignments

UNSET = -(2**31)


@versions(60)
def test_a_cluster_is_described_as_by_metadata(broker: Broker, version: int) -> None:
    known = broker.metadata(10, include_cluster_authorized_operations=True)
    answer = broker.ask(m.DescribeClusterRequest(), version, m.DescribeClusterResponse)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, known.cluster_id, known.controller_id)
    assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [
        (b.node_id, b.host, b.port) for b in known.brokers
    ]
    assert answer.cluster_authorized_operations == UNSET
    asked = m.DescribeClusterRequest(include_cluster_authorized_operations=True)
    answer = broker.ask(asked, version, m.DescribeClusterResponse)
    assert answer.cluster_authorized_operations == known.cluster_authorized_operations != UNSET


@pytest.mark.parametrize(("kind", "error"), [(2, E.MISMATCHED_ENDPOINT_TYPE), (7, E.UNSUPPORTED_ENDPOINT_TYPE)])
def test_controllers_are_not_described(broker: Broker, kind: int, error: E) -> None:
    answer = broker.ask(m.DescribeClusterRequest(endpoint_type=kind), 1, m.DescribeClusterResponse)
    assert (answer.error_code, answer.brokers) == (error, [])


# ---- DescribeTopicPartitions


def describe(broker: Broker, *names: str, most: int = 2_000, cursor: tuple[str, int] | None = None) -> Any:
    at = m.DescribeTopicPartitionsRequestCursor
    request = m.DescribeTopicPartitionsRequest(
        topics=[m.DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names],
        response_partition_limit=most,
        cursor=None if cursor is None else at(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return broker.ask(request, 0, m.DescribeTopicPartitionsResponse)


def places(answer: Any) -> list[tuple[str, list[int]]]:
    return [(topic.name, [each.partition_index for each in topic.partitions]) for topic in answer.topics]


@pytest.fixture
def three() -> Broker:
    return Broker({"b": 3, "a": 2, "c": 1})


def test_topics_are_described_as_by_metadata(three: Broker) -> None:
    (known,) = three.metadata(12, "b", include_topic_authorized_operations=True).topics
    (topic,) = describe(three, "b").topics
    assert (topic.topic_id, topic.topic_authorized_operations) == (known.topic_id, known.topic_authorized_operations)
    assert [(p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes) for p in topic.partitions] == [
        (p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes) for p in known.partitions
    ]


def test_all_topics_in_the_order_of_names(three: Broker) -> None:
    answer = describe(three)
    assert places(answer) == [("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])]
    assert answer.next_cursor is None


def test_a_topic_that_does_not_exist_is_not_created() -> None:
    broker = Broker({"a": 1}, auto_create_partitions=1)
    answer = describe(broker, "nope", "a", "b c")
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("a", 0),
        ("b c", E.INVALID_TOPIC_EXCEPTION),
        ("nope", E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert broker.topics.partitions("nope") is None


@pytest.mark.parametrize("most", [1, 2, 3, 4, 6, 0])
@pytest.mark.parametrize("names", [(), ("a", "b", "c")])
def test_the_cursor_leads_through_everything(three: Broker, most: int, names: tuple[str, ...]) -> None:
    cursor, seen, answers = None, [], 0
    while answers == 0 or cursor is not None:
        answer = describe(three, *names, most=most, cursor=cursor)
        found = [(name, index) for name, indexes in places(answer) for index in indexes]
        assert len(found) <= max(most, 1)
        seen += found
        at = answer.next_cursor
        cursor = None if at is None else (at.topic_name, at.partition_index)
        answers += 1
        assert answers < 10
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]


def test_a_deleted_topic_in_the_cursor_is_passed_over(three: Broker) -> None:
    three.topics.delete("b")
    assert places(describe(three, cursor=("b", 2))) == [("c", [0])]


def test_a_wrong_cursor_is_refused(three: Broker) -> None:
    for answer in (describe(three, "a", cursor=("b", 0)), describe(three, "a", cursor=("a", -1))):
        assert [topic.error_code for topic in answer.topics] == [E.INVALID_REQUEST]


def test_one_answer_is_bounded() -> None:
    answer = describe(Broker({"a": 1_500, "b": 1_500}), most=1 << 30)
    assert [len(topic.partitions) for topic in answer.topics] == [1_500, 500]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("b", 500)


# ---- what there is none of


def test_there_are_no_reassignments(broker: Broker) -> None:
    answer = broker.ask(m.ListPartitionReassignmentsRequest(), 0, m.ListPartitionReassignmentsResponse)
    assert (answer.error_code, answer.topics) == (0, [])
