"""Range: topic by topic, each member a run of neighbouring partitions (Kafka's RangeAssignor without racks).

Members with the same subscriptions get the same partition numbers of topics with the same partition count, which is
what joins of co-partitioned topics need.
"""

from __future__ import annotations

from collections.abc import Mapping

from .model import Assignment, MemberSubscription, TopicPartition, sort_key

__all__ = ["range_assign"]


def range_assign(partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
    """See `Assign`. Of p partitions and m subscribers, the first p % m subscribers get one more than the others."""
    assignment: Assignment = {member_id: [] for member_id in members}
    subscribers: dict[str, list[str]] = {}
    for member_id in sorted(members, key=lambda member_id: sort_key(member_id, members[member_id])):
        for topic in dict.fromkeys(members[member_id].topics):
            subscribers.setdefault(topic, []).append(member_id)
    for topic in sorted(subscribers):
        each, extra = divmod(partitions_per_topic.get(topic, 0), len(subscribers[topic]))
        start = 0
        for place, member_id in enumerate(subscribers[topic]):
            end = start + each + (place < extra)
            assignment[member_id] += [TopicPartition(topic, partition) for partition in range(start, end)]
            start = end
    return assignment
