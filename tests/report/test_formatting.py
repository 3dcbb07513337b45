"""Durations, times, names and partitions as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.forensics.model import Evidence
from kcoord_wire.protocol.wording import counted
from kcoord_wire.report.formatting import ago, duration, iso, name_of, partition_runs, place_text, shown
from tests.support.histories import MS, SECOND, START


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (0.042, "0.042 ms"), (3.14, "3.1 ms"), (340, "340 ms"), (999.4, "999 ms"), (999.6, "1.0 s"),
     (8100, "8.1 s"), (42_000, "42 s"), (119_499, "119 s"), (119_999, "2 min"), (725_000, "12 min 5 s"),
     (3_599_900, "1 h"), (11_040_000, "3 h 4 min"), (183_600_000, "2 d 3 h"), (-8100, "-8.1 s")],
)  # fmt: skip
def test_durations_read_well(ms: float, text: str) -> None:
    assert duration(ms) == text


def test_relative_times() -> None:
    assert ago(START + 42 * SECOND + 310 * MS, START) == "+0:42.310"
    assert ago(START + 3 * 3600 * SECOND + 245 * SECOND, START) == "+3:04:05.000"
    assert ago(START, START + 61 * SECOND) == "-1:01.000"


@given(st.text(), st.integers(1, 60))
def test_shown_text_is_printable_and_short(text: str, limit: int) -> None:
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


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (START + 1, "2025-11-21T15:00:00.000000001Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (2**63 - 1, "2262-04-11T23:47:16.854775807Z"),
        (10**21, None),
        (-(10**21), None),
    ],
)
def test_iso_ends_with_the_calendar(ns: int, text: str | None) -> None:
    assert iso(ns) == text


@given(st.integers(-(2**63), 2**63 - 1))
def test_iso_sorts_by_time(ns: int) -> None:
    now, after = iso(ns), iso(ns + 1)
    assert now is not None
    assert after is not None
    assert (len(now), now < after) == (30, True)


@pytest.mark.parametrize(
    ("partitions", "text"),
    [([], ""), ([3], "t 3"), ([2, 0, 1], "t 0-2"), ([5, 1, 2, 9, 8], "t 1-2, 5, 8-9")],
)
def test_partitions_are_shortened_to_runs(partitions: list[int], text: str) -> None:
    assert partition_runs(("t", partition) for partition in partitions) == text
    assert partition_runs([("b", 1), ("a", 0), ("a", 1)]) == "a 0-1; b 1"


@pytest.mark.parametrize(
    ("source", "position", "text"),
    [("a/trace.pcap.gz", 1234, "packet 1234"), ("frames-000001.kcrec", 99, "byte 99"), ("trace.pcap", None, "#17")],
)
def test_places_are_those_that_other_tools_show(source: str, position: int | None, text: str) -> None:
    assert place_text(Evidence(0, source, 17, "it joins", position)) == text
