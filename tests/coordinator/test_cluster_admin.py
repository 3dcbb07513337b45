"""DescribeCluster, DescribeTopicPartitions with its cursor, and what there is none of: reassignments, ACLs."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.broker import Broker, versions

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


def test_there_are_no_acls(broker: Broker) -> None:
    for version in range(4):
        described = broker.ask(m.DescribeAclsRequest(), version, m.DescribeAclsResponse)
        created = broker.ask(
            m.CreateAclsRequest(creations=[m.CreateAclsRequestAclCreation()] * 2), version, m.CreateAclsResponse
        )
        deleted = broker.ask(
            m.DeleteAclsRequest(filters=[m.DeleteAclsRequestDeleteAclsFilter()]), version, m.DeleteAclsResponse
        )
        assert described.error_code == E.SECURITY_DISABLED
        assert [answer.error_code for answer in created.results] == [E.SECURITY_DISABLED] * 2
        assert [answer.error_code for answer in deleted.filter_results] == [E.SECURITY_DISABLED]
