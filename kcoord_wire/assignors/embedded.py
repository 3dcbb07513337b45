"""Kafka's embedded consumer protocol: the bytes of subscriptions in JoinGroup and of assignments in SyncGroup.

The coordinator passes both through without reading them, with one exception: `subscribed_topics`. The state machines
import no codec, so a consumer's machine is given a `ConsumerProtocol`.

Source: kafka/clients `ConsumerProtocol.java`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from kcoord_wire.assignors.model import MemberSubscription, TopicPartition
from kcoord_wire.codec.headers import decode_prefixed, encode_prefixed
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError
from kcoord_wire.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)

__all__ = ["ConsumerProtocol", "subscribed_topics"]

_SUBSCRIPTION: Final = registry["ConsumerProtocolSubscription"]


class ConsumerProtocol:
    """The embedded protocol of consumers. It writes subscriptions in version 3 and assignments in version 1, and reads
    every version: later versions only append fields.

    Both readers raise DecodeError for bytes that are not such a message.
    """

    def encode_subscription(self, subscription: MemberSubscription) -> bytes:
        """Return a ConsumerProtocolSubscription with its version in front."""
        owned: dict[str, list[int]] = {}
        for topic, partition in subscription.owned:
            owned.setdefault(topic, []).append(partition)
        message = ConsumerProtocolSubscription(
            topics=list(subscription.topics),
            user_data=subscription.user_data or None,
            owned_partitions=[
                ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in owned.items()
            ],
            generation_id=subscription.generation,
        )
        return encode_prefixed(message, 3)

    def decode_subscription(self, data: bytes, instance_id: str | None) -> MemberSubscription:
        """Read a subscription. The instance id is a field of JoinGroup, so the caller supplies it."""
        _, message = decode_prefixed(ConsumerProtocolSubscription, data)
        return MemberSubscription(
            topics=message.topics,
            owned=[TopicPartition(item.topic, index) for item in message.owned_partitions for index in item.partitions],
            generation=message.generation_id,
            instance_id=instance_id,
            user_data=message.user_data or b"",
        )

    def encode_assignment(self, partitions: Sequence[TopicPartition]) -> bytes:
        """Return a ConsumerProtocolAssignment with its version in front."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        message = ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=indexes)
                for topic, indexes in topics.items()
            ]
        )
        return encode_prefixed(message, 1)

    def decode_assignment(self, data: bytes) -> Sequence[TopicPartition]:
        """Read an assignment; no bytes are an empty assignment."""
        return _decode_assignment(bytes(data))


@lru_cache(maxsize=4096)
def _decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    if not data:
        return ()
    _, message = decode_prefixed(ConsumerProtocolAssignment, data)
    return tuple(TopicPartition(item.topic, index) for item in message.assigned_partitions for index in item.partitions)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics that a consumer's subscription names; None if it cannot be read.

    Like Kafka's broker, reads the fields of version 0 only, whatever the version in front.
    """
    if len(metadata) < 2 or metadata[0] > 0x7F:
        return None
    try:
        subscription, _ = _SUBSCRIPTION.decode_prefix(metadata, 0, offset=2, strict=False)
    except DecodeError:
        return None
    return frozenset(subscription.topics)
