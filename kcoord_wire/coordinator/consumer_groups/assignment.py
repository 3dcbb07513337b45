"""The target assignment of a group: what each member is to hold, computed by a server assignor.

Laws:

* The assignor sees the present target as what members hold, so that nothing moves without need.
* A topic that does not exist has no partitions; when it is created, the hash of the subscribed topics changes and with
  it the group epoch.

Source: KIP-848 "Assignment Process"; Kafka's `TargetAssignmentBuilder.java`, `ModernGroup.java` (KIP-1101).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from kcoord_wire.assignors.model import MemberSubscription
from kcoord_wire.assignors.server import SERVER_ASSIGNORS
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup, Target
from kcoord_wire.coordinator.core.any_group import TopicNames

__all__ = ["compute_target", "hash_topics", "may_assign", "preferred_assignor"]

_HASH_BYTES: Final = 8


def may_assign(group: ConsumerGroup, interval_ms: int, now: int) -> bool:
    """Return whether the next target may be computed: assignments are `interval_ms` apart, so that many members that
    join one after the other cost few of them."""
    return group.assigned_at == 0 or interval_ms == 0 or now >= group.assigned_at + interval_ms


def preferred_assignor(group: ConsumerGroup, default: str) -> str:
    """Return the server assignor that most members ask for; of equals, the one asked for first."""
    return max(group.assignors, key=group.assignors.__getitem__) if group.assignors else default


def compute_target(group: ConsumerGroup, topics: TopicNames, assignor: str) -> dict[str, Target]:
    """Return the target of every member, by member id."""
    counts = {name: count for name in group.subscribed_topics() if (count := topics.partitions(name)) is not None}
    names = {topics.id_of(name): name for name in counts}
    members = {
        member_id: MemberSubscription(
            topics=tuple(group.subscription(member)),
            owned={
                names[topic_id]: sorted(partitions)
                for topic_id, partitions in group.target.get(member_id, {}).items()
                if topic_id in names
            },
            instance_id=member.instance_id,
            rack=member.rack_id,
        )
        for member_id, member in group.members.items()
    }
    assigned = SERVER_ASSIGNORS[assignor](counts, members)
    ids = {name: topic_id for topic_id, name in names.items() if topic_id is not None}
    return {
        member_id: {ids[name]: frozenset(partitions) for name, partitions in assigned[member_id].items()}
        for member_id in group.members
    }


def hash_topics(topics: TopicNames, subscribed: Iterable[str]) -> int:
    """Return 64 bits, signed, that change when one of these topics is created, deleted or gets partitions; 0 if none of
    them exists. Kafka takes XXH3 of more fields: a broker that reads the log computes the hash anew."""
    counts: Mapping[str, int | None] = {name: topics.partitions(name) for name in sorted(subscribed)}
    known = [f"{topics.id_of(name)} {count}" for name, count in counts.items() if count is not None]
    if not known:
        return 0
    digest = hashlib.blake2b("\n".join(known).encode(), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "big", signed=True)
