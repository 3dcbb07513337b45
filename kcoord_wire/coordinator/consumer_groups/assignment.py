"""The target assignment of a group: what each member is to hold, computed by a server assignor.

Laws:

* The assignor sees the present target as what members hold, so that nothing moves without need.
* A topic that does not exist has no partitions; when it is created, the hash of the subscribed topics changes and with
  it the group epoch.

Source: KIP-848 "Assignment Process"; Kafka's `TargetAssignmentBuilder.java`, `ModernGroup.java`, `Utils.java` of the
group coordinator (KIP-1101), whose hash is XXH3 as the library hash4j writes values into it.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable
from typing import Final

from kcoord_wire.assignors.model import MemberSubscription
from kcoord_wire.assignors.server import SERVER_ASSIGNORS
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup, Target
from kcoord_wire.coordinator.core.groups import TopicNames
from kcoord_wire.extras import require

_MAGIC: Final = 0  # the version of the form in which a topic is hashed
_TOPIC: Final = struct.Struct("<BQQ")
_LONG: Final = struct.Struct("<Q")
_INT: Final = struct.Struct("<i")


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
    """Return Kafka's hash of topics, 64 bits, signed: it changes when one of them is created, deleted or gets
    partitions; 0 if none of them exists.

    :raises MissingLibraryError: the extra ``serve`` is not installed
    """
    xxh3: Callable[[bytes], int] = require("xxhash", "serve", "a group of KIP-848").xxh3_64_intdigest
    hashed = b"".join(
        _LONG.pack(xxh3(_topic(name, topic_id, count)))
        for name in sorted(subscribed)
        if (topic_id := topics.id_of(name)) is not None and (count := topics.partitions(name)) is not None
    )
    return int.from_bytes(_LONG.pack(xxh3(hashed)), "little", signed=True) if hashed else 0


def _topic(name: str, topic_id: uuid.UUID, count: int) -> bytes:
    """Return what Kafka hashes of a topic whose replicas have no racks."""
    high, low = divmod(topic_id.int, 1 << 64)
    return _TOPIC.pack(_MAGIC, high, low) + _text(name) + struct.pack(f"<{count + 1}i", count, *range(count))


def _text(text: str) -> bytes:
    return text.encode("utf-16-le") + _INT.pack(len(text))
