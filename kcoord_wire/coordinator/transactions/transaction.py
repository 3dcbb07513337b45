"""A transactional id: its producer, the state of its transaction, and the moves it may make.

    Empty            the producer has initialised, and written nothing yet
    Ongoing          partitions were added to the transaction
    PrepareCommit    the outcome is in the log; markers are being written to the partitions
    PrepareAbort     likewise
    CompleteCommit   all markers are written; the next transaction may begin
    CompleteAbort    likewise
    Dead             the transactional id has expired

Laws:

* `TRANSITIONS` holds every legal move; `Transaction.move` rejects all others.
* Between Prepare and Complete nothing but Complete can happen: the outcome, once in the log, stands.
* An epoch of a producer id is never given out twice, and the greatest (32,767) never to a client: it is kept to fence
  the last one. After it comes a new producer id with epoch 0.
* Writing to the log and reading are inverse, but for the last epoch, which the log does not have: a producer that
  repeats its InitProducerId after a restart is fenced, as by Kafka.

Source: KIP-98, KIP-360, KIP-890; Kafka's `TransactionMetadata.java`, `TransactionState.java`, `TransactionLog.java`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import filled
from kcoord_wire.coordinator.core.events import LogRecord, target_of
from kcoord_wire.kernel.timers import Timer
from kcoord_wire.protocol.error_codes import ErrorCode

NO_PRODUCER: Final = -1
"""The producer id, or the epoch, where there is none."""

NO_TIME: Final = -1
"""The start of a transaction where there is none."""

BUMPED_AT_END: Final = 2
"""The transaction version in which the end of each transaction raises the epoch (KIP-890); 0 is the one before."""

_GREATEST_EPOCH: Final = (1 << 15) - 1

Partition = tuple[str, int]
"""Topic and number."""


class State(enum.StrEnum):
    """State of a transactional id, by the name that DescribeTransactions gives it."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


class Move(enum.StrEnum):
    """What can happen to a transactional id."""

    INITIALISE = "initialise a producer"
    ADD = "add partitions"
    COMMIT = "commit"
    ABORT = "abort"
    COMPLETE = "complete"
    EXPIRE = "expire"


TRANSITIONS: Final[Mapping[tuple[State, Move], State]] = MappingProxyType(
    {
        (State.EMPTY, Move.INITIALISE): State.EMPTY,
        (State.COMPLETE_COMMIT, Move.INITIALISE): State.EMPTY,
        (State.COMPLETE_ABORT, Move.INITIALISE): State.EMPTY,
        (State.EMPTY, Move.ADD): State.ONGOING,
        (State.ONGOING, Move.ADD): State.ONGOING,
        (State.COMPLETE_COMMIT, Move.ADD): State.ONGOING,
        (State.COMPLETE_ABORT, Move.ADD): State.ONGOING,
        (State.ONGOING, Move.COMMIT): State.PREPARE_COMMIT,
        (State.ONGOING, Move.ABORT): State.PREPARE_ABORT,
        # With version 2 the producer does not know whether a partition was added, so it may abort a transaction that
        # has none (KIP-890).
        (State.EMPTY, Move.ABORT): State.PREPARE_ABORT,
        (State.COMPLETE_COMMIT, Move.ABORT): State.PREPARE_ABORT,
        (State.COMPLETE_ABORT, Move.ABORT): State.PREPARE_ABORT,
        (State.PREPARE_COMMIT, Move.COMPLETE): State.COMPLETE_COMMIT,
        (State.PREPARE_ABORT, Move.COMPLETE): State.COMPLETE_ABORT,
        (State.EMPTY, Move.EXPIRE): State.DEAD,
        (State.COMPLETE_COMMIT, Move.EXPIRE): State.DEAD,
        (State.COMPLETE_ABORT, Move.EXPIRE): State.DEAD,
    }
)
"""Every legal move, and where it leads."""

PREPARED: Final = frozenset((State.PREPARE_COMMIT, State.PREPARE_ABORT))
"""The states in which the outcome is decided and the markers are not all written."""

ENDED: Final = frozenset((State.COMPLETE_COMMIT, State.COMPLETE_ABORT))
"""The states after a transaction."""


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, in the order in which they come."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


def is_exhausted(epoch: int) -> bool:
    """Return whether no further epoch of the producer id may be given to a client."""
    return epoch >= _GREATEST_EPOCH - 1


@dataclass(slots=True, eq=False)
class Transaction:
    """A transactional id. All times are in ms since 1970.

    :ivar producer_id: of its producer
    :ivar producer_epoch: the current one; `NO_PRODUCER` until the first is given out
    :ivar last_producer_epoch: the one before it, where the same producer raised it; a repeated request names it
    :ivar previous_producer_id: the id before `producer_id`
    :ivar next_producer_id: the id that follows once the transaction has ended; `NO_PRODUCER` for the same
    :ivar timeout_ms: how long a transaction may be open
    :ivar partitions: of the transaction, in the order in which they were added
    :ivar started_at: when the transaction began; `NO_TIME` if there is none
    :ivar updated_at: of the last change
    :ivar version: the transaction version of the producer that ended the last transaction
    :ivar written: number of the last `Append` that concerns it
    :ivar timer: aborts the transaction
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    updated_at: int
    producer_epoch: int = NO_PRODUCER
    last_producer_epoch: int = NO_PRODUCER
    previous_producer_id: int = NO_PRODUCER
    next_producer_id: int = NO_PRODUCER
    state: State = State.EMPTY
    partitions: dict[Partition, None] = field(default_factory=dict)
    started_at: int = NO_TIME
    version: int = 0
    written: int = 0
    timer: Timer | None = None

    def move(self, move: Move, now: int) -> None:
        """Change the state.

        :raises IllegalMoveError: `TRANSITIONS` has no such move
        """
        self.state = target_of(TRANSITIONS, self.state, move, f"transactional id {self.transactional_id!r}")
        self.updated_at = now

    # ---- the producer

    def initialise(
        self, expected: tuple[int, int] | None, new_id: Callable[[], int], timeout_ms: int, now: int
    ) -> ErrorCode:
        """Give the next epoch to a producer, or a new id with epoch 0 where the epochs are used up.

        :param expected: id and epoch that the producer had; None for a producer that has just started
        :return: PRODUCER_FENCED (90) where another one has been initialised since, else NONE
        """
        epoch = None if expected is None else expected[1]
        current, last = self.producer_epoch, self.last_producer_epoch
        if epoch is not None and current != NO_PRODUCER and epoch not in (current, last):
            return ErrorCode.PRODUCER_FENCED
        if current == _GREATEST_EPOCH or (is_exhausted(current) and epoch in (None, current)):
            self.previous_producer_id, self.producer_id = self.producer_id, new_id()
            self.producer_epoch, self.last_producer_epoch = 0, NO_PRODUCER if epoch is None else current
        elif epoch is None or epoch == current or current == NO_PRODUCER:  # else it is repeated: the answer was lost
            self.producer_epoch, self.last_producer_epoch = current + 1, NO_PRODUCER if epoch is None else current
        self.move(Move.INITIALISE, now)
        self.timeout_ms = timeout_ms
        self.started_at = NO_TIME
        return ErrorCode.NONE

    def accepts_producer(self, expected: tuple[int, int]) -> bool:
        """Return whether a producer that had this id and epoch may initialise again (KIP-360): it has the current id,
        or used up the epochs of the previous one and did not get the answer."""
        if self.producer_epoch == NO_PRODUCER or expected[0] == self.producer_id:
            return True
        return expected[0] == self.previous_producer_id and is_exhausted(expected[1])

    def check_producer(self, producer_id: int, producer_epoch: int) -> ErrorCode:
        """Return what is wrong with a request of this producer: NONE, INVALID_PRODUCER_ID_MAPPING (49),
        PRODUCER_FENCED (90)."""
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if producer_epoch == self.producer_epoch else ErrorCode.PRODUCER_FENCED

    def raised_epoch(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the end of the last transaction has raised this producer's epoch, so that its EndTxn is a
        repeated one, if it is of version 2."""
        if self.version < BUMPED_AT_END or self.state not in ENDED:
            return False
        if producer_id == self.producer_id and producer_epoch + 1 == self.producer_epoch:
            return True
        was_last = producer_id == self.previous_producer_id and producer_epoch == _GREATEST_EPOCH - 1
        return was_last and self.producer_epoch == 0

    # ---- the transaction

    def add(self, partitions: Iterable[Partition], version: int, now: int) -> None:
        """Add partitions; the first ones begin the transaction, of this transaction version."""
        if self.state is not State.ONGOING:
            self.started_at = now
        self.move(Move.ADD, now)
        self.version = version
        self.partitions.update(dict.fromkeys(partitions))

    def prepare(self, move: Move, version: int, new_id: Callable[[], int], now: int) -> None:
        """Decide the outcome. With version 2 the epoch rises, and the next producer id is a new one if it cannot rise
        again."""
        if self.state is not State.ONGOING:
            self.started_at = now
        self.move(move, now)
        self.version = version
        if version >= BUMPED_AT_END:
            self.next_producer_id = new_id() if is_exhausted(self.producer_epoch) else NO_PRODUCER
            self.last_producer_epoch = self.producer_epoch
            self.producer_epoch += 1

    def fence(self, now: int) -> None:
        """Abort the transaction of a producer that is replaced or too slow, which may not write any more."""
        self.move(Move.ABORT, now)
        self.version = BUMPED_AT_END
        self.last_producer_epoch = self.producer_epoch
        self.producer_epoch += 1

    def complete(self, now: int) -> None:
        """Note that all markers are written."""
        self.move(Move.COMPLETE, now)
        self.partitions = {}
        if self.next_producer_id != NO_PRODUCER:
            self.previous_producer_id, self.producer_id = self.producer_id, self.next_producer_id
            self.producer_epoch, self.next_producer_id = 0, NO_PRODUCER

    @property
    def next_producer(self) -> tuple[int, int]:
        """Id and epoch of the producer in its next transaction."""
        if self.next_producer_id != NO_PRODUCER:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch


_STATES: Final = tuple(State)  # in the order of the numbers that TransactionStatus has


def transaction_record(transaction: Transaction) -> LogRecord:
    """Return the record of the state of a transactional id."""
    next_id = transaction.next_producer_id
    value = filled(
        m.TransactionLogValue,
        transaction,
        next_producer_epoch=NO_PRODUCER if next_id == NO_PRODUCER else 0,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=_STATES.index(transaction.state),
        transaction_partitions=None
        if transaction.state is State.EMPTY
        else [
            m.TransactionLogValuePartitionsSchema(topic=topic, partition_ids=partitions)
            for topic, partitions in by_topic(transaction.partitions).items()
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
