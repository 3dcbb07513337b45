"""The connections of one consumer, and the metadata that it keeps up to date through them.

Laws:

* One connection to each broker that is fetched from, one for Metadata and FindCoordinator, and one to the coordinator,
  which its `Membership` owns: a fetch that the broker holds back delays no heartbeat.
* A connection that has ended is opened again at its next use, and by no timer.
* At most one Metadata request is in flight. It is repeated with a growing pause until its answer is complete, then
  every ``metadata_max_age_ms``.
* A leader epoch never goes back: an older response does not replace a newer leader (KIP-320). `Metadata`, which takes
  in the responses, does no IO.
* That no broker answers is logged as a warning, once for each reason: `poll` goes on waiting, and raises only what is
  not retriable.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.assignors import Racks, TopicPartition
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE
from kcoord_wire.consumer.connection import BrokerConnection, ConnectionSettings
from kcoord_wire.consumer.errors import BrokerError, ConnectionLostError, TopicError
from kcoord_wire.consumer.metrics import Metrics
from kcoord_wire.consumer.settings import ConsumerSettings
from kcoord_wire.kernel.net import address_text
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

_FATAL: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION)
_UNKNOWN: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_LARGEST_PORT: Final = 0xFFFF
NO_ID: Final = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class Leader:
    """The broker that leads a partition.

    :ivar node_id: -1 while there is none
    :ivar epoch: -1 if it is unknown
    """

    node_id: int
    epoch: int


@dataclass(slots=True)
class Metadata:
    """What is known of the cluster.

    :ivar addresses: node id to host and port
    :ivar counts: topic to its number of partitions; internal topics are in `internal`, too
    :ivar topic_ids: topic to its id; topics without one have no entry
    :ivar internal: the brokers' own topics
    :ivar refused: topic to the error that does not go away: it may not be read, or its name is not valid
    """

    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    topic_ids: dict[str, uuid.UUID] = field(default_factory=dict)
    internal: set[str] = field(default_factory=set)
    refused: dict[str, TopicError] = field(default_factory=dict)
    _racks: dict[int, str] = field(default_factory=dict)
    _replicas: dict[str, list[list[int]]] = field(default_factory=dict)
    _leaders: dict[TopicPartition, Leader] = field(default_factory=dict)

    def update(self, response: m.MetadataResponse, *, is_all: bool) -> tuple[bool, list[TopicError]]:
        """Take in a response.

        :param is_all: whether it names every topic, so that the others do not exist
        :returns: whether it is complete, so that it need not be asked for again soon; and what will not go away
        """
        if response.brokers:
            self._take_brokers(response.brokers)
        complete = bool(response.brokers) and not response.error_code
        if is_all and complete:
            for name in self.counts.keys() - {topic.name for topic in response.topics}:
                self._forget(name)
        failures: list[TopicError] = []
        for topic in response.topics:
            error = topic.error_code
            if topic.name is None:
                continue
            if error in _FATAL:
                self.refused[topic.name] = TopicError(topic.name, ErrorCode(error))
                failures.append(self.refused[topic.name])
            elif error in _UNKNOWN:
                self._forget(topic.name)
            elif not error:
                complete &= self._take(topic.name, topic)
            complete &= not error or error in _FATAL
        return complete, failures

    def _take_brokers(self, brokers: Iterable[m.MetadataResponseBroker]) -> None:
        usable = [broker for broker in brokers if 0 < broker.port <= _LARGEST_PORT]
        self.addresses = {broker.node_id: (broker.host, broker.port) for broker in usable}
        self._racks = {broker.node_id: broker.rack for broker in usable if broker.rack is not None}

    def _take(self, name: str, topic: m.MetadataResponseTopic) -> bool:
        self.refused.pop(name, None)
        if topic.topic_id != NO_ID:
            if self.topic_ids.get(name, topic.topic_id) != topic.topic_id:
                self._forget(name)  # deleted and created again: leader epochs begin anew
            self.topic_ids[name] = topic.topic_id
        if topic.is_internal:
            self.internal.add(name)
        self.counts[name] = len(topic.partitions)
        parts = sorted(topic.partitions, key=lambda partition: partition.partition_index)
        self._replicas[name] = [partition.replica_nodes for partition in parts]
        has_leaders = True
        for partition in topic.partitions:
            key = TopicPartition(name, partition.partition_index)
            known = self._leaders.get(key)
            if known is None or partition.leader_epoch < 0 or partition.leader_epoch >= known.epoch:
                self._leaders[key] = Leader(partition.leader_id, partition.leader_epoch)
            has_leaders &= self._leaders[key].node_id in self.addresses
        return has_leaders

    def _forget(self, name: str) -> None:
        self.counts.pop(name, None)
        self.topic_ids.pop(name, None)
        self._replicas.pop(name, None)
        self.internal.discard(name)
        for key in [key for key in self._leaders if key.topic == name]:
            del self._leaders[key]

    def leader(self, partition: TopicPartition) -> Leader | None:
        """Return the leader of a partition; None if none is known whose address is."""
        leader = self._leaders.get(partition)
        return leader if leader is not None and leader.node_id in self.addresses else None

    def matching(self, pattern: re.Pattern[str], *, exclude_internal: bool) -> list[str]:
        """Return the topics whose whole name matches, in order; as Kafka, the brokers' own only if it is asked for."""
        return sorted(
            name for name in self.counts if pattern.fullmatch(name) and not (exclude_internal and name in self.internal)
        )

    def counts_of(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Return the number of partitions of those of the topics that are known."""
        return {topic: self.counts[topic] for topic in topics if topic in self.counts}

    def racks_of(self, topics: Iterable[str]) -> Racks:
        """Return the racks of the replicas of those of the topics that are known; none if brokers have none."""
        if not self._racks:
            return {}
        return {
            topic: [frozenset(self._racks[node] for node in nodes if node in self._racks) for nodes in replicas]
            for topic in topics
            if (replicas := self._replicas.get(topic)) is not None
        }


def metadata_request(topics: Iterable[str] | None, *, may_create: bool) -> m.MetadataRequest:
    """Return the request about these topics; about all for None.

    :param may_create: let the broker create those that do not exist, if it is set up to do so
    """
    if topics is None:
        return m.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    names = [m.MetadataRequestTopic(name=name) for name in sorted(topics)]
    return m.MetadataRequest(topics=names, allow_auto_topic_creation=may_create)


class Signal:
    """Wakes the tasks that wait at the moment. What happens while none waits is not kept: look first, then wait."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Wake the waiting tasks."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self, deadline: float | None = None) -> bool:
        """Wait for the next `set`; return False if `deadline` came first.

        :param deadline: of the event loop's clock, in seconds; None for none
        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True


_LOG: Final = logging.getLogger(__name__)
_NEWEST_METADATA: Final = 12  # 13 adds an error for the whole request, which only topic ids need


def backoff_seconds(settings: ConsumerSettings, failures: int) -> float:
    """Return the pause before the next try (KIP-580).

    :param failures: in a row, 1 or more
    """
    return min(settings.retry_backoff_ms << min(failures - 1, 20), settings.retry_backoff_max_ms) / 1000


class Brokers:
    """Opens and keeps connections.

    :ivar metadata: what is known of the cluster
    :ivar metrics: of all connections, and of what else the consumer does
    """

    def __init__(self, settings: ConsumerSettings) -> None:
        self.metadata: Metadata = Metadata()
        self.metrics: Metrics = Metrics()
        self._bootstrap = settings.addresses
        self._options = ConnectionSettings(
            client_id=settings.client_id,
            tls=settings.tls,
            sasl=settings.sasl,
            request_timeout_ms=settings.request_timeout_ms,
            metrics=self.metrics,
            # The first batch of a response may be larger than the limits of its request (KIP-74).
            max_response_bytes=max(DEFAULT_MAX_FRAME_SIZE, 2 * settings.fetch_max_bytes),
        )
        self._by_node: dict[int, tuple[tuple[str, int], BrokerConnection]] = {}
        self._opening: dict[int, asyncio.Lock] = {}
        self._any: BrokerConnection | None = None
        self._finding = asyncio.Lock()
        self._tries = 0

    async def open(self, host: str, port: int) -> BrokerConnection:
        """Open a connection that belongs to the caller.

        :raises BrokerError: it cannot be made
        """
        try:
            return await BrokerConnection.open(host, port, self._options)
        except UnicodeError as error:  # no host can have such a name, whatever the metadata says
            raise ConnectionLostError(address_text(host, port), str(error)) from error

    async def any(self) -> BrokerConnection:
        """Return the connection for Metadata and FindCoordinator, to whichever broker answers.

        :raises BrokerError: no broker can be reached: the error of the last one
        """
        async with self._finding:
            if self._any is not None and not self._any.lost.done():
                return self._any
            addresses = list(dict.fromkeys(chain(self.metadata.addresses.values(), self._bootstrap)))
            failure: BrokerError | None = None
            for index in range(len(addresses)):
                host, port = addresses[(self._tries + index) % len(addresses)]
                try:
                    self._any = await self.open(host, port)
                except BrokerError as error:
                    failure = error
                else:
                    return self._any
            assert failure is not None  # there is a bootstrap server at least
            raise failure

    async def to(self, node_id: int) -> BrokerConnection:
        """Return the connection for fetching from a broker, and for asking it for offsets.

        :raises BrokerError: it cannot be made
        """
        async with self._opening.setdefault(node_id, asyncio.Lock()):
            address = self.metadata.addresses.get(node_id)
            if address is None:  # since the caller has looked
                raise ConnectionLostError(f"broker {node_id}", "its address is not known any more")
            known_address, connection = self._by_node.get(node_id, (None, None))
            if connection is not None and (known_address != address or connection.lost.done()):
                await connection.close()
                connection = None
            if connection is None:
                connection = await self.open(*address)
                self._by_node[node_id] = (address, connection)
            return connection

    async def drop_any(self) -> None:
        """Close the connection for Metadata, and begin with another broker next time."""
        self._tries += 1
        connection, self._any = self._any, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Close all connections, except those that `open` has returned."""
        connections = [connection for _, connection in self._by_node.values()]
        if self._any is not None:
            connections.append(self._any)
        self._by_node.clear()
        self._any = None
        await asyncio.gather(*(connection.close() for connection in connections))


class MetadataKeeper:
    """Keeps `Brokers.metadata` up to date.

    :param wanted: returns the topics to ask for; None for all
    :param updated: called after each answer, with the topics that cannot be read
    :ivar failure: why the last request had no answer; None if it had
    :ivar group_topics: asked for, too; a leader needs the topics of the whole group
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        brokers: Brokers,
        wanted: Callable[[], Collection[str] | None],
        updated: Callable[[list[TopicError]], None],
    ) -> None:
        self.failure: BrokerError | None = None
        self.group_topics: frozenset[str] = frozenset()
        self._signal = Signal()
        self._asked_for = self._answered_for = 0
        self._settings = settings
        self._brokers = brokers
        self._wanted = wanted
        self._updated = updated
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Ask for metadata soon."""
        self._due.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="consumer metadata")

    async def answer(self, deadline: float | None) -> None:
        """Ask, and wait for an answer to a request that has not been sent yet.

        :param deadline: of the loop's clock, in seconds; it passes without an error. None for none
        :raises BrokerError: the brokers refuse this client for good
        """
        self._asked_for += 1
        number = self._asked_for
        self.request()
        while self._answered_for < number and await self._signal.wait(deadline):
            if self.failure is not None and not self.failure.retriable:
                raise self.failure

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        failures = 0
        while True:
            self._due.clear()
            complete = await self._refresh()
            failures = 0 if complete else failures + 1
            if failures:
                await asyncio.sleep(backoff_seconds(self._settings, failures))
                continue
            try:
                # A request that comes early waits: several failures often have one cause.
                await asyncio.sleep(backoff_seconds(self._settings, 1))
                async with asyncio.timeout(self._settings.metadata_max_age_ms / 1000):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def _refresh(self) -> bool:
        """Ask once; return whether the answer is complete."""
        number = self._asked_for
        wanted = self._wanted()
        if wanted is not None:
            wanted = {*wanted, *self.group_topics}
        request = metadata_request(wanted, may_create=self._settings.allow_auto_create_topics)
        try:
            connection = await self._brokers.any()
            version = connection.highest_version(ApiKey.METADATA, _NEWEST_METADATA)
            response = await connection.request(request, version)
        except BrokerError as error:
            self._note(error)
            await self._brokers.drop_any()
            self._updated([])
            self._signal.set()
            return False
        self._note(None)
        complete, failures = self._brokers.metadata.update(response, is_all=wanted is None)
        self._updated(failures)
        self._answered_for = number
        self._signal.set()
        return complete

    def _note(self, failure: BrokerError | None) -> None:
        if failure is None and self.failure is not None:
            _LOG.warning("a broker answers again")
        elif failure is not None and failure.retriable and str(failure) != str(self.failure):
            _LOG.warning("no broker answers, trying again: %s", failure)
        self.failure = failure
