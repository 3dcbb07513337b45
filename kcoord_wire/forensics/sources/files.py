"""Which files there are to read, the kind of each, their unpacked content, and how far they are read.

Laws:

* The first bytes of a file's content decide its kind, packed with gzip or not. A log segment has no mark, so its name
  may decide as well, without the ``.gz`` of a packed file.
* A path named by the user must be readable: otherwise a `SourceError` says what it looks like and what to do. In a
  folder, only files named like captures, recordings, segments or logs count; damage in them is reported when they are
  read. Of other topics' segments, those of a coordination topic of Marshal count, which their text shows.
* Text counts as the log of a broker or client where a line about a group is in its first `_SEARCHED_TEXT` bytes.
* The first bytes of a file decide whether it is packed with gzip, not its name.
* Memory holds one piece of the content. It is unpacked to a temporary file, because readers go back in it, as far as
  the temporary folder has room above `RESERVE`, so that a small file that unpacks to terabytes fills no disk.
* A packed file that is cut short or damaged yields what comes before that place, and a fault that names the place.
* What a stop leaves unread is a loss, of each source it concerns, so that no result looks complete that is not.
* tcpdump (``-C``, ``-G``, ``-W``) and dumpcap write one capture to several files, which are read as one. Files in one
  folder are such a capture if their names are equal but for a number or time (`in_captures`), and if they have the same
  format and link type. The times of their first packets order them; an empty or damaged one is behind the one before it
  by name. One that does not follow in time begins another capture (`sources.frames`). All other files are sources of
  their own.

Source: RFC 1952 (a file may have several members, section 2.2).
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import struct
import tempfile
import zlib
from codecs import getincrementaldecoder
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import glob, has_magic
from itertools import pairwise
from pathlib import Path, PurePath
from typing import IO, BinaryIO, Final, Literal, Protocol, TypeVar, cast

from kcoord_wire.capture.pcap import (
    HEAD_BYTES,
    PCAP_MAGIC,
    SECTION_MAGIC,
    CaptureError,
    CaptureHead,
    follows,
    read_end,
    read_head,
)
from kcoord_wire.forensics.model import Loss
from kcoord_wire.recorder.recording import is_recording

RESERVE: Final = 512 << 20
"""Bytes of the temporary folder's disk that are left free."""

_MAGIC: Final = b"\x1f\x8b"
_PIECE: Final = 1 << 20
_PACKED_PIECE: Final = 4096  # damage costs the content of one such piece before it
_FAULTS: Final = (EOFError, gzip.BadGzipFile, zlib.error)


@dataclass(slots=True)
class Content:
    """Unpacked content.

    :ivar path: a file that has it: the source itself where that is not packed
    :ivar fault: why it ends early, in a sentence; None if it does not
    :ivar lost: packed bytes behind that place
    """

    path: Path
    fault: str | None = None
    lost: int = 0


class File(Protocol):
    """What the kind of a file is found by; `pathlib.Path` has it."""

    @property
    def name(self) -> str: ...

    @property
    def parent(self) -> PurePath: ...

    def is_file(self) -> bool: ...

    def open(self, mode: Literal["rb"]) -> IO[bytes]: ...


def plain_name(path: File) -> str:
    """Return the name of a file without the ``.gz`` of packed ones."""
    return path.name.removesuffix(".gz")


def first_bytes(path: File, count: int) -> bytes:
    """Return the first bytes of a file's content, fewer where it ends or is damaged.

    :raises OSError: it cannot be read
    """
    with path.open("rb") as file:
        start = file.read(count)
        if not start.startswith(_MAGIC):
            return start
        file.seek(0)
        content = bytearray()
        with gzip.GzipFile(fileobj=cast(BinaryIO, _Pieces(file))) as packed:
            try:
                while len(content) < count and (piece := packed.read1(count - len(content))):
                    content += piece
            except _FAULTS:
                pass
        return bytes(content)


def is_packed(path: Path) -> bool:
    """Whether a file is packed with gzip.

    :raises OSError: it cannot be read
    """
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


@contextmanager
def unpacked(path: Path) -> Iterator[Content]:
    """Yield the content of a file; a temporary file is deleted afterwards.

    :raises OSError: it cannot be read, or the temporary folder cannot be written
    """
    with path.open("rb") as file:
        is_packed = file.read(len(_MAGIC)) == _MAGIC
        if is_packed:
            file.seek(0)
            with tempfile.NamedTemporaryFile(prefix="kcoord-") as place:
                fault = _unpack(file, place)
                place.flush()
                lost = os.fstat(file.fileno()).st_size - file.tell()
                yield Content(Path(place.name), fault, lost if fault else 0)
    if not is_packed:
        yield Content(path)


def _unpack(file: BinaryIO, place: IO[bytes]) -> str | None:
    """Unpack into `place`; return why the content ends early, None if it does not."""
    folder = tempfile.gettempdir()
    size = 0
    with gzip.GzipFile(fileobj=cast(BinaryIO, _Pieces(file))) as packed:
        try:
            while piece := packed.read1(_PIECE):
                if shutil.disk_usage(folder).free < RESERVE + len(piece):
                    return (
                        f"{folder} has no room for more than {size} bytes of its content (TMPDIR names another folder)"
                    )
                place.write(piece)
                size += len(piece)
        except EOFError:
            return f"the gzip file is cut short at byte {file.tell()}"
        except (gzip.BadGzipFile, zlib.error) as error:
            return f"the gzip file is damaged before byte {file.tell()}: {error}"
    return None


class _Pieces:
    """As much of a `BinaryIO` as `GzipFile` needs for reading: pieces of `_PACKED_PIECE` bytes at most."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        return self._file.read(min(size, _PACKED_PIECE) if size >= 0 else _PACKED_PIECE)


Kind = Literal["pcap", "recording", "log", "text"]

_SUFFIXES: Final[dict[str, Kind]] = {".pcap": "pcap", ".pcapng": "pcap", ".cap": "pcap", ".kcrec": "recording"}
_KNOWN_LOGS: Final = re.compile(r"(?:__consumer_offsets|__marshal)-\d+")
_SEGMENT: Final = re.compile(r"\d{20}\.log")
_OTHER_SEGMENT: Final = re.compile(r"(?!__consumer_offsets-|__marshal-).+-\d+")
_TEXT: Final = re.compile(r".*\.(?:log|out|txt|json|jsonl)(?:[.-][\w.-]*)?")  # server.log.2024-05-01-12, too
_SNIFFED: Final = 24
_SEARCHED_TEXT: Final = 16 << 20
_SEARCHED: Final = 65_536  # bytes of a segment in which the first message of Marshal would be
_BATCH_START: Final = struct.Struct(">qiiB")  # offset, size, leader epoch or checksum, magic
_BATCH_SIZES: Final = range(14, (1 << 30) + 1)  # from a message of version 0 with neither key nor value
_MAGICS: Final = range(3)

_FOREIGN: Final = (  # first bytes, what they are, what to do
    (b"\x1f\x8b", "a gzip file within a gzip file", "unpack it first (gunzip)"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "unpack it first (unzstd)"),
    (b"\xfd7zXZ", "an xz file", "unpack it first (unxz)"),
    (b"BZh", "a bzip2 file", "unpack it first (bunzip2)"),
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"snoop\x00\x00\x00", "a snoop capture", "convert it (editcap -F pcapng)"),
    (b"PAR1", "a Parquet file", "name captures, recordings or log segments"),
    (b"\xff\xd8\xff", "a JPEG picture", "name captures, recordings or log segments"),
    (b"\x89PNG", "a PNG picture", "name captures, recordings or log segments"),
    (b"%PDF", "a PDF document", "name captures, recordings or log segments"),
    (b"\x7fELF", "a program", "name captures, recordings or log segments"),
)


class SourceError(ValueError):
    """A path cannot be read as a source. The text names it and says what it looks like and what to do."""


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """A file to read.

    :ivar capture: the path of the first file of the rotated capture that it is of; None where it is none
    """

    path: Path
    kind: Kind
    capture: str | None = None


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """Return the kind of a file.

    :raises SourceError: it is a folder, empty, unreadable, or of another kind
    """
    path = Path(path)
    if path.is_dir():
        raise SourceError(f"{path} is a folder: find_sources looks for files in it")
    return kind_of_file(path)


def kind_of_file(path: File) -> Kind:
    """Return the kind of a file, wherever it is.

    :raises SourceError: it is empty, unreadable, or of another kind
    """
    try:
        start = first_bytes(path, _SNIFFED)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from None
    if not start:
        raise SourceError(f"{path} is empty: nothing was captured or logged")
    if start[:4] == SECTION_MAGIC or start[:4] in PCAP_MAGIC:
        return "pcap"
    if is_recording(start):
        return "recording"
    if _SEGMENT.fullmatch(plain_name(path)) or _is_batch(start):
        return "log"
    for lead, what, advice in _FOREIGN:
        if start.startswith(lead):
            raise SourceError(f"{path} is {what}, not a capture, recording or log segment: {advice}")
    if _has_lines(path):
        return "text"
    look = "text" if _is_text(start) else f"something that begins with {start[:8].hex(' ')}"
    raise SourceError(
        f"{path} is {look}, not a capture (pcap, pcapng), recording (.kcrec), log segment of __consumer_offsets, nor a"
        " broker's or client's log with a line about a group"
    )


def _has_lines(path: File) -> bool:
    from kcoord_wire.forensics.lines.extraction import holds_lines

    return holds_lines(first_bytes(path, _SEARCHED_TEXT))


def _is_batch(start: bytes) -> bool:
    """Whether a file begins with an offset, a size and a known magic."""
    if len(start) < _BATCH_START.size:
        return False
    offset, size, _, magic = _BATCH_START.unpack_from(start)
    return offset >= 0 and size in _BATCH_SIZES and magic in _MAGICS


def _is_text(start: bytes) -> bool:
    try:
        text = getincrementaldecoder("utf-8")().decode(start)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\t\r\n" for character in text)


def find_sources(paths: Sequence[str | os.PathLike[str]], *, recursive: bool = True) -> list[Source]:
    """Return the files that paths stand for: files, folders with everything below, patterns (``captures/*.pcap``).

    In a folder, the files ``*.pcap``, ``*.pcapng``, ``*.cap`` and ``*.kcrec`` count, with or without a number appended,
    and the segments (20 digits ``.log``) in folders ``__consumer_offsets-N`` and ``__marshal-N`` or in the folder
    itself, and all with text of Marshal, and logs with a line about a group (``*.log``, ``*.txt``, ``*.json`` and the
    like, rotated ones too); each with or without ``.gz``. Empty segments are left out.

    :param recursive: whether files in the folders of a folder count
    :return: each file once, ordered by path, with numbers in a path compared by value; the files of a rotated capture
        follow each other, ordered by time
    :raises SourceError: a path does not exist, or contains nothing that can be read
    """
    found = find_files(paths, recursive=recursive)
    return [
        replace(found[index], capture=None if first is None else str(found[first].path))
        for index, first in in_captures([(source.path, source.kind) for source in found])
    ]


def find_files(paths: Sequence[str | os.PathLike[str]], *, recursive: bool) -> list[Source]:
    """Return what `find_sources` returns, each file by itself."""
    found: dict[Path, Source] = {}
    for given in paths:
        for path in _expand(given):
            sources = list(_in_folder(path, recursive)) if path.is_dir() else [Source(path, kind_of(path))]
            if not sources:
                raise SourceError(
                    f"{path} has no source in it: no *.pcap, *.pcapng, *.cap, *.kcrec, no segment in a folder"
                    " __consumer_offsets-N, and no *.log with a line about a group"
                )
            for source in sources:
                found.setdefault(source.path.resolve(), source)
    return sorted(found.values(), key=lambda source: natural_order(source.path))


def _expand(given: str | os.PathLike[str]) -> list[Path]:
    path = Path(given)
    if path.exists():
        return [path]
    matches = [Path(match) for match in glob(os.fspath(given), recursive=True)] if has_magic(os.fspath(given)) else []
    if not matches:
        what = "matches no file" if has_magic(os.fspath(given)) else "does not exist"
        raise SourceError(f"{given} {what}")
    return matches


def _in_folder(folder: Path, recursive: bool) -> Iterator[Source]:
    top = folder.resolve().name
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            kind = kind_in_folder(path, top if Path(parent) == folder else None)
            if kind is not None and (kind != "log" or path.stat().st_size):
                yield Source(path, kind)
        if not recursive:
            break


def kind_in_folder(path: File, top: str | None) -> Kind | None:
    """Return the kind of a file in a folder that the user named; None if it does not count.

    :param top: the name of that folder if the file is directly in it
    """
    plain = plain_name(path)
    kind = _SUFFIXES.get(PurePath(plain).suffix.rstrip("0123456789"))  # tcpdump -C numbers its files: trace.pcap1
    if kind is not None:
        return kind
    if _SEGMENT.fullmatch(plain):
        folder = path.parent.name if top is None else top
        is_known = _KNOWN_LOGS.fullmatch(folder) or (top is not None and not _OTHER_SEGMENT.fullmatch(top))
        return "log" if is_known or _has_marshal_text(path) else None
    return "text" if _TEXT.fullmatch(plain) and path.is_file() and _has_lines(path) else None


def _has_marshal_text(path: File) -> bool:
    from kcoord_wire.forensics.marshal.reader import holds_marshal_text

    return holds_marshal_text(first_bytes(path, _SEARCHED))


def natural_order(path: str | os.PathLike[str]) -> list[tuple[int, int | str]]:
    """Return a key by which paths are ordered, with numbers in them compared by value."""
    parts = re.split(r"(\d+)", os.fspath(path))
    return [(1, int(part)) if part.isdigit() else (0, part) for part in parts]


_BEHIND: Final = re.compile(r"(\.(?:pcap|pcapng|cap))\d+$")  # tcpdump -C: trace.pcap, trace.pcap1, trace.pcap2
_DAY, _HOUR = r"\d{4}[-_.]?\d\d[-_.]?\d\d", r"\d\d[-_.:]?\d\d(?:[-_.:]?\d\d)?Z?"
_BEFORE: Final = re.compile(  # dumpcap: trace_00001_20240501120000.pcapng; tcpdump -G: as the user likes
    rf"[-_.]?(?:(?:\d{{5,}}[-_.])?{_DAY}(?:[-_.T]?{_HOUR})?(?:[-_.]\d{{5,}})?|\d+)(?=\.(?:pcap|pcapng|cap)$)"
)
_COUNT: Final = re.compile(  # tcpdump -C; dumpcap, which has two orders
    r"\.(?:pcap|pcapng|cap)(\d+)$|_(\d{5,})_\d{14}\.(?:pcap|pcapng|cap)$|_\d{14}_(\d{5,})\.(?:pcap|pcapng|cap)$"
)


_TIMED: Final = re.compile(
    rf"(?:{_DAY}[-_.T]?{_HOUR}|[-_.]\d{{10}})\.(?:pcap|pcapng|cap)$"
)  # tcpdump -G; %s is ten digits

APART_NS: Final = 30_000_000_000
"""Between two captures. A group sends ten heartbeats meanwhile."""

_START: Final = 4096
_ENDS: Final = (16 << 10, HEAD_BYTES)  # bytes in which the last packets are looked for


def count_in(path: str) -> int | None:
    """Return the number that tcpdump -C or dumpcap has given a file; None where its name has none."""
    found = _COUNT.search(path.removesuffix(".gz"))
    return None if found is None else int(found[found.lastindex or 0])


def _stems(names: Sequence[str]) -> dict[str, str]:
    """Return what is left of each name without the number or time by which files of one capture differ."""
    numbered = {_BEHIND.sub(r"\1", name) for name in names if _BEHIND.search(name)}
    found = {}
    for name in names:
        base = _BEHIND.sub(r"\1", name)
        found[name] = base if base in numbered else _BEFORE.sub("", base)
    return found


def in_captures(files: Sequence[tuple[File, Kind]]) -> list[tuple[int, int | None]]:
    """Return the index of each file, and of the first file of the rotated capture that it is of; None where it is none.

    :return: the files of a rotated capture together, in the order of their times
    """
    return [(index, unit[0] if len(unit) > 1 else None) for unit in _rotated(files) for index in unit]


def _rotated(files: Sequence[tuple[File, Kind]]) -> list[list[int]]:
    """Return the indices of files: those of a rotated capture together, in the order of their times; others alone.

    :return: ordered by the first index of each
    """
    in_folders: dict[PurePath, list[int]] = defaultdict(list)
    units: list[list[int]] = []
    for index, (file, kind) in enumerate(files):
        if kind == "pcap":
            in_folders[file.parent].append(index)
        else:
            units.append([index])
    for inside in in_folders.values():
        names = {index: plain_name(files[index][0]) for index in inside}
        stems = _stems(list(names.values()))
        alike: dict[str, list[int]] = defaultdict(list)
        for index in inside:
            alike[stems[names[index]]].append(index)
        for members in alike.values():
            is_marked = any(count_in(names[index]) is not None or _TIMED.search(names[index]) for index in members)
            for unit in _of_one_form(files, members) if len(members) > 1 else [members]:
                units += [unit] if is_marked else _that_follow(files, unit)
    return sorted(units, key=min)


def _of_one_form(files: Sequence[tuple[File, Kind]], members: Sequence[int]) -> Iterator[list[int]]:
    """Yield the files of one format and link type together; one that shows no packet is with the one before it."""
    forms: dict[tuple[bytes, int], list[tuple[int, int]]] = defaultdict(list)
    before: CaptureHead | None = None
    for index in members:
        before = _head_of(files[index][0]) or before
        if before is None:
            yield [index]
        else:
            forms[before.magic, before.link_type].append((before.first_ns, index))
    for found in forms.values():
        yield [index for _, index in sorted(found)]


def _that_follow(files: Sequence[tuple[File, Kind]], unit: Sequence[int]) -> Iterator[list[int]]:
    """Yield what begins where the file before it ends: a number alone may as well be that of a host."""
    held = list(unit[:1])
    for before, index in pairwise(unit):
        head, end_ns = _head_of(files[index][0]), _end_of(files[before][0])
        if head is None or end_ns is None or not follows(end_ns, head.first_ns, APART_NS):
            yield held
            held = []
        held.append(index)
    yield held


def _end_of(file: File) -> int | None:
    """Return when a capture ends; None where that is not known, as of a packed one."""
    try:
        with file.open("rb") as opened:
            head = opened.read(_START)
            size = opened.seek(0, os.SEEK_END)
            for length in _ENDS if not head.startswith(_MAGIC) else ():
                opened.seek(max(len(head), (size - length) & ~3))
                if (end_ns := read_end(head, opened.read())) is not None:
                    return end_ns
    except (OSError, CaptureError):
        pass  # reading the file reports the error
    return None


def _head_of(file: File) -> CaptureHead | None:
    try:
        return read_head(first_bytes(file, HEAD_BYTES))
    except OSError:
        return None  # reading the file reports the error


Progress = Callable[[str, int, int], None]
"""Called with the source, how many bytes of all sources are done, and how many there are."""

Stop = Callable[[], bool]
"""Asked while sources are read: whether to stop, and to analyse what was read."""


class _Captured(Protocol):
    @property
    def capture(self) -> str | None: ...


_C = TypeVar("_C", bound=_Captured)


def units(sources: Sequence[_C]) -> list[list[_C]]:
    """Return the sources, those of a rotated capture together, which are neighbours."""
    found: list[list[_C]] = []
    for source in sources:
        if found and source.capture is not None and source.capture == found[-1][0].capture:
            found[-1].append(source)
        else:
            found.append([source])
    return found


class ReadProgress:
    """Passes on how far reading is; the sources are read in their order.

    :ivar total: bytes of all sources
    :ivar losses: a row for each source of which a stop left something unread
    """

    def __init__(self, sources: Sequence[Source], progress: Progress | None, stop: Stop | None) -> None:
        self._sizes = {source.path: source.path.stat().st_size for source in sources}
        self.total = sum(self._sizes.values())
        self.losses: list[Loss] = []
        self._progress = progress
        self._stop = stop
        self._before = self._size = 0
        self._name = self._path = ""

    def begin(self, source: Source) -> bool:
        """Note that a source is read next; return whether to read it."""
        self._before += self._size
        self._name, self._path, self._size = source.path.name, str(source.path), self._sizes[source.path]
        return self.goes_on(0, 1)

    def goes_on(self, done: int, size: int) -> bool:
        """Take in how many bytes of the content of the source are read; return whether to go on."""
        if self._stop is not None and self._stop():
            left = self._size - self._size * done // max(1, size)
            share = f"{left / max(1, self._size):.0%} of this source"
            self.losses.append(
                Loss(self._path, done, f"reading was stopped here on request: {share} was not read", left)
            )
            return False
        if self._progress is not None:
            self._progress(self._name, self._before + self._size * done // max(1, size), self.total)
        return True

    def finish(self) -> None:
        """Note that reading has ended."""
        if self._progress is not None:
            self._progress("", self.total, self.total)
