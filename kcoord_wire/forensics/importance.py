"""What a reader is shown first: the order of findings, and of all that happened to a group.

Laws:

* Findings are in order of severity; those of one severity in order of `IMPORTANCE`, which has what stops a group first,
  and causes before their symptoms: a member that is refused flaps, and a group that flaps rebalances often.
* Every detector has its place here (tests/forensics/detectors/test_registry.py), and its findings are sorted in one way
  in tables, JSON, terminal and page.

The headline of a group (`report.digest.headline`) is the first of these that there is: a critical finding, an outage, a
warning, partitions that are not committed any more, a rebalance that a fault began, a finding of severity info; else
what happened, as nothing unusual.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kcoord_wire.forensics.model import Finding

SEVERITIES: Final = ("critical", "warning", "info")
"""Of findings, the worst first."""

IMPORTANCE: Final = (
    # no member is served
    "outage",
    # what is refused cannot work
    "refused",
    "mixed_assignors",
    "two_applications",
    # records are lost or read twice
    "two_owners",
    "commit_after_revoke",
    "generation_reset",
    "offset_reset",
    # the group waits
    "stuck_preparing",
    "leader_does_not_assign",
    "stuck_completing",
    "slow_leader",
    "commits_instead_of_joining",
    "cooperative_loop",
    "coordinator_move",
    # partitions are not read
    "stuck_partition",
    "assigned_not_read",
    "unclaimed_partition",
    "released_not_reclaimed",
    "stale_claim",
    "handed_over_early",
    # members come and go
    "client_id_reuse",
    "slow_polls",
    "frozen_member",
    "flapping_member",
    "storm",
    # the work is spread badly
    "uneven_assignment",
    "clumped_topic",
    "clock_skew",
    # of course
    "deploy",
)
"""The detectors, the most important first."""

_RANK: Final = {name: place for place, name in enumerate(IMPORTANCE)}


def by_importance(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the most important first. Unknown severities and detectors come last."""
    severities = {name: place for place, name in enumerate(SEVERITIES)}
    return sorted(
        findings,
        key=lambda f: (
            severities.get(f.severity, len(severities)),
            _RANK.get(f.detector, len(_RANK)),
            f.from_ns,
            f.subject or "",
            f.text,
        ),
    )
