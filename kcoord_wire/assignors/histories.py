"""Generated histories of a group, for judging assignors: what a leader gets to assign, rebalance after rebalance.

Laws:

* The same seed and the same answers give the same history.
* A history has what real groups have: members that join, leave, change subscriptions, miss a rebalance and come back
  with the claims of an older generation, lose all they had; topics that appear, grow and vanish while members own
  partitions of them; static members, racks.
* `smaller` leads from any group to a smaller one, so a search that follows it ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from kcoord_wire.assignors.subscriptions import Assignor, MemberSubscription, RebalanceProtocol

T = TypeVar("T")
Given = Mapping[str, Mapping[str, Sequence[int]]]
"""An assignment, or a part of one: member id to topic to partitions."""


@dataclass(frozen=True, slots=True)
class Case:
    """What an assignor gets: the arguments of `subscriptions.Assign`.

    The mappings are dicts and the sequences lists, so that an assignor can change them and be found out.
    """

    partitions_per_topic: dict[str, int]
    members: dict[str, MemberSubscription]
    racks: dict[str, list[list[str]]]

    def __str__(self) -> str:
        topics = ", ".join(f"{topic} {count}" for topic, count in self.partitions_per_topic.items())
        lines = [f"  partitions: {topics or 'none'}"]
        lines += [f"  replicas of {topic} in racks: {racks}" for topic, racks in self.racks.items()]
        lines += [f"  {member_id}: {_described(member)}" for member_id, member in self.members.items()]
        return "\n".join(lines)

    def copy(self) -> Case:
        """Return an equal one that shares nothing which can be changed."""
        return Case(
            dict(self.partitions_per_topic),
            {
                member_id: replace(
                    member, topics=[*member.topics], owned={topic: [*has] for topic, has in member.owned.items()}
                )
                for member_id, member in self.members.items()
            },
            {topic: [[*racks] for racks in by_partition] for topic, by_partition in self.racks.items()},
        )

    def reordered(self) -> Case:
        """Return the same group with everything that has no order in the reverse order."""
        return Case(
            _reversed(self.partitions_per_topic),
            {
                member_id: replace(member, topics=[*reversed(member.topics)], owned=_reversed(member.owned))
                for member_id, member in reversed(self.members.items())
            },
            _reversed(self.racks),
        )

    def rejoined(self, given: Given) -> Case:
        """Return the group after its members have taken in an assignment."""
        generation = self.next_generation()
        members = {
            member_id: replace(member, owned=dict(given.get(member_id, {})), generation=generation)
            for member_id, member in self.members.items()
        }
        return replace(self, members=members)

    def next_generation(self) -> int:
        return max([member.generation for member in self.members.values()], default=0) + 1

    def assignable(self) -> set[tuple[str, int]]:
        """Return topic and number of the partitions that have a subscriber."""
        wanted = {topic for member in self.members.values() for topic in member.topics}
        return {(topic, number) for topic in wanted for number in range(self.partitions_per_topic.get(topic, 0))}

    def subscriptions_are_equal(self) -> bool:
        """Whether all members subscribe to the same topics, of those that have partitions."""
        existing = {topic for topic, count in self.partitions_per_topic.items() if count}
        return len({frozenset(existing.intersection(member.topics)) for member in self.members.values()}) == 1

    def racks_of(self, partition: tuple[str, int]) -> list[str]:
        """Return the racks of a partition's replicas; none if they are unknown."""
        topic, number = partition
        listed = self.racks.get(topic, [])
        return listed[number] if number < len(listed) else []

    def has_racks(self) -> bool:
        return any(member.rack is not None for member in self.members.values()) and bool(self.racks)


def leaders_view(case: Case, assignor: Assignor) -> Case:
    """Return the group as JoinGroup shows it to the leader: with the members' user data, and without the partitions of
    eager members, which have given them up, if the assignor has `on_join` to carry them.
    """
    if assignor.on_join is None:
        return case.copy()
    members = {}
    for member_id, member in case.copy().members.items():
        data = assignor.on_join(member.topics, member.owned, member.generation)
        owned = member.owned if assignor.protocol is RebalanceProtocol.COOPERATIVE else {}
        members[member_id] = replace(member, owned=owned, user_data=data)
    return replace(case, members=members).copy()


def _reversed(mapping: Mapping[str, T]) -> dict[str, T]:
    return dict(reversed(list(mapping.items())))


def shown(given: Given) -> str:
    """Return an assignment as one line of text."""
    return "{" + "; ".join(f"{member_id} {_listed(has) or '-'}" for member_id, has in given.items()) + "}"


def _listed(has: Mapping[str, Sequence[int]]) -> str:
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in has.items())


def _described(member: MemberSubscription) -> str:
    parts = [f"subscribes to {' '.join(member.topics) or 'nothing'}"]
    if member.owned or member.generation >= 0:
        parts.append(f"owns {_listed(member.owned) or 'nothing'} since generation {member.generation}")
    parts += [f"instance {member.instance_id}"] if member.instance_id is not None else []
    parts += [f"rack {member.rack}"] if member.rack is not None else []
    return ", ".join(parts)


# ---- generating

TOPICS: Final = ("a", "b", "c", "d", "e")
RACKS: Final = ("r1", "r2", "r3")
MOST_PARTITIONS = 9
MOST_MEMBERS = 7


def play(assign: Callable[[Case], Given], *, seed: int, rounds: int, scale: int = 1) -> Iterator[Case]:
    """Yield what the leader gets in each rebalance of a generated history.

    :param assign: returns what members then own
    :param scale: multiplies members, partitions and changes, from groups of up to 7 members and 9 partitions of a topic
    """
    history = _History(random.Random(seed), scale)
    for _ in range(rounds):
        case = history.case()
        yield case
        history.own(assign(case))
        history.change()


class _History:
    """A group on its way.

    :ivar absent: members that miss the next rebalance and come back with what they had, which others have got
    """

    def __init__(self, chance: random.Random, scale: int) -> None:
        self.chance = chance
        self.scale = scale
        self.has_equal_subscriptions = chance.random() < 0.5
        self.has_racks = chance.random() < 0.5
        self.generation = 0
        self.joined = 0
        self.absent: set[str] = set()
        self.topics = {topic: self.partitions() for topic in chance.sample(TOPICS, chance.randint(1, 4))}
        self.racks: dict[str, list[list[str]]] = {}
        self.members: dict[str, MemberSubscription] = {}
        for _ in range(scale * chance.choice([1, 1, 2, 3, 5])):
            self.join()

    def partitions(self) -> int:
        return self.scale * self.chance.choice([0, 1, 2, 3, 4, 6, MOST_PARTITIONS])

    def case(self) -> Case:
        self.locate()
        present = {member_id: self.members[member_id] for member_id in self.members if member_id not in self.absent}
        return Case(self.topics, present, self.racks).copy()

    def locate(self) -> None:
        """Give new partitions their replicas."""
        if not self.has_racks:
            return
        for topic, count in self.topics.items():
            known = self.racks.setdefault(topic, [])
            known += [self.chance.sample(RACKS, self.chance.choice([1, 1, 2])) for _ in range(count - len(known))]
        self.racks = {topic: racks[: self.topics[topic]] for topic, racks in self.racks.items() if topic in self.topics}

    def own(self, given: Given) -> None:
        """Let the members own what they were given."""
        self.generation += 1
        for member_id in self.members.keys() - self.absent:
            owned = {topic: list(numbers) for topic, numbers in given.get(member_id, {}).items()}
            self.members[member_id] = replace(self.members[member_id], owned=owned, generation=self.generation)
        self.absent = set()

    def change(self) -> None:
        steps: list[Callable[[], None]] = [self.join, self.join, self.leave, self.resubscribe, self.miss, self.lose]
        steps += [self.grow, self.vanish, self.stay]
        for step in self.chance.choices(steps, k=self.scale * self.chance.choice([1, 1, 1, 2, 3])):
            step()

    def stay(self) -> None:
        """Rebalance without a change."""

    def subscription(self) -> list[str]:
        if self.has_equal_subscriptions and self.members:
            return list(next(iter(self.members.values())).topics)
        return self.chance.sample(TOPICS, self.chance.randint(0, len(TOPICS)))

    def join(self) -> None:
        if len(self.members) < self.scale * MOST_MEMBERS:
            self.joined += 1
            chance = self.chance
            member_id = f"{chance.choice('xyz')}{self.joined}"
            topics = self.subscription() or ([*self.topics] if not self.members else [])
            instance_id = f"i{chance.randint(0, 9)}-{self.joined}" if chance.random() < 0.25 else None
            rack = chance.choice(RACKS) if self.has_racks and chance.random() < 0.9 else None
            self.members[member_id] = MemberSubscription(topics, {}, -1, instance_id, rack)

    def any_member(self) -> str:
        return self.chance.choice(list(self.members))

    def leave(self) -> None:
        if len(self.members) > len(self.absent) + 1:
            member_id = self.any_member()
            del self.members[member_id]
            self.absent.discard(member_id)

    def resubscribe(self) -> None:
        topics = self.chance.sample(TOPICS, self.chance.randint(0, len(TOPICS)))
        changed = [*self.members] if self.has_equal_subscriptions else [self.any_member()]
        for member_id in changed:
            self.members[member_id] = replace(self.members[member_id], topics=topics)

    def miss(self) -> None:
        if len(self.absent) + 1 < len(self.members):
            self.absent.add(self.any_member())

    def lose(self) -> None:
        member_id = self.any_member()
        self.members[member_id] = replace(self.members[member_id], owned={}, generation=-1)

    def grow(self) -> None:
        topic = self.chance.choice(TOPICS)
        self.topics[topic] = self.topics.get(topic, 0) + self.chance.randint(1, 3)

    def vanish(self) -> None:
        self.topics.pop(self.chance.choice(TOPICS), None)


# ---- shrinking


def smaller(case: Case) -> Iterator[Case]:
    """Yield smaller groups: a member, a topic, a partition, a claim, a name fewer; the largest steps first."""
    for members in _without_one(case.members):
        if members:
            yield replace(case, members=members)
    for counts in _without_one(case.partitions_per_topic):
        yield replace(case, partitions_per_topic=counts)
    for topic, count in case.partitions_per_topic.items():
        for fewer in {count // 2, max(count - 1, 0)} - {0, count}:
            yield replace(case, partitions_per_topic={**case.partitions_per_topic, topic: fewer})
    if case.racks:
        yield replace(case, racks={})
    for racks in _without_one(case.racks):
        yield replace(case, racks=racks)
    for member_id, member in case.members.items():
        for less in _simpler(member):
            yield replace(case, members={**case.members, member_id: less})


def _without_one(mapping: Mapping[str, T]) -> Iterator[dict[str, T]]:
    for name in mapping:
        yield {each: value for each, value in mapping.items() if each != name}


def _simpler(member: MemberSubscription) -> Iterator[MemberSubscription]:
    if member.instance_id is not None:
        yield replace(member, instance_id=None)
    if member.rack is not None:
        yield replace(member, rack=None)
    for topic in member.topics:
        yield replace(member, topics=[each for each in member.topics if each != topic])
    if not member.owned and member.generation >= 0:
        yield replace(member, generation=-1)
    for owned in _without_one(member.owned):
        yield replace(member, owned=owned)
    for topic, numbers in member.owned.items():
        if len(numbers) > 1:
            for number in numbers:
                fewer: Collection[int] = [each for each in numbers if each != number]
                yield replace(member, owned={**member.owned, topic: list(fewer)})
