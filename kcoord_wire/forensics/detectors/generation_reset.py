"""Generation reset: the group's generation decreases.

Normal is that generations only grow, also over restarts of the coordinator, which keeps them in its log. A generation
that decreases, or begins again at the same number, means one of two things. If the group was empty by then, it was
deleted and formed again: by DeleteGroups, or by the coordinator once it had no offsets left. If it had members, the
coordinator has lost its log (an offsets topic with one replica, an unclean leader election). Its offsets are gone in
either case. It is critical where members had to rejoin because the coordinator did not know them any more.

Threshold: any.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import Found
from kcoord_wire.forensics.model import Cause, Evidence, Generation, GroupHistory, Rebalance

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD: Final = 1
_SURE: Final = 0.9

_DELETED: Final = (
    "Its committed offsets are gone with it, so that its consumers begin where auto.offset.reset says: compare the "
    "offsets with those before, and look who deletes the group (kafka-consumer-groups --delete, a script, an operator, "
    "or the broker, after offsets.retention.minutes without members)."
)
_LOST: Final = (
    "The coordinator lost its log: compare the committed offsets with those before, and look at the replication factor "
    "of __consumer_offsets and at unclean leader elections."
)


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per reset."""
    for before, after in pairwise(sorted(history.generations, key=lambda generation: generation.joined_ns)):
        is_again = after.generation_id == before.generation_id and after.leader_id != before.leader_id
        if after.generation_id >= before.generation_id and not is_again:
            continue
        led = [row for row in history.rebalances if row.generation_id == after.generation_id]
        led = [row for row in led if before.joined_ns < row.started_ns <= after.joined_ns]
        was_empty = _was_empty(history, before, after)
        what = "the group was deleted when it was empty, and formed again" if was_empty else "the group was lost"
        yield Found(
            severity="warning" if was_empty or not _is_known(led) else "critical",
            from_ns=before.joined_ns,
            to_ns=after.joined_ns,
            subject=None,
            text=f"generation {after.generation_id} follows generation {before.generation_id}: {what}",
            advice=_DELETED if was_empty else _LOST,
            value=float(max(before.generation_id - after.generation_id, THRESHOLD)),
            threshold=float(THRESHOLD),
            rebalances=[row.number for row in led],
            evidence=[_evidence(before), _evidence(after)],
        )


def _was_empty(history: GroupHistory, before: Generation, after: Generation) -> bool:
    return any(
        row.state == "Empty" and before.joined_ns < row.from_ns <= after.joined_ns for row in history.states
    ) or (before.members == 0)


def _is_known(led: list[Rebalance]) -> bool:
    """Whether members came back from the loss: else frames between the two generations may be missing."""
    return any(row.cause == Cause.COORDINATOR_FAILOVER and row.confidence >= _SURE for row in led)


def _evidence(row: Generation) -> Evidence:
    return Evidence(row.joined_ns, "", -1, f"generation {row.generation_id} of {row.members} members")
