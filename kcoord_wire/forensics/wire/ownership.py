"""Who held which partition, when nobody did, and what a rebalance has moved.

Laws:

* A member holds what an answer to its SyncGroup gave it, from that answer on. An eager member gives all up with its
  next JoinGroup; a cooperative one what its next assignment leaves out, or its next join no longer names (KIP-429).
* A member that leaves, or is removed, holds nothing any more; nor does one that is told that it is no member.
* A pause begins when the last holder lets go and ends when the next one begins; what nobody ever held has none.
* A static member that comes back under another member id is the same owner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from kcoord_wire.forensics.model import Ownership, Pause
from kcoord_wire.forensics.wire.rows import Key, Partition, Row
from kcoord_wire.forensics.wire.trace import Course, Peer, is_cooperative

__all__ = ["Holding", "count_moves", "find_holdings", "find_pauses", "ownership_rows"]

_LOST = {22, 25, 82}


@dataclass(slots=True)
class Holding:
    """A member held a partition; `to_ns` None: to the end of the source."""

    partition: Partition
    peer: Peer
    generation: int | None
    from_ns: int
    to_ns: int | None = None

    @property
    def order(self) -> tuple[int, int, str]:
        return (self.from_ns, 1 << 62 if self.to_ns is None else self.to_ns, self.peer.member_id)


class _Hands:
    """What one member holds."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._held: dict[Partition, Holding] = {}
        self.all: list[Holding] = []

    def take(self, partitions: Iterable[Partition], generation: int | None, now_ns: int) -> None:
        for partition in sorted(partitions):
            if partition not in self._held:
                self._held[partition] = holding = Holding(partition, self._peer, generation, now_ns)
                self.all.append(holding)

    def keep(self, partitions: frozenset[Partition], now_ns: int) -> None:
        """Let go of all others."""
        for partition in [held for held in self._held if held not in partitions]:
            holding = self._held.pop(partition)
            holding.to_ns = max(now_ns, holding.from_ns)


def find_holdings(peers: Sequence[Peer], rows: Sequence[Row], given: dict[int, frozenset[Partition]]) -> list[Holding]:
    """All holdings, by partition and time.

    :param given: what SyncGroup requests that went well brought, by the id() of the row
    """
    by_member: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.api in ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit"):
            for name in {row.member_id, row.given_id} - {""}:
                by_member[name].append(row)
    holdings: list[Holding] = []
    for peer in peers:
        holdings += _holdings_of(peer, by_member[peer.member_id], given)
    return sorted(holdings, key=lambda holding: (holding.partition, *holding.order))


def _holdings_of(peer: Peer, rows: list[Row], given: dict[int, frozenset[Partition]]) -> list[Holding]:
    hands = _Hands(peer)
    nothing: frozenset[Partition] = frozenset()
    for key, row in _moments(rows):
        if key < peer.since or (peer.left is not None and key > peer.left):
            continue
        if row.api == "SyncGroup" and row.error == 0:
            assignment = given.get(id(row))
            if assignment is not None:
                hands.keep(assignment, key[0])
                hands.take(assignment, row.generation, key[0])
        elif row.api == "JoinGroup":
            hands.keep(_kept(row), key[0])
        elif row.error in _LOST:
            hands.keep(nothing, key[0])
    if peer.left is not None:
        hands.keep(nothing, peer.left[0])
    return hands.all


def _moments(rows: list[Row]) -> list[tuple[Key, Row]]:
    """When each of them has its effect on what the member holds."""
    moments = []
    for row in rows:
        if row.api == "JoinGroup":
            moments.append((row.key, row))
        elif row.answer_key is not None:
            moments.append((row.answer_key, row))
    return sorted(moments, key=lambda moment: moment[0])


def _kept(row: Row) -> frozenset[Partition]:
    """What a member keeps while it joins again."""
    if not is_cooperative(row.offers):
        return frozenset()
    stated = [offer.owned for offer in row.offers if offer.owned is not None]
    return frozenset().union(*stated)


def ownership_rows(group_id: str, holdings: Iterable[Holding]) -> list[Ownership]:
    """As rows, in order of time."""
    rows = [
        Ownership(
            group_id,
            holding.partition[0],
            holding.partition[1],
            holding.peer.member_id,
            holding.peer.client_id,
            holding.generation,
            holding.from_ns,
            holding.to_ns,
        )
        for holding in holdings
    ]
    return sorted(rows, key=lambda row: (row.from_ns, row.topic, row.partition, row.member_id))


def find_pauses(group_id: str, holdings: Sequence[Holding], spans: Sequence[tuple[int, int | None]]) -> list[Pause]:
    """The times in which nobody held a partition that had been held.

    :param holdings: by partition and time
    :param spans: begin and end of the rebalances, in order of number
    """
    pauses = []
    last: Holding | None = None
    for holding in holdings:
        if last is not None and last.partition == holding.partition:
            if last.to_ns is None:
                continue
            if holding.from_ns > last.to_ns:
                pauses.append(_pause(group_id, last, holding, spans))
            if holding.to_ns is None or holding.to_ns >= last.to_ns:
                last = holding
        else:
            if last is not None and last.to_ns is not None:
                pauses.append(_pause(group_id, last, None, spans))
            last = holding
    if last is not None and last.to_ns is not None:
        pauses.append(_pause(group_id, last, None, spans))
    return sorted(pauses, key=lambda pause: (pause.from_ns, pause.topic, pause.partition))


def _pause(group_id: str, last: Holding, following: Holding | None, spans: Sequence[tuple[int, int | None]]) -> Pause:
    assert last.to_ns is not None, "it has let go"
    number = None
    for index, (start, end) in enumerate(spans, start=1):
        if start > last.to_ns and number is not None:
            break
        if end is None or end >= last.to_ns:
            number = index
            if start <= last.to_ns:
                break
    # The last that had begun by then, else the next: a member lets go because of one, or one follows from its end.
    return Pause(
        group_id,
        last.partition[0],
        last.partition[1],
        last.to_ns,
        None if following is None else following.from_ns,
        last.peer.member_id,
        None if following is None else following.peer.member_id,
        number,
    )


def count_moves(course: Course, owners: dict[Partition, Peer], revoked: set[Partition]) -> tuple[int, int]:
    """How many partitions a rebalance moved, and how many of them needlessly. Brings `owners`, `revoked` up to date.

    :param owners: who had each partition last
    :param revoked: partitions that a cooperative round took from their owner, who lives on
    """
    if course.round is None or course.stable is None:
        return 0, 0
    assignments = {
        course.after[member_id]: given
        for member_id, given in course.round.assignments.items()
        if member_id in course.after
    }
    staying = {peer.identity for peer in assignments}
    total = sum(len(given) for given in assignments.values())
    share = ceil(total / len(assignments)) if assignments else 0
    had: dict[str, int] = defaultdict(int)
    for peer in owners.values():
        had[peer.identity] += 1
    moved = needless = 0
    for peer, given in assignments.items():
        for partition in given:
            former = owners.get(partition)
            if former is not None and former.identity != peer.identity:
                moved += 1
                needless += former.identity in staying and had[former.identity] <= share
            elif former is not None and partition in revoked:
                moved += 1
                needless += 1
    now = {partition: peer for peer, given in assignments.items() for partition in given}
    for partition, peer in owners.items():
        if partition not in now and peer.identity in staying:
            revoked.add(partition)
    revoked.difference_update(now)
    owners.update(now)
    return moved, needless
