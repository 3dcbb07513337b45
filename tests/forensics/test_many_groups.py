"""What an analysis does for each group depends on the group, not on how many others there are."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from kcoord_wire.forensics.analysis import Collected
from kcoord_wire.forensics.model import Exchange, Sighting, SightingKind, table_of
from tests.support.exchange_script import MS, Script, at, renamed

OLD, NEW = "10.0.9.9:9092", "10.0.9.8:9092"


def eventful() -> Script:
    """A group whose story takes links, sizes of topics, errors and fetches: its host is cut off, its broker refuses."""
    script = Script()
    script.form("c1", "c2", "c3", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}, "c3": {"orders": [2]}})
    for row in script.rows[:3]:
        row.asked_ns -= 60 * MS  # JoinGroup, answered together: that shows whose clock is ahead
    script.beats("c1", 1_000, 20_000, 1)
    script.beats("c2", 1_000, 60_000, 1)
    script.beats("c3", 1_000, 9_000, 1)
    script.closed("c3", 9_500, by="client")
    for number, second in enumerate((21, 28, 35)):
        name = f"10.0.0.1:{5_000 + number}-{OLD}#t{number}"
        script.closed(
            "c1", second * 1_000, kind=SightingKind.REFUSED, connection=name, text="no answer to 3 SYNs in 3.0 s"
        )
    text = "1,448 bytes sent again 9 times in 30.0 s"
    script.closed("c1", 50_000, kind=SightingKind.RESENT, by="client", since_ns=at(20_000), text=text)
    for ms in range(1_000, 60_000, 2_000):
        script.closed("c2", ms, kind=SightingKind.OPENED, connection=f"10.0.0.2:{ms}-{NEW}#o{ms}")
        script.closed("c2", ms + 900, kind=SightingKind.CLOSED, connection=f"10.0.0.2:{ms}-{NEW}#o{ms}", by="client")
        script.fetch("c2", ms, 1, ms, ms + 10)
        script.saw("c2", ms, "orders", 3 + ms // 30_000)
        script.topics.append(
            Sighting(
                at(ms), "script", f"10.0.0.2:{ms}-{NEW}#o{ms}", "c2", SightingKind.ERROR,
                "orders", api="Metadata", error_code=29,
            )
        )  # fmt: skip
        script.commit("c2", ms, {1: ms}, error_code=15 if 40_000 < ms < 50_000 else 0)
    return script


def elsewhere(row: Any) -> Any:
    """The same row, if it is of the second client, in the capture of its host, whose clock is ahead by 9 s."""
    times = [name for name in ("time_ns", "asked_ns", "answered_ns") if getattr(row, name, None) is not None]
    ahead = {name: getattr(row, name) + 9_000 * MS for name in times}
    return replace(row, source="pod", **ahead) if row.client_id == "c2" else row


def copies(count: int, *, is_skewed: bool) -> tuple[pa.Table, pa.Table]:
    """The exchanges and sightings of groups that differ in their names, at the same brokers."""
    script = eventful()
    if is_skewed:
        script.rows, script.topics = list(map(elsewhere, script.rows)), list(map(elsewhere, script.topics))
    exchanges: list[Exchange] = [renamed(row, number) for number in range(count) for row in script.rows]
    sightings: list[Sighting] = [renamed(row, number) for number in range(count) for row in script.topics]
    return table_of(Exchange, exchanges), table_of(Sighting, sightings)


def lines_of(count: int, *, is_skewed: bool) -> tuple[int, list[str]]:
    """How many lines of the package an analysis of so many groups runs, and what it finds."""
    exchanges, sightings = copies(count, is_skewed=is_skewed)
    collected = Collected(None)
    collected.add_exchanges(exchanges.combine_chunks().to_batches()[0], sightings.combine_chunks().to_batches()[0])
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace if "kcoord_wire" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        analysis = collected.analysis()
    finally:
        sys.settrace(before)
    found = [outage.kind for history in analysis.histories for outage in history.outages]
    return lines, sorted([*found, *(each.detector for history in analysis.histories for each in history.findings)])


@pytest.mark.parametrize("is_skewed", [False, True], ids=["one clock", "clocks that differ"])
def test_work_is_linear_in_groups(is_skewed: bool) -> None:
    """Lines of Python, loops of comprehensions among them: a walk over everything for each group adds a square."""
    one = lines_of(1, is_skewed=is_skewed)[1]  # imports, too
    assert {"host blocked", "log not written", "dead_member", "refused"} <= set(one)
    assert is_skewed == ("source_clocks" in one)
    few, of_few = lines_of(4, is_skewed=is_skewed)
    many, of_many = lines_of(12, is_skewed=is_skewed)
    assert (of_few, of_many) == (sorted(one * 4), sorted(one * 12))
    assert many <= 3 * few
