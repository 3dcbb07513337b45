"""The rewrite's coordinator: what one broker does with requests and with the news of ZooKeeper, as a pure machine.

Each broker is a candidate for controller (`Controller`), and coordinates the groups of the shards that the controller
gives it (`group`, `membership`). It acts only during its term: it has a session, an ephemeral node of its own, and a
lease of a third of the session timeout (`zookeeper.leadership`, with a node for each broker). The elected controller
says which broker coordinates which shard ("Co-ordinator failover", point 1: "the controller elects a new leader for a
subset of the consumer groups affected"); in place of the document's UpdateMetadataRequest the brokers watch the node.

Laws:

* When the term ends, by SUSPENDED, a new session or an expired lease, the groups are forgotten before anything else is
  done, and the connections of the members are closed: another broker may coordinate them.
* Until all groups of a shard are read, Heartbeat, ConsumerMetadata and OffsetCommit are answered
  COORDINATOR_STARTUP_NOT_COMPLETE, JoinGroup ILLEGAL_PROTOCOL_STATE.
* A request for a group of another broker is answered NOT_COORDINATOR_FOR_GROUP. ConsumerMetadata is answered by what
  this broker has last read, which may be stale until its watch fires.
* Names and numbers are checked before anything is done with them (`fault_of`): a request that passes has nothing that
  cannot be a node of ZooKeeper, a partition, an offset or a session timeout, and names no more than `MOST_NAMES`,
  whatever fits into its frame. One that is refused is logged.
* Brokers that live keep their shards, unless one has more than another by two or more: then shards move, so that all
  have their part of the work. Shards of the others go to those with the fewest.
* The number of shards is fixed by the first controller of a cluster: a group never changes its shard.
* Only the elected controller writes the assignment (`Leadership.guarded`), and only if it has changed.
* Metadata answers the topics that ZooKeeper has at that time. The leader of a partition is its first replica that
  lives.

Source: "Kafka 0.9 Consumer Rewrite Design".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.context import Outbox
from kcoord_wire.central.rewrite.events import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorSettings,
    Request,
    RewriteError,
    group_of,
)
from kcoord_wire.central.rewrite.group import Shard, Shards
from kcoord_wire.central.rewrite.layout import (
    BROKER_PRESENCE,
    BROKER_TERMS,
    CONTROLLER,
    CONTROLLER_EPOCH,
    SHARDS,
    STRATEGIES,
    is_legal_name,
    parse_owners,
    parse_topic,
)
from kcoord_wire.central.rewrite.membership import Membership, Offsets
from kcoord_wire.kernel.machines import BrokerAddress, Disconnected, Received
from kcoord_wire.kernel.procedures import Latch, Latched, Procedure, Sleep
from kcoord_wire.kernel.timers import earliest
from kcoord_wire.zookeeper.layout import BROKER_IDS, BROKER_TOPICS, ROOTS, Brokers, topic_path
from kcoord_wire.zookeeper.leadership import Leadership, ancestors, spread
from kcoord_wire.zookeeper.requests import (
    Create,
    Fired,
    Node,
    Read,
    ReadChildren,
    RegistryError,
    Replied,
    SetData,
    ZooKeeperProcedures,
    create_missing,
)

MOST_NAMES: Final = 10_000
"""Topics and partitions of one request: each costs a request to ZooKeeper."""


def fault_of(request: Request, settings: CoordinatorSettings) -> tuple[RewriteError, str] | None:
    """Return the error and the reason for which a request is refused; None for a correct one."""
    if isinstance(request, m.MetadataRequest):
        topics = len(request.topics or ())
        return (RewriteError.INVALID_REQUEST, f"{topics} topics") if topics > MOST_NAMES else None
    if not is_legal_name(group_of(request)):
        return RewriteError.INVALID_REQUEST, "a group id that is not allowed"
    if isinstance(request, m.rewrite.RewriteJoinGroupRequest):
        return _names(request.topics) or _join(request, settings)
    if isinstance(request, m.OffsetCommitRequest | m.OffsetFetchRequest):
        return _names(topic.name for topic in request.topics or ()) or _numbers(_numbers_of(request))
    return None


def _numbers_of(request: m.OffsetCommitRequest | m.OffsetFetchRequest) -> Iterator[int]:
    if isinstance(request, m.OffsetFetchRequest):
        for wanted in request.topics or ():
            yield from wanted.partition_indexes
    else:
        for topic in request.topics:
            for partition in topic.partitions:
                yield partition.partition_index
                yield partition.committed_offset


def _join(request: m.rewrite.RewriteJoinGroupRequest, settings: CoordinatorSettings) -> tuple[RewriteError, str] | None:
    if request.strategy not in STRATEGIES:
        return RewriteError.UNKNOWN_STRATEGY, f"strategy {request.strategy[:100]!r}"
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        return RewriteError.INVALID_SESSION_TIMEOUT, f"session timeout {request.session_timeout_ms} ms"
    return None


def _names(topics: Iterable[str]) -> tuple[RewriteError, str] | None:
    for number, topic in enumerate(topics):
        if not is_legal_name(topic):
            return RewriteError.INVALID_REQUEST, f"topic {topic[:100]!r}"
        if number == MOST_NAMES:
            return RewriteError.INVALID_REQUEST, f"more than {MOST_NAMES} topics"
    return None


def _numbers(numbers: Iterable[int]) -> tuple[RewriteError, str] | None:
    for count, number in enumerate(numbers):
        if number < 0:
            return RewriteError.INVALID_REQUEST, "a partition or an offset below 0"
        if count == 2 * MOST_NAMES:  # a commit has two for each partition
            return RewriteError.INVALID_REQUEST, f"more than {MOST_NAMES} partitions"
    return None


class Cluster:
    """Answers Metadata.

    :param brokers: those of the cluster, and the registration of this one
    """

    def __init__(self, brokers: Brokers, outbox: Outbox) -> None:
        self._brokers = brokers
        self._outbox = outbox

    def metadata(self, connection: int, request: m.MetadataRequest) -> Procedure:
        """Answer Metadata 0: the brokers, and the topics asked for, of which none means all."""
        topics = [topic.name or "" for topic in request.topics or ()]
        if not topics:
            topics = list((yield ReadChildren(BROKER_TOPICS)) or ())
        legal = [topic for topic in topics if is_legal_name(topic)]
        nodes: list[Node | None] = yield [Read(topic_path(topic)) for topic in legal]
        found = dict(zip(legal, nodes, strict=True))
        response = m.MetadataResponse(
            brokers=[
                m.MetadataResponseBroker(node_id=broker.broker_id, host=broker.host, port=broker.port)
                for broker in self._brokers.known.values()
            ],
            topics=[self._topic(topic, found.get(topic)) for topic in topics],
        )
        self._outbox.answer(connection, response)

    def _topic(self, topic: str, node: Node | None) -> m.MetadataResponseTopic:
        try:
            replicas = [] if node is None else parse_topic(node.data)
        except ValueError:
            replicas = []
        if not replicas:
            return m.MetadataResponseTopic(name=topic, error_code=RewriteError.UNKNOWN_TOPIC_OR_PARTITION)
        return m.MetadataResponseTopic(name=topic, partitions=[self._partition(*each) for each in enumerate(replicas)])

    def _partition(self, number: int, replicas: list[int]) -> m.MetadataResponsePartition:
        live = [broker for broker in replicas if broker in self._brokers.known]
        return m.MetadataResponsePartition(
            error_code=RewriteError.NONE if live else RewriteError.LEADER_NOT_AVAILABLE,
            partition_index=number,
            leader_id=live[0] if live else -1,
            replica_nodes=replicas,
            isr_nodes=live,
        )


RETRY_MS: Final = 500


class Controller:
    """A candidate for controller.

    :param shards: how many, if ZooKeeper has no assignment yet
    """

    def __init__(self, broker_id: int, shards: int, outbox: Outbox) -> None:
        self._leadership = Leadership(
            broker_id,
            CONTROLLER,
            CONTROLLER_EPOCH,
            outbox.emit,
            outbox.tokens,
            self._elected,
            self._resigned,
            partial(outbox.note_failure, "election failed"),
        )
        self._outbox = outbox
        self._shards = shards
        self._changed = Latch()
        self._procedures = ZooKeeperProcedures(outbox.emit, outbox.tokens)
        self._now = 0
        self._broken = ""

    @property
    def deadline(self) -> int | None:
        """When `handle` has something to do, in ms; None for never."""
        return earliest(self._leadership.deadline, self._procedures.deadline)

    def handle(self, event: object, now: int) -> None:
        """Take in an event of the machine, of whatever class, before the machine does anything else."""
        self._now = now
        self._leadership.handle(event, now)
        if isinstance(event, Replied):
            self._procedures.replied(event, now)
        elif event == Fired(BROKER_IDS, of_children=True):
            self._changed.open()
        self._procedures.advance(now)
        if self._broken:
            reason, self._broken = self._broken, ""
            self._leadership.resign(reason)

    def bar(self, reason: str) -> None:
        """See `Leadership.bar`."""
        self._leadership.bar(reason)

    def _elected(self, epoch: int) -> None:
        self._outbox.note("controller elected", epoch=epoch)
        self._procedures.start(self._lead(), self._now)

    def _resigned(self, reason: str) -> None:
        self._outbox.note("controller resigned", logging.WARNING, reason=reason)
        self._procedures.cancel_all()

    def _lead(self) -> Procedure:
        try:
            yield from self._assign()
        except (RegistryError, ValueError) as error:
            self._outbox.note_failure("shards not assigned", str(error))
            yield Sleep(RETRY_MS)
            self._broken = str(error)

    def _assign(self) -> Procedure:
        """Assign the shards to the brokers that live, and again when others do."""
        yield from create_missing(*ROOTS, *ancestors(SHARDS))
        while True:
            self._changed = changed = Latch()
            names: tuple[str, ...] = (yield ReadChildren(BROKER_IDS, watch=True)) or ()
            live = sorted(int(name) for name in names if name.isdecimal())
            node: Node | None = yield Read(SHARDS)
            before = [None] * self._shards if node is None else parse_owners(node.data)
            after = spread(before, live)
            data = json.dumps(after).encode()
            if node is None:
                yield self._leadership.guarded(Create(SHARDS, data))
            elif after != before:
                yield self._leadership.guarded(SetData(SHARDS, data, node.version))
            if after != before:
                self._outbox.note("shards assigned", brokers=live, moved=_differences(before, after))
            yield Latched(changed)


def _differences(before: Sequence[int | None], after: Sequence[int | None]) -> int:
    return sum(old != new for old, new in zip(before, after, strict=True))


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
        own = (self._presence.deadline, self.brokers.deadline, self._controller.deadline)
        return earliest(*own, self._outbox.timers.next)

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
        reason = "another broker has the id" if self.brokers.is_taken else ""
        self._presence.bar(reason)
        self._controller.bar(reason)
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
        return outbox.drain()

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
