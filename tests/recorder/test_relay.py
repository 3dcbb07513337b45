"""One relay with memory at its ends, however the bytes are cut."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.recorder import relay
from kcoord_wire.recorder.bodies import rewrite_addresses
from kcoord_wire.recorder.counters import RelayLimits
from kcoord_wire.recorder.proxy import Proxy
from kcoord_wire.recorder.relay import Relay
from tests.support.metadata import metadata

HEARTBEAT = kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


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
    """In the place of a `RecordingThread`."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, bytes, int]] = []

    def opened(self, connection: int, name: str) -> None: ...

    closed = opened

    def frame(self, connection: int, direction: str, body: bytes, time_ns: int, size: int) -> None:
        self.frames.append((direction, body, size))


class Idle:
    """In the place of an event loop."""

    def create_task(self, task: Any) -> None:
        task.close()

    def call_soon(self, callback: Any) -> None: ...


def unconnected(**options: Any) -> tuple[Relay, Notes, Outlet, Outlet]:
    """A relay with nothing but memory at its ends."""
    running = Proxy("127.0.0.1:1", **options)
    notes = Notes()
    running.context.recording = cast(Any, notes)
    running.context.loop = cast(Any, Idle())
    running._brokers = {("kafka-1", 9092): 19092, ("kafka-2", 9092): 19093}
    pair = Relay(running.context, ("127.0.0.1", 1))
    client, broker = Outlet(), Outlet()
    pair.client.connection_made(client)
    pair.upstream.connection_made(broker)
    return pair, notes, client, broker


@given(st.data())
def test_however_bytes_are_cut(draw: st.DataObject) -> None:
    rewrite = draw.draw(st.booleans())
    limits = RelayLimits(max_frame=draw.draw(st.sampled_from([10, 50, 1 << 20])))
    pair, notes, client, broker = unconnected(rewrite=rewrite, limits=limits)
    asked, answered, passed = [], [], []
    apis = draw.draw(st.lists(st.sampled_from(["heartbeat", "metadata", "fetch", "junk"]), min_size=1, max_size=6))
    for number, api in enumerate(apis):
        rest = draw.draw(st.binary(max_size=60))
        if api == "metadata":
            asked.append(kw.encode_request(kw.MetadataRequest(topics=None), 12, correlation_id=number))
            answered.append(metadata(12, correlation_id=number))
            new = rewrite_addresses(answered[-1], 3, 12, lambda host, port: ("127.0.0.1", 19091 + int(host[-1])))
            passed.append(new if rewrite and new else answered[-1])
        else:
            key = {"heartbeat": 12, "fetch": 1, "junk": 3}[api]
            asked.append(struct.pack(">hhih", key, 4, number, -1) + rest)
            answered.append(number.to_bytes(4, "big") + rest)
            passed.append(answered[-1])
    for end, bodies in (pair.client, asked), (pair.upstream, answered):
        stream = b"".join(map(kw.frame, bodies))
        cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
        for begin, cut in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            if begin < cut:
                end.data_received(stream[begin:cut])
    assert broker.written == b"".join(map(kw.frame, asked))
    assert client.written == b"".join(map(kw.frame, passed))
    due = [n for n, api in enumerate(apis) if api != "fetch"]
    expected = [("request", asked[n][: limits.max_frame], len(asked[n])) for n in due]
    expected += [("response", answered[n][: limits.max_frame], len(answered[n])) for n in due]
    assert notes.frames == expected
    assert pair.context.held == 0


@given(st.data())
def test_frames_of_the_draft_are_recorded_and_rewritten(draw: st.DataObject) -> None:
    pair, notes, client, broker = unconnected(rewrite=draw.draw(st.booleans()))
    brokers = [kw.messages.central.ClusterMetadataResponseBroker(id=1, host="kafka-1", port=9092)]
    metadata = kw.messages.central.ClusterMetadataResponse(coordinator_id=1, brokers_info=brokers)
    start = kw.messages.central.StartFetcherRequest(
        consumer_id="c", brokers_info=[kw.messages.central.StartFetcherRequestBroker(host="kafka-2", port=9092)]
    )
    sent = [
        ("request", kw.messages.central.ClusterMetadataRequest()),
        ("response", metadata),
        ("request", kw.messages.central.RegisterConsumerRequest(group_id="g", consumer_id="c")),
        ("response", kw.messages.central.RegisterConsumerResponse()),
        ("response", kw.messages.central.PingRequest(consumer_id="c")),
        ("response", start),
        ("request", kw.messages.central.PingResponse(consumer_id="c")),
        ("request", kw.messages.central.StartFetcherResponse(consumer_id="c")),
    ]
    bodies = []
    for side, message in sent:
        is_request = kw.registry.by_class(type(message)).type == "request"
        body = (kw.encode_request if is_request else kw.encode_response)(message, 0)
        bodies.append((side, body, len(body)))
        stream = kw.frame(body)
        cut = draw.draw(st.integers(0, len(stream)))
        for part in filter(None, (stream[:cut], stream[cut:])):
            (pair.client if side == "request" else pair.upstream).data_received(part)
    assert notes.frames == bodies
    assert broker.written == b"".join(kw.frame(body) for side, body, _ in bodies if side == "request")
    if pair.context.rewrites:
        for place, port in ((metadata.brokers_info[0], 19092), (start.brokers_info[0], 19093)):
            place.host, place.port = "127.0.0.1", port
    codecs = ((kw.registry.by_class(type(message)), message) for side, message in sent if side == "response")
    encoders = {"request": kw.encode_request, "response": kw.encode_response}
    assert client.written == b"".join(kw.frame(encoders[codec.type](message, 0)) for codec, message in codecs)
    assert pair.context.held == 0


def test_the_bytes_of_all_open_frames_are_bounded() -> None:
    pair, notes, _, broker = unconnected(limits=RelayLimits(max_held=100))
    body = kw.encode_request(HEARTBEAT, 4) + bytes(500)
    stream = kw.frame(body)
    for at in range(0, len(stream), 10):
        pair.client.data_received(stream[at : at + 10])
        assert pair.context.held <= 100
    assert broker.written == stream
    ((_, kept, size),) = notes.frames
    assert size == len(body)
    assert body.startswith(kept)
    assert len(kept) >= 90
    assert pair.context.held == 0


def test_an_answer_too_large_to_hold_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HELD_FOR_REWRITING", 50)
    pair, notes, client, _ = unconnected()
    pair.client.data_received(kw.frame(kw.encode_request(kw.MetadataRequest(topics=None), 12)))
    pair.upstream.data_received(kw.frame(metadata(12)))
    assert client.written == kw.frame(metadata(12))
    assert notes.frames[-1][1] == metadata(12)
    assert pair.context.counters.not_rewritten == 1


def test_requests_without_an_answer_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MAX_WAITING", 10)
    pair, *_ = unconnected()
    for number in range(100):
        pair.client.data_received(kw.frame(kw.encode_request(HEARTBEAT, 4, correlation_id=number)))
    assert (len(pair.waiting), pair.waiting.first) == (10, 90)
