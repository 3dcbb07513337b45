"""The input and output of every assignor."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Assign", "Assignment", "Assignor", "MemberSubscription", "RebalanceProtocol", "TopicPartition", "in_order"]


class TopicPartition(NamedTuple):
    """A partition, named."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member's subscription as the leader gets it: ConsumerProtocolSubscription, and the member's instance id.

    :ivar topics: the topics it subscribes to; their order has no meaning
    :ivar owned: the partitions that it holds (subscription version 1 and later)
    :ivar generation: the generation in which they were assigned (version 2 and later); -1 for unknown
    :ivar instance_id: the group instance id of a static member (KIP-345)
    :ivar user_data: bytes of the assignor; the sticky assignors read the formats of Kafka's
    """

    topics: Sequence[str]
    owned: Sequence[TopicPartition] = ()
    generation: int = -1
    instance_id: str | None = None
    user_data: bytes = b""


Assignment = dict[str, list[TopicPartition]]
"""Member id to its partitions; every member has an entry."""

Assign = Callable[[Mapping[str, int], Mapping[str, MemberSubscription]], Assignment]
"""Called with the number of partitions of each topic, and with the members' subscriptions by member id.

A subscribed topic that the first mapping lacks has no partitions. Racks are ignored. The order of either mapping does
not change the result."""


class RebalanceProtocol(enum.StrEnum):
    """What members do with their partitions while the group rebalances (KIP-429)."""

    EAGER = "eager"  # give up all before JoinGroup
    COOPERATIVE = "cooperative"  # give up only what the new assignment takes away


@dataclass(frozen=True, slots=True)
class Assignor:
    """An assignor by the name that members put into JoinGroup.

    :ivar name: as in JoinGroup's ``protocols[].name``
    :ivar protocol: whether its members rebalance eagerly or cooperatively
    :ivar assign: the pure function
    """

    name: str
    protocol: RebalanceProtocol
    assign: Assign


def in_order(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Return the member ids in Kafka's order: static members by instance id, then the others by member id.

    Strings compare as in Java, by UTF-16 code units. Source: kafka/clients `AbstractPartitionAssignor.MemberInfo`.
    """

    def key(member_id: str) -> tuple[bool, bytes]:
        instance_id = members[member_id].instance_id
        name = member_id if instance_id is None else instance_id
        return instance_id is None, name.encode("utf-16-be", "surrogatepass")

    return sorted(members, key=key)
