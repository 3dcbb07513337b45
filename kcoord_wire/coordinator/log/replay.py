"""What the files of a log say when it is read from its beginning: the records that count."""

from __future__ import annotations

from collections.abc import Iterable

from kcoord_wire.coordinator.core.events import LogRecord, PendingRecord, Producer
from kcoord_wire.coordinator.log.formats import RecordFormat
from kcoord_wire.coordinator.log.segments import CorruptLogError, read_batches
from kcoord_wire.coordinator.log.visibility import Visibility
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.disk import Disk
from kcoord_wire.records import Record, RecordBatch


class Replay:
    """Reads files in order, and keeps the records that count.

    :ivar end: offset after the last batch
    :ivar size: bytes of the last file up to the end of that batch
    """

    def __init__(self, disk: Disk, record_format: RecordFormat) -> None:
        self.end = self.size = 0
        self._disk = disk
        self._format = record_format
        self._visible: Visibility[tuple[bytes, tuple[str, int]]] = Visibility(self._keep)
        self._name = ""
        self._kinds: set[bytes] = set()  # record types with the versions of their values

    @property
    def live(self) -> int:
        """Bytes of the records that count."""
        return sum(len(key) + len(kept.what[0]) for key, kept in self._visible.latest.items())

    def read(self, name: str, base: int, *, last: bool) -> None:
        """Read the next file. Errors as `read_batches`, and for a record that the log does not have."""
        if base != self.end:
            raise CorruptLogError(name, 0, f"begins at offset {base} where {self.end} is due")
        self.size = 0
        self._name = name
        for batch in read_batches(self._disk, name, self.end, last=last):
            try:
                self._visible.take(batch)
            except DecodeError as error:
                raise CorruptLogError(name, batch.position, str(error)) from error
            self.end = batch.last_offset + 1
            self.size = batch.position + batch.size

    def _keep(self, batch: RecordBatch, record: Record) -> tuple[bytes, tuple[str, int]] | None:
        key, value, at = record.key or b"", record.value, (self._name, batch.position)
        kind = key[:2] + (value or b"")[:2]
        if (
            kind not in self._kinds
        ):  # one value per (type, version) is decoded: superseded ones need no more, which halves the time
            self._decoded(record.key, value, at)
            self._kinds.add(kind)
        return None if value is None else (value, at)

    def records(self) -> tuple[list[LogRecord], list[PendingRecord], int]:
        """Return the last record of each key with a value, those of transactions that are open, and the number of those
        of unknown types."""
        decoded = [self._decoded(key, *kept.what) for key, kept in self._visible.latest.items()]
        known = [record for record in decoded if record is not None]
        pending = [(producer, self._decoded(key, *kept.what)) for producer, key, kept in self._visible.open_records()]
        return known, known_records(pending), len(decoded) - len(known)

    def _decoded(self, key: bytes | None, value: bytes | None, at: tuple[str, int]) -> LogRecord | None:
        try:
            return self._format.decode(key, value)
        except DecodeError as error:
            raise CorruptLogError(*at, str(error)) from error


def known_records(found: Iterable[tuple[Producer, LogRecord | None]]) -> list[PendingRecord]:
    """Return the records of open transactions, without those of unknown types."""
    return [PendingRecord(producer, record) for producer, record in found if record is not None]
