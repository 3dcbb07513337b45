"""Hostile and broken consumers: a clear log line and error, and no other consumer is affected.

On the virtual loop. A healthy consumer answers during each attack. Afterwards it still has its connection and its
partitions, and was pinged in time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kcoord_wire.central.broker import CentralBroker
from kcoord_wire.central.dialects import draft_frame
from kcoord_wire.central.draft.events import CentralError, CoordinatorSettings
from kcoord_wire.central.peer import Limits
from kcoord_wire.kernel.driver import monotonic_ms
from kcoord_wire.messages import central as m
from tests.support.draft_wire import DraftPeer
from tests.support.virtual import run_virtually, serving
from tests.support.waiting import eventually_async

SESSION_MS = 1_500
ALL = {"1-0", "1-1", "1-2", "1-3"}


def registration(group: str, consumer: str, **fields: Any) -> m.RegisterConsumerRequest:
    values: dict[str, Any] = {"topic_count": '{"orders":1}', "auto_commit": True, "auto_offset_rest": "smallest"}
    values |= {"group_id": group, "consumer_id": consumer, "session_timeout_ms": SESSION_MS}
    return m.RegisterConsumerRequest(**(values | fields))


class Consumer:
    """Registers and answers by the draft, in a task.

    :ivar owned: its partitions; None while its fetchers are stopped
    :ivar starts: of its fetchers
    :ivar longest: ms between two requests of the coordinator
    """

    def __init__(self, wire: DraftPeer, name: str) -> None:
        self.name = name
        self.owned: set[str] | None = None
        self.starts = 0
        self.longest = 0
        self._wire = wire

    async def live(self) -> None:
        heard = monotonic_ms()
        while True:
            request = await self._wire.request()
            self.longest = max(self.longest, monotonic_ms() - heard)
            heard = monotonic_ms()
            self._answer(request)

    def _answer(self, request: object) -> None:
        if isinstance(request, m.PingRequest):
            self._wire.send(m.PingResponse(consumer_id=self.name, offset_info=[]))
        elif isinstance(request, m.StopFetcherRequest):
            self.owned = None
            self._wire.send(m.StopFetcherResponse(consumer_id=self.name, offset_info=[]))
        elif isinstance(request, m.StartFetcherRequest):
            self.owned = {part.partition for thread in request.ownership_info for part in thread.assigned_parts}
            self.starts += 1
            self._wire.send(m.StartFetcherResponse(consumer_id=self.name))


class Siege:
    """A broker under attack."""

    def __init__(self, broker: CentralBroker, log: pytest.LogCaptureFixture) -> None:
        self.broker = broker
        self._log = log

    def wire(self) -> DraftPeer:
        return DraftPeer(self.broker.port)

    @asynccontextmanager
    async def registered(self, group: str, consumer: str, **fields: object) -> AsyncIterator[DraftPeer]:
        """A consumer that does nothing after its registration."""
        async with self.wire() as wire:
            request = registration(group, consumer, **fields)
            assert (await wire.ask(request, m.RegisterConsumerResponse)).error_code == 0
            yield wire

    @asynccontextmanager
    async def healthy(self, group: str, name: str) -> AsyncIterator[Consumer]:
        """A consumer that answers; it must have its partitions, and be there until the end."""
        async with self.registered(group, name) as wire:
            consumer = Consumer(wire, name)
            living = asyncio.create_task(consumer.live())
            await eventually_async(lambda: consumer.owned)
            yield consumer
            assert not living.done()
            living.cancel()
            await asyncio.wait([living])

    async def logged(self, pattern: str) -> None:
        """Wait for a log line."""
        await eventually_async(lambda: any(re.search(pattern, each.getMessage()) for each in self._log.records))

    def count(self, reason: str, level: str = "") -> int:
        """How many lines of the log have that text."""
        return sum(reason in each.getMessage() and level in each.levelname for each in self._log.records)


Attack = Callable[[Siege], Coroutine[Any, Any, None]]


def withstand(attack: Attack, log: pytest.LogCaptureFixture) -> None:
    """The healthy consumer is not affected, and new ones are served."""

    async def siege() -> None:
        limits = Limits(frame_ms=400, unread_ms=400, idle_ms=2_000, max_connections_per_host=300)
        settings = CoordinatorSettings(min_session_timeout_ms=500, rebalance_backoff_ms=100)
        broker = CentralBroker(topics={"orders": 4}, rate=100_000.0, settings=settings, limits=limits)
        siege = Siege(broker, log)
        async with serving(broker), siege.healthy("healthy", "h") as healthy:
            await attack(siege)
            async with siege.healthy("afterwards", "a"):
                pass
            assert healthy.owned == ALL
            assert healthy.starts == 1
            assert healthy.longest < SESSION_MS
        assert siege.count("", "ERROR") == 0

    log.set_level("INFO", "kcoord_wire.central")
    run_virtually(siege())


GARBAGE = {
    "a size of 2 GB": (b"\x7f\xff\xff\xff", "a frame of 2147483647 bytes"),
    "a negative size": (b"\x80\x00\x00\x00", "a frame of 2147483648 bytes"),
    "a size of -1": (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
    "a size above the limit, after a request": (b"\0\0\0\2\0\5\0\x10\0\0", "frame size 1048576 is above the limit"),
    "an empty frame": (b"\0\0\0\0", "2 bytes of type id are needed"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "looks like plain text"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", "looks like TLS"),
    "a Kafka request": (b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff", "18 is no type id"),
    "an unknown type": (b"\0\0\0\2\x7f\xff", "32767 is no type id"),
    "a string past the end": (b"\0\0\0\6\0\6\x7f\xffgg", "RegisterConsumerRequest"),
    "a string of -2": (b"\0\0\0\4\0\6\xff\xfe", "RegisterConsumerRequest"),
    "a list of 32,767, no data": (b"\0\0\0\7\0\x07\0\0\0\0\x7f", "PingResponse"),
    "not UTF-8": (b"\0\0\0\6\0\6\0\2\xc3\x28", "RegisterConsumerRequest"),
    "bytes left over": (b"\0\0\0\6\0\5\0\0xy", "2 bytes are left"),
}


async def bytes_that_do_not_decode(siege: Siege) -> None:
    for number, (data, reason) in enumerate(GARBAGE.values()):
        async with siege.wire() as wire:
            wire.send_raw(data)
            assert await wire.is_closed()
        await siege.logged(f"connection closed peer=10.0.1.2 reason=.*{re.escape(reason)}")
        assert siege.broker._server.dropped == number + 1


async def garbage_of_a_registered_consumer(siege: Siege) -> None:
    async with siege.registered("garbage", "g") as wire:
        wire.send_raw(b"\0\0\0\2\x7f\xff")
        assert await wire.is_closed()
    await siege.logged("consumer failed group=garbage consumer=g reason=its connection ended")


REFUSED = [
    ({"session_timeout_ms": 499}, CentralError.INVALID_SESSION_TIMEOUT),
    ({"session_timeout_ms": -1}, CentralError.INVALID_SESSION_TIMEOUT),
    ({"session_timeout_ms": 0x7FFFFFFF}, CentralError.INVALID_SESSION_TIMEOUT),
    ({"consumer_id": "h"}, CentralError.DUPLICATE_CONSUMER_ID),
    ({"consumer_id": "../h"}, CentralError.INVALID_CONSUMER_ID),
    ({"consumer_id": ""}, CentralError.INVALID_CONSUMER_ID),
    ({"group_id": "coordinator"}, CentralError.INVALID_GROUP_ID),
    ({"group_id": "a/b"}, CentralError.INVALID_GROUP_ID),
    ({"topic_count": "[" * 10_000}, CentralError.INVALID_TOPIC_COUNT),
    ({"topic_count": '{"orders":1000000000}'}, CentralError.INVALID_TOPIC_COUNT),
    ({"topic_count": "*1*(a"}, CentralError.INVALID_TOPIC_COUNT),
    ({"auto_offset_rest": "nowhere"}, CentralError.INVALID_OFFSET_RESET),
]


async def registrations_that_are_refused(siege: Siege) -> None:
    for fields, error in REFUSED:
        async with siege.wire() as wire:
            request = registration("healthy", "other", **fields)
            assert (await wire.ask(request, m.RegisterConsumerResponse)).error_code == error
            assert (await wire.ask(m.ClusterMetadataRequest(), m.ClusterMetadataResponse)).coordinator_id == 1
    assert siege.count("registration refused group=") == len(REFUSED)


async def two_registrations_on_a_connection(siege: Siege) -> None:
    """The same consumer again, or another one on its connection."""
    for number, again in enumerate(("twice", "another")):
        async with siege.registered("twice", "twice") as wire:
            wire.send(registration("twice", again))
            assert await wire.is_closed()
        assert siege.count("consumer failed group=twice consumer=twice reason=") == number + 1


async def a_consumer_that_answers_nothing(siege: Siege) -> None:
    """Its group goes on without it."""
    async with siege.registered("silent", "s", session_timeout_ms=600) as wire, siege.healthy("silent", "t") as other:
        await eventually_async(lambda: other.owned == ALL)
        assert await wire.is_closed()
    await siege.logged("consumer failed group=silent consumer=s reason=")


async def an_answer_with_anothers_id(siege: Siege) -> None:
    async with siege.registered("impostor", "i") as wire:
        assert isinstance(await wire.request(), m.StopFetcherRequest)
        wire.send(m.StopFetcherResponse(consumer_id="h", offset_info=[]))
        assert await wire.is_closed()
    await siege.logged("consumer failed group=impostor consumer=i reason=an answer in the name of 'h'")


async def unsolicited_answers(siege: Siege) -> None:
    for answer in (m.PingResponse(consumer_id="u"), m.StartFetcherResponse(consumer_id="u")):
        async with siege.registered("unasked", "u") as wire:
            await wire.request()  # StopFetcher: another answer is not the one to it
            wire.send(answer)
            assert await wire.is_closed()
        await siege.logged(f"a {type(answer).__name__} that was not asked for")


async def an_answer_before_a_registration(siege: Siege) -> None:
    async with siege.wire() as wire:
        wire.send(m.PingResponse(consumer_id="h", offset_info=[m.PingResponseOffset(topic="orders", partition="1-0")]))
        assert await wire.is_closed()
    await siege.logged("connection closed .*a PingResponse that was not asked for")


async def offsets_of_others_and_negative_ones(siege: Siege) -> None:
    foreign = [m.PingResponseOffset(topic="orders", partition="1-0", offset=offset) for offset in (1 << 62, -5)]
    foreign += [m.PingResponseOffset(topic="nothing/../x", partition="9-9", offset=3)]
    async with siege.registered("thief", "t") as wire:
        await wire.request()
        wire.send(m.StopFetcherResponse(consumer_id="t", offset_info=[]))
        await wire.request()
        wire.send(m.StartFetcherResponse(consumer_id="t"))
        assert isinstance(await wire.request(), m.PingRequest)
        wire.send(m.PingResponse(consumer_id="t", offset_info=foreign))
        await siege.logged("offsets of partitions of others group=thief consumer=t")


async def a_flood_of_requests(siege: Siege) -> None:
    """Its sender reads nothing."""
    metadata = draft_frame(m.ClusterMetadataRequest())
    fetch = draft_frame(m.CentralFetchRequest(topic="orders", partition=0, offset=0, max_size=64 << 10))
    async with siege.wire() as wire, siege.wire() as other:
        wire.send_raw(metadata * 20_000)
        other.send_raw(fetch * 2_000)
        await eventually_async(lambda: siege.count("unread answers"))


async def connections_that_come_and_go_or_stay(siege: Siege) -> None:
    for number in range(400):
        async with siege.wire() as wire:
            if number % 2:
                wire.send(registration("churn", f"c-{number}", session_timeout_ms=500))
    wires = [siege.wire() for _ in range(350)]
    for wire in wires:
        await wire.__aenter__()
    await siege.logged("connections of its host are open")
    for wire in wires:
        wire.reset()
    await eventually_async(lambda: len(siege.broker._server.connections) == 1)


ATTACKS: list[Attack] = [
    bytes_that_do_not_decode,
    garbage_of_a_registered_consumer,
    registrations_that_are_refused,
    two_registrations_on_a_connection,
    a_consumer_that_answers_nothing,
    an_answer_with_anothers_id,
    unsolicited_answers,
    an_answer_before_a_registration,
    offsets_of_others_and_negative_ones,
    a_flood_of_requests,
    connections_that_come_and_go_or_stay,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_no_other_consumer_is_affected_by(attack: Attack, caplog: pytest.LogCaptureFixture) -> None:
    withstand(attack, caplog)
