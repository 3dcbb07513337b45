"""The disk in memory: what a crash keeps of bytes and names, and what it may lose."""

from __future__ import annotations

from random import Random

import pytest

from kcoord_wire.kernel.disk import SECTOR, MemoryDisk

SEEDS = range(40)


def written(disk: MemoryDisk, name: str, data: bytes, *, synced: bool = True) -> None:
    file = disk.open(name)
    file.append(data)
    if synced:
        file.sync()


def test_files_are_read_renamed_and_removed() -> None:
    disk = MemoryDisk()
    written(disk, "a", b"one")
    written(disk, "b", b"three")
    disk.rename("a", "b")
    assert disk.sizes() == {"b": 3}
    assert disk.read("b").read() == b"one"
    disk.open("b", new=True)
    assert disk.sizes() == {"b": 0}
    disk.remove("b")
    with pytest.raises(FileNotFoundError):
        disk.read("b")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_keeps_synced_bytes_of_synced_names(seed: int) -> None:
    disk = MemoryDisk()
    written(disk, "a", b"kept")
    disk.sync_names()
    written(disk, "a", b"lost" * SECTOR, synced=False)
    disk.crash(Random(seed))
    assert disk.read("a").read().startswith(b"kept")


def crashed(seed: int) -> dict[str, int]:
    """The sizes after a crash with unsynced bytes, an unsynced new file, a rename and a cut that was not synced."""
    disk = MemoryDisk()
    for name in ("bytes", "old", "cut"):
        written(disk, name, b"12")
    disk.sync_names()
    written(disk, "bytes", b"34", synced=False)
    written(disk, "new", b"1")
    disk.rename("old", "renamed")
    disk.open("cut").truncate(1)
    disk.crash(Random(seed))
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
        disk = MemoryDisk()
        disk.open("a")
        disk.sync_names()
        written(disk, "a", b"x" * 3 * SECTOR, synced=False)
        disk.crash(Random(seed))
        contents |= set(disk.read("a").read()[:SECTOR])
    assert {0, ord("x")} <= contents
