"""The disk that loses power or fails in the middle of what it does."""

from __future__ import annotations

from errno import EIO
from random import Random

import pytest

from kcoord_wire.kernel.virtual.disk import PowerCutError, VirtualDisk


def written(seed: int = 1) -> VirtualDisk:
    """A disk with a durable file of four bytes."""
    disk = VirtualDisk(Random(seed))
    file = disk.open("a")
    file.append(b"safe")
    file.sync()
    disk.sync_names()
    return disk


def content(disk: VirtualDisk, name: str) -> bytes:
    with disk.read(name) as file:
        return file.read()


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
