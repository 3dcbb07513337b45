"""Idempotent producers: what they send twice is stored once, and their sequences and epochs go on without a gap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.partitions import producers
from kcoord_wire.coordinator.partitions.batch_header import check_batch
from kcoord_wire.coordinator.partitions.journal import Journal
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog, Storage
from kcoord_wire.coordinator.partitions.producers import ProducerIds
from kcoord_wire.coordinator.topics.catalog import TopicLimits
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import ControlType, Record, encode_batch, read_records
from tests.support.broker import Broker, sequenced


def test_a_batch_that_is_sent_twice_is_stored_once(broker: Broker) -> None:
    offsets = [broker.produce(sequenced(sequence)).base_offset for sequence in (0, 2, 4, 6, 8, 10)]
    assert offsets == [0, 2, 4, 6, 8, 10]
    again = [broker.produce(sequenced(sequence)) for sequence in (2, 4, 6, 8, 10)]
    assert [(outcome.error_code, outcome.base_offset) for outcome in again] == [(0, n) for n in (2, 4, 6, 8, 10)]
    forgotten = broker.produce(sequenced(0))
    assert forgotten.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(12)).base_offset == 12
    assert broker.produce(sequenced(0), partition=1).base_offset == 0  # each partition counts for itself


def test_sequences_and_epochs(broker: Broker) -> None:
    assert broker.produce(sequenced(7)).error_code == 0  # nothing is known of the producer: any sequence will do
    for gap in (8, 10):
        assert broker.produce(sequenced(gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(9, epoch=1)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(0, epoch=1)).error_code == 0
    assert broker.produce(sequenced(9)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.produce(sequenced(0, epoch=1, count=1)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce(sequenced(2, epoch=1)).base_offset == 4


def test_sequences_go_round(broker: Broker) -> None:
    last = 2**31 - 1
    assert broker.produce(sequenced(last - 3)).error_code == 0
    assert broker.produce(sequenced(last - 1)).error_code == 0
    assert broker.produce(sequenced(0)).base_offset == 4
    assert broker.produce(sequenced(last, producer_id=6)).error_code == 0  # from the last to 0 within a batch
    assert broker.produce(sequenced(last, producer_id=6)).base_offset == 6
    assert broker.produce(sequenced(1, producer_id=6)).base_offset == 8


def test_only_so_many_producers_are_remembered(broker: Broker) -> None:
    for producer_id in range(1, 258):
        broker.produce(sequenced(0, producer_id=producer_id))
    end = broker.fetch(0).high_watermark
    assert broker.produce(sequenced(0, producer_id=257)).base_offset == end - 2
    assert broker.produce(sequenced(0, producer_id=1)).base_offset == end  # forgotten


def begun(disk: MemoryDisk | VirtualDisk) -> ProducerIds:
    journal = Journal(disk)
    known = journal.load()
    journal.begin(known)
    return ProducerIds(journal, known.producer_ids)


def test_ids_go_on_after_a_power_failure() -> None:
    disk = VirtualDisk(Random(1))
    given: list[int] = []
    for turn in range(5):
        ids = begun(disk)
        given += [ids.allocate(now=500) for _ in range(turn * 700 + 1)]
        disk.crash()
    assert given[0] == 500
    assert len(set(given)) == len(given)
    assert given == sorted(given)


def test_ids_that_cannot_be_reserved_are_counted_from_the_time(caplog: pytest.LogCaptureFixture) -> None:
    disk = VirtualDisk(Random(1))
    ids = begun(disk)
    disk.fails_in = 0
    assert [ids.allocate(now=500), ids.allocate(now=500)] == [500, 501]
    assert [record.message for record in caplog.records] == [
        "ids of producers from 500 on cannot be reserved: [Errno 5] the disk has failed"
    ]
    assert begun(disk).allocate(now=600) == 1_501  # reserved with the second


NOW = 1_700_000_000_000


class Log:
    """A partition with its producers' sequence numbers."""

    def __init__(self) -> None:
        self.log = PartitionLog(Storage(MemoryDisk(), segment_bytes=1), "orders-0")  # a segment for each batch
        self._next: dict[tuple[int, int], int] = {}

    def write(self, producer: int, *, epoch: int = 0, transactional: bool = True, verified: bool = True) -> int:
        sequence = self._next.get((producer, epoch), 0)
        data = encode_batch(
            [Record(b"k", b"v", NOW)],
            transactional=transactional,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        offset, _ = self.log.append(check_batch(data, 1_000), data, verified=verified)
        self._next[producer, epoch] = sequence + 1
        return offset

    def end(self, producer: int, control: ControlType, *, epoch: int = 0) -> int:
        return self.log.end_transaction(producer, epoch, control, 0, NOW)[0]


@contextmanager
def refused(error: ErrorCode) -> Iterator[None]:
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.error is error


def test_the_stable_offset_is_the_first_that_is_open() -> None:
    log = Log()
    log.write(9, transactional=False)
    assert log.log.stable_offset == 1
    log.write(1)
    log.write(2)
    assert log.log.stable_offset == 1
    log.end(1, ControlType.COMMIT)
    assert (log.log.stable_offset, log.log.end_offset) == (2, 4)
    log.end(2, ControlType.ABORT)
    assert log.log.stable_offset == log.log.end_offset == 5


def test_a_marker_is_its_producers_last_batch() -> None:
    log = Log()
    log.write(1)
    log.log.end_transaction(1, 0, ControlType.COMMIT, 7, NOW + 1)
    (state,) = log.log.producers()
    assert (state.coordinator_epoch, state.last_timestamp, state.last_sequence) == (7, NOW + 1, 0)
    log.write(1, epoch=1)
    (state,) = log.log.producers()
    assert (state.producer_epoch, state.coordinator_epoch, state.last_timestamp) == (1, 7, NOW)


def test_readers_of_what_is_committed_get_nothing_beyond() -> None:
    log = Log()
    for producer in (9, 1, 2):
        log.write(producer, transactional=producer != 9)
    batches = list(read_records(log.log.read(0, 1 << 20, True, log.log.stable_offset)))
    assert [batch.base_offset for batch in batches] == [0]
    log.end(1, ControlType.COMMIT)
    batches = list(read_records(log.log.read(0, 1 << 20, True, log.log.stable_offset)))
    assert [batch.base_offset for batch in batches] == [0, 1]
    assert log.log.bytes_between(0, log.log.stable_offset) == sum(batch.size for batch in batches)


def test_aborted_transactions_are_known_to_their_readers() -> None:
    log = Log()
    first = log.write(1)
    log.write(2)
    marker = log.end(1, ControlType.ABORT)
    log.end(2, ControlType.COMMIT)
    again = log.write(1)
    log.end(1, ControlType.ABORT)
    found = log.log.aborted_between(0, log.log.stable_offset)
    assert [(each.producer_id, each.first_offset) for each in found] == [(1, first), (1, again)]
    assert [each.first_offset for each in log.log.aborted_between(marker + 1, log.log.stable_offset)] == [again]
    assert [each.first_offset for each in log.log.aborted_between(0, again)] == [first]


def test_aborted_transactions_count_as_bytes_of_an_answer() -> None:
    """A Fetch may name a partition thousands of times, in which thousands of transactions were aborted."""
    broker = Broker(limits=TopicLimits(max_fetch_bytes=4_000))
    log = broker.topics.catalog.named("orders").logs[0]
    for producer in range(100):
        data = sequenced(0, producer_id=producer, transactional=True)
        log.append(check_batch(data, 1_000), data, verified=True)
    for producer in range(100):
        log.end_transaction(producer, 0, ControlType.ABORT, 0, NOW)
    request = broker.fetch_request(0, 11, isolation_level=1, max_wait_ms=0)
    request.topics[0].partitions *= 50
    for part in request.topics[0].partitions:
        part.partition_max_bytes = 100
    response = broker.ask(request, 11, m.FetchResponse)
    aborted = [len(answer.aborted_transactions) for answer in response.responses[0].partitions]
    assert (aborted[:3], sum(aborted)) == ([100, 100, 100], 300)


def test_the_marker_is_a_control_batch_of_the_producer() -> None:
    log = Log()
    log.write(1, epoch=4)
    offset = log.end(1, ControlType.COMMIT, epoch=4)
    (_, marker) = read_records(log.log.read(0, 1 << 20, True, 2))
    assert (marker.base_offset, marker.producer_id, marker.producer_epoch) == (offset, 1, 4)
    assert (marker.is_control, marker.is_transactional) == (True, True)


def test_a_transaction_begins_with_the_coordinators_word_only() -> None:
    log = Log()
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.write(1, verified=False)
    log.write(1)
    assert log.write(1, verified=False) == 1, "it is open"
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.write(1, transactional=False)
    log.end(1, ControlType.COMMIT)
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.write(1, verified=False)


def test_a_marker_keeps_out_older_epochs() -> None:
    log = Log()
    log.write(1, epoch=3)
    log.end(1, ControlType.ABORT, epoch=4)
    for write in (lambda: log.write(1, epoch=3), lambda: log.end(1, ControlType.COMMIT, epoch=3)):
        with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            write()
    assert log.write(1, epoch=4) == 2


def test_sequence_numbers_go_on_after_a_marker_of_the_same_epoch() -> None:
    log = Log()
    log.write(1)
    log.end(1, ControlType.COMMIT)
    assert log.write(1) == 2


def test_retention_leaves_the_stable_offset_within_the_log() -> None:
    log = Log()
    log.write(1)
    log.write(9, transactional=False)
    log.log.drop_first_segment()
    assert log.log.stable_offset == log.log.start_offset == 1
    log.end(1, ControlType.ABORT)
    assert log.log.stable_offset == log.log.end_offset == 3
    assert [each.first_offset for each in log.log.aborted_between(1, 3)] == [0]
    log.log.drop_first_segment()
    log.log.drop_first_segment()
    assert log.log.aborted_between(0, 3) == []


def test_a_partition_that_is_named_often_gets_one_marker() -> None:
    broker = Broker()
    topic = m.WriteTxnMarkersRequestWritableTxnMarkerTopic(name="orders", partition_indexes=[0, 1, 0, 9, 9])
    marker = m.WriteTxnMarkersRequestWritableTxnMarker(producer_id=5, producer_epoch=1, topics=[topic, topic])
    response = broker.ask(m.WriteTxnMarkersRequest(markers=[marker]), 1, m.WriteTxnMarkersResponse)
    errors = [each.error_code for each in response.markers[0].topics[1].partitions]
    assert errors == [0, 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [log.end_offset for log in broker.topics.catalog.named("orders").logs] == [1, 1]


def test_producers_with_open_transactions_are_not_forgotten() -> None:
    log = Log()
    log.write(1, epoch=1)
    for other in range(2, 300):
        log.write(other, transactional=False)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.write(1, epoch=0)
    assert log.write(1, epoch=1) == 299
    log.end(1, ControlType.COMMIT, epoch=1)
    for other in range(2, 300):
        log.write(other, transactional=False)
    assert len(log.log.producers()) == 256, "and once the transaction has ended it is as any other"


def test_only_so_many_transactions_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MOST_OPEN", 2)
    log = Log()
    log.write(1)
    log.write(2)
    with refused(ErrorCode.POLICY_VIOLATION):
        log.write(3)
    log.write(2)
    log.write(3, transactional=False)
    log.end(1, ControlType.COMMIT)
    log.write(4)
