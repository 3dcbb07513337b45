"""Client id reuse: two live instances of a Marshal group have one client id.

The Go library takes a claim for its own by group and client id. Two processes with one client id both consume what
either of them holds; and whichever sends a heartbeat last is the holder. Normal is one instance after the other: a
restart keeps the client id, and the instance id is new.

Threshold: they are heard of at the same time for 5 s. That long a message of a stopped process may be under way (the
library's timeout of a produce request).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found
from kcoord_wire.forensics.detectors.windows import SECOND_NS
from kcoord_wire.forensics.model import Evidence, GroupHistory, MemberLife

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD_NS: Final = 5 * SECOND_NS


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per client id."""
    if history.group.origin != "marshal":
        return
    lives: dict[str, list[MemberLife]] = defaultdict(list)
    for life in sorted(history.members, key=lambda life: life.joined_ns):
        lives[life.client_id or ""].append(life)
    for client_id, instances in lives.items():
        together = list(_together(instances))
        if together:
            yield _found(history, client_id, instances, together)


def _together(instances: list[MemberLife]) -> Iterator[tuple[int, int]]:
    """Yield the intervals of two instances at a time, each with the one before that was heard of longest."""
    longest = instances[0]
    for life in instances[1:]:
        until = min(longest.last_seen_ns, life.last_seen_ns)
        if until - life.joined_ns >= THRESHOLD_NS:
            yield life.joined_ns, until
        longest = max(longest, life, key=lambda each: each.last_seen_ns)


def _found(
    history: GroupHistory, client_id: str, instances: list[MemberLife], together: list[tuple[int, int]]
) -> Found:
    ids = {life.member_id for life in instances}
    longest = max(until - since for since, until in together)
    return Found(
        severity="critical",
        from_ns=together[0][0],
        to_ns=max(until for _, until in together),
        subject=client_id,
        text=f"{client_id or 'the empty client id'} was used by several instances at a time, for "
        f"{longest / SECOND_NS:.0f} s: with the Go library each of them consumes what any of them holds",
        advice="Give each process of a group a client id of its own, one that it keeps when it is restarted.",
        value=longest / SECOND_NS,
        threshold=THRESHOLD_NS / SECOND_NS,
        rebalances=[row.number for row in history.rebalances if row.member_id in ids],
        evidence=[
            Evidence(life.joined_ns, "", -1, f"instance {life.member_id} is heard of for the first time")
            for life in instances[:MAX_EVIDENCE]
        ],
    )
