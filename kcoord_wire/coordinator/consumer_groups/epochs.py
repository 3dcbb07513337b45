"""What moves on the groups whose target assignment the coordinator computes: epochs, silent members, accounts.

Laws:

* Records are in the log in the order in which readers may rely on: members, the group epoch, targets, the assignment
  epoch, what a member holds.
* Nothing is computed by a timer but that a silent member is gone: a target is computed, and a member moves on, with a
  heartbeat of a member.
* The account of a rebalance begins with a group epoch and ends when every member holds its target of it.

Source: KIP-848, KIP-932; Kafka's `GroupMetadataManager.java`, `ModernGroup.java`, `Utils.java` of the group coordinator
(KIP-1101), whose hash is XXH3 as the library hash4j writes values into it.
"""

from __future__ import annotations

import struct
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from kcoord_wire.coordinator.consumer_groups import epoch_records as log
from kcoord_wire.coordinator.consumer_groups.epoch_group import EpochGroup, EpochMember, Target
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.admin import GROUP_OPERATIONS, describe_each, missing_group
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import EffectCollector
from kcoord_wire.coordinator.core.groups import BaseGroup, TopicNames
from kcoord_wire.extras import require
from kcoord_wire.kernel.timers import Timers

Records = list[events.LogRecord]

P = TypeVar("P")

_MAGIC: Final = 0  # the version of the form in which a topic is hashed
_TOPIC: Final = struct.Struct("<BQQ")
_LONG: Final = struct.Struct("<Q")
_INT: Final = struct.Struct("<i")


def may_assign(group: EpochGroup[Any], interval_ms: int, now: int) -> bool:
    """Return whether the next target may be computed: assignments are `interval_ms` apart, so that many members that
    join one after the other cost few of them."""
    return group.assigned_at == 0 or interval_ms == 0 or now >= group.assigned_at + interval_ms


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


def described_partitions(
    part: Callable[..., P], held: Mapping[uuid.UUID, Collection[int]], topics: TopicNames
) -> list[P]:
    """Return partitions by topic, as a description has them; a topic that was deleted has no name, and is left out.

    :param part: makes the part for a topic of ``topic_id``, ``topic_name`` and ``partitions``
    """
    return [
        part(topic_id=topic_id, topic_name=name, partitions=sorted(partitions))
        for topic_id, partitions in held.items()
        if (name := topics.name_of(topic_id)) is not None
    ]


G = TypeVar("G", bound=EpochGroup[Any])
M = TypeVar("M", bound=EpochMember)


class Epochs(ABC, Generic[G, M]):
    """Moves groups of one kind on.

    :param groups: by id, of all kinds
    :param topics: the topics that exist
    :param config: settings of the coordinator
    :param timers: deadlines of all groups
    :param effects: what the present call returns
    :param configs_of: returns the configs that a group has of its own, by Kafka's names
    :cvar no_member: stands for an operator where a member causes a rebalance
    """

    no_member: M

    def __init__(
        self,
        groups: dict[str, BaseGroup],
        topics: TopicNames,
        config: GroupConfig,
        timers: Timers,
        effects: EffectCollector,
        configs_of: Callable[[str], Mapping[str, str]],
    ) -> None:
        self.groups = groups
        self.topics = topics
        self.config = config
        self.timers = timers
        self.effects = effects
        self._configs_of = configs_of

    def setting(self, group: G, name: str, default: int) -> int:
        """Return a setting of a group, in ms: its own, or that of the coordinator."""
        own = self._configs_of(group.group_id).get(name)
        return default if own is None else int(own)

    def described(
        self, kind: type[G], answer: Callable[..., Any], message: Any, fields: Callable[[G], dict[str, Any]]
    ) -> tuple[list[Any], int]:
        """Return the descriptions of the groups that a request names, as `describe_each` does.

        :param answer: makes the description of a group
        :param message: the request
        :param fields: returns what not every kind of group has alike
        """

        def described(group: BaseGroup) -> Any | None:
            if not isinstance(group, kind):
                return None
            found = answer(
                group_id=group.group_id,
                group_state=group.state.value,
                group_epoch=group.epoch,
                assignment_epoch=group.assignment_epoch,
                **fields(group),
            )
            if message.include_authorized_operations:
                found.authorized_operations = GROUP_OPERATIONS
            return found

        missing = partial(missing_group, kind.kind)
        return describe_each(self.effects, self.groups, message.group_ids, answer, described, missing)

    # ---- epochs and targets

    def bump(self, group: G, trigger: events.Trigger, who: M, records: Records, reason: str | None = None) -> None:
        """Begin the next group epoch."""
        group.epoch += 1
        group.metadata_hash = self.hash(group)
        records.append(log.epoch_record(group))
        group.state_since = self.effects.now
        group.begin_rebalance(self.effects, trigger, group.epoch, who, who.instance_id, reason)

    def refresh(self, group: G, who: M, records: Records) -> None:
        """Begin the next group epoch if the subscribed topics have changed since the last one."""
        if group.topics_seen != self.topics.changes and self.hash(group) != group.metadata_hash:
            self.bump(group, events.Trigger.TOPICS_CHANGED, who, records)

    def rebalance(self, group: G, reason: str) -> None:
        """Begin the next group epoch because an operator wants it."""
        if group.members:
            records: Records = []
            self.bump(group, events.Trigger.REQUESTED, self.no_member, records, reason)
            self.effects.append(group, records)

    def hash(self, group: G) -> int:
        """Return the hash of the subscribed topics as they are now, and note that it was computed."""
        group.topics_seen = self.topics.changes
        return hash_topics(self.topics, group.subscribed_topics())

    def set_target(self, group: G, target: dict[str, Target], assignor: str, records: Records) -> None:
        """Store the target of the group epoch."""
        before, group.target = group.target, target
        records += [log.target_record(group, key) for key, each in target.items() if before.get(key) != each]
        group.set_assignment_epoch(group.epoch, self.effects.now)
        records.append(log.target_epoch_record(group))
        if group.rebalance is not None:
            group.rebalance.protocol = assignor
            group.rebalance.joined_at = self.effects.now
            self.effects.report(events.Phase.JOINED, group.rebalance)

    # ---- members that are silent or gone

    @abstractmethod
    def session_timeout(self, group: G, member: M) -> int:
        """Return how long a member may be silent, in ms."""

    def keep_alive(self, group: G, member: M) -> None:
        """Restart the timer after which a silent member is removed."""
        timers = group.timers[member.member_id]
        until = self.effects.now + self.session_timeout(group, member)
        if timers.session is None or not timers.session.live:
            action = partial(self.expired, group, member.member_id, events.Trigger.SESSION_EXPIRED)
            timers.session = self.timers.start(until, action)
        else:
            timers.session = self.timers.move(timers.session, until)

    def restart_timers(self, group: G) -> None:
        """Start the timers of all members, after the log has been read."""
        for member in group.members.values():
            self.keep_alive(group, member)

    def expired(self, group: G, member_id: str, trigger: events.Trigger) -> None:
        """Remove a member whose time is up."""
        self.lose(group, [group.members[member_id]], trigger, str(trigger))

    def lose(self, group: G, members: Sequence[M], trigger: events.Trigger, why: str) -> None:
        """Remove members, and write that."""
        self.note_removed(group, members, why)
        self.remove(group, members, trigger)

    @staticmethod
    def note_removed(group: G, members: Iterable[M], why: str) -> None:
        """Note for the account of the next rebalance that members are lost."""
        for member in members:
            group.removed.append(events.Removal(member.member_id, member.client_id, member.client_host, why))

    def remove(self, group: G, members: Sequence[M], trigger: events.Trigger) -> None:
        """Remove members, write that, and begin the next group epoch."""
        records: Records = []
        for member in members:
            records += log.member_tombstones(group, member.member_id)
            group.remove(member.member_id)
            records += self.forget(group, member)
        self.bump(group, trigger, members[0], records)
        if not group.members:
            group.set_assignment_epoch(group.epoch, 0)
            records.append(log.target_epoch_record(group))
            group.end_rebalance(self.effects, "empty")
        self.effects.append(group, records)

    def forget(self, group: G, member: M) -> Records:
        """Forget what was there for a member alone that was removed, and return what removes it from the log."""
        return []

    # ---- accounts

    def settle(self, group: G, member: M) -> None:
        """Note in the account that a member may have reached its target, and whether all have."""
        rebalance = group.rebalance
        if rebalance is None or rebalance.joined_at is None or member.member_id in group.unsettled:
            return
        if member.epoch == rebalance.generation_id:
            rebalance.joins.append((member.member_id, self.effects.now - rebalance.started_at))
        if not group.unsettled and group.epoch <= group.assignment_epoch:
            group.state_since = self.effects.now
            group.end_rebalance(self.effects, "stable")

    def release(self, group: G) -> None:
        """Give up a group that another coordinator has now."""
        group.end_rebalance(self.effects, "interrupted")
        group.end(self.effects.now)
