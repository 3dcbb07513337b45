"""A broker of the draft for tests of consumers: its server is the real one, its coordinator does what the test says."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from kcoord_wire.central.draft.events import ConsumerSettings, Partition
from kcoord_wire.central.served_topics import GeneratedTopics
from kcoord_wire.central.server import Server
from kcoord_wire.kernel.machines import BrokerAddress, Close, Disconnected, Received, Send, Tick
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.requests import Ask

T = TypeVar("T")


class ScriptedCoordinator:
    """Accepts consumers and pings them; a test sends further requests with `send`.

    :param ping_ms: between two pings; 0 for none
    :param register: the answer to RegisterConsumer
    :ivar registered: the connection of each consumer, by its id
    :ivar answers: of consumers, in order
    :ivar closed: numbers of the connections that have ended
    """

    def __init__(self, *, ping_ms: int = 100, register: m.RegisterConsumerResponse | None = None) -> None:
        self.broker = BrokerAddress(1, "127.0.0.1", 0)
        self.registrations: list[m.RegisterConsumerRequest] = []
        self.registered: dict[str, int] = {}
        self.answers: list[Any] = []
        self.closed: list[int] = []
        self.server: Server
        self.topics: GeneratedTopics
        self.fence: tuple[int, int] | None = None
        self.ping_ms = ping_ms
        self.is_silent = False
        self.response = register or m.RegisterConsumerResponse()
        self._ping_at: int | None = ping_ms or None

    @property
    def deadline(self) -> int | None:
        return self._ping_at

    def handle(self, event: Any, now: int) -> Sequence[Any]:
        if isinstance(event, Disconnected):
            self.closed.append(event.connection)
            self.registered = {name: at for name, at in self.registered.items() if at != event.connection}
        elif isinstance(event, Tick):
            self._ping_at = now + self.ping_ms
            if not self.is_silent:
                return [Send(at, self.fenced(m.PingRequest(consumer_id=name))) for name, at in self.registered.items()]
        elif isinstance(event, Received):
            return self._received(event.connection, event.message)
        return ()

    def _received(self, connection: int, message: Any) -> Sequence[Any]:
        if isinstance(message, m.ClusterMetadataRequest):
            broker = m.ClusterMetadataResponseBroker(id=1, host=self.broker.host, port=self.broker.port)
            return [Send(connection, m.ClusterMetadataResponse(coordinator_id=1, brokers_info=[broker]))]
        if isinstance(message, m.RegisterConsumerRequest):
            self.registrations.append(message)
            if not self.response.error_code:
                self.registered[message.consumer_id] = connection
            return [Send(connection, self.response)]
        self.answers.append(message)
        return ()

    # ---- what a test does

    def send(self, request: Any) -> None:
        """Send a request to the consumer that it names."""
        self.do(Send(self.registered[request.consumer_id], self.fenced(request)))

    def close(self, consumer_id: str) -> None:
        self.do(Close(self.registered.pop(consumer_id)))

    def do(self, effect: Any) -> None:
        self.server._execute(self, effect, None)

    def fenced(self, request: Any) -> Any:
        if self.fence is None:
            return request
        kind = getattr(m, f"{type(request).__name__}Fence")
        return replace(request, fence=[kind(epoch=self.fence[0], generation=self.fence[1])])

    def ask(self, ask: Ask) -> None:
        raise AssertionError("it asks nothing of ZooKeeper")

    def answers_of(self, kind: type[T]) -> list[T]:
        return [answer for answer in self.answers if isinstance(answer, kind)]

    def fetch(self, request: m.CentralFetchRequest) -> m.CentralFetchResponse:
        return self.topics.fetch(request, time.time_ns() // 1_000_000)


@asynccontextmanager
async def running_broker(
    coordinator: ScriptedCoordinator, *, rate: float = 1000, kept: int | None = None, age_ms: int = 1000
) -> AsyncIterator[ScriptedCoordinator]:
    """A broker 1 on a free port, with topic ``orders`` of four partitions, whose records began `age_ms` ago."""
    since = time.time_ns() // 1_000_000 - age_ms
    coordinator.topics = GeneratedTopics(1, {"orders": 4}, since, rate, kept=kept)
    coordinator.server = Server({m.CentralFetchRequest: coordinator.fetch})
    port = await coordinator.server.listen("127.0.0.1", 0)
    await coordinator.server.serve(coordinator, registry=coordinator)
    coordinator.broker = BrokerAddress(1, "127.0.0.1", port)
    try:
        coordinator.server._driver.wind()  # sets the timer of the first ping
        yield coordinator
    finally:
        await coordinator.server.close()


def consumer_settings(*brokers: BrokerAddress, **settings: Any) -> ConsumerSettings:
    """Settings of consumer ``c-1`` of group ``g``."""
    values = {"session_timeout_ms": 3_000, "reconnect_backoff_ms": 50} | settings
    return ConsumerSettings("g", "c-1", '{"orders": 1}', brokers, **values)


def start_request(offsets: dict[Partition, int], *brokers: BrokerAddress) -> m.StartFetcherRequest:
    """StartFetcher for consumer ``c-1``, all partitions to one thread."""
    parts = [
        m.StartFetcherRequestPartition(topic=partition.topic, partition=partition.name, offset=offset)
        for partition, offset in offsets.items()
    ]
    return m.StartFetcherRequest(
        consumer_id="c-1",
        ownership_info=[m.StartFetcherRequestOwnership(consumer_thread_id="c-1-0", assigned_parts=parts)],
        brokers_info=[m.StartFetcherRequestBroker(id=b.broker_id, host=b.host, port=b.port) for b in brokers],
    )
