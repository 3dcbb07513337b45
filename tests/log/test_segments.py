"""Segments that a crash has torn, that are damaged, or that something else has written.

In a log whose writes are each synced, seen through a `Store`; what logs without that make of the same is in
tests/coordinator/test_topics_segments.py.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.kernel.disk import SECTOR, FolderDisk, MemoryDisk
from kcoord_wire.log.tail import CorruptLogError
from kcoord_wire.records import (
    Compression,
    Record,
    encode_batch,
    encode_message_set,
    encode_offsets_record,
)
from kcoord_wire.records.batch import AT_CHECKED, HEADER_SIZE, LENGTH_FROM, UNCHECKED, crc32c
from tests.support.logs import (
    FIRST,
    NOW,
    STATES,
    WRITES,
    State,
    batches,
    commit,
    content,
    disk_of,
    log_of,
    recovered,
    write,
)


def refuses(files: dict[str, bytes], reason: str = ".", *, position: int | None = None) -> None:
    """The log is not read for this reason, and no file is touched."""
    disk = disk_of(files)
    with pytest.raises(CorruptLogError, match=reason) as caught:
        Store(disk).recover()
    assert caught.value.file in files
    assert position in (None, caught.value.position)
    assert content(disk) == files


def is_cut(data: bytes, size: int, state: State) -> None:
    """What follows `size` bytes is cut off, and the log goes on."""
    disk = disk_of({FIRST: data})
    store, found = recovered(disk)
    assert (found, store.recovered.truncated, disk.sizes()) == (state, len(data) - size, {FIRST: size})
    write(store, [commit("z", 0, 1)])
    assert recovered(disk)[1] == {**state, ("z", 0): 1}


DATA, BOUNDS = log_of(*WRITES)
LAST = BOUNDS[-2]
"""Where the last write begins."""


def test_a_log_cut_at_every_byte_is_a_whole_number_of_writes() -> None:
    for end in range(len(DATA) + 1):
        whole = max(n for n, bound in enumerate(BOUNDS) if bound <= end)
        is_cut(DATA[:end], BOUNDS[whole], STATES[whole])


def test_a_cut_that_is_not_at_the_end_of_the_log_is_refused() -> None:
    for end in range(len(DATA)):
        refuses({FIRST: DATA[:end], f"{sum(map(len, WRITES)):020}.log": b""})


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_damage_is_refused_or_cuts_off_the_last_write(flip: int) -> None:
    for at in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[at] ^= flip
        if at < LAST:
            refuses({FIRST: bytes(damaged)}, position=max(bound for bound in BOUNDS if bound <= at))
        elif at >= LAST + 21:
            is_cut(bytes(damaged), LAST, STATES[-2])
        else:  # what the checksum does not cover
            try:
                is_cut(bytes(damaged), LAST, STATES[-2])
            except CorruptLogError:
                refuses({FIRST: bytes(damaged)}, position=LAST)


@pytest.mark.parametrize("length", [-1, 0, 1, 48, 49, 200, 10_000, 1 << 30, (1 << 31) - 1])
def test_a_damaged_length_does_not_hide_what_follows(length: int) -> None:
    for bound in BOUNDS[:-2]:
        at = bound + 8
        damaged = DATA[:at] + length.to_bytes(4, "big", signed=True) + DATA[at + 4 :]
        refuses({FIRST: damaged}, position=bound)


def test_two_damaged_batches_at_the_end_are_more_than_one_write() -> None:
    damaged = bytearray(DATA)
    for start in BOUNDS[-3:-1]:
        damaged[start + 70] ^= 1
    refuses({FIRST: bytes(damaged)}, "checksum")


@pytest.mark.parametrize("junk", [b"\0", b"\xff", b"{"])
def test_a_tail_that_holds_no_batch_is_cut_off(junk: bytes) -> None:
    for size in (1, 12, 61, 512, 5000):
        is_cut(DATA + junk * size, len(DATA), STATES[-1])


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize("filler", [0, 0x5A])
def test_any_sector_of_the_last_write_may_be_missing(lost: int, filler: int) -> None:
    for shift in range(SECTOR):
        start = 300 + shift
        # two groups of records: the first fills the file up to `start`, the second begins there
        padding = start - len(log_of([commit("a", 0, 1)])[0])
        pad = commit("a", 0, 1, "x" * padding)
        assert pad.value is not None
        while (size := len(log_of([pad])[0])) > start:
            pad.value.metadata = pad.value.metadata[: start - size]
        data, bounds = log_of([pad], [commit("b", n, n, "y" * 90) for n in range(12)])
        sector = (bounds[1] // SECTOR + lost) * SECTOR
        gone = slice(max(sector, bounds[1]), min(sector + SECTOR, len(data)))
        damaged = bytearray(data)
        damaged[gone] = bytes([filler]) * (gone.stop - gone.start)
        if damaged != data:
            is_cut(bytes(damaged), bounds[1], {("a", 0): 1})


def test_log_bytes_in_a_torn_record_are_not_a_batch() -> None:
    """A client may store what it likes in its assignment: an old batch there proves nothing."""
    old, _ = log_of(*WRITES)
    member = kw.GroupMetadataValueMemberMetadata(member_id="m", assignment=old)
    group = LogRecord(kw.GroupMetadataKey(group="g"), kw.GroupMetadataValue(protocol_type="t", members=[member]))
    data, bounds = log_of(*WRITES, [group])
    assert old in data[bounds[-2] :]
    is_cut(data[:-1], bounds[-2], STATES[-1])


def test_a_wild_length_costs_no_memory(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path / "__consumer_offsets-0")
    store, _ = recovered(disk)
    write(store, [commit("a", 0, 1)])
    bound = disk.sizes()[FIRST]
    write(store, [commit("a", 0, 2)])
    store.close()
    with (tmp_path / "__consumer_offsets-0" / FIRST).open("r+b") as file:
        file.seek(bound + 8)
        file.write(((1 << 31) - 1).to_bytes(4, "big"))
    tracemalloc.start()
    try:
        store, found = recovered(FolderDisk(tmp_path / "__consumer_offsets-0"))
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    store.close()
    assert found == {("a", 0): 1}


def raw(*records: tuple[bytes | None, bytes | None], **options: int) -> bytes:
    placed = [Record(key, value, NOW) for key, value in records]
    return encode_batch(placed, **{"base_offset": 0, "partition_leader_epoch": 0, **options})  # type: ignore[arg-type]


def ending_at(last_offset_delta: int) -> bytes:
    """A batch of offset 0 without records, which no encoder makes."""
    checked = bytearray(encode_batch([], base_offset=0, partition_leader_epoch=0)[AT_CHECKED:])
    checked[2:6] = last_offset_delta.to_bytes(4, "big", signed=True)
    return UNCHECKED.pack(0, HEADER_SIZE - LENGTH_FROM, 0, 2, crc32c(bytes(checked))) + checked


KEY, VALUE = encode_offsets_record(*commit("a", 0, 1))
assert VALUE is not None


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (raw((KEY, b"\0\5" + VALUE[2:])), "OffsetCommitValue"),
        (raw((KEY, VALUE + b"\0")), "OffsetCommitValue"),
        (raw((KEY[:-1], VALUE)), "OffsetCommitKey"),
        (raw((None, VALUE)), "key"),
        (raw((KEY, VALUE), partition_leader_epoch=1), "leader epoch 1"),
        (raw((KEY, VALUE), base_offset=1), "offset 1 where 0 is due"),
        (ending_at(-1), "last offset delta of -1"),
        (ending_at(-(1 << 31)), "last offset delta of -2147483648"),
        (raw((KEY, VALUE), producer_id=5, producer_epoch=0), "kind"),
        (raw((KEY, VALUE), compression=Compression.GZIP), "kind"),
        (raw((KEY, VALUE), transactional=True), "kind"),
        (encode_message_set([Record(KEY, VALUE, NOW, 0)]), "kind"),
    ],
    ids=range(12),
)
@pytest.mark.parametrize("last", [True, False])
def test_a_whole_batch_that_this_log_does_not_have(batch: bytes, reason: str, last: bool) -> None:
    refuses({FIRST: batch} if last else {FIRST: batch, f"{1:020}.log": b""}, reason, position=0)


@pytest.mark.parametrize(
    "foreign",
    [
        raw((KEY, VALUE), compression=Compression.GZIP),
        encode_message_set([Record(KEY, VALUE, NOW, 0)], compression=Compression.GZIP),
    ],
    ids=["batch", "message set"],
)
def test_foreign_batches_need_no_library_to_be_refused(foreign: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def decompress(*_: object, **__: object) -> bytes:
        raise MissingLibraryError("a library", "records", "for a test")

    for module in ("batch", "message_set"):
        monkeypatch.setattr(f"kcoord_wire.records.{module}.decompress", decompress)
    refuses({FIRST: foreign}, "kind", position=0)


def test_an_unknown_version_is_refused_though_it_was_replaced() -> None:
    refuses({FIRST: raw((KEY, VALUE), (KEY, b"\0\5" + VALUE[2:]), (KEY, VALUE))}, "OffsetCommitValue")


def test_records_of_unknown_types_are_left_alone() -> None:
    unknown = raw((b"\0\x63?", b"x"), (KEY, VALUE), (b"\0\x63?", b"y"))
    disk = disk_of({FIRST: unknown})
    store, found = recovered(disk)
    assert (found, store.recovered.ignored) == ({("a", 0): 1}, 1)
    store.compact()
    (batch,) = batches(content(disk)[FIRST])
    assert [record.value for record in batch.records] == [VALUE, b"y"]


def test_files_of_others_are_left_alone() -> None:
    others = {"partition.metadata": b"version: 0", "00000000000000000000.index": b"", "leader-epoch-checkpoint": b"0"}
    disk = disk_of({FIRST: DATA, **others})
    assert recovered(disk)[1] == STATES[-1]
    assert content(disk) == {FIRST: DATA, **others}


def segmented() -> dict[str, bytes]:
    disk = MemoryDisk()
    store = Store(disk, segment_bytes=1)
    store.recover()
    for records in WRITES:
        write(store, records)
    return content(disk)


def test_a_segment_that_is_missing_or_there_twice_is_noticed() -> None:
    names = sorted(segmented())
    for missing in names[:-1]:
        refuses({name: data for name, data in segmented().items() if name != missing}, "is due")
    refuses({**segmented(), f"{int(names[1][:20]) + 1:020}.log": segmented()[names[1]]}, "is due")
