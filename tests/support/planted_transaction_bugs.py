"""Bugs of transactions, planted one by one, and the laws of the simulation that each breaks.

One was Kafka's: KAFKA-14402 (a Produce that arrives late begins a transaction that nothing ends; KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.coordinator import transaction_flow
from kcoord_wire.coordinator.core import groups, offsets
from kcoord_wire.coordinator.core.events import AppendMarker, Event, Reply, WriteMarkers
from kcoord_wire.coordinator.core.groups import Committed
from kcoord_wire.coordinator.core.offsets import PendingOffsets
from kcoord_wire.coordinator.log import store
from kcoord_wire.coordinator.partitions.batch_header import Header
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.partitions.producers import Producers
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.coordinator.transaction_flow import TransactionFlow
from kcoord_wire.coordinator.transactions import machine
from kcoord_wire.coordinator.transactions import transaction as transaction_module
from kcoord_wire.coordinator.transactions.machine import TransactionMachine
from kcoord_wire.coordinator.transactions.transaction import PREPARED, Move, State, Transaction
from kcoord_wire.kernel.virtual.scripts import Do, Script
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.transactions.world import TransactionCluster
from tests.support.planting import Patch, Plant, changes_effects, replaces


@changes_effects(TransactionMachine)
def marker_before_the_outcome_is_on_disk(_event: Event, effects: list[Any]) -> list[Any]:
    return [replace(effect, after=0) if isinstance(effect, WriteMarkers) else effect for effect in effects]


@changes_effects(TransactionMachine)
def answers_before_the_write(_event: Event, effects: list[Any]) -> list[Any]:
    return [replace(effect, after=0) if isinstance(effect, Reply) else effect for effect in effects]


@changes_effects(TransactionMachine)
def ends_answer_with_the_old_epoch(_event: Event, effects: list[Any]) -> list[Any]:
    for effect in effects:
        if isinstance(effect, Reply) and isinstance(effect.message, m.EndTxnResponse) and not effect.message.error_code:
            effect.message.producer_epoch -= 1
    return effects


@replaces(Transaction, "fence")
def time_out_keeps_the_epoch(_right: Any, self: Transaction, now: int) -> None:
    """The producer whose transaction was aborted in its absence goes on as if nothing had happened."""
    self.move(Move.ABORT, now)


def kafka_14402(patch: Patch) -> None:
    """A Produce is stored without asking whether its partition is in a transaction: a late one begins another."""
    patch.setattr(Topics, "unverified", lambda *_: (None, []))
    patch.setattr(PartitionLog, "in_transaction", lambda *_: True)


def late_offsets_are_taken(patch: Patch) -> None:
    """A TxnOffsetCommit goes to the group without a word of the transaction coordinator."""
    patch.setattr(TransactionFlow, "commit_offsets", lambda self, request, now: self._groups(request, now))


def no_aborted_index(patch: Patch) -> None:
    patch.setattr(Producers, "aborted_between", lambda *_: [])


@replaces(PartitionLog, "recover")
def aborted_index_is_lost_at_restart(recover: Any, self: PartitionLog, *arguments: Any) -> None:
    recover(self, *arguments)
    self._producers.aborted.clear()


@replaces(PartitionLog, "recover")
def open_transactions_are_lost_at_restart(recover: Any, self: PartitionLog, *arguments: Any) -> None:
    recover(self, *arguments)
    producers = self._producers
    for producer_id, producer in producers._open.items():
        producer.first_offset = -1
        producers._idle[producer_id] = producer
    producers._open.clear()


def stable_offset_is_the_end(patch: Patch) -> None:
    patch.setattr(PartitionLog, "stable_offset", property(lambda self: self.end_offset))


def offsets_before_the_marker(patch: Patch) -> None:
    """An offset counts when it is written, not when its transaction is committed."""
    offset_record = groups.offset_record

    def planted(group: Any, topic: str, partition: int, committed: Committed) -> Any:
        group.offsets.setdefault(topic, {})[partition] = committed
        return offset_record(group, topic, partition, committed)

    patch.setattr(offsets, "offset_record", planted)


@replaces(offsets, "end_transactions")
def offsets_of_the_aborted_count(end: Any, effects: Any, groups: Any, pending: Any, request: Any, message: Any) -> None:
    for marker in message.markers:
        marker.transaction_result = True
    end(effects, groups, pending, request, message)


def pending_offsets_are_lost_at_restart(patch: Patch) -> None:
    patch.setattr(offsets, "load_pending", lambda *_: None)


@replaces(store, "kept_records")
def pending_offsets_are_compacted_away(kept: Any, visible: Any, batch: Any) -> Iterator[Any]:
    return (found for found in kept(visible, batch) if found[1] is None)


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


@replaces(TransactionMachine, "_load")
def decision_is_changed_at_restart(load: Any, self: TransactionMachine, records: Any) -> None:
    """As if a transaction whose outcome was being carried out were aborted by whom loads it."""
    load(self, records)
    for transaction in self.transactions.values():
        if transaction.state is State.PREPARE_COMMIT:
            transaction.state = State.PREPARE_ABORT
            self._write_outcome(transaction)


@replaces(TransactionMachine, "_load")
def markers_are_not_repeated_after_a_restart(load: Any, self: TransactionMachine, records: Any) -> None:
    load(self, records)
    self._effects.effects[:] = [each for each in self._effects.effects if not isinstance(each, WriteMarkers)]


def failed_markers_count_as_written(patch: Patch) -> None:
    patch.setattr(transaction_flow, "_failed", lambda response: [])


@replaces(TransactionMachine, "_load")
def time_outs_end_with_the_process(load: Any, self: TransactionMachine, records: Any) -> None:
    load(self, records)
    self._timers.clear()


@replaces(TransactionFlow, "tick")
def superseded_markers_are_written(_right: Any, self: TransactionFlow, now: int) -> None:
    """What an earlier boot of the coordinator's log has to repeat is repeated beside what the next one writes."""
    while self._again and self._again[0][0] <= now:
        self.write_markers(self._again.pop(0)[1], now)


@replaces(Transaction, "check_producer")
def old_epochs_are_accepted(check: Any, self: Transaction, producer_id: int, producer_epoch: int) -> ErrorCode:
    error = check(self, producer_id, producer_epoch)
    return ErrorCode.NONE if error is ErrorCode.PRODUCER_FENCED else error


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


@replaces(machine, "describe")
def describes_what_was(describe: Any, effects: Any, transactions: Any, *more: Any) -> None:
    """DescribeTransactions shows an outcome that is decided as an open transaction."""
    shown = {name: replace(each, state=_before(each.state)) for name, each in transactions.items()}
    describe(effects, shown, *more)


def _before(state: State) -> State:
    return State.ONGOING if state in PREPARED else state


@replaces(store.Store, "append_marker")
def markers_of_groups_are_not_kept(_right: Any, self: store.Store, marker: AppendMarker, now: int) -> None:
    self._appended += 1


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


@replaces(PartitionLog, "recover")
def restart_forgets_the_last_record(recover: Any, self: PartitionLog, *arguments: Any) -> None:
    recover(self, *arguments)
    self.end_offset = max(self.end_offset - 1, self.start_offset)


@replaces(PartitionLog, "end_transaction")
def fails_where_nothing_is_open(end: Any, self: PartitionLog, producer_id: int, *more: Any) -> Any:
    if not self.has_open_transaction(producer_id):
        raise KeyError(producer_id)
    return end(self, producer_id, *more)


PLANTED: list[tuple[Plant, str]] = [
    (marker_before_the_outcome_is_on_disk, "decided first"),
    (answers_before_the_write, "durable first"),
    (ends_answer_with_the_old_epoch, "answered"),
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
