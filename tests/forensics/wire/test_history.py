"""Histories of the captured clients, as their README describes them; no order, chunk, loss or hole breaks one.

Evidence names the packet that Wireshark shows, or the byte of a recording.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.capture.pcap import read_packets
from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.model import Evidence, Exchange, GroupHistory, Sighting, arrow_schema, table_of
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.forensics.wire.history import wire_history
from kcoord_wire.recorder.recording import Recorded, read_recording, recording_files
from tests.support.exchange_script import Script, at
from tests.support.recordings import record_capture

CAPTURES = Path(__file__).parents[2] / "data" / "captures"
NAMES = ("eager_range", "cooperative", "static_bounce", "aiokafka")
ALL = {"orders": range(4), "payments": range(4)}


@cache
def captured(name: str) -> tuple[pa.Table, pa.Table]:
    matcher = Matcher()
    matched = [matcher.feed(frames) for frames in read_frames(CAPTURES / f"{name}.pcap")]
    matched.append(matcher.finish())
    exchanges = pa.Table.from_batches([batch for batch, _ in matched], schema=arrow_schema(Exchange))
    topics = pa.Table.from_batches([batch for _, batch in matched], schema=arrow_schema(Sighting))
    return exchanges, topics


@cache
def history_of(name: str) -> GroupHistory:
    return wire_history(*captured(name))


def summary(name: str) -> list[tuple[int | None, str, str | None, str, int]]:
    """Generation, cause, client, outcome and members afterwards of each rebalance."""
    return [
        (each.generation_id, each.cause, each.client_id, each.outcome, each.members_after)
        for each in history_of(name).rebalances
    ]


def owners(history: GroupHistory, generation: int) -> dict[str | None, set[tuple[str, int]]]:
    found: dict[str | None, set[tuple[str, int]]] = {}
    for row in history.ownership:
        if row.generation_id == generation:
            found.setdefault(row.client_id, set()).add((row.topic, row.partition))
    return found


# ---- the four captures


def test_eager_range() -> None:
    """c1 joins, 6 s later c2, 3 s later c3; c2 and c3 leave, then c1, whose LeaveGroup comes behind its own join."""
    assert summary("eager_range") == [
        (2, Cause.NEW_MEMBER, "c1", "stable", 1),
        (3, Cause.NEW_MEMBER, "c2", "stable", 3),
        (4, Cause.MEMBER_LEFT, "c2", "interrupted", 2),
        (5, Cause.MEMBER_LEFT, "c1", "interrupted", 1),
        (6, Cause.MEMBER_LEFT, "c3", "empty", 0),
    ]
    history = history_of("eager_range")
    first, second = history.rebalances[:2]
    assert (second.started_ns - first.started_ns) // 10**8 == 59
    assert "c3 (127.0.0.1) joined" in second.detail
    assert (second.last_client_id, round((second.late_ms or 0) / 1000)) == ("c3", 3)
    assert (second.cooperative, second.assignor, second.moved, second.moved_needlessly) == (False, "range", 4, 0)
    assert owners(history, 3) == {
        "c1": {("orders", 0), ("orders", 1), ("payments", 0), ("payments", 1)},
        "c2": {("orders", 2), ("payments", 2), ("payments", 3)},
        "c3": {("orders", 3)},
    }
    assert len([pause for pause in history.pauses if pause.rebalance == 2]) == 8  # eager: all of them
    assert [life.topics for life in history.members] == [["orders", "payments"]] * 2 + [["orders"]]
    assert {life.library for life in history.members} == {"librdkafka"}
    assert history.group.blind == []


def test_cooperative() -> None:
    """Each rebalance takes two rounds; then c2 leaves, then c3 and c1."""
    assert summary("cooperative") == [
        (2, Cause.NEW_MEMBER, "c1", "stable", 1),
        (3, Cause.NEW_MEMBER, "c2", "stable", 3),
        (4, Cause.COOPERATIVE_FOLLOW_UP, "c1", "stable", 3),
        (5, Cause.MEMBER_LEFT, "c2", "stable", 2),
        (6, Cause.MEMBER_LEFT, "c3", "empty", 0),
    ]
    history = history_of("cooperative")
    assert [each.cooperative for each in history.rebalances] == [True] * 4 + [None]
    assert [each.moved for each in history.rebalances] == [0, 0, 5, 3, 0]
    assert all(each.moved_needlessly == 0 for each in history.rebalances)
    kept = [row for row in history.ownership if row.client_id == "c1" and (row.topic, row.partition) == ("payments", 1)]
    assert len(kept) == 1, "a cooperative member holds what it keeps all the time"
    follow_up = history.rebalances[2]
    assert "gave up 5 partitions" in follow_up.detail
    assert len(follow_up.evidence) == 2


def test_static_bounce() -> None:
    """c2 closes and is back as c2b with the same instance id; the mock cluster rebalances for that."""
    assert summary("static_bounce") == [
        (2, Cause.NEW_MEMBER, "c2", "stable", 2),
        (3, Cause.STATIC_REPLACED, "c2b", "stable", 2),
    ]
    history = history_of("static_bounce")
    assert history.rebalances[1].instance_id == "inst-2"
    assert history.rebalances[1].moved == 0, "the same instance is the same owner"
    assert [(life.client_id, life.why_left) for life in history.members] == [
        ("c2", "replaced"), ("c1", None), ("c2b", None),
    ]  # fmt: skip


def test_aiokafka() -> None:
    """aio1 joins, 4 s later aio2, which leaves 8 s later; then aio1 leaves."""
    assert summary("aiokafka") == [
        (2, Cause.NEW_MEMBER, "aio1", "stable", 1),
        (3, Cause.NEW_MEMBER, "aio2", "stable", 2),
        (4, Cause.MEMBER_LEFT, "aio2", "stable", 1),
        (5, Cause.MEMBER_LEFT, "aio1", "empty", 0),
    ]
    history = history_of("aiokafka")
    assert [life.library for life in history.members] == ["aiokafka", "aiokafka"]
    assert [each.moved for each in history.rebalances] == [0, 4, 4, 0]
    assert history.group.protocol_type == "consumer"


@pytest.mark.parametrize("name", NAMES)
def test_every_partition_has_one_owner_at_a_time(name: str) -> None:
    history = history_of(name)
    for topic, partitions in ALL.items():
        for partition in partitions:
            spans = [
                (row.from_ns, row.to_ns)
                for row in history.ownership
                if (row.topic, row.partition) == (topic, partition)
            ]
            assert spans
            for (_, end), (begin, _) in pairwise(spans):
                assert end is not None
                assert end <= begin


@pytest.mark.parametrize("name", NAMES)
def test_evidence_points_at_frames_of_the_capture(name: str) -> None:
    exchanges, _ = captured(name)
    frames = {*exchanges["seq"].to_pylist(), *exchanges["answer_seq"].to_pylist()}
    for rebalance in history_of(name).rebalances:
        assert rebalance.evidence
        assert {fact.seq for fact in rebalance.evidence} <= frames
        assert {fact.source for fact in rebalance.evidence} <= set(exchanges["source"].to_pylist())


@pytest.mark.parametrize("name", NAMES)
def test_a_history_fits_the_tables(name: str) -> None:
    history = history_of(name)
    for rows in (history.rebalances, history.generations, history.states, history.members, history.ownership,
                 history.pauses, history.commits):  # fmt: skip
        if rows:
            assert table_of(type(rows[0]), rows).num_rows == len(rows)


# ---- any order, any chunks


def shuffled(table: pa.Table, rng: random.Random) -> pa.Table:
    order = list(range(table.num_rows))
    rng.shuffle(order)
    mixed = table.take(pa.array(order, pa.int64()))
    cuts = sorted({0, table.num_rows, *(rng.randint(0, table.num_rows) for _ in range(rng.randint(0, 9)))})
    chunks = [mixed.slice(start, end - start) for start, end in pairwise(cuts)]
    return pa.concat_tables(chunks) if chunks else mixed


@pytest.mark.parametrize("name", NAMES)
def test_order_and_chunks_have_no_effect(name: str) -> None:
    exchanges, topics = captured(name)
    for seed in range(50):
        rng = random.Random(seed)
        assert wire_history(shuffled(exchanges, rng), shuffled(topics, rng)) == history_of(name)


def test_captures_of_several_brokers_are_one_history() -> None:
    """The same exchanges, from two captures."""
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    whole = script.history()
    for row in script.rows:
        if row.client_id == "c2":
            row.source = "other"
    assert [each.cause for each in script.history().rebalances] == [each.cause for each in whole.rebalances]
    assert len(script.history().ownership) == len(whole.ownership) == 2


# ---- what is missing


def with_holes(rows: list[dict[str, Any]], rng: random.Random, dropped: float, cut: float, nulls: float) -> pa.Table:
    """Some of the rows, some without their answers, with fields missing anywhere."""
    kept = []
    for row in rows:
        if rng.random() < dropped:
            continue
        row = dict(row)
        if rng.random() < cut:
            row |= dict.fromkeys(
                ("answered_ns", "answer_seq", "error_code", "given_member_id", "new_generation_id", "assignment")
            )
            row["members"] = None
        for name, value in row.items():
            if rng.random() < nulls:
                row[name] = None
            elif isinstance(value, list):
                row[name] = [
                    {key: None if rng.random() < nulls else part for key, part in item.items()}
                    if isinstance(item, dict)
                    else item
                    for item in value
                ]
        kept.append(row)
    return pa.Table.from_pylist(kept, schema=nullable(arrow_schema(Exchange)))


def nullable(schema: pa.Schema) -> pa.Schema:
    def loose(kind: Any) -> Any:
        if pa.types.is_list(kind):
            return pa.list_(loose(kind.value_type))
        if pa.types.is_struct(kind):
            return pa.struct([pa.field(part.name, loose(part.type)) for part in kind])
        return kind

    return pa.schema([pa.field(part.name, loose(part.type)) for part in schema])


@cache
def all_rows() -> list[dict[str, Any]]:
    """Exchanges of every kind, classic and KIP-848."""
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.beats("c1", 1_000, 9_000, 1)
    script.beat("c1", 9_000, 1, error=27)
    script.join("c3", 9_100, 9_500, 2, member_id="", instance_id="i3", assignors=("range", "roundrobin"))
    script.join("c1", 9_400, 9_500, 2, members=["c1", "c3"], owned={"orders": [0]})
    script.sync("c1", 9_501, 9_502, 2, {"orders": [0]}, {"c1": {"orders": [0]}, "c3": {"orders": [1]}})
    script.sync("c3", 9_501, 9_502, 2, {"orders": [1]}, instance_id="i3")
    script.join("c3", 11_000, 11_001, 2, member_id="", instance_id="i3", given_member_id="c3-b", connection="x")
    script.leave("c1", 12_000, 12_001, "consumer poll timeout has expired.")
    script.join("c2", 13_000, 13_001, error_code=25)
    script.add("Heartbeat", "c3", 14_000, 14_000, error_code=16, generation_id=2)
    script.add("FindCoordinator", "c3", 14_100, 14_101, coordinator="b:1")
    script.join("c3", 15_000, 15_100, 2, leader="c3", members=["c3"], member_id="c3-b", given_member_id="c3-b")
    script.consumer("c8", 20_000, 0, 5, {"orders": [0]}, topics=["orders"], owned={})
    script.consumer("c9", 21_000, 0, 6, {}, topics=["orders"], owned={}, instance_id="i9")
    script.consumer("c8", 22_000, 5, 6, {"orders": []}, owned={"orders": [0]})
    script.consumer("c9", 23_000, -2, -2, instance_id="i9")
    script.consumer("c8", 24_000, 6, None, error_code=110)
    exchanges: list[dict[str, Any]] = script.tables()[0].to_pylist()
    for name in NAMES:
        exchanges += captured(name)[0].to_pylist()[::3]
    return exchanges


@given(
    seed=st.integers(0, 1 << 32),
    dropped=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    cut=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    nulls=st.sampled_from([0.0, 0.02, 0.2]),
)
@settings(max_examples=60, deadline=None)
def test_any_part_of_a_capture_gives_a_history(seed: int, dropped: float, cut: float, nulls: float) -> None:
    rng = random.Random(seed)
    history = wire_history(with_holes(all_rows(), rng, dropped, cut, nulls), captured("cooperative")[1])
    assert [each.number for each in history.rebalances] == list(range(1, len(history.rebalances) + 1))
    for each in history.rebalances:
        assert 0 <= each.confidence <= 1
        assert each.ended_ns is None or each.ended_ns >= each.started_ns
        assert each.outcome in ("stable", "empty", "interrupted", "open", "unseen")
        assert Cause(each.cause)
        assert each.detail
    for row in history.ownership:
        assert row.to_ns is None or row.to_ns >= row.from_ns
    for pause in history.pauses:
        assert pause.to_ns is None or pause.to_ns > pause.from_ns


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_cut_anywhere_gives_a_history(name: str) -> None:
    exchanges, topics = captured(name)
    count = exchanges.num_rows
    for place in range(0, count, 5):
        late = wire_history(exchanges.slice(place), topics)
        early = wire_history(exchanges.slice(0, place), topics)
        assert len(early.rebalances) + len(late.rebalances) >= len(history_of(name).rebalances) - 1


def test_a_row_without_its_time_is_left_out_and_reported() -> None:
    script = Script()
    script.form("c1")
    rows = script.tables()[0].to_pylist()
    rows[0]["asked_ns"] = None
    history = wire_history(pa.Table.from_pylist(rows, schema=nullable(arrow_schema(Exchange))), script.tables()[1])
    assert any("1 exchanges have no time" in said for said in history.group.blind)


def test_a_source_that_begins_in_the_middle() -> None:
    script = Script()
    script.beats("c1", 0, 5_000, 7)
    script.beats("c2", 0, 5_000, 7)
    script.beat("c1", 5_000, 7, error=27)
    script.join("c1", 5_100, 5_500, 8, members=["c1", "c2"])
    script.join("c2", 5_400, 5_500, 8)
    script.sync("c1", 5_501, 5_502, 8, {}, {"c1": {}, "c2": {}})
    script.sync("c2", 5_501, 5_502, 8, {})
    history = script.history()
    (only,) = history.rebalances
    assert (only.cause, only.started_ns, only.generation_id) == (Cause.UNKNOWN, at(5_000), 8)
    assert only.confidence <= 0.2
    assert [life.first_generation_id for life in history.members] == [7, 7]
    assert "before the source began" in history.group.blind[0]
    assert history.states[0].state == "Stable"


def test_no_exchange_gives_an_empty_history() -> None:
    history = Script().history()
    assert (history.group.group_id, history.rebalances, history.members) == ("", [], [])


def facts_of(path: Path) -> list[Evidence]:
    (history,) = analyze([path]).histories
    found = [fact for row in [*history.rebalances, *history.findings] for fact in row.evidence]
    assert len(found) > 5
    return found


@pytest.mark.parametrize("name", ["eager_range", "aiokafka"])
def test_a_fact_of_a_capture_has_the_number_of_its_packet(name: str) -> None:
    """The packet of that number, counted from 1, was captured when the frame was complete."""
    path = CAPTURES / f"{name}.pcap"
    with path.open("rb") as file:
        times = [packet.time_ns for packet in read_packets(file, lambda damage: None)]
    facts = facts_of(path)
    placed = [fact for fact in facts if fact.position is not None]
    assert len(placed) > len(facts) // 2
    assert all(times[fact.position - 1] == fact.time_ns for fact in placed if fact.position is not None)
    assert {fact.position is None for fact in facts if fact.seq < 0} <= {True}


def test_a_fact_of_a_recording_has_the_byte_of_its_record(tmp_path: Path) -> None:
    record_capture(tmp_path, CAPTURES / "eager_range.pcap")
    (path,) = recording_files(tmp_path)
    records = {found.position: found for found in read_recording(path) if isinstance(found, Recorded)}
    placed = [fact for fact in facts_of(path) if fact.position is not None]
    assert placed
    assert all(records[fact.position].time_ns == fact.time_ns for fact in placed if fact.position is not None)
