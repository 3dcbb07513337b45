"""Commits instead of joining: a member goes on committing in a rebalance, and is removed at the rebalance timeout.

Normal is that a member commits once, when it gives its partitions up, and rejoins. One whose commit before the join is
never done commits again at each poll (KAFKA-14024); one that does not poll while its client commits in the background
looks the same, and its application is too slow.

Threshold: 1 member that committed 3 times or more between its heartbeat with REBALANCE_IN_PROGRESS and its removal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.compute as pc

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, listed, only, plural
from kcoord_wire.forensics.model import Evidence, GroupHistory, Rebalance, RemovedMember
from kcoord_wire.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD: Final = 1
_COMMITS: Final = 3


class _Removal(NamedTuple):
    """A member that was removed while it committed."""

    rebalance: Rebalance
    member_id: str
    client: str
    commits: list[Evidence]


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for all such members."""
    removals = [] if exchanges is None else list(_removals(history, exchanges))
    if not removals:
        return
    clients = sorted({removal.client for removal in removals})
    most = max(len(removal.commits) for removal in removals)
    yield Found(
        severity="warning",
        from_ns=removals[0].rebalance.started_ns,
        to_ns=removals[-1].rebalance.ended_ns,
        subject=only(clients),
        text=f"{listed(clients)} went on committing instead of rejoining, and {plural('was', clients, 'were')} removed "
        f"at the rebalance timeout, {len(removals)} {plural('time', removals)}; {most} commits in one rebalance",
        advice="Find out whether the application polls. If it does, the client waits for a commit that it repeats: "
        "update it, or commit synchronously before the rebalance.",
        value=float(len(clients)),
        threshold=float(THRESHOLD),
        rebalances=[removal.rebalance.number for removal in removals],
        evidence=[removal.commits[-1] for removal in removals[:MAX_EVIDENCE]],
        suspects=tuple(sorted({removal.member_id for removal in removals})),
    )


def _removals(history: GroupHistory, exchanges: pa.Table) -> Iterator[_Removal]:
    for rebalance in history.rebalances:
        for gone in rebalance.removed:
            commits = _commits(exchanges, gone, rebalance) if gone.why == "rebalance timeout" else []
            if len(commits) >= _COMMITS:
                yield _Removal(rebalance, gone.member_id, gone.client_id or gone.member_id, commits)


def _commits(exchanges: pa.Table, gone: RemovedMember, rebalance: Rebalance) -> list[Evidence]:
    """Return the accepted commits of a member from its first REBALANCE_IN_PROGRESS to the end of the join."""
    end_ns = rebalance.ended_ns if rebalance.joined_ns is None else rebalance.joined_ns
    own = exchanges.filter(pc.equal(exchanges["member_id"], gone.member_id))
    own = own.select(["api", "error_code", "asked_ns", "answered_ns", "source", "seq"])
    rows = [row for row in own.sort_by("asked_ns").to_pylist() if rebalance.started_ns <= row["asked_ns"]]
    notices = [row["answered_ns"] for row in rows if row["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS]
    return [
        Evidence(row["asked_ns"], row["source"], row["seq"], f"{gone.client_id or gone.member_id} commits")
        for row in rows
        if row["api"] == "OffsetCommit" and row["error_code"] == ErrorCode.NONE
        if notices and notices[0] <= row["asked_ns"] and (end_ns is None or row["asked_ns"] <= end_ns)
    ]
