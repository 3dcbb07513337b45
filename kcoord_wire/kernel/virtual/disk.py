"""A disk in memory that loses power or fails on demand, in the middle of an operation.

Laws:

* Operations that change the disk are counted; power can be lost, or an operation fail, at any of them. An append that
  is hit leaves a prefix of its data.
* Without power every operation fails until `VirtualDisk.crash`, which does the worst that `Disk` allows, so that
  recovery can be tested against it.
* `VirtualDisk.unsynced` is what is really not durable, independent of what the log on the disk believes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO, ENOSPC
from random import Random

from kcoord_wire.kernel.disk import SECTOR, Disk, DiskFile, MemoryDisk, MemoryFile


class PowerCutError(OSError):
    """The disk has lost power."""


class VirtualFile(MemoryFile):
    """A file of a `VirtualDisk`."""

    __slots__ = ("_disk", "_synced", "_uncut")

    def __init__(self, disk: VirtualDisk) -> None:
        super().__init__()
        self._disk = disk
        self._synced = 0  # bytes from the start that are durable
        self._uncut: bytes | None = None  # the content before a cut that is not durable yet

    @property
    def is_durable(self) -> bool:
        """Whether a crash leaves it as it is."""
        return self._uncut is None and self._synced == len(self.data)

    def append(self, data: bytes | bytearray) -> None:
        try:
            self._disk.spend("append")
        except BaseException:
            if not self._disk.is_off:
                super().append(data[: self._disk.random.randint(0, len(data))])
            raise
        super().append(data)

    def truncate(self, size: int) -> None:
        self._disk.spend("truncate")
        self.cut(size)

    def cut(self, size: int) -> None:
        """Truncate, as part of another operation."""
        if self._uncut is None and size < self._synced:
            self._uncut = bytes(self.data[: self._synced])
        super().truncate(size)
        self._synced = min(self._synced, size)

    def sync(self) -> None:
        self._disk.spend("sync")
        self._settle()

    def _settle(self) -> None:
        self._synced = len(self.data)
        self._uncut = None

    def crash(self, random: Random) -> None:
        """Lose what is not durable, or not. Some sectors of what is left of it were never written."""
        if self._uncut is not None and random.random() < 0.5:
            self.data = bytearray(self._uncut)
        else:
            size = random.randint(self._synced, len(self.data))
            del self.data[size:]
            for sector in range(self._synced - self._synced % SECTOR, size, SECTOR):
                if random.random() < 0.25:
                    lost = slice(max(sector, self._synced), min(sector + SECTOR, size))
                    count = lost.stop - lost.start
                    self.data[lost] = random.choice([bytes(count), random.randbytes(count)])
        self._settle()


class VirtualFolder(MemoryDisk):
    """A folder of a `VirtualDisk`."""

    _files: dict[str, VirtualFile]  # type: ignore[assignment] # it makes no others
    _folders: dict[str, VirtualFolder]  # type: ignore[assignment]

    def __init__(self, disk: VirtualDisk) -> None:
        super().__init__()
        self._disk = disk
        self._durable: dict[str, VirtualFile] = {}
        self._moves: list[tuple[str | None, str | None, VirtualFile]] = []  # old name, new name: not durable yet
        self._durable_folders: dict[str, VirtualFolder] = {}

    def open(self, name: str, *, new: bool = False) -> DiskFile:
        self._disk.spend("open")
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = VirtualFile(self._disk)
            self._moves.append((None, name, file))
        elif new:
            file.cut(0)
        return file

    def rename(self, old: str, new: str) -> None:
        self._disk.spend("rename")
        super().rename(old, new)
        self._moves.append((old, new, self._files[new]))

    def remove(self, name: str) -> None:
        self._disk.spend("remove")
        file = self._files.get(name)
        super().remove(name)
        if file is not None:
            self._moves.append((name, None, file))

    def sync_names(self) -> None:
        self._disk.spend("sync_names")
        if self._moves:
            self._durable = dict(self._files)
            self._moves.clear()
        if self._durable_folders != self._folders:
            self._durable_folders = dict(self._folders)

    def folder(self, name: str) -> Disk:
        self._disk.spend("folder")
        return self._folders.setdefault(name, VirtualFolder(self._disk))

    def remove_folder(self, name: str) -> None:
        self._disk.spend("remove_folder")
        super().remove_folder(name)

    def _crash(self, random: Random) -> None:
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
        changed = self._folders.items() ^ self._durable_folders.items()
        for name, folder in sorted(changed, key=lambda each: (each[0], each[1] is self._folders.get(each[0]))):
            if random.random() < 0.5:
                self._durable_folders[name] = folder
            else:
                self._durable_folders.pop(name, None)
        self._folders = dict(self._durable_folders)
        for folder in self._folders.values():
            folder._crash(random)

    def _unsynced(self, at: str) -> Iterator[str]:
        yield from (at + name for name, file in self._files.items() if not file.is_durable)
        for name, folder in self._folders.items():
            yield from folder._unsynced(f"{at}{name}/")


class VirtualDisk(VirtualFolder):
    """A `MemoryDisk` that can lose power, or fail, at any operation.

    :ivar random: decides what a hit append and a crash leave
    :ivar power_left: how many more operations succeed before power is lost; None if it is not
    :ivar is_off: whether power was lost before the present operation
    :ivar is_full: whether it takes no more bytes
    :ivar fails_in: how many more operations succeed before one fails, once, with EIO; None if none does
    :ivar repaired_after_ms: how long after such a failure the log is to be read again
    """

    def __init__(self, random: Random) -> None:
        super().__init__(self)
        self.random = random
        self.fails_in: int | None = None
        self.repaired_after_ms = 0
        self.power_left: int | None = None
        self.is_off = self.is_full = False

    @property
    def unsynced(self) -> set[str]:
        """Paths of the files with bytes, or a cut, that are not durable."""
        return set(self._unsynced(""))

    def spend(self, operation: str) -> None:
        """Count one operation that changes the disk.

        :param operation: its name, for disks that fail at one kind only
        :raises PowerCutError: power is or was lost
        :raises OSError: the operation fails
        """
        if operation == "append" and self.is_full:
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
        """Restore power after it was lost. Durable bytes stay. Of the other bytes of each file a random prefix stays,
        some sectors of which were never written. Of the changes to names that are not durable any subset happened."""
        self._crash(self.random)
        self.restart()

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
