"""What members tell each other through the coordinator, which does not look into it: subscriptions and assignments.

The state machines import no codec; whoever runs a `member.Member` gives it a `ConsumerBlobs`.

Source: kafka/clients `ConsumerProtocol.java`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from kcoord_wire import messages as m
from kcoord_wire.assignors import MemberSubscription, TopicPartition
from kcoord_wire.codec.headers import decode_prefixed, encode_prefixed
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError

__all__ = ["ConsumerBlobs", "subscribed_topics"]

_SUBSCRIPTION = registry["ConsumerProtocolSubscription"]


class ConsumerBlobs:
    """Subscriptions in version 3, assignments in version 1 (all are laid out alike). See `member_events.Blobs`."""

    def write_subscription(self, subscription: MemberSubscription) -> bytes:
        """See `member_events.Blobs`."""
        owned: dict[str, list[int]] = {}
        for topic, partition in subscription.owned:
            owned.setdefault(topic, []).append(partition)
        message = m.ConsumerProtocolSubscription(
            topics=list(subscription.topics),
            user_data=subscription.user_data or None,
            owned_partitions=[
                m.ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in owned.items()
            ],
            generation_id=subscription.generation,
        )
        return encode_prefixed(message, 3)

    def read_subscription(self, blob: bytes, instance_id: str | None) -> MemberSubscription:
        """See `member_events.Blobs`."""
        _, message = decode_prefixed(m.ConsumerProtocolSubscription, blob)
        return MemberSubscription(
            topics=message.topics,
            owned=[TopicPartition(item.topic, index) for item in message.owned_partitions for index in item.partitions],
            generation=message.generation_id,
            instance_id=instance_id,
            user_data=message.user_data or b"",
        )

    def write_assignment(self, partitions: Sequence[TopicPartition]) -> bytes:
        """See `member_events.Blobs`."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        message = m.ConsumerProtocolAssignment(
            assigned_partitions=[
                m.ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=indexes)
                for topic, indexes in topics.items()
            ]
        )
        return encode_prefixed(message, 1)

    def read_assignment(self, blob: bytes) -> Sequence[TopicPartition]:
        """See `member_events.Blobs`."""
        return _read_assignment(bytes(blob))


@lru_cache(maxsize=4096)
def _read_assignment(blob: bytes) -> tuple[TopicPartition, ...]:
    if not blob:
        return ()
    _, message = decode_prefixed(m.ConsumerProtocolAssignment, blob)
    return tuple(TopicPartition(item.topic, index) for item in message.assigned_partitions for index in item.partitions)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics that a consumer's subscription names, read as Kafka's broker does: what version 0 has of it.

    None if it cannot be read.
    """
    if len(metadata) < 2 or metadata[0] > 0x7F:
        return None
    try:
        subscription, _ = _SUBSCRIPTION.decode_prefix(metadata, 0, offset=2, strict=False)
    except DecodeError:
        return None
    return frozenset(subscription.topics)
