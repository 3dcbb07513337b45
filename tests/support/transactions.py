"""A transaction machine with scripted time: requests go in as messages, every answer goes through its bytes."""

from __future__ import annotations

from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.codec.registry import registry
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import (
    Append,
    Load,
    LogRecord,
    MarkersWritten,
    Reply,
    Request,
    Resign,
    WriteMarkers,
)
from kcoord_wire.coordinator.transactions.machine import TransactionMachine
from tests.support.driven import Driven
from tests.support.scripted import Topics


def added_topics(*partitions: tuple[str, int]) -> list[m.AddPartitionsToTxnRequestAddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    return [m.AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=name, partitions=ps) for name, ps in topics.items()]


class TransactionScript(Driven):
    """Runs one machine, which loads an empty log.

    :ivar log: the records that it has appended
    :ivar markers: `WriteMarkers` that are not carried out yet
    """

    def __init__(self, **settings: int) -> None:
        self.now = 1_700_000_000_000
        self.config = GroupConfig(**settings)
        self.log: list[LogRecord] = []
        self.markers: list[WriteMarkers] = []
        self._token = 0
        self._given = 4_000
        self.restart()

    def _producer_id(self, now: int) -> int:
        self._given += 1
        return self._given

    def restart(self) -> None:
        """Begin anew from the log; what was in memory is lost."""
        self.machine = TransactionMachine(Topics(), lambda group: len(group), self._producer_id, self.config)
        self.markers = []
        self.do(Load(list(self.log)))

    def resign(self) -> None:
        self.do(Resign())

    def move(self, partition: int) -> None:
        """A partition of ``__transaction_state`` gets another coordinator; all ids are in partition 0."""
        self.do(Resign(frozenset({partition})))

    def load(self, partition: int) -> None:
        """The partition that was moved has been read."""
        self.do(Load(list(self.log), frozenset({partition})))

    def carry_out(self, effect: Any) -> None:
        if isinstance(effect, Append):
            self.log += effect.records
        elif isinstance(effect, WriteMarkers):
            assert effect.after <= self.machine.appended
            self.markers.append(effect)

    def ask(self, message: Any, version: int) -> Any:
        self._token += 1
        replies = [effect for effect in self.do(Request(self._token, message, version)) if isinstance(effect, Reply)]
        assert replies, "every request is answered at once"
        answer = replies[-1].message
        codec = registry.by_class(type(answer))
        return codec.decode(codec.encode(answer, version), version)

    def write_markers(self) -> WriteMarkers:
        """Carry out the oldest `WriteMarkers`, and return it."""
        effect = self.markers.pop(0)
        event = MarkersWritten(effect.transactional_id, effect.marker.producer_id, effect.marker.producer_epoch)
        self.do(event)
        return effect

    def init(
        self, name: str | None = "x", *, timeout: int = 60_000, had: tuple[int, int] = (-1, -1), version: int = 5
    ) -> Any:
        request = m.InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=timeout, producer_id=had[0], producer_epoch=had[1]
        )
        return self.ask(request, version)

    def producer(self, name: str = "x") -> tuple[int, int]:
        """Initialise, and return producer id and epoch."""
        answer = self.init(name)
        assert answer.error_code == 0
        return answer.producer_id, answer.producer_epoch

    def add(
        self, producer: tuple[int, int], *partitions: tuple[str, int], name: str = "x", version: int = 3
    ) -> list[int]:
        """Add partitions, `orders` 0 if none is named, and return the errors."""
        topics = added_topics(*(partitions or (("orders", 0),)))
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=topics,
        )
        answer = self.ask(request, version)
        return [
            each.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        ]

    def batch_add(
        self, producer: tuple[int, int], *partitions: tuple[str, int], name: str = "x", verify: bool = False
    ) -> list[int]:
        """Add or verify as brokers do, and return the errors."""
        transaction = m.AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            verify_only=verify,
            topics=added_topics(*partitions),
        )
        answer = self.ask(m.AddPartitionsToTxnRequest(transactions=[transaction]), 5)
        (result,) = answer.results_by_transaction
        return [each.partition_error_code for topic in result.topic_results for each in topic.results_by_partition]

    def end(self, producer: tuple[int, int], *, commit: bool = True, name: str = "x", version: int = 4) -> Any:
        request = m.EndTxnRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        return self.ask(request, version)

    def state(self, name: str = "x") -> str:
        (answer,) = self.ask(m.DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states
        return answer.transaction_state
