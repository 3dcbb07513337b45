"""Histories from records: keys, order, commits, damage; any records at all."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire import messages as m
from kcoord_wire.forensics.model import LogRow, table_of
from kcoord_wire.forensics.records.reader import group_of, log_histories, log_history
from kcoord_wire.forensics.sources.frames import read_log
from kcoord_wire.records import encode_offsets_record
from tests.support.offsets_log import CONSUMER_GROUPS, MINUTE, NOW, generation, table


def commit(
    group: str, topic: str, partition: int, offset: int, version: int = 3, **fields: Any
) -> tuple[bytes, bytes | None]:
    key = m.OffsetCommitKey(group=group, topic=topic, partition=partition)
    return encode_offsets_record(key, m.OffsetCommitValue(offset=offset, **fields), value_version=version)


KEYS: list[Any] = [
    m.LegacyOffsetCommitKey(group="g", topic="t", partition=1),
    m.OffsetCommitKey(group="g", topic="t", partition=1),
    m.GroupMetadataKey(group="g"),
    m.ConsumerGroupMetadataKey(group_id="g"),
    m.ConsumerGroupPartitionMetadataKey(group_id="g"),
    m.ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
    m.ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
    m.ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
    m.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
    m.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="t.*"),
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: type(key).__name__)
def test_every_key_has_its_group(key: Any) -> None:
    raw, _ = encode_offsets_record(key, None)
    assert group_of(pa.array([raw, None, raw], pa.binary())).to_pylist() == ["g", None, "g"]
    for cut in range(len(raw)):
        assert group_of(pa.array([raw[:cut]], pa.binary())).to_pylist() == [None], "a torn key has none"
    assert group_of(pa.array([raw + b"x"], pa.large_binary())).to_pylist() == [None]


def test_keys_of_other_kinds() -> None:
    named = m.ShareGroupMetadataKey(group_id="g"), m.StreamsGroupTopologyKey(group_id="g")
    share, streams = (encode_offsets_record(key, None)[0] for key in named)
    unknown, negative, bad = b"\x03\xe7\0\1g", b"\0\x0b\xff\xff", b"\0\2\0\1\xff"
    keys = pa.chunked_array([[share, streams], [unknown, negative, bad, b""]], pa.binary())
    assert group_of(keys).to_pylist() == ["g", "g", None, None, None, None]
    assert group_of(pa.array([], pa.binary())).to_pylist() == []


def test_no_records_give_no_histories() -> None:
    assert log_histories(table([])) == []
    with pytest.raises(ValueError, match="0 groups"):
        log_history(table([(b"\0\x63", None)]))
    both = [commit(name, "t", 0, 1) for name in "gh"]
    with pytest.raises(ValueError, match=r"2 groups .'g', 'h'.*log_histories"):
        log_history(table(both))


def test_rows_with_an_error_are_left_out() -> None:
    rows = [LogRow("x.log", 0, -1, 7, 0, b"\0\2\0\1g", b"\0\3torn", "crc"), LogRow("x.log", 0, 0, 0, 0, None, b"v")]
    assert log_histories(table_of(LogRow, rows)) == []


def test_a_place_read_twice_counts_once() -> None:
    records = table([commit("g", "t", n % 2, n) for n in range(100)])
    again = records.set_column(0, records.schema.field(0), pa.array(["y.log"] * 100))
    history = log_history(pa.concat_tables([again, records, again.slice(10, 50)]))
    assert history == log_history(records)
    assert history.group.commits == 100


def test_parts_of_the_log_are_as_good_as_their_whole() -> None:
    segments = [pa.Table.from_batches(read_log(path)) for path in sorted(CONSUMER_GROUPS.glob("*/*/*.log"))]
    for segment in segments:
        whole = log_histories(segment)
        names = group_of(segment["key"])
        apart = [log_history(segment.filter(pa.compute.equal(names, history.group.group_id))) for history in whole]
        assert apart == whole


@pytest.mark.parametrize("version", ["3.9.2", "4.0.0", "4.1.0"])
def test_order_and_chunks_do_not_matter(version: str) -> None:
    records = pa.Table.from_batches(read_log(next(CONSUMER_GROUPS.glob(f"kafka-{version}/*/*.log"))))
    expected = log_histories(records)
    random = Random(version)
    for _ in range(17):
        order = random.sample(range(records.num_rows), records.num_rows)
        order += random.sample(order, 20)  # read twice
        cuts = sorted(random.sample(range(1, len(order)), random.randint(1, 9)))
        pieces = [records.take(order[a:b]) for a, b in pairwise([0, *cuts, len(order)])]
        assert log_histories(pa.concat_tables(pieces)) == expected


@pytest.mark.parametrize("version", range(5))
def test_commits_by_partition_and_minute(version: int) -> None:
    records = [commit("g", "t", n % 3, 10 * n, version, commit_timestamp=5) for n in range(90)]
    history = log_history(table(records, step=2_000_000_000))
    assert history.group.commits == 90
    assert (history.group.first_ns, history.group.last_ns) == (NOW, NOW + 89 * 2_000_000_000)
    assert [(row.from_ns, row.partition) for row in history.commits] == [
        (NOW + minute * MINUTE, partition) for minute in range(3) for partition in range(3)
    ]
    assert all(row.commits == 10 for row in history.commits)
    first = history.commits[0]
    assert (first.topic, first.first_offset, first.last_offset) == ("t", 0, 270)
    assert history.group.protocol_type is None
    assert history.group.blind[0].startswith("Only offsets")


def test_old_commits_and_forgotten_ones() -> None:
    key = m.LegacyOffsetCommitKey(group="g", topic="t", partition=0)
    old = encode_offsets_record(key, m.LegacyOffsetCommitValue(offset=4))
    gone = encode_offsets_record(m.OffsetCommitKey(group="g", topic="t", partition=0), None)
    history = log_history(table([old, commit("g", "t", 0, 5), gone, gone]))
    assert sum(row.commits for row in history.commits) == 2
    assert "2 committed offsets forgotten: expired or deleted, the log does not show which." in history.group.blind


def test_unreadable_records_are_counted() -> None:
    key, value = commit("g", "t", 0, 1)
    assert value is not None
    group_key, group_value = generation(1, {"a-1": [0]})
    assert group_value is not None
    share, _ = encode_offsets_record(m.ShareGroupMetadataKey(group_id="g"), None)
    records = [
        (key, value),
        (key, value[:-1]),
        (key, b"\0\x63" + value[2:]),
        (group_key, group_value[:-3]),
        (group_key, b""),
        (group_key, group_value),
        (share, b"anything"),
    ]
    history = log_history(table(records))
    assert history.group.commits == 1
    assert len(history.rebalances) == 1
    assert "5 records whose value could not be read." in history.group.blind


# ---- damage


def kafkas() -> list[tuple[bytes | None, bytes | None]]:
    segment = pa.Table.from_batches(read_log(next(CONSUMER_GROUPS.glob("kafka-4.0.0/*/*.log"))))
    return list(zip(segment["key"].to_pylist(), segment["value"].to_pylist(), strict=True))


REAL = kafkas()
numbers = st.integers(0, 24).map(lambda number: number.to_bytes(2, "big"))
groups = st.sampled_from([b"\0\1g", b"\0\1h", b"\0\0", b"\xff\xff", b"\0\1\xff"])
made_up = st.tuples(
    st.none() | st.builds(lambda *parts: b"".join(parts), numbers, groups, st.binary(max_size=12)),
    st.none() | st.binary(max_size=60),
)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes | None, bytes | None]:
    """One of Kafka's records, cut or with a flipped byte."""
    key, value = draw(st.sampled_from(REAL))
    for part in draw(st.sets(st.sampled_from(["key", "value"]))):
        data = bytearray((key if part == "key" else value) or b"")
        if data and draw(st.booleans()):
            data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
        else:
            data = data[: draw(st.integers(0, len(data)))]
        key, value = (bytes(data), value) if part == "key" else (key, bytes(data))
    return key, value


rows = st.lists(
    st.builds(
        lambda record, place, time: LogRow("x.log", place[0], place[1], 0, time, *record),
        st.one_of(st.sampled_from(REAL), damaged(), made_up),
        st.tuples(st.integers(0, 1), st.integers(0, 300)),
        st.integers(-(1 << 62), 1 << 62) | st.integers(0, 10).map(lambda n: NOW + n),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(rows)
def test_any_records_give_consistent_histories(records: list[LogRow]) -> None:
    histories = log_histories(table_of(LogRow, records))
    assert histories == log_histories(table_of(LogRow, records[::-1]))
    for one, other in pairwise(histories):
        assert one.group.group_id < other.group.group_id
    for history in histories:
        assert history.group.first_ns <= history.group.last_ns
        for item in [*history.ownership, *history.pauses, *history.states]:
            assert item.to_ns is None or item.from_ns < item.to_ns


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(REAL) - 1), max_size=40, unique=True))
def test_any_records_may_be_missing(missing: list[int]) -> None:
    """What compaction or lost segments leave is explained as well, with one history a group."""
    kept = [record for number, record in enumerate(REAL) if number not in missing]
    histories = log_histories(table(kept))
    assert {history.group.group_id for history in histories} == {"audit", "vault", "moving", "back"}
    for history in histories:
        numbers = [rebalance.number for rebalance in history.rebalances]
        assert numbers == [*range(1, len(numbers) + 1)]
