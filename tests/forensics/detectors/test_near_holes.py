"""Findings beside holes are weakened, or dropped."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.detectors import DETECTORS
from kcoord_wire.forensics.detectors.near_holes import ABSENT, NEAR_NS, SHOWN, weigh
from kcoord_wire.forensics.model import Finding, Hole
from tests.support.detector_groups import SECOND, group


def left(detector: str, severity: str, hole_s: float) -> list[str]:
    """The severities that remain of a finding from 100 s to 110 s, with a hole at a time."""
    finding = Finding(
        "billing", detector, severity, 100 * SECOND, 110 * SECOND, None, "it is so", "do it", 1.0, 1.0, [], []
    )
    hole = Hole("billing", int(hole_s * SECOND), int(hole_s * SECOND), "", None, [], "")
    return [each.severity for each in weigh([finding], group(holes=[hole]))]


@pytest.mark.parametrize(("severity", "weaker"), [("critical", ["warning"]), ("warning", ["info"]), ("info", [])])
def test_a_finding_beside_a_hole_is_weaker(severity: str, weaker: list[str]) -> None:
    assert left("stuck_preparing", severity, 105) == weaker
    assert left("stuck_preparing", severity, 100 - NEAR_NS / SECOND) == weaker


@pytest.mark.parametrize("hole_s", [80, 111])
def test_a_hole_elsewhere_changes_nothing(hole_s: float) -> None:
    assert left("stuck_preparing", "critical", hole_s) == ["critical"]


def test_what_frames_show_stays() -> None:
    assert left("refused", "critical", 105) == ["critical"]


def test_what_only_was_not_seen_is_dropped() -> None:
    assert left("frozen_member", "warning", 105) == []
    assert left("frozen_member", "critical", 105) == ["warning"]


def test_the_detectors_are_those_that_exist() -> None:
    assert DETECTORS.keys() >= ABSENT | SHOWN
    assert not ABSENT & SHOWN
