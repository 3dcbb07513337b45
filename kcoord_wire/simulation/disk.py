"""A disk in memory that fails when it is told to, in the middle of what it does.

Laws:

* Every operation that changes the disk is counted; the power can go, or the operation fail, at any of them. Of an
  append that is hit, a part from its start is there.
* Without power nothing works until `VirtualDisk.crash`, which leaves what `MemoryDisk.crash` leaves.
* `VirtualDisk.unsynced` is the truth about what is durable, whatever the log believes.
"""

from __future__ import annotations

from errno import EIO
from random import Random
from typing import BinaryIO

from kcoord_wire.disk import DiskFile, MemoryDisk

__all__ = ["PowerCutError", "VirtualDisk"]


class PowerCutError(OSError):
    """The machine that the disk is in has lost power."""


class _VirtualFile:
    def __init__(self, disk: VirtualDisk, name: str, file: DiskFile) -> None:
        self._disk = disk
        self._name = name
        self._file = file

    def append(self, data: bytes) -> None:
        try:
            self._disk.spend()
        except OSError:
            if not self._disk.is_dead_for_long:
                self._disk.unsynced.add(self._name)
                self._file.append(data[: self._disk.random.randint(0, len(data))])
            raise
        self._disk.unsynced.add(self._name)
        self._file.append(data)

    def truncate(self, size: int) -> None:
        self._disk.spend()
        if size < self._disk.sizes().get(self._name, 0):
            self._disk.unsynced.add(self._name)
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.spend()
        self._file.sync()
        self._disk.unsynced.discard(self._name)

    def close(self) -> None:
        self._file.close()


class VirtualDisk:
    """A `MemoryDisk` whose power can fail at any operation.

    :ivar power_left: operations until the power fails; None for: it does not
    :ivar fails_in: operations until one fails with EIO, once; None for: none does
    :ivar repaired_after_ms: how long after that the coordinator reads its log again
    :ivar unsynced: names of files with bytes that are not durable
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.fails_in: int | None = None
        self.repaired_after_ms = 0
        self.power_left: int | None = None
        self.is_dead_for_long = False
        self.unsynced: set[str] = set()
        self._disk = MemoryDisk()

    def spend(self) -> None:
        """One operation that changes the disk.

        :raises OSError: it fails
        """
        if self.fails_in is not None:
            self.fails_in -= 1
            if self.fails_in < 0:
                self.fails_in = None
                raise OSError(EIO, "the disk has failed")
        if self.power_left is not None:
            self.is_dead_for_long = self.power_left < 0
            self.power_left -= 1
            if self.power_left < 0:
                raise PowerCutError("the power is off")

    def crash(self) -> None:
        """The power is back; what was not durable may be gone."""
        self._disk.crash(self.random)
        self.power_left = self.fails_in = None
        self.unsynced.clear()

    def sizes(self) -> dict[str, int]:
        return self._disk.sizes()

    def read(self, name: str) -> BinaryIO:
        return self._disk.read(name)

    def open(self, name: str, *, new: bool = False) -> DiskFile:
        self.spend()
        return _VirtualFile(self, name, self._disk.open(name, new=new))

    def rename(self, old: str, new: str) -> None:
        self.spend()
        self._disk.rename(old, new)
        if old in self.unsynced:
            self.unsynced.remove(old)
            self.unsynced.add(new)
        else:
            self.unsynced.discard(new)

    def remove(self, name: str) -> None:
        self.spend()
        self._disk.remove(name)
        self.unsynced.discard(name)

    def sync_names(self) -> None:
        self.spend()
        self._disk.sync_names()

    def close(self) -> None:
        self._disk.close()
