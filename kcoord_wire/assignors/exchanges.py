"""Exchanges of partitions that bring more of them near their members, and cost neither balance nor moves (KIP-881).

Laws:

* The loads stay as equal as they are: a member gives as many as it gets, or two exchange their loads.
* No more partitions have left their holder than before; if fewer can have, fewer have.
* Unless `MOST_STEPS` ends the search, no exchange is left, of any length, that would bring more partitions near: of all
  assignments as balanced and with as few moves, this one is nearest.

Method: a circulation of minimum cost. Members give to kinds of partitions (those of a topic with replicas in the same
racks), these to kinds of members (of a subscription in a rack). A move away from the holder costs more than all
nearness together, a move back brings that much. A cycle of negative cost is an exchange that pays: Bellman and Ford's
search finds some at once, which have no member in common; each is repeated among members that are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcoord_wire.assignors.subscriptions import Kind, Nearness, Partitions, TopicPartition, group_partitions

MOST_STEPS: Final = 300_000
"""Edges that are looked at, which takes 0.1 to 0.3 s. 100 members with 1,000 partitions need fewer."""

_MOVE: Final = 1 << 40
"""What a move costs: more than all partitions of a group that are not near."""


@dataclass(frozen=True, slots=True)
class _Edge:
    """One step of an exchange.

    :ivar cost: see the module
    :ivar takes: the partition that its first node, a member, gives; None where it gives none
    """

    start: int
    end: int
    cost: int
    takes: TopicPartition | None = None


class _Group:
    """The assignment that is changed. Members are numbers.

    :ivar has: by member: its partitions
    :ivar changed: the members whose partitions are others than before
    """

    def __init__(
        self, given: Sequence[Partitions], held: Sequence[Partitions], kinds: Sequence[Kind], near: Nearness
    ) -> None:
        self.has = [{TopicPartition(*each) for each in _each(mine)} for mine in given]
        self.changed: set[int] = set()
        self._holder = {TopicPartition(*each): member for member, mine in enumerate(held) for each in _each(mine)}
        self._rack_of = near.rack_of
        racks = frozenset(filter(None, near.rack_of))
        self._racks = {each: racks & near.replicas(*each) for mine in self.has for each in mine}
        self._classes: dict[tuple[int, str | None], list[int]] = {}  # subscription and rack -> members
        for number, kind in enumerate(kinds):
            for member in kind.members:
                self._classes.setdefault((number, near.rack_of[member]), []).append(member)
        self._wanted = [frozenset(kind.topics) for kind in kinds]
        self._class_of = {member: each for each, members in self._classes.items() for member in members}
        # By class of members and kind of partitions: what such members have, and did not hold.
        self._gained: dict[tuple[object, object], list[tuple[int, TopicPartition]]] = {}

    def is_near(self, partition: TopicPartition, member: int) -> bool:
        """Whether a member is in the rack of a replica."""
        return self._rack_of[member] in self._racks[partition]

    def can_be_nearer(self) -> bool:
        """Whether a partition is not near, and has replicas in a rack of members."""
        return any(
            self._racks[each] and not self.is_near(each, member)
            for member, mine in enumerate(self.has)
            for each in mine
        )

    def edges(self) -> tuple[int, list[_Edge]]:
        """Return the number of nodes, of which the first are the members, and the steps."""
        nodes: dict[object, int] = {member: member for member in range(len(self.has))}

        def node(*key: object) -> int:
            return nodes.setdefault(key, len(nodes))

        edges: list[_Edge] = []
        self._gained.clear()
        kinds: dict[tuple[str, frozenset[str]], int] = {}
        for member, mine in enumerate(self.has):
            cheapest: dict[int, _Edge] = {}
            for each in sorted(mine):
                holder, near = self._holder.get(each), int(self.is_near(each, member))
                key = each.topic, self._racks[each]
                kinds[key] = kind = node(*key)
                cost = near + (_MOVE if holder == member else 0)
                if holder != member:
                    self._gained.setdefault(self._place(member, each), []).append((member, each))
                if kind not in cheapest or cost < cheapest[kind].cost:
                    cheapest[kind] = _Edge(member, kind, cost, each)
                if holder is not None and holder != member:
                    edges.append(_Edge(member, holder, near - self.is_near(each, holder) - _MOVE, each))
            edges += cheapest.values()
            edges.append(_Edge(member, node(len(mine)), 0))
            edges.append(_Edge(node(len(mine) - 1), member, 0))
        for (number, rack), members in self._classes.items():
            place = node(number, rack, "members")
            edges += [
                _Edge(kind, place, -int(rack in racks))
                for (topic, racks), kind in kinds.items()
                if topic in self._wanted[number]
            ]
            edges += [_Edge(place, member, 0) for member in members]
        return len(nodes), edges

    def _place(self, member: int, partition: TopicPartition) -> tuple[object, object]:
        return self._class_of[member], (partition.topic, self._racks[partition])

    def carry_out(self, cycle: Sequence[_Edge]) -> None:
        """Move what the steps of a cycle move; and as often as it goes what equal members have of equal partitions."""
        members = len(self.has)
        first = next(place for place, edge in enumerate(cycle) if edge.start < members)
        cycle = [*cycle[first:], *cycle[:first]]
        gives: list[tuple[int, TopicPartition]] = []
        takers: list[int] = []
        for edge in cycle:
            if edge.takes is not None:
                gives.append((edge.start, edge.takes))
            if edge.end < members and len(takers) < len(gives):
                takers.append(edge.end)
        self._move(gives, takers)
        if all(edge.takes is not None and 0 <= edge.cost < _MOVE for edge in cycle if edge.start < members):
            places = [self._place(*each) for each in gives]
            while len(again := self._pop_each(places)) == len(places):
                self._move(again, [member for member, _ in again[1:] + again[:1]])

    def _move(self, gives: Sequence[tuple[int, TopicPartition]], takers: Sequence[int]) -> None:
        for (giver, partition), taker in zip(gives, takers, strict=True):
            self.has[giver].remove(partition)
            self.has[taker].add(partition)
            self.changed |= {giver, taker}

    def _pop_each(self, places: Sequence[tuple[object, object]]) -> list[tuple[int, TopicPartition]]:
        """Return a partition of each place that is still there; fewer if one has none."""
        found = []
        for place in places:
            left = self._gained[place]
            while left and left[-1][1] not in self.has[left[-1][0]]:
                left.pop()
            if left:
                found.append(left.pop())
        return found


def bring_near(
    given: Sequence[Partitions], held: Sequence[Partitions], kinds: Sequence[Kind], near: Nearness
) -> list[Partitions]:
    """Return what each member has after the exchanges.

    :param given: by member: what it has in a balanced assignment
    :param held: by member: what it held before; valid and disjoint
    :param kinds: the members with at least one topic
    :param near: which partitions are near which member
    """
    group = _Group(given, held, kinds, near)
    steps = MOST_STEPS if group.can_be_nearer() else 0
    while steps > 0:
        count, edges = group.edges()
        cycles, taken = _cycles(count, edges, steps)
        steps = steps - taken if cycles else 0
        for cycle in cycles:
            group.carry_out(cycle)
    return [
        group_partitions(sorted(group.has[member])) if member in group.changed else mine
        for member, mine in enumerate(given)
    ]


def lost_by(held: Sequence[Partitions], given: Sequence[Partitions]) -> dict[str, set[int]]:
    """Return by topic what its holder does not have any more."""
    lost: dict[str, set[int]] = {}
    for before, now in zip(held, given, strict=True):
        for topic, numbers in before.items():
            gone = set(numbers).difference(now.get(topic, ()))
            if gone:
                lost.setdefault(topic, set()).update(gone)
    return lost


def _each(mine: Partitions) -> Iterable[tuple[str, int]]:
    return ((topic, number) for topic, numbers in mine.items() for number in numbers)


def _cycles(count: int, edges: Sequence[_Edge], most: int) -> tuple[list[list[_Edge]], int]:
    """Return cycles of negative cost without a common node, none if there is none; and the steps that it took.

    :param count: of the nodes
    :param most: no round begins after so many steps
    """
    distance = [0] * count
    into: dict[int, _Edge] = {}
    steps = 0
    while steps < most:
        steps += len(edges)
        is_shorter = False
        for edge in edges:
            reached = distance[edge.start] + edge.cost
            if reached < distance[edge.end]:
                distance[edge.end] = reached
                into[edge.end] = edge
                is_shorter = True
        found = _closed(into)
        if found or not is_shorter:
            return found, steps
    return [], steps


def _closed(into: Mapping[int, _Edge]) -> list[list[_Edge]]:
    """Return the cycles of a graph in which one edge at most leads to each node."""
    found: list[list[_Edge]] = []
    seen: dict[int, int] = {}  # node -> from which one it was reached first
    for first in into:
        node, walked = first, []
        while node in into and node not in seen:
            seen[node] = first
            walked.append(into[node])
            node = into[node].start
        if walked and seen.get(node) == first:
            begin = next(place for place, edge in enumerate(walked) if edge.end == node)
            found.append(walked[begin:][::-1])
    return found
