"""The content of a source that may be packed with gzip.

Laws:

* The first bytes of a file decide whether it is packed, not its name.
* Memory holds one piece of the content. It is unpacked to a temporary file, because readers map it, and as far as the
  temporary folder has room above `RESERVE`, so that a small file that unpacks to terabytes fills no disk.
* A packed file that is cut short or damaged yields what comes before that place, and a fault that names the place.

Source: RFC 1952 (a file may have several members, section 2.2).
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Final, cast

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


def plain_name(path: Path) -> str:
    """Return the name of a file without the ``.gz`` of packed ones."""
    return path.name.removesuffix(".gz")


def first_bytes(path: Path, count: int) -> bytes:
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

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        return self._file.read(min(size, _PACKED_PIECE) if size >= 0 else _PACKED_PIECE)
