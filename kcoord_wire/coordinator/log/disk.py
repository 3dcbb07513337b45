"""The folder of files that a log lives in.

Laws:

* One process holds a `FileDisk` at a time; a second one gets `LogInUseError`. A `FolderDisk` has no such lock.
* The folder's own entry is durable before the first file is made in it.

Source: kafka/storage `LogManager.java` (the lock file), `UnifiedLog.java` (names of folders).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import BinaryIO, Final

from kcoord_wire.disk import Disk, DiskFile

__all__ = ["FileDisk", "FolderDisk", "LogInUseError"]

_FOLDER: Final = "__consumer_offsets-0"
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


class FolderDisk(Disk):
    """The files of a folder, which is made if it is not there. OSError: it cannot be made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        _sync_folder(self._folder.parent)

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
        pass


class FileDisk(FolderDisk):
    """``__consumer_offsets-0`` in the folder `path`, as a Kafka broker has it in its log directory.

    :raises LogInUseError: another coordinator has it
    :raises OSError: it cannot be made or opened
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(Path(path) / _FOLDER)
        lock = Path(path) / _LOCK
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sync_folder(self._folder.parent.absolute().parent)
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
