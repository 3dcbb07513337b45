"""A disk in memory that loses power or fails on demand, in the middle of an operation.

Laws:

* Operations that change the disk are counted; power can be lost, or an operation fail, at any of them. An append that
  is hit leaves a prefix of its data.
* Without power every operation fails until `VirtualDisk.crash`, which leaves what `MemoryDisk.crash` leaves.
* `VirtualDisk.unsynced` is what is really not durable, independent of what the log on the disk believes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO, ENOSPC
from random import Random
from typing import BinaryIO

from kcoord_wire.kernel.disk import Disk, DiskFile, MemoryDisk


class PowerCutError(OSError):
    """The disk has lost power."""


class _VirtualFile(DiskFile):
    """A file; `name` is its path from the disk's own folder."""

    def __init__(self, disk: VirtualDisk, name: str, file: DiskFile) -> None:
        self._disk = disk
        self._name = name
        self._file = file

    def append(self, data: bytes | bytearray) -> None:
        try:
            self._disk.spend(grows=True)
        except OSError:
            if not self._disk.is_off:
                self._disk.unsynced.add(self._name)
                self._file.append(data[: self._disk.random.randint(0, len(data))])
            raise
        self._disk.unsynced.add(self._name)
        self._file.append(data)

    def read(self, position: int, size: int) -> bytes:
        return self._file.read(position, size)

    def truncate(self, size: int) -> None:
        self._disk.spend()
        if self._file.read(size, 1):
            self._disk.unsynced.add(self._name)
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.spend()
        self._file.sync()
        self._disk.unsynced.discard(self._name)

    def close(self) -> None:
        self._file.close()


class _VirtualFolder(Disk):
    """A folder of a `VirtualDisk`.

    :param at: its path from the disk's own folder, with a slash at the end
    """

    def __init__(self, disk: VirtualDisk, memory: MemoryDisk, at: str) -> None:
        self._virtual = disk
        self._disk = memory
        self._at = at

    def sizes(self) -> dict[str, int]:
        return self._disk.sizes()

    def read(self, name: str) -> BinaryIO:
        return self._disk.read(name)

    def open(self, name: str, *, new: bool = False) -> DiskFile:
        self._virtual.spend()
        return _VirtualFile(self._virtual, self._at + name, self._disk.open(name, new=new))

    def rename(self, old: str, new: str) -> None:
        self._virtual.spend()
        self._disk.rename(old, new)
        unsynced = self._virtual.unsynced
        if self._at + old in unsynced:
            unsynced.remove(self._at + old)
            unsynced.add(self._at + new)
        else:
            unsynced.discard(self._at + new)

    def remove(self, name: str) -> None:
        self._virtual.spend()
        self._disk.remove(name)
        self._virtual.unsynced.discard(self._at + name)

    def sync_names(self) -> None:
        self._virtual.spend()
        self._disk.sync_names()

    def folders(self) -> list[str]:
        return self._disk.folders()

    def folder(self, name: str) -> Disk:
        self._virtual.spend()
        return _VirtualFolder(self._virtual, self._disk.folder(name), f"{self._at}{name}/")

    def remove_folder(self, name: str) -> None:
        self._virtual.spend()
        self._disk.remove_folder(name)
        lost = {path for path in self._virtual.unsynced if path.startswith(f"{self._at}{name}/")}
        self._virtual.unsynced -= lost

    def close(self) -> None:
        self._disk.close()


class VirtualDisk(_VirtualFolder):
    """A `MemoryDisk` that can lose power, or fail, at any operation.

    :ivar random: decides what a hit append and a crash leave
    :ivar power_left: how many more operations succeed before power is lost; None if it is not
    :ivar is_off: whether power was lost before the present operation
    :ivar is_full: whether it takes no more bytes
    :ivar fails_in: how many more operations succeed before one fails, once, with EIO; None if none does
    :ivar repaired_after_ms: how long after such a failure the log is to be read again
    :ivar unsynced: names of the files with bytes that are not durable
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.fails_in: int | None = None
        self.repaired_after_ms = 0
        self.power_left: int | None = None
        self.is_off = self.is_full = False
        self.unsynced: set[str] = set()
        super().__init__(self, MemoryDisk(), "")

    def spend(self, *, grows: bool = False) -> None:
        """Count one operation that changes the disk.

        :param grows: whether it needs room
        :raises PowerCutError: power is or was lost
        :raises OSError: the operation fails
        """
        if grows and self.is_full:
            raise OSError(ENOSPC, "the disk is full")
        if self.fails_in is not None:
            self.fails_in -= 1
            if self.fails_in < 0:
                self.fails_in = None
                raise OSError(EIO, "the disk has failed")
        if self.power_left is not None:
            self.is_off = self.power_left < 0
            self.power_left -= 1
            if self.power_left < 0:
                raise PowerCutError("the power is off")

    def crash(self) -> None:
        """Restore power; what was not durable may be lost."""
        self._disk.crash(self.random)
        self.restart()
        self.unsynced.clear()

    def restart(self) -> None:
        """Restore power with all that was written: the process alone has ended."""
        self.power_left = self.fails_in = None
        self.is_off = False

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """While this lasts operations succeed and are not counted: a test looks at the disk from outside."""
        before = self.power_left, self.fails_in, self.is_full
        self.power_left = self.fails_in = None
        self.is_full = False
        try:
            yield
        finally:
            self.power_left, self.fails_in, self.is_full = before
