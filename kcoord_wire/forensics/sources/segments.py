"""The records of a log segment, whole or in shares of its bytes.

    for record in records_of(Path("__consumer_offsets-12/00000000000000000000.log"), range(0, 1 << 20), None): ...

Laws:

* The records of the shares of a segment, one after the other, are those of the whole, whatever the shares are.
* A segment is a chain of entries, which the headers alone decide: an entry reaches as far as its header says if another
  plausible header, or the end of the file, follows there. So no value that imitates a batch begins an entry. Where none
  follows, the entry is read: it ends with its batch, or before the next sound one.
* A share has the entries that begin in it. Of the entries before it, headers are read, and the markers of transactions.
* What is sound within a damaged entry is read. A transaction that such a batch belongs to is undecided.
* Every byte is in the batch of a record or in the loss of a row.
* A segment that becomes shorter while it is read, as a follower truncates its log, is read as far as it was there; the
  rest is a loss. A transaction that is open there is undecided.
* What compressed batches may have together is bounded by the bytes that are read (`MAX_EXPANSION`); what is beyond is
  lost, with that reason. So where it is used up, shares have more than the whole.
* Memory holds open transactions: their records, or the places of their batches where those are before the share.

Transactions: offsets committed in a transaction become rows at its commit marker; those of an aborted one are dropped.
Where the segment ends before the marker, they become rows with an error and their key and value: the outcome is in the
next segment, and a guess would be wrong in one of two ways.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, TypeGuard

from kcoord_wire.capture.frames import GoesOn
from kcoord_wire.errors import DecodeError
from kcoord_wire.forensics.model import record_time_ns
from kcoord_wire.forensics.sources.files import plain_name, unpacked
from kcoord_wire.kernel.file_bytes import FileBytes, FileCutError

if TYPE_CHECKING:
    from kcoord_wire.records.model import Batch, RecordBatch

MAX_EXPANSION: Final = 100
"""Bytes that the compressed batches of a segment may have for each of its bytes, and `_LEAST_DECOMPRESSED` at least. In
2,138 bytes of zstd can be 64 MiB."""

_LEAST_DECOMPRESSED: Final = 256 << 20
_MAX_BATCH: Final = 100 * 1024 * 1024
_SEARCHES: Final = 64  # how often each byte of a segment is examined in the search for sound batches, on average
# Where a batch may begin: an offset below 2**40, a size below 2**24, any epoch, a known magic.
_LIKELY_BATCH: Final = re.compile(rb"(?=\x00{3}.{5}\x00.{7}[\x00-\x02])", re.DOTALL)
_LIKELY_WIDTH: Final = 17
_SIZE: Final = struct.Struct(">i")
_MAX_OFFSET: Final = 2**63 - 1
_OFFSETS_OF_SEGMENT: Final = 2**31  # its index counts them in 31 bits
_HEADER: Final = struct.Struct(">qi4xb")  # offset, size, magic
_OF_PRODUCER: Final = struct.Struct(">16xb4xh20xq")  # magic, attributes, producer id
_COUNTED_FROM: Final = 12  # the size counts the bytes from here on
_SIZES: Final = range(14, 1 << 24)  # from a message of version 0 with neither key nor value
_OFFSETS: Final = range(1 << 40)
_MAGICS: Final = range(3)
_WITH_PRODUCERS: Final = 2  # the magic of batches that may be transactional
_TRANSACTIONAL, _CONTROL = 0x10, 0x20  # of the attributes
_UNDECIDED: Final = "committed in a transaction whose end is not in this segment"
_BESIDE_DAMAGE: Final = "committed in a transaction beside damage, which may have hidden its end"

_Record = tuple[int, int, int, bytes | None, bytes | None, str | None, int, bool]
"""A `LogRow` without source and partition."""


def records_of(
    path: Path, share: range | None, goes_on: GoesOn | None, max_expansion: int = MAX_EXPANSION
) -> Iterator[_Record]:
    """Yield the records of a segment file, in the columns of `LogRow` behind the partition.

    :param share: of the bytes of a file that is not packed; None for all
    :param max_expansion: see `MAX_EXPANSION`
    :raises OSError: the file cannot be read
    """
    with unpacked(path) as content:
        size = content.path.stat().st_size
        share = range(size) if share is None else share
        if share:
            with content.path.open("rb", buffering=0) as file:
                data = _Batches(file, max(_LEAST_DECOMPRESSED, max_expansion * len(share)))
                yield from _Segment(data, _offsets_of(plain_name(path))).records(share, goes_on)
        if content.fault is not None:
            yield -1, size, 0, None, None, content.fault, content.lost, False


def _offsets_of(name: str) -> range:
    """Return the offsets that a segment of that name can have: the name is the first one, in 20 digits."""
    first = int(name.removesuffix(".log")) if re.fullmatch(r"\d{20}\.log", name) else None
    return range(_MAX_OFFSET) if first is None else range(first, first + _OFFSETS_OF_SEGMENT)


class _Entry(NamedTuple):
    """A piece of the chain.

    :ivar why: it is damage, for this reason; None where its header is all that has been read
    """

    position: int
    end: int
    why: str | None = None


class _Held(NamedTuple):
    """A batch of an open transaction.

    :ivar records: None where the entry is before the share; it is read when the transaction is committed
    """

    entry: _Entry
    records: list[_Record] | None


class _Batches(FileBytes):
    """The bytes of a segment, and what its batches may cost.

    :param decompressed: bytes that compressed ones may have together
    """

    __slots__ = ("limits",)

    def __init__(self, file: BinaryIO, decompressed: int) -> None:
        from kcoord_wire.records.limits import Allowance, ReadLimits

        super().__init__(file)
        self.limits = ReadLimits(strict=False, allowance=Allowance(decompressed))


class _Segment:
    """A segment that is read once, from its beginning.

    :param offsets: those that it can have
    """

    def __init__(self, data: _Batches, offsets: range) -> None:
        self._data, self._offsets = data, offsets
        self._open: dict[int, list[_Held]] = {}  # by producer
        self._position = 0  # bytes before it are in a row, held, or before the share

    def records(self, share: range, goes_on: GoesOn | None) -> Iterator[_Record]:
        """Yield the records of a share; what another process cuts off meanwhile is lost."""
        try:
            for entry in _chain(self._data, goes_on):
                if entry.position >= share.stop:
                    return
                if entry.position >= share.start:
                    yield from self._read(entry)
                elif entry.why is None:
                    self._pass(entry)
                self._position = entry.end
        except FileCutError as error:
            start, stop = max(self._position, share.start), min(share.stop, self._data.size)
            if start < stop:
                yield _loss(start, stop, str(error))
        if share.stop < self._data.size:
            return  # the last share has what is left
        yield from self._undecided()
        start = max(share.start, self._data.size)
        if start < share.stop:  # the file was longer when its shares were planned
            yield _loss(start, share.stop, str(FileCutError(share.stop, self._data.size)))

    def _undecided(self) -> Iterator[_Record]:
        left = [held for batches in self._open.values() for held in batches]
        for held in sorted(left, key=lambda held: held.entry.position):
            try:
                yield from _with_error(self._records_of(held), _UNDECIDED)
            except FileCutError as error:
                yield _loss(held.entry.position, held.entry.end, str(error))

    def _read(self, entry: _Entry) -> Iterator[_Record]:
        if entry.why is not None:
            yield _loss(entry.position, entry.end, entry.why)
            return
        for found in _pieces(self._data, entry):
            if isinstance(found, _Entry):
                yield _loss(*found)
            elif found.base_offset not in self._offsets:  # the checksum does not cover it
                why = f"a batch with the offset {found.base_offset}, which cannot be in this segment"
                yield _loss(found.position, found.position + found.size, why)
            elif found.size == entry.end - entry.position:
                yield from self._take(entry, found)
            else:
                yield from _beside_damage(found)
            self._position = found.end if isinstance(found, _Entry) else found.position + found.size

    def _take(self, entry: _Entry, batch: Batch) -> Iterator[_Record]:
        """Yield what is decided by a batch that fills its entry."""
        if _is_control(batch):
            for held in self._ended(batch):
                yield from self._records_of(held)
        elif _is_transactional(batch):
            self._open.setdefault(batch.producer_id, []).append(_Held(entry, _records_in(batch)))
        else:
            yield from _records_in(batch)

    def _pass(self, entry: _Entry) -> None:
        """Note what an entry before the share says of transactions."""
        if entry.end - entry.position < _OF_PRODUCER.size:
            return
        magic, attributes, producer = self._data.unpack(_OF_PRODUCER, entry.position)
        if magic != _WITH_PRODUCERS:
            return
        if attributes & _CONTROL:
            batch = self._whole(entry)
            if batch is not None and _is_control(batch):
                self._ended(batch)
        elif attributes & _TRANSACTIONAL:
            self._open.setdefault(producer, []).append(_Held(entry, None))

    def _ended(self, batch: RecordBatch) -> list[_Held]:
        """Forget the transaction that a marker ends; return its batches if it is committed."""
        committed = _ends_well(batch)
        held = [] if committed is None else self._open.pop(batch.producer_id, [])
        return held if committed else []

    def _records_of(self, held: _Held) -> list[_Record]:
        if held.records is not None:
            return held.records
        batch = self._whole(held.entry)
        return [] if batch is None else _records_in(batch)  # of a damaged one, its share has reported the loss

    def _whole(self, entry: _Entry) -> Batch | None:
        """Return the batch that fills an entry, if it is sound."""
        batch = _batch_at(self._data, entry.position, entry.end)
        return None if isinstance(batch, DecodeError) or batch.base_offset not in self._offsets else batch


def _loss(position: int, end: int, why: str | None) -> _Record:
    return -1, position, 0, None, None, why, end - position, False


def _with_error(records: list[_Record], why: str) -> Iterator[_Record]:
    for offset, position, time_ns, key, value, _, lost, is_append in records:
        yield offset, position, time_ns, key, value, why, lost, is_append


def _beside_damage(batch: Batch) -> Iterator[_Record]:
    """Yield the records of a sound batch within a damaged entry, which the readers of later shares have not seen."""
    if _is_transactional(batch):
        yield from [] if _is_control(batch) else _with_error(_records_in(batch), _BESIDE_DAMAGE)
    else:
        yield from _records_in(batch)


def _records_in(batch: Batch) -> list[_Record]:
    from kcoord_wire.records.model import TimestampType

    is_append = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    position = batch.position
    return [
        (record.offset, position, record_time_ns(record.timestamp), record.key, record.value, None, 0, is_append)
        for record in batch.records
    ]


def _is_transactional(batch: Batch) -> TypeGuard[RecordBatch]:
    from kcoord_wire.records.model import RecordBatch

    return isinstance(batch, RecordBatch) and (batch.is_transactional or batch.is_control)


def _is_control(batch: Batch) -> TypeGuard[RecordBatch]:
    return _is_transactional(batch) and batch.is_control


def _ends_well(batch: RecordBatch) -> bool | None:
    """Whether a control batch commits its transaction; None where it is not the end of one."""
    from kcoord_wire.records.control import ControlType, decode_control_record

    for record in batch.records:
        try:
            control = decode_control_record(record)
        except DecodeError:
            continue
        if control.type in (ControlType.COMMIT, ControlType.ABORT):
            return control.type == ControlType.COMMIT
    return None


def _chain(data: _Batches, goes_on: GoesOn | None) -> Iterator[_Entry]:
    """Yield the entries of a segment, which do not depend on what a reader does with them."""
    size = data.size
    budget = _SEARCHES * size
    data.advance(0)
    position, end = 0, _claimed_end(data, 0)
    while position < size and (goes_on is None or goes_on(position, size)):
        data.advance(position)
        after = None if end is None or end == size else _claimed_end(data, end)
        if end is not None and (end == size or after is not None):
            yield _Entry(position, end)
            position, end = end, after
            continue
        batch = _batch_at(data, position, size)
        if isinstance(batch, DecodeError):
            entry_end, budget = _next_batch(data, position, size, budget)
            yield _Entry(position, entry_end, str(batch))
        else:
            entry_end = position + batch.size
            yield _Entry(position, entry_end)
        position, end = entry_end, _claimed_end(data, entry_end)


def _claimed_end(data: _Batches, position: int) -> int | None:
    """Return where the batch ends that a plausible header begins; None for any other bytes."""
    if position + _HEADER.size > data.size:
        return None
    offset, size, magic = data.unpack(_HEADER, position)
    end: int = position + _COUNTED_FROM + size
    is_plausible = size in _SIZES and magic in _MAGICS and offset in _OFFSETS and end <= data.size
    return end if is_plausible else None


def _pieces(data: _Batches, entry: _Entry) -> Iterator[Batch | _Entry]:
    """Yield the sound batches within an entry, and the damage between them."""
    position, budget = entry.position, _SEARCHES * (entry.end - entry.position)
    while position < entry.end:
        batch = _batch_at(data, position, entry.end)
        if not isinstance(batch, DecodeError):
            yield batch
            position += batch.size
            continue
        end, budget = _next_batch(data, position, entry.end, budget)
        yield _Entry(position, end, str(batch))
        position = end


def _batch_at(data: _Batches, position: int, end: int) -> Batch | DecodeError:
    from kcoord_wire.records.segment import PREFIX_SIZE, batch_size, decode_any

    try:
        prefix = data.read(position, PREFIX_SIZE)
        size = batch_size(prefix, position) if len(prefix) == PREFIX_SIZE else PREFIX_SIZE
        if size > min(_MAX_BATCH, end - position):
            detail = f"{size} bytes or more where {end - position} are left"
            return DecodeError("truncated", position, "Batch.size", detail)
        return decode_any(memoryview(data.read(position, size)), position, data.limits)
    except DecodeError as error:
        return error


def _next_batch(data: _Batches, position: int, end: int, budget: int) -> tuple[int, int]:
    """Return where the next sound batch before `end` begins, else `end`; and what is left of the budget."""
    from kcoord_wire.records.segment import PREFIX_SIZE

    for place in data.places(_LIKELY_BATCH, position + 1, end, _LIKELY_WIDTH):
        (size,) = data.unpack(_SIZE, place + 8)
        if place + PREFIX_SIZE + size > end:
            continue
        budget -= size
        if budget < 0:
            break
        if not isinstance(_batch_at(data, place, end), DecodeError):
            return place, budget
    return end, budget
