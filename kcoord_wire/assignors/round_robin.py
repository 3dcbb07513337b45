"""Round-robin: all partitions, in order of topic and number, go to the members in turn (Kafka's RoundRobinAssignor)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from kcoord_wire.assignors.model import NO_RACKS, Assignment, MemberSubscription, Racks, in_order

__all__ = ["round_robin"]


def round_robin(
    partitions_per_topic: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    _racks: Racks = NO_RACKS,
    /,
) -> Assignment:
    """Assign each partition to the next member in order that subscribes to its topic; see `model.Assign`."""
    assignment: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in members}
    order = in_order(members)
    places: dict[str, list[int]] = {}
    for place, member_id in enumerate(order):
        for topic in dict.fromkeys(members[member_id].topics):
            places.setdefault(topic, []).append(place)
    turn = 0
    for topic in sorted(places):
        subscribers = places[topic]
        # Search the subscribers once per topic instead of walking all members once per partition: of 10,000 members
        # one may subscribe.
        at = bisect_left(subscribers, turn) % len(subscribers)
        for partition in range(partitions_per_topic.get(topic, 0)):
            turn = subscribers[at] + 1
            assignment[order[subscribers[at]]].setdefault(topic, []).append(partition)
            at = (at + 1) % len(subscribers)
    return {**assignment}
