"""The input and output of every assignor.

Partitions are numbers under their topic, not an object each: 1,000,000 partitions are some thousand sequences. Equal
subscriptions and equal subscriber lists are found once instead of once a topic: most groups have one subscription, few
more than a handful, and the number of members times topics is what costs. Racks (KIP-881) say which partitions have a
replica near a member.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol


class TopicPartition(NamedTuple):
    """A partition, named."""

    topic: str
    partition: int


Partitions = Mapping[str, Sequence[int]]
"""Topic to partition numbers: ascending, without repetition, and no topic without partitions.

The numbers may be a `range`, and several topics or members may share one sequence or mapping: never change them."""

Assignment = dict[str, Partitions]
"""Member id to its partitions; every member has an entry."""

Racks = Mapping[str, Sequence[Collection[str]]]
"""Topic to the racks of the replicas, by partition. A topic, or the end of a list, that is missing is unknown."""

NO_RACKS: Final[Racks] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member's subscription as the leader gets it: ConsumerProtocolSubscription, and the member's instance id.

    :ivar topics: the topics it subscribes to; their order has no meaning
    :ivar owned: the partitions that it holds (subscription version 1 and later)
    :ivar generation: the generation in which they were assigned (version 2 and later); -1 for unknown
    :ivar instance_id: the group instance id of a static member (KIP-345)
    :ivar rack: where it runs (version 3 and later, KIP-881)
    :ivar user_data: bytes of the assignor; the sticky assignors read the formats of Kafka's
    """

    topics: Sequence[str]
    owned: Partitions = field(default_factory=dict)
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None
    user_data: bytes = b""


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What the leader sends to one member: ConsumerProtocolAssignment.

    :ivar user_data: bytes of the assignor
    """

    partitions: Partitions
    user_data: bytes = b""


class Assign(Protocol):
    """Assigns the partitions of a group, as a pure function."""

    def __call__(
        self,
        partitions_per_topic: Mapping[str, int],
        members: Mapping[str, MemberSubscription],
        racks: Racks = NO_RACKS,
        /,
    ) -> Assignment:
        """Return the assignment. The order of the mappings and of a member's topics does not change it.

        :param partitions_per_topic: a subscribed topic that is missing here has no partitions
        :param members: the subscriptions, by member id
        :param racks: for assignors that look at racks
        """


OnJoin = Callable[[Sequence[str], Partitions, int], bytes]
"""Called for each JoinGroup with the member's topics, the partitions of its last assignment (an eager member has given
them up by then) and the generation of that assignment, -1 before the first. Returns the user data of the subscription.
"""

OnAssignment = Callable[[Partitions, bytes, int], None]
"""Called when the member has its assignment, with its partitions, the assignor's user data, and the generation."""

AssignmentUserData = Callable[[Mapping[str, int], Mapping[str, MemberSubscription], Assignment], Mapping[str, bytes]]
"""Called by the leader after `assign`, with its arguments and result. Returns the user data of members' assignments; a
member that is missing gets none."""


class RebalanceProtocol(enum.StrEnum):
    """What members do with their partitions while the group rebalances (KIP-429)."""

    EAGER = "eager"  # give up all before JoinGroup
    COOPERATIVE = "cooperative"  # give up only what the new assignment takes away


@dataclass(frozen=True, slots=True)
class Assignor:
    """An assignor by the name that members put into JoinGroup. Its functions do what Kafka's
    ``ConsumerPartitionAssignor`` does (`subscriptionUserData`, `assign`, `onAssignment`).

    :ivar name: as in JoinGroup's ``protocols[].name``
    :ivar protocol: whether its members rebalance eagerly or cooperatively
    :ivar assign: the pure function
    :ivar on_join: returns the user data of a member's subscription; None for no user data
    :ivar on_assignment: takes in a member's assignment; None to ignore it
    :ivar assignment_user_data: returns the user data of the assignments; None for no user data
    """

    name: str
    protocol: RebalanceProtocol
    assign: Assign
    on_join: OnJoin | None = None
    on_assignment: OnAssignment | None = None
    assignment_user_data: AssignmentUserData | None = None


def group_partitions(partitions: Iterable[TopicPartition]) -> Partitions:
    """Return named partitions by topic."""
    topics: dict[str, set[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, set()).add(partition)
    return {topic: sorted(numbers) for topic, numbers in topics.items()}


def list_partitions(partitions: Partitions) -> list[TopicPartition]:
    """Return each partition by name, in order of topic and number."""
    return [TopicPartition(topic, number) for topic in sorted(partitions) for number in partitions[topic]]


def in_order(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Return the member ids in Kafka's order: static members by instance id, then the others by member id.

    Strings compare as in Java, by UTF-16 code units. Source: kafka/clients `AbstractPartitionAssignor.MemberInfo`.
    """

    def key(member_id: str) -> tuple[bool, bytes]:
        instance_id = members[member_id].instance_id
        name = member_id if instance_id is None else instance_id
        return instance_id is None, name.encode("utf-16-be", "surrogatepass")

    return sorted(members, key=key)


@dataclass(frozen=True, slots=True)
class Kind:
    """The members with one subscription.

    :ivar topics: those that have partitions, sorted; not empty
    :ivar members: their places in the order of members, ascending
    """

    topics: tuple[str, ...]
    members: list[int]


def kinds_of(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], order: Sequence[str]
) -> list[Kind]:
    """Group the members by subscription. A member that can get no partition is in no group."""
    # Almost all members list their topics in the same order, so that few lists are left to be sorted.
    as_listed: dict[tuple[str, ...], list[int]] = {}
    for place, member_id in enumerate(order):
        as_listed.setdefault(tuple(members[member_id].topics), []).append(place)
    kinds: dict[tuple[str, ...], list[int]] = {}
    for topics, places in as_listed.items():
        assignable = tuple(sorted(topic for topic in set(topics) if partitions_per_topic.get(topic, 0) > 0))
        kinds.setdefault(assignable, []).extend(places)
    return [Kind(topics, sorted(places)) for topics, places in kinds.items() if topics]


def topics_by_subscribers(kinds: Sequence[Kind]) -> list[tuple[list[str], list[int]]]:
    """Group the topics by subscribers: sorted topics, and the places of their subscribers, ascending."""
    kinds_by_topic: dict[str, list[int]] = {}
    for number, kind in enumerate(kinds):
        for topic in kind.topics:
            kinds_by_topic.setdefault(topic, []).append(number)
    groups: dict[tuple[int, ...], list[str]] = {}
    for topic in sorted(kinds_by_topic):
        groups.setdefault(tuple(kinds_by_topic[topic]), []).append(topic)
    return [
        (topics, sorted(place for number in numbers for place in kinds[number].members))
        for numbers, topics in groups.items()
    ]


class Nearness:
    """Which partitions are near which member.

    :param counts: the number of partitions of each topic
    :ivar rack_of: by member: its rack; None if it has none
    """

    def __init__(self, counts: Mapping[str, int], member_racks: Sequence[str | None], racks: Racks) -> None:
        self.rack_of = [rack or None for rack in member_racks]
        self._any_rack = any(self.rack_of)
        self._counts = counts
        self._racks = racks
        self._near: dict[tuple[str, str], frozenset[int]] = {}

    @classmethod
    def where_racks_matter(
        cls, counts: Mapping[str, int], member_racks: Sequence[str | None], racks: Racks
    ) -> Nearness | None:
        """Return None if racks make no difference: no member is in a rack of a replica, or all partitions have replicas
        in the same racks. Source: kafka/clients `AbstractPartitionAssignor.useRackAwareAssignment`.
        """
        near = cls(counts, member_racks, racks)
        return near if near.matter(counts, range(len(member_racks))) else None

    def matter(self, topics: Iterable[str], members: Iterable[int]) -> bool:
        """Whether racks make a difference when these topics are assigned to these members."""
        if not self._racks or not self._any_rack:
            return False
        sets = {self.replicas(topic, number) for topic in topics for number in range(self._counts[topic])}
        everywhere = frozenset[str]().union(*sets)
        return sets != {everywhere} and not everywhere.isdisjoint(self.rack_of[member] or "" for member in members)

    def replicas(self, topic: str, number: int) -> frozenset[str]:
        """Return the racks of a partition's replicas; none if they are unknown."""
        listed = self._racks.get(topic, ())
        return frozenset(filter(None, listed[number])) if number < len(listed) else frozenset()

    def partitions(self, rack: str, topic: str) -> frozenset[int]:
        """Return the partitions of a topic that have a replica in a rack."""
        found = self._near.get((rack, topic))
        if found is None:
            listed = islice(self._racks.get(topic, ()), self._counts[topic])
            found = self._near[rack, topic] = frozenset(number for number, each in enumerate(listed) if rack in each)
        return found

    def of(self, member: int, topic: str) -> frozenset[int] | None:
        """Return the partitions of a topic that are near a member; None for a member without a rack."""
        rack = self.rack_of[member]
        return None if rack is None else self.partitions(rack, topic)

    def pair(self, topic: str, numbers: Sequence[int], amounts: Mapping[int, int]) -> dict[int, Sequence[int]]:
        """Give each member its amount of partitions of a topic, as many as possible near; return them by member.

        Partitions that are near the fewest go first.
        """
        slots: dict[str | None, list[int]] = {}
        for member, amount in amounts.items():
            slots.setdefault(self.rack_of[member], []).extend([member] * amount)
        anywhere = slots.pop(None, [])
        choices = {number: self._racks_near(topic, number, slots) for number in numbers}
        room = {rack: len(members) for rack, members in slots.items()}
        paired: dict[int, list[int]] = {member: [] for member in amounts}
        others = []
        for number in sorted(numbers, key=lambda number: sum(room[rack] for rack in choices[number])):
            largest = max((slots[rack] for rack in choices[number]), key=len, default=[])
            if largest:
                paired[largest.pop()].append(number)
            else:
                others.append(number)
        for number, member in zip(others, chain(anywhere, *slots.values()), strict=True):
            paired[member].append(number)
        return {member: sorted(mine) for member, mine in paired.items()}

    def _racks_near(self, topic: str, number: int, racks: Iterable[str | None]) -> list[str]:
        return [rack for rack in racks if rack is not None and number in self.partitions(rack, topic)]
