"""What every assignor takes and gives."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Assign", "Assignment", "Assignor", "MemberSubscription", "RebalanceProtocol", "TopicPartition", "sort_key"]


class TopicPartition(NamedTuple):
    """A partition, named."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member tells the leader: ConsumerProtocolSubscription and, beside it, the member's instance id.

    :ivar topics: the topics it wants; their order means nothing
    :ivar owned: the partitions that it holds (subscription version 1 and later)
    :ivar generation: the generation in which it came to hold them (version 2 and later); -1 for unknown
    :ivar instance_id: the group instance id of a static member (KIP-345)
    :ivar user_data: the assignor's own bytes; the sticky assignors read what Kafka's put there
    """

    topics: Sequence[str]
    owned: Sequence[TopicPartition] = ()
    generation: int = -1
    instance_id: str | None = None
    user_data: bytes = b""


Assignment = dict[str, list[TopicPartition]]
"""Member id to what it gets; every member has an entry."""

Assign = Callable[[Mapping[str, int], Mapping[str, MemberSubscription]], Assignment]
"""From the number of partitions of each topic and each member's subscription, by member id.

A subscribed topic that the first mapping lacks has no partitions. Racks are not looked at. The order of either
mapping does not change the result."""


class RebalanceProtocol(enum.StrEnum):
    """What members do with the partitions they hold while a group rebalances (KIP-429)."""

    EAGER = "eager"  # give all up before JoinGroup
    COOPERATIVE = "cooperative"  # keep them, and give up only what the new assignment takes away


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


def sort_key(member_id: str, subscription: MemberSubscription) -> tuple[bool, bytes]:
    """Kafka's order of members (AbstractPartitionAssignor.MemberInfo): static members by instance id, then the others
    by member id; text as Java compares it, by UTF-16 units."""
    instance_id = subscription.instance_id
    name = member_id if instance_id is None else instance_id
    return instance_id is None, name.encode("utf-16-be", "surrogatepass")
