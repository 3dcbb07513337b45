"""The recording proxy: what passes, what is recorded, which addresses clients see, and faults of all sides."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

import kcoord_wire as kw
from kcoord_wire.capture import CaptureReport, FrameDecoder, RawConversation, RawFrame
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.kernel import background
from kcoord_wire.kernel.net import LogLimiter
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.recorder.counters import GROUP_APIS, RelayLimits
from kcoord_wire.recorder.proxy import Proxy, Recorder
from kcoord_wire.recorder.recording import refusal
from tests.support.clients.life_cycle import CONFIG, Place, at_once, expect_shares
from tests.support.clients.members import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Client
from tests.support.metadata import metadata
from tests.support.recorders import (
    HEARTBEAT,
    SOON,
    FakeBroker,
    Tap,
    answering,
    connect,
    coordinator,
    echo,
    frames,
    receive,
    recorded,
)
from tests.support.waiting import eventually
from tests.support.wire import Wire

BOTH_LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"], indirect=True)


@pytest.fixture
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The event loop of the test's recorders."""
    name: str = request.param
    if name == "asyncio":
        monkeypatch.setattr(background, "_loop_factory", lambda: asyncio.new_event_loop)
    return name


# ---- what is recorded


@pytest.mark.parametrize("apis", ["group", "all"])
def test_the_recording_is_what_passed_on_the_brokers_side(apis: Any, tmp_path: Path) -> None:
    tap = Tap()
    with tap.broker, coordinator(advertise=("127.0.0.1", tap.broker.port)) as served:
        tap.target = served.address
        with (
            Recorder(tap.broker.address, folder=tmp_path, apis=apis) as recorder,
            Wire(recorder.address) as one,
            Wire(recorder.address, client_id="two") as two,
        ):
            for wire in one, two, one:
                call_in_many_versions(wire)
    found = recorded(tmp_path)
    names = {record.connection: record.body.decode() for record in found if record.direction == "opened"}
    assert len(names) == len(tap.passed) == 2
    for number, name in names.items():
        match = re.fullmatch(r"127\.0\.0\.1:\d+-127\.0\.0\.1:(\d+)#(\d+)", name)
        assert match is not None
        assert (int(match[1]), int(match[2])) == (tap.broker.port, number)
    due = [due_of(connection, None if apis == "all" else GROUP_APIS) for connection in tap.passed.values()]
    for side in "request", "response":
        written = {number: [r.body for r in found if (r.connection, r.direction) == (number, side)] for number in names}
        assert sorted(written.values()) == sorted(each[side] for each in due)
    assert recorder.counters.recorded == len(found)
    assert [record.direction for record in found].count("closed") == 2


def call_in_many_versions(wire: Wire) -> None:
    for version in range(14):
        wire.call(kw.MetadataRequest(topics=None if version else []), version)
    for version in range(7):
        keys = {"key": "g"} if version < 4 else {"coordinator_keys": ["g"]}
        wire.call(kw.FindCoordinatorRequest(key_type=0, **keys), version)
    wire.call(HEARTBEAT, 4)
    wire.call(kw.ListOffsetsRequest(replica_id=-1), 5)
    first, second = wire.send(HEARTBEAT, 2), wire.send(HEARTBEAT, 4)
    wire.receive(first)
    wire.receive(second)


def due_of(passed: dict[str, bytearray], apis: Collection[int] | None) -> dict[str, list[bytes]]:
    """The frames to record of the bytes that passed on a connection, by side; None records all."""
    report = CaptureReport()
    conversation, decoder = RawConversation("tap", report), FrameDecoder(report)
    raw = conversation.feed("request", bytes(passed["request"]), 0)
    raw += conversation.feed("response", bytes(passed["response"]), 0)
    seen = [frame for item in raw if (frame := decoder.decode(item)) is not None]
    assert report.complete
    return {
        side: [frame.raw for frame in seen if frame.direction == side and (apis is None or frame.api_key in apis)]
        for side in ("request", "response")
    }


def test_times_are_those_of_the_traffic(tmp_path: Path) -> None:
    with coordinator() as served, Recorder(served.address, folder=tmp_path) as recorder, Wire(recorder.address) as wire:
        before = time.time_ns()
        wire.call(HEARTBEAT, 4)
        after = time.time_ns()
    asked, answered = [r for r in recorded(tmp_path) if r.direction in ("request", "response")]
    assert before <= asked.time_ns <= answered.time_ns <= after


def test_produced_records_and_passwords_are_not_recorded(tmp_path: Path) -> None:
    secret = b"\0alice\0secret"
    data = kw.encode_request(kw.ProduceRequest(acks=0, timeout_ms=secret[0]), 3, correlation_id=9) + b"my records"
    handshake = kw.encode_request(kw.SaslHandshakeRequest(mechanism="PLAIN"), 0, correlation_id=1)
    authenticate = kw.encode_request(kw.SaslAuthenticateRequest(auth_bytes=secret), 1, correlation_id=2)
    heartbeat = kw.encode_request(HEARTBEAT, 4, correlation_id=3)
    sent = [handshake, secret, b"", b"n,,n=user,r=secret-nonce", heartbeat, authenticate, data, heartbeat]

    def answer(body: bytes) -> bytes | None:
        if body == data:
            return None
        return kw.frame(body[4:8] + b"answer" if body in (handshake, heartbeat, authenticate) else b"token secret")

    expected = {
        "group": [heartbeat, heartbeat[4:8] + b"answer"] * 2,
        "all": [
            handshake, handshake[4:8] + b"answer", heartbeat, heartbeat[4:8] + b"answer",
            data, heartbeat, heartbeat[4:8] + b"answer",
        ],
    }  # fmt: skip
    with FakeBroker(answering(answer)) as broker:
        for apis in "group", "all":
            folder = tmp_path / apis
            with Recorder(broker.address, folder=folder, apis=apis) as recorder, connect(recorder.address) as client:
                for body in sent:
                    client.sendall(kw.frame(body))
                    back = answer(body)
                    assert back is None or receive(client, len(back)) == back
            assert frames(folder) == expected[apis]


def test_nothing_is_recorded_without_a_folder() -> None:
    with coordinator() as served, Recorder(served.address) as recorder, Wire(recorder.address) as wire:
        wire.call(HEARTBEAT, 4)
    assert (recorder.counters.requests, recorder.counters.recorded) == (1, 0)


def test_a_proxy_in_the_running_event_loop(tmp_path: Path) -> None:
    async def talk(address: str) -> bytes:
        async with Proxy(address, folder=tmp_path) as running:
            assert running.brokers == {address: running.port}
            host, _, port = running.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(kw.frame(kw.encode_request(HEARTBEAT, 4, correlation_id=7)))
            size = int.from_bytes(await reader.readexactly(4), "big")
            body = await reader.readexactly(size)
            writer.close()
            await writer.wait_closed()
        await running.close()
        return body

    with coordinator() as served:
        body = asyncio.run(talk(served.address))
    assert frames(tmp_path, "response") == [body]


# ---- addresses


def cluster(nodes: list[tuple[str, int]]) -> Callable[[bytes], bytes]:
    """A broker's answers, if these are its cluster; a DescribeCluster gets one that does not decode."""

    def answer(body: bytes) -> bytes:
        header = kw.peek_request(body)
        if header.request_api_key == 60:
            return kw.frame(body[4:8] + b"\0 some cluster")
        brokers = [kw.MetadataResponseBroker(node_id=n, host=h, port=p) for n, (h, p) in enumerate(nodes)]
        message = kw.MetadataResponse(brokers=brokers, controller_id=0, topics=[])
        version = min(header.request_api_version, 13)
        return kw.frame(kw.encode_response(message, version, correlation_id=header.correlation_id))

    return answer


def brokers_of(wire: Wire) -> list[tuple[str, int]]:
    return [(b.host, b.port) for b in wire.call(kw.MetadataRequest(topics=None), 12).brokers]


def test_each_broker_has_a_port_that_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kcoord_wire")
    nodes: list[tuple[str, int]] = []
    with FakeBroker(answering(cluster(nodes))) as broker, FakeBroker(echo) as other:
        nodes += [("127.0.0.1", broker.port), ("127.0.0.1", other.port), ("localhost", broker.port)]
        with Recorder(broker.address, folder=tmp_path) as recorder, Wire(recorder.address) as wire:
            seen = brokers_of(wire)
            assert seen == brokers_of(wire)
            nodes.append(("no-such-host.invalid", 9092))
            assert brokers_of(wire)[:3] == seen
            assert {host for host, _ in seen} == {"127.0.0.1"}
            assert len({port for _, port in seen}) == 3
            assert seen[0][1] == recorder.proxy.port
            assert recorder.proxy.brokers[f"localhost:{broker.port}"] == seen[2][1]
            with Wire(*seen[2]) as again:
                assert brokers_of(again)[:3] == seen
            message = kw.frame(kw.encode_request(HEARTBEAT, 4))
            with connect("{}:{}".format(*seen[1])) as client:
                client.sendall(message)
                assert receive(client, len(message)) == message
    opened = [r.body.decode() for r in recorded(tmp_path) if r.direction == "opened"]
    assert [int(re.split("[:#]", name)[2]) for name in opened] == [broker.port, broker.port, other.port]
    assert f"the broker at localhost:{broker.port} is reached at port {seen[2][1]}" in caplog.text


def free_ports(count: int) -> tuple[int, int]:
    """So many in a row, free at this moment."""
    for first in range(30_000, 60_000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.create_server(("127.0.0.1", port)))
            return first, first + count - 1
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
    raise AssertionError("no ports")


def test_ports_of_a_range_until_none_is_left(caplog: pytest.LogCaptureFixture) -> None:
    nodes = [(f"kafka-{n}", 9092) for n in range(4)]
    first, last = free_ports(3)
    with (
        FakeBroker(answering(cluster(nodes))) as broker,
        Recorder(broker.address, ports=(first, last), advertise="proxy.local") as recorder,
        Wire(recorder.address) as wire,
        socket.create_server(("127.0.0.1", first + 1)),  # somebody else has it
    ):
        for _ in range(2):
            assert brokers_of(wire) == [("proxy.local", first), ("proxy.local", last), *nodes[2:]]
    assert caplog.text.count("no port is left") == 2


def test_clients_see_the_address_they_have_connected_to() -> None:
    with FakeBroker(answering(cluster([("kafka-1", 9092)]))) as broker:
        with Recorder(broker.address, listen="0.0.0.0:0") as recorder:
            for host in "127.0.0.1", "127.0.0.2":
                with Wire(host, recorder.proxy.port) as wire:
                    assert brokers_of(wire) == [(host, recorder.proxy.brokers["kafka-1:9092"])]
        with Recorder(broker.address, listen="localhost:0") as recorder, Wire(recorder.address) as wire:
            assert brokers_of(wire)[0][0] == "localhost"


def test_a_response_that_does_not_decode_passes(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with (
        FakeBroker(answering(cluster([("kafka-1", 9092)]))) as broker,
        Recorder(broker.address, folder=tmp_path) as recorder,
        connect(recorder.address) as client,
    ):
        for body in (
            *[struct.pack(">hhihb", 60, 0, 5, -1, 0)] * 3,  # DescribeCluster
            struct.pack(">hhih", 3, 14, 6, -1),  # a Metadata of tomorrow
            *[struct.pack(">hhih", 3, 99, 7, -1)] * 2,
        ):
            client.sendall(kw.frame(body))
            expected = cluster([("kafka-1", 9092)])(body)
            assert receive(client, len(expected)) == expected
    assert recorder.counters.not_rewritten == 6
    assert len(frames(tmp_path)) == 12
    lines = [record.getMessage() for record in caplog.records]
    assert [re.sub(": .*", "", line) for line in lines] == [
        f"addresses in a {api} response are left as they are"
        for api in ("DescribeCluster v0", "Metadata v14", "Metadata v99")
    ]


def test_bytes_are_untouched_without_rewriting(tmp_path: Path) -> None:
    """Whatever is sent: frames of a broker, and then what are none."""
    heartbeat = kw.encode_request(HEARTBEAT, 4, correlation_id=12 << 16 | 4)  # as an answer, to itself
    bodies = [metadata(12, correlation_id=5), b"", b"x", bytes(300_000), heartbeat]
    streams = b"".join(map(kw.frame, bodies)), b"GET / HTTP/1.1\r\n\r\n" + os.urandom(100_000), b"more"
    with FakeBroker(echo) as broker:
        for apis in "group", "all":
            folder = tmp_path / apis
            with (
                Recorder(broker.address, rewrite=False, folder=folder, apis=apis) as recorder,
                connect(recorder.address) as client,
            ):
                for stream in streams:
                    sender = threading.Thread(target=client.sendall, args=(stream,))
                    sender.start()
                    assert receive(client, len(stream)) == stream
                    sender.join()
                client.shutdown(socket.SHUT_WR)
                assert client.recv(1) == b""
            assert recorder.counters.foreign == 1
    assert frames(tmp_path / "group") == [heartbeat, heartbeat]


# ---- hostile and broken peers


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes, which looks like plain text"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03", "a frame of 369295618 bytes, which looks like TLS"),
        (b"\xff\xff\xff\xff" + bytes(20), "a frame of 4294967295 bytes"),
        (b"\x06\x40\x00\x01" + bytes(20), "a frame of 104857601 bytes"),
    ],
)
def test_a_client_of_another_protocol_is_closed(sent: bytes, logged: str, caplog: pytest.LogCaptureFixture) -> None:
    with coordinator() as served, Recorder(served.address) as recorder, Wire(recorder.address) as other:
        with Wire(recorder.address) as wire:
            wire.send_raw(sent)
            assert wire.is_closed_by_peer()
        other.call(HEARTBEAT, 4)
    assert recorder.counters.foreign == 1
    (line,) = [record.getMessage() for record in caplog.records if record.name == "kcoord_wire.capture"]
    assert line.endswith(f"the client does not speak Kafka: {logged}; closed")


def test_a_broker_of_another_protocol_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    def serve(client: socket.socket) -> None:
        client.recv(100)
        client.sendall(b"\xff\xfehello")
        client.recv(100)

    with FakeBroker(serve) as broker, Recorder(broker.address) as recorder, Wire(recorder.address) as wire:
        wire.send(HEARTBEAT, 4)
        assert wire.is_closed_by_peer()
    assert "the broker does not speak Kafka" in caplog.text


def test_frames_before_foreign_bytes_pass_and_are_recorded(tmp_path: Path) -> None:
    got: list[bytes] = []
    whole = kw.frame(kw.encode_request(HEARTBEAT, 4))
    with (
        FakeBroker(lambda client: got.append(receive(client, 1 << 20))) as broker,
        Recorder(broker.address, folder=tmp_path) as recorder,
        connect(recorder.address) as client,
    ):
        client.sendall(whole * 3 + b"GET / HTTP/1.1")
        with suppress(ConnectionError):
            assert client.recv(1) == b""
        eventually(lambda: bool(got))
    assert got == [whole * 3]
    assert frames(tmp_path) == [whole[4:]] * 3


@pytest.mark.parametrize("rewrite", [True, False])
def test_a_client_that_speaks_tls_is_in_the_recording(tmp_path: Path, rewrite: bool) -> None:
    with (
        FakeBroker(lambda client: receive(client, 100)) as broker,
        Recorder(broker.address, folder=tmp_path, rewrite=rewrite) as recorder,
    ):
        for _ in range(3):
            with connect(recorder.address) as client:
                client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03")
                client.shutdown(socket.SHUT_WR)
                with suppress(ConnectionError):
                    assert client.recv(1) == b""
        eventually(lambda: recorder.counters.foreign == 3 and recorder.counters.open == 0)
    assert [record.direction for record in recorded(tmp_path)] == ["opened", "foreign", "closed"] * 3
    analysis = analyze([tmp_path])
    [finding] = [finding for history in analysis.histories for finding in history.findings]
    assert f"127.0.0.1 speaks TLS to the port {broker.address}, which expects none, 3 times" in finding.text


def test_log_lines_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with coordinator() as served, Recorder(served.address) as recorder:
        for _ in range(30):
            with Wire(recorder.address) as wire:
                wire.send_raw(b"GET / HTTP/1.1\r\n\r\n")
                assert wire.is_closed_by_peer()
    assert caplog.text.count("the client does not speak Kafka") == LogLimiter.LINES
    assert recorder.counters.foreign == 30


@BOTH_LOOPS
def test_a_client_that_leaves_within_a_frame(loop: str, tmp_path: Path) -> None:
    got: list[bytes] = []
    done = threading.Event()

    def serve(client: socket.socket) -> None:
        got.append(receive(client, 1 << 20))
        done.set()

    whole = kw.frame(kw.encode_request(HEARTBEAT, 4))
    with FakeBroker(serve) as broker, Recorder(broker.address, folder=tmp_path) as recorder:
        for size in (1, 3, 4, 6, 13, len(whole) - 1):
            done.clear()
            with connect(recorder.address) as client:
                client.sendall(whole + whole[:size])
            assert done.wait(SOON)
            assert got[-1] == whole + whole[:size]
        eventually(lambda: recorder.counters.open == 0)
        assert recorder.proxy.context.held == 0
    assert frames(tmp_path) == [whole[4:]] * 6


def test_a_broker_that_is_down(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with Recorder(f"127.0.0.1:{port}", folder=tmp_path) as recorder:
        for _ in range(2):
            with Wire(recorder.address) as wire:
                wire.send_raw(kw.frame(kw.encode_request(HEARTBEAT, 4)))
                assert wire.is_closed_by_peer()
    assert recorder.counters.unreachable == 2
    assert re.search(rf"cannot reach 127\.0\.0\.1:{port} for 127\.0\.0\.1:\d+: .*[Cc]onnect", caplog.text)
    found = recorded(tmp_path)
    assert [record.direction for record in found] == ["refused"] * 2
    for number, record in enumerate(found, start=1):
        name, why = refusal(record.body)
        assert re.fullmatch(rf"127\.0\.0\.1:\d+-127\.0\.0\.1:{port}#{number}", name)
        assert "onnect" in why


@BOTH_LOOPS
@pytest.mark.parametrize("side", ["client", "broker"])
@pytest.mark.parametrize("reset", [False, True])
def test_who_ended_a_connection_and_how_is_recorded(side: str, reset: bool, loop: str, tmp_path: Path) -> None:
    def end(peer: socket.socket) -> None:
        if reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()

    def serve(client: socket.socket) -> None:
        client.recv(1000)
        if side == "broker":
            end(client)
        else:
            client.recv(1000)

    with FakeBroker(serve) as broker, Recorder(broker.address, folder=tmp_path) as recorder:
        client = connect(recorder.address)
        client.sendall(kw.frame(kw.encode_request(HEARTBEAT, 4)))
        eventually(lambda: recorder.counters.requests == 1)
        if side == "client":
            end(client)
        eventually(lambda: recorder.counters.open == 0)
        client.close()
    last = recorded(tmp_path)[-1]
    assert (last.direction, last.by) == ("reset" if reset else "closed", side)


def test_an_end_is_recorded_when_the_first_side_ends(tmp_path: Path) -> None:
    """A broker does not read the end of a client whose JoinGroup waits."""
    seen, release = threading.Event(), threading.Event()

    def serve(client: socket.socket) -> None:
        while client.recv(1000):
            pass
        seen.set()
        release.wait(SOON)

    with FakeBroker(serve) as broker, Recorder(broker.address, folder=tmp_path) as recorder:
        with connect(recorder.address) as client:
            client.sendall(kw.frame(kw.encode_request(HEARTBEAT, 4)))
        assert seen.wait(SOON)
        known_ns = time.time_ns()
        release.set()
        eventually(lambda: recorder.counters.open == 0)
    last = recorded(tmp_path)[-1]
    assert (last.direction, last.by) == ("closed", "client")
    assert last.time_ns <= known_ns


def test_a_broker_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    """One that takes connections into its backlog, and speaks no TLS."""
    limits = RelayLimits(connect_seconds=0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        tls = ssl.create_default_context()
        with Recorder(address, limits=limits, tls=tls) as recorder, Wire(recorder.address) as wire:
            assert wire.is_closed_by_peer()
    assert "no answer in time" in caplog.text


@pytest.mark.parametrize("api", ["heartbeat", "metadata"])
def test_a_broker_that_dies_within_a_frame(api: str, tmp_path: Path) -> None:
    answer = kw.frame(metadata(12, correlation_id=1))

    def serve(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(answer[:30])

    request = HEARTBEAT if api == "heartbeat" else kw.MetadataRequest(topics=None)
    with FakeBroker(serve) as broker, Recorder(broker.address, folder=tmp_path) as recorder:
        with connect(recorder.address) as client:
            body = kw.encode_request(request, 4 if api == "heartbeat" else 12, correlation_id=1)
            client.sendall(kw.frame(body))
            assert receive(client, 100) == (answer[:30] if api == "heartbeat" else b""), "half an address is none"
        eventually(lambda: recorder.counters.open == 0)
        assert recorder.proxy.context.held == 0
    assert frames(tmp_path) == [body]


@BOTH_LOOPS
def test_a_peer_that_does_not_read_stops_the_other(loop: str) -> None:
    """Neither side makes the proxy hold more than what sockets and a write buffer take."""
    taken = {"by broker": 0, "by client": 0}
    let_go = threading.Event()

    def flood(to: socket.socket, whose: str) -> None:
        block = kw.frame(struct.pack(">hhih", 1, 4, 7, -1) + bytes(60_000)) * 10
        to.settimeout(0.5)
        try:
            for _ in range(500):
                to.sendall(block)
                taken[whose] += len(block)
        except OSError:  # no more is taken, or the other end has gone
            pass
        finally:
            let_go.wait(SOON)

    with (
        FakeBroker(lambda client: flood(client, "by client")) as broker,
        Recorder(broker.address) as recorder,
        connect(recorder.address),
    ):
        eventually(lambda: recorder.counters.response_bytes > 0)
        seen = -1
        while seen != recorder.counters.response_bytes:
            seen = recorder.counters.response_bytes
            time.sleep(0.6)
        assert 0 < seen < 32 << 20
        assert recorder.proxy.context.held < 1 << 20
        let_go.set()
    let_go.clear()

    def deaf(client: socket.socket) -> None:
        let_go.wait(SOON)

    with FakeBroker(deaf) as broker, Recorder(broker.address) as recorder, connect(recorder.address) as client:
        thread = threading.Thread(target=flood, args=(client, "by broker"))
        thread.start()
        eventually(lambda: recorder.counters.request_bytes > 0)
        seen = -1
        while seen != recorder.counters.request_bytes:
            seen = recorder.counters.request_bytes
            time.sleep(0.6)
        assert 0 < seen < 32 << 20
        let_go.set()
        thread.join(SOON)


@BOTH_LOOPS
def test_large_frames_pass_and_are_recorded_cut(loop: str, tmp_path: Path) -> None:
    request = struct.pack(">hhih", 11, 5, 1, -1) + os.urandom(20 << 20)
    response = (1).to_bytes(4, "big") + os.urandom(10 << 20)

    def serve(client: socket.socket) -> None:
        assert receive(client, len(request) + 4) == kw.frame(request)
        client.sendall(kw.frame(response))

    limits = RelayLimits(max_frame=1 << 20)
    with (
        FakeBroker(serve) as broker,
        Recorder(broker.address, folder=tmp_path, limits=limits) as recorder,
        connect(recorder.address) as client,
    ):
        client.sendall(kw.frame(request))
        assert receive(client, len(response) + 4) == kw.frame(response)
    both = [(r.body, r.size) for r in recorded(tmp_path) if r.direction in ("request", "response")]
    assert both == [(request[: 1 << 20], len(request)), (response[: 1 << 20], len(response))]
    assert recorder.counters.cut == 2


# ---- start and end


def test_unusable_ports_and_folders_are_refused(tmp_path: Path) -> None:
    with Recorder("127.0.0.1:1", folder=tmp_path) as running:
        with pytest.raises(OSError, match="in use"):
            Recorder("127.0.0.1:1", listen=running.address).start()
        second = Recorder("127.0.0.1:1", folder=tmp_path)
        with pytest.raises(BlockingIOError, match="another recorder"):
            second.start()
        with pytest.raises(RuntimeError, match="once"):
            second.start()
        second.stop()
    running.stop()
    assert running.wait(0)
    for arguments in (
        {"upstream": "kafka"}, {"upstream": "kafka:0"}, {"upstream": "kafka:70000"}, {"listen": "x"},
        {"apis": "some"}, {"ports": (0, 5)}, {"ports": (7, 5)},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"HOST:PORT|port|apis"):
            Recorder(**{"upstream": "127.0.0.1:1", **arguments})  # type: ignore[arg-type]


@BOTH_LOOPS
def test_it_ends_while_clients_are_connected(loop: str, tmp_path: Path) -> None:
    with coordinator() as served:
        with Recorder(served.address, folder=tmp_path) as recorder:
            wires = [Wire(recorder.address) for _ in range(5)]
            for wire in wires:
                wire.call(HEARTBEAT, 4)
            wires[0].send_raw(b"\0\0\0")
        for wire in wires:
            assert wire.is_closed_by_peer()
            wire.close()
    directions = [r.direction for r in recorded(tmp_path)]
    assert (directions.count("opened"), directions.count("closed")) == (5, 5)


@BOTH_LOOPS
def test_brokers_behind_tls(loop: str) -> None:
    authority = trustme.CA()
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    ours = ssl.create_default_context()
    with coordinator(tls=theirs) as served:
        with Recorder(served.address, tls=ours) as recorder, Wire(recorder.address) as wire:
            assert wire.is_closed_by_peer(), "no known authority has signed it"
        assert recorder.counters.unreachable == 1
        authority.configure_trust(ours)
        with Recorder(served.address, tls=ours) as recorder, Wire(recorder.address) as wire:
            ((host, port),) = brokers_of(wire)
            with Wire(host, port) as other:
                other.call(HEARTBEAT, 4)


# ---- real clients


def lives_through(place: Place, client: Client) -> dict[str, float]:
    """Two members of a library: join, share, produce, read, commit, leave."""
    with place.member(client, "first", "range") as first, place.member(client, "second", "range") as second:
        first.join()
        place.share_out([first])
        second.join()
        place.share_out([first, second])
        expect_shares([first, second], place.produce(second, "text", 2))
        assert first.commit() | second.commit() == dict.fromkeys(place.all, 2)
        second.leave()
        return {"left": place.share_out([first])}


@pytest.mark.slow
def test_real_clients(tmp_path: Path) -> None:
    clients = (CONFLUENT, AIOKAFKA, KAFKA_PYTHON)
    with Coordinator({}, config=CONFIG) as served, Recorder(served.address, folder=tmp_path) as recorder:
        places = {c: replace(Place.on(served, c.name), bootstrap=recorder.address) for c in clients}
        at_once({c.name: lambda c=c: lives_through(places[c], c) for c in clients})  # type: ignore[misc]
        accepted = re.search(r"kcoord_connections_accepted_total (\d+)", served.metrics())
        assert accepted is not None
    found = recorded(tmp_path)
    assert int(accepted[1]) == [r.direction for r in found].count("opened"), "no client has bypassed the recorder"
    assert recorder.counters.rewritten > 10
    assert recorder.counters.not_rewritten == recorder.counters.foreign == recorder.counters.not_recorded == 0
    report = CaptureReport()
    decoders: dict[int, FrameDecoder] = {}
    joins = set()
    for record in found:
        if record.direction == "opened":
            decoders[record.connection] = FrameDecoder(report)
        elif record.direction == "request" or record.direction == "response":
            raw = RawFrame(record.time_ns, 0, "", record.direction, record.body, size=record.size)
            seen = decoders[record.connection].decode(raw)
            assert seen is not None
            assert seen.api_key in {*GROUP_APIS, ApiKey.FETCH}
            if seen.api_key == ApiKey.FETCH and seen.direction == "response":
                assert not any(part.records for topic in seen.message.responses for part in topic.partitions)
            if seen.direction == "request" and seen.api_key == 11 and seen.message is not None:
                joins.add(seen.message.group_id)
    assert joins == {place.group for place in places.values()}
    assert (report.undecodable, report.unmatched_responses, report.skipped_bytes, report.unknown_apis) == (0, 0, 0, 0)
