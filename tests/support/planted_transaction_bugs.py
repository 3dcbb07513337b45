"""Bugs of transactions, planted one by one, and the laws of the simulation that each breaks.

One was Kafka's: KAFKA-14402 (a Produce that arrives late begins a transaction that nothing ends; KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from kcoord_wire.coordinator import transaction_flow
from kcoord_wire.coordinator.core import groups, offsets
from kcoord_wire.coordinator.core.events import AppendMarker, Event, Reply, WriteMarkers
from kcoord_wire.coordinator.core.groups import Committed
from kcoord_wire.coordinator.core.offsets import PendingOffsets
from kcoord_wire.coordinator.log import store
from kcoord_wire.coordinator.partitions.batch_header import Header
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.partitions.producers import OpenTransactions, Producers
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.coordinator.transaction_flow import TransactionFlow
from kcoord_wire.coordinator.transactions import machine
from kcoord_wire.coordinator.transactions import transaction as transaction_module
from kcoord_wire.coordinator.transactions.machine import TransactionMachine
from kcoord_wire.coordinator.transactions.transaction import PREPARED, Move, State, Transaction
from kcoord_wire.kernel.virtual.scripts import Do, Script
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.transactions.world import TransactionCluster

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def marker_before_the_outcome_is_on_disk(patch: Patch) -> None:
    _change_effects(patch, lambda effect: replace(effect, after=0) if isinstance(effect, WriteMarkers) else effect)


def answers_before_the_write(patch: Patch) -> None:
    _change_effects(patch, lambda effect: replace(effect, after=0) if isinstance(effect, Reply) else effect)


def _change_effects(patch: Patch, change: Callable[[Any], Any]) -> None:
    handle = TransactionMachine.handle

    def planted(self: TransactionMachine, event: Event, now: int) -> list[Any]:
        return [change(effect) for effect in handle(self, event, now)]

    patch.setattr(TransactionMachine, "handle", planted)


def time_out_keeps_the_epoch(patch: Patch) -> None:
    """The producer whose transaction was aborted in its absence goes on as if nothing had happened."""

    def planted(self: Transaction, now: int) -> None:
        self.move(Move.ABORT, now)

    patch.setattr(Transaction, "fence", planted)


def kafka_14402(patch: Patch) -> None:
    """A Produce is stored without asking whether its partition is in a transaction: a late one begins another."""
    patch.setattr(Topics, "unverified", lambda *_: (None, []))
    patch.setattr(PartitionLog, "in_transaction", lambda *_: True)


def late_offsets_are_taken(patch: Patch) -> None:
    """A TxnOffsetCommit goes to the group without a word of the transaction coordinator."""
    patch.setattr(TransactionFlow, "commit_offsets", lambda self, request, now: self._groups(request, now))


def no_aborted_index(patch: Patch) -> None:
    patch.setattr(OpenTransactions, "aborted_between", lambda *_: [])


def aborted_index_is_lost_at_restart(patch: Patch) -> None:
    recover = PartitionLog.recover

    def planted(self: PartitionLog, start_offset: int) -> None:
        recover(self, start_offset)
        self._transactions.aborted.clear()

    patch.setattr(PartitionLog, "recover", planted)


def open_transactions_are_lost_at_restart(patch: Patch) -> None:
    recover = PartitionLog.recover

    def planted(self: PartitionLog, start_offset: int) -> None:
        recover(self, start_offset)
        self._transactions._open.clear()

    patch.setattr(PartitionLog, "recover", planted)


def stable_offset_is_the_end(patch: Patch) -> None:
    patch.setattr(PartitionLog, "stable_offset", property(lambda self: self.end_offset))


def offsets_before_the_marker(patch: Patch) -> None:
    """An offset counts when it is written, not when its transaction is committed."""
    offset_record = groups.offset_record

    def planted(group: Any, topic: str, partition: int, committed: Committed) -> Any:
        group.offsets.setdefault(topic, {})[partition] = committed
        return offset_record(group, topic, partition, committed)

    patch.setattr(offsets, "offset_record", planted)


def offsets_of_the_aborted_count(patch: Patch) -> None:
    end = offsets.end_transactions

    def planted(effects: Any, groups: Any, pending: Any, request: Any, message: Any) -> None:
        for marker in message.markers:
            marker.transaction_result = True
        end(effects, groups, pending, request, message)

    patch.setattr(offsets, "end_transactions", planted)


def pending_offsets_are_lost_at_restart(patch: Patch) -> None:
    patch.setattr(offsets, "load_pending", lambda *_: None)


def pending_offsets_are_compacted_away(patch: Patch) -> None:
    kept = store.kept_records

    def planted(visible: Any, batch: Any) -> Iterator[Any]:
        return (found for found in kept(visible, batch) if found[1] is None)

    patch.setattr(store, "kept_records", planted)


def unstable_offsets_are_fetched(patch: Patch) -> None:
    patch.setattr(PendingOffsets, "of_group", lambda *_: set())


def duplicates_are_stored(patch: Patch) -> None:
    patch.setattr(Producers, "find", lambda *_: None)


def decision_is_lost_at_restart(patch: Patch) -> None:
    replay = transaction_module.replay

    def planted(records: Any) -> dict[str, Transaction]:
        found = replay(records)
        for transaction in found.values():
            if transaction.state in PREPARED:
                transaction.state = State.ONGOING
        return found

    patch.setattr(machine, "replay", planted)


def decision_is_changed_at_restart(patch: Patch) -> None:
    """As if a transaction whose outcome was being carried out were aborted by whom loads it."""
    load = TransactionMachine._load

    def planted(self: TransactionMachine, records: Any) -> None:
        load(self, records)
        for transaction in self.transactions.values():
            if transaction.state is State.PREPARE_COMMIT:
                transaction.state = State.PREPARE_ABORT
                self._write_outcome(transaction)

    patch.setattr(TransactionMachine, "_load", planted)


def markers_are_not_repeated_after_a_restart(patch: Patch) -> None:
    load = TransactionMachine._load

    def planted(self: TransactionMachine, records: Any) -> None:
        load(self, records)
        self._effects.effects[:] = [each for each in self._effects.effects if not isinstance(each, WriteMarkers)]

    patch.setattr(TransactionMachine, "_load", planted)


def failed_markers_count_as_written(patch: Patch) -> None:
    patch.setattr(transaction_flow, "_failed", lambda response: [])


def time_outs_end_with_the_process(patch: Patch) -> None:
    load = TransactionMachine._load

    def planted(self: TransactionMachine, records: Any) -> None:
        load(self, records)
        self._timers.clear()

    patch.setattr(TransactionMachine, "_load", planted)


def superseded_markers_are_written(patch: Patch) -> None:
    """What an earlier boot of the coordinator's log has to repeat is repeated beside what the next one writes."""

    def planted(self: TransactionFlow, now: int) -> None:
        while self._again and self._again[0][0] <= now:
            self.write_markers(self._again.pop(0)[1], now)

    patch.setattr(TransactionFlow, "tick", planted)


def old_epochs_are_accepted(patch: Patch) -> None:
    check = Transaction.check_producer

    def planted(self: Transaction, producer_id: int, producer_epoch: int) -> ErrorCode:
        error = check(self, producer_id, producer_epoch)
        return ErrorCode.NONE if error is ErrorCode.PRODUCER_FENCED else error

    patch.setattr(Transaction, "check_producer", planted)


def partitions_keep_no_epochs(patch: Patch) -> None:
    """A partition takes a batch in any epoch while the producer id has a transaction there."""
    find = Producers.find

    def planted(self: Producers, batch: Header) -> int | None:
        return find(self, batch) if batch.producer_epoch >= self.epoch(batch.producer_id) else None

    patch.setattr(Producers, "find", planted)
    patch.setattr(PartitionLog, "in_transaction", lambda self, batch: self.has_open_transaction(batch.producer_id))


def initialises_while_markers_are_written(patch: Patch) -> None:
    """A new producer begins before the transaction of the last one has ended in all partitions."""
    initialise = Transaction.initialise

    def planted(self: Transaction, *arguments: Any) -> ErrorCode:
        if self.state in PREPARED:
            self.complete(arguments[-1])
        return initialise(self, *arguments)

    patch.setattr(Transaction, "initialise", planted)
    patch.setattr(machine, "PREPARED", frozenset())


def describes_what_was(patch: Patch) -> None:
    """DescribeTransactions shows an outcome that is decided as an open transaction."""
    describe = machine.describe

    def planted(effects: Any, transactions: Any, *more: Any) -> None:
        shown = {name: replace(each, state=_before(each.state)) for name, each in transactions.items()}
        describe(effects, shown, *more)

    patch.setattr(machine, "describe", planted)


def _before(state: State) -> State:
    return State.ONGOING if state in PREPARED else state


def markers_of_groups_are_not_kept(patch: Patch) -> None:
    def planted(self: store.Store, marker: AppendMarker, now: int) -> None:
        self._appended += 1

    patch.setattr(store.Store, "append_marker", planted)


def time_outs_are_carried_out_on_demand(patch: Patch) -> None:
    """The markers of a transaction that has timed out are written when its producer comes back, if it does."""
    timed_out, init = TransactionMachine._timed_out, TransactionMachine._initialise

    def planted(self: TransactionMachine, transaction: Transaction) -> None:
        timed_out(self, transaction)
        self._effects.effects[:] = [each for each in self._effects.effects if not isinstance(each, WriteMarkers)]

    def on_demand(self: TransactionMachine, request: Any, message: Any, transaction: Transaction, *more: Any) -> None:
        if transaction.state in PREPARED:
            self._write_markers(transaction)
        init(self, request, message, transaction, *more)

    patch.setattr(TransactionMachine, "_timed_out", planted)
    patch.setattr(TransactionMachine, "_initialise", on_demand)


def restart_forgets_the_last_record(patch: Patch) -> None:
    recover = PartitionLog.recover

    def planted(self: PartitionLog, start_offset: int) -> None:
        recover(self, start_offset)
        self.end_offset = max(self.end_offset - 1, self.start_offset)

    patch.setattr(PartitionLog, "recover", planted)


def fails_where_nothing_is_open(patch: Patch) -> None:
    end = PartitionLog.end_transaction

    def planted(self: PartitionLog, producer_id: int, *more: Any) -> Any:
        if not self.has_open_transaction(producer_id):
            raise KeyError(producer_id)
        return end(self, producer_id, *more)

    patch.setattr(PartitionLog, "end_transaction", planted)


PLANTED: list[tuple[Plant, str]] = [
    (marker_before_the_outcome_is_on_disk, "decided first"),
    (answers_before_the_write, "whole|fenced"),
    (time_out_keeps_the_epoch, "whole"),
    (kafka_14402, "no hanging"),
    (late_offsets_are_taken, "settles"),
    (no_aborted_index, "read committed"),
    (aborted_index_is_lost_at_restart, "read committed"),
    (open_transactions_are_lost_at_restart, "stable offset"),
    (stable_offset_is_the_end, "stable offset"),
    (offsets_before_the_marker, "offsets together"),
    (offsets_of_the_aborted_count, "offsets together|exactly once"),
    (pending_offsets_are_lost_at_restart, "exactly once"),
    (pending_offsets_are_compacted_away, "exactly once"),
    (unstable_offsets_are_fetched, "offsets together"),
    (duplicates_are_stored, "written once"),
    (decision_is_lost_at_restart, "log is complete"),
    (decision_is_changed_at_restart, "decision stands"),
    (markers_are_not_repeated_after_a_restart, "settles"),
    (failed_markers_count_as_written, "no hanging"),
    (time_outs_end_with_the_process, "on time"),
    (superseded_markers_are_written, "decided first"),
    (old_epochs_are_accepted, "fenced|offsets together"),
    (partitions_keep_no_epochs, "fenced"),
    (initialises_while_markers_are_written, "transitions"),
    (describes_what_was, "described"),
    (time_outs_are_carried_out_on_demand, "ends"),
    (restart_forgets_the_last_record, "log stays"),
    (fails_where_nothing_is_open, "never fails"),
    (markers_of_groups_are_not_kept, "exactly once|settles"),
]
"""Each with the laws that it breaks."""


def swaps_while_the_disk_is_full(seed: int) -> Script[TransactionCluster]:
    """Sources change hands while the markers of their transactions wait for the disk, which few random runs do."""
    names = ("t1", "t2", "t3")
    actions = [*(Do(0, "member", name) for name in names), Do(200, "slow_down", 4_000, 30, 0.1, 0.1)]
    actions += [Do(500 + 600 * turn, "fill_disk", "records", 300) for turn in range(5)]
    actions += [Do(300 + 100 * turn, "swap", names[turn % 3], names[(turn + 1) % 3]) for turn in range(30)]
    options = {"ids": dict.fromkeys(names, 1), "outputs": 2, "abort_odds": 0.0, "segment_bytes": 1_000}
    return Script(TransactionCluster, seed, {**options, "timeout_ms": 3_000}, actions)


def disks_fill_and_fail(seed: int) -> Script[TransactionCluster]:
    """The brokers are killed and both disks fail while markers are to be written."""
    options = {"ids": {"t1": 2, "t2": 2, "t3": 2}, "outputs": 2, "brokers": 1, "abort_odds": 0.0, "timeout_ms": 3_000}
    actions = [
        Do(0, "member", "t1"),
        Do(0, "member", "t3"),
        Do(9, "pause", "t3", 200),
        Do(31, "kill_brokers", 200, 0, 1, "records"),
        Do(57, "fill_disk", "logs", 1_000),
        Do(167, "fail_disk", "logs", 10, 3),
        Do(305, "fill_disk", "records", 50),
        Do(314, "move", ("groups", "applications", 0), 0),
    ]
    return Script(TransactionCluster, seed, options, actions)


FOUND: Mapping[str, Callable[[int], Script[TransactionCluster]]] = {
    "unstable_offsets_are_fetched": swaps_while_the_disk_is_full,
    "superseded_markers_are_written": disks_fill_and_fail,
}
"""Scripts for what random ones seldom bring about."""
