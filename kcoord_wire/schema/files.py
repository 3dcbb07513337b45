"""The package's schema files, and files, folders, jars and zip archives of other ones, or what a program has of them.

The package's own are in schemas/ of a checkout and in kcoord_wire/_schemas of a wheel (setup.py copies them).

Laws:

* Nothing of an archive is extracted: a name inside it is text for error messages, never a path.
* Sizes are bounded before they are used: the archive, its directory, the number of schema files, the bytes of one and
  of all, in folders as in archives. A size that is stated is not trusted; reading stops at the bound.
* Only regular files are read, or links to them: opening a fifo does not wait, and a device has no end.
* Whatever the bytes are, the result is the files or a `SchemaError`.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from kcoord_wire.errors import SchemaError
from kcoord_wire.schema.model import Message
from kcoord_wire.schema.reader import read_message

if TYPE_CHECKING:
    import zipfile

# kafka-clients 4.4.0 has 11 MB, a directory of 0.6 MB and 203 schema files, of 13 kB at most and 0.5 MB together.
MAX_ARCHIVE: Final = 256 << 20
MAX_DIRECTORY: Final = 8 << 20
MAX_FILES: Final = 4096
MAX_FILE: Final = 1 << 20
MAX_ALL: Final = 16 << 20

Texts = Mapping[str, str | bytes]
"""Schema files that are not on a disk: their contents by name."""

_KAFKA: Final = "common/message/"  # of kafka-clients, kafka-group-coordinator and others
_END: Final = struct.Struct("<4s4H2LH")  # the end of the central directory; at most 65,535 bytes of comment follow it
_END_MAGIC: Final = b"PK\5\6"
# 20 bytes before that: there is another end of the directory, whose sizes count instead.
_ZIP64_MAGIC: Final = b"PK\6\7"
_ZIP64_SIZE: Final = 20
# What zipfile raises, besides its own error, for bytes that are not an archive.
_BROKEN: Final = (zlib.error, struct.error, EOFError, RuntimeError, ValueError, OverflowError)
_AT_ONCE: Final = getattr(os, "O_NONBLOCK", 0)  # a fifo that nobody writes is opened too
# Why a path that is there cannot be opened as a file: links that lead nowhere or in a circle, sockets, devices.
_NO_FILE: Final = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV)


def schema_files(data: bytes, file: str) -> list[tuple[str, bytes]]:
    """Name and content of the schema files of an archive, in order of name: the .json files below common/message/, as
    in Kafka's jars, or every .json file if there are none.

    :param data: the whole archive
    :param file: its name, for errors
    :raises SchemaError: it is not a zip archive, has no schema file, or is larger than the bounds above
    """
    import zipfile  # takes 5 ms

    try:
        _check_directory(data, file)
        with zipfile.ZipFile(BytesIO(data)) as archive:
            return _read(archive, _chosen(archive, file), file)
    except SchemaError:
        raise
    except (zipfile.BadZipFile, *_BROKEN) as error:
        raise SchemaError(f"a zip archive is expected: {error}", file=file) from None


def _check_directory(data: bytes, file: str) -> None:
    """Refuse a directory that would take much more memory than schema files do: zipfile reads it whole."""
    at = data.rfind(_END_MAGIC, max(0, len(data) - _END.size - 0xFFFF))
    if at < 0:
        raise SchemaError("a zip archive is expected: it has no directory", file=file)
    if data.startswith(_ZIP64_MAGIC, max(0, at - _ZIP64_SIZE)):
        raise SchemaError("an archive of schemas has no zip64 directory", file=file)
    size = _END.unpack_from(data, at)[5]
    if size > MAX_DIRECTORY:
        raise SchemaError(f"the directory of an archive has at most {MAX_DIRECTORY} bytes", file=file)


def _chosen(archive: zipfile.ZipFile, file: str) -> list[zipfile.ZipInfo]:
    every = [info for info in archive.infolist() if info.filename.endswith(".json")]
    chosen = [info for info in every if info.filename.startswith(_KAFKA)] or every
    if not chosen:
        raise SchemaError("an archive of schemas holds at least one .json file", file=file)
    if len(chosen) > MAX_FILES:
        raise SchemaError(f"an archive holds at most {MAX_FILES} schema files", file=file)
    if len({info.filename for info in chosen}) < len(chosen):
        raise SchemaError("an archive holds two files of one name", file=file)
    if not all(info.filename.isprintable() for info in chosen):
        raise SchemaError("the names of an archive's schema files are printable", file=file)
    return sorted(chosen, key=lambda info: info.filename)


def _read(archive: zipfile.ZipFile, chosen: list[zipfile.ZipInfo], file: str) -> list[tuple[str, bytes]]:
    files = []
    left = MAX_ALL
    for info in chosen:
        if info.compress_type not in (0, 8):  # others than these need memory as the data says
            raise SchemaError("a schema file is stored or deflated", file=f"{file}/{info.filename}")
        with archive.open(info) as source:
            content = source.read(MAX_FILE + 1)
        left -= len(content)
        if len(content) > MAX_FILE or left < 0:
            rule = f"a schema file has at most {MAX_FILE} bytes, all of an archive {MAX_ALL}"
            raise SchemaError(rule, file=f"{file}/{info.filename}")
        files.append((info.filename, content))
    return files


def schema_root() -> Path:
    """The folder of the package's own schema files.

    :raises FileNotFoundError: the installation lacks them
    """
    package = Path(__file__).resolve().parent.parent
    for root in (package / "_schemas", package.parent / "schemas"):
        if root.is_dir():
            return root
    raise FileNotFoundError(
        f"the schema files of kcoord_wire are missing: neither {package}/_schemas nor ../schemas is there"
    )


def load_messages(path: Path) -> Mapping[str, Message]:
    """Every message below a folder (or of one file or archive), by name, in order of path.

    :raises SchemaError: a file breaks a rule; otherwise as `collect_messages`
    """
    messages, refused = collect_messages([path])
    for error in refused.values():
        raise error
    return messages


def collect_messages(paths: Iterable[Path | Texts]) -> tuple[Mapping[str, Message], Mapping[str, SchemaError]]:
    """Every message of files, folders and archives, by name, in order of path; and what is wrong with the files that
    break a rule, by the name of the file without .json, which in Kafka is that of its message.

    Reserved ids (validVersions none) are left out.

    :param paths: .json files, folders of them, jars and other zip archives; or the contents of files by name
    :raises SchemaError: a path that is a file breaks a rule, no file of a path keeps them all, or two files define one
        message
    :raises FileNotFoundError: a path does not exist
    """
    messages: dict[str, Message] = {}
    refused: dict[str, SchemaError] = {}
    for path in paths:
        read = [_message(file, content) for file, content in _contents(path)]
        errors = [one for one in read if isinstance(one, SchemaError)]
        if len(errors) == len(read):
            raise errors[0]
        for message in read:
            if isinstance(message, SchemaError):
                refused.setdefault(PurePosixPath(message.file).stem, message)
            elif message.name in messages:
                rule = f'"{message.name}" is defined by {messages[message.name].file} too'
                raise SchemaError(rule, file=message.file)
            elif message.versions:
                messages[message.name] = message
    return messages, refused


def _message(file: str, content: bytes | SchemaError) -> Message | SchemaError:
    try:
        return content if isinstance(content, SchemaError) else read_message(content, file)
    except SchemaError as error:
        return error


def _contents(path: Path | Texts) -> Iterator[tuple[str, bytes | SchemaError]]:
    """Name and content of each schema file that `path` stands for, or why it is not read."""
    if isinstance(path, Mapping):
        yield from _of_texts(path)
        return
    if path.is_dir():
        yield from _of_folder(path)
        return
    if not path.exists():
        raise FileNotFoundError(f"there is no schema file or folder {path}")
    with _opened(path) as source:
        is_archive = source.peek(2)[:2] == b"PK"  # no JSON begins so
        data = _all_of(source, path, MAX_ARCHIVE if is_archive else MAX_FILE)
    if is_archive:
        yield from ((f"{path}/{name}", text) for name, text in schema_files(data, str(path)))
    else:
        yield str(path), data


def _of_texts(texts: Texts) -> Iterator[tuple[str, bytes | SchemaError]]:
    if not texts:
        raise SchemaError("a mapping of schemas holds at least one text")
    if len(texts) > MAX_FILES:
        raise SchemaError(f"a mapping holds at most {MAX_FILES} schemas")
    left = MAX_ALL
    for name, text in texts.items():
        content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        left -= len(content)
        if len(content) > MAX_FILE or left < 0:
            rule = f"a schema file has at most {MAX_FILE} bytes, all of a mapping {MAX_ALL}"
            raise SchemaError(rule, file=name)
        yield name, content


def _of_folder(path: Path) -> Iterator[tuple[str, bytes | SchemaError]]:
    try:
        files = sorted(islice(path.rglob("*.json"), MAX_FILES + 1))
    except RecursionError:  # of CPython up to 3.12
        raise SchemaError("the folders of schema files are nested too deep", file=str(path)) from None
    if not files:
        raise SchemaError("a schema folder holds at least one .json file", file=str(path))
    if len(files) > MAX_FILES:
        raise SchemaError(f"a folder holds at most {MAX_FILES} schema files", file=str(path))
    left = MAX_ALL
    for file in files:
        try:
            with _opened(file) as source:
                content = _all_of(source, file, MAX_FILE)
        except SchemaError as error:
            yield str(file), error
            continue
        left -= len(content)
        if left < 0:
            raise SchemaError(f"the schema files of a folder have at most {MAX_ALL} bytes together", file=str(path))
        yield str(file), content


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """A regular file, opened; a SchemaError for what is none."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE)) as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                raise SchemaError("a schema file is a regular file, or a link to one", file=str(path))
            yield source
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise SchemaError(f"a schema file is a regular file: {error.strerror}", file=str(path)) from None


def _all_of(source: BufferedReader, path: Path, most: int) -> bytes:
    content = source.read(most + 1)
    if len(content) > most:
        raise SchemaError(f"a schema file has at most {MAX_FILE} bytes, an archive {MAX_ARCHIVE}", file=str(path))
    return content
