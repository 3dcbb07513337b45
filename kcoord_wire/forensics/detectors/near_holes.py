"""Findings beside holes of a source: what rests on something that was not seen is weaker there.

Law: a critical finding never rests on what a hole may have hidden. A finding of a detector in `SHOWN` rests on frames
that are in the source, each of which alone shows that something is wrong: it stays as it is. Any other loses a step of
its severity if a hole lies in its interval, and one of severity info is dropped; so is one of `ABSENT`, unless it is
critical: all that it has seen is that something was not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kcoord_wire.forensics.model import Finding, GroupHistory

NEAR_NS: Final = 10_000_000_000
"""A hole this long before the first moment of a finding may have hidden what begins it."""

SHOWN: Final = frozenset(
    {
        "refused",
        "mixed_assignors",
        "coordinator_move",
        "commit_after_revoke",
        "offset_reset",
        "storm",
        "deploy",
        "two_applications",
    }
)
"""The detectors whose findings rest on frames that were seen."""

ABSENT: Final = frozenset({"frozen_member", "slow_leader", "stuck_partition", "assigned_not_read"})
"""The detectors whose findings are that something did not come."""

_WEAKER: Final = {"critical": "warning", "warning": "info"}


def weigh(findings: Iterable[Finding], history: GroupHistory) -> Iterator[Finding]:
    """Yield the findings of a group as far as its holes leave them."""
    for finding in findings:
        if finding.detector in SHOWN or not _has_hole(finding, history):
            yield finding
        elif finding.severity == "critical" or (finding.severity in _WEAKER and finding.detector not in ABSENT):
            finding.severity = _WEAKER[finding.severity]
            finding.text += "; packets are missing there, so it may be less than it seems"
            yield finding


def _has_hole(finding: Finding, history: GroupHistory) -> bool:
    until_ns = history.group.last_ns if finding.to_ns is None else finding.to_ns
    return any(hole.to_ns >= finding.from_ns - NEAR_NS and hole.from_ns <= until_ns for hole in history.holes)
