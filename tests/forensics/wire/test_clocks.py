"""Clocks of sources that differ: found from what two sources show of one moment, and corrected before anything else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcoord_wire.forensics.analysis import group_history
from kcoord_wire.forensics.coded import coded
from kcoord_wire.forensics.model import Clock, Exchange, GroupHistory, table_of
from kcoord_wire.forensics.wire.clocks import correct_clocks
from kcoord_wire.forensics.wire.traffic import read_sightings
from tests.support.exchange_script import Script
from tests.support.revocations import given_up, revoked

MS = 1_000_000


def classic(rounds: int = 2) -> Script:
    """A group of two that rebalances again and again; c2 joins last each time."""
    script = Script()
    for number in range(1, rounds + 1):
        ms = 5_000 * number
        script.join("c1", ms, ms + 400, number, members=["c1", "c2"])
        script.join("c2", ms + 399, ms + 400, number)
        script.sync("c1", ms + 401, ms + 410, number, {"orders": [0]}, {"c1": {"orders": [0]}, "c2": {"orders": [1]}})
        script.sync("c2", ms + 402, ms + 411, number, {"orders": [1]})
        for client in ("c1", "c2"):
            script.beats(client, ms + 1_000, ms + 5_000, number)
    return script


def apart(script: Script, ahead_ms: float) -> list[Exchange]:
    """The rows of each client in a source of its own; the clock of c2 is ahead."""
    off = round(ahead_ms * MS)
    return [
        replace(
            row,
            source=f"{row.client_id}.pcap",
            asked_ns=row.asked_ns + (off if row.client_id == "c2" else 0),
            answered_ns=None if row.answered_ns is None else row.answered_ns + (off if row.client_id == "c2" else 0),
        )
        for row in script.rows
    ]


def clocks(rows: list[Exchange]) -> list[Clock]:
    return correct_clocks(coded(table_of(Exchange, rows)))[1]


def history(rows: list[Exchange]) -> GroupHistory:
    return group_history([table_of(Exchange, rows)], read_sightings(Script().tables()[1]))


def ahead_of_c1(found: list[Clock]) -> float:
    """How far c2.pcap is ahead, in milliseconds, whichever is the reference."""
    [clock] = found
    return clock.ahead_ns / MS if clock.source == "c2.pcap" else -clock.ahead_ns / MS


@pytest.mark.parametrize("ahead_ms", [-3_600_000, -7_500, -600, 700, 3_000, 86_400_000])
def test_the_answers_of_a_generation_show_the_difference(ahead_ms: float) -> None:
    found = clocks(apart(classic(), ahead_ms))
    assert ahead_of_c1(found) == pytest.approx(ahead_ms, abs=1)
    assert found[0].is_exact
    right, off = history(apart(classic(), 0)), history(apart(classic(), ahead_ms))
    shown = [[(row.cause, row.client_id, row.duration_ms) for row in each.rebalances] for each in (right, off)]
    assert shown[0] == shown[1]
    [said] = [finding for finding in off.findings if finding.detector == "source_clocks"]
    assert "were corrected before anything else was computed" in said.text


@pytest.mark.parametrize("ahead_ms", [0, -200, 300])
def test_small_differences_are_those_of_the_network(ahead_ms: float) -> None:
    assert clocks(apart(classic(), ahead_ms)) == []


def test_one_answer_alone_may_be_late() -> None:
    assert clocks(apart(classic(1), 3_000)) == []


def test_two_runs_of_a_group_are_no_difference() -> None:
    """The group was formed anew: generations count from 1 again, as epochs do, with other members."""
    script, told = revoked(timeout_ms=300_000)
    given_up(script, told, 18_000)
    for first in (classic(3), script):
        rows = first.rows
        again = [
            replace(
                row,
                source="next.pcap",
                asked_ns=row.asked_ns + 86_400_000 * MS,
                answered_ns=None if row.answered_ns is None else row.answered_ns + 86_400_000 * MS,
                member_id=f"{row.member_id}-2",
                given_member_id=None if row.given_member_id is None else f"{row.given_member_id}-2",
                leader_id=None if row.leader_id is None else f"{row.leader_id}-2",
                connection=row.connection.replace(":4000-", ":4777-"),
            )
            for row in rows
        ]
        assert clocks([*rows, *again]) == []


def test_a_static_member_that_comes_back_shows_nothing() -> None:
    script = Script()
    for number in (1, 2):
        script.join("c1", 5_000 * number, 5_000 * number + 400, number, members=["c1", "c2"])
        again = {"instance_id": "i-2", "given_member_id": f"c2-{number}"}
        script.join("c2", 5_000 * number + 3_400, 5_000 * number + 3_401, number, **again)
    assert clocks(apart(script, 0)) == []


@pytest.mark.parametrize("ahead_ms", [-12_000, -7_500, 3_000, 9_000])
def test_epochs_bound_the_difference(ahead_ms: float) -> None:
    script, told = revoked(timeout_ms=300_000)
    given_up(script, told, 18_000)
    found = clocks(apart(script, ahead_ms))
    assert not found[0].is_exact
    assert ahead_of_c1(found) == pytest.approx(ahead_ms, abs=1_600), "a heartbeat interval"
    [wait] = history(apart(script, ahead_ms)).rebalances[1].waited_for
    assert (wait.client_id, wait.end, round(wait.ms / 1_000)) == ("c1", "revoking", 18)


def test_epochs_that_contradict_nothing_show_no_difference() -> None:
    script, told = revoked(timeout_ms=300_000)
    given_up(script, told, 18_000)
    assert clocks(apart(script, 0)) == []


def twice(script: Script, ahead_ms: float, part: slice = slice(None)) -> list[Exchange]:
    """The rows, and some of them again in another source, by another clock."""
    again = [
        replace(row, source="b.pcap", asked_ns=row.asked_ns + round(ahead_ms * MS), answered_ns=None)
        for row in script.rows[part]
    ]
    return [*script.rows, *again]


@pytest.mark.parametrize("part", [slice(None), slice(2, 9)])
@pytest.mark.parametrize("ahead_ms", [0.3, -5_000, 3_000])
def test_what_two_sources_have_counts_once(ahead_ms: float, part: slice) -> None:
    script = classic(3)
    rows, found = correct_clocks(coded(table_of(Exchange, twice(script, ahead_ms, part))))
    assert len(rows) == len(script.rows)
    ahead = [clock.ahead_ns / MS * (1 if clock.source == "b.pcap" else -1) for clock in found]
    assert ahead == ([] if abs(ahead_ms) < 500 else [ahead_ms])


def test_the_files_of_a_recording_keep_all_their_rows() -> None:
    script = classic(4)
    middle = len(script.rows) // 2
    rows = [*script.rows[:middle], *(replace(row, source="next") for row in script.rows[middle:])]
    kept, found = correct_clocks(coded(table_of(Exchange, rows)))
    assert (len(kept), found) == (len(rows), [])


@pytest.mark.parametrize("error_code", [23, 79, 81, None])
@pytest.mark.parametrize("after_ms", [700, 2_900, 30_000])
def test_a_join_sent_again_in_the_next_file_is_another(error_code: int | None, after_ms: int) -> None:
    script = classic(1)
    first = script.join("c3", 9_000, None if error_code is None else 9_001, error_code=error_code, member_id="")
    again = replace(first, source="next", asked_ns=first.asked_ns + after_ms * MS)
    assert clocks([*script.rows, again]) == []


def test_a_few_equal_exchanges_of_two_files_are_no_clock() -> None:
    """The last commits of a file, sent again at the beginning of the next."""
    script = classic(1)
    committed = [script.commit("c1", 10_000 + 500 * number, {0: number}) for number in range(80)]
    again = [replace(row, source="next", asked_ns=row.asked_ns + 1_600 * MS) for row in committed[37:40]]
    later = [replace(row, source="next") for row in committed[40:]]
    first = [row for row in script.rows if row not in committed[40:]]
    assert clocks([*first, *again, *later]) == []


def test_the_clock_that_most_sources_have_is_the_reference() -> None:
    script = Script()
    for number in (1, 2, 3):
        for client in ("c1", "c2", "c3"):
            script.join(client, 5_000 * number, 5_000 * number + 400, number, members=["c1", "c2", "c3"])
    script.beats("c2", 16_000, 90_000, 3)  # it has the most rows
    [clock] = clocks(apart(script, 3_000))
    assert (clock.source, round(clock.ahead_ns / MS)) == ("c2.pcap", 3_000)


# ---- a source that ends before the others


def test_a_member_is_not_silent_where_its_source_has_ended() -> None:
    script = classic(2)
    script.beats("c1", 15_000, 60_000, 2)
    assert [life.end for life in history(script.rows).members] == [None, "silent"]
    found = history(apart(script, 0))
    assert [life.end for life in found.members] == [None, None]
    assert "session timeout" not in [row.cause for row in found.rebalances]


def test_the_next_file_of_a_recording_covers_its_members() -> None:
    script = classic(2)
    middle = len(script.rows)
    script.beats("c1", 15_000, 60_000, 2)
    rows = [*script.rows[:middle], *(replace(row, source="next") for row in script.rows[middle:])]
    assert [life.end for life in history(rows).members] == [None, "silent"]


def test_two_sources_of_a_revocation_end_apart() -> None:
    script, told = revoked(timeout_ms=300_000)
    for ms in range(told + 1_500, told + 40_000, 1_500):
        script.consumer("c2", ms, 2, 2, {}, owned={})
    assert [wait.end for wait in history(script.rows).rebalances[1].waited_for] == ["silent"]
    assert history(apart(script, 0)).rebalances[1].waited_for == []
