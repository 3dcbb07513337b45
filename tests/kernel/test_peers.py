"""Connections bounded in bytes and in time, on a transport in memory: what is handled when, and what ends them."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kcoord_wire.codec.framing import frame
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel import peers
from kcoord_wire.kernel.peers import BURST, FramedPeer, PeerLimits, Peers, most_connections

LIMITS = PeerLimits(max_frame_size=1_000, read_ahead=100, write_high_water=50, max_unread=500, max_bytes_held=5_000)


class Outlet(asyncio.Transport):
    """A transport whose peer reads nothing while `is_full`."""

    def __init__(self, peer: FramedPeer) -> None:
        super().__init__({"peername": ("10.0.0.1", 5)})
        self.peer = peer
        self.written = bytearray()
        self.writes = 0
        self.reads = True
        self.is_full = self.has_ended = False

    def write(self, data: Any) -> None:
        self.written += data
        self.writes += 1
        if self.is_full and not self.peer.is_choked:
            self.peer.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.written) if self.is_full else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == LIMITS.write_high_water

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.has_ended

    def close(self) -> None:
        self.has_ended = True

    def abort(self) -> None:
        if not self.has_ended:
            self.has_ended = True
        self.peer.connection_lost(None)


class Echo(Peers[FramedPeer]):
    """Answers each frame by itself; one that begins with ``wait`` is in hand until `FramedPeer.in_hand` is None."""

    def __init__(self, **limits: int) -> None:
        super().__init__(replace(LIMITS, **limits), logging.getLogger("kcoord_wire.test"))
        self.seen: list[bytes] = []

    def connect(self) -> tuple[FramedPeer, Outlet]:
        peer = FramedPeer(self, self.limits.max_frame_size)
        outlet = Outlet(peer)
        peer.connection_made(outlet)
        return peer, outlet

    def receive(self, peer: FramedPeer, data: bytes, start: int) -> None:
        body = data[start:]
        self.seen.append(body)
        if body.startswith(b"wait"):
            peer.in_hand = body
        elif body == b"junk":
            raise DecodeError("api", 0, "Test", "it is junk")
        elif body == b"fault":
            raise RuntimeError("a fault of the program")
        else:
            peer.write(frame(body))


def on_loop(scenario: Callable[[], Any]) -> None:
    async def run() -> None:
        await scenario()

    asyncio.run(run())


def test_frames_wait_for_the_one_in_hand_however_they_are_cut() -> None:
    async def scenario() -> None:
        stream = frame(b"a") + frame(b"wait") + frame(b"b" * 90) + frame(b"c" * 90)
        for size in (1, 3, 7, len(stream)):
            owner = Echo()
            peer, outlet = owner.connect()
            for at in range(0, len(stream), size):
                peer.data_received(stream[at : at + size])
            assert owner.seen == [b"a", b"wait"]
            assert not outlet.reads, "more than the read-ahead waits"
            assert peer.held == 188
            peer.in_hand = None
            peer.pump()
            assert owner.seen[2:] == [b"b" * 90, b"c" * 90]
            assert (outlet.reads, peer.held, peer.overdue(time.monotonic() + 1)) == (True, 0, None)
            assert outlet.written == frame(b"a") + frame(b"b" * 90) + frame(b"c" * 90)
            assert owner.counters.received_bytes == len(stream)
            assert owner.counters.sent_bytes == len(outlet.written)

    on_loop(scenario)


def test_a_burst_is_answered_at_once_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "BURST_SECONDS", 60.0)  # a busy machine takes longer than 5 ms for 64 frames

    async def scenario() -> None:
        owner = Echo()
        peer, outlet = owner.connect()
        peer.data_received(frame(b"x") * (BURST + 5))
        assert (len(owner.seen), outlet.writes) == (BURST, 1)
        await asyncio.sleep(0)
        assert (len(owner.seen), outlet.writes) == (BURST + 5, 2)

    on_loop(scenario)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\x04\0", "malformed: a frame of 1024 bytes"),
        (b"GET / HTTP", "malformed: a frame of 1195725856 bytes, which looks like plain text"),
        (frame(b"") + b"\xff\xff\xff\xff", "malformed: .*frame size -1 is negative"),
        (frame(b"junk"), "malformed: .*it is junk"),
        (frame(b"") + frame(b"junk"), "malformed: .*it is junk"),
        (frame(b"fault"), "malformed: its message has failed"),
    ],
)
def test_what_closes_a_connection_at_once(data: bytes, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        owner = Echo()
        (peer, outlet), (_, other) = owner.connect(), owner.connect()
        peer.data_received(data)
        peer.data_received(frame(b"later"))
        assert (outlet.has_ended, other.has_ended, owner.counters.closed) == (True, False, {"malformed": 1})
        assert b"later" not in owner.seen

    on_loop(scenario)
    assert caplog.records[-1].message.startswith("closed the connection from 10.0.0.1: malformed: ")
    assert re.search(reason, caplog.records[-1].message)


def test_which_limits_in_time_a_connection_exceeds() -> None:
    async def scenario() -> None:
        owner = Echo(idle_ms=10_000, frame_ms=3_000, unread_ms=5_000)
        now = time.monotonic()

        def after(seconds: float, *sent: bytes, full: bool = False) -> str | None:
            peer, outlet = owner.connect()
            outlet.is_full = full
            for data in sent:
                peer.data_received(data)
            return peer.overdue(now + seconds)

        assert (after(9), after(11)) == (None, "idle")
        assert (after(2, b"\0\0"), after(4, b"\0\0")) == (None, "half a frame")
        assert after(4, frame(b"x") + b"\0\0") == "half a frame"
        assert after(100, frame(b"wait")) is None
        assert after(100, frame(b"wait") + b"\0\0") is None, "the peer waits for the answer"
        assert after(4, frame(b"x") * (BURST + 5)) is None, "what it has sent waits for others"
        assert after(4, frame(b"x"), full=True) is None
        assert after(6, frame(b"x"), full=True) == "unread answers"

    on_loop(scenario)


def test_a_peer_that_does_not_read_is_closed() -> None:
    async def scenario() -> None:
        owner = Echo()
        peer, outlet = owner.connect()
        outlet.is_full = True
        peer.data_received(frame(b"first"))
        peer.data_received(frame(b"second"))
        assert owner.seen == [b"first"]
        outlet.is_full = False
        peer.resume_writing()
        assert owner.seen == [b"first", b"second"]
        outlet.is_full = True
        peer.write(b"x" * 600)
        peer.write(b"y")
        assert outlet.has_ended, "more than `max_unread`"

    on_loop(scenario)


def test_a_peer_that_sends_its_end_and_does_not_read_is_closed() -> None:
    """On real sockets: the transport begins to close at the end, and is closed when all is written."""

    async def scenario() -> None:
        owner = Echo(unread_ms=200, max_frame_size=1 << 20, max_unread=1 << 30, max_bytes_held=1 << 30)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: FramedPeer(owner, 1 << 20), "127.0.0.1", 0)
        owner.sweep()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
            async with asyncio.timeout(30):
                await loop.sock_sendall(client, frame(b"x" * 1_000))
                while not owner.peers:
                    await asyncio.sleep(0.01)
                (peer,) = owner.peers
                peer.write(bytes(16 << 20))
                client.shutdown(socket.SHUT_WR)
                while owner.peers:
                    await asyncio.sleep(0.01)
        assert owner.counters.open == 0
        server.close()
        await owner.close(0)

    on_loop(scenario)


def test_together_they_hold_no_more_than_the_limit() -> None:
    async def scenario() -> None:
        owner = Echo(max_bytes_held=1_500)
        small, large, last = owner.connect(), owner.connect(), owner.connect()
        for (peer, _), size in ((small, 400), (large, 700), (last, 500)):
            peer.data_received((900).to_bytes(4, "big") + bytes(size))
        assert [outlet.has_ended for _, outlet in (small, large, last)] == [False, True, False]
        assert owner.counters.closed == {"too many bytes held": 1}
        assert (len(owner.peers), owner.counters.open, owner.counters.accepted) == (2, 2, 3)

    on_loop(scenario)


def test_unfinished_frames_of_all_listeners_are_bounded_together() -> None:
    """The connection that takes longest is closed, whichever listener it is of; what arrives whole counts no more."""

    async def scenario() -> None:
        here, there = Echo(max_input_held=1_500), Echo(max_input_held=1_500)
        there.counters = here.counters
        (first, first_outlet), (slow, slow_outlet) = here.connect(), there.connect()
        first.data_received((900).to_bytes(4, "big") + bytes(800))
        slow.data_received((900).to_bytes(4, "big") + bytes(600))
        first.data_received(bytes(100))
        assert len(here.seen) == 1
        others = [here.connect() for _ in range(3)]
        for number, (peer, _) in enumerate(others):
            assert slow.stuck_at is not None
            peer.stuck_at = slow.stuck_at + 1 + number
            peer.data_received((900).to_bytes(4, "big") + bytes(400))
        assert (first_outlet.has_ended, slow_outlet.has_ended) == (False, True)
        assert [outlet.has_ended for _, outlet in others] == [False] * 3
        assert here.counters.closed == {"too much unfinished input": 1}
        assert here.counters.unfinished.held == 3 * 404
        for peer, _ in others:
            peer.connection_lost(None)
        assert here.counters.unfinished.held == 0

    on_loop(scenario)


def test_what_is_written_to_a_peer_that_does_not_read_is_held() -> None:
    async def scenario() -> None:
        owner = Echo(max_bytes_held=800)
        (slow, slow_outlet), (slower, slower_outlet) = owner.connect(), owner.connect()
        slow_outlet.is_full = slower_outlet.is_full = True
        for peer, size in ((slow, 100), (slower, 100), (slower, 200), (slow, 300)):
            peer.write(bytes(size))
        assert (slow.held, slower.held) == (400, 300)
        slower.write(bytes(150))
        assert (slow_outlet.has_ended, slower_outlet.has_ended) == (False, True), "it holds most"
        assert owner.counters.closed == {"too many bytes held": 1}
        assert (len(owner.peers), owner.counters.open) == (1, 1)

    on_loop(scenario)


def test_each_frame_has_its_own_time() -> None:
    async def scenario() -> None:
        owner = Echo(frame_ms=1_000)
        peer, _ = owner.connect()
        peer.data_received(b"\0\0")
        peer.stuck_at = time.monotonic() - 0.9
        peer.data_received(b"\0\1x" + b"\0\0")
        assert owner.seen == [b"x"]
        assert peer.overdue(time.monotonic() + 0.5) is None, "the second frame has just begun"
        assert peer.overdue(time.monotonic() + 1.5) == "half a frame"
        peer.pause_writing()
        peer.stuck_at = time.monotonic() - 0.9
        peer.resume_writing()
        assert peer.overdue(time.monotonic() + 0.5) is None, "the peer has read"
        assert peer.overdue(time.monotonic() + 1.5) == "half a frame"

    on_loop(scenario)


def test_a_limit_of_frames_counts_for_what_has_come() -> None:
    async def scenario() -> None:
        owner = Echo()
        peer, outlet = owner.connect()
        peer.set_frame_limit(10)
        peer.data_received(frame(b"wait") + frame(b"x" * 20))
        peer.set_frame_limit(20)
        peer.in_hand = None
        peer.pump()
        assert owner.seen == [b"wait", b"x" * 20]
        peer.data_received(frame(b"x" * 21))
        assert outlet.has_ended

    on_loop(scenario)


def test_too_many_connections_and_the_end() -> None:
    async def scenario() -> None:
        owner = Echo(max_connections=2, idle_ms=160)
        outlets = [owner.connect()[1] for _ in range(3)]
        assert [outlet.has_ended for outlet in outlets] == [False, False, True]
        owner.sweep()
        async with asyncio.timeout(30):
            while owner.peers:
                await asyncio.sleep(0.01)
        assert owner.counters.closed == {"too many": 1, "idle": 2}
        peer, outlet = owner.connect()
        peer.close()
        assert outlet.has_ended
        assert owner.peers, "what was sent is still to be read"
        await owner.close(0)
        assert not owner.peers
        assert owner.connect()[1].has_ended, "nobody is accepted any more"

    on_loop(scenario)


def test_connections_leave_open_files_to_the_process() -> None:
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_connections(10**9) == max(files - 64, 64)
    assert most_connections(10**9, share=10**9) == 64
    assert most_connections(7) == 7
