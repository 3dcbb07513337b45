"""Histories of Marshal groups: members, commits, pauses of the group, and what the log does not show.

Generations, rebalances, ownership and pauses, from claims.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from kcoord_wire.forensics.analysis import analyze_records, tables_of
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.marshal.claims import Holders, marshal_histories
from kcoord_wire.forensics.marshal.reader import ClaimRules
from kcoord_wire.forensics.model import ClaimRow, LogRow
from tests.support.marshal_rows import NOW, generated_log, history_of, live_log, log_rows, table
from tests.support.offsets_log import generation
from tests.support.offsets_log import table as offsets_table

S = 1_000_000_000
CLAIM = "ClaimingPartition/1/{}/i1/c1/g/t/0"
BEAT = "Heartbeat/1/{}/i1/c1/g/t/0/5"


@pytest.mark.parametrize("rules", ["document", "library"])
def test_the_recorded_log_has_the_claims_its_clients_reported(rules: str) -> None:
    # The Go clients' notes: m1 claims test2/0, m2 is refused, m1 releases at 6, m2 claims; test1/0 is released at 3.
    [history], losses = marshal_histories(table(live_log()), ClaimRules(rules))
    assert losses == []
    assert [(row.topic, row.client_id, row.token, row.ended, row.last_offset) for row in history.claims] == [
        ("test1", "cl-one", 0, "released", 3),
        ("test2", "cl-one", 0, "released", 6),
        ("test2", "cl-two", 3, "open", -1),
    ]
    assert history.group.protocol_type == f"marshal {rules}"
    assert any(f"rules of the {rules}" in sentence for sentence in history.group.blind)


def test_members_are_instances_with_their_ends() -> None:
    lines = [
        (0, CLAIM),
        (1, BEAT),
        (2, "ClaimingPartition/1/{}/i2/c2/g/t/1"),
        (3, "ReleasingPartition/1/{}/i2/c2/g/t/1/0"),
    ]
    lines += [(200, "ClaimingPartition/1/{}/i3/c3/g/t/2"), (201, "Heartbeat/1/{}/i3/c3/g/t/2/0")]
    lives = {life.member_id: life for life in history_of(lines).members}
    assert {name: (life.client_id, life.why_left) for name, life in lives.items()} == {
        "i1": ("c1", "session timeout"),
        "i2": ("c2", "left"),
        "i3": ("c3", None),
    }
    assert lives["i1"].left_ns == (NOW + 121) * S
    assert {life.protocol for life in lives.values()} == {"marshal"}


def test_a_replaced_instance_is_no_member_any_more() -> None:
    lives = history_of([(0, CLAIM), (1, BEAT), (5, "Heartbeat/1/{}/i9/c1/g/t/0/5")]).members
    assert [(life.member_id, life.why_left) for life in lives] == [("i1", "replaced"), ("i9", None)]


def test_heartbeats_are_commits_by_minute() -> None:
    start = (60 - NOW % 60) % 60
    beats = [(start + second, f"Heartbeat/1/{{}}/i1/c1/g/t/0/{second}") for second in (0, 20, 59, 60)]
    rows = history_of([(start - 1, CLAIM), *beats]).commits
    assert [(row.commits, row.first_offset, row.last_offset, row.member_id) for row in rows] == [
        (3, 0, 59, "i1"),
        (1, 60, 60, "i1"),
    ]
    assert {row.from_ns % (60 * S) for row in rows} == {0}


def test_a_pause_of_the_group_is_a_state() -> None:
    halt = f"ReleaseGroup/1/{{}}/a/admin/g//0/{NOW + 100}"
    history = history_of([(0, CLAIM), (1, BEAT), (5, halt), (6, halt), (7, "ReleasingPartition/1/{}/i1/c1/g/t/0/5")])
    assert [(row.from_ns, row.to_ns) for row in history.states if row.state == "Paused"] == [
        ((NOW + 5) * S, (NOW + 100) * S)
    ]
    assert [life.client_id for life in history.members] == ["c1"]  # an admin is no member
    assert [pause.to_ns for pause in history.pauses] == [None]


def test_without_append_times_the_median_clock_is_right() -> None:
    lines = [
        (second, f"Heartbeat/1/{{{'+30' if n == 3 else ''}}}/i{n}/c{n}/g/t/{n}/0")
        for second in range(80)
        for n in range(5)
    ]
    lives = history_of(lines, is_append_time=False).members
    ahead = {life.client_id: life.clock_ahead_ms or 0 for life in lives}
    assert 25_000 < ahead.pop("c3") <= 30_000
    assert all(abs(ms) <= 2000 for ms in ahead.values())


def test_the_log_says_what_it_does_not_show() -> None:
    rows = [*log_rows([(0, CLAIM), (1, BEAT)], first=40), *log_rows([(0, CLAIM)], partition=2)]
    rows += log_rows([(2, "RangeHeartbeat/1/{}/i1/c1/g/t/0/Kq-_/5/7")], partition=3)
    [history], _ = marshal_histories(table(rows), ClaimRules())
    blind = " ".join(history.group.blind)
    for part in ("beginning of the log is gone", "Messages about t lie in several", "offset ranges"):
        assert part in blind


def test_any_order_of_the_records_has_the_same_histories() -> None:
    rows = generated_log(3)
    found = marshal_histories(table(rows), ClaimRules())
    shuffled = random.Random(1).sample(rows + rows[::7], len(rows + rows[::7]))
    assert marshal_histories(table(shuffled), ClaimRules()) == found
    assert {claim.began for history in found[0] for claim in history.claims} >= {"claimed", "restarted"}


def test_segments_of_unknown_partitions_are_kept_apart() -> None:
    rows = [
        row for name in "ab" for row in log_rows([(0, CLAIM.replace("/t/", f"/{name}/"))], partition=-1, source=name)
    ]
    [history], _ = marshal_histories(table(rows), ClaimRules())
    assert sorted(claim.topic for claim in history.claims) == ["a", "b"]


def test_both_kinds_of_log_are_read_at_once() -> None:
    offsets = offsets_table([generation(1, {"m-1": [0]})])
    analysis = analyze_records([*offsets.to_batches(), *table(live_log()).to_batches()])
    assert [(item.group.group_id, item.group.origin) for item in analysis.histories] == [
        ("g", "log"),
        ("gr.live", "marshal"),
    ]
    assert tables_of(analysis.histories)["claims"].num_rows == 3


def test_only_the_groups_that_were_named_are_returned() -> None:
    batches = table(generated_log(1)).to_batches()
    assert {item.group.group_id for item in analyze_records(batches).histories} == {"g0", "g1"}
    assert {item.group.group_id for item in analyze_records(batches, groups=["g1"]).histories} == {"g1"}


def test_a_log_of_garbage_has_losses_only() -> None:
    rows = [LogRow("x.log", 0, n, n, n, None, text) for n, text in enumerate([b"Heartbeat/1/9/", b"\0" * 100, None])]
    histories, losses = marshal_histories(table(rows), ClaimRules())
    assert histories == []
    assert sum(loss.count for loss in losses) == 3


@pytest.mark.parametrize("rules", ["document", "library"])
@pytest.mark.parametrize("is_append_time", [True, False])
def test_extreme_numbers_fit_the_tables(rules: str, is_append_time: bool) -> None:
    times = [0, 1, -1, NOW, -(2**63), 2**63 - 1, NOW, 2**62, 1, 2**63 - 1]
    kinds = {
        "ClaimingPartition": "",
        "Heartbeat": f"/{2**63 - 1}",
        "ReleasingPartition": f"/{-(2**63)}",
        "ClaimingMessages": "/-1",
        "HandingOver": f"/x/{2**63 - 1}",
        "Presence": f"/{2**31 - 1}",
    }
    lines: list[tuple[float, bytes | str]] = []
    for number, time in enumerate(times * 20):
        who = f"i{number % 3}/c{number % 3}/g"
        lines += [(number, f"{kind}/1/{time}/{who}/t/{number % 4 * 33333}{tail}") for kind, tail in kinds.items()]
        lines.append((number, f"ReleaseGroup/1/{time}/{who}//0/{-time}"))
    rows = log_rows(lines, is_append_time=is_append_time)
    rows += log_rows([(9.0, BEAT)], first=10**6)
    for row in rows[::50]:
        row.time_ns = random.Random(row.offset).choice([-(2**63) + 1, 2**63 - 1, -1_000_000])
    histories, losses = marshal_histories(table(rows), ClaimRules(rules))
    tables = tables_of(histories, losses)
    assert tables["claims"].num_rows > 0
    assert tables["members"].num_rows >= 3


def test_claims_have_one_holder_at_a_time() -> None:
    for seed in range(6):
        for rules in ("document", "library"):
            histories, _ = marshal_histories(table(generated_log(seed)), ClaimRules(rules))
            for history in histories:
                places: dict[tuple[str, int], list[ClaimRow]] = {}
                for claim in history.claims:
                    places.setdefault((claim.topic, claim.partition), []).append(claim)
                for rows in places.values():
                    for row, after in pairwise(rows):
                        assert row.to_ns is not None
                        assert row.from_ns <= row.to_ns <= after.from_ns


MS = 1_000_000


def claim(partition: int, who: str, start: int, end: int | None, **other: Any) -> ClaimRow:
    """A claim of client ``a`` by instance ``a1`` from `start` to `end`, in ms."""
    fields: dict[str, Any] = {"began": "claimed", "ended": "open" if end is None else "released", **other}
    to_ns = None if end is None else end * MS
    return ClaimRow("g", "t", partition, who[:-1], who, start, start * MS, to_ns, **fields)


def holders(*claims: ClaimRow) -> Holders:
    made = Holders("g", claims)
    made.close()
    return made


def causes(made: Holders) -> list[tuple[str, float | None, str]]:
    return [(row.cause, row.duration_ms, row.outcome) for row in made.tables.rebalances]


def test_a_generation_ends_when_the_holding_clients_change() -> None:
    made = holders(claim(0, "a1", 0, None), claim(1, "a1", 5, 40), claim(2, "b1", 20, None))
    found = [
        (row.generation_id, row.joined_ns, row.ended_ns, row.members, row.partitions) for row in made.tables.generations
    ]
    assert found == [(1, 0, 20 * MS, 1, 2), (2, 20 * MS, None, 2, 2)]
    assert [row.generation_id for row in made.ownership] == [1, 1, 2]
    assert causes(made) == [(Cause.NEW_MEMBER, 0.0, "stable"), (Cause.NEW_MEMBER, 0.0, "stable")]


def test_a_departure_lasts_until_its_partitions_have_holders() -> None:
    made = holders(
        claim(0, "a1", 0, 10), claim(1, "a1", 0, 20), claim(9, "b1", 0, None),
        claim(0, "b1", 15, None), claim(1, "b1", 50, None),
    )  # fmt: skip
    [_, left] = made.tables.rebalances
    assert (left.cause, left.duration_ms, left.moved, left.paused_ms) == (Cause.MEMBER_LEFT, 30.0, 1, 30.0)
    assert [(row.partition, row.from_ns, row.to_ns, row.next_member_id, row.rebalance) for row in made.pauses] == [
        (0, 10 * MS, 15 * MS, "b1", None),
        (1, 20 * MS, 50 * MS, "b1", 2),
    ]


def test_a_stale_holder_is_a_session_timeout() -> None:
    made = holders(claim(0, "a1", 0, 10, ended="stale"), claim(1, "b1", 0, None))
    assert causes(made)[1] == (Cause.SESSION_EXPIRED, None, "open")
    assert [row.why for row in made.tables.rebalances[1].removed] == ["session timeout"]
    [pause] = made.pauses
    assert (pause.to_ns, pause.next_member_id, pause.rebalance) == (None, None, 2)


def test_a_restart_is_one_rebalance_and_no_generation() -> None:
    made = holders(
        claim(0, "a1", 0, 10, ended="taken over"), claim(1, "a1", 0, 14, ended="taken over"),
        claim(0, "a2", 10, None, began="restarted"), claim(1, "a2", 14, None, began="restarted"),
    )  # fmt: skip
    assert len(made.tables.generations) == 1
    assert causes(made) == [(Cause.NEW_MEMBER, 0.0, "stable"), (Cause.STATIC_REPLACED, 4.0, "stable")]
    assert made.pauses == []


def test_a_group_without_holders_is_empty() -> None:
    made = holders(claim(0, "a1", 0, 10), claim(0, "b1", 30, None))
    assert [(row.state, row.from_ns, row.to_ns) for row in made.tables.states] == [
        ("Stable", 0, 10 * MS),
        ("Empty", 10 * MS, 30 * MS),
        ("Stable", 30 * MS, None),
    ]
    assert causes(made)[1] == (Cause.MEMBER_LEFT, 0.0, "empty")


def test_a_claim_without_length_leaves_its_partition_free() -> None:
    made = holders(claim(0, "a1", 0, 10), claim(0, "b1", 10, 10), claim(1, "c1", 0, None))
    [pause] = made.pauses
    assert (pause.former_member_id, pause.from_ns, pause.to_ns) == ("b1", 10 * MS, None)
    assert len(made.ownership) == 3


def test_the_order_of_the_claims_does_not_matter() -> None:
    rows = [claim(n % 3, f"{'abc'[n % 3]}1", n * 10, n * 10 + 12) for n in range(0, 30, 3)]
    rows += [claim(n, "d1", n, None) for n in range(5, 9)]
    one, other = holders(*rows), holders(*rows[::-1])
    assert one.tables.rebalances == other.tables.rebalances
    assert one.pauses == other.pauses
    assert one.tables.generations == other.tables.generations
