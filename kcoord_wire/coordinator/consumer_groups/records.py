"""What the log keeps of a group of KIP-848: record types 3, 5 to 8 and 16; type 4 of older brokers is removed. Those
that every kind of group has are in `epoch_records.py`.

Laws:

* Writing and reading are inverse: `replay` returns what the other functions have written.
* A member of which the log has only a part (after compaction) comes back with defaults for the rest.

Source: Kafka's `GroupCoordinatorRecordHelpers.java`, and the ``replay`` methods of `GroupMetadataManager.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.epoch_records import (
    epoch_record,
    read_epoch,
    read_target,
    read_target_epoch,
    replay,
    target_epoch_record,
    target_record,
)
from kcoord_wire.coordinator.consumer_groups.group import (
    ClassicMember,
    ConsumerGroup,
    Held,
    Member,
    MemberState,
    ResolvedRegex,
)
from kcoord_wire.coordinator.core.apis import filled
from kcoord_wire.coordinator.core.events import LogRecord


def member_record(group: ConsumerGroup, member: Member) -> LogRecord:
    """Return the record of what a member has sent of itself (type 5)."""
    classic = None
    if member.classic is not None:
        classic = m.ConsumerGroupMemberMetadataValueClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms,
            supported_protocols=[
                m.ConsumerGroupMemberMetadataValueClassicProtocol(name=name, metadata=metadata)
                for name, metadata in member.classic.protocols
            ],
        )
    return LogRecord(
        m.ConsumerGroupMemberMetadataKey(group_id=group.group_id, member_id=member.member_id),
        filled(
            m.ConsumerGroupMemberMetadataValue,
            member,
            subscribed_topic_names=list(member.topics),
            subscribed_topic_regex=member.regex,
            server_assignor=member.assignor,
            classic_member_metadata=classic,
        ),
    )


def assignment_record(group: ConsumerGroup, member: Member) -> LogRecord:
    """Return the record of what a member holds (type 8)."""
    return LogRecord(
        m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group.group_id, member_id=member.member_id),
        m.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            assigned_partitions=_with_epochs(member.assigned),
            partitions_pending_revocation=_with_epochs(member.revoking),
        ),
    )


def regex_record(group: ConsumerGroup, pattern: str) -> LogRecord:
    """Return the record of a resolved pattern (type 16)."""
    resolved = group.regexes[pattern]
    return LogRecord(
        m.ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern),
        m.ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp
        ),
    )


def regex_tombstone(group: ConsumerGroup, pattern: str) -> LogRecord:
    """Return what removes a resolved pattern from the log."""
    return LogRecord(m.ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern), None)


def all_records(group: ConsumerGroup) -> list[LogRecord]:
    """Return the whole group, for one that was converted from the classic protocol."""
    members = group.members.values()
    return [
        *(member_record(group, member) for member in members),
        epoch_record(group),
        *(target_record(group, member.member_id) for member in members),
        target_epoch_record(group),
        *(assignment_record(group, member) for member in members),
    ]


def _with_epochs(held: Held) -> list[Any]:
    found = []
    for topic_id, partitions in held.items():
        numbers = sorted(partitions)
        found.append(
            m.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(
                topic_id=topic_id, partitions=numbers, assignment_epochs=[partitions[number] for number in numbers]
            )
        )
    return found


# ---- reading


def replay_groups(records: Iterable[LogRecord], now: int) -> dict[str, ConsumerGroup]:
    """Return the groups of KIP-848 in a log, by id. Records of other types are skipped."""
    return replay(records, lambda group_id: ConsumerGroup(group_id, now), _READERS)


def _read_member(group: ConsumerGroup, key: m.ConsumerGroupMemberMetadataKey, value: Any) -> None:
    if value is None:
        group.remove(key.member_id)
        return
    classic = None
    if value.classic_member_metadata is not None:
        stored = value.classic_member_metadata
        offered = tuple((protocol.name, protocol.metadata) for protocol in stored.supported_protocols)
        classic = ClassicMember(stored.session_timeout_ms, offered)
    group.put(
        replace(
            _known(group, key.member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=tuple(sorted(set(value.subscribed_topic_names))),
            regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor or None,
            classic=classic,
        )
    )


def _read_assignment(group: ConsumerGroup, key: m.ConsumerGroupCurrentMemberAssignmentKey, value: Any) -> None:
    if value is None:
        if key.member_id in group.members:
            member = group.members[key.member_id]
            group.put(replace(member, epoch=0, previous_epoch=0, state=MemberState.STABLE, assigned={}, revoking={}))
        return
    known = value.state in MemberState._value2member_map_
    group.put(
        replace(
            _known(group, key.member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=_held_from(value.assigned_partitions, value.member_epoch),
            revoking=_held_from(value.partitions_pending_revocation, value.member_epoch),
        )
    )


def _read_regex(group: ConsumerGroup, key: m.ConsumerGroupRegularExpressionKey, value: Any) -> None:
    if value is None:
        group.regexes.pop(key.regular_expression, None)
    else:
        resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
        group.regexes[key.regular_expression] = resolved


def _known(group: ConsumerGroup, member_id: str) -> Member:
    member = group.members.get(member_id)
    return Member(member_id=member_id) if member is None else member


def _held_from(entries: Iterable[Any], member_epoch: int) -> Held:
    """Return what a member holds; releases before 4.3 do not write since when."""
    found: dict[uuid.UUID, Mapping[int, int]] = {}
    for entry in entries:
        epochs = entry.assignment_epochs or [member_epoch] * len(entry.partitions)
        found[entry.topic_id] = dict(zip(entry.partitions, epochs, strict=False))
    return found


_READERS: Mapping[type, Callable[[ConsumerGroup, Any, Any], None]] = {
    m.ConsumerGroupMetadataKey: read_epoch,
    m.ConsumerGroupMemberMetadataKey: _read_member,
    m.ConsumerGroupTargetAssignmentMetadataKey: read_target_epoch,
    m.ConsumerGroupTargetAssignmentMemberKey: read_target,
    m.ConsumerGroupCurrentMemberAssignmentKey: _read_assignment,
    m.ConsumerGroupRegularExpressionKey: _read_regex,
}
