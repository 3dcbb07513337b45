"""Generation reset: the group's generation goes back.

Normal is that generations only grow, also over restarts of the coordinator, which keeps them in its log. A generation
that goes back means that the group was deleted and made anew, or that its log was lost (an offsets topic with one
replica, an unclean leader election): then its offsets may be gone as well.

Threshold: any.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.model import Evidence, Finding, GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["THRESHOLD", "find"]

THRESHOLD: Final = 1


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Finding]:
    """One finding a reset."""
    for before, after in pairwise(sorted(history.generations, key=lambda generation: generation.joined_ns)):
        if after.generation_id >= before.generation_id:
            continue
        yield Finding(
            history.group.group_id,
            "generation_reset",
            "critical" if before.members else "warning",
            before.joined_ns,
            after.joined_ns,
            None,
            f"generation {after.generation_id} follows generation {before.generation_id}",
            "The group was deleted, or the coordinator lost its log: compare the committed offsets with those before, "
            "and look at the replication factor of __consumer_offsets.",
            float(before.generation_id - after.generation_id),
            float(THRESHOLD),
            [r.number for r in history.rebalances if r.generation_id == after.generation_id],
            [
                Evidence(before.joined_ns, "", -1, f"generation {before.generation_id} of {before.members} members"),
                Evidence(after.joined_ns, "", -1, f"generation {after.generation_id} of {after.members} members"),
            ],
        )
