"""A consumer's position in each of its partitions, what keeps one from being fetched, and the records of one Fetch.

Laws:

* No IO. A partition is here from its assignment until it is revoked or lost; nothing that arrives later for it changes
  anything.
* A position is, in this order: where the application has sought to, the committed offset, or where
  ``auto_offset_reset`` says.
* `consumed` holds positions after records that `poll` has returned, never after records that are only buffered.
* Records come in the order of their offsets, each once, none before the position that was asked for. Control batches
  and, with ``read_committed``, the records of aborted transactions are left out, and the position passes them.
* One batch is decoded at a time, when the application takes its records, within the limits of `records.read_records`.
* Bytes that bring the position no further are an error: the consumer would ask for them for ever.

Source: kafka/clients `CompletedFetch.java`; KIP-98.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.errors import (
    ConsumerError,
    CorruptRecordsError,
    NoOffsetError,
    NotAssignedError,
    OffsetOutOfRangeError,
    TopicError,
)
from kcoord_wire.errors import DecodeError
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import (
    Batch,
    HiddenBatches,
    Record,
    RecordBatch,
    RecordHeader,
    TimestampType,
    read_records,
)


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A record and its place.

    :ivar timestamp: ms since 1970 UTC; -1 for none
    :ivar leader_epoch: of its batch; -1 if it is unknown
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[RecordHeader, ...]
    leader_epoch: int


class FetchedRecords:
    """What a Fetch response has for one partition and the application has not taken yet.

    :param offset: the position that was asked for
    :param data: the response's records
    :param aborted: the response's aborted transactions; None reads uncommitted records
    :param check_crcs: compare the checksum of each batch
    :ivar next_offset: the position after what was taken
    :ivar leader_epoch: of the last batch that was taken from; -1 before the first
    """

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        data: bytes,
        *,
        aborted: Sequence[Any] | None = None,
        check_crcs: bool = True,
    ) -> None:
        self.next_offset = offset
        self.leader_epoch = -1
        self._partition = partition
        self._offset = offset
        self._data = data
        self._hidden = HiddenBatches(aborted)
        self._check_crcs = check_crcs
        self._failure: str | None = None
        self._records = self._read()

    @property
    def size(self) -> int:
        """Bytes of the records that the response had."""
        return len(self._data)

    def next_records(self, count: int) -> list[ConsumerRecord]:
        """Return up to `count` records; fewer only if there are no more.

        :raises CorruptRecordsError: the bytes at `next_offset` are no valid records; only when none come before them
        """
        taken: list[ConsumerRecord] = []
        try:
            while len(taken) < count and (record := next(self._records, None)) is not None:
                taken.append(record)
        except DecodeError as error:
            self._failure = str(error)
        if not taken and self._failure is not None:
            raise CorruptRecordsError(self._partition, self.next_offset, self._failure)
        return taken

    def _read(self) -> Iterator[ConsumerRecord]:
        for batch in read_records(self._data, check_crc=self._check_crcs, strict=False, allow_partial=True):
            if batch.last_offset < self.next_offset:
                continue
            if not self._hidden.has(batch):
                yield from self._records_of(batch)
            self.next_offset = batch.last_offset + 1
        if self._data and self.next_offset == self._offset:
            self._failure = f"{len(self._data)} bytes without a record from there on"

    def _records_of(self, batch: Batch) -> Iterator[ConsumerRecord]:
        self.leader_epoch = batch.partition_leader_epoch if isinstance(batch, RecordBatch) else -1
        for record in batch.records:
            if record.offset >= self.next_offset:
                self.next_offset = record.offset + 1
                yield self._consumer_record(record, batch.timestamp_type)

    def _consumer_record(self, record: Record, timestamp_type: TimestampType) -> ConsumerRecord:
        topic, partition = self._partition
        return ConsumerRecord(
            topic,
            partition,
            record.offset,
            record.timestamp,
            timestamp_type,
            record.key,
            record.value,
            record.headers,
            self.leader_epoch,
        )


EARLIEST: Final = -2
LATEST: Final = -1
_TIMESTAMPS: Final = {"earliest": EARLIEST, "latest": LATEST, "none": None}


@dataclass(slots=True, eq=False)
class PartitionState:
    """One assigned partition.

    :ivar partition: which
    :ivar offset: of the next record for the application; None while it is not known
    :ivar leader_epoch: of the last record; -1 for unknown
    :ivar reset_to: the timestamp whose offset is to be looked up: `EARLIEST` or `LATEST`; None if nothing is
    :ivar lacks_offset: whether there is none to begin at until the application seeks
    :ivar is_announced: whether the listener knows of it; nothing is fetched before
    :ivar is_paused: whether the application has paused it
    :ivar fetched: records that wait for the application
    :ivar end_offset: where the leader's log ended for this consumer when it last said so: the last stable offset if
        only committed records are read, else the high watermark; None before
    """

    partition: TopicPartition
    offset: int | None = None
    leader_epoch: int = -1
    reset_to: int | None = None
    lacks_offset: bool = False
    is_announced: bool = False
    is_paused: bool = False
    fetched: FetchedRecords | None = None
    end_offset: int | None = None

    @property
    def lag(self) -> int | None:
        """Records between the position and the end; None while one of both is not known."""
        if self.offset is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.offset, 0)

    @property
    def is_fetchable(self) -> bool:
        """Whether records can be asked for: as for Java, not while some of them are buffered."""
        return self.offset is not None and self.fetched is None and self.is_announced and not self.is_paused

    @property
    def awaits_committed(self) -> bool:
        """Whether the committed offset decides where to begin: the application has not sought."""
        return self.offset is None and self.reset_to is None

    def move(self, offset: int, leader_epoch: int = -1) -> None:
        """Go on at this offset; what is buffered is dropped."""
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.reset_to = None
        self.lacks_offset = False
        self.fetched = None

    def look_up(self, timestamp: int | None) -> None:
        """Go on at the offset of this timestamp, once it is known; nowhere for None."""
        self.offset = None
        self.leader_epoch = -1
        self.reset_to = timestamp
        self.lacks_offset = False
        self.fetched = None


class Positions:
    """The assigned partitions.

    :param reset: ``auto_offset_reset``
    :ivar failures: for the application, which `poll` raises one by one
    """

    def __init__(self, reset: Literal["earliest", "latest", "none"]) -> None:
        self.failures: list[ConsumerError] = []
        self._reset_to = _TIMESTAMPS[reset]
        self._states: dict[TopicPartition, PartitionState] = {}

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(self._states.values())

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._states

    def state(self, partition: TopicPartition) -> PartitionState:
        """Return an assigned partition.

        :raises NotAssignedError: it is not
        """
        try:
            return self._states[partition]
        except KeyError:
            raise NotAssignedError(partition) from None

    @property
    def announced(self) -> frozenset[TopicPartition]:
        """The partitions that the listener knows of."""
        return frozenset(partition for partition, state in self._states.items() if state.is_announced)

    def is_current(self, state: PartitionState) -> bool:
        """Whether this is still the partition's state: not so after it was revoked and assigned again."""
        return self._states.get(state.partition) is state

    def fail(self, error: ConsumerError) -> None:
        """Add to `failures`, unless the same waits there: brokers repeat an error while nothing polls."""
        if all((type(each), str(each)) != (type(error), str(error)) for each in self.failures):
            self.failures.append(error)

    # ---- assignment

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions; their committed offsets follow."""
        for partition in sorted(partitions):  # in one order, whatever the hashes, so that a simulation repeats
            self._states[partition] = PartitionState(partition)

    def announce(self, partitions: Iterable[TopicPartition]) -> None:
        """The listener has been called for these."""
        for partition in partitions:
            if partition in self._states:
                self._states[partition].is_announced = True

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions, with all that is known of them."""
        for partition in partitions:
            self._states.pop(partition, None)

    def start(self, committed: Mapping[TopicPartition, int]) -> None:
        """Begin at the committed offsets; negative ones are missing. A position that is known already stays."""
        for partition, offset in committed.items():
            state = self._states.get(partition)
            if state is None or not state.awaits_committed:
                continue
            if offset >= 0:
                state.offset = offset
            elif self._reset_to is not None:
                state.reset_to = self._reset_to
            else:
                state.lacks_offset = True

    def refuse(self, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        """The committed offsets of these are refused. A position that is known already stays."""
        for partition, error in errors.items():
            state = self._states.get(partition)
            if state is not None and state.awaits_committed:
                self.fail(TopicError(partition.topic, error))

    def check_offsets(self) -> None:
        """Do nothing if each partition has an offset to begin at, or may get one.

        :raises NoOffsetError: some lack one until the application seeks
        """
        missing = [state.partition for state in self if state.lacks_offset]
        if missing:
            raise NoOffsetError(missing)

    def out_of_range(self, state: PartitionState) -> None:
        """The leader does not have the position of this partition."""
        offset = state.offset
        assert offset is not None  # it was asked for
        if self._reset_to is None:
            self.fail(OffsetOutOfRangeError(state.partition, offset))
        state.look_up(self._reset_to)

    def diverges(self, state: PartitionState, end_offset: int, epoch: int) -> None:
        """The leader's log, which was cut back, leaves the one that was read at this offset (KIP-320).

        The offset is where the leader's epoch ends, which may lie beyond the position: nothing is skipped.
        """
        if self._reset_to is None:
            self.out_of_range(state)
        else:
            assert state.offset is not None  # it was asked for
            state.move(min(end_offset, state.offset), epoch)

    # ---- records

    def next_records(self, count: int) -> list[ConsumerRecord]:
        """Return up to `count` buffered records, a partition after the other, and move the positions behind them.

        A partition whose bytes are no valid records adds to `failures`.
        """
        records: list[ConsumerRecord] = []
        for state in list(self._states.values()):
            if len(records) >= count:
                break
            if state.fetched is not None and state.is_announced and not state.is_paused:
                records += self._take_from(state, count - len(records))
        return records

    def _take_from(self, state: PartitionState, count: int) -> list[ConsumerRecord]:
        fetched = state.fetched
        assert fetched is not None
        try:
            taken = fetched.next_records(count)
        except ConsumerError as error:
            self.fail(error)
            state.fetched = None
            return []
        state.offset = fetched.next_offset
        state.leader_epoch = max(state.leader_epoch, fetched.leader_epoch)
        if len(taken) < count:
            state.fetched = None
        # The next poll begins with another partition, so that a busy one does not hold up the others.
        self._states[state.partition] = self._states.pop(state.partition)
        return taken

    def consumed(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the positions, of those that have one; of all partitions for None."""
        return {
            partition: state.offset
            for partition, state in self._states.items()
            if state.offset is not None and state.is_announced and (partitions is None or partition in partitions)
        }
