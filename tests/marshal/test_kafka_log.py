"""What becomes of an append or a question that goes wrong on its way. The contract is in test_log_contract.py."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import pytest

from kcoord_wire.coordinator import Coordinator, Fault
from kcoord_wire.marshal.kafka_log import KafkaLog
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
