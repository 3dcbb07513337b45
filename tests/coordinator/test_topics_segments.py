"""Files of partitions: reads by the index, and what is made of a file that a crash has left, or that is damaged."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from kcoord_wire.coordinator.partitions.batch_header import check_batch
from kcoord_wire.coordinator.partitions.segments import OpenFiles, Segment
from kcoord_wire.kernel.disk import FolderDisk, MemoryDisk
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.log import segments
from kcoord_wire.records import Record, encode_batch, encode_message_set
from kcoord_wire.records.batch import crc32c
from tests.support.broker import values
from tests.support.logs import content, disk_of

NAME = "00000000000000000100.log"


def batch(offset: int, value: bytes = b"v", epoch: int = 0, at: int = 0) -> bytes:
    return encode_batch([Record(None, value, at, offset)], partition_leader_epoch=epoch)


def filled(count: int = 5, disk: MemoryDisk | VirtualDisk | None = None) -> Segment:
    """A segment of batches with one record, from offset 100 on, with the times 100, 110, 105 ..."""
    segment = Segment(MemoryDisk() if disk is None else disk, OpenFiles(), 100)
    segment.create()
    for number in range(count):
        data = batch(100 + number, at=100 + 10 * (number % 2) + number // 2)
        segment.append(data, 100 + number, check_batch(data, 1 << 20).max_timestamp)
    return segment


def read(data: bytes, *, last: bool = True, least_epoch: int = 0) -> tuple[Segment, list[int]]:
    segment = Segment(disk_of({NAME: data}), OpenFiles(), 100)
    return segment, [head.base_offset for _, head, _ in segment.recover("orders-0", least_epoch, last=last)]


def offsets(data: bytes) -> list[int]:
    return [offset for offset, _ in values(data)]


def test_whole_batches_up_to_a_size_and_an_offset() -> None:
    segment = filled()
    size = segment.size // 5
    assert offsets(segment.read(100, 105, 1 << 20, False)) == [100, 101, 102, 103, 104]
    assert offsets(segment.read(102, 105, 2 * size, False)) == [102, 103]
    assert offsets(segment.read(102, 105, 2 * size - 1, False)) == [102]
    assert [offsets(segment.read(102, 105, least, True)) for least in (-5, 0, 1)] == [[102]] * 3
    assert segment.read(102, 105, size - 1, False) == b""
    assert offsets(segment.read(100, 102, 1 << 20, False)) == [100, 101]
    assert segment.read(105, 109, 1 << 20, True) == segment.read(102, 102, 1 << 20, True) == b""
    assert [segment.bytes_between(*bounds) for bounds in ((100, 105), (102, 104), (104, 102))] == [
        5 * size,
        2 * size,
        0,
    ]


def test_the_first_batch_of_a_time() -> None:
    segment = filled()
    found = [segment.first_since(time, 100) for time in (0, 101, 111, 112)]
    assert [offsets(data or b"") for data in found] == [[100], [101], [103], []]
    assert offsets(segment.first_since(0, 103) or b"") == [103]
    assert (segment.latest(100), segment.latest(104), segment.latest(105)) == (111, 102, -1)


def content_of(segment: Segment) -> bytes:
    return segment.read(100, 1 << 40, 1 << 30, True)


def is_cut(data: bytes, left: int) -> None:
    """The last `left` bytes are torn: they are cut off, kept nowhere, and the log goes on."""
    segment, found = read(data)
    assert (segment.torn, segment.damage) == (left, "")
    assert segment.repair() == ""
    assert segment.torn == 0
    segment.append(batch(found[-1] + 1, b"again"), found[-1] + 1, 0)
    assert content(segment._folder) == {NAME: content_of(segment)}
    assert content_of(segment)[: len(data) - left] == data[: len(data) - left]
    assert values(content_of(segment))[-1] == (found[-1] + 1, b"again")


def test_a_torn_last_batch_is_cut_off() -> None:
    whole, size = content_of(filled()), len(batch(104))
    for cut in range(1, size):
        is_cut(whole[:-cut], size - cut)
    is_cut(whole[:-size] + bytes(700), 700)  # sectors that were never written
    holding = batch(101, batch(102) * 3)  # a record may have any value, a whole batch of a later offset too
    is_cut(content_of(filled(1)) + holding[:-5], len(holding) - 5)


def test_records_full_of_headers_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer may send what looks like a batch at each byte; where that is damaged, it counts as damage."""
    header = (1 << 60).to_bytes(8, "big") + (100_000).to_bytes(4, "big") + bytes(4) + b"\2"
    whole = batch(100, header * 20_000)
    checked = 0

    def counting(data: memoryview) -> int:
        nonlocal checked
        checked += len(data)
        return crc32c(data)

    monkeypatch.setattr(segments, "crc32c", counting)
    segment, found = read(whole[:-1] + b"\xff")
    assert found == []
    assert segment.damage
    assert 50 * len(whole) < checked <= 66 * len(whole)


def marker(records: list[Record]) -> bytes:
    """A control batch of offset 101."""
    kind = {"transactional": True, "control": True, "producer_id": 1, "producer_epoch": 0}
    return encode_batch(records, **kind, base_offset=101, partition_leader_epoch=0)


DAMAGE = {
    "a bit": (lambda data, size: data[: size + 65] + bytes([data[size + 65] ^ 1]) + data[size + 66 :], "checksum"),
    "a batch twice": (lambda data, size: data[:size] + data, "offset 100 where 101 is due"),
    "a hole": (lambda data, size: data[:size] + bytes(9) + data[size:], "0 bytes of a batch, where"),
    "an old batch": (lambda data, size: data[:size] + data[:size], "offset 100 where 101 is due"),
    "a message set": (
        lambda data, size: data[:size] + encode_message_set([Record(None, b"v", 0, 101)]),
        "a batch of a kind that this log does not have",
    ),
    "a marker without a key": (
        lambda data, size: data[:size] + marker([Record(None, b"v", 0, 101)]),
        "ControlRecord.key",
    ),
    "a marker of one byte": (
        lambda data, size: data[:size] + marker([Record(bytes([0, 0, 0, 1]), b"v", 0, 101)]),
        "a control batch that cannot be read",
    ),
    "a control batch without a record": (
        lambda data, size: data[:size] + marker([]),
        "a control batch without a record",
    ),
    "an epoch": (lambda data, size: batch(100, epoch=2) + data[size:], "leader epoch 0 after one of 2"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_in_the_last_file_is_cut_off_and_kept(name: str) -> None:
    damage, reason = DAMAGE[name]
    size = len(batch(100))
    data = damage(content_of(filled()), size)
    segment, found = read(data)
    assert (found, segment.torn) == ([100], len(data) - size)
    assert f"orders-0/{NAME} at byte {size}, offset 101: " in segment.damage
    assert reason in segment.damage
    kept = segment.repair()
    assert content(segment._folder) == {NAME: data[:size], kept: data[size:]}
    segment.append(batch(101, b"again"), 101, 0)
    assert values(content_of(segment))[1:] == [(101, b"again")]


def test_what_was_kept_before_is_not_replaced() -> None:
    size = len(batch(100))
    damage, _ = DAMAGE["a bit"]
    data = damage(content_of(filled()), size)
    disk = disk_of({NAME: data})
    names = set()
    for more in (b"", b"x"):
        disk.open(NAME, new=True).append(data + more)
        segment = Segment(disk, OpenFiles(), 100)
        assert len(list(segment.recover("orders-0", 0, last=True))) == 1
        names.add(segment.repair())
    assert sorted(content(disk)[name] for name in names) == [data[size:], data[size:] + b"x"]


@pytest.mark.parametrize("fails_in", range(6))
def test_nothing_is_cut_before_it_is_kept(fails_in: int) -> None:
    disk = VirtualDisk(Random(fails_in))
    damage, _ = DAMAGE["a bit"]
    data = damage(content_of(filled()), len(batch(100)))
    disk.open(NAME).append(data)
    segment = Segment(disk, OpenFiles(), 100)
    assert len(list(segment.recover("orders-0", 0, last=True))) == 1
    disk.fails_in = fails_in  # opening the log and the copy, write, fsync, fsync of the folder, cut
    with pytest.raises(OSError, match="failed"):
        segment.repair()
    assert content(disk)[NAME] == data


def test_what_is_cut_off_before_other_files_is_kept() -> None:
    data = content_of(filled())[:-1]
    segment, found = read(data, last=False)
    assert found == [100, 101, 102, 103]
    kept = segment.repair()
    assert content(segment._folder) == {NAME: data[: segment.size], kept: data[segment.size :]}


def test_a_file_that_is_set_aside_replaces_none() -> None:
    disk = disk_of({NAME: b"old"})
    names = set()
    for more in (b"", b"new"):
        disk.open(NAME).append(more)
        name, size = Segment(disk, OpenFiles(), 100).set_aside()
        names.add((name, size))
        disk.open(NAME)
    assert [size for _, size in sorted(names)] == [3, 3]
    assert sorted(content(disk)[name] for name, _ in names) == [b"new", b"old"]


def test_a_failed_write_leaves_the_segment_as_it_was() -> None:
    for seed in range(10):
        disk = VirtualDisk(Random(seed))
        segment = filled(3, disk)
        disk.fails_in = 0
        with pytest.raises(OSError, match="failed"):
            segment.append(batch(103), 103, 0)
        assert offsets(content_of(segment)) == [100, 101, 102]
        segment.append(batch(103, b"next"), 103, 0)
        assert values(content_of(segment))[3:] == [(103, b"next")]
        assert content(disk)[NAME] == content_of(segment)


def test_a_file_that_has_become_shorter_is_an_error() -> None:
    disk = MemoryDisk()
    segment = filled(3, disk)
    disk.open(NAME).truncate(10)
    with pytest.raises(OSError, match="10 bytes at 0, where"):
        content_of(segment)


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
    assert files.get(disk, "a", new=True).read(0, 10) == b""
    for _ in range(2):
        files.close(disk, "a")
    assert disk.sizes()["a"] == 0
    files.close_all()
