"""Which member held which partition, the pauses in which none did, and what a rebalance moved.

Laws:

* A member holds what the response to its SyncGroup assigned to it, from that response on. An eager member gives
  everything up with its next JoinGroup; a cooperative one what its next assignment leaves out, or its next join no
  longer names (KIP-429). Where its assignment is missing, it holds what its client reads until it joins again, and no
  other member is known to hold.
* A member that leaves, is removed, or is rejected (22, 25, 82) holds nothing from then on.
* A pause begins when the last holder lets go, or is dead (`members`), and ends when the next one begins; a partition
  that was never held has none. Where members that the source does not show may have held it meanwhile, there is no row.
* A static member that returns under another member id is the same owner.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import ceil
from typing import Final, NamedTuple

import pyarrow.compute as pc

from kcoord_wire.forensics.model import Ownership, Pause, client_host
from kcoord_wire.forensics.wire.links import Fetched
from kcoord_wire.forensics.wire.signs import END, NEVER_NS, NS_PER_S, Moment
from kcoord_wire.forensics.wire.trace import MemberTrace, RebalanceTrace, is_cooperative
from kcoord_wire.forensics.wire.traffic import GroupRequest, Partition
from kcoord_wire.protocol.error_codes import ErrorCode

_REJECTIONS: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
)
_APIS: Final = ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit")
_NOTHING: Final[frozenset[Partition]] = frozenset()


@dataclass(slots=True)
class HeldPartition:
    """A member held a partition.

    :ivar to_ns: None: to the end of the source
    :ivar dead_from_ns: since when its holder was dead; None: it was not
    """

    partition: Partition
    member: MemberTrace
    generation: int | None
    from_ns: int
    to_ns: int | None = None
    dead_from_ns: int | None = None

    @property
    def worked_until_ns(self) -> int | None:
        """When its holder let go or died; None: neither."""
        return self.to_ns if self.dead_from_ns is None else self.dead_from_ns

    def end_with(self, died_ns: int | None) -> None:
        """Record when its holder died, if it held the partition until then."""
        if died_ns is not None and (self.to_ns is None or died_ns < self.to_ns):
            self.dead_from_ns = max(died_ns, self.from_ns)

    @property
    def order(self) -> tuple[Partition, int, int, str]:
        """Holdings sort by partition and time."""
        return (self.partition, self.from_ns, NEVER_NS if self.to_ns is None else self.to_ns, self.member.member_id)


# ---- what a member holds


class Holder:
    """What one member holds as time goes by.

    :ivar holdings: all that it has held so far
    """

    def __init__(self, member: MemberTrace) -> None:
        self._member = member
        self._held: dict[Partition, HeldPartition] = {}
        self.holdings: list[HeldPartition] = []

    def begin(self, partitions: Iterable[Partition], generation: int | None, now_ns: int) -> None:
        """Hold these, too."""
        for partition in sorted(partitions):
            if partition not in self._held:
                self._held[partition] = holding = HeldPartition(partition, self._member, generation, now_ns)
                self.holdings.append(holding)

    def keep(self, partitions: Iterable[Partition], now_ns: int) -> None:
        """Let go of all others."""
        kept = frozenset(partitions)
        for partition in [held for held in self._held if held not in kept]:
            holding = self._held.pop(partition)
            holding.to_ns = max(now_ns, holding.from_ns)

    def held_since(self, from_ns: int) -> list[Partition]:
        """Return what it holds since a time, or later."""
        return [partition for partition, holding in self._held.items() if holding.from_ns >= from_ns]


def _follow(member: MemberTrace, requests: list[GroupRequest]) -> list[HeldPartition]:
    """Find what a member of the classic protocol held."""
    holder = Holder(member)
    for at, request in _moments(requests):
        if at >= member.since and (member.left is None or at <= member.left):
            _take(holder, at.time_ns, request)
    if member.left is not None:
        holder.keep(_NOTHING, member.left.time_ns)
    return holder.holdings


def _take(holder: Holder, now_ns: int, request: GroupRequest) -> None:
    if request.api == "SyncGroup" and request.error == 0:
        if request.granted is not None:
            holder.keep(request.granted, now_ns)
            holder.begin(request.granted, request.generation, now_ns)
    elif request.api == "JoinGroup":
        holder.keep(_kept_while_joining(request), now_ns)
    elif request.error in _REJECTIONS:
        holder.keep(_NOTHING, now_ns)


def find_holdings(members: Sequence[MemberTrace], requests: Sequence[GroupRequest]) -> list[HeldPartition]:
    """Find what each member held."""
    by_member: dict[str, list[GroupRequest]] = defaultdict(list)
    for request in requests:
        if request.api in _APIS:
            for name in {request.member_id, request.given_id} - {""}:
                by_member[name].append(request)
    return [holding for member in members for holding in _follow(member, by_member[member.member_id])]


# ---- where the assignment is missing

_IN_FLIGHT_NS: Final = NS_PER_S
"""After the answer to a join, in which a Fetch may bring what was asked for before it (fetch.max.wait.ms: 500)."""


class _Unassigned(NamedTuple):
    """A member that joined, and of which the source has no assignment until it joins again, or leaves."""

    member: MemberTrace
    join: GroupRequest
    from_ns: int
    until_ns: int


def find_readings(
    members: Sequence[MemberTrace], requests: Sequence[GroupRequest], fetched: Fetched, known: Sequence[HeldPartition]
) -> list[HeldPartition]:
    """Find what members held whose assignments are missing, by what their clients fetched.

    :param known: what members held by their assignments
    """
    found = []
    for each in _unassigned(members, requests):
        name = (each.member.client_id, each.member.host)
        alike = [other for other in members if (other.client_id, other.host) == name and _overlaps(other, each)]
        if len(alike) > 1:
            continue
        for partition in sorted(_read_by(name, each, fetched)):
            if not any(held.partition == partition and _is_held(held, each) for held in known):
                to_ns = None if each.until_ns == NEVER_NS else each.until_ns
                found.append(HeldPartition(partition, each.member, each.join.new_generation, each.from_ns, to_ns))
    return found


def _unassigned(members: Sequence[MemberTrace], requests: Sequence[GroupRequest]) -> Iterator[_Unassigned]:
    by_member = defaultdict(list)
    for request in requests:
        if request.api in ("JoinGroup", "SyncGroup"):
            by_member[request.member_id or request.given_id].append(request)
    for member in members:
        yield from _unassigned_times(member, sorted(by_member[member.member_id], key=lambda request: request.asked))


def _unassigned_times(member: MemberTrace, own: Sequence[GroupRequest]) -> Iterator[_Unassigned]:
    """:param own: JoinGroup and SyncGroup of the member, in order of time"""
    joins = [request for request in own if request.api == "JoinGroup" and request.asked >= member.since]
    syncs = [request for request in own if request.api == "SyncGroup" and request.granted is not None]
    for join, after in zip_longest(joins, joins[1:]):
        begin = join.answered if join.error == 0 else None
        until = min(END if after is None else after.asked, member.left or END)
        if begin is not None and begin < until and not any(begin <= each.asked <= until for each in syncs):
            yield _Unassigned(member, join, begin.time_ns, until.time_ns)


def _overlaps(other: MemberTrace, each: _Unassigned) -> bool:
    return other.since.time_ns < each.until_ns and (other.left is None or other.left.time_ns > each.from_ns)


def _is_held(held: HeldPartition, each: _Unassigned) -> bool:
    return held.from_ns < each.until_ns and (held.to_ns is None or held.to_ns > each.from_ns + _IN_FLIGHT_NS)


def _read_by(name: tuple[str | None, str], each: _Unassigned, fetched: Fetched) -> set[Partition]:
    """Return the partitions that a client fetches."""
    rows = fetched.of_topics(each.join.subscribed)
    asked = pc.and_(pc.equal(rows["api"], "Fetch"), pc.equal(rows["client_id"], name[0]))
    asked = pc.and_(asked, pc.greater(rows["time_ns"], each.from_ns + _IN_FLIGHT_NS))
    rows = rows.filter(pc.and_(asked, pc.less(rows["time_ns"], each.until_ns)))
    return {
        (row["topic"], row["partition"])
        for row in rows.select(["topic", "partition", "connection"]).to_pylist()
        if client_host(row["connection"]) == name[1]
    }


def _moments(requests: list[GroupRequest]) -> list[tuple[Moment, GroupRequest]]:
    """When each of them takes effect on what the member holds: a join when it is sent, all others when answered."""
    moments = []
    for request in requests:
        at = request.asked if request.api == "JoinGroup" else request.answered
        if at is not None:
            moments.append((at, request))
    return sorted(moments, key=lambda moment: moment[0])


def _kept_while_joining(request: GroupRequest) -> frozenset[Partition]:
    if not is_cooperative(request.offers):
        return _NOTHING
    return _NOTHING.union(*(offer.owned for offer in request.offers if offer.owned is not None))


def ownership_rows(group_id: str, holdings: Iterable[HeldPartition]) -> list[Ownership]:
    """Return the rows of the ownership table, in order of time."""
    rows = [
        Ownership(
            group_id,
            holding.partition[0],
            holding.partition[1],
            holding.member.member_id,
            holding.member.client_id,
            holding.generation,
            holding.from_ns,
            holding.to_ns,
            holding.dead_from_ns,
        )
        for holding in holdings
    ]
    return sorted(rows, key=lambda row: (row.from_ns, row.topic, row.partition, row.member_id))


# ---- pauses


Unseen = Callable[[int, HeldPartition | None], bool]
"""Whether others, which the source does not show, may have held a partition between a time and its next holder."""


def find_pauses(
    group_id: str,
    holdings: Sequence[HeldPartition],
    spans: Sequence[tuple[int, int | None]],
    is_unseen: Unseen = lambda _from_ns, _following: False,
) -> tuple[list[Pause], list[int]]:
    """Find the times in which no member held a partition that had been held.

    :param holdings: sorted by `HeldPartition.order`
    :param spans: begin and end of the rebalances, in order of number
    :return: the pauses, and the numbers of the rebalances whose pauses are not known
    """
    pauses = []
    unknown = []
    last: HeldPartition | None = None
    for holding in [*holdings, None]:
        is_same = holding is not None and last is not None and holding.partition == last.partition
        following = holding if is_same else None
        from_ns = None if last is None else last.worked_until_ns
        if last is not None and from_ns is not None and (following is None or following.from_ns > from_ns):
            if is_unseen(from_ns, following):
                unknown.append(_rebalance_at(from_ns, spans) or 0)
            else:
                pauses.append(_pause(group_id, last, from_ns, following, spans))
        if following is None or last is None or _outlasts(following, last):
            last = holding
    return sorted(pauses, key=lambda pause: (pause.from_ns, pause.topic, pause.partition)), unknown


def _outlasts(holding: HeldPartition, last: HeldPartition) -> bool:
    end_ns, last_ns = holding.worked_until_ns, last.worked_until_ns
    return last_ns is not None and (end_ns is None or end_ns >= last_ns)


def _pause(
    group_id: str,
    last: HeldPartition,
    from_ns: int,
    following: HeldPartition | None,
    spans: Sequence[tuple[int, int | None]],
) -> Pause:
    return Pause(
        group_id,
        last.partition[0],
        last.partition[1],
        from_ns,
        None if following is None else following.from_ns,
        last.member.member_id,
        None if following is None else following.member.member_id,
        _rebalance_at(from_ns, spans),
        None if last.dead_from_ns is None else _until(last.to_ns, following),
    )


def _until(to_ns: int | None, following: HeldPartition | None) -> int | None:
    """When a dead holder was removed, or its successor began."""
    ends = [end for end in (to_ns, None if following is None else following.from_ns) if end is not None]
    return min(ends, default=None)


def _rebalance_at(now_ns: int, spans: Sequence[tuple[int, int | None]]) -> int | None:
    """The number of the rebalance that a pause belongs to: the last that had begun by then and was not over, else the
    next one, because a member lets go because of one, or one follows from its end."""
    number = None
    for index, (start, end) in enumerate(spans, start=1):
        if start > now_ns and number is not None:
            break
        if end is None or end >= now_ns:
            number = index
            if start <= now_ns and end != now_ns:  # one that begins when another is cut off may be why
                break
    return number


# ---- moves


@dataclass(slots=True)
class Owners:
    """Counts the partitions that rebalances move, in order.

    :ivar owners: the last owner of each partition
    :ivar revoked: partitions that a cooperative round took from their owner, which is still in the group
    """

    owners: dict[Partition, MemberTrace] = field(default_factory=dict)
    revoked: set[Partition] = field(default_factory=set)

    def count_moves(
        self, gains: Iterable[tuple[Partition, MemberTrace]], staying: set[str], share: int
    ) -> tuple[int, int]:
        """Count the partitions that get another owner, and those of them whose move balance did not require.

        :param gains: partitions with their owners from now on
        :param staying: the members that are in the group before and after, as `MemberTrace.identity`
        :param share: the partitions that a member may have in a balanced group
        """
        had = Counter(member.identity for member in self.owners.values())
        moved = needless = 0
        for partition, member in gains:
            former = self.owners.get(partition)
            if former is not None and former.identity != member.identity:
                moved += 1
                needless += former.identity in staying and had[former.identity] <= share
            elif former is not None and partition in self.revoked:
                moved += 1
                needless += 1
            self.owners[partition] = member
        return moved, needless

    def count_assigned(self, trace: RebalanceTrace) -> tuple[int, int]:
        """The same for the assignment of a classic rebalance."""
        if trace.join is None or trace.stable is None:
            return 0, 0
        given = trace.join.assignments.items()
        assigned = {trace.after[member_id]: parts for member_id, parts in given if member_id in trace.after}
        gains = [(partition, member) for member, parts in assigned.items() for partition in parts]
        staying = {member.identity for member in assigned}
        counts = self.count_moves(gains, staying, fair_share(len(gains), len(assigned)))
        now = {partition for partition, _ in gains}
        self.revoked |= {partition for partition, member in self.owners.items() if member.identity in staying}
        self.revoked -= now
        return counts


def fair_share(partitions: int, members: int) -> int:
    """The most partitions that a member has in a balanced group."""
    return ceil(partitions / max(members, 1))
