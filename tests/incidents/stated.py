"""The brokers' own reasons for rebalances, compared with the causes that the report infers.

The coordinator logs each rebalance of a classic group when it begins: ``Preparing to rebalance group G in state S with
old generation N (reason: R)`` (GroupMetadataManager.java of Kafka 3.7 and newer). A reason is coarser than a cause: it
says that a member came, not that it had been there before. The table has for each reason the causes that say the same.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kcoord_wire.forensics.analysis import Analysis
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.lines.broker import judge_reason
from kcoord_wire.forensics.lines.extraction import lines_of
from kcoord_wire.forensics.model import Rebalance
from tests.incidents.labels import Incident

_CHANGED: Final = frozenset(
    {
        Cause.LEADER_REJOINED,
        Cause.TOPICS_CHANGED,
        Cause.SUBSCRIPTION_CHANGED,
        Cause.ASSIGNORS_CHANGED,
        Cause.COOPERATIVE_FOLLOW_UP,
        Cause.POLL_TIMEOUT,
        Cause.COORDINATOR_FAILOVER,
    }
)
REASONS: Final[Mapping[str, frozenset[Cause]]] = {
    "Adding new member": frozenset(
        {Cause.NEW_MEMBER, Cause.REBALANCE_TIMEOUT, Cause.COORDINATOR_FAILOVER, Cause.POLL_TIMEOUT}
    ),
    "on heartbeat expiration": frozenset({Cause.SESSION_EXPIRED}),
    "LeaveGroup": frozenset({Cause.MEMBER_LEFT, Cause.POLL_TIMEOUT}),
    "re-joining group": _CHANGED,
    "Updating metadata for member": _CHANGED,
    "static member": frozenset({Cause.STATIC_REPLACED, Cause.COORDINATOR_FAILOVER}),
    "pending sync request expiration": frozenset({Cause.SYNC_EXPIRED}),
    "over capacity": frozenset({Cause.GROUP_TOO_LARGE}),
}
"""A part of the broker's reason, and the causes that say the same."""

_NEAR_NS: Final = 2_000_000_000
"""A capture's first sign of a rebalance and the broker's line are at most so far apart; heartbeats are every 0.5 s."""


@dataclass(frozen=True)
class StatedReason:
    """One rebalance, as the broker logged it."""

    group: str
    at_ns: int
    old_generation: int
    reason: str

    @property
    def kind(self) -> str:
        """The key of `REASONS` that it contains; empty for none."""
        return next((part for part in REASONS if part in self.reason), "")


@dataclass
class Agreement:
    """How often cause and reason say the same.

    :ivar same: by kind of reason
    :ivar same_member: of these, how many name the same member id
    :ivar other: (kind of reason, cause) -> rebalances
    :ivar missed: reasons without a rebalance in the report, by kind
    """

    same: Counter[str] = field(default_factory=Counter)
    other: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    same_member: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, stated: StatedReason, found: Rebalance | None) -> None:
        if found is not None and found.cause in REASONS.get(stated.kind, ()):
            self.same[stated.kind] += 1
            self.same_member += found.member_id == judge_reason(stated.reason).trigger.member_id
            return
        if found is None:
            self.missed[stated.kind] += 1
        else:
            self.other[stated.kind, found.cause] += 1
        said = "nothing" if found is None else f"{found.cause}: {found.detail}"
        self.examples.append(f"{stated.group}, generation {stated.old_generation}: `{stated.reason}`, we say {said}")


def read_reasons(log: Path) -> Iterator[StatedReason]:
    """The rebalances that a stored log states, in its order."""
    with gzip.open(log) as lines:
        for row in lines_of(lines, log.name, UTC, datetime.now(UTC)):
            if row.kind == "preparing":
                yield StatedReason(row.group_id or "", row.time_ns, row.generation_id or 0, row.reason or "")


def compare(incident: Incident, folder: Path, analysis: Analysis, agreement: Agreement) -> None:
    """Add the rebalances of one incident to the agreement."""
    rebalances = {history.group.group_id: list(history.rebalances) for history in analysis.histories}
    for stated in read_reasons(incident.log_in(folder)):
        of_group = rebalances.get(stated.group)
        if of_group is None:
            continue  # no capture of it: the test's own group
        agreement.add(stated, _matching(of_group, stated))


def _matching(rebalances: list[Rebalance], stated: StatedReason) -> Rebalance | None:
    """The rebalance that it is about, which is then taken out of the list."""
    near = [row for row in rebalances if abs(row.started_ns - stated.at_ns) <= _NEAR_NS]
    exact = [row for row in near if row.generation_id == stated.old_generation + 1]
    fitting = exact or [row for row in near if row.generation_id is None]
    if not fitting:
        return None
    best = min(fitting, key=lambda row: abs(row.started_ns - stated.at_ns))
    rebalances.remove(best)
    return best
