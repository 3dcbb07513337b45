"""What the log keeps of a group: its current generation and its committed offsets.

Laws:

* Writing and reading are inverse: `replay` returns what the other functions have written. A group with members comes
  back Stable, with the chosen protocol of each member only (Kafka's `GroupMetadataManager`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.any_group import FOREVER, NO_EPOCH, AnyGroup, Committed
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.core.groups import Group, Member, Move

_NO_TIME: Final = -1  # in records of old versions, which lack the field
_NO_TIMEOUT: Final = -1


def group_record(group: Group) -> LogRecord:
    """Return the record of the group's current generation."""
    return LogRecord(
        m.GroupMetadataKey(group=group.group_id),
        m.GroupMetadataValue(
            protocol_type=group.protocol_type or "",
            generation=group.generation_id,
            protocol=group.protocol,
            leader=group.leader_id,
            current_state_timestamp=group.state_since,
            members=[
                m.GroupMetadataValueMemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(group.protocol),
                    assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        ),
    )


def offset_record(group: AnyGroup, topic: str, partition: int, committed: Committed) -> LogRecord:
    """Return the record of a committed offset."""
    return LogRecord(
        m.OffsetCommitKey(group=group.group_id, topic=topic, partition=partition),
        m.OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp,
            expire_timestamp=committed.expire_timestamp,
        ),
    )


def offset_tombstone(group: AnyGroup, topic: str, partition: int) -> LogRecord:
    """Return what removes a committed offset from the log."""
    return LogRecord(m.OffsetCommitKey(group=group.group_id, topic=topic, partition=partition), None)


def tombstones(group: AnyGroup, pending: Iterable[tuple[str, int]] = ()) -> list[LogRecord]:
    """Return what removes the group and its offsets from the log.

    :param pending: topics and partitions of offsets in transactions that are open
    """
    committed = [(topic, partition) for topic, partitions in group.offsets.items() for partition in partitions]
    keys = dict.fromkeys([*committed, *sorted(pending)])
    return [*(offset_tombstone(group, topic, partition) for topic, partition in keys), *group.tombstones()]


def replay(records: Sequence[LogRecord], now: int) -> dict[str, Group]:
    """Return the groups in a log, by id. Record types of other group protocols are skipped."""
    groups: dict[str, Group] = {}
    offsets: dict[str, dict[str, dict[int, Committed]]] = {}
    for key, value in records:
        if isinstance(key, m.GroupMetadataKey):
            if value is None:
                groups.pop(key.group, None)
            else:
                groups[key.group] = _group_from(key.group, value, now)
        elif isinstance(key, m.OffsetCommitKey | m.LegacyOffsetCommitKey):
            partitions = offsets.setdefault(key.group, {}).setdefault(key.topic, {})
            if value is None:
                partitions.pop(key.partition, None)
            else:
                partitions[key.partition] = committed_from(value)
    for group_id, topics in offsets.items():
        kept = {topic: partitions for topic, partitions in topics.items() if partitions}
        if kept:
            groups.setdefault(group_id, Group(group_id, now)).offsets = kept
    return groups


def committed_from(value: m.OffsetCommitValue | m.LegacyOffsetCommitValue) -> Committed:
    """Return the committed offset that a record has."""
    expires = getattr(value, "expire_timestamp", FOREVER)
    epoch = getattr(value, "leader_epoch", NO_EPOCH)
    return Committed(value.offset, epoch, value.metadata, value.commit_timestamp, expires)


def _group_from(group_id: str, value: m.GroupMetadataValue, now: int) -> Group:
    group = Group(group_id, now)
    group.generation_id = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol = value.protocol
    for stored in value.members:
        timeout = stored.rebalance_timeout
        member = Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout,
            stored.session_timeout if timeout == _NO_TIMEOUT else timeout,
            ((value.protocol or "", stored.subscription),),
        )
        member.assignment = stored.assignment
        group.add(member)
    group.leader_id = value.leader
    if group.members:
        group.move(Move.LOAD_STABLE, now)
    if value.current_state_timestamp != _NO_TIME:
        group.state_since = value.current_state_timestamp
    return group
