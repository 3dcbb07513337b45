"""The rewrite's coordinator: what one broker does with requests and with the news of ZooKeeper, as a pure machine.

Each broker is a candidate for controller (`controller`), and coordinates the groups of the shards that the controller
gives it (`shards`, `membership`, `offsets`). It acts only during its term: it has a session, an ephemeral node of its
own, and a lease of a third of the session timeout (`zookeeper.leadership`, with a node for each broker).

Laws:

* When the term ends, by SUSPENDED, a new session or an expired lease, the groups are forgotten before anything else is
  done, and the connections of the members are closed: another broker may coordinate them.
* Until all groups of a shard are read, Heartbeat, ConsumerMetadata and OffsetCommit are answered
  COORDINATOR_STARTUP_NOT_COMPLETE, JoinGroup ILLEGAL_PROTOCOL_STATE.
* A request for a group of another broker is answered NOT_COORDINATOR_FOR_GROUP. ConsumerMetadata is answered by what
  this broker has last read, which may be stale until its watch fires.
* Names and numbers are checked before anything is done with them. A request that is refused for them is logged.

Source: "Kafka 0.9 Consumer Rewrite Design".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.answers import Request
from kcoord_wire.central.rewrite.checks import fault_of
from kcoord_wire.central.rewrite.cluster import Cluster
from kcoord_wire.central.rewrite.controller import Controller
from kcoord_wire.central.rewrite.events import CoordinatorEffect, CoordinatorEvent, CoordinatorSettings, RewriteError
from kcoord_wire.central.rewrite.layout import BROKER_PRESENCE, BROKER_TERMS
from kcoord_wire.central.rewrite.membership import Membership
from kcoord_wire.central.rewrite.offsets import Offsets
from kcoord_wire.central.rewrite.outbox import Outbox
from kcoord_wire.central.rewrite.shards import Shard, Shards
from kcoord_wire.kernel.machines import BrokerAddress, Disconnected, Received
from kcoord_wire.zookeeper.brokers import Brokers
from kcoord_wire.zookeeper.leadership import Leadership
from kcoord_wire.zookeeper.model import Fired, Replied


class RewriteCoordinator:
    """One broker; a `kcoord_wire.kernel.machines.Machine`.

    :param own: this broker, and where it listens
    :ivar brokers: the registration of this broker, and all that are registered
    :ivar shards: who coordinates what, and the groups of this broker
    """

    def __init__(self, own: BrokerAddress, settings: CoordinatorSettings | None = None) -> None:
        self.broker_id = broker_id = own.broker_id
        self.settings = settings or CoordinatorSettings()
        self._outbox = outbox = Outbox()
        self._presence = Leadership(
            broker_id,
            f"{BROKER_PRESENCE}/{broker_id}",
            f"{BROKER_TERMS}/{broker_id}",
            outbox.emit,
            outbox.tokens,
            self._begin,
            self._end,
            partial(outbox.note_failure, "presence failed"),
        )
        self._controller = Controller(broker_id, self.settings.shards, outbox)
        self.brokers = Brokers(own, outbox.emit, outbox.tokens, partial(outbox.note_failure, "broker not registered"))
        self._cluster = Cluster(self.brokers, outbox)
        self._membership = Membership(outbox, self._fenced)
        self.shards = Shards(broker_id, outbox, self._membership.loaded, self._membership.lost)
        self._offsets = Offsets(outbox, self._fenced)

    @property
    def deadline(self) -> int | None:
        """When the machine wants the next `Tick`, in ms; None for never."""
        ends = (self._presence.deadline, self.brokers.deadline, self._controller.deadline)
        return min((end for end in (*ends, self._outbox.timers.next) if end is not None), default=None)

    def handle(self, event: CoordinatorEvent, now: int) -> Sequence[CoordinatorEffect]:
        """Take in one event and return the effects that the host carries out.

        :param now: ms; never decreases from one call to the next
        """
        outbox = self._outbox
        outbox.now = now
        if isinstance(event, Received):
            outbox.connections[event.connection] = event.message
        self._presence.handle(event, now)
        self.brokers.handle(event, now)
        self._presence.bar(self.brokers.is_taken)
        self._controller.bar(self.brokers.is_taken)
        self._controller.handle(event, now)
        if isinstance(event, Received):
            if event.connection in outbox.connections:  # else the end of the term has closed it
                self._received(event)
        elif isinstance(event, Disconnected):
            outbox.connections.pop(event.connection, None)
            self._membership.disconnected(event.connection)
        elif isinstance(event, Replied):
            outbox.procedures.replied(event, now)
        elif isinstance(event, Fired):
            self._fired(event)
        outbox.procedures.advance(now)
        if outbox.broken:
            reason, outbox.broken = outbox.broken, ""
            self._presence.resign(reason)
        return outbox.take()

    # ---- the term

    def _begin(self, term: int) -> None:
        self._outbox.note("broker joined", broker=self.broker_id, term=term)
        self._outbox.start(self.shards.follow())

    def _end(self, reason: str) -> None:
        self._outbox.note("broker resigned", logging.WARNING, broker=self.broker_id, reason=reason)
        for connection in list(self._outbox.connections):
            self._outbox.close(connection)
        self.shards.clear()
        self._outbox.procedures.cancel_all()

    def _fenced(self, shard: Shard) -> None:
        self.shards.retake(shard)

    def _fired(self, event: Fired) -> None:
        if not event.of_children:
            self.shards.fired(event.path)
            self._membership.topics.fired(event.path)

    # ---- requests

    def _received(self, event: Received) -> None:
        connection, request = event.connection, event.message
        wrong = fault_of(request, self.settings)
        if wrong is not None:
            self._outbox.refuse(connection, *wrong)
        elif isinstance(request, m.MetadataRequest):
            self._outbox.start(self._cluster.metadata(connection, request))
        elif isinstance(request, m.FindCoordinatorRequest):
            self._find(connection, request)
        else:
            self._serve(connection, request)

    def _find(self, connection: int, request: m.FindCoordinatorRequest) -> None:
        """Answer ConsumerMetadata."""
        shard = self.shards.find(request.key)
        owner = self.shards.owner(request.key)
        broker = None if owner is None else self.brokers.known.get(owner)
        if shard is not None and not shard.is_loaded:
            self._outbox.refuse(connection, RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE)
        elif broker is None:
            self._outbox.refuse(connection, RewriteError.COORDINATOR_NOT_AVAILABLE)
        else:
            response = m.FindCoordinatorResponse(node_id=broker.broker_id, host=broker.host, port=broker.port)
            self._outbox.answer(connection, response)

    def _serve(self, connection: int, request: Request) -> None:
        """Pass on a request that only the group's coordinator may answer."""
        assert not isinstance(request, m.FindCoordinatorRequest | m.MetadataRequest)
        shard = self.shards.find(request.group_id)
        if shard is None:
            self._outbox.refuse(connection, RewriteError.NOT_COORDINATOR_FOR_GROUP)
        elif isinstance(request, m.rewrite.RewriteJoinGroupRequest):
            if shard.is_loaded:
                self._membership.join(shard, connection, request)
            else:
                self._outbox.refuse(connection, RewriteError.ILLEGAL_PROTOCOL_STATE)
        elif not shard.is_loaded:
            self._outbox.refuse(connection, RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE)
        elif isinstance(request, m.HeartbeatRequest):
            self._membership.heartbeat(shard, connection, request)
        elif isinstance(request, m.OffsetCommitRequest):
            self._offsets.commit(shard, connection, request)
        else:
            self._offsets.fetch(connection, request)
