"""Sticky assignment for any subscriptions: an optimal semi-matching that moves few partitions.

Balanced means: no chain of moves, each to a member that subscribes to the partition's topic, takes one partition from a
member to another that has at least two fewer. It is the best that the subscriptions allow, which Kafka's own sticky
assignor only approximates.

Laws:

* The result is balanced.
* If the free partitions can be given out so that the group is balanced, nothing that is held moves. So the rebalance
  after a cooperative one is the last.

Method: the free partitions go to the subscribers with the fewest. Then, from the lowest load up, shortest chains of
moves (as in Dinic's algorithm) give members one more until no chain is left; at first through the partitions that were
free, then through all. Every chain decreases the sum of the squared loads, so this terminates. Last, a partition that
its holder has lost goes back if the holder can give another one for it.

The last step searches a chain, too: the partition goes back without making the loads less equal if its former holder
passes on another, or a member with more does, and that makes others pass on, until the present holder gets one, or a
member with fewer. Only partitions are passed on that their holder did not hold before, so each chain saves one move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import pairwise

from kcoord_wire.assignors.subscriptions import Kind, Nearness, Partitions, topics_by_subscribers


class Exchanges:
    """Finds such chains. Members and topics are numbers.

    :param load: by member: number of its partitions; changed by the moves
    :param subscribers: by topic: its members
    :param gained_by: by member: the topics of which it has gained partitions; changed by the moves
    """

    def __init__(
        self, load: Sequence[int], subscribers: Sequence[Sequence[int]], gained_by: Sequence[set[int]]
    ) -> None:
        self._load, self._subscribers, self._gained_by = load, subscribers, gained_by
        # What was reached in vain, and the lowest load there, since the last moves; by the first member if it has
        # gained anything, and its load.
        self._in_vain: dict[tuple[int | None, int], tuple[Collection[int], int]] = {}

    def chain(self, former: int, present: int) -> tuple[int, list[tuple[int, int, int]], int] | None:
        """Return a chain of moves of gained partitions, None if there is none. It begins at the former holder, or at a
        member with more; it ends at the present holder, or at a member with fewer than that.

        :returns: the first member; the moves (topic, giver, taker), the last one first; the last member
        """
        load = self._load
        key = (former if self._gained_by[former] else None, load[former])
        reached, lowest = self._in_vain.get(key, ((present,), 0))
        if present not in reached and min(lowest, load[former]) >= load[present]:
            return None
        came: dict[int, tuple[int, int] | None] = {former: None}
        last = self._search([former], came, present)
        if last is None:
            more = [member for member, topics in enumerate(self._gained_by) if topics and load[member] > load[former]]
            more = [member for member in more if member not in came]
            came.update(dict.fromkeys(more))
            last = self._search(more, came, present)
        if last is None:
            self._in_vain[key] = came.keys(), min(map(load.__getitem__, came))
            return None
        self._in_vain.clear()
        member, moves = last, []
        while (step := came[member]) is not None:
            moves.append((*step, member))
            member = step[1]
        return member, moves, last

    def _search(self, starts: Iterable[int], came: dict[int, tuple[int, int] | None], present: int) -> int | None:
        """Search breadth first; return the member at which a chain may end."""
        seen: set[int] = set()
        queue = deque(starts)
        while queue:
            member = queue.popleft()
            if member == present or self._load[member] < self._load[present]:
                return member
            for topic in self._gained_by[member] - seen:
                seen.add(topic)
                for taker in self._subscribers[topic]:
                    if taker not in came:
                        came[taker] = (topic, member)
                        queue.append(taker)
        return None


def level(
    counts: Mapping[str, int],
    kinds: Sequence[Kind],
    held: Sequence[Partitions],
    free: Mapping[str, Sequence[int]],
    near: Nearness | None,
) -> tuple[list[Partitions], dict[str, set[int]]]:
    """Return what each member has in the balanced assignment, and by topic what was taken from a holder.

    :param counts: the number of partitions of each topic
    :param kinds: the members with at least one topic
    :param held: by member; valid and disjoint
    :param free: the partitions without a holder
    :param near: which partitions are near which member, where racks matter
    """
    loads = _Loads(counts, kinds, held)
    loads.hand_out(free, near)
    loads.level()
    if any(held):
        loads.may_move_kept = True
        loads.level()
        loads.take_back()
    taken: dict[str, set[int]] = {}
    for topic, number in loads.lost:
        taken.setdefault(loads.names[topic], set()).add(number)
    return loads.result(), taken


class _Pile(list[int]):
    """Partition numbers that may be changed; other sequences of them may be shared."""


class _Loads:
    """The partitions of each member. Members and topics are numbers.

    :ivar names: by topic: its name; in order of name
    :ivar topics_of: by member: the topics it subscribes to; one sequence for all members of a kind
    :ivar load: by member: number of its partitions
    :ivar may_move_kept: whether chains of moves may go through partitions that were held before
    :ivar lost: partitions (topic and number) that were taken from their holder, to that holder
    """

    def __init__(self, counts: Mapping[str, int], kinds: Sequence[Kind], held: Sequence[Partitions]) -> None:
        self.names = sorted(counts)
        numbers = {name: topic for topic, name in enumerate(self.names)}
        self._subscribers: list[list[int]] = [[] for _ in self.names]
        for topics, places in topics_by_subscribers(kinds):
            for name in topics:
                self._subscribers[numbers[name]] = places
        self.topics_of: list[Sequence[int]] = [()] * len(held)
        self._subscribed: list[frozenset[int]] = [frozenset()] * len(held)
        for kind in kinds:
            wanted = [numbers[name] for name in kind.topics]
            wanted_set = frozenset(wanted)
            for member in kind.members:
                self.topics_of[member], self._subscribed[member] = wanted, wanted_set
        # By topic: member to its partitions that it held before, and to those that it did not.
        self._kept: list[dict[int, Sequence[int]]] = [{} for _ in self.names]
        self._gained: list[dict[int, Sequence[int]]] = [{} for _ in self.names]
        for member, mine in enumerate(held):
            for name, partitions in mine.items():
                self._kept[numbers[name]][member] = partitions
        self.load = [sum(map(len, mine.values())) for mine in held]
        self.may_move_kept = False
        self.lost: dict[tuple[int, int], int] = {}
        self._now: dict[tuple[int, int], int] = {}  # the holders of what is lost

    # ---- the free partitions

    def hand_out(self, free: Mapping[str, Sequence[int]], near: Nearness | None) -> None:
        """Give the free partitions away, topics with few subscribers first: they have the least choice."""
        singles = [(number,) for number in range(max(map(len, free.values()), default=0))]
        for topic in sorted(range(len(self.names)), key=lambda topic: len(self._subscribers[topic])):
            name = self.names[topic]
            numbers = free.get(name)
            if numbers:
                amounts = self._amounts(topic, len(numbers))
                if near is not None:
                    self._gained[topic] = {**near.pair(name, numbers, amounts)}
                else:
                    self._gained[topic] = _cut(numbers, amounts, singles)
                for member, amount in amounts.items():
                    self.load[member] += amount

    def _amounts(self, topic: int, count: int) -> dict[int, int]:
        """Return how many partitions each subscriber gets if each of them goes to one with the fewest."""
        load = self.load
        takers = sorted(self._subscribers[topic], key=load.__getitem__)
        below = sum(map(load.__getitem__, takers))
        if load[takers[-1]] * len(takers) - below > count:  # not all can be raised to the highest load
            below = 0
            for place, member in enumerate(takers):
                if load[member] * place - below >= count:
                    del takers[place:]
                    break
                below += load[member]
        each, extra = divmod(count + below, len(takers))
        # The remainder goes to those that get fewest of this topic.
        raised = len(takers) - extra
        amounts = {member: each - load[member] + (place >= raised) for place, member in enumerate(takers)}
        return {member: amount for member, amount in amounts.items() if amount}

    # ---- levelling

    def holders(self, topic: int) -> Collection[int]:
        """Return the members that have a partition of a topic that may move."""
        gained = self._gained[topic].keys()
        return gained | self._kept[topic].keys() if self.may_move_kept else gained

    def holds(self, topic: int, member: int) -> bool:
        """Whether a member has a partition of a topic that may move."""
        return member in self._gained[topic] or (self.may_move_kept and member in self._kept[topic])

    def level(self) -> None:
        """Move partitions along chains, from the lowest load up, until no chain makes the loads more equal.

        A member from which no chain leads to a load higher by two cannot be in a later chain and is left out.
        """
        load = self.load
        active = {member for member, wanted in enumerate(self.topics_of) if wanted}
        while active:
            loads = {load[member] for member in active}
            low = min(loads)
            if max(loads) < low + 2:
                return
            takers = sorted(member for member in active if load[member] == low)
            depth, end = self.distances(takers, low)
            if end is None:
                active -= depth.keys()
            else:
                loads.discard(low)
                _Chains(self, depth, end).lift(takers, low, min(loads))

    def distances(self, takers: list[int], low: int) -> tuple[dict[int, int], int | None]:
        """Return each member's distance from the takers in moves, and the distance of the nearest that can give.

        The search ends at that distance; it is None if no member can give.
        """
        depth = dict.fromkeys(takers, 0)
        walked: set[int] = set()  # subscriptions, by identity
        seen: set[int] = set()
        queue, end = deque(takers), None
        while queue and (end is None or depth[queue[0]] < end):
            member = queue.popleft()
            if id(self.topics_of[member]) in walked:
                continue
            walked.add(id(self.topics_of[member]))
            for topic in self.topics_of[member]:
                if topic in seen:
                    continue
                seen.add(topic)
                for giver in self.holders(topic) - depth.keys():
                    depth[giver] = depth[member] + 1
                    queue.append(giver)
                    if self.load[giver] >= low + 2:
                        end = depth[giver]
        return depth, end

    def move(self, topic: int, giver: int, taker: int) -> None:
        """Move a partition of a topic; one that the giver did not hold before, if it has such."""
        if giver in self._gained[topic]:
            number = _take(self._gained[topic], giver)
        else:
            number = _take(self._kept[topic], giver)
            self.lost[topic, number] = giver
        self._put(topic, number, taker)
        self.load[giver] -= 1
        self.load[taker] += 1

    def _put(self, topic: int, number: int, taker: int) -> None:
        former = self.lost.get((topic, number))
        if former == taker:
            _add(self._kept[topic], taker, number)
            del self.lost[topic, number]
        else:
            _add(self._gained[topic], taker, number)
            if former is not None:
                self._now[topic, number] = taker

    def take_back(self) -> None:
        """Return lost partitions to their former holders where that leaves the loads as equal as they are.

        For a partition that comes back, its former holder passes on one that it has gained, and who gets that may do
        the same, until the present holder gets one. The loads of two members may be exchanged by that.
        """
        if not self.lost:
            return
        gained_by: list[set[int]] = [set() for _ in self.load]
        for topic, gained in enumerate(self._gained):
            for member in gained:
                gained_by[member].add(topic)
        search = Exchanges(self.load, self._subscribers, gained_by)
        for (topic, number), former in list(self.lost.items()):
            if (topic, number) in self.lost:  # otherwise it has come back in exchange for another
                present = self._now[topic, number]
                chain = search.chain(former, present)
                if chain is not None:
                    first, moves, last = chain
                    for other, giver, taker in moves:
                        self._pass_on(other, self._gained[other][giver][-1], giver, taker, gained_by)
                    self._pass_on(topic, number, present, former, gained_by)
                    for member, change in ((former, 1), (present, -1), (first, -1), (last, 1)):
                        self.load[member] += change

    def _pass_on(self, topic: int, number: int, giver: int, taker: int, gained_by: list[set[int]]) -> None:
        """Move a gained partition without a change of the loads."""
        _take(self._gained[topic], giver, number)
        self._put(topic, number, taker)
        for member in (giver, taker):
            (gained_by[member].add if member in self._gained[topic] else gained_by[member].discard)(topic)

    def result(self) -> list[Partitions]:
        """Return what each member has. The tables are emptied meanwhile: they are as large as the result."""
        given: list[dict[str, Sequence[int]]] = [{} for _ in self.load]
        for topic, name in enumerate(self.names):
            for member, numbers in self._kept[topic].items():
                given[member][name] = sorted(numbers) if isinstance(numbers, _Pile) else numbers
            self._kept[topic].clear()
            for member, numbers in self._gained[topic].items():
                mine = given[member]
                if name in mine or isinstance(numbers, _Pile):
                    mine[name] = sorted([*mine.get(name, ()), *numbers])
                else:
                    mine[name] = numbers
            self._gained[topic].clear()
        return [*given]


def _cut(numbers: Sequence[int], amounts: Mapping[int, int], singles: Sequence[tuple[int]]) -> dict[int, Sequence[int]]:
    """Cut partition numbers into pieces, one for each member; those of one number are shared."""
    pieces: dict[int, Sequence[int]] = {}
    at = 0
    for member, amount in amounts.items():
        number = numbers[at]
        pieces[member] = singles[number] if amount == 1 and number < len(singles) else numbers[at : at + amount]
        at += amount
    return pieces


def _take(table: dict[int, Sequence[int]], member: int, number: int | None = None) -> int:
    """Take a number from a member, by default its last."""
    pile = table[member]
    if not isinstance(pile, _Pile):
        pile = table[member] = _Pile(pile)
    if number is None:
        number = pile.pop()
    else:
        pile.remove(number)
    if not pile:
        del table[member]
    return number


def _add(table: dict[int, Sequence[int]], member: int, number: int) -> None:
    pile = table.get(member, ())
    if not isinstance(pile, _Pile):
        pile = table[member] = _Pile(pile)
    pile.append(number)


class _Chains:
    """Moves along shortest chains: a blocking flow in the layers given by `depth`.

    :ivar depth: by member: its distance from the takers
    :ivar end: the distance of the members that give
    """

    def __init__(self, loads: _Loads, depth: dict[int, int], end: int) -> None:
        self._loads, self._depth, self._end = loads, depth, end
        self._topics: dict[int, deque[int]] = {}  # member -> the topics that it tries to take, next one first
        self._givers: dict[tuple[int, int], list[tuple[int, int]]] = {}  # topic, depth -> heap of (-load, member)
        self._exhausted: set[int] = set()  # no chain leads on from these

    def lift(self, takers: list[int], low: int, until: int) -> None:
        """Give partitions to the takers, one at a time to each, as far as chains reach and until they have so many."""
        for load in range(low, until):
            takers = [taker for taker in takers if self._lift(taker, load + 2)]
            if not takers:
                return

    def _lift(self, taker: int, enough: int) -> bool:
        """Give a member one more from a giver that has enough, if a chain leads to one."""
        chain = [taker]
        while chain:
            member = chain[-1]
            if self._depth[member] == self._end and self._loads.load[member] >= enough:
                for to, giver in pairwise(chain):
                    self._loads.move(self._topics[to][0], giver, to)
                    self._topics[to].rotate(-1)  # so that a member does not take all from one topic
                return True
            following = self._giver_for(member)
            if following is None:
                self._exhausted.add(chain.pop())
            else:
                chain.append(following)
        return False

    def _giver_for(self, member: int) -> int | None:
        """Return the member from which this one takes; the first of its topics is then that of the move."""
        below = self._depth[member] + 1
        if below > self._end:
            return None
        if member not in self._topics:
            self._topics[member] = deque(self._loads.topics_of[member])
        topics = self._topics[member]
        while topics:
            giver = self._fullest(topics[0], below)
            if giver is not None:
                return giver
            topics.popleft()
        return None

    def _fullest(self, topic: int, depth: int) -> int | None:
        """Return the holder of the topic in that layer with the highest load: taking from others costs more moves."""
        load = self._loads.load
        heap = self._givers.get((topic, depth))
        if heap is None:
            holders = self._loads.holders(topic)
            heap = [(-load[member], member) for member in holders if self._depth.get(member) == depth]
            heapify(heap)
            self._givers[topic, depth] = heap
        while heap:
            negative, member = heap[0]
            if member in self._exhausted or not self._loads.holds(topic, member):
                heappop(heap)
            elif -negative != load[member]:
                heapreplace(heap, (-load[member], member))
            else:
                return member
        return None
