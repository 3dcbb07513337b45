"""Requests of operators: listing and describing transactions.

Source: KIP-664, KIP-994, KIP-1152; Kafka's `TransactionStateManager.scala`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.events import EffectCollector, Request
from kcoord_wire.coordinator.core.regexes import InvalidRegexError, compile_regex
from kcoord_wire.coordinator.transactions.model import State, Transaction
from kcoord_wire.protocol.error_codes import ErrorCode

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
    topics: dict[str, m.DescribeTransactionsResponseTopicData] = {}
    for name, partition in transaction.partitions:
        topics.setdefault(name, m.DescribeTransactionsResponseTopicData(topic=name)).partitions.append(partition)
    return m.DescribeTransactionsResponseTransactionState(
        transactional_id=transaction.transactional_id,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_at,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=list(topics.values()),
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
        m.ListTransactionsResponseTransactionState(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            transaction_state=transaction.state.value,
        )
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
