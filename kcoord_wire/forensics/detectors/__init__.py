"""What is wrong with a group beyond a single rebalance.

A detector is a function ``find(history, exchanges)`` that yields `Found` and never raises for what a peer sent. The
head of its module says what it looks for, what counts as normal, and from which threshold on it reports. `exchanges` is
the group's table of exchanges, or None where the source is a log; a detector that needs them finds nothing then.

To add a detector, write its module and give it a line in `DETECTORS`; its findings carry the name used there. Give the
name its place in `forensics.importance.IMPORTANCE`, and a word in docs/analyze.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors import (
    assigned_not_read,
    claims,
    client_id_reuse,
    clock_skew,
    clumped_topic,
    commit_after_revoke,
    commits_instead_of_joining,
    cooperative_loop,
    deploy,
    flapping_member,
    frozen_member,
    generation_reset,
    leader,
    mixed_assignors,
    offset_reset,
    outage,
    refusals,
    slow_leader,
    slow_polls,
    storm,
    stuck,
    stuck_partition,
    two_applications,
    unclaimed,
    uneven_assignment,
)
from kcoord_wire.forensics.detectors.found import Detector
from kcoord_wire.forensics.detectors.known_bugs import finding_of
from kcoord_wire.forensics.detectors.near_holes import weigh
from kcoord_wire.forensics.detectors.outside import history_of_clients, outside_findings
from kcoord_wire.forensics.importance import by_importance
from kcoord_wire.forensics.model import Finding, GroupHistory, Sighting

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DETECTORS", "detect", "findings_of", "history_of_clients"]

DETECTORS: Final[Mapping[str, Detector]] = MappingProxyType(
    {
        "outage": outage.find_outages,
        "coordinator_move": outage.find_moves,
        "refused": refusals.find,
        "deploy": deploy.find,
        "frozen_member": frozen_member.find,
        "slow_leader": slow_leader.find,
        "slow_polls": slow_polls.find,
        "two_applications": two_applications.find,
        "storm": storm.find,
        "flapping_member": flapping_member.find,
        "stuck_preparing": stuck.find_preparing,
        "stuck_completing": stuck.find_completing,
        "cooperative_loop": cooperative_loop.find,
        "generation_reset": generation_reset.find,
        "uneven_assignment": uneven_assignment.find,
        "mixed_assignors": mixed_assignors.find,
        "commit_after_revoke": commit_after_revoke.find,
        "two_owners": claims.find_two_owners,
        "stale_claim": claims.find_stale,
        "handed_over_early": claims.find_early,
        "leader_does_not_assign": leader.find,
        "commits_instead_of_joining": commits_instead_of_joining.find,
        "offset_reset": offset_reset.find,
        "stuck_partition": stuck_partition.find,
        "assigned_not_read": assigned_not_read.find,
        "clumped_topic": clumped_topic.find,
        "clock_skew": clock_skew.find,
        "client_id_reuse": client_id_reuse.find,
        "unclaimed_partition": unclaimed.find_unclaimed,
        "released_not_reclaimed": unclaimed.find_released,
    }
)
"""The detectors, by the name that their findings carry."""


def findings_of(detector: str, history: GroupHistory, exchanges: pa.Table | None = None) -> list[Finding]:
    """Return what one detector finds in a group.

    :param exchanges: rows of `Exchange` of the group; None where the source is a log
    :raises KeyError: there is no such detector
    """
    return [finding_of(detector, found, history) for found in DETECTORS[detector](history, exchanges)]


def detect(history: GroupHistory, exchanges: pa.Table | None = None, errors: Iterable[Sighting] = ()) -> list[Finding]:
    """Return what all detectors find in a group, the most important first.

    :param exchanges: as in `findings_of`
    :param errors: rows of ERROR, of all clients
    """
    found = [finding for detector in DETECTORS for finding in findings_of(detector, history, exchanges)]
    outside = (finding_of("refused", each, history) for each in outside_findings(history, errors))
    return by_importance([*weigh(found, history), *outside])
