"""What is in a partition, by two accounts that must agree: the raw log, and a read_committed consumer.

Laws (each with the name by which a violation is called):

``fenced``            no record is written in an epoch of a producer after a later one was acknowledged
``written once``      no record is in the log twice
``decided first``     a marker is written when its outcome is in the coordinator's log on disk, and none when that has
                      been carried out: it would end the next transaction
``stable offset``     the last stable offset is the first of an open transaction, or the end; it never decreases
``read committed``    a consumer gets the records of committed transactions, in their order, each once, and no others
``log stays``         records that were there are there after a restart
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.events import Reply, Request
from kcoord_wire.coordinator.host import Host
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import ControlType, RecordBatch, decode_control_record, read_records
from kcoord_wire.worlds.transactions.transformer import Partition

FETCH_VERSION: Final = 12  # the last that names topics
_ALL: Final = 1 << 30

Outcome = tuple[int, int, bool]
"""Producer id, epoch of the marker, whether it commits."""


class _Written(NamedTuple):
    """A record in the log."""

    offset: int
    value: bytes


class PartitionReader:
    """Reads one partition as it grows.

    :param partition: topic and number
    :param fences: by producer id, the epoch below which nothing may be written any more
    :param is_decided: whether an outcome is on disk
    :ivar visible: the values that count, in the order of their offsets: what a consumer must get
    :ivar open: producer id to the offset of the first record of its open transaction
    """

    def __init__(self, partition: Partition, fences: Mapping[int, int], is_decided: Callable[[Outcome], bool]) -> None:
        self.partition = partition
        self.visible: list[_Written] = []
        self.open: dict[int, int] = {}
        self._fences = fences
        self._is_decided = is_decided
        self._pending: dict[int, list[_Written]] = {}  # by producer id
        self._seen: set[bytes] = set()
        self._end = self._stable = 0
        self._position = 0  # of the consumer
        self._consumed: list[_Written] = []

    def check(self, host: Host) -> None:
        """Read on.

        :raises ViolationError: with the name of the law
        """
        topic, number = self.partition
        found = host.topics.catalog.named(topic)
        assert found is not None
        log = found.logs[number]
        if log.end_offset < self._end:
            raise ViolationError("log stays", f"{log.name} ends at {log.end_offset}, and had {self._end}")
        if log.end_offset > self._end:
            for batch in read_records(log.read(self._end, _ALL, True, log.end_offset)):
                assert isinstance(batch, RecordBatch)
                self._take(batch)
            self._end = log.end_offset
        self._check_stable(log)
        if self._stable > self._position:
            self._consume(host, found.leaders.of[number])

    def _take(self, batch: RecordBatch) -> None:
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if batch.is_control:
            self._end_transaction(batch)
            return
        if epoch < self._fences.get(producer_id, 0):
            text = f"{self._name}: producer {producer_id} writes in epoch {epoch}, {self._fences[producer_id]} is known"
            raise ViolationError("fenced", text)
        written = [_Written(record.offset, record.value or b"") for record in batch.records]
        for record in written:
            if record.value in self._seen:
                raise ViolationError("written once", f"{self._name}: {record} is there before")
            self._seen.add(record.value)
        self.open.setdefault(producer_id, batch.base_offset)
        self._pending.setdefault(producer_id, []).extend(written)

    def _end_transaction(self, batch: RecordBatch) -> None:
        commits = decode_control_record(batch.records[0]).type == ControlType.COMMIT
        outcome = batch.producer_id, batch.producer_epoch, commits
        if not self._is_decided(outcome):
            raise ViolationError("decided first", f"{self._name}: the marker {outcome} has no outcome on disk")
        self.open.pop(batch.producer_id, None)
        records = self._pending.pop(batch.producer_id, [])
        if commits:
            self.visible = sorted(self.visible + records)

    @property
    def _name(self) -> str:
        return f"{self.partition[0]}-{self.partition[1]}"

    def _check_stable(self, log: PartitionLog) -> None:
        stable, expected = log.stable_offset, min(self.open.values(), default=self._end)
        if stable != expected or stable < self._stable:
            text = f"{log.name} is stable up to {stable}, expected {expected}, before it was {self._stable}"
            raise ViolationError("stable offset", text)
        self._stable = stable

    # ---- the consumer

    def _consume(self, host: Host, broker: int) -> None:
        """Fetch what has become stable."""
        got = self.read(host, broker, self._position)
        self._consumed += got
        expected = list(takewhile(lambda record: record.offset < self._stable, self.visible))
        if self._consumed != expected:
            text = f"{self._name}: {[r for r in self._consumed if r not in expected]} are read and do not count; "
            missing = [record for record in expected if record not in self._consumed]
            raise ViolationError("read committed", f"{text}{missing} are missing, or the order is another")
        self._position = self._stable

    def read(self, host: Host, broker: int, position: int, max_bytes: int = _ALL) -> list[_Written]:
        """Return what a read_committed consumer gets from an offset on.

        :param broker: the leader
        :param max_bytes: of one answer
        """
        got: list[_Written] = []
        while position < self._stable:
            answer = self._fetch(host, broker, position, max_bytes)
            batches = [batch for batch in read_records(answer.records or b"") if isinstance(batch, RecordBatch)]
            if answer.error_code or not batches:
                raise ViolationError("read committed", f"{self._name} at {position}: {ErrorCode(answer.error_code)}")
            got += _committed(batches, answer.aborted_transactions or [], position)
            position = batches[-1].last_offset + 1
        return got

    def _fetch(self, host: Host, broker: int, position: int, max_bytes: int) -> m.FetchResponsePartitionData:
        topic, number = self.partition
        wanted = m.FetchRequestFetchPartition(partition=number, fetch_offset=position, partition_max_bytes=max_bytes)
        fetch = m.FetchRequest(
            isolation_level=1, max_bytes=_ALL, topics=[m.FetchRequestFetchTopic(topic=topic, partitions=[wanted])]
        )
        request = Request(0, fetch, FETCH_VERSION, broker=broker)
        (reply,) = host.topics.handle(request, 0)
        assert isinstance(reply, Reply)
        (answer,) = reply.message.responses[0].partitions
        assert isinstance(answer, m.FetchResponsePartitionData)
        return answer


def _committed(
    batches: list[RecordBatch], aborted: list[m.FetchResponseAbortedTransaction], position: int
) -> list[_Written]:
    """Return the records that count, as Kafka's consumer finds them (`CompletedFetch.java`)."""
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    inside: set[int] = set()
    got: list[_Written] = []
    for batch in batches:
        while waiting and waiting[0].first_offset <= batch.last_offset:
            inside.add(waiting.pop(0).producer_id)
        if batch.is_control:
            if decode_control_record(batch.records[0]).type == ControlType.ABORT:
                inside.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in inside):
            got += [_Written(each.offset, each.value or b"") for each in batch.records if each.offset >= position]
    return got
