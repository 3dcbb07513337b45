"""Round-robin: all partitions, in order of topic and number, go to the members in turn (Kafka's RoundRobinAssignor)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import chain

from kcoord_wire.assignors.equal import deal_in_turn
from kcoord_wire.assignors.model import NO_RACKS, Assignment, MemberSubscription, Racks, in_order
from kcoord_wire.assignors.subscribers import Kind, kinds_of, topics_by_subscribers


def round_robin(
    partitions_per_topic: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    _racks: Racks = NO_RACKS,
    /,
) -> Assignment:
    """Assign each partition to the next member in order that subscribes to its topic; see `model.Assign`."""
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
