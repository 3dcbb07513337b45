"""Conversions of a group between the classic protocol and KIP-848's, while its members go on.

Laws:

* A group is converted in one append: what removes it in the one form, then the whole of it in the other. Committed
  offsets stay.
* Each member keeps what it was assigned: a classic generation becomes the group's epoch, and the reverse.
* A group without members is converted whatever the policy says.

Source: KIP-848 "Migration Plan"; Kafka's `ConsumerGroup.java` (fromClassicGroup), `ClassicGroup.java`
(fromConsumerGroup), `GroupMetadataManager.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import Final

from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.assignors.model import MemberAssignment
from kcoord_wire.coordinator.consumer_groups.assignment import hash_topics
from kcoord_wire.coordinator.consumer_groups.group import ClassicMember, ConsumerGroup, Member, Refused, Target
from kcoord_wire.coordinator.consumer_groups.progress import Shared
from kcoord_wire.coordinator.core import groups as classic
from kcoord_wire.coordinator.core.groups import CONSUMER, BaseGroup, TopicNames
from kcoord_wire.errors import DecodeError
from kcoord_wire.protocol.error_codes import ErrorCode

_NEWEST: Final = 3  # version of the embedded protocol

# ---- to KIP-848


def check_upgrade(shared: Shared, group: BaseGroup) -> None:
    """Check that a classic group with members may become one of KIP-848.

    :raises Refused: GROUP_ID_NOT_FOUND: the policy does not allow it, or the group cannot be one of consumers
    """
    text = None
    if not shared.config.consumer_migration_policy.upgrades:
        text = "upgrades are disabled"
    elif group.protocol_type != CONSUMER:
        text = "its members are not consumers"
    elif len(group.members) > shared.config.consumer_max_size:
        text = "it has more members than a consumer group may have"
    if text is not None:
        raise _cannot(group, text)


def upgraded(shared: Shared, group: BaseGroup) -> ConsumerGroup:
    """Return what a classic group becomes when a member of KIP-848 joins it; the group itself is not changed.

    :raises Refused: as `check_upgrade`; or what its members have sent cannot be read, or would be lost
    """
    new = ConsumerGroup(group.group_id, shared.effects.now)
    new.offsets = group.offsets
    new.written = group.written
    if not isinstance(group, classic.Group) or group.state is classic.State.EMPTY:
        return new
    check_upgrade(shared, group)
    new.epoch = group.generation_id
    try:
        for member in group.members.values():
            _upgrade_member(shared, group, new, member)
    except DecodeError as cause:
        raise _cannot(group, f"what a member has sent is not of a consumer: {cause}") from None
    new.set_assignment_epoch(group.generation_id, 0)
    new.metadata_hash = hash_topics(shared.topics, new.subscribed_topics())
    return new


def _upgrade_member(shared: Shared, group: classic.Group, new: ConsumerGroup, member: classic.Member) -> None:
    metadata = member.metadata(group.protocol) or member.protocols[0][1]
    subscription = shared.embedded.decode_subscription(metadata, member.group_instance_id)
    assigned = shared.embedded.decode_assignment(member.assignment)
    if assigned.user_data:
        raise _cannot(group, "the user data of its assignor would be lost")
    target: dict[uuid.UUID, frozenset[int]] = {}
    for name, partitions in assigned.partitions.items():
        topic_id = shared.topics.id_of(name)
        if topic_id is not None:
            target[topic_id] = frozenset(partitions)
    new.target[member.member_id] = target
    new.put(
        Member(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            rack_id=subscription.rack,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topics=tuple(sorted(set(subscription.topics))),
            classic=ClassicMember(member.session_timeout_ms, member.protocols),
            epoch=group.generation_id,
            previous_epoch=group.generation_id,
            assigned={topic: dict.fromkeys(sorted(held), group.generation_id) for topic, held in target.items()},
        )
    )


def _cannot(group: BaseGroup, why: str) -> Refused:
    return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} cannot become a consumer group: {why}.")


# ---- to the classic protocol


def may_downgrade(shared: Shared, group: ConsumerGroup, leaving: Collection[str], joining: int = 0) -> bool:
    """Return whether a group becomes classic when these members are gone: only classic members are left.

    :param joining: how many classic members come in their place
    """
    left = len(group.members) - len(leaving) + joining
    others = (member for member in group.members.values() if member.member_id not in leaving)
    if left == 0 or not shared.config.consumer_migration_policy.downgrades or left > shared.config.max_size:
        return False
    return all(member.classic is not None for member in others)


def downgraded(shared: Shared, group: ConsumerGroup) -> classic.Group:
    """Return what a group of classic members becomes; the group itself is not changed."""
    new = classic.Group(group.group_id, shared.effects.now)
    new.offsets = group.offsets
    new.written = group.written
    new.generation_id = group.epoch
    new.protocol_type = CONSUMER
    for member in group.members.values():
        assert member.classic is not None, "only classic members are left"
        new.add(
            classic.Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.classic.protocols,
            )
        )
    new.protocol = new.select_protocol()
    for member_id, assigned in new.members.items():
        target = group.target.get(member_id, {})
        assigned.assignment = assignment_bytes(shared.topics, target, assigned.metadata(new.protocol))
    new.move(classic.Move.LOAD_STABLE, shared.effects.now)
    return new


def assignment_bytes(topics: TopicNames, held: Target | Mapping[uuid.UUID, Collection[int]], metadata: bytes) -> bytes:
    """Return partitions as a classic member gets them, in the version of the subscription that it has sent."""
    named = ((topics.name_of(topic_id), sorted(partitions)) for topic_id, partitions in held.items())
    partitions = {name: numbers for name, numbers in named if name is not None}
    version = min(int.from_bytes(metadata[:2], "big"), _NEWEST)
    return ConsumerProtocol(version).encode_assignment(MemberAssignment(partitions))
