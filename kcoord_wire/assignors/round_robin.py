"""Round-robin: all partitions in order, dealt to the members in turn (Kafka's RoundRobinAssignor)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from .model import Assignment, MemberSubscription, TopicPartition, sort_key

__all__ = ["round_robin"]


def round_robin(partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
    """See `Assign`. A member that does not subscribe to the topic at hand is passed over; the turn goes on behind the
    member that was served last."""
    assignment: Assignment = {member_id: [] for member_id in members}
    circle = sorted(members, key=lambda member_id: sort_key(member_id, members[member_id]))
    places: dict[str, list[int]] = {}
    for place, member_id in enumerate(circle):
        for topic in dict.fromkeys(members[member_id].topics):
            places.setdefault(topic, []).append(place)
    turn = 0
    for topic in sorted(places):
        served = places[topic]
        # Searching once a topic, not walking the circle once a partition: a circle of 10,000 may hold one subscriber.
        at = bisect_left(served, turn) % len(served)
        for partition in range(partitions_per_topic.get(topic, 0)):
            turn = served[at] + 1
            assignment[circle[served[at]]].append(TopicPartition(topic, partition))
            at = (at + 1) % len(served)
    return assignment
