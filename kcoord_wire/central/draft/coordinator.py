"""The broker's side of the draft: every broker is a candidate, answers ClusterMetadata, and coordinates when elected.

    machine = DraftCoordinator(BrokerAddress(1, "localhost", 9092), CoordinatorSettings())
    effects = machine.handle(SessionChanged(SessionState.CONNECTED, session_id, timeout_ms), now)
    effects = machine.handle(Received(connection, RegisterConsumerRequest(...)), now)

Laws, besides those of `zookeeper.leadership`:

* The lease is checked before an event has any effect. While a broker is not the coordinator it sends nothing but
  answers to ClusterMetadata, and NOT_COORDINATOR to RegisterConsumer.
* A coordinator's state ends with its term. Its consumers' connections are then closed, so that they look for the
  next coordinator.
* The broker's own registration is made again after a new session (KAFKA-7165).

Source: "the 0.8 consumer-coordinator draft", sections 5, 7 and 10.
"""

from __future__ import annotations

import logging
from itertools import count
from typing import Any

from kcoord_wire.central.draft.context import Context
from kcoord_wire.central.draft.description import CoordinatorDescription, describe_group
from kcoord_wire.central.draft.events import CentralError, CoordinatorEffect, CoordinatorEvent, CoordinatorSettings
from kcoord_wire.central.draft.term import Term
from kcoord_wire.kernel.machines import BrokerAddress, Close, Disconnected, Noted, Received, Send
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.brokers import Brokers
from kcoord_wire.zookeeper.layout import COORDINATOR, COORDINATOR_EPOCH
from kcoord_wire.zookeeper.leadership import Leadership
from kcoord_wire.zookeeper.model import Fired, Replied, SessionChanged, SessionState
from kcoord_wire.zookeeper.procedures import ZooKeeperProcedures

UNKNOWN_COORDINATOR = -1


class DraftCoordinator:
    """The coordinator object that every broker has.

    :param own: this broker, as the others and the consumers reach it
    :ivar leadership: the elector
    :ivar term: its state as the coordinator; None while it is not
    """

    def __init__(self, own: BrokerAddress, settings: CoordinatorSettings | None = None) -> None:
        self.own = own
        self.settings = settings or CoordinatorSettings()
        self.term: Term | None = None
        self._effects: list[CoordinatorEffect] = []
        self._now = 0
        self._session_id = 0
        self._tokens = count(1)
        self.leadership = Leadership(
            own.broker_id,
            COORDINATOR,
            COORDINATOR_EPOCH,
            self._emit,
            self._tokens,
            self._elected,
            self._resigned,
            self._failed,
        )
        self.brokers = Brokers(own, self._emit, self._tokens, self._failed)

    @property
    def deadline(self) -> int | None:
        """When the next `Tick` is due, in ms; None if nothing is."""
        parts = (self.leadership, self.brokers, None if self.term is None else self.term.context.procedures)
        ends = [part.deadline for part in parts if part is not None]
        return min((end for end in ends if end is not None), default=None)

    @property
    def coordinator_id(self) -> int:
        """The broker id of the coordinator; -1 if it is not known."""
        if self.term is not None:
            return self.own.broker_id
        leader = self.leadership.leader
        return UNKNOWN_COORDINATOR if leader is None else leader.broker_id

    def epoch_at(self, now: int) -> int | None:
        """Return the epoch in which this broker may act at that time; None if it may not."""
        return self.leadership.epoch if now < self.leadership.lease_until else None

    def describe(self) -> CoordinatorDescription:
        """Return its state and what it waits for; plain data."""
        if (term := self.term) is None:
            return CoordinatorDescription(self.own.broker_id, self.coordinator_id)
        return CoordinatorDescription(
            self.own.broker_id,
            self.own.broker_id,
            term.context.epoch,
            self.leadership.lease_until,
            tuple(describe_group(group) for group in term.groups.by_id.values()),
            tuple(map(tuple, term.handlers.waiting)),
            len(term.pings.purgatory),
            0 if term.fetchers is None else len(term.fetchers.stops),
            0 if term.fetchers is None else len(term.fetchers.starts),
            term.committer.waiting,
        )

    def handle(self, event: CoordinatorEvent, now: int) -> list[CoordinatorEffect]:
        """Return the effects of an event at a time (ms)."""
        self._now = now
        if self.term is not None:
            self.term.context.now = now
        if isinstance(event, SessionChanged) and event.state is SessionState.CONNECTED:
            self._connected(event)
        former = self.term
        self.leadership.handle(event, now)
        self.brokers.handle(event, now)
        self.leadership.bar(self.brokers.is_taken)
        if former is not self.term and former is not None and former.has_connection(event):
            pass  # the end of the term has closed it
        elif isinstance(event, Received):
            self._received(event)
        elif (term := self.term) is not None:
            if isinstance(event, Disconnected):
                term.disconnected(event.connection)
            elif isinstance(event, Replied):
                term.replied(event)
            elif isinstance(event, Fired):
                term.fired(event)
        self._advance(now)
        effects, self._effects = self._effects, []
        return effects

    def _advance(self, now: int) -> None:
        if (term := self.term) is not None:
            term.context.procedures.advance(now)
            if term.context.is_fenced_off:
                self.leadership.resign("another coordinator has been elected")

    def _emit(self, effect: CoordinatorEffect) -> None:
        self._effects.append(effect)

    # ---- election

    def _connected(self, event: SessionChanged) -> None:
        if self._session_id and event.session_id != self._session_id:
            self.handle_new_session()
        self._session_id = event.session_id

    def handle_new_session(self) -> None:
        """handleNewSession. Step 2 needs nothing, because the end of a session reaches the machine as an event; step 3
        follows when `Leadership` gets the event."""
        self._note(logging.WARNING, "new session")
        self._resigned("new session")  # 1

    def _elected(self, epoch: int) -> None:
        context = Context(
            self.settings,
            epoch,
            self._now,
            self._emit,
            self.leadership.guarded,
            lambda: list(self.brokers.known.values()),
            lambda timers: ZooKeeperProcedures(self._emit, self._tokens, timers),
        )
        self._note(logging.INFO, "elected", epoch=epoch)
        self.term = Term(context)
        self.term.startup()

    def _resigned(self, reason: str) -> None:
        term, self.term = self.term, None
        if term is not None:
            self._note(logging.WARNING, "resigned", epoch=term.context.epoch, reason=reason)
            term.end()

    def _failed(self, text: str) -> None:
        self._note(logging.WARNING, "request to ZooKeeper failed", reason=text)

    def _note(self, level: int, what: str, **facts: Any) -> None:
        self._emit(Noted(level, what, {"broker": self.own.broker_id, **facts}))

    # ---- messages

    def _received(self, event: Received) -> None:
        message = event.message
        if isinstance(message, m.ClusterMetadataRequest):
            self._emit(Send(event.connection, self._cluster_metadata()))
        elif self.term is not None:
            if isinstance(message, m.RegisterConsumerRequest):
                self.term.register(event.connection, message)
            else:
                self.term.answered(event.connection, message)
        elif isinstance(message, m.RegisterConsumerRequest):
            self._emit(Send(event.connection, m.RegisterConsumerResponse(error_code=CentralError.NOT_COORDINATOR)))
        else:
            self._note(logging.WARNING, "unexpected message", message=type(message).__name__)
            self._emit(Close(event.connection))

    def _cluster_metadata(self) -> m.ClusterMetadataResponse:
        return m.ClusterMetadataResponse(
            coordinator_id=self.coordinator_id,
            brokers_info=[
                m.ClusterMetadataResponseBroker(id=broker.broker_id, host=broker.host, port=broker.port)
                for broker in self.brokers.known.values()
            ],
        )
