"""The recorded-frame format: frames of Kafka connections in append-only files, each record with its own checksums.

docs/recording-format.md has the layout, byte by byte, and how repeated openings are recognised.

Laws:

* Whatever a file holds, and wherever it is cut, every whole record is read, and every byte that is in no record is in
  one `Damage`. Only a sound header of another version raises.
* The file may grow while it is read: an incomplete record is a `Damage` with `at_end`; reading continues from there.
* Damage costs the records that it hit. A header has its own checksum, so that a damaged body ends where it should;
  otherwise the next record is found by its marker and checksums. (In a body whose header is lost, bytes that look like
  a record are taken for one.)
* Time is linear in the bytes: after many damaged records with sound headers their lengths are trusted, and their bodies
  are not searched again.
* A length is trusted only if the header's checksum is right and it is at most `MAX_BODY`; even then memory grows with
  the bytes that exist.
* A writer appends only to its own files; those of another writer, torn or whole, stay as they are. One writer has a
  folder at a time.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Literal, NamedTuple, Self

from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE
from kcoord_wire.extras import require

MAX_BODY: Final = DEFAULT_MAX_FRAME_SIZE
"""Largest body of a record, in bytes; a writer cuts a longer one."""

Direction = Literal["opened", "closed", "reset", "refused", "foreign", "request", "response"]
Side = Literal["client", "broker"]

_MAGIC: Final = b"\x89kcrec\r\n"
_VERSION: Final = 1
_FILE_HEADER: Final = struct.Struct(">8sHHIqqI")
FILE_HEADER_SIZE: Final = _FILE_HEADER.size
"""Bytes of a file before its first record."""
_MARKER: Final = b"\xf5KR\n"
_RECORD: Final = struct.Struct(">4sIIIqIBB2xI")
RECORD_HEADER_SIZE: Final = _RECORD.size
"""Bytes of a record before its body."""
_HEAD: Final = struct.Struct(">IIqIBB2x")  # what the header's own checksum is of
_FRONT: Final = struct.Struct(">4sI")
_CHECKSUM: Final = struct.Struct(">I")
_MARKS_REPEATS: Final = 1  # a flag of the file's header
_REPEATED: Final = 1  # a flag of an opening
_BROKEN_OFF, _NEVER_MADE, _FOREIGN = 8, 16, 32  # flags of a closing, as are those of the side that did so
_SIDES: Final[dict[Side | None, int]] = {None: 0, "client": 2, "broker": 4}
_BY: Final[dict[int, Side]] = {2: "client", 4: "broker"}
_BOTH_SIDES: Final = 6
_KINDS: Final[dict[Direction, int]] = {"request": 3, "response": 4}
_DIRECTIONS: Final[list[Direction | None]] = [None, "opened", "closed", "request", "response", *[None] * 251]
_CLOSING: Final = 2
_ENDS: Final = ("closed", "reset", "refused")
_NAME: Final = re.compile(r"frames-(\d{6,})\.kcrec")
_BLOCK: Final = 1 << 20
_LARGEST_READ: Final = 16 << 20
_DOUBT: Final = 16
_FLUSH_AT: Final = 256 << 10  # bytes that a writer holds before it writes by itself


class RecordingError(ValueError):
    """The file is a recording of an unknown version."""


class RecordingHeader(NamedTuple):
    """The header of a file.

    :ivar number: as in its name
    :ivar writer_ns: when its writer began, in nanoseconds since 1970: the same in all files of that writer
    :ivar began_ns: when this file began
    :ivar marks_repeats: whether repeated openings are marked, as every writer does since that flag exists
    """

    number: int
    writer_ns: int
    began_ns: int
    marks_repeats: bool


class Recorded(NamedTuple):
    """One record.

    :ivar position: of its first byte in the file
    :ivar time_ns: nanoseconds since 1970
    :ivar connection: its number, unique among the files of one writer
    :ivar direction: of a frame, or what happened to the connection
    :ivar body: a frame without its four bytes of size; of an opening, the connection's name in UTF-8; of a refusal,
        its name, a line break and the reason
    :ivar size: bytes of the frame on the wire: more than `body` has where the recorder cut it
    :ivar marked: whether the record is marked as a repeated opening; `is_repeated` includes files of older writers
    :ivar by: which side ended the connection; None where it is not known, as in files of older writers
    """

    position: int
    time_ns: int
    connection: int
    direction: Direction
    body: bytes
    size: int
    marked: bool = False
    by: Side | None = None

    @property
    def end(self) -> int:
        """The position behind it, where the next record begins."""
        return self.position + _RECORD.size + len(self.body)


class Damage(NamedTuple):
    """Bytes that are in no record.

    :ivar position: of the first of them in the file
    :ivar size: how many
    :ivar why: the reason, in words
    :ivar at_end: the file ends with them, and they may yet become a record if it is still being written
    """

    position: int
    size: int
    why: str
    at_end: bool = False


# ---- reading


def is_recording(first_bytes: bytes) -> bool:
    """Whether a file that begins with these bytes, at least eight, is a recording."""
    return first_bytes.startswith(_MAGIC)


def recording_files(folder: str | PathLike[str]) -> list[Path]:
    """The recordings of a folder in the order in which they were written; files of other names are ignored.

    :raises OSError: the folder cannot be read
    """
    numbered = [(int(match[1]), path) for path in Path(folder).iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def read_header(path: str | PathLike[str]) -> RecordingHeader | None:
    """Return the header of a file; None if it is damaged or incomplete.

    :raises RecordingError: the file is of another version
    """
    with Path(path).open("rb") as file:
        return _parse_header(file.read(_FILE_HEADER.size))


def is_repeated(record: Recorded, header: RecordingHeader | None) -> bool:
    """Whether a record is the opening of a connection that an earlier file of its writer has opened.

    :param header: of the record's file; None if it is damaged
    """
    if record.direction != "opened":
        return False
    if header is None or header.marks_repeats:
        return record.marked
    return header.began_ns != header.writer_ns and record.time_ns < header.began_ns


def read_recording(source: str | PathLike[str] | BinaryIO, *, start: int = 0) -> Iterator[Recorded | Damage]:
    """Yield the records of a file in order, and the damage between them.

    :param source: a path, or a file opened for reading bytes, which stays open; it is read from `start`, or if that is
        0 from its current position
    :param start: a position to begin at: the `end` of a record, or where a `Damage` begins; 0 for the file's header
    :raises RecordingError: the file is of another version
    :raises MissingLibraryError: the extra ``records`` is not installed
    """
    crc32c = _crc32c()
    unpack_from, header_size, directions, marker = _RECORD.unpack_from, _RECORD.size, _DIRECTIONS, _MARKER
    with Path(source).open("rb") if isinstance(source, (str, PathLike)) else nullcontext(source) as file:
        if start:
            file.seek(start)
        window = _Window(file, start, crc32c)
        found: Damage | int | None = start if start else window.pass_header()
        while found is not None:
            if isinstance(found, Damage):
                yield found
                if found.at_end:
                    return
                position = found.position + found.size
            else:
                position = found
            data, base = window.data, window.base
            at, filled = position - base, len(data)
            while (body_at := at + header_size) <= filled:
                mark, checksum, length, size, time_ns, connection, kind, flags, _ = unpack_from(data, at)
                end = body_at + length
                direction = directions[kind]
                if mark != marker or end > filled or direction is None or crc32c(data[at + 8 : end]) != checksum:
                    break
                body = data[body_at:end]
                if kind != _CLOSING:
                    yield Recorded(base + at, time_ns, connection, direction, body, size, flags & _REPEATED != 0)
                else:
                    ended, by = _ending(flags)
                    yield Recorded(base + at, time_ns, connection, ended, body, size, False, by)
                at = end
            found = window.resolve(base + at)


def scan_recording(source: str | PathLike[str] | BinaryIO, start: int, limit: int) -> tuple[int, int]:
    """Return how far a file can be read now.

    :param start: as for `read_recording`
    :param limit: the most records to pass
    :return: the position behind the last whole record, or behind damage that is not `at_end`; and how many of both
        were passed. Reading from `start` to that position gives the same ones, now and later
    """
    end, count = start, 0
    if limit > 0:
        for found in read_recording(source, start=start):
            if isinstance(found, Damage):
                if found.at_end:
                    break
                end = found.position + found.size
            else:
                end = found.end
            count += 1
            if count == limit:
                break
    return end, count


def names_at(source: str | PathLike[str] | BinaryIO, position: int) -> dict[int, str]:
    """Return the names of the connections that are open at a position, by number, for a reader that starts there."""
    names: dict[int, str] = {}
    for found in read_recording(source):
        if found.position >= position:
            break
        if isinstance(found, Recorded):
            if found.direction == "opened":
                names[found.connection] = found.body.decode("utf-8", "replace")
            elif found.direction in _ENDS:
                names.pop(found.connection, None)
    return names


def refusal(body: bytes) -> tuple[str, str]:
    """Return the name and the reason in the body of a refusal."""
    name, _, reason = body.decode("utf-8", "replace").partition("\n")
    return name, reason


def _ending(flags: int) -> tuple[Direction, Side | None]:
    if flags & _NEVER_MADE:
        return "refused", None
    if flags & _FOREIGN:
        return "foreign", _BY.get(flags & _BOTH_SIDES)
    return "reset" if flags & _BROKEN_OFF else "closed", _BY.get(flags & _BOTH_SIDES)


def _parse_header(data: bytes) -> RecordingHeader | None:
    if len(data) < _FILE_HEADER.size or not is_recording(data):
        return None
    _, version, flags, number, writer_ns, began_ns, checksum = _FILE_HEADER.unpack_from(data)
    if _crc32c()(data[: _FILE_HEADER.size - 4]) != checksum:
        return None
    if version != _VERSION:
        raise RecordingError(f"a recording of version {version}; only version {_VERSION} is known")
    return RecordingHeader(number, writer_ns, began_ns, flags & _MARKS_REPEATS != 0)


def _crc32c() -> Callable[..., int]:
    function: Callable[..., int] = require("crc32c", "records", "the checksum of recorded frames").crc32c
    return function


class _Window:
    """The loaded bytes of a file, and the decision about places where no whole record follows in them.

    :ivar data: bytes of the file
    :ivar base: position of the first of them
    """

    def __init__(self, file: BinaryIO, start: int, crc32c: Callable[..., int]) -> None:
        self.data = b""
        self.base = start
        self._doubted = 0  # bytes of records whose checksum was wrong
        self._file = file
        self._crc32c = crc32c

    def pass_header(self) -> Damage | int | None:
        """Read the file's header; return where records begin, or the damage in their place."""
        have = self._hold(0, _FILE_HEADER.size)
        if not have:
            return None
        if _parse_header(self.data) is not None:
            return _FILE_HEADER.size
        if have < _FILE_HEADER.size and _MAGIC.startswith(self.data[: len(_MAGIC)]):
            return Damage(0, have, "the file ends within its header", at_end=True)
        lost = self._search(0, 0, "the file's header is damaged, or this is not a recording")
        return lost if lost.size else 0  # a file of which only the header is missing

    def resolve(self, position: int) -> Damage | int | None:
        """Decide about a place where the loaded bytes end: a whole record (its position), damage, or the end (None)."""
        have = self._hold(position, _RECORD.size)
        if not have:
            return None
        why = self._header_fault(position)
        if why is not None:
            return self._search(position, position + 1, why)
        if have < _RECORD.size:
            return Damage(position, have, "the file ends within a record's header", at_end=True)
        _, checksum, length, _, _, _, kind, _, _ = _RECORD.unpack_from(self.data, position - self.base)
        size = _RECORD.size + length
        have = self._hold(position, size)
        if have < size:
            return Damage(position, have, f"the file ends within a record, {size - have} bytes early", at_end=True)
        at = position - self.base
        if self._crc32c(self.data[at + _FRONT.size : at + size]) != checksum:
            why = "the checksum of a record is wrong"
        elif _DIRECTIONS[kind] is None:
            why = f"a record of unknown kind {kind}"
        else:
            return position
        self._hold(position, size + _RECORD.size)
        self._doubted += size
        if self._header_fault(position + size) is None or self._doubted > _DOUBT * position + _LARGEST_READ:
            return Damage(position, size, why)
        return self._search(position, position + 1, why)

    def _search(self, damaged: int, position: int, why: str) -> Damage:
        """Return the damage from `damaged` to the first sound header of a record at or behind `position`."""
        while True:
            have = self._hold(position, len(_MARKER))
            at = self.data.find(_MARKER, position - self.base)
            if at >= 0:
                position = self.base + at
                if self._hold(position, _RECORD.size) >= _RECORD.size and self._header_fault(position) is None:
                    return Damage(damaged, position - damaged, why)
                position += 1
            elif have < len(_MARKER):
                return Damage(damaged, position + have - damaged, why, at_end=True)
            else:
                position = self.base + len(self.data) - len(_MARKER) + 1

    def _header_fault(self, position: int) -> str | None:
        """Return why no record begins at a place; None if its header is sound, or so far as it exists."""
        at = position - self.base
        if not _MARKER.startswith(self.data[at : at + len(_MARKER)]):
            return "no record begins here"
        if at + _RECORD.size <= len(self.data):
            _, _, length, _, _, _, _, _, checksum = _RECORD.unpack_from(self.data, at)
            if self._crc32c(self.data[at + _FRONT.size : at + _FRONT.size + _HEAD.size]) != checksum:
                return "a record's header is damaged"
            if length > MAX_BODY:
                return f"a record claims {length} bytes, more than {MAX_BODY}"
        return None

    def _hold(self, position: int, size: int) -> int:
        """Load at least `size` bytes from `position` on, fewer only where the file ends; return how many there are."""
        have = self.base + len(self.data) - position
        if have >= size:
            return have
        parts = [self.data[position - self.base :]]
        while have < size:
            block = self._file.read(min(max(size - have, _BLOCK), _LARGEST_READ))
            if not block:
                break
            parts.append(block)
            have += len(block)
        self.data = b"".join(parts)
        self.base = position
        return have


# ---- writing


@dataclass(slots=True)
class Batch:
    """Records of one file that are not written yet.

    :ivar number: of the file
    :ivar pieces: the bytes to append, in order
    """

    number: int
    pieces: list[bytes] = field(default_factory=list)


def _lock(folder: Path) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            raise BlockingIOError(error.errno, "another recorder writes to this folder", str(folder)) from None
        raise
    return fd


def _last_number(folder: Path) -> int:
    return max((int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))), default=0)


class RecordingWriter:
    """Writes frames into files of a folder, which it creates if necessary. The first file exists at once.

    Records are held until `flush`, or until there are `flush_at` bytes of them. A caller that must not wait for a disk
    calls `take`, and passes the result to `write` in another thread.

    :param folder: exclusively for this writer
    :param max_file_bytes: the next file begins before a file becomes larger, unless one record alone is
    :param max_file_seconds: the next file begins with the first record that is so much later than the start of the file
    :param fsync: make each flush durable
    :param flush_at: bytes held before it writes by itself; None leaves that to the caller
    :ivar folder: of its files
    :ivar records: written or held, since it began
    :raises OSError: the folder cannot be used, or another writer has it
    :raises MissingLibraryError: the extra ``records`` is not installed
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        max_file_bytes: int = 256 << 20,
        max_file_seconds: float | None = None,
        fsync: bool = False,
        flush_at: int | None = _FLUSH_AT,
    ) -> None:
        self.folder: Path = Path(folder)
        self.records: int = 0
        self._crc32c = _crc32c()
        self._max_file_bytes = max_file_bytes
        self._max_file_ns = None if max_file_seconds is None else int(max_file_seconds * 1e9)
        self._fsync = fsync
        self._flush_at = flush_at
        self._open: dict[int, tuple[bytes, int]] = {}  # name and time of the connections
        self._failure: OSError | None = None
        self._fd = -1
        self._fd_number = 0
        self._written = 0  # bytes of the file that is open
        self.folder.mkdir(parents=True, exist_ok=True)
        self._folder_fd = _lock(self.folder)
        self._writer_ns = self._began_ns = time.time_ns()
        try:
            self._batches = [Batch(_last_number(self.folder) + 1)]
            self._pieces = self._batches[-1].pieces
            self._taken = self._held = self._file_size = 0
            self._append_header(self._began_ns)
            self.flush()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The file that the next record goes into."""
        return self.folder / f"frames-{self._batches[-1].number:06}.kcrec"

    @property
    def held(self) -> int:
        """Bytes not written yet."""
        return self._held

    @property
    def size(self) -> int:
        """Bytes written or held, since it began."""
        return self._taken + self._held

    def opened(self, connection: int, name: str, time_ns: int) -> None:
        """Record that a connection begins.

        :param connection: its number, which no other connection of this writer had; 0 to 2**32-1
        """
        body = name.encode()
        self._append(connection, 1, body, time_ns, len(body))
        self._open[connection] = body, time_ns

    def closed(self, connection: int, time_ns: int, *, by: Side | None = None, reset: bool = False) -> None:
        """Record that a connection ends.

        :param by: the side that ended it; None where that is not known
        :param reset: it was broken off
        """
        self._append(connection, _CLOSING, b"", time_ns, 0, _SIDES[by] | (_BROKEN_OFF if reset else 0))
        self._open.pop(connection, None)

    def refused(self, connection: int, name: str, reason: str, time_ns: int) -> None:
        """Record that a client's connection to a broker could not be made.

        :param connection: its number, which no other connection of this writer had
        :param reason: in words
        """
        body = f"{name}\n{reason}".encode()
        self._append(connection, _CLOSING, body, time_ns, len(body), _NEVER_MADE)

    def foreign(self, connection: int, by: Side, reason: str, time_ns: int) -> None:
        """Record that a side sends what is no frame, so that nothing more is recorded of the connection but its end.

        :param reason: in words
        """
        body = reason.encode()
        self._append(connection, _CLOSING, body, time_ns, len(body), _SIDES[by] | _FOREIGN)

    def frame(
        self, connection: int, direction: Direction, body: bytes, time_ns: int, *, size: int | None = None
    ) -> None:
        """Record a frame of a connection that was opened.

        :param body: without the four bytes of size
        :param size: bytes it had on the wire, if `body` is only the beginning
        :raises OSError: it wrote by itself, and failed
        """
        self._append(connection, _KINDS[direction], body, time_ns, len(body) if size is None else size)

    def flush(self) -> None:
        """Write what is held.

        :raises OSError: as `write`
        """
        self.write(self.drain())

    def drain(self) -> list[Batch]:
        """Return what is held, to be passed to `write`; it is not held any more."""
        taken, self._batches = self._batches, [Batch(self._batches[-1].number)]
        self._pieces = self._batches[-1].pieces
        self._taken += self._held
        self._held = 0
        return taken

    def write(self, batches: list[Batch]) -> None:
        """Write what was taken, in that order, in one thread at a time.

        :raises OSError: it cannot be written. The file is cut back to its last whole record, and every further call
            raises the same
        """
        if self._failure is not None:
            raise self._failure
        try:
            for batch in batches:
                if batch.number != self._fd_number:
                    self._open_file(batch.number)
                self._write_all(batch.pieces)
                if self._fsync and batch.pieces:
                    os.fsync(self._fd)
        except OSError as error:
            self._failure = error
            raise

    def close(self) -> None:
        """Write what is held and close the file; a second call does nothing.

        :raises OSError: as `write`
        """
        try:
            if self._failure is None and self._fd >= 0:
                self.flush()
        finally:
            for fd in (self._fd, self._folder_fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._folder_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _append(self, connection: int, kind: int, body: bytes, time_ns: int, size: int, flags: int = 0) -> None:
        whole = _RECORD.size + len(body)
        late = self._max_file_ns is not None and time_ns - self._began_ns >= self._max_file_ns
        if (late or self._file_size + whole > self._max_file_bytes) and self._file_size > self._overhead:
            self._batches.append(Batch(self._batches[-1].number + 1))
            self._pieces = self._batches[-1].pieces
            self._began_ns = time_ns
            self._append_header(time_ns)
        self._append_record(connection, kind, body, time_ns, size, flags)
        self.records += 1
        if self._flush_at is not None and self._held >= self._flush_at:
            self.flush()

    def _append_header(self, time_ns: int) -> None:
        number = self._batches[-1].number
        header = _FILE_HEADER.pack(_MAGIC, _VERSION, _MARKS_REPEATS, number, self._writer_ns, time_ns, 0)[:-4]
        self._pieces.append(header + _CHECKSUM.pack(self._crc32c(header)))
        self._held += _FILE_HEADER.size
        self._file_size = _FILE_HEADER.size
        for connection, (name, opened_ns) in self._open.items():
            self._append_record(connection, 1, name, opened_ns, len(name), _REPEATED)
        self._overhead = self._file_size  # so that repeated openings alone do not fill a file

    def _append_record(self, connection: int, kind: int, body: bytes, time_ns: int, size: int, flags: int = 0) -> None:
        if len(body) > MAX_BODY or type(body) is not bytes:
            body = bytes(body[:MAX_BODY])
        crc32c = self._crc32c
        head = _HEAD.pack(len(body), size, time_ns, connection, kind, flags)
        of_head = crc32c(head)
        rest = _CHECKSUM.pack(of_head)
        record = _FRONT.pack(_MARKER, crc32c(body, crc32c(rest, of_head))) + head + rest + body
        self._pieces.append(record)
        self._held += len(record)
        self._file_size += len(record)

    def _open_file(self, number: int) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        path = self.folder / f"frames-{number:06}.kcrec"
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._fd_number = number
        self._written = 0
        if self._fsync:
            os.fsync(self._folder_fd)

    def _write_all(self, pieces: list[bytes]) -> None:
        left = memoryview(b"".join(pieces))
        written = 0
        try:
            while written < len(left):  # a disk that is almost full takes only a part
                written += os.write(self._fd, left[written:])
        except OSError:
            whole = 0  # whole records, which a reader may have seen already
            for piece in pieces:
                if whole + len(piece) > written:
                    break
                whole += len(piece)
            with suppress(OSError):
                os.ftruncate(self._fd, self._written + whole)
            raise
        self._written += written
