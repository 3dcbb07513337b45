"""Where the files of a source are: in folders, and in stores that pyarrow reads.

    find_places(["captures/", "file:/data/a.pcap", "s3://bucket/captures/2024-*/"])

Laws:

* A path without a scheme, or with ``file:``, is a local one, and its files are read in place. Of `SCHEMES`, the others
  name a store: a task copies the file that it reads into its temporary folder, as far as that has room above `RESERVE`,
  and deletes the copy when it has read it. Readers map their files, and go back in them.
* The same rules as for local files decide which files count (`kcoord_wire.forensics.sources.files`). ``*``, ``?`` and
  ``[ab]`` stand for names within a folder, ``**`` for any folders.
* Characters stand for themselves, as in Spark's paths: ``%20`` is not a space.
* Credentials come from the store's own places (environment, profile, role of the machine), or are in the URI. What is
  shown of a URI, in rows and errors, has neither its user and password nor its query.

Source: the URIs of `pyarrow.fs.FileSystem.from_uri`; a query has its options, such as ``?region=`` and
``endpoint_override=``.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache
from glob import has_magic
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Literal, cast
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from kcoord_wire.capture.lanes import LANES
from kcoord_wire.forensics.sources.files import (
    RESERVE,
    Kind,
    SourceError,
    find_files,
    in_captures,
    is_packed,
    kind_in_folder,
    kind_of_file,
    natural_order,
)

SCHEMES: Final = ("abfs", "abfss", "file", "gs", "hdfs", "s3", "s3a", "viewfs")
"""Of the paths that are URIs. ``s3a``, Hadoop's name, is the same as ``s3``."""

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/?]*)(.*)", re.DOTALL)
_QUERY: Final = re.compile(r"\?(\w+=[^&*]*(?:&\w+=[^&*]*)*)$")  # else the question mark belongs to a pattern
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_FILE_URI: Final = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.DOTALL | re.IGNORECASE)
_HARMLESS: Final = ("endpoint_override", "region", "scheme")  # options without secrets
_PIECE: Final = 4 << 20
_BUFFER: Final = 64 << 10
_COPIED_NAME: Final = re.compile(r"(?:\d{20}\.log|.+\.(?:pcap|pcapng|cap)\d*)(?:\.gz)?")  # they say something of it
_COPIED_FOLDER: Final = re.compile(r".*-(\d+)")


class StoreError(SourceError):
    """A store cannot be asked, or a file of it cannot be read. The text names the URI, without credentials."""


@dataclass(frozen=True)
class _Store:
    """A file system and what paths in it begin with.

    :ivar uri: all of a URI that is not the path of a file, with credentials and options
    :ivar shown: what may be shown of it
    """

    uri: str = field(repr=False)
    shown: str

    @property
    def system(self) -> tuple[fs.FileSystem, str]:
        try:
            return _system(self.uri)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise StoreError(f"{self.shown} cannot be opened: {self.without_secrets(error)}") from None

    def without_secrets(self, error: BaseException) -> str:
        """The first line of an error, without user, password and options."""
        text = str(error).partition("\n")[0].replace(self.uri, self.shown)
        found = _URI.match(self.uri)
        assert found is not None
        options = (item.partition("=") for item in found[3][1:].split("&"))
        hidden = [value for name, _, value in options if name not in _HARMLESS]
        for secret in filter(None, (*found[2].rpartition("@")[0].split(":"), *hidden)):
            if secret not in self.shown:
                text = text.replace(secret, "***").replace(unquote(secret), "***")
        return text


@cache
def _system(uri: str) -> tuple[fs.FileSystem, str]:
    system, base = fs.FileSystem.from_uri(uri)
    return system, base.rstrip("/")


@dataclass(frozen=True)
class _Stored:
    """A file or folder of a store.

    :ivar path: from the root of the store, beginning with a slash
    """

    store: _Store
    path: str

    def __str__(self) -> str:
        return self.store.shown + self.path

    @property
    def name(self) -> str:
        return self.parts.name

    @property
    def parent(self) -> PurePosixPath:
        return self.parts.parent

    @property
    def parts(self) -> PurePosixPath:
        return PurePosixPath(self.path)

    def is_file(self) -> bool:
        return bool(self.infos()[0].type == fs.FileType.File)

    def open(self, mode: Literal["rb"] = "rb") -> IO[bytes]:
        system, base = self.store.system
        with self._named_errors():
            return cast(IO[bytes], io.BufferedReader(cast(Any, system.open_input_file(base + self.path)), _BUFFER))

    def infos(self, *, below: bool = False, recursive: bool = False) -> list[fs.FileInfo]:
        """What the store says of this, or of the files and folders in it."""
        system, base = self.store.system
        path = base + self.path.rstrip("/")
        with self._named_errors():
            if below:
                return cast(list[fs.FileInfo], system.get_file_info(fs.FileSelector(path, recursive=recursive)))
            return [system.get_file_info(path)]

    def at(self, info: fs.FileInfo) -> _Stored:
        """A file or folder that the store has named."""
        return _Stored(self.store, info.path[len(self.store.system[1]) :])

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{self} cannot be read: {self.store.without_secrets(error)}") from None

    @contextmanager
    def copied(self, modified_ns: int) -> Iterator[Path]:
        """A local copy of the file, with what its names say of its content; it is deleted afterwards."""
        system, base = self.store.system
        with tempfile.TemporaryDirectory(prefix="kcoord-") as scratch:
            number = _COPIED_FOLDER.fullmatch(self.parent.name)
            folder = Path(scratch, f"partition-{number[1]}" if number else "files")
            folder.mkdir()
            copy = folder / (self.name if _COPIED_NAME.fullmatch(self.name) else "file")
            with self._named_errors(), system.open_input_stream(base + self.path) as file, copy.open("wb") as out:
                while piece := file.read(_PIECE):
                    if shutil.disk_usage(scratch).free < RESERVE + len(piece):
                        where = tempfile.gettempdir()
                        raise OSError(f"{where} has no room for a copy of it (TMPDIR names another folder)")
                    out.write(piece)
            os.utime(copy, ns=(modified_ns, modified_ns))
            yield copy


@dataclass(frozen=True)
class Place:
    """A file to read.

    :ivar name: what rows and errors call it: its path, or its URI without credentials
    :ivar size: in bytes
    :ivar modified_ns: when it was last written
    :ivar capture: the name of the first file of the rotated capture that it is of; None where it is none
    :ivar share: what is read of a file that several tasks read: bytes of a log segment or recording, lanes of a capture
        (`capture.lanes`); None for all
    """

    name: str
    kind: Kind
    size: int
    modified_ns: int
    stored: _Stored | None = None
    capture: str | None = None
    share: range | None = None

    @property
    def bytes_to_read(self) -> int:
        """How much of it one task reads; of a capture all tasks read the headers besides."""
        if self.share is None:
            return self.size
        return self.size * len(self.share) // LANES if self.kind == "pcap" else len(self.share)

    @property
    def is_first_share(self) -> bool:
        """Whether this is the file, or the first of its shares: what a file counts by."""
        return self.share is None or self.share.start == 0

    @contextmanager
    def local(self) -> Iterator[Path]:
        """A local file with its content: itself, or a temporary copy.

        :raises StoreError: it cannot be copied
        """
        if self.stored is None:
            yield Path(self.name)
        else:
            with self.stored.copied(self.modified_ns) as path:
                yield path


def shares_of(unit: Sequence[Place], max_bytes: int) -> list[list[Place]]:
    """Return what each of several tasks reads of files that are read together, if they are larger than `max_bytes`.

    Files that are packed, in a store, or text are not divided: a task unpacks or copies them as a whole.

    :param unit: a file, or the files of a rotated capture
    """
    size, kind = sum(place.size for place in unit), unit[0].kind
    if size <= max_bytes or kind == "text" or (kind != "pcap" and len(unit) > 1):
        return [list(unit)]
    if any(place.stored is not None or is_packed(Path(place.name)) for place in unit):
        return [list(unit)]
    end = LANES if kind == "pcap" else size
    count = min(-(-size // max_bytes), end)
    borders = [end * number // count for number in range(count + 1)]
    return [[replace(place, share=range(*border)) for place in unit] for border in pairwise(borders)]


@dataclass(frozen=True)
class Selection:
    """Which files count, of those that paths stand for; the options are those of Spark's own file sources.

    :ivar recursive: ``recursiveFileLookup``: whether files in the folders of a folder count
    :ivar names: ``pathGlobFilter``: patterns of a file's name, one of which has to match; empty: any name
    :ivar after_ns: ``modifiedAfter``: only files written later, in nanoseconds of the epoch
    :ivar before_ns: ``modifiedBefore``: only files written earlier
    """

    recursive: bool = True
    names: tuple[str, ...] = ()
    after_ns: int | None = None
    before_ns: int | None = None

    def has(self, place: Place) -> bool:
        """Whether a file counts, by its own name and time."""
        name = place.name.rpartition("/")[2]
        return (
            (not self.names or any(fnmatchcase(name, pattern) for pattern in self.names))
            and (self.after_ns is None or place.modified_ns > self.after_ns)
            and (self.before_ns is None or place.modified_ns < self.before_ns)
        )


def selection(options: Mapping[str, str]) -> Selection:
    """What options select.

    :param options: by names in lower case
    :raises ValueError: a value is wrong
    """
    recursive = options.get("recursivefilelookup", "true").lower()
    if recursive not in ("true", "false"):
        raise ValueError(f"recursiveFileLookup must be true or false, not {recursive!r}")
    names = _alternatives(options["pathglobfilter"]) if "pathglobfilter" in options else []
    after, before = (_time_ns(name, options.get(name.lower())) for name in ("modifiedAfter", "modifiedBefore"))
    return Selection(recursive == "true", tuple(names), after, before)


def _alternatives(pattern: str) -> list[str]:
    """A pattern of Hadoop as patterns of `fnmatch`: without ``{a,b}``, and with ``[!a]`` for ``[^a]``."""
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern.replace("[^", "[!")]
    start, end = pattern[: found.start()], pattern[found.end() :]
    return [whole for choice in found[1].split(",") for whole in _alternatives(start + choice + end)]


def _time_ns(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name} must be a time such as 2024-05-01T12:00:00, not {text!r}") from None
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1) * 1000


def local_path(given: str) -> str | None:
    """The local path that a path of the user means; None if it is in a store.

    :raises SourceError: it is a URI of a scheme that is none of `SCHEMES`
    """
    if found := _FILE_URI.fullmatch(given):
        return found[1]
    found = _URI.fullmatch(given)
    if found is None:
        return given
    if found[1].lower() not in SCHEMES or found[1].lower() == "file":
        shown = f"{found[1]}://{found[2].rpartition('@')[2]}"
        raise SourceError(f"{shown}: a path is a local one or a URI with {', '.join(SCHEMES)}")
    return None


def find_places(paths: Sequence[str], selected: Selection = Selection()) -> list[Place]:
    """The files that paths stand for: files, folders with everything below, patterns; each once, in natural order.

    The files of a rotated capture follow each other, ordered by time, as those of `find_sources`.

    :raises SourceError: a path does not exist, or contains nothing that can be read or is selected
    :raises StoreError: a store cannot be asked
    """
    given = [(path, local_path(path)) for path in paths]
    places = []
    if own := [local for _, local in given if local is not None]:
        for source in find_files(own, recursive=selected.recursive):
            stat = source.path.stat()
            places.append(Place(str(source.path), source.kind, stat.st_size, stat.st_mtime_ns))
    found: dict[_Stored, Place] = {}
    for path, local in given:
        if local is None:
            for place in _in_store(path, selected.recursive):
                found.setdefault(cast(_Stored, place.stored), place)
    every = [*places, *found.values()]
    chosen = [place for place in every if selected.has(place)]
    if not chosen:
        raise SourceError(f"none of {len(every)} files is selected by pathGlobFilter, modifiedAfter and modifiedBefore")
    return _with_captures(sorted(chosen, key=lambda place: natural_order(place.name)))


def _with_captures(places: Sequence[Place]) -> list[Place]:
    files = [(place.stored or Path(place.name), place.kind) for place in places]
    first = {index: None if start is None else places[start].name for index, start in in_captures(files)}
    return [replace(places[index], capture=name) for index, name in first.items()]


def _in_store(given: str, recursive: bool) -> Iterator[Place]:
    start = _parsed(given)
    matches = _matches(start)
    if not matches:
        raise SourceError(f"{start} matches no file")
    for match in matches:
        [info] = match.infos()
        if info.type == fs.FileType.File:
            yield _place(match, kind_of_file(match), info)
        elif info.type == fs.FileType.Directory:
            places = list(_in_folder(match, recursive))
            if not places:
                raise SourceError(f"{match} has no capture, recording, log segment or log with a line about a group")
            yield from places
        else:
            raise SourceError(f"{match} does not exist")


def _parsed(given: str) -> _Stored:
    found = _URI.fullmatch(given)
    assert found is not None
    scheme, authority, rest = found[1].lower(), found[2], found[3]
    query = _QUERY.search(rest)
    path = rest[: query.start()] if query else rest
    scheme = "s3" if scheme == "s3a" else scheme
    user, _, host = authority.rpartition("@")
    # The container of abfs is where others have a user.
    container = f"{user.partition(':')[0]}@" if scheme.startswith("abfs") and user.partition(":")[0] else ""
    store = _Store(f"{scheme}://{authority}{query[0] if query else ''}", f"{scheme}://{container}{host}")
    return _Stored(store, "/" + path.strip("/"))


def _matches(start: _Stored) -> list[_Stored]:
    """The files and folders that a path stands for, which may have a pattern in each of its parts."""
    if not has_magic(start.path):
        return [start]
    found = [_Stored(start.store, "/")]
    for part in start.path.strip("/").split("/"):
        found = list(dict.fromkeys(inside for at in found for inside in _inside(at, part)))
    return found


def _inside(at: _Stored, part: str) -> Iterator[_Stored]:
    """What one part of a path stands for."""
    if not has_magic(part):
        named = _Stored(at.store, f"{at.path.rstrip('/')}/{part}")
        if named.infos()[0].type != fs.FileType.NotFound:
            yield named
    elif _is_folder(at.infos()[0]):
        if part == "**":
            yield at
        for info in at.infos(below=True, recursive=part == "**"):
            inside = at.at(info)
            if _is_folder(info) if part == "**" else fnmatchcase(inside.name, part):
                yield inside


def _is_folder(info: fs.FileInfo) -> bool:
    return bool(info.type == fs.FileType.Directory)


def _in_folder(folder: _Stored, recursive: bool) -> Iterator[Place]:
    for info in folder.infos(below=True, recursive=recursive):
        if info.type == fs.FileType.File:
            file = folder.at(info)
            kind = kind_in_folder(file, folder.name if file.parent == folder.parts else None)
            if kind is not None and (kind != "log" or info.size):
                yield _place(file, kind, info)


def _place(file: _Stored, kind: Kind, info: fs.FileInfo) -> Place:
    return Place(str(file), kind, info.size, info.mtime_ns or 0, file)
