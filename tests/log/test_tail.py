"""Writes that are made whole or not at all."""

from __future__ import annotations

from random import Random

import pytest

from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.log.tail import Tail, base_offset, segment_name, segment_names, write_file
from tests.support.logs import content


@pytest.mark.parametrize("failing", [{"append"}, {"sync"}, {"append", "truncate"}, {"sync", "truncate"}])
def test_a_failed_write_is_cut_off_at_once_or_before_the_next(
    failing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = VirtualDisk(Random(3))
    file = disk.open("log")
    tail = Tail()
    tail.write(file, b"one", sync=True)
    spend = disk.spend

    def fails(operation: str) -> None:
        spend(operation)
        if operation in failing:
            raise OSError(operation)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "spend", fails)
        with pytest.raises(OSError, match=r"append|sync"):
            tail.write(file, b"a long second write", sync=True)
    assert (content(disk)["log"] == b"one") == ("truncate" not in failing)
    tail.write(file, b"two", sync=False)
    assert (content(disk)["log"], tail.size) == (b"onetwo", 6)


def test_what_is_left_of_another_process_is_cut_off() -> None:
    disk = VirtualDisk(Random(3))
    file = disk.open("log")
    file.append(b"onetw")
    Tail(3, is_dirty=True).write(file, b"two", sync=False)
    assert content(disk)["log"] == b"onetwo"


def test_a_file_is_durable_when_it_is_written() -> None:
    disk = VirtualDisk(Random(3))
    disk.open("new").append(b"old")
    assert write_file(disk, "new", [b"a", b"b"]) == 2
    assert (content(disk), disk.unsynced) == ({"new": b"ab"}, set())


def test_segments_are_known_by_their_names() -> None:
    name = "00000000000000000042.log"
    assert (segment_name(42), base_offset(name)) == (name, 42)
    assert segment_names([name, "42.log", f"{name}.cut-0.1", segment_name(7), "topics.journal"]) == [
        segment_name(7),
        name,
    ]
