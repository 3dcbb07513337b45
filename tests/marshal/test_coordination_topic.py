"""Which settings of a coordination topic are refused, and which are warned of."""

from __future__ import annotations

import pytest

from kcoord_wire.coordinator import Fault
from kcoord_wire.marshal.kafka_log import TopicState, check_topic, create_topic, problems_of
from kcoord_wire.marshal.log import LogError
from tests.support.fixtures import StartCoordinator

GOOD = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": "3600000",
    "retention.bytes": "-1",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}


def problems(replication: int = 3, interval_ms: int = 60_000, **changed: str) -> list[tuple[bool, str]]:
    settings = GOOD | {name.replace("_", "."): value for name, value in changed.items()}
    return [*problems_of(TopicState("__marshal", 8, replication, settings), interval_ms)]


def test_a_topic_of_ours_has_no_problem() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cleanup_policy": "compact"}, "is compacted, which refuses entries"),
        ({"cleanup_policy": "compact,delete"}, "set cleanup.policy=delete"),
        ({"retention_ms": "239999"}, "keeps entries for 239.999 s, 4.0 heartbeat intervals (4 are needed"),
        ({"min_insync_replicas": "4"}, "has 3 replicas and needs 4"),
    ],
)
def test_settings_that_lose_claims_are_fatal(changed: dict[str, str], said: str) -> None:
    (problem,) = problems(**changed)
    is_fatal, text = problem
    assert is_fatal
    assert said in text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"message_timestamp_type": "CreateTime"}, "the members' clocks agree; set message.timestamp.type"),
        ({"retention_ms": "240000"}, "4.0 heartbeat intervals"),
        ({"retention_bytes": "1000000"}, "can push out live claims"),
        ({"min_insync_replicas": "1"}, "counts once one replica has it"),
        ({"unclean_leader_election_enable": "true"}, "may become leader and lose claims"),
        ({"compression_type": "zstd"}, "the Go library cannot read"),
    ],
)
def test_settings_that_weaken_it_are_warnings(changed: dict[str, str], said: str) -> None:
    (problem,) = problems(**changed)
    is_fatal, text = problem
    assert not is_fatal
    assert said in text


def test_retention_is_measured_in_heartbeat_intervals() -> None:
    assert problems(retention_ms="10000", interval_ms=1_000) == []
    assert problems(retention_ms="-1") == []


def test_one_replica_is_a_warning() -> None:
    ((is_fatal, text),) = problems(replication=1, min_insync_replicas="1")
    assert not is_fatal
    assert "has one replica" in text


def test_what_a_broker_does_not_tell_is_a_warning(coordinator: StartCoordinator) -> None:
    broker = coordinator(topics={"__marshal": 4})
    broker.add_fault(Fault("error", api="DescribeConfigs", error="UNSUPPORTED_VERSION"))
    (warning,) = check_topic(broker.address, "__marshal")
    assert warning.startswith("the broker does not report the settings of __marshal: not checked are cleanup.policy")


def test_a_missing_topic_is_an_error(coordinator: StartCoordinator) -> None:
    broker = coordinator(topics={"orders": 4})
    with pytest.raises(LogError, match=r"shows no topic __marshal .create it first"):
        check_topic(broker.address, "__marshal")


def test_a_broker_that_cannot_create_topics_is_an_error(coordinator: StartCoordinator) -> None:
    broker = coordinator(topics={"orders": 4})
    broker.add_fault(Fault("error", api="CreateTopics", error="CLUSTER_AUTHORIZATION_FAILED"))
    with pytest.raises(LogError, match="__marshal was not created"):
        create_topic(broker.address, "__marshal", 4)


def test_a_topic_that_was_created_has_one_replica_alone(coordinator: StartCoordinator) -> None:
    broker = coordinator(topics={"orders": 4})
    assert create_topic(broker.address, "__marshal", 4)
    assert not create_topic(broker.address, "__marshal", 4)
    (warning,) = check_topic(broker.address, "__marshal")
    assert "has one replica" in warning
