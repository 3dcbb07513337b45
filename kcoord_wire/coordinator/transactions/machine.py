"""The transaction coordinator as a pure object: producers, their transactions, and what ends them.

    machine = TransactionMachine(topics, offsets_partition, config)
    machine.handle(Load([]), now)
    effects = machine.handle(Request(1, InitProducerIdRequest(...), version=5), now)

Theory of operation (KIP-98). A producer with a transactional id is given a producer id and an epoch. It adds the
partitions that it writes to (or their broker does so, KIP-890), and ends the transaction. The outcome is written to the
log; then the effect `WriteMarkers` has the host write a marker to each partition, by which readers know what counts.
`MarkersWritten` completes the transaction.

Laws (besides those of `core.events`):

* `WriteMarkers` follows the record of the outcome: no marker is written before that is on disk. What is loaded between
  outcome and completion has its markers written again.
* Who initialises a transactional id raises its epoch, and aborts the transaction that is open: requests with the old
  epoch are refused from then on (PRODUCER_FENCED, before that error existed INVALID_PRODUCER_EPOCH).
* What gets another coordinator is dropped by `Resign`, and known again from the log by `Load`; requests for it are
  refused meanwhile (COORDINATOR_LOAD_IN_PROGRESS), those of brokers before a write, too.
* There are `MOST_IDS` transactional ids at most; further ones are refused (POLICY_VIOLATION) until some have expired
  (``transactional.id.expiration.ms``).
* While markers are written requests are refused with CONCURRENT_TRANSACTIONS, whatever id and epoch they name, for the
  producer may have its next ones already; EndTxn of clients before KIP-890 and questions of brokers check them first.
* A transaction that is open for longer than its timeout is aborted in the same way, to the millisecond; Kafka looks
  every 10 s.

Source: KIP-98, KIP-360, KIP-447, KIP-588, KIP-664, KIP-890, KIP-994, KIP-1152; Kafka's `TransactionCoordinator.scala`,
`TransactionStateManager.scala`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import apis, events
from kcoord_wire.coordinator.core.apis import filled
from kcoord_wire.coordinator.core.brokers import OFFSETS_TOPIC
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import EffectCollector, LoggedMachine, Request
from kcoord_wire.coordinator.core.groups import TopicNames
from kcoord_wire.coordinator.core.regexes import InvalidRegexError, compile_regex
from kcoord_wire.coordinator.transactions.transaction import (
    BUMPED_AT_END,
    ENDED,
    NO_PRODUCER,
    PREPARED,
    Move,
    Partition,
    State,
    Transaction,
    by_topic,
    replay,
    tombstone,
    transaction_record,
)
from kcoord_wire.protocol.error_codes import ErrorCode

COORDINATOR_EPOCH: Final = 0
MOST_IDS: Final = 100_000
"""The transactional ids that a coordinator remembers, 50 MB; Kafka has no bound."""
EXPIRY_CHECK_MS: Final = 3_600_000  # transaction.remove.expired.transaction.cleanup.interval.ms


class TransactionMachine(LoggedMachine):
    """All transactional ids of one coordinator. Until the first `Load` it answers COORDINATOR_LOAD_IN_PROGRESS (14),
    except to an InitProducerId without a transactional id.

    :param topics: the topics that exist; others cannot be added
    :param offsets_partition: returns the partition of `OFFSETS_TOPIC` that a group belongs to
    :param producer_id: returns an id that no producer has or had, given the time
    :param config: Kafka's defaults if None
    :param partition_of: returns the partition of ``__transaction_state`` that a transactional id belongs to
    :ivar transactions: by transactional id
    :ivar begun: number of transactions that have begun since the start
    :ivar ended: those whose outcome was decided, by outcome: committed, aborted, fenced, timed out
    """

    def __init__(
        self,
        topics: TopicNames,
        offsets_partition: Callable[[str], int],
        producer_id: Callable[[int], int],
        config: GroupConfig | None = None,
        partition_of: Callable[[str], int] = lambda transactional_id: 0,
    ) -> None:
        super().__init__(config)
        self.transactions: dict[str, Transaction] = {}
        self.begun = 0
        self.ended: Counter[str] = Counter()
        self._partition_of = partition_of
        self._loading: frozenset[int] = frozenset()  # partitions of ``__transaction_state``
        self._topics = topics
        self._offsets_partition = offsets_partition
        self._producer_id = producer_id
        self._handlers |= {
            m.InitProducerIdRequest: self._init_producer_id,
            m.AddPartitionsToTxnRequest: self._add_partitions,
            m.AddOffsetsToTxnRequest: self._add_offsets,
            m.EndTxnRequest: self._end,
            m.DescribeTransactionsRequest: partial(describe, self._effects, self.transactions),
            m.ListTransactionsRequest: partial(list_transactions, self._effects, self.transactions),
        }

    def _take_in(self, event: events.Event) -> None:
        if isinstance(event, events.MarkersWritten):
            self._complete(event)
        elif isinstance(event, events.Load):
            self._load(event)
        elif isinstance(event, events.Resign) and event.partitions is not None:
            self._loading |= event.partitions
            self._drop(event.partitions)
        else:
            self._unavailable = ErrorCode.NOT_COORDINATOR
            self.transactions.clear()
            self._timers.clear()

    def _refuses(self, message: Any) -> ErrorCode | None:
        """See `LoggedMachine`. A producer without a transactional id is not in the log."""
        if isinstance(message, m.InitProducerIdRequest) and message.transactional_id is None:
            return None
        if self._unavailable is None and self._loading:
            named = _named(message)
            if named is None or any(self._partition_of(name) in self._loading for name in named):
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self._unavailable

    def _refuse(self, request: events.Request, error: ErrorCode, after: int = 0) -> None:
        super()._refuse(request, _for_version(error, type(request.message), request.version), after)

    # ---- InitProducerId

    def _init_producer_id(self, request: events.Request, message: m.InitProducerIdRequest) -> None:
        expected = (message.producer_id, message.producer_epoch)
        if (NO_PRODUCER in expected) != (expected == (NO_PRODUCER, NO_PRODUCER)) or message.transactional_id == "":
            return self._refuse(request, ErrorCode.INVALID_REQUEST)
        if message.transactional_id is None:
            answer = m.InitProducerIdResponse(producer_id=self._new_producer_id(), producer_epoch=0)
            return self._effects.reply(request, answer)
        if not 0 < message.transaction_timeout_ms <= self.config.transaction_max_timeout_ms:
            return self._refuse(request, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        transaction = self.transactions.get(message.transactional_id)
        if transaction is None:
            if len(self.transactions) >= MOST_IDS:
                return self._refuse(request, ErrorCode.POLICY_VIOLATION)
            transaction = Transaction(
                message.transactional_id, self._new_producer_id(), message.transaction_timeout_ms, self._effects.now
            )
            self.transactions[message.transactional_id] = transaction
        return self._initialise(
            request, message, transaction, None if expected == (NO_PRODUCER, NO_PRODUCER) else expected
        )

    def _initialise(
        self,
        request: events.Request,
        message: m.InitProducerIdRequest,
        transaction: Transaction,
        expected: tuple[int, int] | None,
    ) -> None:
        if transaction.state in PREPARED:
            return self._refuse(request, ErrorCode.CONCURRENT_TRANSACTIONS, transaction.written)
        if expected is not None and not transaction.accepts_producer(expected):
            return self._refuse(request, ErrorCode.PRODUCER_FENCED, transaction.written)
        if transaction.state is State.ONGOING:  # the client repeats its request until the abort is complete
            self._fence(transaction, "fenced")
            return self._refuse(request, ErrorCode.CONCURRENT_TRANSACTIONS, transaction.written)
        error = transaction.initialise(
            expected, self._new_producer_id, message.transaction_timeout_ms, self._effects.now
        )
        if error:
            return self._refuse(request, error, transaction.written)
        self._write(transaction)
        return self._effects.reply(request, filled(m.InitProducerIdResponse, transaction), transaction.written)

    def _new_producer_id(self) -> int:
        return self._producer_id(self._effects.now)

    # ---- AddPartitionsToTxn, AddOffsetsToTxn

    def _add_partitions(self, request: events.Request, message: m.AddPartitionsToTxnRequest) -> None:
        response = m.AddPartitionsToTxnResponse()
        after = 0
        if request.version < apis.BATCH_ADD_FROM:
            asked = m.AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(
                transactional_id=message.v3_and_below_transactional_id,
                producer_id=message.v3_and_below_producer_id,
                producer_epoch=message.v3_and_below_producer_epoch,
                topics=message.v3_and_below_topics,
            )
            response.results_by_topic_v3_and_below, after = self._add_one(asked, request.version)
        else:
            for asked in message.transactions:
                results, written = self._add_one(asked, request.version)
                response.results_by_transaction.append(
                    m.AddPartitionsToTxnResponseAddPartitionsToTxnResult(
                        transactional_id=asked.transactional_id, topic_results=results
                    )
                )
                after = max(after, written)
        self._effects.reply(request, response, after)

    def _add_one(
        self, asked: m.AddPartitionsToTxnRequestAddPartitionsToTxnTransaction, version: int
    ) -> tuple[list[m.AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult], int]:
        """Return the results by topic, and the `Append` that must be on disk before they may be sent."""
        partitions = [(topic.name, index) for topic in asked.topics for index in topic.partitions]
        transaction = self.transactions.get(asked.transactional_id)
        if asked.verify_only:
            errors = self._verify(transaction, asked, partitions)
        else:
            errors = self._unknown_partitions(partitions)
            if not errors:
                error = self._add(transaction, asked, partitions, version)
                errors = dict.fromkeys(partitions, _for_version(error, m.AddPartitionsToTxnRequest, version))
        results = [
            m.AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    m.AddPartitionsToTxnResponseAddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=errors[topic.name, index]
                    )
                    for index in topic.partitions
                ],
            )
            for topic in asked.topics
        ]
        return results, self._effects.written(transaction)

    def _unknown_partitions(self, partitions: Sequence[Partition]) -> Mapping[Partition, ErrorCode]:
        """Return an error for each partition if one of them does not exist, else nothing."""
        there = {name: self._topics.partitions(name) or 0 for name, _ in partitions}
        unknown = {(name, index) for name, index in partitions if not 0 <= index < there[name]}
        if not unknown:
            return {}
        return {
            asked: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if asked in unknown else ErrorCode.OPERATION_NOT_ATTEMPTED
            for asked in partitions
        }

    def _verify(
        self,
        transaction: Transaction | None,
        asked: m.AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
        partitions: Sequence[Partition],
    ) -> Mapping[Partition, ErrorCode]:
        """Return for each partition whether the producer may write to it (KIP-890)."""
        error = self._wrong_producer(transaction, asked.transactional_id, asked.producer_id, asked.producer_epoch)
        if error or transaction is None:
            return dict.fromkeys(partitions, error)
        return {
            each: ErrorCode.NONE if each in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for each in partitions
        }

    def _wrong_producer(
        self, transaction: Transaction | None, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> ErrorCode:
        """Return why the producer may not add to its transaction; NONE if it may."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if error := transaction.check_producer(producer_id, producer_epoch):
            return error
        return ErrorCode.CONCURRENT_TRANSACTIONS if transaction.state in PREPARED else ErrorCode.NONE

    def _add(
        self,
        transaction: Transaction | None,
        asked: m.AddPartitionsToTxnRequestAddPartitionsToTxnTransaction | m.AddOffsetsToTxnRequest,
        partitions: Sequence[Partition],
        version: int,
    ) -> ErrorCode:
        if transaction is not None and transaction.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        error = self._wrong_producer(transaction, asked.transactional_id, asked.producer_id, asked.producer_epoch)
        if error or transaction is None:
            return error
        if transaction.state is State.ONGOING and all(each in transaction.partitions for each in partitions):
            return ErrorCode.NONE
        begins = transaction.state is not State.ONGOING
        transaction.add(partitions, BUMPED_AT_END if version >= apis.BATCH_ADD_FROM else 0, self._effects.now)
        if begins:
            self.begun += 1
            self._abort_later(transaction)
        self._write(transaction)
        return ErrorCode.NONE

    def _add_offsets(self, request: events.Request, message: m.AddOffsetsToTxnRequest) -> None:
        transaction = self.transactions.get(message.transactional_id)
        partition = (OFFSETS_TOPIC, self._offsets_partition(message.group_id))
        error = self._add(transaction, message, [partition], 0)
        return self._refuse(request, error, self._effects.written(transaction))

    # ---- the end of a transaction

    def _end(self, request: events.Request, message: m.EndTxnRequest) -> None:
        transaction = self.transactions.get(message.transactional_id)
        if not message.transactional_id:
            return self._refuse(request, ErrorCode.INVALID_REQUEST)
        if transaction is None:
            return self._refuse(request, ErrorCode.INVALID_PRODUCER_ID_MAPPING, self._effects.deleted)
        version = BUMPED_AT_END if request.version >= apis.BUMPED_FROM else 0
        if version == BUMPED_AT_END and transaction.state in PREPARED:
            return self._refuse(request, ErrorCode.CONCURRENT_TRANSACTIONS, transaction.written)
        repeated = version == BUMPED_AT_END and transaction.raised_epoch(message.producer_id, message.producer_epoch)
        error = ErrorCode.NONE
        if not repeated:
            error = transaction.check_producer(message.producer_id, message.producer_epoch)
        if not error:
            move = Move.COMMIT if message.committed else Move.ABORT
            decides, error = _may_end(transaction, move, version, repeated)
            if decides:
                if transaction.state is State.ONGOING:
                    self.ended["committed" if move is Move.COMMIT else "aborted"] += 1
                transaction.prepare(move, version, self._new_producer_id, self._effects.now)
                self._write_outcome(transaction)
        if error:
            return self._refuse(request, error, transaction.written)
        producer_id, epoch = transaction.next_producer
        answer = m.EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)
        return self._effects.reply(request, answer, transaction.written)

    def _fence(self, transaction: Transaction, why: str) -> None:
        self.ended[why] += 1
        transaction.fence(self._effects.now)
        self._write_outcome(transaction)

    def _timed_out(self, transaction: Transaction) -> None:
        transaction.timer = None
        self._fence(transaction, "timed out")

    def _abort_later(self, transaction: Transaction) -> None:
        until = transaction.started_at + transaction.timeout_ms
        transaction.timer = self._timers.start(until, partial(self._timed_out, transaction))

    def _write_outcome(self, transaction: Transaction) -> None:
        events.cancel(transaction.timer)
        transaction.timer = None
        self._write(transaction)
        self._write_markers(transaction)

    def _write_markers(self, transaction: Transaction) -> None:
        marker = filled(
            m.WriteTxnMarkersRequestWritableTxnMarker,
            transaction,
            transaction_result=transaction.state is State.PREPARE_COMMIT,
            topics=[
                m.WriteTxnMarkersRequestWritableTxnMarkerTopic(name=name, partition_indexes=partitions)
                for name, partitions in by_topic(transaction.partitions).items()
            ],
            coordinator_epoch=COORDINATOR_EPOCH,
            transaction_version=transaction.version,
        )
        self._effects.effects.append(events.WriteMarkers(transaction.transactional_id, marker, transaction.written))

    def _complete(self, event: events.MarkersWritten) -> None:
        transaction = self.transactions.get(event.transactional_id)
        if transaction is None or transaction.state not in PREPARED:
            return  # the log has been read again since
        if (transaction.producer_id, transaction.producer_epoch) == (event.producer_id, event.producer_epoch):
            transaction.complete(self._effects.now)
            self._write(transaction)

    # ---- the whole coordinator

    def _write(self, transaction: Transaction) -> None:
        self._effects.append(transaction, [transaction_record(transaction)])

    def _load(self, event: events.Load) -> None:
        if event.partitions is None:
            self._timers.clear()
            self.transactions.clear()
            self._unavailable = None
            self._loading = frozenset()
            self._expire_later()
        else:
            self._loading -= event.partitions
        read = replay(event.records)
        self.transactions.update(read)
        for transaction in read.values():
            if transaction.state in PREPARED:
                self._write_markers(transaction)
            elif transaction.state is State.ONGOING:
                self._abort_later(transaction)

    def _drop(self, partitions: frozenset[int]) -> None:
        """Forget what has another coordinator from now on."""
        for name in [name for name in self.transactions if self._partition_of(name) in partitions]:
            events.cancel(self.transactions.pop(name).timer)

    def _expire_later(self) -> None:
        self._timers.start(self._effects.now + EXPIRY_CHECK_MS, self._expire)

    def _expire(self) -> None:
        """Remove transactional ids that have not been used for too long."""
        unused_since = self._effects.now - self.config.transactional_id_expiration_ms
        for transaction in list(self.transactions.values()):
            if transaction.state in ENDED | {State.EMPTY} and transaction.updated_at <= unused_since:
                transaction.move(Move.EXPIRE, self._effects.now)
                del self.transactions[transaction.transactional_id]
                self._effects.delete(transaction, [tombstone(transaction.transactional_id)])
        self._expire_later()


def _named(message: Any) -> Iterable[str] | None:
    """Return the transactional ids that a request names; None if it is about all."""
    if isinstance(message, m.ListTransactionsRequest):
        return None
    if isinstance(message, m.DescribeTransactionsRequest):
        return message.transactional_ids
    if isinstance(message, m.AddPartitionsToTxnRequest):
        names = [asked.transactional_id for asked in message.transactions]
        return names or [message.v3_and_below_transactional_id]
    return [message.transactional_id]


def _for_version(error: ErrorCode, request: type, version: int) -> ErrorCode:
    """Return the error that a version of a request has."""
    if error is ErrorCode.PRODUCER_FENCED and version < apis.PRODUCER_FENCED_FROM[request]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _may_end(transaction: Transaction, move: Move, version: int, repeated: bool) -> tuple[bool, ErrorCode]:
    """Return whether an EndTxn decides the outcome, and else its error; NONE if it was answered before.

    :param move: COMMIT or ABORT
    :param version: the transaction version of the client
    :param repeated: see `Transaction.raised_epoch`
    """
    state = transaction.state
    if state is State.ONGOING:
        return True, ErrorCode.NONE
    if state in PREPARED:
        return False, ErrorCode.CONCURRENT_TRANSACTIONS
    if state is _OUTCOME[move] and (repeated or transaction.version < BUMPED_AT_END):
        return False, ErrorCode.NONE
    if move is Move.ABORT and version >= BUMPED_AT_END and not repeated:
        return True, ErrorCode.NONE
    return False, ErrorCode.INVALID_TXN_STATE


_OUTCOME: Final = {
    Move.COMMIT: State.COMPLETE_COMMIT,
    Move.ABORT: State.COMPLETE_ABORT,
}


_MOST_WORK: Final = 64 << 20  # characters of a pattern times those of all ids: half a second of the slowest pattern


def describe(
    effects: EffectCollector,
    transactions: Mapping[str, Transaction],
    request: Request,
    message: m.DescribeTransactionsRequest,
) -> None:
    """Answer DescribeTransactions. An id that is named twice is described once: otherwise a short request could ask
    for an answer larger than memory."""
    states = []
    after = 0
    for name in dict.fromkeys(message.transactional_ids):
        transaction = transactions.get(name)
        after = max(after, effects.written(transaction))
        if transaction is None:
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name else ErrorCode.INVALID_REQUEST
            states.append(m.DescribeTransactionsResponseTransactionState(error_code=error, transactional_id=name))
        else:
            states.append(_described(transaction))
    effects.reply(request, m.DescribeTransactionsResponse(transaction_states=states), after)


def _described(transaction: Transaction) -> m.DescribeTransactionsResponseTransactionState:
    return filled(
        m.DescribeTransactionsResponseTransactionState,
        transaction,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_at,
        topics=[
            m.DescribeTransactionsResponseTopicData(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(transaction.partitions).items()
        ],
    )


def list_transactions(
    effects: EffectCollector,
    transactions: Mapping[str, Transaction],
    request: Request,
    message: m.ListTransactionsRequest,
) -> None:
    """Answer ListTransactions; POLICY_VIOLATION if the pattern would take longer than `_MOST_WORK`.

    A duration counts from the beginning of the last transaction, also if that has ended; a producer without one is
    listed as of the longest, as by Kafka. A pattern is of RE2 and for whole ids.
    """
    matched = _matching(message.transactional_id_pattern or "", transactions)
    if isinstance(matched, ErrorCode):
        return effects.reply(request, m.ListTransactionsResponse(error_code=matched))
    names = frozenset(State)
    states = {name for name in message.state_filters if name in names}
    unknown = [name for name in dict.fromkeys(message.state_filters) if name not in names]
    ids = set(message.producer_id_filters)
    shortest = message.duration_filter
    listed = [
        filled(m.ListTransactionsResponseTransactionState, transaction, transaction_state=transaction.state.value)
        for transaction in matched
        if (not message.state_filters or transaction.state in states)
        and (not ids or transaction.producer_id in ids)
        and (shortest < 0 or effects.now - transaction.started_at > shortest)
    ]
    after = max([effects.deleted, *(transaction.written for transaction in transactions.values())])
    answer = m.ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed)
    return effects.reply(request, answer, after)


def _matching(pattern: str, transactions: Mapping[str, Transaction]) -> list[Transaction] | ErrorCode:
    """Return those whose id matches, all for an empty pattern; or why the pattern is refused."""
    if not pattern:
        return list(transactions.values())
    if len(pattern) * sum(map(len, transactions)) > _MOST_WORK:
        return ErrorCode.POLICY_VIOLATION
    try:
        compiled = compile_regex(pattern)
    except InvalidRegexError:
        return ErrorCode.INVALID_REGULAR_EXPRESSION
    return [transaction for name, transaction in transactions.items() if compiled.fullmatch(name)]
