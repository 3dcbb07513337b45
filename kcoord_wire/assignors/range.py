"""Range and round-robin, Kafka's two assignors without a memory.

Range: topic by topic, each member gets a run of consecutive partitions (RangeAssignor, racks included). Round-robin:
all partitions, in order of topic and number, go to the members in turn (RoundRobinAssignor).

Laws:

* The results are those of Kafka 3.9. The next two are laws of range.
* Topics with the same subscribers and the same partition count are co-partitioned: a member gets the same partition
  numbers of each, as joins require. They are assigned once for all.
* A member gets at most one partition of a topic more than another subscriber. Racks change which partitions it gets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

from kcoord_wire.assignors.equal import deal_in_turn
from kcoord_wire.assignors.subscriptions import (
    NO_RACKS,
    Assignment,
    Kind,
    MemberSubscription,
    Nearness,
    Racks,
    in_order,
    kinds_of,
    topics_by_subscribers,
)


def range_assign(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], racks: Racks = NO_RACKS, /
) -> Assignment:
    """Split each topic among its subscribers in order; the first p % m of m subscribers get one of p partitions more.

    Where racks matter (`Nearness`), members first get partitions with a replica in their rack, within these quotas: of
    co-partitioned topics those numbers of which this is so in every topic. See `subscriptions.Assign`.
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
        self._racks = [near.rack_of[member] for member in members]
        # By rack: the numbers of which the partition of each topic has a replica there.
        self._near = {
            rack: frozenset.intersection(*(near.partitions(rack, topic) for topic in topics))
            for rack in set(filter(None, self._racks))
        }
        self._has_several_topics = len(topics) > 1
        self._left = dict.fromkeys(range(count))
        self._pieces: list[list[int]] = [[] for _ in members]
        self._each, self._extra = divmod(count, len(members))

    def pieces(self) -> list[Sequence[int]]:
        """Return the partitions of each member."""
        if not self._has_several_topics:
            self._fill(near_only=True)
        elif self._near:
            self._match_each_partition()
        self._fill(near_only=False)
        return [sorted(piece) for piece in self._pieces]

    def _matches(self, rack: str | None, number: int) -> bool:
        """Whether a number suits a member in this rack; one without a rack takes all."""
        return rack is None or number in self._near[rack]

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
        queues: dict[str | None, deque[int]] = {}
        for member, rack in enumerate(self._racks):
            queues.setdefault(rack, deque()).append(member)
        for number in list(self._left):
            first = None
            for rack, queue in queues.items():
                while queue and not self._room(queue[0]):  # room never grows
                    queue.popleft()
                if queue and self._matches(rack, number) and (first is None or queue[0] < first):
                    first = queue[0]
            if first is not None:
                self._give(first, [number])

    def _fill(self, *, near_only: bool) -> None:
        """Give each member in turn what it has room for; Kafka's `assignRanges`."""
        exhausted: set[str | None] = set()  # racks without any that is left and near
        for member, rack in enumerate(self._racks):
            room = self._room(member)
            if not self._left:
                return
            if room and rack not in exhausted:
                suitable = (number for number in self._left if not near_only or self._matches(rack, number))
                numbers = list(islice(suitable, room))
                if len(numbers) < room:
                    exhausted.add(rack)
                if numbers:
                    self._give(member, numbers)


def round_robin(
    partitions_per_topic: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    _racks: Racks = NO_RACKS,
    /,
) -> Assignment:
    """Assign each partition to the next member in order that subscribes to its topic; see `subscriptions.Assign`."""
    order = in_order(members)
    given: list[dict[str, Sequence[int]]] = [{} for _ in order]
    kinds = kinds_of(partitions_per_topic, members, order)
    if len(kinds) == 1:
        counts = {topic: partitions_per_topic[topic] for topic in kinds[0].topics}
        for place, mine in zip(kinds[0].members, deal_in_turn(counts, len(kinds[0].members)), strict=True):
            given[place] = mine
    else:
        _take_turns(partitions_per_topic, kinds, given)
    by_member = dict(zip(order, given, strict=True))
    return {member_id: by_member[member_id] for member_id in members}


def _take_turns(
    partitions_per_topic: Mapping[str, int], kinds: Sequence[Kind], given: Sequence[dict[str, Sequence[int]]]
) -> None:
    turn = 0
    for topic, subscribers in sorted(
        (topic, places) for topics, places in topics_by_subscribers(kinds) for topic in topics
    ):
        # Search the subscribers once per topic instead of walking all members once per partition: of 10,000 members
        # one may subscribe.
        first = bisect_left(subscribers, turn)
        count, step = partitions_per_topic[topic], len(subscribers)
        for number, place in zip(range(count), chain(subscribers[first:], subscribers[:first]), strict=False):
            given[place][topic] = range(number, count, step)
        turn = subscribers[(first + count - 1) % step] + 1
