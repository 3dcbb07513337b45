"""Clocks that are ahead or behind, of members of Marshal."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.detectors import findings_of
from kcoord_wire.forensics.marshal.reader import Judge
from kcoord_wire.forensics.model import Finding
from tests.support.detector_groups import group, life
from tests.support.marshal_rows import history_of


def found(ahead: str, judge: Judge | None = None, *, is_append_time: bool = True) -> list[Finding]:
    """What is found of three members that send each second, one of them with a clock so many s ahead."""
    lines = [
        (second + n / 10, f"Heartbeat/1/{{{ahead if n == 1 else ''}}}/i{n}/c{n}/g/t/{n}/0")
        for second in range(60)
        for n in range(3)
    ]
    return findings_of("clock_skew", history_of(lines, judge, first=9, is_append_time=is_append_time))


@pytest.mark.parametrize("is_append_time", [True, False])
@pytest.mark.parametrize(("ahead", "threshold"), [("+8", 2.0), ("-12", 5.0)])
def test_a_clock_that_is_off_is_named(ahead: str, threshold: float, is_append_time: bool) -> None:
    [finding] = found(ahead, is_append_time=is_append_time)
    assert (finding.subject, finding.threshold) == ("c1", threshold)
    assert finding.value == pytest.approx(abs(int(ahead)), abs=1.5)


@pytest.mark.parametrize("is_append_time", [True, False])
@pytest.mark.parametrize("ahead", ["", "+1", "-3"])
def test_small_differences_are_normal(ahead: str, is_append_time: bool) -> None:
    assert found(ahead, is_append_time=is_append_time) == []


@pytest.mark.parametrize(
    ("ahead", "rules", "severity"),
    [
        ("+8", "library", "critical"),
        ("-12", "library", "warning"),
        ("-70", "library", "critical"),
        ("+8", "document", "warning"),
    ],
)
def test_the_library_suffers_where_no_margin_is_left(ahead: str, rules: str, severity: str) -> None:
    assert [finding.severity for finding in found(ahead, Judge(rules))] == [severity]


def test_members_of_other_protocols_have_no_such_clock() -> None:
    assert findings_of("clock_skew", group(members=[life("m")])) == []
