"""What the log keeps of a transactional id, as ``__transaction_state`` has it.

Laws:

* Writing and reading are inverse, but for the last epoch, which the log does not have: a producer that repeats its
  InitProducerId after a restart is fenced, as by Kafka.

Source: Kafka's `TransactionLog.java`; KIP-98, KIP-890.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.transactions.model import NO_PRODUCER, State, Transaction

_STATES: Final = tuple(State)  # in the order of the numbers that TransactionStatus has


def transaction_record(transaction: Transaction) -> LogRecord:
    """Return the record of the state of a transactional id."""
    topics: dict[str, list[int]] = {}
    for topic, partition in transaction.partitions:
        topics.setdefault(topic, []).append(partition)
    next_id = transaction.next_producer_id
    value = m.TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=next_id,
        producer_epoch=transaction.producer_epoch,
        next_producer_epoch=NO_PRODUCER if next_id == NO_PRODUCER else 0,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=_STATES.index(transaction.state),
        transaction_partitions=None
        if transaction.state is State.EMPTY
        else [
            m.TransactionLogValuePartitionsSchema(topic=topic, partition_ids=partitions)
            for topic, partitions in topics.items()
        ],
        transaction_last_update_timestamp_ms=transaction.updated_at,
        transaction_start_timestamp_ms=transaction.started_at,
        client_transaction_version=transaction.version,
    )
    return LogRecord(m.TransactionLogKey(transactional_id=transaction.transactional_id), value)


def tombstone(transactional_id: str) -> LogRecord:
    """Return what removes a transactional id from the log."""
    return LogRecord(m.TransactionLogKey(transactional_id=transactional_id), None)


def replay(records: Sequence[LogRecord]) -> dict[str, Transaction]:
    """Return the transactional ids in a log."""
    found: dict[str, Transaction] = {}
    for key, value in records:
        if value is None:
            found.pop(key.transactional_id, None)
        else:
            found[key.transactional_id] = _transaction_from(key.transactional_id, value)
    return found


def _transaction_from(transactional_id: str, value: m.TransactionLogValue) -> Transaction:
    topics = value.transaction_partitions or ()
    return Transaction(
        transactional_id,
        value.producer_id,
        value.transaction_timeout_ms,
        value.transaction_last_update_timestamp_ms,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        state=_STATES[value.transaction_status],
        partitions=dict.fromkeys((topic.topic, partition) for topic in topics for partition in topic.partition_ids),
        started_at=value.transaction_start_timestamp_ms,
        version=value.client_transaction_version,
    )
