"""The folder of a log on a real disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.kernel.disk import FileDisk, FolderDisk, LogInUseError
from tests.support.logs import (
    STATES,
    WRITES,
    recovered,
    write,
)


def test_a_folder_has_one_coordinator(tmp_path: Path) -> None:
    first = FileDisk(tmp_path)
    with pytest.raises(LogInUseError, match=r"in use by another coordinator.*\.lock") as caught:
        FileDisk(tmp_path)
    assert caught.value.path == tmp_path / ".lock"
    first.close()
    FileDisk(tmp_path).close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        FileDisk(tmp_path / "file")


def test_a_full_disk_takes_a_part_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    disk = FolderDisk(tmp_path / "__consumer_offsets-0")
    store, _ = recovered(disk)
    write(store, *WRITES)
    monkeypatch.undo()
    assert recovered(disk)[1] == STATES[-1]
    store.close()
