"""Range: topic by topic, each member gets a run of consecutive partitions (Kafka's RangeAssignor without racks).

Members with the same subscriptions get the same partition numbers of topics with the same partition count, as joins of
co-partitioned topics require.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcoord_wire.assignors.model import NO_RACKS, Assignment, MemberSubscription, Racks, in_order

__all__ = ["range_assign"]


def range_assign(
    partitions_per_topic: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    _racks: Racks = NO_RACKS,
    /,
) -> Assignment:
    """Split each topic among its subscribers in order; the first p % m of m subscribers get one of p partitions more.

    See `model.Assign`.
    """
    assignment: dict[str, dict[str, range]] = {member_id: {} for member_id in members}
    subscribers: dict[str, list[str]] = {}
    for member_id in in_order(members):
        for topic in dict.fromkeys(members[member_id].topics):
            subscribers.setdefault(topic, []).append(member_id)
    for topic in sorted(subscribers):
        each, extra = divmod(partitions_per_topic.get(topic, 0), len(subscribers[topic]))
        start = 0
        for place, member_id in enumerate(subscribers[topic]):
            end = start + each + (place < extra)
            if start < end:
                assignment[member_id][topic] = range(start, end)
            start = end
    return {**assignment}
