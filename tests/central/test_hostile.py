"""Hostile and broken consumers on real sockets: a clear log line and error, and no other consumer is affected.

A healthy consumer answers in its own thread during each attack. Afterwards it still has its connection and its
partitions, and was pinged in time.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kcoord_wire.central.broker import CentralBroker
from kcoord_wire.central.dialects import draft_frame
from kcoord_wire.central.draft.events import CentralError, CoordinatorSettings
from kcoord_wire.central.peer import Limits
from kcoord_wire.messages import central as m
from tests.support.draft_wire import DraftWire
from tests.support.waiting import eventually

SESSION_MS = 1_500
STALL = 10.0  # seconds that a healthy consumer may wait for a ping on a busy machine
TOPIC = '{"orders":1}'


def registration(group: str, consumer: str, **fields: object) -> m.RegisterConsumerRequest:
    values = {
        "topic_count": TOPIC,
        "auto_commit": True,
        "auto_offset_rest": "smallest",
        "session_timeout_ms": SESSION_MS,
    }
    return m.RegisterConsumerRequest(group_id=group, consumer_id=consumer, **(values | fields))


class Consumer:
    """Registers and answers by the draft, in a thread.

    :ivar owned: its partitions; None while its fetchers are stopped
    :ivar starts: of its fetchers
    :ivar longest: seconds between two requests of the coordinator
    """

    def __init__(self, port: int, group: str, name: str) -> None:
        self.name = name
        self.owned: set[str] | None = None
        self.starts = 0
        self.longest = 0.0
        self.failure: BaseException | None = None
        self._is_over = False
        self._wire = DraftWire(port)
        assert self._wire.ask(registration(group, name), m.RegisterConsumerResponse).error_code == 0
        self._thread = threading.Thread(target=self._live)
        self._thread.start()

    def _live(self) -> None:
        try:
            heard = time.monotonic()
            while not self._is_over:
                request = self._wire.request()
                self.longest = max(self.longest, time.monotonic() - heard)
                heard = time.monotonic()
                self._answer(request)
        except BaseException as error:
            self.failure = error

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

    def end(self) -> None:
        self._is_over = True  # at the next ping
        self._thread.join(STALL)
        self._wire.close()
        assert not self._thread.is_alive()


class Siege:
    """A broker under attack, and its healthy consumer."""

    def __init__(self, log: pytest.LogCaptureFixture) -> None:
        limits = Limits(frame_ms=400, unread_ms=400, idle_ms=2_000, max_connections_per_host=300)
        settings = CoordinatorSettings(min_session_timeout_ms=500, rebalance_backoff_ms=100)
        self._log = log
        self.broker = CentralBroker(topics={"orders": 4}, rate=100_000.0, settings=settings, limits=limits)
        self.broker.start()
        eventually(lambda: self.broker.epoch is not None)
        self.healthy = Consumer(self.broker.port, "healthy", "h")
        eventually(lambda: self.healthy.owned is not None)

    def wire(self) -> DraftWire:
        return DraftWire(self.broker.port)

    def registered(self, group: str, consumer: str, **fields: object) -> DraftWire:
        """A consumer that does nothing after its registration."""
        wire = self.wire()
        assert wire.ask(registration(group, consumer, **fields), m.RegisterConsumerResponse).error_code == 0
        return wire

    def logged(self, pattern: str) -> None:
        """Wait for a log line."""
        eventually(lambda: any(re.search(pattern, record.getMessage()) for record in self._log.records))

    def refusals(self, reason: str) -> int:
        """How many connections were closed for that reason."""
        return sum(reason in record.getMessage() for record in self._log.records)

    def lift(self) -> None:
        """The attack is over: the healthy consumer was not affected, and new ones are served."""
        try:
            newcomer = Consumer(self.broker.port, "afterwards", "a")
            eventually(lambda: newcomer.owned is not None)
            newcomer.end()
            assert newcomer.failure is None
            self.healthy.end()
        finally:
            self.broker.stop()
        assert self.healthy.failure is None
        assert self.healthy.owned == {"1-0", "1-1", "1-2", "1-3"}
        assert self.healthy.starts == 1
        assert self.healthy.longest < STALL
        assert [record.getMessage() for record in self._log.records if record.levelname == "ERROR"] == []


@pytest.fixture
def siege(caplog: pytest.LogCaptureFixture) -> Iterator[Siege]:
    caplog.set_level("INFO", "kcoord_wire.central")
    siege = Siege(caplog)
    yield siege
    siege.lift()


GARBAGE = {
    "a size of 2 GB": (b"\x7f\xff\xff\xff", "a frame of 2147483647 bytes"),
    "a negative size": (b"\x80\x00\x00\x00", "a frame of 2147483648 bytes"),
    "an empty frame": (b"\0\0\0\0", "2 bytes of type id are needed"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "looks like plain text"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", "looks like TLS"),
    "a Kafka request": (b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff", "18 is no type id"),
    "an unknown type": (b"\0\0\0\2\x7f\xff", "32767 is no type id"),
    "a string past the end": (b"\0\0\0\6\0\6\x7f\xffgg", "RegisterConsumerRequest"),
    "a string of -2": (b"\0\0\0\4\0\6\xff\xfe", "RegisterConsumerRequest"),
    "a list of 32,767, no data": (b"\0\0\0\7\0\x07\0\0\0\0\x7f", "PingResponse"),
    "not UTF-8": (b"\0\0\0\6\0\6\0\2\xc3\x28", "RegisterConsumerRequest"),
    "bytes left over": (b"\0\0\0\4\0\5xy", "2 bytes are left"),
}


def test_bytes_that_do_not_decode_close_their_connection(siege: Siege) -> None:
    for data, reason in GARBAGE.values():
        with siege.wire() as wire:
            wire.send_raw(data)
            assert wire.is_closed()
        siege.logged(f"connection closed peer=127.0.0.1 reason=.*{re.escape(reason)}")


def test_a_registered_consumer_that_sends_garbage_fails(siege: Siege) -> None:
    with siege.registered("garbage", "g") as wire:
        wire.send_raw(b"\0\0\0\2\x7f\xff")
        assert wire.is_closed()
    siege.logged("consumer failed group=garbage consumer=g reason=its connection ended")


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


def test_registrations_that_are_refused_have_their_error(siege: Siege) -> None:
    for fields, error in REFUSED:
        with siege.wire() as wire:
            request = registration("healthy", "other")
            for name, value in fields.items():
                setattr(request, name, value)
            assert wire.ask(request, m.RegisterConsumerResponse).error_code == error
            assert wire.ask(m.ClusterMetadataRequest(), m.ClusterMetadataResponse).coordinator_id == 1
    assert siege.refusals("registration refused group=") == len(REFUSED)


def test_a_connection_is_registered_once(siege: Siege) -> None:
    """The same consumer again, or another one on its connection."""
    for again in ("twice", "another"):
        with siege.registered("twice", "twice") as wire:
            wire.send(registration("twice", again))
            assert wire.is_closed()
        siege.logged("consumer failed group=twice consumer=twice reason=")


def test_a_consumer_that_answers_nothing_fails(siege: Siege) -> None:
    """Its group goes on without it."""
    with siege.registered("silent", "s", session_timeout_ms=600) as wire:
        other = Consumer(siege.broker.port, "silent", "t")
        eventually(lambda: other.owned == {"1-0", "1-1", "1-2", "1-3"})
        assert wire.is_closed()
        other.end()
        assert other.failure is None
    siege.logged("consumer failed group=silent consumer=s reason=")


def test_an_answer_with_anothers_id_closes_its_connection(siege: Siege) -> None:
    with siege.registered("impostor", "i") as wire:
        assert isinstance(wire.request(), m.StopFetcherRequest)
        wire.send(m.StopFetcherResponse(consumer_id="h", offset_info=[]))
        assert wire.is_closed()
    siege.logged("consumer failed group=impostor consumer=i reason=an answer in the name of 'h'")


def test_an_unsolicited_answer_closes_its_connection(siege: Siege) -> None:
    for answer in (m.PingResponse(consumer_id="u"), m.StartFetcherResponse(consumer_id="u")):
        with siege.registered("unasked", "u") as wire:
            wire.request()  # StopFetcher: another answer is not the one to it
            wire.send(answer)
            assert wire.is_closed()
        siege.logged(f"a {type(answer).__name__} that was not asked for")


def test_an_answer_before_a_registration_closes(siege: Siege) -> None:
    with siege.wire() as wire:
        wire.send(m.PingResponse(consumer_id="h", offset_info=[m.PingResponseOffset(topic="orders", partition="1-0")]))
        assert wire.is_closed()
    siege.logged("connection closed .*a PingResponse that was not asked for")


def test_offsets_of_others_and_negative_ones_are_not_taken(siege: Siege) -> None:
    foreign = [m.PingResponseOffset(topic="orders", partition="1-0", offset=offset) for offset in (1 << 62, -5)]
    foreign += [m.PingResponseOffset(topic="nothing/../x", partition="9-9", offset=3)]
    with siege.registered("thief", "t") as wire:
        wire.request()
        wire.send(m.StopFetcherResponse(consumer_id="t", offset_info=[]))
        wire.request()
        wire.send(m.StartFetcherResponse(consumer_id="t"))
        ping = wire.request()
        assert isinstance(ping, m.PingRequest)
        wire.send(m.PingResponse(consumer_id="t", offset_info=foreign))
        siege.logged("offsets of partitions of others group=thief consumer=t")


def test_a_flood_of_requests_delays_no_other_consumer(siege: Siege) -> None:
    """Its sender reads nothing."""
    metadata = draft_frame(m.ClusterMetadataRequest())
    fetch = draft_frame(m.CentralFetchRequest(topic="orders", partition=0, offset=0, max_size=64 << 10))
    with siege.wire() as wire, siege.wire() as other:
        senders = [threading.Thread(target=_send, args=(wire, metadata * 20_000))]
        senders.append(threading.Thread(target=_send, args=(other, fetch * 2_000)))
        for sender in senders:
            sender.start()
        eventually(lambda: siege.refusals("unread answers"), seconds=6 * STALL)
    for sender in senders:
        sender.join(STALL)


def _send(wire: DraftWire, data: bytes) -> None:
    with suppress(OSError):
        wire.send_raw(data)


def test_connections_that_come_and_go_or_stay_are_bounded(siege: Siege) -> None:
    for number in range(400):
        wire = siege.wire()
        if number % 2:
            wire.send(registration("churn", f"c-{number}", session_timeout_ms=500))
        wire.reset()
    wires = [siege.wire() for _ in range(350)]
    siege.logged("connections of its host are open")
    for wire in wires:
        wire.reset()


def test_half_frames_and_silence_end(siege: Siege) -> None:
    with siege.wire() as half, siege.wire() as silent:
        half.send_raw(b"\0\0\0")
        assert half.is_closed()
        assert silent.is_closed()
    siege.logged("reason=half a frame")
    siege.logged("reason=idle")
