"""The server with a scripted machine: which events it sees, what becomes of its effects, and how peers are bounded.

It runs on the virtual loop; tests/central/test_broker has it on sockets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kcoord_wire.central.peer import Limits
from kcoord_wire.central.server import Server
from kcoord_wire.kernel.driver import monotonic_ms
from kcoord_wire.kernel.machines import Close, Disconnected, LogEvent, Received, Send, Tick
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.requests import Ask, Fired, Outcome, Read, Replied
from tests.support.draft_wire import DraftPeer
from tests.support.virtual import on_virtual_loop
from tests.support.waiting import eventually_async

REGISTER = m.RegisterConsumerRequest(group_id="g", consumer_id="c", session_timeout_ms=6_000)
OK = m.RegisterConsumerResponse()
PING = m.PingRequest(consumer_id="c")


class Scripted:
    """A machine that answers each event by the next of its scripts for that type, and keeps what it has seen."""

    def __init__(self, **scripts: Callable[[Any], Sequence[Any]]) -> None:
        self.scripts = scripts
        self.seen: list[Any] = []
        self.times: list[int] = []
        self.deadline: int | None = None

    def handle(self, event: Any, now: int) -> Sequence[Any]:
        self.seen.append(event)
        self.times.append(now)
        key = type(event.message).__name__ if isinstance(event, Received) else type(event).__name__
        return self.scripts[key](event) if key in self.scripts else ()

    def kinds(self) -> list[type]:
        return [type(event) for event in self.seen]


class Hosted:
    """A server that runs.

    :ivar asks: what its machines have asked of ZooKeeper
    """

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port
        self.asks: list[Ask] = []

    def ask(self, ask: Ask) -> None:
        self.asks.append(ask)

    def wire(self) -> DraftPeer:
        return DraftPeer(self.port)


def fetch(request: m.CentralFetchRequest) -> m.CentralFetchResponse:
    if request.topic == "broken":
        raise RuntimeError("a fault of the topics")
    return m.CentralFetchResponse(end_offset=request.offset)


@asynccontextmanager
async def hosted(*machines: Scripted, limits: Limits | None = None) -> AsyncIterator[Hosted]:
    server = Server({m.CentralFetchRequest: fetch}, limits=limits)
    host = Hosted(server, await server.listen("127.0.0.1", 0))
    await server.serve(*machines, registry=host)
    try:
        yield host
    finally:
        await server.close()


def registering(**scripts: Callable[[Any], Sequence[Any]]) -> Scripted:
    return Scripted(RegisterConsumerRequest=lambda event: [Send(event.connection, OK)], **scripts)


def failing(_event: Any) -> Sequence[Any]:
    raise RuntimeError("a fault of the machine")


async def register(wire: DraftPeer) -> None:
    assert await wire.ask(REGISTER, m.RegisterConsumerResponse) == OK


@on_virtual_loop
async def test_a_machine_sees_one_connection_in_order() -> None:
    machine = registering()
    async with hosted(machine) as host:
        async with host.wire() as wire:
            wire.send(m.ClusterMetadataRequest())
            await register(wire)
        await eventually_async(lambda: len(machine.seen) == 3)
    [connection] = {event.connection for event in machine.seen}
    assert machine.seen == [
        Received(connection, m.ClusterMetadataRequest()), Received(connection, REGISTER), Disconnected(connection),
    ]  # fmt: skip
    assert machine.times == sorted(machine.times)


@on_virtual_loop
async def test_what_is_sent_before_a_close_is_delivered() -> None:
    machine = Scripted(RegisterConsumerRequest=lambda event: [Send(event.connection, OK), Close(event.connection)])
    async with hosted(machine) as host:
        async with host.wire() as wire:
            await register(wire)
            assert await wire.is_closed()
        async with host.wire():  # its own Close ends the connection: there is no Disconnected
            assert machine.seen == [Received(machine.seen[0].connection, REGISTER)]


@on_virtual_loop
async def test_a_fetch_goes_to_the_topics_alone() -> None:
    machine = Scripted()
    async with hosted(machine) as host:
        async with host.wire() as wire:
            answer = await wire.ask(m.CentralFetchRequest(topic="orders", offset=41), m.CentralFetchResponse)
        assert answer.end_offset == 41
        await eventually_async(lambda: machine.seen)
        assert machine.kinds() == [Disconnected]


@on_virtual_loop
async def test_the_timer_follows_the_earliest_deadline() -> None:
    machine, other = Scripted(), Scripted()
    other.deadline = monotonic_ms() + 3_600_000
    began = monotonic_ms()

    def due(_: Any) -> Sequence[Any]:
        machine.deadline = began + 80
        return ()

    def done(_: Any) -> Sequence[Any]:
        machine.deadline = None
        return ()

    machine.scripts = {"Fired": due, "Tick": done}
    async with hosted(machine, other) as host:
        host.server.deliver(Fired("/x"))
        await eventually_async(lambda: machine.deadline is None and len(machine.seen) == 2)
    assert machine.seen == [Fired("/x"), Tick()]
    assert 80 <= machine.times[1] - began <= 81
    assert other.seen == [Fired("/x")]


@on_virtual_loop
async def test_each_machine_gets_the_replies_to_its_own_asks() -> None:
    machines = [Scripted(Fired=lambda _, path=path: [Ask(1, Read(path))]) for path in ("/a", "/b")]
    async with hosted(*machines) as host:
        host.server.deliver(Fired("/x"))
        of = {ask.request: ask.token for ask in host.asks}
        assert len(set(of.values())) == 2
        host.server.deliver(Replied(of[Read("/b")], Outcome.NO_NODE))
        host.server.deliver(Replied(99))
    assert machines[0].seen == [Fired("/x")]
    assert machines[1].seen == [Fired("/x"), Replied(1, Outcome.NO_NODE)]


@on_virtual_loop
async def test_notes_are_logged_with_their_facts(caplog: pytest.LogCaptureFixture) -> None:
    event = LogEvent(logging.INFO, "elected", {"epoch": 3, "why": "a\nb"})
    async with hosted(Scripted(Fired=lambda _: [event])) as host:
        with caplog.at_level(logging.INFO, "kcoord_wire.central"):
            host.server.deliver(Fired("/x"))
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.INFO, r"elected epoch=3 why=a\nb")


@on_virtual_loop
async def test_an_unsolicited_answer_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    answer = m.PingResponse(consumer_id="c")
    machine = Scripted(RegisterConsumerRequest=lambda event: [Send(event.connection, each) for each in (OK, PING)])
    async with hosted(machine) as host, host.wire() as wire, host.wire() as other:
        await register(wire)
        assert await wire.request() == PING
        wire.send(answer)
        wire.send(answer)
        assert await wire.is_closed()
        assert (await other.ask(m.CentralFetchRequest(offset=1), m.CentralFetchResponse)).end_offset == 1
    assert "a PingResponse that was not asked for" in caplog.text
    assert len([event for event in machine.seen if getattr(event, "message", None) == answer]) == 1


@on_virtual_loop
async def test_warnings_about_peers_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    async with hosted(Scripted()) as host:
        for _ in range(60):
            async with host.wire() as wire:
                wire.send_raw(b"\xff\xff\xff\xff")
                assert await wire.is_closed()
        assert host.server.dropped == 60
    assert len(caplog.records) == 20  # in 10 s


@on_virtual_loop
async def test_a_fault_that_a_message_causes_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    machine = registering(ClusterMetadataRequest=failing)
    async with hosted(machine) as host:
        for request in (m.ClusterMetadataRequest(), m.CentralFetchRequest(topic="broken")):
            async with host.wire() as wire, host.wire() as other:
                wire.send(request)
                assert await wire.is_closed()
                await register(other)
        assert not host.server.failed.done()
        await eventually_async(lambda: machine.kinds().count(Disconnected) == 4)
    assert "a fault of the machine" in caplog.text
    assert "a fault of the topics" in caplog.text


@on_virtual_loop
async def test_a_fault_that_no_peer_has_caused_ends_the_server() -> None:
    async with hosted(Scripted(Fired=failing)) as host:
        host.server.deliver(Fired("/x"))
        assert isinstance(host.server.failed.exception(), RuntimeError)


@on_virtual_loop
async def test_what_does_not_fit_into_a_message_closes(caplog: pytest.LogCaptureFixture) -> None:
    long = m.PingRequest(consumer_id="c" * 40_000)
    machine = Scripted(RegisterConsumerRequest=lambda event: [Send(event.connection, long)])
    async with hosted(machine) as host, host.wire() as wire:
        wire.send(REGISTER)
        assert await wire.is_closed()
    assert "does not fit into a message" in caplog.text


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(max_connections=2), "connections are open"),
        (Limits(max_connections_per_host=2), "connections of its host are open"),
    ],
)
@on_virtual_loop
async def test_connections_are_bounded_by_number(caplog: pytest.LogCaptureFixture, limits: Limits, reason: str) -> None:
    async with hosted(registering(), limits=limits) as host:
        async with host.wire() as one, host.wire() as two:
            for wire in (one, two):
                await register(wire)
            async with host.wire() as third:
                assert await third.is_closed()
            await register(one)
        await eventually_async(lambda: not host.server.connections)
        async with host.wire() as wire:
            await register(wire)
    assert reason in caplog.text


@on_virtual_loop
async def test_silence_and_half_frames_end_unless_registered(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        hosted(registering(), limits=Limits(idle_ms=300, frame_ms=300)) as host,
        host.wire() as idle,
        host.wire() as half,
        host.wire() as consumer,
    ):
        await register(consumer)
        half.send_raw(b"\0\0\0\x40\0")
        assert await idle.is_closed()
        assert await half.is_closed()
        await register(consumer)
    assert "reason=idle" in caplog.text
    assert "reason=half a frame" in caplog.text


@pytest.mark.parametrize(
    ("limits", "reason"), [(Limits(unread_ms=300), "unread answers"), (Limits(max_unread=1 << 20), "has not read")]
)
@on_virtual_loop
async def test_a_peer_that_does_not_read_is_closed(
    caplog: pytest.LogCaptureFixture, limits: Limits, reason: str
) -> None:
    pings = [m.PingRequest(consumer_id="c" * 30_000)] * 400  # 12 MB: more than the buffers hold
    machine = registering(ClusterMetadataRequest=lambda event: [Send(event.connection, each) for each in pings])
    async with hosted(machine, limits=limits) as host, host.wire() as wire, host.wire() as other:
        wire.send(m.ClusterMetadataRequest())
        await eventually_async(lambda: host.server.dropped == 1)
        await register(other)
    assert reason in caplog.text


@on_virtual_loop
async def test_a_flood_does_not_hold_up_others() -> None:
    machine = registering()
    async with hosted(machine) as host, host.wire() as wire, host.wire() as other:
        wire.send_raw(b"\0\0\0\x02\0\x05" * 50_000)
        await register(other)
        assert len(machine.seen) < 1_000, "the others are served between its frames"
        await eventually_async(lambda: len(machine.seen) >= 50_001)
        await register(wire)


@on_virtual_loop
async def test_slow_requests_do_not_hold_up_others() -> None:
    def slow(_event: Any) -> Sequence[Any]:
        time.sleep(0.005)
        return ()

    machine = registering(ClusterMetadataRequest=slow)
    async with hosted(machine) as host, host.wire() as wire, host.wire() as other:
        wire.send_raw(b"\0\0\0\x02\0\x05" * 300)
        began = monotonic_ms()
        await register(other)
        assert monotonic_ms() - began < 100


@on_virtual_loop
async def test_a_peer_whose_requests_wait_is_not_idle() -> None:
    def slow(event: Any) -> Sequence[Any]:
        time.sleep(0.005)
        return [Send(event.connection, OK)] if len(machine.seen) == 300 else ()

    machine = Scripted(ClusterMetadataRequest=slow)
    async with hosted(machine, limits=Limits(idle_ms=300)) as host, host.wire() as wire:
        wire.send_raw(b"\0\0\0\x02\0\x05" * 300)
        assert await wire.answer(m.RegisterConsumerResponse) == OK


@on_virtual_loop
async def test_a_registration_that_is_parked_is_not_idle() -> None:
    """Section 2: it is answered when the group's other consumers have registered again."""
    machine = Scripted(Fired=lambda _: [Send(machine.seen[0].connection, OK)])
    async with hosted(machine, limits=Limits(idle_ms=200)) as host, host.wire() as wire, host.wire() as idle:
        wire.send(REGISTER)
        assert await idle.is_closed()
        assert host.server.dropped == 1
        await asyncio.sleep(0.3)
        host.server.deliver(Fired("/x"))
        assert await wire.answer(m.RegisterConsumerResponse) == OK


@on_virtual_loop
async def test_close_delivers_what_was_sent_and_frees_the_port() -> None:
    async with hosted(registering()) as host, host.wire() as wire:
        await register(wire)
        await host.server.close()
        assert await wire.is_closed()
        assert host.server.connections == {}
