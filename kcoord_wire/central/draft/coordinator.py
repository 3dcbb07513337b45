"""The broker's side of the draft: every broker is a candidate, answers ClusterMetadata, and coordinates when elected.

    machine = DraftCoordinator(BrokerAddress(1, "localhost", 9092), CoordinatorSettings())
    effects = machine.handle(SessionChanged(SessionState.CONNECTED, session_id, timeout_ms), now)
    effects = machine.handle(Received(connection, RegisterConsumerRequest(...)), now)

"Every broker will be the co-ordinator for a subset of consumer groups" (section 1), and one of them "is elected as the
coordinator for a subset of the consumer groups" (section 2); sections 5 and 10 have one election. Here the groups are
divided into as many subsets as the first broker of a cluster was asked for, one by default, and each has the draft's
election (`Candidate`). What the elected one does is its `term.Term`.

Laws, besides those of `zookeeper.leadership` and of `term`:

* The lease is checked before an event has any effect. While a broker is not the coordinator of a group it sends nothing
  about it but answers to ClusterMetadata, and NOT_COORDINATOR to RegisterConsumer.
* A coordinator's state ends with its term ("reset its state by clearing its in memory metadata", handleNewSession, step
  1). Its consumers' connections are then closed, so that they look for the next coordinator.
* A group never changes its subset: their number is a node that is never changed, and read before the first election.
* With several subsets each broker stands for those that `spread` gives it: what it coordinates already, unless that is
  two more than another one does. A broker that gives one up deletes its node, so the next one is elected at once.
* ClusterMetadata without a group, as the draft draws it, is answered with this broker where it coordinates any subset:
  a consumer that goes round the brokers finds its own coordinator.
* The broker's own registration is made again after a new session (KAFKA-7165).
* The status changes nothing, and does not change with the coordinator.

Source: "the 0.8 consumer-coordinator draft", sections 1, 2, 5, 7 and 10.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from kcoord_wire.central.draft.context import Context
from kcoord_wire.central.draft.events import (
    CentralError,
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorSettings,
)
from kcoord_wire.central.draft.term import Term, group_status
from kcoord_wire.kernel.machines import BrokerAddress, Close, Disconnected, LogEvent, Received, Send
from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.kernel.timers import earliest
from kcoord_wire.messages import central as m
from kcoord_wire.protocol.key_partitions import partition_of
from kcoord_wire.zookeeper.layout import COORDINATORS, Brokers, election_of, parse_coordinators
from kcoord_wire.zookeeper.leadership import Leadership, ancestors, spread
from kcoord_wire.zookeeper.requests import (
    RETRY_MS,
    Fired,
    Node,
    Read,
    RegistryError,
    Replied,
    SessionChanged,
    SessionState,
    ZooKeeperProcedures,
    create_missing,
)

UNKNOWN_COORDINATOR = -1


class Candidate:
    """The election of the coordinator of one subset, as one broker takes part in it.

    :param subset: its number
    :param subsets: how many there are
    :ivar leadership: the elector
    :ivar term: what it does as the coordinator; None while it is not
    """

    def __init__(
        self,
        own: BrokerAddress,
        subset: int,
        subsets: int,
        settings: CoordinatorSettings,
        brokers: Brokers,
        emit: Callable[[CoordinatorEffect], None],
        tokens: Iterator[int],
    ) -> None:
        self.term: Term | None = None
        self.now = 0
        self._subset, self._subsets = subset, subsets
        self._settings = settings
        self._brokers = brokers
        self._emit = emit
        self._tokens = tokens
        self._facts = {"broker": own.broker_id, **({"subset": subset} if subsets > 1 else {})}
        paths = election_of(subset)
        self.leadership = Leadership(own.broker_id, *paths, emit, tokens, self._elected, self.resigned, self._failed)

    @property
    def deadline(self) -> int | None:
        """See `DraftCoordinator.deadline`."""
        of_term = None if self.term is None else self.term.context.procedures.deadline
        return earliest(self.leadership.deadline, of_term)

    def epoch_at(self, now: int) -> int | None:
        """Return the epoch in which this broker may act at that time; None if it may not."""
        return self.leadership.epoch if now < self.leadership.lease_until else None

    def is_ended_for(self, event: object, now: int) -> bool:
        """Let the election take in an event; return whether that has closed the connection that the event is about."""
        self.now = now
        former = self.term
        if former is not None:
            former.context.now = now
        self.leadership.handle(event, now)
        return former is not None and former is not self.term and former.has_connection(event)

    def handle(self, event: object) -> None:
        """Let the term take in an event of ZooKeeper, or the end of a connection."""
        if (term := self.term) is None:
            return
        if isinstance(event, Disconnected):
            term.disconnected(event.connection)
        elif isinstance(event, Replied):
            term.replied(event)
        elif isinstance(event, Fired):
            term.fired(event)

    def advance(self, now: int) -> None:
        """Do what is due."""
        if (term := self.term) is not None:
            term.context.procedures.advance(now)
            if term.context.is_fenced_off:
                self.leadership.resign("another coordinator has been elected")

    def resigned(self, reason: str) -> None:
        """The term has ended, or a new session ends it."""
        term, self.term = self.term, None
        if term is not None:
            self._note(logging.WARNING, "resigned", epoch=term.context.epoch, reason=reason)
            term.end()

    def _elected(self, epoch: int) -> None:
        context = Context(
            self._settings,
            epoch,
            self.now,
            self._emit,
            self.leadership.guarded,
            lambda: list(self._brokers.known.values()),
            lambda timers: ZooKeeperProcedures(self._emit, self._tokens, timers),
        )
        self._note(logging.INFO, "elected", epoch=epoch)
        self.term = Term(context, lambda group_id: partition_of(group_id, self._subsets) == self._subset)
        self.term.startup()

    def _failed(self, text: str) -> None:
        self._note(logging.WARNING, "request to ZooKeeper failed", reason=text)

    def _note(self, level: int, what: str, **facts: Any) -> None:
        self._emit(LogEvent(level, what, {**self._facts, **facts}))


class DraftCoordinator:
    """The coordinator object that every broker has.

    :param own: this broker, as the others and the consumers reach it
    :ivar candidates: one for each subset of the groups; none before ZooKeeper has said how many there are
    """

    def __init__(self, own: BrokerAddress, settings: CoordinatorSettings | None = None) -> None:
        self.own = own
        self.settings = settings or CoordinatorSettings()
        self.candidates: list[Candidate] = []
        self._effects: list[CoordinatorEffect] = []
        self._now = 0
        self._session: SessionChanged | None = None
        self._tokens = count(1)
        self._procedures = ZooKeeperProcedures(self._emit, self._tokens)
        self.brokers = Brokers(own, self._emit, self._tokens, self._failed)

    @property
    def deadline(self) -> int | None:
        """When the next `Tick` is due, in ms; None if nothing is."""
        of_candidates = (candidate.deadline for candidate in self.candidates)
        return earliest(self._procedures.deadline, self.brokers.deadline, *of_candidates)

    def candidate_of(self, group_id: str) -> Candidate | None:
        """Return the candidate for coordinating a group."""
        return self.candidates[partition_of(group_id, len(self.candidates))] if self.candidates else None

    def coordinator_id(self, group_id: str | None = None) -> int:
        """Return the broker id of a group's coordinator, -1 if it is not known.

        :param group_id: None for whichever group: this broker, if it coordinates any
        """
        candidates = self.candidates
        if group_id is not None and candidates:
            candidates = [candidates[partition_of(group_id, len(candidates))]]
        if any(candidate.term is not None for candidate in candidates):
            return self.own.broker_id
        leaders = (candidate.leadership.leader for candidate in candidates)
        return next((leader.broker_id for leader in leaders if leader is not None), UNKNOWN_COORDINATOR)

    def epochs_at(self, now: int) -> dict[int, int]:
        """Return the subsets for which this broker may act at that time, each with the epoch."""
        epochs = {subset: candidate.epoch_at(now) for subset, candidate in enumerate(self.candidates)}
        return {subset: epoch for subset, epoch in epochs.items() if epoch is not None}

    def status(self, host_of: Callable[[int], str], now: int) -> m.CentralStatusResponse:
        """Return what it knows as a coordinator; NOT_COORDINATOR if it may not act at that time. Of several terms,
        epoch and age are those of the first.

        :param host_of: see `group_status`
        """
        found = [candidate.term for candidate in self.candidates if candidate.epoch_at(now) is not None]
        terms = [term for term in found if term is not None]
        if not terms:
            return m.CentralStatusResponse(error_code=CentralError.NOT_COORDINATOR)
        return m.CentralStatusResponse(
            epoch=terms[0].context.epoch,
            elected_ms=now - terms[0].context.elected_at,
            groups=[group_status(group, host_of) for term in terms for group in term.groups.by_id.values()],
        )

    def handle(self, event: CoordinatorEvent, now: int) -> list[CoordinatorEffect]:
        """Return the effects of an event at a time (ms)."""
        self._now = now
        if isinstance(event, SessionChanged):
            self._session_changed(event)
        ended = [candidate.is_ended_for(event, now) for candidate in self.candidates]
        self.brokers.handle(event, now)
        if isinstance(event, Replied):
            self._procedures.replied(event, now)
        self._bar()
        if any(ended):
            pass  # the end of the term has closed its connection
        elif isinstance(event, Received):
            self._received(event)
        else:
            for candidate in self.candidates:
                candidate.handle(event)
        self._procedures.advance(now)
        for candidate in self.candidates:
            candidate.advance(now)
        effects, self._effects = self._effects, []
        return effects

    def _emit(self, effect: CoordinatorEffect) -> None:
        self._effects.append(effect)

    # ---- elections

    def _session_changed(self, event: SessionChanged) -> None:
        self._procedures.cancel_all()
        if event.state is not SessionState.CONNECTED:
            return
        if self._session is not None and event.session_id != self._session.session_id:
            self.handle_new_session()
        self._session = event
        if not self.candidates:
            self._procedures.start(self._stand(), self._now)

    def handle_new_session(self) -> None:
        """handleNewSession. Step 2 needs nothing, because the end of a session reaches the machine as an event; step 3
        follows when `Leadership` gets the event."""
        self._note(logging.WARNING, "new session")
        for candidate in self.candidates:
            candidate.resigned("new session")  # 1

    def _stand(self) -> Procedure:
        """Learn into how many subsets the groups are divided, and begin the elections."""
        asked = self.settings.coordinators
        while True:
            try:
                yield from create_missing(*ancestors(COORDINATORS))
                yield from create_missing(COORDINATORS, data=b"%d" % asked)
                node: Node | None = yield Read(COORDINATORS)
                subsets = parse_coordinators(b"" if node is None else node.data)
                break
            except (RegistryError, ValueError) as error:
                self._failed(str(error))
            yield Sleep(RETRY_MS)
        if subsets != asked:
            self._note(logging.WARNING, "number of coordinators stays", coordinators=subsets, asked=asked)
        parts = (subsets, self.settings, self.brokers, self._emit, self._tokens)
        self.candidates = [Candidate(self.own, subset, *parts) for subset in range(subsets)]
        for candidate in self.candidates:
            candidate.leadership.handle(self._session, self._now)

    def _bar(self) -> None:
        """Let the candidates stand that are to: none while another process has the broker's id."""
        own, is_taken = self.own.broker_id, self.brokers.is_taken
        turns: list[int | None] = [own] * len(self.candidates)
        if len(turns) > 1:
            leaders = [candidate.leadership.leader for candidate in self.candidates]
            present = [None if leader is None else leader.broker_id for leader in leaders]
            turns = spread(
                [
                    own if each.term is not None else leader
                    for each, leader in zip(self.candidates, present, strict=True)
                ],
                self.brokers.known,
            )
        for candidate, turn in zip(self.candidates, turns, strict=True):
            reason = "another broker has the id" if is_taken else "another broker coordinates fewer subsets"
            candidate.leadership.bar(reason if is_taken or turn != own else "")

    def _failed(self, text: str) -> None:
        self._note(logging.WARNING, "request to ZooKeeper failed", reason=text)

    def _note(self, level: int, what: str, **facts: Any) -> None:
        self._emit(LogEvent(level, what, {"broker": self.own.broker_id, **facts}))

    # ---- messages

    def _received(self, event: Received) -> None:
        message, connection = event.message, event.connection
        terms = [candidate.term for candidate in self.candidates if candidate.term is not None]
        term = next((term for term in terms if term.has_connection(event)), None)
        if isinstance(message, m.ClusterMetadataRequest):
            self._emit(Send(connection, self._cluster_metadata(message)))
        elif isinstance(message, m.RegisterConsumerRequest):
            candidate = self.candidate_of(message.group_id)
            term = term or (None if candidate is None else candidate.term)
            if term is None:
                self._emit(Send(connection, m.RegisterConsumerResponse(error_code=CentralError.NOT_COORDINATOR)))
            else:
                term.register(connection, message)
        elif term is not None:
            term.answered(connection, message)
        else:
            self._note(logging.WARNING, "unexpected message", message=type(message).__name__)
            self._emit(Close(connection))

    def _cluster_metadata(self, request: m.ClusterMetadataRequest) -> m.ClusterMetadataResponse:
        return m.ClusterMetadataResponse(
            coordinator_id=self.coordinator_id(request.groups[0].group_id if request.groups else None),
            brokers_info=[
                m.ClusterMetadataResponseBroker(id=broker.broker_id, host=broker.host, port=broker.port)
                for broker in self.brokers.known.values()
            ],
        )
