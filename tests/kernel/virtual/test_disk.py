"""Disks in memory: what a crash keeps of bytes and names and what it may lose, and failures in the middle of a call."""

from __future__ import annotations

from errno import EIO
from random import Random

import pytest

from kcoord_wire.kernel.disk import SECTOR, MemoryDisk
from kcoord_wire.kernel.virtual.disk import PowerCutError, VirtualDisk

SEEDS = range(40)


def write(disk: MemoryDisk, name: str, data: bytes, *, synced: bool = True) -> None:
    file = disk.open(name)
    file.append(data)
    if synced:
        file.sync()


def written(seed: int = 1) -> VirtualDisk:
    """A disk with a durable file of four bytes."""
    disk = VirtualDisk(Random(seed))
    write(disk, "a", b"safe")
    disk.sync_names()
    return disk


def content(disk: MemoryDisk, name: str) -> bytes:
    with disk.read(name) as file:
        return file.read()


@pytest.mark.parametrize("disk", [MemoryDisk(), VirtualDisk(Random(1))], ids=["memory", "virtual"])
def test_files_are_read_renamed_and_removed(disk: MemoryDisk) -> None:
    write(disk, "a", b"one")
    write(disk, "b", b"three")
    disk.rename("a", "b")
    assert disk.sizes() == {"b": 3}
    assert content(disk, "b") == b"one"
    disk.open("b", new=True)
    assert disk.sizes() == {"b": 0}
    disk.remove("b")
    for missing in (lambda: disk.read("b"), lambda: disk.remove("b"), lambda: disk.rename("b", "c")):
        with pytest.raises(FileNotFoundError):
            missing()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_keeps_synced_bytes_of_synced_names(seed: int) -> None:
    disk = written(seed)
    write(disk, "a", b"lost" * SECTOR, synced=False)
    disk.crash()
    assert content(disk, "a").startswith(b"safe")


def crashed(seed: int) -> dict[str, int]:
    """The sizes after a crash with unsynced bytes, an unsynced new file, a rename and a cut that was not synced."""
    disk = VirtualDisk(Random(seed))
    for name in ("bytes", "old", "cut"):
        write(disk, name, b"12")
    disk.sync_names()
    write(disk, "bytes", b"34", synced=False)
    write(disk, "new", b"1")
    disk.rename("old", "renamed")
    disk.open("cut").truncate(1)
    disk.crash()
    assert disk.unsynced == set()
    return disk.sizes()


def test_a_crash_loses_each_unsynced_change_or_keeps_it() -> None:
    outcomes = [crashed(seed) for seed in SEEDS]
    assert {sizes["bytes"] for sizes in outcomes} == {2, 3, 4}
    assert {sizes["cut"] for sizes in outcomes} == {1, 2}
    assert {"new" in sizes for sizes in outcomes} == {False, True}
    assert {("old" in sizes, "renamed" in sizes) for sizes in outcomes} == {(True, False), (False, True)}


def test_a_crash_may_leave_a_sector_unwritten() -> None:
    contents = set()
    for seed in SEEDS:
        disk = VirtualDisk(Random(seed))
        disk.open("a")
        disk.sync_names()
        write(disk, "a", b"x" * 3 * SECTOR, synced=False)
        disk.crash()
        contents |= set(content(disk, "a")[:SECTOR])
    assert {0, ord("x")} <= contents


def test_a_folder_is_durable_after_its_parent_was_synced() -> None:
    left = set()
    for seed in SEEDS:
        disk = VirtualDisk(Random(seed))
        for name in ("kept", "new"):
            folder = disk.folder(name)
            folder.open("a").append(b"1")
            if name == "kept":
                folder.open("a").sync()
                folder.sync_names()
                disk.sync_names()
        assert disk.unsynced == {"new/a"}
        disk.crash()
        assert disk.folder("kept").sizes() == {"a": 1}
        left.add("new" in disk.folders())
    assert left == {False, True}


def test_the_disk_knows_what_is_not_durable() -> None:
    disk = written()
    assert disk.unsynced == set()
    file = disk.open("a")
    file.append(b"more")
    assert disk.unsynced == {"a"}
    disk.rename("a", "b")
    assert disk.unsynced == {"b"}
    file = disk.open("b")
    file.sync()
    assert disk.unsynced == set()
    file.truncate(2)
    assert disk.unsynced == {"b"}
    disk.remove("b")
    assert disk.unsynced == set()
    assert disk.sizes() == {}


@pytest.mark.parametrize("seed", range(10))
def test_an_append_that_loses_power_leaves_a_prefix(seed: int) -> None:
    disk = written(seed)
    file = disk.open("a")
    disk.power_left = 0
    with pytest.raises(PowerCutError):
        file.append(b"123456")
    assert b"safe123456".startswith(content(disk, "a"))
    for step in (disk.sync_names, file.sync, lambda: file.append(b"x"), lambda: disk.remove("a")):
        with pytest.raises(PowerCutError):
            step()
    disk.crash()
    assert content(disk, "a").startswith(b"safe")
    disk.sync_names()


def test_one_operation_fails_and_the_next_succeeds() -> None:
    disk = written()
    disk.fails_in = 1
    file = disk.open("a")
    with pytest.raises(OSError, match="the disk has failed") as caught:
        file.sync()
    assert caught.value.errno == EIO
    file.sync()


def test_a_full_disk_takes_a_part_and_says_so() -> None:
    disk = VirtualDisk(Random(3))
    file = disk.open("log")
    disk.is_full = True
    with pytest.raises(OSError, match="full"):
        file.append(b"x" * 100)
    file.truncate(0)
    disk.is_full = False
    file.append(b"y")
    assert file.read(0, 10) == b"y"


def test_who_looks_from_outside_meets_no_fault() -> None:
    disk = VirtualDisk(Random(3))
    disk.power_left, disk.is_full = 0, True
    with disk.undisturbed():
        disk.open("log").append(b"x")
    assert disk.is_full
    with pytest.raises(PowerCutError):
        disk.open("log")
