"""What the log keeps of groups whose target assignment the coordinator computes, where the fields are those of every
kind: the group epoch, the target, and that members are gone. The classes are those of the group's `RecordTypes`.

Laws:

* Writing and reading are inverse: `replay` with the readers returns what the other functions have written.
* A group is there from its first record with a value on, and gone with the tombstone of its epoch.

Source: Kafka's `GroupCoordinatorRecordHelpers.java`, and the ``replay`` methods of `GroupMetadataManager.java`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kcoord_wire.coordinator.consumer_groups.epoch_group import EpochGroup, Target
from kcoord_wire.coordinator.core.events import LogRecord

G = TypeVar("G", bound=EpochGroup[Any])


def epoch_record(group: EpochGroup[Any]) -> LogRecord:
    """Return the record of the group epoch."""
    types = group.types
    return LogRecord(
        types.epoch_key(group_id=group.group_id),
        types.epoch_value(epoch=group.epoch, metadata_hash=group.metadata_hash),
    )


def target_epoch_record(group: EpochGroup[Any]) -> LogRecord:
    """Return the record that the target assignment is complete."""
    types = group.types
    return LogRecord(
        types.target_epoch_key(group_id=group.group_id),
        types.target_epoch_value(assignment_epoch=group.assignment_epoch, assignment_timestamp=group.assigned_at),
    )


def target_record(group: EpochGroup[Any], member_id: str) -> LogRecord:
    """Return the record of a member's target."""
    types = group.types
    topics = [
        types.target_topic(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in group.target[member_id].items()
    ]
    return LogRecord(
        types.target_key(group_id=group.group_id, member_id=member_id), types.target_value(topic_partitions=topics)
    )


def member_tombstones(group: EpochGroup[Any], member_id: str) -> list[LogRecord]:
    """Return what removes a member from the log."""
    types, names = group.types, {"group_id": group.group_id, "member_id": member_id}
    return [LogRecord(key(**names), None) for key in (types.assignment_key, types.target_key, types.member_key)]


def tombstones(group: EpochGroup[Any], *others: Any) -> list[LogRecord]:
    """Return what removes a group with its members from the log.

    :param others: keys of further records, which go before that of the epoch
    """
    types, group_id = group.types, group.group_id
    members = [{"group_id": group_id, "member_id": member_id} for member_id in group.members]
    keys: list[Any] = [
        *(types.assignment_key(**names) for names in members),
        *(types.target_key(**names) for names in members),
        types.target_epoch_key(group_id=group_id),
        *(types.member_key(**names) for names in members),
        *others,
        types.epoch_key(group_id=group_id),
    ]
    return [LogRecord(key, None) for key in keys]


# ---- reading


def replay(
    records: Iterable[LogRecord], make: Callable[[str], G], readers: Mapping[type, Callable[[G, Any, Any], None]]
) -> dict[str, G]:
    """Return the groups of one kind in a log, by id. Records of other types are skipped.

    :param make: makes an empty group with this id
    :param readers: by the class of the key: takes group, key and value
    """
    groups: dict[str, G] = {}
    for key, value in records:
        read = readers.get(type(key))
        if read is None:
            continue
        group = groups.get(key.group_id)
        if group is None:
            if value is None:
                continue
            group = groups[key.group_id] = make(key.group_id)
        read(group, key, value)
        if value is None and isinstance(key, group.types.epoch_key):
            del groups[key.group_id]
    return groups


def read_epoch(group: EpochGroup[Any], key: Any, value: Any) -> None:
    """Take in a record of `epoch_record`."""
    if value is not None:
        group.epoch = value.epoch
        group.metadata_hash = value.metadata_hash


def read_target_epoch(group: EpochGroup[Any], key: Any, value: Any) -> None:
    """Take in a record of `target_epoch_record`."""
    if value is not None:
        group.set_assignment_epoch(value.assignment_epoch, value.assignment_timestamp)


def read_target(group: EpochGroup[Any], key: Any, value: Any) -> None:
    """Take in a record of `target_record`."""
    if value is None:
        group.target.pop(key.member_id, None)
    else:
        group.target[key.member_id] = target_from(value.topic_partitions)


def target_from(entries: Iterable[Any]) -> Target:
    """Return partitions by topic of parts of a record that have an id and partitions."""
    return {entry.topic_id: frozenset(entry.partitions) for entry in entries}
