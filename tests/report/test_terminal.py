"""The summary in a terminal: what it says first, and what it never lets through."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.forensics.model import Cause, GroupHistory, Loss
from kcoord_wire.report import print_summary
from kcoord_wire.report.digest import digest_of, digests
from kcoord_wire.report.formatting import ago, counted, duration, name_of, shown
from tests.support.histories import HOSTILE, MS, SECOND, START, bare, empty, hostile, incident, kip_848, losses, typical


def summary(*histories: GroupHistory, lost: list[Loss] | None = None, width: int | None = None) -> str:
    file = io.StringIO()
    print_summary(histories, lost or [], file, width)
    return file.getvalue()


def test_opens_with_what_happened_and_why() -> None:
    first, *rest = summary(typical()).splitlines()
    assert first == (
        "billing: 7 rebalances in 3 min 20 s: 4 new member, 1 session timeout, 1 max.poll.interval.ms exceeded, "
        "1 topic metadata changed, paused 2 min 49 s of partition time; "
        "worst: #5 took 8.1 s because billing-2 (10.0.0.5) was late"
    )
    heads, table = rest[0].split(), rest[1:8]
    assert heads[:5] == ["#", "start", "cause", "who", "took"]
    assert [line.split()[0] for line in table] == list("1234567")
    assert "max.poll.interval.ms exceeded" in table[3]
    assert "+0:31.900" in table[3]
    assert rest[8].startswith("critical: billing-1 was put out")
    assert rest[9] == "  Raise max.poll.interval.ms above the longest batch, or make batches smaller."
    assert rest[10].startswith("warning: billing-2 joined 6.5 s after everybody else")
    assert rest[14] == "cannot be told from this source: Heartbeats before the capture began are not in it."


def test_says_of_little_that_it_is_little() -> None:
    assert summary() == "no consumer group was found\n"
    assert summary(empty()).splitlines()[0] == "idle: no rebalance in 0 ms"
    assert summary(bare()).splitlines()[0] == (
        "bare: 1 rebalance in 5.0 s: 1 unknown; worst: #1 has not ended after 4.0 s"
    )


def test_of_many_rebalances_shows_the_longest_and_says_so() -> None:
    text = summary(incident())
    assert "the 20 that took longest; 20 more are in the tables and the page" in text
    assert len([line for line in text.splitlines() if "rebalance timeout" in line]) == 1 + 20
    assert text.startswith("incident-84: 40 rebalances in 10 min: 40 rebalance timeout")


def test_names_what_could_not_be_read() -> None:
    text = summary(lost=losses())
    assert "could not be read: 5 pieces, 4,933 bytes" in text
    assert "  node-1.pcap at 1,024: the connection lost bytes: 3 segments are not in the capture (3 times)" in text
    many = [Loss(f"file-{at}", at, "torn", 1) for at in range(50)]
    assert "40 more places are in the tables and the page" in summary(lost=many)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [None, 20, 80])
def test_no_control_character_and_no_markup_of_a_peer_gets_through(name: str, width: int | None) -> None:
    text = summary(hostile(name), lost=losses(name), width=width)
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    if "[red]" in name and width is None:
        assert "[red]markup[/red]" in text


def test_fits_the_width_that_it_is_given() -> None:
    for width in (60, 100):
        assert max(map(len, summary(typical(), incident(), lost=losses(), width=width).splitlines())) <= width


def test_a_narrow_terminal_gets_two_lines_a_rebalance_and_no_table() -> None:
    narrow = " ".join(summary(typical(), width=80).split())
    for row in typical().rebalances:
        assert f"#{row.number} +" in narrow
    assert "last to join" in narrow
    assert "took 8.1 s, last to join" in narrow


def test_groups_come_worst_first() -> None:
    histories = [empty(), kip_848(), bare(), typical(), incident()]
    order = [digest.history.group.group_id for digest in digests(histories)]
    assert order == ["billing", "incident-84", "next-gen", "bare", "idle"]
    assert [digest.history.group.group_id for digest in digests(histories[::-1])] == order


def test_an_interrupted_rebalance_lasts_to_the_next_and_overlaps_count_once() -> None:
    history = typical()
    first, second = history.rebalances[:2]
    first.outcome, first.ended_ns, first.duration_ms = "interrupted", None, None
    digest = digest_of(history)
    assert digest.lengths[1] == (second.started_ns - first.started_ns) / 1e6
    assert digest.unfinished == 1
    second.started_ns, second.duration_ms = START, 20_000.0
    history.rebalances = [first, second]
    assert digest_of(history).rebalancing_ms == 20_000.0


def test_culprits_are_told_apart_by_host_and_counted() -> None:
    culprits = {(c.name, c.host): c for c in digest_of(typical()).culprits}
    late = culprits["billing-2", "10.0.0.5"]
    assert (late.set_off, late.last, late.late_ms, late.removed) == (2, 1, 6480.0, 1)
    assert culprits["billing-1", "10.0.0.4"].set_off == 3


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (0.042, "0.042 ms"), (3.14, "3.1 ms"), (340, "340 ms"), (999.4, "999 ms"), (999.6, "1.0 s"),
     (8100, "8.1 s"), (42_000, "42 s"), (119_499, "119 s"), (119_999, "2 min"), (725_000, "12 min 5 s"),
     (3_599_900, "1 h"), (11_040_000, "3 h 4 min"), (183_600_000, "2 d 3 h"), (-8100, "-8.1 s")],
)  # fmt: skip
def test_durations_read_well(ms: float, text: str) -> None:
    assert duration(ms) == text


def test_times_relative_to_the_first() -> None:
    assert ago(START + 42 * SECOND + 310 * MS, START) == "+0:42.310"
    assert ago(START + 3 * 3600 * SECOND + 245 * SECOND, START) == "+3:04:05.000"
    assert ago(START, START + 61 * SECOND) == "-1:01.000"


@given(st.text(), st.integers(1, 60))
def test_what_is_shown_is_printable_and_short(text: str, limit: int) -> None:
    result = shown(text, limit)
    assert len(result) <= limit
    assert result.isprintable()
    if text.isprintable() and len(text) <= limit:
        assert result == text


def test_names_and_numbers() -> None:
    assert name_of("client", "id", "instance") == "instance"
    assert name_of(None, "id") == "id"
    assert name_of(None) == "a member without a name"
    assert (counted(1, "reply", "replies"), counted(1024, "reply", "replies")) == ("1 reply", "1,024 replies")
    assert str(Cause.UNKNOWN) in summary(bare())
