"""The server with a scripted machine: which events it sees, what becomes of its effects, and how peers are bounded."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kcoord_wire.central.peer import Limits
from kcoord_wire.central.server import Server
from kcoord_wire.kernel.background import Background
from kcoord_wire.kernel.driver import monotonic_ms
from kcoord_wire.kernel.machines import Close, Disconnected, LogEvent, Received, Send, Tick
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.requests import Ask, Fired, Outcome, Read, Replied
from tests.support.draft_wire import DraftWire
from tests.support.waiting import eventually

REGISTER = m.RegisterConsumerRequest(group_id="g", consumer_id="c", session_timeout_ms=6_000)
OK = m.RegisterConsumerResponse()


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


class MemoryOfAsks:
    def __init__(self) -> None:
        self.asks: list[Ask] = []

    def ask(self, ask: Ask) -> None:
        self.asks.append(ask)


class Hosted:
    """A server in a thread of its own."""

    def __init__(self, *machines: Scripted, limits: Limits | None = None) -> None:
        self.machines = machines
        self.limits = limits
        self.registry = MemoryOfAsks()
        self.port = 0
        self.life = Background("server", self._serve, thread="test-server")
        self.server: Server

    async def _serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        self.server = Server({m.CentralFetchRequest: self._fetch}, limits=self.limits)
        self.port = await self.server.listen("127.0.0.1", 0)
        await self.server.serve(*self.machines, registry=self.registry)
        ready()
        await stopping.wait()
        await self.server.close()

    def _fetch(self, request: m.CentralFetchRequest) -> m.CentralFetchResponse:
        if request.topic == "broken":
            raise RuntimeError("a fault of the topics")
        return m.CentralFetchResponse(end_offset=request.offset)

    def deliver(self, event: Any) -> None:
        self.life.call(lambda: self.server.deliver(event))


@pytest.fixture
def host() -> Iterator[Callable[..., Hosted]]:
    started: list[Hosted] = []

    def start(*machines: Scripted, limits: Limits | None = None) -> Hosted:
        hosted = Hosted(*machines, limits=limits)
        hosted.life.start()
        started.append(hosted)
        return hosted

    yield start
    for hosted in started:
        hosted.life.stop()


def registering(**scripts: Callable[[Any], Sequence[Any]]) -> Scripted:
    return Scripted(RegisterConsumerRequest=lambda event: [Send(event.connection, OK)], **scripts)


def test_a_machine_sees_one_connection_in_order(host: Callable[..., Hosted]) -> None:
    machine = registering()
    with DraftWire(host(machine).port) as wire:
        wire.send(m.ClusterMetadataRequest())
        assert wire.ask(REGISTER, m.RegisterConsumerResponse) == OK
    eventually(lambda: len(machine.seen) == 3)
    [connection] = {event.connection for event in machine.seen}
    assert machine.seen == [
        Received(connection, m.ClusterMetadataRequest()), Received(connection, REGISTER), Disconnected(connection),
    ]  # fmt: skip
    assert machine.times == sorted(machine.times)


def test_what_is_sent_before_a_close_is_delivered(host: Callable[..., Hosted]) -> None:
    machine = Scripted(RegisterConsumerRequest=lambda event: [Send(event.connection, OK), Close(event.connection)])
    with DraftWire(host(machine).port) as wire:
        assert wire.ask(REGISTER, m.RegisterConsumerResponse) == OK
        assert wire.is_closed()
    with DraftWire(host(machine).port):  # its own Close ends the connection: there is no Disconnected
        assert machine.seen == [Received(machine.seen[0].connection, REGISTER)]


def test_a_fetch_goes_to_the_topics_alone(host: Callable[..., Hosted]) -> None:
    machine = Scripted()
    with DraftWire(host(machine).port) as wire:
        answer = wire.ask(m.CentralFetchRequest(topic="orders", offset=41), m.CentralFetchResponse)
    assert answer.end_offset == 41
    eventually(lambda: bool(machine.seen))
    assert [type(event) for event in machine.seen] == [Disconnected]


def test_the_timer_follows_the_earliest_deadline(host: Callable[..., Hosted]) -> None:
    machine, other = Scripted(), Scripted()
    other.deadline = monotonic_ms() + 3_600_000
    hosted = host(machine, other)
    began = monotonic_ms()

    def due(_: Any) -> Sequence[Any]:
        machine.deadline = began + 80
        return ()

    def done(_: Any) -> Sequence[Any]:
        machine.deadline = None
        return ()

    machine.scripts = {"Fired": due, "Tick": done}
    hosted.deliver(Fired("/x"))
    eventually(lambda: machine.deadline is None and len(machine.seen) == 2)
    assert machine.seen == [Fired("/x"), Tick()]
    assert machine.times[1] >= began + 80
    assert other.seen == [Fired("/x")]


def test_each_machine_gets_the_replies_to_its_own_asks(host: Callable[..., Hosted]) -> None:
    machines = [Scripted(Fired=lambda _, path=path: [Ask(1, Read(path))]) for path in ("/a", "/b")]
    hosted = host(*machines)
    hosted.deliver(Fired("/x"))
    of = {ask.request: ask.token for ask in hosted.registry.asks}
    assert len(set(of.values())) == 2
    hosted.deliver(Replied(of[Read("/b")], Outcome.NO_NODE))
    hosted.deliver(Replied(99))
    assert machines[0].seen == [Fired("/x")]
    assert machines[1].seen == [Fired("/x"), Replied(1, Outcome.NO_NODE)]


def test_notes_are_logged_with_their_facts(host: Callable[..., Hosted], caplog: pytest.LogCaptureFixture) -> None:
    hosted = host(Scripted(Fired=lambda _: [LogEvent(logging.INFO, "elected", {"epoch": 3, "why": "a\nb"})]))
    with caplog.at_level(logging.INFO, "kcoord_wire.central"):
        hosted.deliver(Fired("/x"))
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.INFO, r"elected epoch=3 why=a\nb")


def test_an_unsolicited_answer_closes_its_connection(
    host: Callable[..., Hosted], caplog: pytest.LogCaptureFixture
) -> None:
    ping = m.PingRequest(consumer_id="c")
    machine = Scripted(RegisterConsumerRequest=lambda event: [Send(event.connection, each) for each in (OK, ping)])
    hosted = host(machine)
    with DraftWire(hosted.port) as wire, DraftWire(hosted.port) as other:
        wire.ask(REGISTER, m.RegisterConsumerResponse)
        assert wire.request() == ping
        wire.send(m.PingResponse(consumer_id="c"))
        wire.send(m.PingResponse(consumer_id="c"))
        assert wire.is_closed()
        assert other.ask(m.CentralFetchRequest(offset=1), m.CentralFetchResponse).end_offset == 1
    assert "a PingResponse that was not asked for" in caplog.text
    assert (
        len([event for event in machine.seen if getattr(event, "message", None) == m.PingResponse(consumer_id="c")])
        == 1
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x7f\xff\xff\xff", "a frame of 2147483647 bytes"),
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "which looks like plain text"),
        (b"\0\0\0\x02\0\x63", "99 is no type id"),
        (b"\0\0\0\x03\0\x05\0", "1 bytes are left"),
        (b"\0\0\0\x02\0\x05" + b"\0\x10\0\0", "frame size 1048576 is above the limit"),
    ],
)
def test_bytes_that_do_not_decode_close(
    host: Callable[..., Hosted], caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    hosted = host(machine := Scripted())
    with DraftWire(hosted.port) as wire:
        wire.send_raw(data)
        assert wire.is_closed()
    assert reason in caplog.text
    eventually(lambda: any(isinstance(event, Disconnected) for event in machine.seen))
    assert hosted.server.dropped == 1


def test_warnings_about_peers_are_limited(host: Callable[..., Hosted], caplog: pytest.LogCaptureFixture) -> None:
    hosted = host(Scripted())
    for _ in range(60):
        with DraftWire(hosted.port) as wire:
            wire.send_raw(b"\xff\xff\xff\xff")
            assert wire.is_closed()
    assert hosted.server.dropped == 60
    assert 20 <= len(caplog.records) <= 40  # 20 in 10 s; the machine may be slow


def test_a_fault_that_a_message_causes_closes_its_connection(
    host: Callable[..., Hosted], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> Sequence[Any]:
        raise RuntimeError("a fault of the machine")

    hosted = host(machine := registering(ClusterMetadataRequest=fail))
    for request in (m.ClusterMetadataRequest(), m.CentralFetchRequest(topic="broken")):
        with DraftWire(hosted.port) as wire, DraftWire(hosted.port) as other:
            wire.send(request)
            assert wire.is_closed()
            assert other.ask(REGISTER, m.RegisterConsumerResponse) == OK
    assert "a fault of the machine" in caplog.text
    assert "a fault of the topics" in caplog.text
    assert not hosted.server.failed.done()
    eventually(lambda: sum(isinstance(event, Disconnected) for event in machine.seen) == 4)


def test_a_fault_that_no_peer_has_caused_ends_the_server(host: Callable[..., Hosted]) -> None:
    def fail(_: Any) -> Sequence[Any]:
        raise RuntimeError("a fault of the machine")

    hosted = host(Scripted(Fired=fail))
    hosted.deliver(Fired("/x"))
    assert isinstance(hosted.server.failed.exception(), RuntimeError)


def test_what_does_not_fit_into_a_message_closes(host: Callable[..., Hosted], caplog: pytest.LogCaptureFixture) -> None:
    long = m.PingRequest(consumer_id="c" * 40_000)
    machine = Scripted(RegisterConsumerRequest=lambda event: [Send(event.connection, long)])
    with DraftWire(host(machine).port) as wire:
        wire.send(REGISTER)
        assert wire.is_closed()
    assert "does not fit into a message" in caplog.text


def test_connections_are_bounded_by_number(host: Callable[..., Hosted], caplog: pytest.LogCaptureFixture) -> None:
    for limits in (Limits(max_connections=2), Limits(max_connections_per_host=2)):
        hosted = host(registering(), limits=limits)
        with DraftWire(hosted.port) as one, DraftWire(hosted.port) as two:
            for wire in (one, two):
                assert wire.ask(REGISTER, m.RegisterConsumerResponse) == OK
            with DraftWire(hosted.port) as third:
                assert third.is_closed()
            assert one.ask(REGISTER, m.RegisterConsumerResponse) == OK
        eventually(lambda hosted=hosted: not hosted.server.connections)
        with DraftWire(hosted.port) as wire:
            assert wire.ask(REGISTER, m.RegisterConsumerResponse) == OK
    assert "connections are open" in caplog.text
    assert "connections of its host are open" in caplog.text


def test_silence_and_half_frames_end_unless_registered(
    host: Callable[..., Hosted], caplog: pytest.LogCaptureFixture
) -> None:
    hosted = host(registering(), limits=Limits(idle_ms=300, frame_ms=300))
    with DraftWire(hosted.port) as idle, DraftWire(hosted.port) as half, DraftWire(hosted.port) as consumer:
        assert consumer.ask(REGISTER, m.RegisterConsumerResponse) == OK
        half.send_raw(b"\0\0\0\x40\0")
        assert idle.is_closed()
        assert half.is_closed()
        assert consumer.ask(REGISTER, m.RegisterConsumerResponse) == OK
    assert "reason=idle" in caplog.text
    assert "reason=half a frame" in caplog.text


def test_a_peer_that_does_not_read_is_closed(host: Callable[..., Hosted], caplog: pytest.LogCaptureFixture) -> None:
    pings = [m.PingRequest(consumer_id="c" * 30_000)] * 400  # 12 MB: more than the socket's buffers hold
    machine = Scripted(
        RegisterConsumerRequest=lambda event: [Send(event.connection, OK)],
        ClusterMetadataRequest=lambda event: [Send(event.connection, each) for each in pings],
    )
    for limits, reason in ((Limits(unread_ms=300), "unread answers"), (Limits(max_unread=1 << 20), "has not read")):
        hosted = host(machine, limits=limits)
        with DraftWire(hosted.port) as wire, DraftWire(hosted.port) as other:
            wire.send(m.ClusterMetadataRequest())
            eventually(lambda hosted=hosted: hosted.server.dropped == 1)
            assert other.ask(REGISTER, m.RegisterConsumerResponse) == OK
        assert reason in caplog.text


def test_a_flood_does_not_hold_up_others(host: Callable[..., Hosted]) -> None:
    machine = registering()
    hosted = host(machine)
    flood = b"\0\0\0\x02\0\x05" * 50_000
    with DraftWire(hosted.port) as wire, DraftWire(hosted.port) as other:
        wire.send_raw(flood)
        assert other.ask(REGISTER, m.RegisterConsumerResponse) == OK
        eventually(lambda: len(machine.seen) >= 50_001)
        assert wire.ask(REGISTER, m.RegisterConsumerResponse) == OK


def test_a_peer_whose_requests_wait_is_not_idle(host: Callable[..., Hosted]) -> None:
    def slow(event: Any) -> Sequence[Any]:
        time.sleep(0.005)
        return [Send(event.connection, OK)] if len(machine.seen) == 300 else ()

    machine = Scripted(ClusterMetadataRequest=slow)
    hosted = host(machine, limits=Limits(idle_ms=300))
    with DraftWire(hosted.port) as wire:
        wire.send_raw(b"\0\0\0\x02\0\x05" * 300)
        assert wire.answer(m.RegisterConsumerResponse) == OK


def test_a_registration_that_is_parked_is_not_idle(host: Callable[..., Hosted]) -> None:
    """Section 2: it is answered when the group's other consumers have registered again."""
    machine = Scripted(Fired=lambda _: [Send(machine.seen[0].connection, OK)])
    hosted = host(machine, limits=Limits(idle_ms=200))
    with DraftWire(hosted.port) as wire, DraftWire(hosted.port) as idle:
        wire.send(REGISTER)
        assert idle.is_closed()
        eventually(lambda: hosted.server.dropped == 1)
        time.sleep(0.3)
        hosted.deliver(Fired("/x"))
        assert wire.answer(m.RegisterConsumerResponse) == OK


def test_close_delivers_what_was_sent_and_frees_the_port(host: Callable[..., Hosted]) -> None:
    hosted = host(registering())
    with DraftWire(hosted.port) as wire:
        assert wire.ask(REGISTER, m.RegisterConsumerResponse) == OK
        hosted.life.stop()
        assert wire.is_closed()
    assert hosted.server.connections == {}
