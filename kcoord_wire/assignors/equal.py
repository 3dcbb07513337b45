"""Sticky assignment where all members subscribe to the same topics: quotas and slices instead of a search.

Laws:

* Every member gets the quotient of partitions and members, or one more.
* A member gives up only what exceeds its quota, and no member gets a partition that its holder could have kept.
* Without holders, and where one holds everything, each topic too is spread evenly: its members differ by at most one
  partition (KAFKA-16277). With several holders this comes after the moves: a member gives up where it has most of a
  topic, and gets where it has least.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

from kcoord_wire.assignors.subscriptions import Nearness, Partitions

_Given = dict[str, Sequence[int]]


def deal_in_turn(counts: Mapping[str, int], members: int) -> list[_Given]:
    """Deal the partitions of all topics to the members in turn; return what each has.

    A member's partitions of a topic are a `range`, and members and topics share them: a million partitions are one
    dictionary entry for each member and topic.
    """
    given: list[_Given] = [{} for _ in range(members)]
    alike: dict[tuple[int, int], dict[str, None]] = {}  # first member and count -> topics, which have the same slices
    first = 0
    for topic, count in counts.items():
        alike.setdefault((first, count), {})[topic] = None
        first = (first + count) % members
    slices = _Slices(members)
    for (first, count), topics in alike.items():
        (topic, *more) = topics
        for mine, numbers in zip(chain(given[first:], given[:first]), slices.of(count), strict=False):
            if more:
                mine.update(dict.fromkeys(topics, numbers))
            else:
                mine[topic] = numbers
    return given


class _Slices:
    """The numbers that are dealt to each of some members; those of all topics are made once."""

    def __init__(self, members: int) -> None:
        self.members = members
        self._by_length: dict[int, list[Sequence[int]]] = {}

    def of(self, count: int) -> list[Sequence[int]]:
        """Return the numbers below `count` for each member in turn, without the members that get none."""
        each, extra = divmod(count, self.members)
        return self._with_length(each + 1)[:extra] + (self._with_length(each)[extra:] if each else [])

    def _with_length(self, length: int) -> list[Sequence[int]]:
        """Return, for each member, the numbers that it has if it has so many."""
        step = self.members
        if length not in self._by_length:
            self._by_length[length] = [
                range(start, start + length * step, step) if length > 1 else (start,) for start in range(step)
            ]
        return self._by_length[length]


def share_out(
    counts: Mapping[str, int], held: Sequence[Partitions], free: Mapping[str, Sequence[int]], near: Nearness | None
) -> tuple[list[Partitions], dict[str, set[int]]]:
    """Bring every member to its quota; return what each has, and by topic what members gave up.

    :param counts: the number of partitions of each topic
    :param held: by member; valid and disjoint
    :param free: the partitions without a holder
    :param near: which partitions are near which member, where racks matter
    """
    sole = _sole_holder(held, free)
    if sole is not None and near is None:
        return _deal_all_of(sole, counts, len(held))
    loads = [sum(map(len, mine.values())) for mine in held]
    quotas = _quotas(loads, sum(counts.values()))
    given = list(held)
    # A share that is no whole number counts as one and a half, say: a member with one of such a topic has less than its
    # share, with two more than it. Twice the share is a whole number.
    shares = {topic: 2 * (count // len(held)) + (count % len(held) > 0) for topic, count in counts.items()}
    given_up: dict[str, list[int]] = {topic: [] for topic in counts}
    for member, (load, quota) in enumerate(zip(loads, quotas, strict=True)):
        if load > quota:
            near_it = partial(near.of, member) if near else None
            given[member] = _give_up(held[member], load - quota, shares, given_up, near_it)
    pool = {topic: [*free.get(topic, ()), *numbers] for topic, numbers in given_up.items()}
    wanted = [quota - load for load, quota in zip(loads, quotas, strict=True)]
    dealer = _Dealer(shares, given, wanted, near)
    dealer.deal(pool)
    for member, gained in dealer.gains.items():
        mine = dict(given[member])
        for topic, numbers in gained.items():
            mine[topic] = sorted([*mine.get(topic, ()), *numbers])
        given[member] = mine
    return given, {topic: set(numbers) for topic, numbers in given_up.items() if numbers}


def _sole_holder(held: Sequence[Partitions], free: Mapping[str, Sequence[int]]) -> int | None:
    """Return the member that holds all partitions, if there is one."""
    holders = [member for member, mine in enumerate(held) if mine]
    return holders[0] if len(holders) == 1 and not free else None


def _deal_all_of(holder: int, counts: Mapping[str, int], members: int) -> tuple[list[Partitions], dict[str, set[int]]]:
    """Share out what one member holds alone. It has the first turn, so it keeps as many as its quota allows."""
    given: list[Partitions] = [*deal_in_turn(counts, members)]
    given = given[-holder:] + given[:-holder] if holder else given
    given_up = {topic: set(range(count)).difference(given[holder].get(topic, ())) for topic, count in counts.items()}
    return given, {topic: numbers for topic, numbers in given_up.items() if numbers}


def _quotas(loads: Sequence[int], total: int) -> list[int]:
    """Return what each member is to have. Where not all can have one more, those that have it already come first."""
    each, extra = divmod(total, len(loads))
    above = (member for member, load in enumerate(loads) if load > each)
    others = (member for member, load in enumerate(loads) if load <= each)
    quotas = [each] * len(loads)
    for member in islice(chain(above, others), extra):
        quotas[member] += 1
    return quotas


def _give_up(
    held: Partitions,
    surplus: int,
    shares: Mapping[str, int],
    given_up: dict[str, list[int]],
    near: Callable[[str], Collection[int] | None] | None,
) -> Partitions:
    """Add so many of a member's partitions to `given_up`, and return the rest.

    They come from the topics of which it exceeds its share most, and of these from those given up least so far.

    :param shares: by topic: twice a member's share
    """
    left: dict[str, list[int]] = {}
    excess = {topic: 2 * len(held[topic]) - shares[topic] for topic in sorted(held)}
    while surplus:
        most = max(excess.values())
        fullest = [topic for topic, amount in excess.items() if amount == most]
        if surplus < len(fullest):
            fullest.sort(key=dict(zip(given_up, map(len, given_up.values()), strict=True)).__getitem__)
            del fullest[surplus:]
        # Down to the next topics' level at once: a member may hold 100,000 partitions of one topic.
        next_most = max((amount for amount in excess.values() if amount < most), default=most - 2 * surplus)
        fewest = min((most + shares[topic]) // 2 for topic in fullest)
        amount = min(max(1, (most - next_most) // 2), surplus // len(fullest), fewest)
        surplus -= amount * len(fullest)
        for topic in fullest:
            if topic not in left:
                left[topic] = _nearest_first(held[topic], near(topic) if near else None)
            given_up[topic] += left[topic][-amount:]
            del left[topic][-amount:]
            excess[topic] -= 2 * amount
            if not left[topic]:
                del excess[topic]
    rest = dict(held)
    for topic, numbers in left.items():
        if numbers:
            rest[topic] = sorted(numbers)
        else:
            del rest[topic]
    return rest


def _nearest_first(numbers: Sequence[int], near: Collection[int] | None) -> list[int]:
    return list(numbers) if near is None else sorted(numbers, key=lambda number: (number not in near, number))


class _Dealer:
    """Deals partitions to the members that want some.

    :param shares: by topic: twice a member's share; those with a whole number less have their turn first
    :param held: by member: what it has
    :param wanted: by member: how many it is to get; zero or less for none
    :ivar gains: by member: what it has got
    """

    def __init__(
        self, shares: Mapping[str, int], held: Sequence[Partitions], wanted: list[int], near: Nearness | None
    ) -> None:
        self._limits = {topic: max(1, share // 2) for topic, share in shares.items()}
        self._held = held
        self._wanted = wanted
        self._near = near
        self.gains: dict[int, dict[str, list[int]]] = {member: {} for member, amount in enumerate(wanted) if amount > 0}

    def deal(self, pool: Mapping[str, Sequence[int]]) -> None:
        """Deal all partitions."""
        if self._near is not None:
            pool = self._deal_near(pool, self._near)
        queue = _Queue(list(self.gains))
        for topic, numbers in pool.items():
            for number in numbers:
                self._give(queue, topic, number)

    def _deal_near(self, pool: Mapping[str, Sequence[int]], near: Nearness) -> dict[str, list[int]]:
        """Deal partitions to members near a replica, those first that are near the fewest; return the others."""
        queues: dict[str, _Queue] = {}
        room: dict[str, int] = {}
        for member in self.gains:
            rack = near.rack_of[member]
            if rack is not None:
                queues.setdefault(rack, _Queue([])).members.append(member)
                room[rack] = room.get(rack, 0) + self._wanted[member]
        choices = {
            (topic, number): [rack for rack in room if number in near.partitions(rack, topic)]
            for topic, numbers in pool.items()
            for number in numbers
        }
        initial = dict(room)
        others: dict[str, list[int]] = {}
        for topic, number in sorted(choices, key=lambda each: sum(initial[rack] for rack in choices[each])):
            rack = max(choices[topic, number], key=room.__getitem__, default=None)
            if rack is None or not room[rack]:
                others.setdefault(topic, []).append(number)
            else:
                room[rack] -= 1
                self._give(queues[rack], topic, number)
        return others

    def _give(self, queue: _Queue, topic: str, number: int) -> None:
        """Give a partition to the next member in the queue that wants one and has not reached the topic's limit."""
        passed = 0
        while True:
            queue.at %= len(queue.members)
            member = queue.members[queue.at]
            if not self._wanted[member]:
                del queue.members[queue.at]
                continue
            queue.at += 1
            gained = self.gains[member].get(topic, ())
            if len(gained) + len(self._held[member].get(topic, ())) < self._limits[topic]:
                break
            passed += 1
            if passed >= len(queue.members):  # all have reached it
                self._limits[topic] += 1
                passed = 0
        self._wanted[member] -= 1
        self.gains[member].setdefault(topic, []).append(number)


@dataclass(slots=True)
class _Queue:
    """Members that have their turn one after the other."""

    members: list[int]
    at: int = 0
