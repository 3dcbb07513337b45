"""A share partition with what the log keeps of it: one record, the whole state, at each change.

Kafka writes most changes as ShareUpdate and a snapshot now and then; the log here keeps the last record of each key, so
each is a snapshot, which Kafka reads as well.

Source: kafka/share-coordinator `ShareGroupOffset.java`, `ShareCoordinatorRecordHelpers.java`; KIP-932, KIP-1226.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.events import EffectCollector, LogRecord, cancel
from kcoord_wire.coordinator.share.sessions import Partition
from kcoord_wire.coordinator.share.share_partition import SharePartition, State, StateRange
from kcoord_wire.kernel.timers import Timer
from kcoord_wire.protocol.error_codes import ErrorCode

NO_START: Final = -1
"""The start offset of a share partition that was not fetched yet."""

NUMBERS: Final = {State.AVAILABLE: 0, State.ACKNOWLEDGED: 2, State.ARCHIVED: 4}
"""The numbers of the states that are kept, as records and requests have them."""

STATES: Final = {number: state for state, number in NUMBERS.items()}
"""The states of these numbers."""


@dataclass(slots=True, eq=False)
class Shared:
    """A share partition.

    :ivar group_id: the group
    :ivar partition: topic id and number
    :ivar records: what became of its records
    :ivar is_started: whether it has a start offset
    :ivar is_kept: whether the log has that
    :ivar state_epoch: rises when its state is set from outside
    :ivar snapshot_epoch: number of the last record in the log; -1 for none
    :ivar leader_epoch: that the log has
    :ivar created_at: when its state began, in ms
    :ivar written: number of the last `Append` that concerns it
    :ivar timer: for the locks of its records
    :ivar changes: how often its records were acquired, acknowledged or freed
    """

    group_id: str
    partition: Partition
    records: SharePartition
    created_at: int
    is_started: bool = False
    state_epoch: int = 0
    snapshot_epoch: int = -1
    leader_epoch: int = 0
    written: int = 0
    timer: Timer | None = None
    is_kept: bool = False
    changes: int = 0

    @property
    def start_offset(self) -> int:
        """Where it begins; `NO_START` if the log does not say it yet."""
        return self.records.start_offset if self.is_kept else NO_START

    @property
    def done(self) -> int:
        """Number of records from there on that are done with; -1 likewise."""
        return self.records.done if self.is_kept else NO_START

    def begin(self, start_offset: int) -> None:
        """Forget all records, and begin at an offset; with `NO_START` at the one that the next fetch finds."""
        self.is_started = self.is_kept = start_offset > NO_START
        self.records.reset(max(start_offset, 0))

    def record(self, now: int) -> LogRecord:
        """Return the record of its state."""
        topic_id, index = self.partition
        self.snapshot_epoch += 1
        self.is_kept = self.is_started
        value = m.ShareSnapshotValue(
            snapshot_epoch=self.snapshot_epoch,
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=self.start_offset,
            delivery_complete_count=self.done,
            create_timestamp=self.created_at,
            write_timestamp=now,
            state_batches=[
                m.ShareSnapshotValueStateBatch(
                    first_offset=each.first,
                    last_offset=each.last,
                    delivery_state=NUMBERS[each.state],
                    delivery_count=each.deliveries,
                )
                for each in self.records.snapshot()
            ],
        )
        return LogRecord(m.ShareSnapshotKey(group_id=self.group_id, topic_id=topic_id, partition=index), value)

    @classmethod
    def of(cls, key: m.ShareSnapshotKey, value: m.ShareSnapshotValue) -> Shared:
        """Return the share partition that a record describes."""
        shared = cls(
            key.group_id,
            (key.topic_id, key.partition),
            SharePartition(max(value.start_offset, 0)),
            value.create_timestamp,
            value.start_offset != NO_START,
            value.state_epoch,
            value.snapshot_epoch,
            value.leader_epoch,
            is_kept=value.start_offset != NO_START,
        )
        shared.records.restore(
            max(value.start_offset, 0),
            [
                StateRange(each.first_offset, each.last_offset, STATES[each.delivery_state], each.delivery_count)
                for each in value.state_batches
            ],
        )
        return shared

    def write(self, effects: EffectCollector) -> None:
        """Write its state to the log."""
        self.changes += 1
        effects.append(self, [self.record(effects.now)])


MOST_SHARED: Final = 100_000
"""The share partitions that a coordinator remembers; Kafka has no bound."""


def check_room(partitions: Mapping[tuple[str, Partition], Shared]) -> None:
    """Raise `Refused` (POLICY_VIOLATION) if there may not be another share partition."""
    if len(partitions) >= MOST_SHARED:
        raise Refused(ErrorCode.POLICY_VIOLATION, f"There are {MOST_SHARED:,} share partitions already.")


def drop(partitions: dict[tuple[str, Partition], Shared], effects: EffectCollector, shared: Shared) -> None:
    """Remove a share partition, from the log as well."""
    del partitions[shared.group_id, shared.partition]
    cancel(shared.timer)
    if shared.snapshot_epoch >= 0:
        topic_id, index = shared.partition
        key = m.ShareSnapshotKey(group_id=shared.group_id, topic_id=topic_id, partition=index)
        effects.delete(shared, [LogRecord(key, None)])
