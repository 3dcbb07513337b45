"""What becomes of an append or a question that goes wrong on its way. The contract is in test_log.py.

Which settings of a coordination topic are refused, and which are warned of.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import pytest

from kcoord_wire.coordinator import Coordinator, Fault
from kcoord_wire.marshal.kafka_log import KafkaLog, TopicState, check_topic, create_topic, problems_of
from kcoord_wire.marshal.log import Appended, AppendFailed, Log, LogError
from tests.support.fixtures import StartCoordinator
from tests.support.log_contract import append, read, values


@pytest.fixture
def broker(coordinator: StartCoordinator) -> Coordinator:
    return coordinator(topics={"__marshal": 2})


@pytest.fixture
def log(broker: Coordinator) -> Iterator[Log]:
    log = KafkaLog(broker.address, timeout_s=2)
    append(log, 1, b"the producer has its id")
    yield log
    log.close()


def stored(broker: Coordinator) -> list[bytes | None]:
    reader = KafkaLog(broker.address)
    reader.read_from_start([0])
    try:
        return values(read(reader, 0))
    finally:
        reader.close()


def test_a_lost_connection_stores_an_entry_once(broker: Coordinator, log: Log) -> None:
    broker.add_fault(Fault("disconnect", on="response", api="Produce", count=1))
    assert append(log, 0, b"x") == [Appended(0, 0)]
    assert stored(broker) == [b"x"]


def test_an_append_without_any_answer_may_have_landed(broker: Coordinator, log: Log) -> None:
    broker.add_fault(Fault("drop", on="response", api="Produce"))
    begun = monotonic()
    (failed,) = append(log, 0, b"x")
    assert isinstance(failed, AppendFailed)
    assert failed.may_have_landed
    assert monotonic() - begun < 15
    broker.clear_faults()
    (result,) = append(log, 0, b"y")
    assert isinstance(result, Appended), "the log goes on"
    assert stored(broker) == [b"x", b"y"]


def test_repeated_appends_keep_their_order(broker: Coordinator, log: Log) -> None:
    broker.add_fault(Fault("error", api="Produce", error="NOT_LEADER_OR_FOLLOWER", count=2))
    results = append(log, 0, b"a", b"b", b"c")
    assert [type(result) for result in results] == [Appended] * 3
    assert stored(broker) == [b"a", b"b", b"c"]


def test_a_refused_append_has_not_landed(broker: Coordinator, log: Log) -> None:
    broker.add_fault(Fault("error", api="Produce", error="TOPIC_AUTHORIZATION_FAILED"))
    (failed,) = append(log, 0, b"x")
    assert isinstance(failed, AppendFailed)
    assert not failed.may_have_landed
    assert "authoriz" in failed.reason.lower()
    assert stored(broker) == []


def test_an_end_that_nobody_tells_times_out(broker: Coordinator, log: Log) -> None:
    broker.add_fault(Fault("drop", api="ListOffsets"))
    begun = monotonic()
    with pytest.raises(TimeoutError, match=r"no broker reports the end of __marshal-0 within 0\.2 s"):
        log.end(0, 0.2)
    assert monotonic() - begun < 10


def test_reading_that_is_not_allowed_is_an_error(broker: Coordinator, log: Log) -> None:
    append(log, 0, b"x")
    broker.add_fault(Fault("error", api="ListOffsets", error="TOPIC_AUTHORIZATION_FAILED"))
    log.read_from_start([0])
    with pytest.raises(LogError, match="not authorised to read __marshal"):
        read(log, 0)


def test_reading_goes_on_after_lost_connections(broker: Coordinator, log: Log) -> None:
    log.read_from_start([0])
    broker.add_fault(Fault("disconnect", api="Fetch", every=2, count=4))
    append(log, 0, *(b"%d" % number for number in range(20)))
    log.read_from_start([0])
    assert values(read(log, 0)) == [b"%d" % number for number in range(20)]


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
