"""Leader does not assign: the leader gets the list of members, and joins again instead of sending the assignment.

Normal is one SyncGroup for each list. A leader whose assignor fails, or that refuses what it returned, rejoins at once
and fails again: the group never leaves the rebalance, although all members are alive (KAFKA-13406).

Threshold: 3 lists in a row without a SyncGroup, each followed by another JoinGroup of the same leader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, listed, only
from kcoord_wire.forensics.detectors.rounds import Round, read_rounds
from kcoord_wire.forensics.detectors.windows import runs
from kcoord_wire.forensics.model import GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD: Final = 3
CRITICAL: Final = 10


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for all stretches of lists without an assignment."""
    rounds = read_rounds(exchanges)
    last_join = {each.leader_id: each.asked_ns for each in rounds}

    def is_given_up(each: Round) -> bool:
        return not each.is_synced and last_join[each.leader_id] > each.listed_ns

    stretches = [run for run in runs(rounds, is_given_up) if len(run) >= THRESHOLD]
    if not stretches:
        return
    lists = [each for run in stretches for each in run]
    longest = max(map(len, stretches))
    leaders = sorted({each.leader for each in lists})
    yield Found(
        severity="critical" if longest >= CRITICAL else "warning",
        from_ns=lists[0].listed_ns,
        to_ns=lists[-1].listed_ns,
        subject=only(leaders),
        text=f"the leader ({listed(leaders)}) got the members {len(lists)} times and joined again instead of "
        f"assigning, {longest} times in a row ({listed(sorted({each.assignor for each in lists if each.assignor}))})",
        advice="Look at the leader's log: its assignor raises, or it refuses the assignment. Restart that member, so "
        "that another one leads; update its client library.",
        value=float(longest),
        threshold=float(THRESHOLD),
        rebalances=sorted({number for each in lists for number in each.rebalances_of(history)}),
        evidence=[each.evidence("no SyncGroup, but another JoinGroup") for each in lists[:MAX_EVIDENCE]],
        suspects=tuple(sorted({each.leader_id for each in lists})),
    )
