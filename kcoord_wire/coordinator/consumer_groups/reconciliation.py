"""How a member gets from what it holds to its target: give up first, then take what is free.

    STABLE                 holds its target of the epoch that it is in
    UNREVOKED_PARTITIONS   must give partitions up, and stays in its epoch until it reports that it has
    UNRELEASED_PARTITIONS  is in the target's epoch, and waits for partitions that others hold

Laws:

* A member moves to another epoch only when it holds nothing that its target takes away.
* A partition is given only when no member holds it (`ConsumerGroup.partition_epoch`).
* Topics that the member does not subscribe to any more are taken away at once, whatever the target says.

Source: KIP-848 "Reconciliation"; Kafka's `CurrentAssignmentBuilder.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kcoord_wire.coordinator.consumer_groups.group import NOBODY, Held, Member, MemberState, Target
from kcoord_wire.messages import ConsumerGroupHeartbeatRequestTopicPartitions as Owned


class Goal(NamedTuple):
    """What a member is to reach.

    :ivar epoch: the assignment epoch
    :ivar target: its part of the target assignment
    :ivar subscribed: ids of the topics that it subscribes to
    :ivar partition_epoch: returns the epoch of a partition's holder, `NOBODY` if it has none
    """

    epoch: int
    target: Target
    subscribed: frozenset[uuid.UUID]
    partition_epoch: Callable[[uuid.UUID, int], int]


def reconcile(member: Member, goal: Goal, owned: Sequence[Owned] | None, *, has_new_topics: bool) -> Member:
    """Return the member after the next step towards its goal; the same if it can take none.

    :param owned: what the member reports that it holds; None if its heartbeat does not say
    :param has_new_topics: its subscription has changed with this heartbeat
    """
    if member.state is MemberState.STABLE and member.epoch == goal.epoch:
        return _drop_unsubscribed(member, goal, owned) if has_new_topics else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and owns_any(owned, member.revoking):
        return _drop_unsubscribed(member, goal, owned) if has_new_topics else member
    if member.state is MemberState.UNKNOWN:  # of another release: the member has given up everything and begins anew
        member = replace(member, epoch=goal.epoch)
    return _step(member, goal, owned)


def owns_any(owned: Sequence[Owned] | None, held: Held) -> bool:
    """Return whether a member still holds any of these partitions, which it does unless it says what it holds."""
    if owned is None:
        return True
    return any(partition in held.get(item.topic_id, ()) for item in owned for partition in item.partitions)


def _step(member: Member, goal: Goal, owned: Sequence[Owned] | None) -> Member:
    kept: dict[uuid.UUID, dict[int, int]] = {}
    taken: dict[uuid.UUID, dict[int, int]] = {}
    given: dict[uuid.UUID, list[int]] = {}
    waits = False
    for topic_id in {**goal.target, **member.assigned}:
        target = goal.target.get(topic_id, frozenset()) if topic_id in goal.subscribed else frozenset()
        held = member.assigned.get(topic_id, {})
        kept[topic_id] = {partition: epoch for partition, epoch in held.items() if partition in target}
        taken[topic_id] = {partition: epoch for partition, epoch in held.items() if partition not in target}
        wanted = target.difference(held)
        given[topic_id] = _free(member, goal, topic_id, wanted)
        waits = waits or len(given[topic_id]) < len(wanted)
    if any(taken.values()) and owns_any(owned, taken):
        return _moved(member, MemberState.UNREVOKED_PARTITIONS, member.epoch, kept, taken)
    for topic_id, partitions in given.items():
        kept[topic_id].update(dict.fromkeys(partitions, goal.epoch))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return _moved(member, state, goal.epoch, kept, {})


def _free(member: Member, goal: Goal, topic_id: uuid.UUID, wanted: Iterable[int]) -> list[int]:
    """Return those of the partitions that no other member holds, ascending."""
    own = member.revoking.get(topic_id, {})
    return sorted(item for item in wanted if item in own or goal.partition_epoch(topic_id, item) == NOBODY)


def _drop_unsubscribed(member: Member, goal: Goal, owned: Sequence[Owned] | None) -> Member:
    dropped = {topic: held for topic, held in member.assigned.items() if topic not in goal.subscribed}
    if not dropped:
        return member
    kept = {topic: held for topic, held in member.assigned.items() if topic in goal.subscribed}
    revoking = {
        topic: {**member.revoking.get(topic, {}), **dropped.get(topic, {})}
        for topic in _either(member.revoking, dropped)
    }
    if owns_any(owned, revoking):
        return _moved(member, MemberState.UNREVOKED_PARTITIONS, member.epoch, kept, revoking)
    return _moved(member, member.state, member.epoch, kept, member.revoking)


def _moved(member: Member, state: MemberState, epoch: int, assigned: Held, revoking: Held) -> Member:
    return replace(
        member,
        state=state,
        epoch=epoch,
        previous_epoch=member.epoch,
        assigned={topic_id: held for topic_id, held in assigned.items() if held},
        revoking={topic_id: held for topic_id, held in revoking.items() if held},
    )


def _either(first: Mapping[uuid.UUID, object], second: Mapping[uuid.UUID, object]) -> Iterable[uuid.UUID]:
    return dict.fromkeys((*first, *second))
