"""Why each partition is where it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcoord_wire.marshal.log import RawEntry
from kcoord_wire.marshal.observer import Observer
from kcoord_wire.marshal.status import Positions, Situation, Status, clock_text, span_text, status_of
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import Freshness, Place, Rules, WorldState
from tests.support.marshal_log import T0, entries_of

LIVE_LOG = Path(__file__).parent.parent / "data" / "golden" / "marshal" / "live_log.jsonl"
CLAIM = ["0 ClaimingPartition i1/c1/g/t/0", "1 Heartbeat i1/c1/g/t/0/5"]
BOTH = pytest.mark.parametrize("rules", list(Rules))


def at(
    second: int, *lines: str, rules: Rules = Rules.DOCUMENT, lag_ms: int = 0, positions: Positions | None = None
) -> Status:
    """Return the status of group g so long after `T0`.

    :param lines: as `entries_of` takes them
    """
    observer = Observer(WorldState(rules, partitions=1))
    for entry in entries_of(lines, lag_ms=lag_ms):
        observer.observe(entry, entry.time_ms)
    return status_of(observer, (T0 + second) * 1000, positions or Positions(counts={"t": 1}), "g")


def only(status: Status) -> tuple[Situation, str]:
    [row] = status.partitions
    return row.situation, row.why


@BOTH
def test_held(rules: Rules) -> None:
    assert only(at(30, *CLAIM, rules=rules)) == (Situation.HELD, "held by c1 for 30 s")
    [row] = at(200, *CLAIM, "190 Heartbeat i1/c1/g/t/0/9", "195 Heartbeat i1/c1/g/t/0/9", rules=rules).partitions
    assert row.place == Place("g", "t", 0)
    if rules is Rules.LIBRARY:  # the document refuses the heartbeat of a stale claim
        assert (row.freshness, row.age_ms, row.position) == (Freshness.FRESH, 5_000, 9)


@BOTH
def test_silent_holders_have_fenced_themselves(rules: Rules) -> None:
    situation, why = only(at(61, *CLAIM, rules=rules))
    assert situation is Situation.SILENT
    assert (
        why == f"c1 is silent for 60 s: it has fenced itself; claimable at {clock_text((T0 + 121) * 1000, T0 * 1000)}"
    )


@BOTH
def test_stale(rules: Rules) -> None:
    others = "150 ClaimingPartition i2/c2/g/t/1"
    status = at(200, *CLAIM, others, rules=rules)
    row = status.partitions[0]
    stale, heard = (clock_text((T0 + second) * 1000, T0 * 1000) for second in (121, 1))
    assert row.situation is Situation.STALE
    assert row.why == f"stale since {stale}: c1 was last heard of {heard}, the next claim wins"
    assert (row.token, row.position) == (-1, 5)


@BOTH
def test_released_and_nobody_claims(rules: Rules) -> None:
    released = [*CLAIM, "40 ReleasingPartition i1/c1/g/t/0/12"]
    gone = clock_text((T0 + 40) * 1000, T0 * 1000)
    until = clock_text((T0 + 100) * 1000, T0 * 1000)
    assert only(at(50, *released, rules=rules)) == (
        Situation.COOLDOWN,
        f"unclaimed since {gone}: released by c1, which waits out its cooldown until {until}",
    )
    assert only(at(101, *released, rules=rules)) == (
        Situation.CLAIMABLE,
        f"unclaimed since {gone}: released by c1; c1 may claim it",
    )
    assert only(at(400, *released, rules=rules)) == (
        Situation.NO_MEMBER,
        f"unclaimed since {gone}: released by c1; no member was heard of",
    )


def test_never_claimed() -> None:
    status = at(10, *CLAIM, positions=Positions(counts={"t": 3}))
    assert [row.why for row in status.partitions[1:]] == ["never claimed: c1 may claim it"] * 2
    status = at(400, *CLAIM, positions=Positions(counts={"t": 2}))
    assert status.partitions[1].why == "never claimed: no member was heard of"


def test_the_only_candidate_reuses_a_client_id() -> None:
    lines = [*CLAIM, "2 Presence i2/c1/g/t/0/0", "3 Heartbeat i1/c1/g/t/0/6", "9 ReleasingPartition i1/c1/g/t/0/7"]
    situation, why = only(at(20, *lines))
    assert situation is Situation.CLIENT_ID_REUSED
    assert why.endswith("released by c1; the only candidate reuses the client id of i1 (c1)")
    assert {each.instance_id: each.reuses_id_of for each in at(20, *lines).members} == {"i1": "i2", "i2": "i1"}


def test_members_at_their_max_claims() -> None:
    status = at(10, *CLAIM, "2 Presence i1/c1/g/t/0/1", positions=Positions(counts={"t": 2}))
    assert status.partitions[1].situation is Situation.FULL
    assert status.partitions[1].why == "never claimed: its members are at their max_claims"
    [member] = status.members
    assert (member.holds, member.max_claims) == (1, 1)


@BOTH
def test_paused(rules: Rules) -> None:
    lines = [*CLAIM, f"5 ReleaseGroup i9/kcoord-admin-i9/g//0/{T0 + 305}"]
    until = clock_text((T0 + 305) * 1000, T0 * 1000)
    status = at(20, *lines, rules=rules)
    assert status.partitions[0].why == f"held by c1 for 20 s, although the group is paused until {until}"
    assert status.paused_until == {"g": (T0 + 305) * 1000}
    situation, why = only(at(20, *lines, "9 ReleasingPartition i1/c1/g/t/0/7", rules=rules))
    assert situation is Situation.PAUSED
    assert why.startswith(f"paused until {until}; unclaimed since ")
    assert at(306, *lines, rules=rules).paused_until == {}


def test_being_handed_over() -> None:
    lines = [*CLAIM, "2 Presence i2/c2/g/t/0/0", f"3 HandingOver i1/c1/g/t/0/i2/{T0 + 33}"]
    until = clock_text((T0 + 33) * 1000, T0 * 1000)
    assert only(at(10, *lines)) == (Situation.HANDING_OVER, f"being handed over by c1 to c2 until {until}")
    assert only(at(34, *lines))[0] is Situation.HELD


def test_the_library_takes_a_future_heartbeat_for_none() -> None:
    situation, why = only(at(0, "5 Heartbeat i1/c1/g/t/0/5", rules=Rules.LIBRARY))
    assert situation is Situation.AHEAD
    assert why.startswith("c1's clock is 5 s ahead; ")


def test_positions_and_lag() -> None:
    positions = Positions(
        counts={"t": 3},
        ends={("t", 0): 12, ("t", 1): 9},
        committed={Place("g", "t", 0): 1, Place("g", "t", 1): 4},
    )
    rows = at(10, *CLAIM, positions=positions).partitions
    assert [(row.position, row.position_from, row.lag) for row in rows] == [
        (5, "log", 7),
        (4, "committed", 5),
        (None, "", None),
    ]


def test_only_the_group_that_was_asked_for() -> None:
    status = at(10, *CLAIM, "2 ClaimingPartition i3/c3/other/t/0")
    assert {row.place.group_id for row in status.partitions} == {"g"}
    assert {member.group_id for member in status.members} == {"g"}


def test_a_skewed_clock_and_an_admin_are_shown_at_the_member() -> None:
    status = at(10, *CLAIM, lag_ms=-4_000)
    assert [(each.clock_ms, each.is_admin) for each in status.members] == [(4_000, False)]
    [admin] = at(10, "0 ClaimingPartition i9/kcoord-admin-i9/g/t/0").members
    assert admin.is_admin


def test_a_trimmed_log_is_cold_for_two_intervals() -> None:
    observer = Observer(WorldState(Rules.DOCUMENT, partitions=1))
    for entry in entries_of(["0 Heartbeat i1/c1/g/t/0/5"], first=77):
        observer.observe(entry, T0 * 1000)
    status = status_of(observer, T0 * 1000, Positions())
    assert status.cold == [0]
    assert status.partitions[0].token == -1


def test_times_for_people() -> None:
    assert [span_text(ms) for ms in (-5, 999, 119_000, 180_000)] == ["0 s", "0 s", "119 s", "3 min"]
    assert [span_text(ms) for ms in (7_200_000, 200_000_000)] == ["2 h", "2 d"]
    assert clock_text(0, 0) == "00:00:00"
    assert clock_text(0, T0 * 1000) == "1970-01-01 00:00:00"
    assert clock_text(1 << 62, 0).endswith(" ms")


def test_a_pause_has_ended_by_the_time_of_the_log() -> None:
    """A sender whose clock is fast has moved the log's time, and the group has resumed at that time."""
    lines = ["60 Heartbeat i1/c1/g/t/0/5", f"61 ReleaseGroup i9/kcoord-admin-i9/g//0/{T0 + 61}"]
    assert at(0, *lines).paused_until == {}


def test_the_log_that_go_clients_have_written() -> None:
    """Two Marshalers took turns on test2-0; test1-0 was released at offset 3."""
    observer = Observer(WorldState(Rules.LIBRARY, partitions=4))
    now_ms = 1_795_224_461_000
    for line in LIVE_LOG.read_text("utf-8").splitlines():
        row = json.loads(line)
        if "marshal_partition" in row:
            raw = RawEntry(row["marshal_partition"], row["offset"], -1, False, row["value"].encode())
            observer.observe(read_entry(raw), now_ms)
    status = status_of(observer, now_ms, Positions())
    test1, test2 = status.partitions
    assert (test1.place, test1.position) == (Place("gr.live", "test1", 0), 3)
    assert test1.why.endswith("released by cl-one, which waits out its cooldown until 01:28:40")
    assert (test2.place, test2.client_id, test2.position, test2.token) == (Place("gr.live", "test2", 0), "cl-two", 6, 3)
    assert test2.why.startswith("held by cl-two for ")
    assert status.garbage == {}


# ---- ranges of offsets


def ranges(second: int, *lines: str, positions: Positions | None = None, first: int = 0) -> list[tuple[object, ...]]:
    """Return the rows of ranges: first offset, end, situation, client, position and token."""
    observer = Observer(WorldState(Rules.DOCUMENT, partitions=1))
    for entry in entries_of(lines, first=first, lag_ms=0):
        observer.observe(entry, entry.time_ms)
    rows = status_of(observer, (T0 + second) * 1000, positions or Positions(), "g").ranges
    assert {row.place for row in rows} <= {Place("g", "t", 0)}
    return [(row.first, row.end, row.situation.value, row.client_id, row.position, row.token) for row in rows]


RANGES = (
    "0 ClaimingRange i1/c1/g/t/0/id/0/10",
    "1 ClaimingRange i2/c2/g/t/0/id/10/20",
    "2 RangeHeartbeat i1/c1/g/t/0/id/0/10",
    "3 ClaimingRange i1/c1/g/t/0/id/20/30",
    "4 ClaimingRange i3/c3/g/t/0/id/30/40",
    "50 RangeHeartbeat i1/c1/g/t/0/id/20/24",
    "50 ReleasingRange i2/c2/g/t/0/id/10/13",
)


def test_each_offset_of_a_partition_is_in_one_range() -> None:
    assert ranges(60, *RANGES, positions=Positions(ends={("t", 0): 55})) == [
        (0, 13, "done", "", None, -1),
        (13, 20, "released", "c2", None, -1),
        (20, 30, "held", "c1", 24, 3),
        (30, 40, "held", "c3", 30, 4),
        (40, 55, "free", "", None, -1),
    ]


def test_ranges_of_who_is_silent_become_stale() -> None:
    assert ranges(70, *RANGES)[-1] == (30, 40, "silent", "c3", 30, 4)
    assert ranges(125, *RANGES)[-1] == (30, 40, "stale", "c3", None, -1)
    claimed = ranges(130, *RANGES, "130 ClaimingRange i2/c2/g/t/0/id/30/35")
    assert claimed[-2:] == [(30, 35, "held", "c2", 30, 7), (35, 40, "stale", "c3", None, -1)]
    done = ranges(131, *RANGES, "130 ClaimingRange i2/c2/g/t/0/id/13/20", "131 RangeHeartbeat i2/c2/g/t/0/id/13/20")
    assert done[0] == (0, 20, "done", "", None, -1)


def test_ranges_of_a_topic_that_is_gone_are_not_shown() -> None:
    assert ranges(60, *RANGES, positions=Positions(topic_ids={"t": "id"}))
    assert ranges(60, *RANGES, positions=Positions(topic_ids={"t": "other"})) == []


def test_ranges_begin_at_the_committed_offset() -> None:
    claim = "0 ClaimingRange i1/c1/g/t/0/id/8/10"
    committed = Positions(committed={Place("g", "t", 0): 5})
    assert ranges(1, claim, positions=committed)[0] == (5, 8, "free", "", None, -1)


def test_a_range_whose_claim_was_trimmed_has_no_end() -> None:
    beat = "0 RangeHeartbeat i1/c1/g/t/0/id/10/12"
    assert ranges(1, beat, first=9, positions=Positions(ends={("t", 0): 50})) == [(10, None, "held", "c1", 12, -1)]
