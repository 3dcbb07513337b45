"""Files that are open: no more than so many, the least recently used are closed."""

from __future__ import annotations

from pathlib import Path

from kcoord_wire.coordinator.partitions.segments import OpenFiles
from kcoord_wire.kernel.disk import FolderDisk


def test_the_least_recently_used_file_is_closed(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    files = OpenFiles(2)
    first = files.get(disk, "a")
    first.append(b"one")
    files.get(disk, "b")
    assert files.get(disk, "a") is first
    files.get(disk, "c")
    files.get(disk, "d")
    again = files.get(disk, "a")
    assert again is not first
    again.append(b"two")
    assert again.read(0, 10) == b"onetwo"
    files.close_all()


def test_a_new_file_is_empty(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    files = OpenFiles()
    files.get(disk, "a").append(b"old")
    assert files.get(disk, "a", new=True).read(0, 10) == b""
    files.close(disk, "a")
    files.close(disk, "a")
    assert disk.sizes() == {"a": 0}
