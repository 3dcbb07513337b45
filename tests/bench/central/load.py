"""Thousands of consumers of the draft on as many connections, driven by one event loop: the load of the benchmark.

A consumer here registers and answers each request at once, by the draft: pings and StopFetcher with the offset of each
partition it owns, StartFetcher with what it is given. It fetches nothing. What is measured of the coordinator is when
its requests come.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import kcoord_wire as kw
from kcoord_wire.central.dialects import draft_frame
from kcoord_wire.messages import central as m

ASKED = {7: m.PingRequest, 8: m.StopFetcherRequest, 9: m.StartFetcherRequest}
AT_ONCE = 50  # connections that are being opened
LOOK_SECONDS = 0.01
PATIENCE = 600.0  # seconds that any step may take


class LoadConsumer(asyncio.Protocol):
    """One consumer.

    :ivar owned: offsets by topic and partition; None while its fetchers are stopped
    """

    __slots__ = ("buffer", "consumer_id", "load", "number", "owned", "pinged_at", "registered", "transport")

    def __init__(self, load: Load, number: int) -> None:
        self.load = load
        self.number = number
        self.consumer_id = f"consumer-{number:05}"
        self.owned: dict[tuple[str, str], int] | None = None
        self.pinged_at = 0.0
        self.registered = asyncio.get_running_loop().create_future()
        self.buffer = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        load = self.load
        request = m.RegisterConsumerRequest(
            group_id=load.group_of(self.number),
            consumer_id=self.consumer_id,
            topic_count=json.dumps({load.topic: 1}),
            auto_commit=True,
            auto_offset_rest="smallest",
            session_timeout_ms=load.session_ms,
            fence=[],
        )
        self.transport.write(draft_frame(request))

    def connection_lost(self, exc: Exception | None) -> None:
        self.load.lost(self)

    def data_received(self, data: bytes) -> None:
        data = self.buffer + data if self.buffer else data
        while len(data) >= 4:
            end = int.from_bytes(data[:4], "big") + 4
            if len(data) < end:
                break
            self.take(data[4:end])
            data = data[end:]
        self.buffer = data

    def take(self, body: bytes) -> None:
        if not self.registered.done():
            error_code = kw.decode(m.RegisterConsumerResponse, body, 0).error_code
            if error_code:
                raise RuntimeError(f"{self.consumer_id} is refused with error {error_code}")
            self.registered.set_result(None)
            return
        request = kw.decode(ASKED[int.from_bytes(body[:2], "big")], body[2:], 0)
        if isinstance(request, m.PingRequest):
            self.load.pings.take(self, request.num_retries)
            self.answer(m.PingResponse(consumer_id=self.consumer_id, offset_info=self.offsets(m.PingResponseOffset)))
        elif isinstance(request, m.StopFetcherRequest):
            offsets = self.offsets(m.StopFetcherResponseOffset)
            self.owned = None
            self.load.stopped(self)
            self.answer(m.StopFetcherResponse(consumer_id=self.consumer_id, offset_info=offsets))
        else:
            parts = [part for thread in request.ownership_info for part in thread.assigned_parts]
            self.owned = {(part.topic, part.partition): max(part.offset, 0) for part in parts}
            self.load.started(self)
            self.answer(m.StartFetcherResponse(consumer_id=self.consumer_id))

    def offsets(self, make: Callable[..., Any]) -> list[Any]:
        """The offsets that it reports: each partition has moved by one record since the last report."""
        owned = self.owned
        if owned is None:
            return []
        for key in owned:
            owned[key] += 1
        return [make(topic=topic, partition=name, offset=offset) for (topic, name), offset in owned.items()]

    def answer(self, message: Any) -> None:
        self.transport.write(draft_frame(message))


@dataclass
class Pings:
    """What has come of the pings.

    :ivar period: seconds that should be between two of one consumer: a third of its session timeout
    :ivar lateness: seconds beyond the period, of each ping but the first of each consumer
    :ivar retries: pings that were repeated ones
    """

    period: float
    lateness: list[float] = field(default_factory=list)
    retries: int = 0

    def take(self, consumer: LoadConsumer, num_retries: int) -> None:
        now = time.perf_counter()
        if consumer.pinged_at:
            self.lateness.append(now - consumer.pinged_at - self.period)
        consumer.pinged_at = now
        self.retries += num_retries > 0


class Load:
    """The consumers of groups that consume one topic.

    :param address: of the coordinator
    :param group_size: consumers of each group
    :ivar pings: since `measure_pings` was called last
    """

    def __init__(self, address: str, topic: str, partitions: int, *, group_size: int, session_ms: int) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self.topic = topic
        self.session_ms = session_ms
        self.consumers: list[LoadConsumer] = []
        self.pings = Pings(session_ms / 3000)
        self._partitions = partitions
        self._group_size = group_size
        self._running: dict[str, dict[LoadConsumer, None]] = {}
        self._loop = asyncio.get_running_loop()
        self._failure: Exception | None = None
        self._is_closing = False
        self.first_stop = self.last_start = 0.0

    def group_of(self, number: int) -> str:
        return f"group-{number // self._group_size:04}"

    async def grow(self, count: int) -> float:
        """Connect and register so many more; return the seconds until each group is complete and running."""
        began = time.perf_counter()
        gate = asyncio.Semaphore(AT_ONCE)

        async def join(number: int) -> None:
            async with gate:
                _, consumer = await self._loop.create_connection(lambda: LoadConsumer(self, number), *self._address)
                self.consumers.append(consumer)
                await asyncio.wait_for(consumer.registered, PATIENCE)

        first = len(self.consumers)
        await asyncio.gather(*(join(number) for number in range(first, first + count)))
        await self.stable()
        return time.perf_counter() - began

    async def stable(self) -> None:
        """Wait until in each group every partition is owned by exactly one consumer.

        :raises TimeoutError: that is not so in time
        :raises ConnectionError: the coordinator has closed a connection
        """
        until = time.monotonic() + PATIENCE
        while not self._is_stable():
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > until:
                raise TimeoutError(f"{self._owners()} after {PATIENCE:.0f} s")
            await asyncio.sleep(LOOK_SECONDS)

    def _is_stable(self) -> bool:
        running = sum(map(len, self._running.values()))
        return running == len(self.consumers) and all(
            owned == distinct == self._partitions for owned, distinct in self._owners().values()
        )

    def _owners(self) -> dict[str, tuple[int, int]]:
        """By group: partitions that are owned, and how many different ones they are."""
        owners = {}
        for group, members in self._running.items():
            owned = [partition for member in members for partition in member.owned or ()]
            owners[group] = len(owned), len(set(owned))
        return owners

    async def rebalance(self, change: Callable[[], Any]) -> tuple[float, float]:
        """Cause one.

        :returns: seconds from the cause to the last StartFetcher, and from the first StopFetcher
        """
        self.first_stop = self.last_start = 0.0
        began = time.perf_counter()
        change()
        until = time.monotonic() + PATIENCE
        while not self.first_stop:
            if time.monotonic() > until:
                raise TimeoutError("no rebalance has begun")
            await asyncio.sleep(LOOK_SECONDS / 10)
        await self.stable()
        return self.last_start - began, self.last_start - self.first_stop

    def leave(self) -> None:
        """The last consumer closes its connection."""
        consumer = self.consumers.pop()
        self._forget(consumer)
        consumer.transport.abort()

    def measure_pings(self) -> None:
        """Begin anew."""
        self.pings = Pings(self.session_ms / 3000)
        for consumer in self.consumers:
            consumer.pinged_at = 0.0

    async def close(self) -> None:
        self._is_closing = True
        for consumer in self.consumers:
            consumer.transport.abort()
        await asyncio.sleep(0.1)

    # ---- what consumers call

    def stopped(self, consumer: LoadConsumer) -> None:
        self.first_stop = self.first_stop or time.perf_counter()
        self._forget(consumer)

    def started(self, consumer: LoadConsumer) -> None:
        self.last_start = time.perf_counter()
        self._running.setdefault(self.group_of(consumer.number), {})[consumer] = None

    def lost(self, consumer: LoadConsumer) -> None:
        if not self._is_closing and consumer in self.consumers:
            self._failure = ConnectionError(f"the coordinator has closed the connection of {consumer.consumer_id}")

    def _forget(self, consumer: LoadConsumer) -> None:
        self._running.get(self.group_of(consumer.number), {}).pop(consumer, None)
