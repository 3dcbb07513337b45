"""The folder that a log lives in: a real one, or one in memory that can crash.

Laws:

* What was written counts only once the file was synced; that a file was created, renamed or removed counts only once
  the folder was. A disk may lose all else in a crash, in any order.
* One process holds a real folder at a time.
* `MemoryDisk.crash` does the worst that this allows: it is where the log's recovery is tested.

Source: POSIX `fsync`; kafka/storage `LogManager.java` (the lock file), `UnifiedLog.java` (names of folders).
"""

from __future__ import annotations

import fcntl
import os
from io import BytesIO
from pathlib import Path
from random import Random
from typing import BinaryIO, Protocol

__all__ = ["SECTOR", "Disk", "DiskFile", "FileDisk", "LogInUseError", "MemoryDisk"]

SECTOR = 512  # bytes that a disk writes as one, in the worst case
_FOLDER = "__consumer_offsets-0"
_LOCK = ".lock"


class LogInUseError(Exception):
    """Another coordinator has the folder open.

    :ivar path: the lock file that it holds
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path.parent} is in use by another coordinator, which holds {path}")
        self.path = path


class DiskFile(Protocol):
    """A file open for writing at its end. Every method raises `OSError`."""

    def append(self, data: bytes) -> None:
        """Write `data` at the end; after an error some of it may be there."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Make the content durable. After an error nobody knows what is, and trying again does not tell."""

    def close(self) -> None: ...


class Disk(Protocol):
    """What a log needs of a folder. Every method raises `OSError`."""

    def sizes(self) -> dict[str, int]:
        """The files by name, with their sizes in bytes."""

    def read(self, name: str) -> BinaryIO:
        """The file open for reading at its start."""

    def open(self, name: str, *, new: bool = False) -> DiskFile:
        """The file open for writing; created where it is missing, emptied where `new`."""

    def rename(self, old: str, new: str) -> None:
        """Give the file another name, in place of what had that name."""

    def remove(self, name: str) -> None: ...

    def sync_names(self) -> None:
        """Make the names durable."""

    def close(self) -> None:
        """Let others use the folder."""


class _RealFile:
    def __init__(self, path: Path, flags: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | flags, 0o644)

    def append(self, data: bytes) -> None:
        left = memoryview(data)
        while left:  # a disk that is almost full takes a part
            left = left[os.write(self._fd, left) :]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class FileDisk:
    """``__consumer_offsets-0`` in the folder `path`, as a Kafka broker has it in its log directory.

    :raises LogInUseError: another coordinator has it
    :raises OSError: it cannot be made or opened
    """

    def __init__(self, path: Path | str) -> None:
        self._folder = Path(path) / _FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = Path(path) / _LOCK
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sync_folder(self._folder.parent.absolute().parent)
            _sync_folder(self._folder.parent)
        except BlockingIOError:
            self.close()
            raise LogInUseError(lock) from None
        except OSError:
            self.close()
            raise

    def sizes(self) -> dict[str, int]:
        return {entry.name: entry.stat().st_size for entry in os.scandir(self._folder) if entry.is_file()}

    def read(self, name: str) -> BinaryIO:
        return (self._folder / name).open("rb")

    def open(self, name: str, *, new: bool = False) -> DiskFile:
        return _RealFile(self._folder / name, os.O_TRUNC if new else 0)

    def rename(self, old: str, new: str) -> None:
        os.replace(self._folder / old, self._folder / new)

    def remove(self, name: str) -> None:
        os.unlink(self._folder / name)

    def sync_names(self) -> None:
        _sync_folder(self._folder)

    def close(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class _MemoryFile:
    """:ivar synced: how many bytes from the start are durable
    :ivar uncut: what was there before a `truncate` that is not durable yet"""

    __slots__ = ("data", "synced", "uncut")

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = 0
        self.uncut: bytes | None = None

    def append(self, data: bytes) -> None:
        self.data += data

    def truncate(self, size: int) -> None:
        if self.uncut is None and size < self.synced:
            self.uncut = bytes(self.data[: self.synced])
        del self.data[size:]
        self.synced = min(self.synced, size)

    def sync(self) -> None:
        self.synced = len(self.data)
        self.uncut = None

    def close(self) -> None:
        pass

    def crash(self, random: Random) -> None:
        if self.uncut is not None and random.random() < 0.5:
            self.data = bytearray(self.uncut)
        else:
            size = random.randint(self.synced, len(self.data))
            del self.data[size:]
            for sector in range(self.synced - self.synced % SECTOR, size, SECTOR):
                if random.random() < 0.25:
                    lost = slice(max(sector, self.synced), min(sector + SECTOR, size))
                    count = lost.stop - lost.start
                    self.data[lost] = random.choice([bytes(count), random.randbytes(count)])
        self.sync()


class MemoryDisk:
    """A folder in memory: for coordinators that need not outlive their process, and for the virtual cluster."""

    def __init__(self) -> None:
        self._files: dict[str, _MemoryFile] = {}
        self._durable: dict[str, _MemoryFile] = {}
        self._moves: list[tuple[str | None, str | None, _MemoryFile]] = []  # old name, new name: not durable yet

    def sizes(self) -> dict[str, int]:
        return {name: len(file.data) for name, file in self._files.items()}

    def read(self, name: str) -> BinaryIO:
        return BytesIO(self._file(name).data)

    def open(self, name: str, *, new: bool = False) -> DiskFile:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = _MemoryFile()
            self._moves.append((None, name, file))
        elif new:
            file.truncate(0)
        return file

    def rename(self, old: str, new: str) -> None:
        file = self._file(old)
        del self._files[old]
        self._files[new] = file
        self._moves.append((old, new, file))

    def remove(self, name: str) -> None:
        self._moves.append((name, None, self._file(name)))
        del self._files[name]

    def sync_names(self) -> None:
        if self._moves:
            self._durable = dict(self._files)
            self._moves.clear()

    def close(self) -> None:
        pass

    def crash(self, random: Random) -> None:
        """Lose power. What is durable stays; of the rest of each file a part from its start, with sectors in it that
        were never written; of the names any of the changes."""
        for old, new, file in self._moves:
            if random.random() < 0.5:
                if old is not None:
                    self._durable.pop(old, None)
                if new is not None:
                    self._durable[new] = file
        self._files = dict(self._durable)
        self._moves.clear()
        for file in dict.fromkeys(self._files.values()):
            file.crash(random)

    def _file(self, name: str) -> _MemoryFile:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(2, "no such file", name) from None
