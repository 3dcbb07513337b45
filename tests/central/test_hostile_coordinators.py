"""Coordinators that are broken or hostile: each connection is closed with a log line, and the consumer tries again."""

from __future__ import annotations

import asyncio
import logging
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import kcoord_wire as kw
from kcoord_wire.central.client import CentralConsumer
from kcoord_wire.central.dialects import draft_frame
from kcoord_wire.central.draft.events import LARGEST_MESSAGE, Partition
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.messages import central as m
from tests.support.draft_wire import listening, read_body
from tests.support.scripted_coordinator import ScriptedCoordinator, consumer_settings, running_broker, start_request
from tests.support.virtual import on_virtual_loop
from tests.support.waiting import eventually_async

P0 = Partition("orders", "1-0")
STOP = draft_frame(m.StopFetcherRequest(consumer_id="c-1"))
FOREIGN = draft_frame(m.PingRequest(consumer_id="c-2"))
OK = draft_frame(m.RegisterConsumerResponse())


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


class Hostile:
    """A broker that names itself coordinator.

    :param metadata: bytes to answer ClusterMetadata with; by default a good answer
    :param registered: bytes to answer RegisterConsumer with, and what follows them
    :ivar connections: times of accepted connections, in seconds
    :ivar registrations: number of RegisterConsumer requests
    :ivar answers: bodies that came after them
    """

    def __init__(self, metadata: bytes | None = None, registered: bytes = b"", *, closes: bool = False) -> None:
        self.metadata = metadata
        self.registered = registered
        self.closes = closes
        self.broker = BrokerAddress(1, "127.0.0.1", 0)
        self.connections: list[float] = []
        self.registrations = 0
        self.answers: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(time.monotonic())
        while True:
            writer.write(self.answer_to(await read_body(reader)))
            await writer.drain()
            if self.closes:
                return

    def answer_to(self, body: bytes) -> bytes:
        if body[:2] == b"\0\5":
            own = m.ClusterMetadataResponseBroker(id=1, host=self.broker.host, port=self.broker.port)
            good = m.ClusterMetadataResponse(coordinator_id=1, brokers_info=[own])
            return self.metadata if self.metadata is not None else draft_frame(good)
        if body[:2] == b"\0\6":
            self.registrations += 1
            return self.registered
        if body[:2] != b"\0\1":  # a fetch: broker 1 has the partitions, too
            self.answers.append(body)
        return b""


@asynccontextmanager
async def running(hostile: Hostile) -> AsyncIterator[Hostile]:
    async with listening(hostile.serve) as hostile.broker:
        yield hostile


MANY_BROKERS = draft_frame(
    m.ClusterMetadataResponse(
        coordinator_id=-1, brokers_info=[m.ClusterMetadataResponseBroker(id=-1 - each) for each in range(32_000)]
    )
)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (raw("7fffffff"), "a frame of 2147483647 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "looks like plain text"),
        (raw("80000000"), "a frame of 2147483648 bytes"),
        (raw("00000000"), "connection closed"),
        (raw("00000004") + raw("00000000"), "ClusterMetadataResponse"),
        (draft_frame(m.ClusterMetadataResponse(error_code=-7)), "cluster metadata refused"),
        (draft_frame(m.ClusterMetadataResponse(coordinator_id=5)), "no coordinator"),
        (b"", "no answer in time"),
        (raw("0000ffff") + bytes(100), "no answer in time"),
    ],
)
@on_virtual_loop
async def test_bad_metadata_leads_to_the_next_broker(
    metadata: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kcoord_wire.central")
    async with running(Hostile(metadata)) as hostile, running_broker(ScriptedCoordinator()) as honest:
        settings = consumer_settings(hostile.broker, honest.broker, session_timeout_ms=1_000)
        async with CentralConsumer(settings):
            await eventually_async(lambda: "c-1" in honest.registered)
    assert reason in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("registered", "reason"),
    [
        (raw("00000001") + b"\0", "RegisterConsumerResponse"),
        (raw("00000002") + raw("fff9"), "registration refused group=g consumer=c-1 error=-7"),
        (OK + raw("00000002") + raw("0063"), "no request of family central has api key 99"),
        (OK + raw("00000000"), "TypeIdHeader"),
        (OK + draft_frame(m.ClusterMetadataRequest()), "a coordinator sends no ClusterMetadataRequest"),
        (OK + STOP[:-1] + raw("00000000"), "DecodeError"),
        (OK + raw("01000001"), "frame size 16777217 is above"),
        (OK + FOREIGN, "error=UNKNOWN_CONSUMER_ID addressee=c-2"),
        (OK + raw("0000ffff") + bytes(100), "coordinator suspected"),
        (OK, "coordinator suspected"),
        (b"", "no answer in time"),
    ],
)
@on_virtual_loop
async def test_a_bad_coordinator_is_left_and_tried_again(
    registered: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kcoord_wire.central")
    async with (
        running(Hostile(registered=registered)) as hostile,
        CentralConsumer(consumer_settings(hostile.broker, session_timeout_ms=500)),
    ):
        await eventually_async(lambda: hostile.registrations >= 2)
    assert reason.replace("DecodeError", "StopFetcherRequest") in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("hostile", [Hostile(closes=True), Hostile(registered=OK + FOREIGN), Hostile(raw("ffffffff"))])
@on_virtual_loop
async def test_attempts_are_spaced_by_the_backoff(hostile: Hostile) -> None:
    """Else thousands of consumers would keep a broken coordinator busy."""
    async with running(hostile), CentralConsumer(consumer_settings(hostile.broker, reconnect_backoff_ms=200)):
        await eventually_async(lambda: len(hostile.connections) >= 7)
    # One attempt is at most two connections: to a broker and to the coordinator.
    assert hostile.connections[6] - hostile.connections[0] >= 0.2 * 2


@on_virtual_loop
async def test_endless_requests_are_answered_without_being_kept() -> None:
    requests = (STOP + draft_frame(start_request({P0: 1}))) * 300
    hostile = Hostile(registered=OK + requests)
    async with (
        running(hostile),
        CentralConsumer(consumer_settings(hostile.broker, session_timeout_ms=60_000)) as consumer,
    ):
        await eventually_async(lambda: len(hostile.answers) == 600)
        assert hostile.registrations == 1
        assert len(consumer._driver._events) == 0
        consumer.shutdown()
        consumer.shutdown()


def test_memory_is_bounded_by_a_frame() -> None:
    """The largest lists within the limit, again and again, and then a frame that never ends."""
    parts = [m.StartFetcherRequestPartition(topic="t", partition=f"{each}-0", offset=each) for each in range(20_000)]
    owned = m.StartFetcherRequestOwnership(consumer_thread_id="t", assigned_parts=parts)
    largest = draft_frame(m.StartFetcherRequest(consumer_id="c-1", ownership_info=[owned]))
    endless = LARGEST_MESSAGE.to_bytes(4, "big") + bytes(LARGEST_MESSAGE - 1)

    async def scenario() -> int:
        hostile = Hostile(registered=OK + (largest + STOP) * 2 + endless)
        async with (
            running(hostile),
            CentralConsumer(consumer_settings(hostile.broker, session_timeout_ms=60_000)) as consumer,
        ):
            tracemalloc.start()
            await eventually_async(lambda: len(hostile.answers) == 4)
            await asyncio.sleep(0.1)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            consumer.shutdown()
            consumer.shutdown()
        return peak

    assert asyncio.run(scenario()) < 60 << 20


@on_virtual_loop
async def test_an_endless_list_of_brokers_is_tried_and_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    """32,000 addresses that cannot be; then the configured ones come again."""
    caplog.set_level(logging.CRITICAL, "kcoord_wire.central")
    async with (
        running(Hostile(MANY_BROKERS)) as hostile,
        CentralConsumer(consumer_settings(hostile.broker)),
    ):
        await eventually_async(lambda: len(hostile.connections) >= 2)


@on_virtual_loop
async def test_a_coordinator_that_does_not_read_is_suspected(caplog: pytest.LogCaptureFixture) -> None:
    """Its requests go on, the answers fill the buffers; then nothing more is read from it."""
    caplog.set_level(logging.WARNING, "kcoord_wire.central")
    flooding = Flooding()
    async with running(flooding), CentralConsumer(consumer_settings(flooding.broker, session_timeout_ms=1_000)):
        await eventually_async(lambda: flooding.registrations >= 2)
    assert "coordinator suspected" in caplog.text


class Flooding(Hostile):
    """Pings without end, each for 20,000 offsets, and reads no answer."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await read_body(reader)
        writer.write(self.answer_to(body))
        if body[:2] == b"\0\6":
            parts = {Partition("t", f"9-{each}"): each for each in range(20_000)}
            writer.write(OK + draft_frame(start_request(parts)))
            while True:
                writer.write(draft_frame(m.PingRequest(consumer_id="c-1")))
                await writer.drain()
                await asyncio.sleep(0.001)
        await reader.read(1)  # its end


def test_what_is_sent_is_decodable_by_the_draft() -> None:
    """The consumer's own frames, as a broker of the draft reads them."""

    async def scenario() -> list[bytes]:
        hostile = Hostile(registered=OK + draft_frame(start_request({P0: 1})) + STOP)
        async with running(hostile), CentralConsumer(consumer_settings(hostile.broker)) as consumer:
            await eventually_async(lambda: len(hostile.answers) == 2)
            consumer.shutdown()
            consumer.shutdown()
        return hostile.answers

    started, stopped = asyncio.run(scenario())
    assert kw.decode(m.StartFetcherResponse, started[2:], 0) == m.StartFetcherResponse(consumer_id="c-1")
    offsets = [m.StopFetcherResponseOffset(topic="orders", partition="1-0", offset=1)]
    assert kw.decode(m.StopFetcherResponse, stopped[2:], 0) == m.StopFetcherResponse(
        consumer_id="c-1", offset_info=offsets
    )
