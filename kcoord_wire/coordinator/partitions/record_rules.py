"""What a topic demands of the records of a batch, besides what `batch_header` checks: a key where it is compacted, and
a time that is neither too old nor in the future.

Laws:

* Records are read only where the topic is compacted, or where the header or the topic says that a time may be wrong;
  then no more than `MOST_RECORDS` and `MOST_DECOMPRESSED` bytes of a batch, since a few compressed bytes may hold
  millions: one with more is refused. What a request may have read is bounded by its `Reading`: what is left is refused
  so that it is sent again.
* A batch is refused as a whole, with an error for each wrong record; an answer lists `MOST_LISTED` of them.
* INVALID_TIMESTAMP (32) is the batch's error if any record's time is wrong, else INVALID_RECORD (87).

Source: kafka/storage `LogValidator.java` (validateKey, validateTimestamp, processRecordErrors), `LogConfig.java`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.partitions.batch_header import Header
from kcoord_wire.errors import DecodeError
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import Compression
from kcoord_wire.records.batch import AT_CHECKED, CHECKED, HEADER_SIZE
from kcoord_wire.records.compression import decompress
from kcoord_wire.records.limits import Allowance
from kcoord_wire.records.model import NO_TIMESTAMP
from kcoord_wire.records.record import skim_records

MOST_LISTED: Final = 10_000
"""Wrong records that an answer lists; each takes 80 bytes or more of it."""

ANY_TIME: Final = (1 << 63) - 1
"""Milliseconds of a bound that no time exceeds, as Kafka writes it."""

MOST_RECORDS: Final = 200_000
"""Of a batch that are read, in 0.2 s."""

MOST_DECOMPRESSED: Final = 16 << 20
"""Bytes of a batch that are read."""

_BATCHES_AT_ONCE: Final = 2  # of the largest that are read, for one request
_SHOWN: Final = 3  # errors that the text of the batch's error has
_BASE_TIMESTAMP: Final = 2  # of the fields of `CHECKED`


class RecordError(NamedTuple):
    """What is wrong with a record.

    :ivar batch_index: of the record in its batch
    """

    batch_index: int
    text: str


class RefusedRecords(Refused):
    """A batch is refused because of some of its records.

    :ivar records: the first of these, at most `MOST_LISTED`
    """

    def __init__(self, error: ErrorCode, detail: str, records: list[RecordError]) -> None:
        super().__init__(error, detail)
        self.records = records


class Reading:
    """What may still be read of the records of a request.

    :ivar records: number of them
    :ivar decompressed: bytes of them
    """

    __slots__ = ("decompressed", "records")

    def __init__(self) -> None:
        self.records = _BATCHES_AT_ONCE * MOST_RECORDS
        self.decompressed = Allowance(_BATCHES_AT_ONCE * MOST_DECOMPRESSED)

    def block(self, batch: Header, data: bytes) -> bytes:
        """Return the records of a batch, decompressed.

        :raises Refused: MESSAGE_TOO_LARGE (10), there are too many for any request, or REQUEST_TIMED_OUT (7), for this
        :raises DecodeError: they cannot be decompressed, or are too large for any request
        """
        if batch.record_count > MOST_RECORDS:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE, f"{batch.record_count} records, at most {MOST_RECORDS} are taken"
            )
        if batch.record_count > self.records or self.decompressed.left < MOST_DECOMPRESSED:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, "the batches of the request are too large together")
        self.records -= batch.record_count
        codec, block = Compression(batch.compression), data[HEADER_SIZE:]
        return decompress(codec, block, limit=MOST_DECOMPRESSED, allowance=self.decompressed)


class RecordRules(NamedTuple):
    """What a topic demands.

    :ivar is_compacted: each record has a key
    :ivar is_stamped: the broker sets the time of records, and what the producer has set does not matter
    :ivar before_ms: how old a record may be; `ANY_TIME` for any age
    :ivar after_ms: how far its time may lie in the future; likewise
    """

    is_compacted: bool = False
    is_stamped: bool = False
    before_ms: int = ANY_TIME
    after_ms: int = ANY_TIME

    def check(self, batch: Header, data: bytes, name: str, now: int, reading: Reading) -> None:
        """Check the records of a batch.

        :param batch: the header that `check_batch` returned for `data`
        :param name: of the partition
        :param now: ms of the epoch
        :param reading: of the request that the batch is in
        :raises RefusedRecords: INVALID_RECORD or INVALID_TIMESTAMP
        :raises Refused: as `Reading.block`; INVALID_RECORD, they cannot be read
        """
        may_be_wrong = self.before_ms != ANY_TIME or batch.max_timestamp > now + self.after_ms
        is_timed = may_be_wrong and not self.is_stamped
        if not (self.is_compacted or is_timed):
            return
        try:
            self._check_each(batch, data, name, now, reading, is_timed=is_timed)
        except DecodeError as error:
            raise Refused(ErrorCode.INVALID_RECORD, f"the records cannot be read: {error.detail}") from None

    def _check_each(self, batch: Header, data: bytes, name: str, now: int, reading: Reading, *, is_timed: bool) -> None:
        block = reading.block(batch, data)
        base = CHECKED.unpack_from(data, AT_CHECKED)[_BASE_TIMESTAMP]
        keyless = f"Compacted topic cannot accept message without key in topic partition {name}"
        wrong: list[RecordError] = []
        count, error = 0, ErrorCode.INVALID_RECORD
        for index, (delta, has_key) in enumerate(skim_records(block, batch.record_count)):
            text = keyless if self.is_compacted and not has_key else None
            if text is None and is_timed and (text := self._wrong_time(base + delta, index, now)):
                error = ErrorCode.INVALID_TIMESTAMP
            if text is not None:
                count += 1
                if count <= MOST_LISTED:
                    wrong.append(RecordError(index, text))
        if count:
            raise RefusedRecords(error, _summary(error, count, wrong), wrong)

    def _wrong_time(self, timestamp: int, index: int, now: int) -> str | None:
        earliest, latest = now - self.before_ms, now + self.after_ms
        if timestamp == NO_TIMESTAMP or earliest <= timestamp <= latest:
            return None
        return (
            f"Timestamp {timestamp} of message with offset {index} is out of range. The timestamp should be within "
            f"[{earliest}, {latest}]"
        )


def _summary(error: ErrorCode, count: int, wrong: list[RecordError]) -> str:
    if error is ErrorCode.INVALID_TIMESTAMP:
        return "One or more records have been rejected due to invalid timestamp"
    shown = ", ".join(f"RecordError(batchIndex={each.batch_index}, message='{each.text}')" for each in wrong[:_SHOWN])
    return (
        f"One or more records have been rejected due to {count} record errors in total, and only showing the first "
        f"three errors at most: [{shown}]"
    )
