"""Shares of a segment have the rows of the whole, wherever it is cut and whatever is damaged."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.forensics.sources.frames import read_log
from kcoord_wire.records import Compression, Record, end_transaction_record
from kcoord_wire.records.batch import encode_batch
from kcoord_wire.records.control import ControlType
from kcoord_wire.records.message_set import encode_message_set
from tests.support.segments import commit, rows

CONSUMER_GROUPS = Path(__file__).parents[2] / "data" / "consumer_groups"
KINDS = ("plain", "packed", "old", "imitating", "transactional", "commit", "abort")


def batch_of(kind: str, offset: int, producer: int) -> bytes:
    records = [commit(f"g{producer}", offset + number) for number in range(1 + offset % 3)]
    own = {"producer_id": producer, "producer_epoch": 0}
    if kind == "packed":
        return encode_batch(records, base_offset=offset, compression=Compression.GZIP)
    if kind == "old":
        return encode_message_set(records[:1], magic=1, base_offset=offset)
    if kind == "imitating":
        inner = encode_batch([commit("imitated", 1)], base_offset=offset)
        return encode_batch([Record(b"key", inner * 2)], base_offset=offset)
    if kind == "transactional":
        return encode_batch(records, base_offset=offset, transactional=True, base_sequence=0, **own)
    if kind in ("commit", "abort"):
        control = ControlType.COMMIT if kind == "commit" else ControlType.ABORT
        end = [end_transaction_record(control, 1)]
        return encode_batch(end, base_offset=offset, transactional=True, control=True, **own)
    return encode_batch(records, base_offset=offset)


def segment_of(kinds: list[tuple[str, int]]) -> bytes:
    return b"".join(batch_of(kind, 3 * number, producer) for number, (kind, producer) in enumerate(kinds))


def shares(size: int, cuts: list[int]) -> list[range]:
    borders = sorted({0, size, *(cut % size for cut in cuts)})
    return [range(start, stop) for start, stop in pairwise(borders)]


def assert_equal_in_shares(path: Path, cuts: list[int]) -> None:
    whole = rows(read_log(path))
    found = [row for share in shares(path.stat().st_size, cuts) for row in rows(read_log(path, share=share))]
    assert found == whole


@settings(max_examples=150, deadline=None)
@given(
    kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3)), min_size=1, max_size=25),
    cuts=st.lists(st.integers(0, 2**20), max_size=8),
    flips=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 7)), max_size=4),
    tail=st.sampled_from((b"", bytes(500), b"\x00\x00\x01 torn")),
)
def test_shares_have_the_rows_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: list[tuple[str, int]],
    cuts: list[int],
    flips: list[tuple[int, int]],
    tail: bytes,
) -> None:
    data = bytearray(segment_of(kinds) + tail)
    for at, bit in flips:
        data[at % len(data)] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / f"{0:020}.log"
    path.write_bytes(data)
    assert_equal_in_shares(path, cuts)


def test_64_shares_of_a_segment(tmp_path: Path) -> None:
    rng = random.Random(3)
    data = segment_of([(rng.choice(KINDS), rng.randint(1, 5)) for _ in range(600)])
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(data)
    found = rows(read_log(path))
    assert any(row["error"] is None and row["position"] < before["position"] for before, row in pairwise(found))
    assert_equal_in_shares(path, [len(data) * number // 64 for number in range(64)])


@pytest.mark.parametrize("path", sorted(CONSUMER_GROUPS.rglob("*.log")), ids=lambda path: path.parts[-3])
def test_segments_of_brokers(path: Path) -> None:
    size = path.stat().st_size
    assert_equal_in_shares(path, [size * number // 64 for number in range(64)])


def test_a_value_that_imitates_a_batch_begins_no_share(tmp_path: Path) -> None:
    data = batch_of("imitating", 0, 1)
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(data + batch_of("plain", 3, 1))
    middle = data.index(encode_batch([commit("imitated", 1)], base_offset=0))
    assert rows(read_log(path, share=range(middle, len(data)))) == []


def test_a_transaction_is_decided_where_its_marker_is(tmp_path: Path) -> None:
    """Its first batch is damaged, its second before the share: only what is sound is committed."""
    first, second, end = (
        batch_of(kind, 3 * n, 1) for n, kind in enumerate(("transactional", "transactional", "commit"))
    )
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(first[:-1] + bytes([first[-1] ^ 1]) + second + end)
    found = rows(read_log(path, share=range(len(first) + len(second), path.stat().st_size)))
    assert {row["position"] for row in found} == {len(first)}
    assert all(row["error"] is None for row in found)
    assert_equal_in_shares(path, [len(first), len(first) + len(second)])


@pytest.mark.parametrize("left", [0, 100])
def test_shares_of_a_file_that_was_cut_are_losses(tmp_path: Path, left: int) -> None:
    data = batch_of("plain", 0, 1) * 8
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(data[:left])
    middle = len(data) // 2
    [lost] = rows(read_log(path, share=range(middle, len(data))))
    assert (lost["position"], lost["lost"]) == (middle, len(data) - middle)
    assert lost["error"] == f"the file was cut from {len(data)} to {left} bytes while it was read"
