"""What a log needs of a disk: a folder of files, real ones or in memory. `virtual.disk` has one that can crash.

Laws:

* Written bytes are durable only after the file was synced; creating, renaming and removing a file is durable only after
  the folder was (`Disk.sync_names`). A crash may lose everything else, in any order.
* One process holds a `FileDisk` at a time; a second one gets `LogInUseError`. A `FolderDisk` has no such lock.
* The entry of a `FolderDisk` is durable before the first file is made in it. That of a folder in it is durable after
  `sync_names`, as `Disk` has it.

Source: kafka/storage `LogManager.java` (the lock file); POSIX `fsync`.
"""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final, Protocol

SECTOR: Final = 512
"""Bytes that a disk writes atomically, at the least."""


class DiskFile(Protocol):
    """A file open for writing at its end, and for reading. Every method raises `OSError`."""

    def append(self, data: bytes | bytearray) -> None:
        """Write `data` at the end; after an error some of it may be there."""

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position` on, or as many as the file has."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Make the content durable. After an error the durable part is unknown, and a second `sync` does not settle
        it: the kernel may have marked the dirty pages clean."""

    def close(self) -> None:
        """Close the file; what was not synced may be lost in a crash."""


class Disk(Protocol):
    """A folder of files that are written at their ends, and of further folders. Every method raises `OSError`."""

    def sizes(self) -> dict[str, int]:
        """Return the size of each file in bytes, by name."""

    def read(self, name: str) -> BinaryIO:
        """Open a file for reading at its start."""

    def open(self, name: str, *, new: bool = False) -> DiskFile:
        """Open a file for writing; it is created if missing and emptied if `new`."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file; it replaces the file that had the new name."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def sync_names(self) -> None:
        """Make creations, renames and removals durable, of files and of folders."""

    def folders(self) -> list[str]:
        """Return the names of the folders in this one."""

    def folder(self, name: str) -> Disk:
        """Return a folder in this one; it is made if missing."""

    def remove_folder(self, name: str) -> None:
        """Remove a folder with the files in it, if it is there."""

    def close(self) -> None:
        """Release the folder, so that another process may use it."""


class MemoryFile(DiskFile):
    """A file of a `MemoryDisk`.

    :ivar data: its bytes
    """

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def append(self, data: bytes | bytearray) -> None:
        self.data += data

    def read(self, position: int, size: int) -> bytes:
        with memoryview(self.data) as view:
            return bytes(view[position : position + size])

    def truncate(self, size: int) -> None:
        del self.data[size:]

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryDisk(Disk):
    """A `Disk` in memory, for servers whose state need not outlive the process."""

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}
        self._folders: dict[str, MemoryDisk] = {}

    def sizes(self) -> dict[str, int]:
        return {name: len(file.data) for name, file in self._files.items()}

    def read(self, name: str) -> BinaryIO:
        return BytesIO(self._file(name).data)

    def open(self, name: str, *, new: bool = False) -> DiskFile:
        file = self._files.setdefault(name, MemoryFile())
        if new:
            file.truncate(0)
        return file

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._file(old)
        del self._files[old]

    def remove(self, name: str) -> None:
        self._file(name)
        del self._files[name]

    def sync_names(self) -> None:
        pass

    def folders(self) -> list[str]:
        return list(self._folders)

    def folder(self, name: str) -> Disk:
        return self._folders.setdefault(name, MemoryDisk())

    def remove_folder(self, name: str) -> None:
        self._folders.pop(name, None)

    def close(self) -> None:
        pass

    def _file(self, name: str) -> MemoryFile:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(2, "no such file", name) from None


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


class FileLock:
    """A file that one process holds, or several that share it, until they release it or end. OSError: it cannot be
    made, or locked.

    :param path: it is made if it is missing
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self, *, shared: bool = False) -> bool:
        """Return whether it is held now; False while others hold it."""
        import fcntl  # is missing on Windows, where disks in memory work

        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let others have it."""
        import fcntl

        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release it for good."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class FileDisk(FolderDisk):
    """The folder `path` of a coordinator, as a Kafka broker has its log directory.

    :raises LogInUseError: another coordinator has it
    :raises OSError: it cannot be made or opened
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(Path(path))
        self._lock = FileLock(self._folder / _LOCK)
        try:
            is_free = self._lock.take()
        except OSError:
            self.close()
            raise
        if not is_free:
            self.close()
            raise LogInUseError(self._folder / _LOCK)

    def close(self) -> None:
        self._lock.close()


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
