"""Generation reset: the group's generation decreases.

Normal is that generations only grow, also over restarts of the coordinator, which keeps them in its log. A generation
that decreases means that the group was deleted and created again, or that its log was lost (an offsets topic with one
replica, an unclean leader election): then its offsets may be gone as well.

Threshold: any.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import Found
from kcoord_wire.forensics.model import Evidence, Generation, GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["THRESHOLD", "find"]

THRESHOLD: Final = 1


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per reset."""
    for before, after in pairwise(sorted(history.generations, key=lambda generation: generation.joined_ns)):
        if after.generation_id >= before.generation_id:
            continue
        yield Found(
            severity="critical" if before.members else "warning",
            from_ns=before.joined_ns,
            to_ns=after.joined_ns,
            subject=None,
            text=f"generation {after.generation_id} follows generation {before.generation_id}",
            advice="The group was deleted, or the coordinator lost its log: compare the committed offsets with those "
            "before, and look at the replication factor of __consumer_offsets.",
            value=float(before.generation_id - after.generation_id),
            threshold=float(THRESHOLD),
            rebalances=[r.number for r in history.rebalances if r.generation_id == after.generation_id],
            evidence=[_evidence(before), _evidence(after)],
        )


def _evidence(row: Generation) -> Evidence:
    return Evidence(row.joined_ns, "", -1, f"generation {row.generation_id} of {row.members} members")
