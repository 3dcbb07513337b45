"""What transactions need of the other machines: a word before each write, and the markers at the end.

    Produce, TxnOffsetCommit   the transaction coordinator is asked first, then the topics or the groups (KIP-890)
    WriteMarkers               markers go to the topics and the groups, until they are on disk; then `MarkersWritten`

Laws:

* It has no clock, thread or socket: the host passes the time. The simulation can run it.
* The partition of a write is in the transaction on disk before the write is seen. And since answers of the transaction
  coordinator come in the order of its log, no write follows the markers of its transaction.
* Markers are repeated, `RETRY_MS` later, until all are written: those that a disk or a group's coordinator has refused.
  For one transactional id one `WriteMarkers` is carried out, the last: a marker that an earlier one still repeats would
  end the producer's next transaction.

Source: Kafka's `AddPartitionsToTxnManager.java`, `TransactionMarkerChannelManager.scala`, `ReplicaManager.scala`
(handleProduceAppend), `GroupCoordinatorService.java`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import ABORTABLE_FROM, ADD_TO_TRANSACTION_FROM, BATCH_ADD_FROM, refusal
from kcoord_wire.coordinator.core.brokers import OFFSETS_TOPIC
from kcoord_wire.coordinator.core.events import Event, MarkersWritten, Request, WriteMarkers
from kcoord_wire.coordinator.partitions.batch_header import Header
from kcoord_wire.coordinator.topics.topics import Partition, VerifiedProduce
from kcoord_wire.coordinator.transactions.transaction import by_topic
from kcoord_wire.protocol.error_codes import ErrorCode

RETRY_MS: Final = 100

_LOADING: Final = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
_REPEATED: Final = frozenset((*_LOADING, ErrorCode.KAFKA_STORAGE_ERROR))

MarkedTopic = m.WriteTxnMarkersRequestWritableTxnMarkerTopic
Submit = Callable[[Event, int], None]
"""Gives an event to a machine, and carries out its effects."""


class TransactionFlow:
    """Conducts the requests of transactions.

    :param transactions: submits to the transaction coordinator
    :param groups: submits to the group coordinator
    :param topics: submits to the topics
    :param unverified: see `Topics.unverified`
    :param offsets_partition: returns the partition of ``__consumer_offsets`` that a group belongs to
    :param send: answers a request, by its token
    :param new_token: returns a token for a request that no client has sent; `answered` gets the answer
    """

    def __init__(
        self,
        *,
        transactions: Submit,
        groups: Submit,
        topics: Callable[[Event | VerifiedProduce, int], None],
        unverified: Callable[[Request], tuple[Header | None, list[Partition]]],
        offsets_partition: Callable[[str], int],
        send: Callable[[int, Any], None],
        new_token: Callable[[], int],
    ) -> None:
        self._transactions = transactions
        self._groups = groups
        self._topics = topics
        self._unverified = unverified
        self._offsets_partition = offsets_partition
        self._send = send
        self._new_token = new_token
        self._asked: dict[int, Callable[[Any, int], None]] = {}
        self._writing: dict[str, WriteMarkers] = {}  # by transactional id
        self._again: list[tuple[int, WriteMarkers]] = []  # markers to repeat, and when
        self._now = 0

    @property
    def deadline(self) -> int | None:
        """When `tick` is due, in ms; None if nothing is."""
        return self._again[0][0] if self._again else None

    def tick(self, now: int) -> None:
        """Do what is due."""
        while self._again and self._again[0][0] <= now:
            effect = self._again.pop(0)[1]
            if self._writing.get(effect.transactional_id) is effect:
                self.write_markers(effect, now)

    def answered(self, token: int, message: Any, now: int) -> None:
        """Take in the answer to a request that this has made; others are ignored."""
        then = self._asked.pop(token, None)
        if then is not None:
            then(message, now)

    def ask(self, submit: Submit, message: Any, version: int, then: Callable[[Any, int], None], now: int) -> None:
        """Submit a request of the coordinator's own; `then` gets the answer and the time."""
        token = self._new_token()
        self._asked[token] = then
        submit(Request(token, message, version), now)

    # ---- before a write

    def produce(self, request: Request, now: int) -> None:
        """Submit a Produce with a transactional id."""
        batch, partitions = self._unverified(request)
        if batch is None:
            self._topics(request, now)
        else:
            self._verify(
                request, batch.producer_id, batch.producer_epoch, partitions, partial(self._verified, request), now
            )

    def _verified(self, request: Request, errors: dict[Partition, ErrorCode], now: int) -> None:
        for partition, error in errors.items():
            if error in _LOADING or (error is ErrorCode.CONCURRENT_TRANSACTIONS and not _adds(request)):
                errors[partition] = ErrorCode.NOT_ENOUGH_REPLICAS  # which every producer repeats
        self._topics(VerifiedProduce(request, errors), now)

    def commit_offsets(self, request: Request, now: int) -> None:
        """Submit a TxnOffsetCommit."""
        asked: m.TxnOffsetCommitRequest = request.message
        if not asked.group_id:  # refused before the transaction is looked at, as by Kafka
            self._groups(request, now)
            return
        partition = (OFFSETS_TOPIC, self._offsets_partition(asked.group_id))
        self._verify(
            request, asked.producer_id, asked.producer_epoch, [partition], partial(self._may_commit, request), now
        )

    def _may_commit(self, request: Request, errors: dict[Partition, ErrorCode], now: int) -> None:
        (error,) = errors.values()
        if error:
            self._send(request.token, refusal(request.message, request.version, error))
        else:
            self._groups(request, now)

    def _verify(
        self,
        request: Request,
        producer_id: int,
        epoch: int,
        partitions: Iterable[Partition],
        then: Callable[[dict[Partition, ErrorCode], int], None],
        now: int,
    ) -> None:
        """Ask whether partitions are in the transaction, or add them where the version of the request does."""
        topics = by_topic(partitions)
        transaction = m.AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(
            transactional_id=request.message.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=not _adds(request),
            topics=[
                m.AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in topics.items()
            ],
        )

        def answered(response: m.AddPartitionsToTxnResponse, now: int) -> None:
            if response.error_code:
                errors = {
                    (name, index): _error(request, response.error_code) for name in topics for index in topics[name]
                }
            else:
                (result,) = response.results_by_transaction
                errors = {
                    (topic.name, each.partition_index): _error(request, each.partition_error_code)
                    for topic in result.topic_results
                    for each in topic.results_by_partition
                }
            then(errors, now)

        question = m.AddPartitionsToTxnRequest(transactions=[transaction])
        self.ask(self._transactions, question, BATCH_ADD_FROM, answered, now)

    # ---- the end of a transaction

    def write_markers(self, effect: WriteMarkers, now: int) -> None:
        """Write the markers of a transaction: first those of the topics, then that of the groups."""
        marker = effect.marker
        topics = [topic for topic in marker.topics if topic.name != OFFSETS_TOPIC]
        offsets = [topic for topic in marker.topics if topic.name == OFFSETS_TOPIC]
        self._writing[effect.transactional_id] = effect

        def topics_answered(response: m.WriteTxnMarkersResponse, now: int) -> None:
            if failed := _failed(response):
                repeat([*failed, *offsets], now)
            elif offsets:
                ask(self._groups, offsets, groups_answered, now)
            else:
                written(now)

        def groups_answered(response: m.WriteTxnMarkersResponse, now: int) -> None:
            if self._writing.get(effect.transactional_id) is not effect:
                return
            if failed := _failed(response):
                repeat(failed, now)
            else:
                written(now)

        def repeat(left: list[MarkedTopic], now: int) -> None:
            rest = replace(effect, marker=replace(marker, topics=left))
            self._writing[effect.transactional_id] = rest
            self._again.append((now + RETRY_MS, rest))

        def ask(submit: Submit, part: list[Any], then: Callable[[Any, int], None], now: int) -> None:
            message = m.WriteTxnMarkersRequest(markers=[replace(marker, topics=part)])
            self.ask(submit, message, MARKERS_VERSION, then, now)

        def written(now: int) -> None:
            del self._writing[effect.transactional_id]
            self._transactions(MarkersWritten(effect.transactional_id, marker.producer_id, marker.producer_epoch), now)

        ask(self._topics, topics, topics_answered, now)


MARKERS_VERSION: Final = 2


def _failed(response: m.WriteTxnMarkersResponse) -> list[MarkedTopic]:
    """Return the partitions to which a marker has to be written again. One that has been deleted, or that knows a
    later epoch of the producer, needs none."""
    (result,) = response.markers
    failed = [
        MarkedTopic(
            name=topic.name,
            partition_indexes=[each.partition_index for each in topic.partitions if each.error_code in _REPEATED],
        )
        for topic in result.topics
    ]
    return [topic for topic in failed if topic.partition_indexes]


def _adds(request: Request) -> bool:
    """Return whether the write adds its partition to the transaction, as from transaction version 2 on."""
    return request.version >= ADD_TO_TRANSACTION_FROM[type(request.message)]


def _error(request: Request, code: int) -> ErrorCode:
    """Return the error for a client of this version."""
    error = ErrorCode(code)
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and request.version < ABORTABLE_FROM[type(request.message)]:
        return ErrorCode.INVALID_TXN_STATE
    return error
