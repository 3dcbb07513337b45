"""Hostile peers, and peers of other protocols: the server stays up with bounded memory, and a healthy member of a group
is not disturbed.

Each test attacks a server in another process while a member heartbeats without pause, and checks the server's memory
and stderr at the end.
"""

from __future__ import annotations

import os
import random
import resource
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trustme

import kcoord_wire as kw
from kcoord_wire.coordinator.api_codec import MAX_NAMES
from kcoord_wire.coordinator.connection import PeerLimits
from kcoord_wire.coordinator.core.apis import APIS
from tests.support.group_client import (
    VERSIONS,
    become_stable,
    join_request,
    request_bytes,
)
from tests.support.hostile_bytes import HOSTILE
from tests.support.processes import Process
from tests.support.waiting import eventually
from tests.support.wire import Wire

MB = 1 << 20
STALL = 3.0  # seconds of a processor that the server may use while a healthy client waits; 0.5 are usual, at any load
GONE = 30.0

SERVER = """
import logging, resource, sys
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.connection import PeerLimits
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
logging.basicConfig(level=logging.ERROR)
tls = None
if len(sys.argv) > 1:
    import ssl
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(sys.argv[1])
limits = PeerLimits(max_connections=1200, frame_ms=3000, unread_ms=4000, max_bytes_held=32 << 20)
config = GroupConfig(initial_rebalance_delay_ms=0)
with Coordinator({"orders": 12, "wide": 2000}, config=config, limits=limits, tls=tls) as c:
    print(c.address, flush=True)
    sys.stdin.read()
"""


class Siege:
    """A server under attack, and the healthy client that it must not forget.

    :ivar address: where it listens
    """

    def __init__(self, certificate: Path | None = None, trust: ssl.SSLContext | None = None) -> None:
        command = [sys.executable, "-c", SERVER, *([str(certificate)] if certificate else [])]
        self._server = Process(command, ready=r"\S+:\d+")
        self.address = self._server.ready[0]
        self._trust = trust
        self._waits: list[float] = []
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._live)
        self._thread.start()
        eventually(lambda: len(self._waits) > 20 or self._failure is not None)
        self._before = self.memory("VmRSS")

    def connect(self) -> Wire:
        return Wire(self.address, ssl_context=self._trust, timeout=GONE)

    def memory(self, which: str) -> int:
        """Bytes: ``VmRSS`` now, ``VmHWM`` at most so far."""
        status = Path(f"/proc/{self._server.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(which))
        return int(line.split()[1]) * 1024

    @property
    def _used(self) -> float:
        """Seconds of a processor that the server has used."""
        fields = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def growth(self) -> int:
        """By how many bytes the server's memory has grown at most."""
        return self.memory("VmHWM") - self._before

    def _live(self) -> None:
        try:
            with self.connect() as wire:
                heartbeat = become_stable(wire, "healthy")
                while not self._over.is_set():
                    before = self._used
                    assert wire.call(heartbeat, 4).error_code == 0
                    self._waits.append(self._used - before)
                    time.sleep(0.002)
        except BaseException as error:
            self._failure = error

    def lift(self) -> None:
        """The attack is over: what has become of the server and its client?"""
        try:
            count = len(self._waits)
            eventually(lambda: len(self._waits) > count + 5 or self._failure is not None)
            with self.connect() as wire:
                assert become_stable(wire, "afterwards")
        finally:
            self._over.set()
            self._thread.join(GONE)
            status, _, errors = self._server.finish(GONE)
        assert self._failure is None
        assert max(self._waits) < STALL
        assert (status, errors) == (0, "")


@pytest.fixture
def siege() -> Iterator[Siege]:
    siege = Siege()
    try:
        yield siege
    finally:
        siege.lift()


@pytest.fixture
def many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def closed_or_answered(wire: Wire) -> str:
    try:
        wire.receive_body()
    except (EOFError, ConnectionError):
        return "closed"
    return "answered"


# ---- bodies


ARRAYS = {
    "array of 2**31-1, no data": (15, 0, b"\x7f\xff\xff\xff"),
    "compact array of 2**32-2": (15, 5, b"\xff\xff\xff\xff\x0f"),
    "array of -2": (15, 0, b"\xff\xff\xff\xfe"),
    "tags without end": (12, 4, b"\2g\0\0\0\1\2m\0" + b"\xff\xff\xff\xff\x0f" + b"\1" * 10_000),
}
LENIENT = {"trailing bytes", "tag twice", "tags descending", "overlong varint", "null string", "null compact string"}
LENIENT |= {"tags without end", "bad UTF-8", "surrogate in UTF-8", "UTF-8 cut short"}
"""What Kafka's broker accepts too, and nulls, which lenient decoding reads as empty."""


def test_hostile_bodies(siege: Siege) -> None:
    cases = {case: (12, version, body) for case, name, version, body, _ in HOSTILE if name == "HeartbeatRequest"}
    assert len(cases) > 15
    for case, (api_key, version, body) in (cases | ARRAYS).items():
        flexible = version in kw.registry.request(api_key).flexible_versions
        header = struct.pack(">hhih", api_key, version, 1, 1) + b"x" + b"\0" * flexible
        with siege.connect() as wire:
            wire.send_raw(kw.frame(header + body))
            assert closed_or_answered(wire) == ("answered" if case in LENIENT else "closed"), case
    assert siege.growth < 8 * MB


def test_headers_cut_short(siege: Siege) -> None:
    for length in range(10):
        with siege.connect() as wire:
            wire.send_raw(kw.frame(struct.pack(">hhih", 12, 4, 1, 5)[:length]))
            assert closed_or_answered(wire) == "closed", length


def test_noise(siege: Siege) -> None:
    chance = random.Random(11)
    frames = [
        request_bytes(request, version, 1)
        for request, version in (
            (join_request("noise"), 9),
            (join_request("noise"), 2),
            (kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name="orders")]), 12),
            (kw.OffsetFetchRequest(groups=[kw.OffsetFetchRequestGroup(group_id="noise")]), 8),
            (VERSIONS, 4),
        )
    ]
    for _ in range(400):
        data = bytearray(chance.choice(frames))
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        with siege.connect() as wire:
            wire.send_raw(bytes(data))
            wire.end_sending()
            closed_or_answered(wire)
    assert siege.growth < 16 * MB


def dense(api_key: int, version: int, before: bytes, element: bytes, size: int) -> bytes:
    """A request that is one long list of next to nothing."""
    count = size // len(element)
    flexible = version in kw.registry.request(api_key).flexible_versions
    length = _unsigned_varint(count + 1) if flexible else struct.pack(">i", count)
    header = struct.pack(">hhih", api_key, version, 1, 1) + b"x" + b"\0" * flexible
    return kw.frame(header + before + length + element * count + b"\0" * 8)


def _unsigned_varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


@pytest.mark.parametrize(
    ("api_key", "version", "before", "element"),
    [
        pytest.param(3, 9, b"", b"\1\0", id="Metadata"),
        pytest.param(9, 8, b"", b"\1\1\0", id="OffsetFetch"),
        pytest.param(10, 4, b"\0", b"\1", id="FindCoordinator"),
        pytest.param(15, 0, b"", b"\0\0", id="DescribeGroups"),
        pytest.param(1, 12, b"\xff" * 4 + b"\0" * 8 + b"\0\x10\0\0" + b"\0" * 9, b"\1\1\0", id="Fetch"),
    ],
)
def test_long_lists_of_next_to_nothing(siege: Siege, api_key: int, version: int, before: bytes, element: bytes) -> None:
    limit = PeerLimits().max_plain_frame_size
    sizes = {limit - 100: "closed" if APIS[api_key].names else "answered", limit + 100: "closed"}
    if APIS[api_key].names:
        sizes |= {MAX_NAMES * len(element): "answered", (MAX_NAMES + 1) * len(element): "closed"}
    for size, outcome in sizes.items():
        with siege.connect() as wire:
            wire.send_raw(dense(api_key, version, before, element, size))
            assert closed_or_answered(wire) == outcome, size
    assert siege.growth < 256 * MB


# ---- frames


@pytest.mark.parametrize("size", [0x7FFFFFFF, -1, -0x80000000, (100 << 20) + 1])
def test_giant_frames(siege: Siege, size: int) -> None:
    for _ in range(20):
        with siege.connect() as wire:
            wire.send_raw(struct.pack(">i", size))
            assert closed_or_answered(wire) == "closed"
    assert siege.growth < 4 * MB


def test_frames_that_only_a_produce_may_have(siege: Siege) -> None:
    for _ in range(20):
        with siege.connect() as wire:
            wire.send_raw(struct.pack(">ihhih", (4 << 20) + 1, 11, 9, 1, -1))
            assert closed_or_answered(wire) == "closed"
    assert siege.growth < 4 * MB


def test_giant_batches_are_not_held(siege: Siege) -> None:
    # header, no transactional id, acks, timeout, one topic with one partition, and its batch
    start = struct.pack(">hhihhhiih6siii", 0, 8, 1, -1, -1, 1, 1_000, 1, 6, b"orders", 1, 0, 60 << 20)
    for _ in range(3):
        with siege.connect() as wire:
            wire.send_raw(struct.pack(">i", len(start) + (60 << 20)) + start)
            for _ in range(60):
                wire.send_raw(bytes(1 << 20))
            assert closed_or_answered(wire) == "answered"
    assert siege.growth < 16 * MB


@pytest.mark.parametrize(
    "text", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"\r\n\r\n", b"{}\n\n" * 1000]
)
def test_plain_text(siege: Siege, text: bytes) -> None:
    for _ in range(20):
        with siege.connect() as wire:
            wire.send_raw(text)
            assert closed_or_answered(wire) == "closed"
    assert siege.growth < 4 * MB


def test_tls_to_the_plain_port(siege: Siege) -> None:
    context = ssl.create_default_context()
    for _ in range(10):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Wire(siege.address, ssl_context=context)


def test_plain_text_to_the_tls_port(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    siege = Siege(certificate, trust)
    try:
        for data in (b"GET / HTTP/1.1\r\n\r\n", request_bytes(VERSIONS, 3, 1), b"\x16\x03\1\2\0\1", b"\0" * 70_000):
            with Wire(siege.address) as wire:
                wire.send_raw(data)
                wire.end_sending()
                assert wire.is_closed_by_peer() or wire.is_closed_by_peer()  # an alert may come before the end
        with ExitStack() as stack:  # handshakes that nobody goes on with
            for _ in range(100):
                stack.enter_context(Wire(siege.address))
            assert siege.growth < 32 * MB
    finally:
        siege.lift()


def test_half_frames(siege: Siege) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(siege.connect()) for _ in range(100)]
        for wire in wires:
            wire.send_raw(struct.pack(">i", 4 << 20) + bytes(64 << 10))
        for wire in wires:
            assert wire.is_closed_by_peer()
    assert siege.growth < 32 * MB


def test_half_frames_that_together_are_too_much(siege: Siege) -> None:
    with ExitStack() as stack:
        for _ in range(40):
            wire = stack.enter_context(siege.connect())
            with suppress(ConnectionError):
                wire.send_raw(struct.pack(">i", 4 << 20) + bytes(3 << 20))
        eventually(lambda: siege.growth > 16 * MB)
    assert siege.growth < 128 * MB


# ---- time


def test_slow_loris(siege: Siege) -> None:
    frame = request_bytes(VERSIONS, 3, 1)
    began = time.monotonic()
    with ExitStack() as stack:
        wires = [stack.enter_context(siege.connect()) for _ in range(50)]
        with suppress(ConnectionError):
            for byte in struct.pack(">i", 1000) + frame * 100:
                for wire in wires:
                    wire.send_raw(bytes([byte]))
                time.sleep(0.05)
                assert time.monotonic() - began < GONE
        for wire in wires:
            assert wire.is_closed_by_peer()
    assert siege.growth < 4 * MB


@pytest.mark.usefixtures("many_files")
def test_a_thousand_idle_connections(siege: Siege) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(siege.connect()) for _ in range(1000)]
        assert all(wire.call(VERSIONS, 3).error_code == 0 for wire in wires)
        assert siege.growth < 1000 * 8192
        for wire in wires[::100]:
            assert wire.call(VERSIONS, 3).error_code == 0


@pytest.mark.usefixtures("many_files")
def test_more_connections_than_there_may_be(siege: Siege) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(siege.connect()) for _ in range(1300)]
        closed = 0
        for wire in wires[-101:]:  # the healthy client has one
            with suppress(ConnectionError):
                wire.send(VERSIONS, 3)
            closed += closed_or_answered(wire) == "closed"
        assert closed == 101
        assert wires[0].call(VERSIONS, 3).error_code == 0


# ---- clients that do not read


def pour(address: str, data: bytes, most: int) -> tuple[socket.socket, int]:
    """A connection into which as much was written as goes, in so many bytes at most."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), GONE)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(0.3)
    sent = 0
    with suppress(OSError):
        while sent < most:
            sent += connection.send(data)
    return connection, sent


@pytest.mark.parametrize("what", ["Metadata", "ApiVersions"])
def test_clients_that_never_read(siege: Siege, what: str) -> None:
    wide = kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name="wide")])
    request = request_bytes(wide, 12, 1) if what == "Metadata" else request_bytes(VERSIONS, 3, 1)
    most = 16 * MB
    with ExitStack() as stack:
        connections = []
        for _ in range(5):
            connection, sent = pour(siege.address, request * 1000, most)
            connections.append(stack.enter_context(connection))
            assert sent < most, "the server has taken all of it"
        assert siege.growth < 48 * MB
        for connection in connections:  # they are let go in the end
            connection.settimeout(GONE)
            with suppress(ConnectionError):
                while connection.recv(MB):
                    pass


def test_what_waits_behind_a_parked_join(siege: Siege) -> None:
    with siege.connect() as first, siege.connect() as second:
        become_stable(first, "parked")
        member_id = second.call(join_request("parked"), 9).member_id
        second.send(join_request("parked", member_id), 9)
        with pytest.raises(TimeoutError):
            second.send_within(0.5, request_bytes(VERSIONS, 3, 1) * 1_000_000)
        assert siege.growth < 4 * MB


def test_clients_that_hang_up(siege: Siege) -> None:
    """In the middle of anything: before the answer, while parked, with a reset."""
    sends: list[Callable[[Wire], object]] = [
        lambda wire: wire.send(VERSIONS, 3),
        lambda wire: wire.send(join_request("gone"), 3),
        lambda wire: wire.send_raw(request_bytes(VERSIONS, 3, 1)[:-3]),
        lambda wire: wire.send_raw(request_bytes(VERSIONS, 3, 1) * 500),
    ]
    for turn in range(200):
        with siege.connect() as wire:
            sends[turn % len(sends)](wire)
            if turn % 3 == 0:
                wire.reset()
    assert siege.growth < 8 * MB
