"""The records of one partition in a Fetch response, decoded batch by batch as the application takes them.

Laws:

* Records come in the order of their offsets, each once, none before the position that was asked for. Control batches
  and, with ``read_committed``, the records of aborted transactions are left out, and the position passes them.
* One batch is decoded at a time, within the limits of `records.read_records`.
* Bytes that bring the position no further are an error: the consumer would ask for them for ever.

Source: kafka/clients `CompletedFetch.java`; KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.failures import CorruptRecordsError
from kcoord_wire.errors import DecodeError
from kcoord_wire.records import (
    Batch,
    ControlType,
    Record,
    RecordBatch,
    RecordHeader,
    TimestampType,
    decode_control_record,
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
        self._aborted = None if aborted is None else sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborting: set[int] = set()
        self._check_crcs = check_crcs
        self._failure: str | None = None
        self._records = self._read()

    def take(self, count: int) -> list[ConsumerRecord]:
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
            if not self._is_hidden(batch):
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

    def _is_hidden(self, batch: Batch) -> bool:
        if not isinstance(batch, RecordBatch):
            return False
        if self._aborted is not None:
            while self._aborted and self._aborted[-1].first_offset <= batch.last_offset:
                self._aborting.add(self._aborted.pop().producer_id)
        if batch.is_control:
            if batch.records and decode_control_record(batch.records[0]).type is ControlType.ABORT:
                self._aborting.discard(batch.producer_id)
            return True
        return batch.is_transactional and batch.producer_id in self._aborting
