"""Kafka's embedded consumer protocol: the bytes of subscriptions in JoinGroup and of assignments in SyncGroup.

The coordinator passes both through without reading them, with one exception: `subscribed_topics`. The state machines
import no codec, so a consumer's machine is given a `ConsumerProtocol`.

What is read comes from other members, so it may be in any order and repeat itself: the partitions returned are
ascending and without repetition all the same.

Source: kafka/clients `ConsumerProtocol.java`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Protocol

from kcoord_wire.assignors.subscriptions import MemberAssignment, MemberSubscription, Partitions
from kcoord_wire.codec.registry import decode_prefixed, encode_prefixed, registry
from kcoord_wire.errors import DecodeError
from kcoord_wire.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)

_SUBSCRIPTION: Final = registry["ConsumerProtocolSubscription"]
_NEWEST: Final = 3


class ConsumerProtocol:
    """The embedded protocol of consumers. It reads every version: later versions only append fields.

    Both readers raise DecodeError for bytes that are not such a message.

    :param version: what it writes; 1 adds owned partitions to subscriptions, 2 their generation, 3 the rack
    :raises ValueError: no such version
    """

    def __init__(self, version: int = _NEWEST) -> None:
        if not 0 <= version <= _NEWEST:
            raise ValueError(f"the embedded protocol has versions 0 to {_NEWEST}, not {version}")
        self.version = version

    def encode_subscription(self, subscription: MemberSubscription) -> bytes:
        """Return a ConsumerProtocolSubscription with its version in front."""
        message = ConsumerProtocolSubscription(
            topics=list(subscription.topics),
            user_data=subscription.user_data or None,
            owned_partitions=[
                ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=list(partitions))
                for topic, partitions in subscription.owned.items()
            ],
            generation_id=subscription.generation,
            rack_id=subscription.rack,
        )
        return encode_prefixed(message, self.version)

    def decode_subscription(self, data: bytes, instance_id: str | None) -> MemberSubscription:
        """Read a subscription. The instance id is a field of JoinGroup, so the caller supplies it."""
        _, message = decode_prefixed(ConsumerProtocolSubscription, data)
        return MemberSubscription(
            topics=message.topics,
            owned=_by_topic(message.owned_partitions),
            generation=message.generation_id,
            instance_id=instance_id,
            rack=message.rack_id,
            user_data=message.user_data or b"",
        )

    def encode_assignment(self, assignment: MemberAssignment) -> bytes:
        """Return a ConsumerProtocolAssignment with its version in front."""
        message = ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=list(partitions))
                for topic, partitions in assignment.partitions.items()
            ],
            user_data=assignment.user_data or None,
        )
        return encode_prefixed(message, self.version)

    def decode_assignment(self, data: bytes) -> MemberAssignment:
        """Read an assignment; no bytes are an empty assignment."""
        return _decode_assignment(bytes(data))


@lru_cache(maxsize=4096)
def _decode_assignment(data: bytes) -> MemberAssignment:
    if not data:
        return MemberAssignment({})
    _, message = decode_prefixed(ConsumerProtocolAssignment, data)
    return MemberAssignment(MappingProxyType(_by_topic(message.assigned_partitions)), message.user_data or b"")


class _Entry(Protocol):
    topic: str
    partitions: list[int]


def _by_topic(entries: Iterable[_Entry]) -> Partitions:
    """Return the partitions of all entries, whether or not they repeat a topic."""
    topics: dict[str, list[int]] = {}
    for entry in entries:
        if entry.partitions:
            topics.setdefault(entry.topic, []).extend(entry.partitions)
    return {topic: sorted(set(numbers)) for topic, numbers in topics.items()}


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
