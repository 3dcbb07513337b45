"""What the source does not show of a group: bytes of its connections (`Holes`), members on other hosts (`Coverage`).

Laws:

* Bytes of unknown connections may be of any group.
* What follows from a member's silence is a guess where its own bytes are missing; what a frame shows is less certain
  where another frame before it may be missing.
* Others are there where the answer to JoinGroup names a leader, or the leader's list a member, that sent nothing in the
  source; where generations are missing between two that it has; in a KIP-848 group, where partitions of a subscribed
  topic are with no member that it shows.
* A partition that goes from one shown holder to the next within one rebalance had no other owner meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS, Hole, Rebalance, SightingKind
from kcoord_wire.forensics.wire.joins import Join, unshown_members
from kcoord_wire.forensics.wire.kip848 import Epochs
from kcoord_wire.forensics.wire.ownership import HeldPartition
from kcoord_wire.forensics.wire.signs import NS_PER_S
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
            for link in traffic.links.of_all(known)
            if link.kind == SightingKind.HOLE
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


class Coverage:
    """What the source shows of the members of a group.

    :param joins: in order
    :param skipped: generations of which it shows nothing; numbers of KIP-848 epochs prove nothing here
    :ivar unshown: members that other frames name, and that sent nothing in the source
    :ivar others_hold: partitions of a KIP-848 group that no shown member ever held
    """

    def __init__(self, traffic: GroupTraffic, joins: Sequence[Join], skipped: Sequence[int], epochs: Epochs) -> None:
        self._at = [join.at.time_ns for join in joins]
        self._generations = [join.generation for join in joins]
        self._unshown = [unshown_members(join, traffic) for join in joins]
        self._skipped = skipped
        self.unshown = set[str]().union(*self._unshown)
        self.others_hold = _not_held(traffic, epochs)

    def is_unseen(self, from_ns: int, following: HeldPartition | None) -> bool:
        """Whether others may have held a partition from a time on until its next holder got it, if there is one."""
        if self.others_hold and following is None:
            return True
        first = bisect_right(self._at, from_ns)
        end = len(self._at) if following is None else bisect_right(self._at, following.from_ns)
        got = None if following is None else following.generation
        if any(self._unshown[index] and self._generations[index] != got for index in range(first, end)):
            return True
        if first == 0:
            return False
        before = self._generations[first - 1]
        if got is None:
            return bool(self._unshown[first - 1]) and first == len(self._at)
        return (bool(self._unshown[first - 1]) and got > before + 1) or any(before < n < got for n in self._skipped)


def _not_held(traffic: GroupTraffic, epochs: Epochs) -> int:
    if not any(trace.outcome == "stable" for trace, _ in epochs.rebalances):
        return 0
    topics = {topic for member in epochs.lives for topic in member.topics}
    sizes = {sighting.topic: sighting.partitions for sighting in traffic.sizes.of(topics)}
    held = {holding.partition for holding in epochs.holdings}
    return sum((topic, number) not in held for topic, size in sizes.items() for number in range(size))
