"""Where the source lacks bytes of a group's connections, and how sure an explanation beside them may be.

Laws:

* Bytes of unknown connections may be of any group.
* What follows from a member's silence is a guess where its own bytes are missing; what a frame shows is less certain
  where another frame before it may be missing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS, Hole, Rebalance, SightingKind
from kcoord_wire.forensics.wire.moments import NS_PER_S
from kcoord_wire.forensics.wire.trace import MemberTrace, RebalanceTrace, StartKind
from kcoord_wire.forensics.wire.traffic import GroupTraffic

NEAR_NS: Final = 10 * NS_PER_S
"""What was sent this long before a rebalance may have been its start."""

NEAR: Final = 0.8
"""The confidence of what a frame shows, near a hole."""

GUESSED: Final = 0.4
"""The confidence of what follows from a silence with a hole in it."""

_ABSENT: Final = frozenset({StartKind.SESSION, StartKind.SYNC, StartKind.VANISHED, StartKind.HIDDEN})


class Holes:
    """The holes of a group.

    :ivar rows: in order of their ends
    """

    def __init__(self, traffic: GroupTraffic, lives: Iterable[MemberTrace]) -> None:
        users: dict[str, list[str]] = {}
        for life in lives:
            for name in life.connections:
                users.setdefault(name, []).append(life.member_id)
        known = {*traffic.answered_ns, *(request.connection for request in traffic.requests), *users, ""}
        self.rows = [
            Hole(
                group_id=traffic.group_id,
                from_ns=link.time_ns if link.since_ns is None else link.since_ns,
                to_ns=link.time_ns,
                connection=link.connection,
                by=link.by,
                members=sorted(set(users.get(link.connection, ()))),
                text=link.text or "",
            )
            for link in traffic.links
            if link.kind == SightingKind.HOLE and link.connection in known
        ]
        self._ends = [row.to_ns for row in self.rows]

    def between(self, from_ns: int, to_ns: int) -> Iterator[Hole]:
        """Yield those of which some is between two times."""
        return (row for row in self.rows[bisect_right(self._ends, from_ns - 1) :] if row.from_ns <= to_ns)

    def weaken(self, trace: RebalanceTrace, row: Rebalance) -> None:
        """Lower the confidence in the cause of a rebalance that has a hole near its start, or in the silence before."""
        start, at_ns = trace.start, trace.started.time_ns
        until_ns = at_ns if trace.join is None else max(at_ns, trace.join.at.time_ns)
        near = list(self.between(at_ns - NEAR_NS, until_ns))
        if start.kind in _ABSENT and start.member is not None:
            since_ns = at_ns - max(NEAR_NS, (start.member.session_ms or 0) * NS_PER_MS)
            name = start.member.member_id
            if any(not hole.members or name in hole.members for hole in self.between(since_ns, until_ns)):
                row.confidence = min(row.confidence, GUESSED)
                row.detail += "; bytes of its connection are missing, so it may have sent something"
                return
        if near:
            row.confidence = min(row.confidence, NEAR)

    def blind(self) -> Iterator[str]:
        """Say what the holes may hide."""
        if not self.rows:
            return
        places = f"{len(self.rows)} places" if len(self.rows) > 1 else "one place"
        yield (
            f"Bytes of the group's connections are missing in {places} (table holes): rebalances may be missing there, "
            "and causes and findings are less certain."
        )
