"""Range: topic by topic, each member gets a run of consecutive partitions (Kafka's RangeAssignor, racks included).

Laws:

* The result is that of Kafka 3.9's RangeAssignor.
* Topics with the same subscribers and the same partition count are co-partitioned: a member gets the same partition
  numbers of each, as joins require. They are assigned once for all.
* A member gets at most one partition of a topic more than another subscriber. Racks change which partitions it gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from kcoord_wire.assignors.model import NO_RACKS, Assignment, MemberSubscription, Racks, in_order
from kcoord_wire.assignors.nearness import Nearness
from kcoord_wire.assignors.subscribers import kinds_of, topics_by_subscribers

__all__ = ["range_assign"]


def range_assign(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], racks: Racks = NO_RACKS, /
) -> Assignment:
    """Split each topic among its subscribers in order; the first p % m of m subscribers get one of p partitions more.

    Where racks matter (`nearness`), members first get partitions with a replica in their rack, within these quotas: of
    co-partitioned topics those numbers of which this is so in every topic. See `model.Assign`.
    """
    order = in_order(members)
    given: list[dict[str, Sequence[int]]] = [{} for _ in order]
    groups = list(_co_partitioned(partitions_per_topic, members, order))
    near = Nearness(partitions_per_topic, [members[member_id].rack for member_id in order], racks)
    by_racks = any(near.matter([topic], places) for topics, places in groups for topic in topics)
    for topics, places in groups:
        count = partitions_per_topic[topics[0]]
        pieces = _ranges(count, len(places))
        if by_racks and (len(topics) > 1 or near.matter(topics, places)):
            pieces = _NearFirst(count, near, topics, places).pieces()
        alike = dict.fromkeys(topics)
        for place, numbers in zip(places, pieces, strict=False):
            if numbers:
                given[place].update(dict.fromkeys(alike, numbers))
    by_member = dict(zip(order, given, strict=True))
    return {member_id: by_member[member_id] for member_id in members}


def _co_partitioned(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], order: Sequence[str]
) -> Iterator[tuple[list[str], list[int]]]:
    """Yield topics with equal partition counts and equal subscribers, and the places of these."""
    for topics, places in topics_by_subscribers(kinds_of(partitions_per_topic, members, order)):
        by_count: dict[int, list[str]] = {}
        for topic in topics:
            by_count.setdefault(partitions_per_topic[topic], []).append(topic)
        for alike in by_count.values():
            yield alike, places


def _ranges(count: int, members: int) -> Sequence[Sequence[int]]:
    """Return the run of each member, without the members that get none."""
    each, extra = divmod(count, members)
    runs = [range(start, start + each + 1) for start in range(0, extra * (each + 1), each + 1)]
    if each:
        runs += [range(start, start + each) for start in range(extra * (each + 1), count, each)]
    return runs


class _NearFirst:
    """Assigns co-partitioned topics, or one, with regard to racks.

    :param count: the number of partitions of each topic
    :param members: the subscribers
    """

    def __init__(self, count: int, near: Nearness, topics: Sequence[str], members: Sequence[int]) -> None:
        self._near = [[near.of(member, topic) for topic in topics] for member in members]
        self._has_racks = any(near.rack_of[member] for member in members)
        self._left = dict.fromkeys(range(count))
        self._pieces: list[list[int]] = [[] for _ in members]
        self._each, self._extra = divmod(count, len(members))

    def pieces(self) -> list[Sequence[int]]:
        """Return the partitions of each member."""
        if len(self._near[0]) > 1:
            self._match_each_partition()
        else:
            self._fill(near_only=True)
        self._fill(near_only=False)
        return [sorted(piece) for piece in self._pieces]

    def _matches(self, member: int, number: int) -> bool:
        """Whether the partition of each topic has a replica in the member's rack; a member without a rack has all."""
        return all(near is None or number in near for near in self._near[member])

    def _room(self, member: int) -> int:
        return max(0, self._each + (self._extra > 0) - len(self._pieces[member]))

    def _give(self, member: int, numbers: Sequence[int]) -> None:
        self._pieces[member] += numbers
        if len(self._pieces[member]) > self._each:
            self._extra -= 1
        for number in numbers:
            del self._left[number]

    def _match_each_partition(self) -> None:
        """Give each partition to the first member that it suits; Kafka's `assignCoPartitionedWithRackMatching`."""
        if not self._has_racks:
            return
        remaining = list(range(len(self._pieces)))
        for number in list(self._left):
            member = next((each for each in remaining if self._room(each) and self._matches(each, number)), None)
            if member is not None:
                self._give(member, [number])
                if not self._room(member):
                    remaining.remove(member)

    def _fill(self, *, near_only: bool) -> None:
        """Give each member in turn what it has room for; Kafka's `assignRanges`."""
        for member in range(len(self._pieces)):
            suitable = (number for number in self._left if not near_only or self._matches(member, number))
            if numbers := list(islice(suitable, self._room(member))):
                self._give(member, numbers)
