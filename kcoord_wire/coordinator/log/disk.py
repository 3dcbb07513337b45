"""Folders of real files, and the folder that a coordinator keeps everything in.

Laws:

* One process holds a `FileDisk` at a time; a second one gets `LogInUseError`. A `FolderDisk` has no such lock.
* The entry of a `FolderDisk` is durable before the first file is made in it. That of a folder in it is durable after
  `sync_names`, as `Disk` has it.

Source: kafka/storage `LogManager.java` (the lock file), `UnifiedLog.java` (names of folders).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import BinaryIO, Final

from kcoord_wire.kernel.disk import Disk, DiskFile

OFFSETS_FOLDER: Final = "__consumer_offsets-0"
"""The folder of the groups' log in that of a coordinator."""

TRANSACTIONS_FOLDER: Final = "transactions"
"""Likewise, of the log of transactions."""

_LOCK: Final = ".lock"


class LogInUseError(Exception):
    """Another coordinator has the folder open.

    :ivar path: the lock file that it holds
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path.parent} is in use by another coordinator, which holds {path}")
        self.path = path


class _RealFile(DiskFile):
    def __init__(self, path: Path, flags: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | flags, 0o644)

    def append(self, data: bytes | bytearray) -> None:
        left = memoryview(data)
        while left:  # a disk that is almost full takes a part
            left = left[os.write(self._fd, left) :]

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while len(data) < size and (more := os.pread(self._fd, size - len(data), position + len(data))):
            data += more  # one call returns at most 2 GiB
        return data

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Folder(Disk):
    """The files of a folder that is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

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

    def folders(self) -> list[str]:
        return [entry.name for entry in os.scandir(self._folder) if entry.is_dir()]

    def folder(self, name: str) -> Disk:
        path = self._folder / name
        path.mkdir(exist_ok=True)
        return _Folder(path)

    def remove_folder(self, name: str) -> None:
        path = self._folder / name
        if not path.exists():
            return
        for entry in list(os.scandir(path)):
            os.unlink(entry)
        path.rmdir()

    def close(self) -> None:
        pass


class FolderDisk(_Folder):
    """The files of a folder, which is made if it is not there. OSError: it cannot be made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)
        _sync_folder(folder.absolute().parent)


class FileDisk(FolderDisk):
    """The folder `path` of a coordinator, as a Kafka broker has its log directory.

    :raises LogInUseError: another coordinator has it
    :raises OSError: it cannot be made or opened
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(Path(path))
        lock = self._folder / _LOCK
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise LogInUseError(lock) from None
        except OSError:
            self.close()
            raise

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
