"""The summary in a terminal: its content, its widths, and escaped strings.

The events of a history in order of time.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import GroupHistory, Loss
from kcoord_wire.report import print_summary
from kcoord_wire.report.terminal import events_of
from tests.support.histories import HOSTILE, bare, empty, hostile, incident, losses, typical


def summary(*histories: GroupHistory, lost: list[Loss] | None = None, width: int | None = None) -> str:
    file = io.StringIO()
    print_summary(histories, lost or [], file, width)
    return file.getvalue()


def test_summary_begins_with_what_happened_and_why() -> None:
    first, second, *rest = summary(typical()).splitlines()
    assert first == "billing: billing-1 was put out because it did not poll within max.poll.interval.ms, and came back"
    assert second == (
        "7 rebalances in 3 min 20 s: 4 new member, 1 session timeout, 1 max.poll.interval.ms exceeded, "
        "1 topic metadata changed, paused 2 min 49 s of partition time"
    )
    assert (
        rest.pop(0) == "2025-11-21 15:00:00 to 15:03:19 UTC, from captured frames: node-1.pcap · protocol type consumer"
    )
    heads, table = rest[0].split(), rest[1:8]
    assert heads[:5] == ["#", "start", "cause", "who", "took"]
    assert [line.split()[0] for line in table] == list("1234567")
    assert "max.poll.interval.ms exceeded" in table[3]
    assert "+0:31.900" in table[3]
    assert rest[8].startswith("critical at +0:31.900: billing-1 was put out")
    assert rest[9] == "  Raise max.poll.interval.ms above the longest batch, or make batches smaller."
    assert rest[10].startswith("warning at +")
    assert rest[14] == "not visible in this source: Heartbeats before the capture began are not in it."


def test_summary_of_few_facts() -> None:
    assert summary() == "no consumer group was found\n"
    assert summary(empty()).splitlines()[0] == "idle: no member was seen in 0 ms, only requests that name the group"
    first, second = summary(bare()).splitlines()[:2]
    assert first == (
        "bare: 1 rebalance of which the source does not show the cause in 5.0 s: 1 unknown; unknown at +0:01.000: "
        "rebalance #1 has not ended after 4.0 s"
    )
    assert second == "1 rebalance in 5.0 s: 1 unknown"


def test_many_rebalances_are_cut_to_the_longest() -> None:
    text = summary(incident())
    assert "the 20 that took longest; 20 more are in the tables and the page" in text
    assert len([line for line in text.splitlines() if "rebalance timeout" in line]) == 2 + 20
    assert text.startswith("incident-84: 40 x rebalance timeout, the costliest of incident-84-4 (10.0.0.7) at +1:00")


def test_losses_are_listed() -> None:
    text = summary(lost=losses())
    assert "could not be read: 5 pieces, 4,933 bytes" in text
    assert "  node-1.pcap at 1,024: the connection lost bytes: 3 segments are not in the capture (3 times)" in text
    many = [Loss(f"file-{at}", at, "torn", 1) for at in range(50)]
    assert "40 more places are in the tables and the page" in summary(lost=many)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [None, 20, 80])
def test_strings_of_peers_are_escaped(name: str, width: int | None) -> None:
    text = summary(hostile(name), lost=losses(name), width=width)
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    if "[red]" in name and width is None:
        assert "[red]markup[/red]" in text


def test_lines_fit_the_width() -> None:
    for width in (60, 100):
        assert max(map(len, summary(typical(), incident(), lost=losses(), width=width).splitlines())) <= width


def test_a_narrow_terminal_has_two_lines_per_rebalance() -> None:
    narrow = " ".join(summary(typical(), width=80).split())
    for row in typical().rebalances:
        assert f"#{row.number} +" in narrow
    assert "waited for" in narrow
    assert "took 8.1 s, waited for" in narrow


CAPTURES = Path(__file__).parents[1] / "data" / "captures"


@pytest.mark.parametrize("name", ["aiokafka", "cooperative", "static_bounce"])
def test_every_row_of_the_history_is_an_event(name: str) -> None:
    [history] = analyze([CAPTURES / f"{name}.pcap"]).histories
    events = events_of(history)
    assert [event.time_ns for event in events] == sorted(event.time_ns for event in events)
    kinds = [event.what for event in events]
    assert kinds.count("joins") == len(history.members)
    assert kinds.count("is gone") == sum(life.left_ns is not None for life in history.members)
    assert kinds.count("rebalance") == len(history.rebalances)
    assert kinds.count("generation") == len(history.generations)
    received = {(row.member_id, row.from_ns) for row in history.ownership}
    assert kinds.count("receives") == len(received)
    for rebalance in history.rebalances:
        assert any(event.text.startswith(f"#{rebalance.number}: {rebalance.cause}") for event in events)


@pytest.mark.parametrize("name", HOSTILE)
def test_events_are_printable(name: str) -> None:
    for event in events_of(hostile(name)):
        assert all(text.isprintable() and len(text) < 1500 for text in event[1:])


def test_events_of_little_and_of_an_unfinished_group() -> None:
    assert events_of(empty()) == []
    [event] = events_of(bare())
    assert (event.who, event.what, event.text) == ("", "rebalance", "#1: unknown (0% sure)")
    assert {"critical", "warning", "info"} <= {event.what for event in events_of(typical())}
