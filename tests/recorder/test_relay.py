"""One relay with memory at its ends: however bytes are cut, and which addresses clients are told."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.recorder import relay
from kcoord_wire.recorder.addresses import AddressError, rewrite_addresses
from kcoord_wire.recorder.proxy import Limits, Proxy
from kcoord_wire.recorder.relay import Relay

HEARTBEAT = kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


# ---- however bytes come


class Outlet(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 5), "sockname": ("10.0.0.2", 6)})
        self.written = bytearray()
        self.closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Notes:
    """In a tape's place."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, bytes, int]] = []

    def opened(self, connection: int, name: str) -> None: ...

    closed = opened

    def frame(self, connection: int, direction: str, body: bytes, time_ns: int, size: int) -> None:
        self.frames.append((direction, body, size))


class Idle:
    """In a loop's place."""

    def create_task(self, task: Any) -> None:
        task.close()

    def call_soon(self, callback: Any) -> None: ...


def unconnected(**options: Any) -> tuple[Relay, Notes, Outlet, Outlet]:
    """A relay with nothing but memory at its ends."""
    running = Proxy("127.0.0.1:1", **options)
    notes = Notes()
    running.tape = cast(Any, notes)
    running.loop = cast(Any, Idle())
    running._brokers = {("kafka-1", 9092): 19092, ("kafka-2", 9092): 19093}
    pair = Relay(running, ("127.0.0.1", 1))
    client, broker = Outlet(), Outlet()
    pair.client.connection_made(client)
    pair.upstream.connection_made(broker)
    return pair, notes, client, broker


def metadata(version: int, hosts: tuple[str, ...] = ("kafka-1", "kafka-2"), correlation_id: int = 0) -> bytes:
    brokers = [kw.MetadataResponseBroker(node_id=n, host=host, port=9092, rack="r") for n, host in enumerate(hosts)]
    message = kw.MetadataResponse(brokers=brokers, controller_id=1, topics=[])
    return kw.encode_response(message, version, correlation_id=correlation_id)


@given(st.data())
def test_however_bytes_are_cut(draw: st.DataObject) -> None:
    rewrite = draw.draw(st.booleans())
    limits = Limits(max_frame=draw.draw(st.sampled_from([10, 50, 1 << 20])))
    pair, notes, client, broker = unconnected(rewrite=rewrite, limits=limits)
    asked, answered, told = [], [], []
    apis = draw.draw(st.lists(st.sampled_from(["heartbeat", "metadata", "fetch", "junk"]), min_size=1, max_size=6))
    for number, api in enumerate(apis):
        rest = draw.draw(st.binary(max_size=60))
        if api == "metadata":
            asked.append(kw.encode_request(kw.MetadataRequest(topics=None), 12, correlation_id=number))
            answered.append(metadata(12, correlation_id=number))
            new = rewrite_addresses(answered[-1], 3, 12, lambda host, port: ("127.0.0.1", 19091 + int(host[-1])))
            told.append(new if rewrite and new else answered[-1])
        else:
            key = {"heartbeat": 12, "fetch": 1, "junk": 3}[api]
            asked.append(struct.pack(">hhih", key, 4, number, -1) + rest)
            answered.append(number.to_bytes(4, "big") + rest)
            told.append(answered[-1])
    for end, bodies in (pair.client, asked), (pair.upstream, answered):
        stream = b"".join(map(kw.frame, bodies))
        cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
        for begin, cut in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            if begin < cut:
                end.data_received(stream[begin:cut])
    assert broker.written == b"".join(map(kw.frame, asked))
    assert client.written == b"".join(map(kw.frame, told))
    due = [n for n, api in enumerate(apis) if api != "fetch"]
    expected = [("request", asked[n][: limits.max_frame], len(asked[n])) for n in due]
    expected += [("response", answered[n][: limits.max_frame], len(answered[n])) for n in due]
    assert notes.frames == expected
    assert pair.proxy.held == 0


def test_the_bytes_of_frames_in_progress_are_bounded_together() -> None:
    pair, notes, _, broker = unconnected(limits=Limits(max_held=100))
    body = kw.encode_request(HEARTBEAT, 4) + bytes(500)
    stream = kw.frame(body)
    for at in range(0, len(stream), 10):
        pair.client.data_received(stream[at : at + 10])
        assert pair.proxy.held <= 100
    assert broker.written == stream
    ((_, kept, size),) = notes.frames
    assert size == len(body)
    assert body.startswith(kept)
    assert len(kept) >= 90
    assert pair.proxy.held == 0


def test_an_answer_too_large_to_hold_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HELD_FOR_REWRITING", 50)
    pair, notes, client, _ = unconnected()
    pair.client.data_received(kw.frame(kw.encode_request(kw.MetadataRequest(topics=None), 12)))
    pair.upstream.data_received(kw.frame(metadata(12)))
    assert client.written == kw.frame(metadata(12))
    assert notes.frames[-1][1] == metadata(12)
    assert pair.proxy.counters.not_rewritten == 1


def test_requests_without_an_answer_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MAX_WAITING", 10)
    pair, *_ = unconnected()
    for number in range(100):
        pair.client.data_received(kw.frame(kw.encode_request(HEARTBEAT, 4, correlation_id=number)))
    assert list(pair.waiting) == list(range(90, 100))


# ---- addresses


@pytest.mark.parametrize("version", range(14))
def test_metadata_with_other_addresses(version: int) -> None:
    body = metadata(version, correlation_id=77)
    new = rewrite_addresses(body, 3, version, lambda host, port: (f"proxy-of-{host}", port + 1))
    assert new is not None
    before, after = (kw.decode_response(each, 3, version) for each in (body, new))
    assert after[0].correlation_id == 77
    assert [(b.host, b.port) for b in after[1].brokers] == [("proxy-of-kafka-1", 9093), ("proxy-of-kafka-2", 9093)]
    for broker, old in zip(after[1].brokers, before[1].brokers, strict=True):
        broker.host, broker.port = old.host, old.port
    assert after == before
    assert rewrite_addresses(body, 3, version, lambda host, port: None) is None
    assert rewrite_addresses(body, 3, version, lambda host, port: (host, port)) is None


@pytest.mark.parametrize("version", range(7))
def test_coordinators_with_other_addresses(version: int) -> None:
    places: list[tuple[str, int]] = []

    def replacement(host: str, port: int) -> tuple[str, int]:
        places.append((host, port))
        return "proxy", 1

    if version < 4:
        message = kw.FindCoordinatorResponse(node_id=3, host="kafka-3", port=9092, error_message=None)
    else:
        found = kw.FindCoordinatorResponseCoordinator(key="g", node_id=3, host="kafka-3", port=9092)
        lost = kw.FindCoordinatorResponseCoordinator(key="h", node_id=-1, host="", port=-1, error_code=15)
        message = kw.FindCoordinatorResponse(coordinators=[found, lost])
    new = rewrite_addresses(kw.encode_response(message, version), 10, version, replacement)
    assert new is not None
    decoded = kw.decode_response(new, 10, version)[1]
    told = [(c.host, c.port) for c in decoded.coordinators] if version >= 4 else [(decoded.host, decoded.port)]
    assert told == [("proxy", 1), ("", -1)][: len(told)]
    assert places == [("kafka-3", 9092)]


def test_unknown_tagged_fields_stay() -> None:
    body = metadata(12)
    tags = b"\x01\x63\x03new"  # one field, number 99
    assert body[4] == body[-1] == 0
    body = body[:4] + tags + body[5:-1] + tags
    new = rewrite_addresses(body, 3, 12, lambda host, port: ("a-host-of-mine", port))
    assert new is not None
    assert new[4:10] == tags
    assert new.endswith(tags)


def test_what_cannot_be_rewritten_is_refused_whole() -> None:
    body = metadata(12)
    for size in range(len(body)):
        with pytest.raises(AddressError):
            rewrite_addresses(body[:size], 3, 12, lambda host, port: ("x", 1))
    for key, version, why in (60, 0, "its layout is not known"), (3, 14, "version 14 is not known"):
        with pytest.raises(AddressError, match=why):
            rewrite_addresses(body, key, version, lambda host, port: ("x", 1))
    with pytest.raises(AddressError):
        rewrite_addresses(body, 3, 12, lambda host, port: ("x" * 70_000, 2**40))
