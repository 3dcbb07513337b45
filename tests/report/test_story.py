"""The events of a history in order of time."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.report.story import events_of
from tests.support.histories import HOSTILE, bare, empty, hostile, typical

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
