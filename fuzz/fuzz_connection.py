"""Whatever bytes come from a peer, in whatever chunks, a connection gives the same events and the same typed error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import kcoord_wire as kw
from fuzz.fuzz_framing import cut
from kcoord_wire.errors import DecodeError, ProtocolError

LIMIT = 512
MAX_PENDING = 5
ASKED = [
    (kw.ApiVersionsRequest(), 4),
    (kw.HeartbeatRequest(), 4),
    (kw.ProduceRequest(acks=0), 9),
    (kw.JoinGroupRequest(), 5),
    (kw.MetadataRequest(), 9),
]
Outcome = tuple[list[object], tuple[object, ...] | None, object]


def check(data: bytes) -> None:
    """`data`: a byte that sets how the stream is cut, then what the peer of a server and of a client sends."""
    seed, stream = (data[0] if data else 0), data[1:]
    for make in (server, client):
        whole = outcome(make(), [stream])
        assert outcome(make(), cut(stream, seed)) == whole
        assert outcome(make(), (stream[i : i + 1] for i in range(len(stream)))) == whole


def server() -> kw.Connection:
    return kw.Connection("server", max_frame_size=LIMIT, max_pending=MAX_PENDING)


def client() -> kw.Connection:
    """A client that has asked for something of each kind, so that responses are matched and decoded."""
    made = kw.Connection("client", max_frame_size=LIMIT)
    for request, version in ASKED:
        made.send(request, version)
    return made


def outcome(connection: kw.Connection, chunks: Iterable[bytes]) -> Outcome:
    """What the events and the error say, and what is left."""
    seen: list[object] = []
    error = None
    chunks = (chunk for chunk in chunks if chunk)
    try:
        for chunk in chunks:
            seen += map(described, connection.receive_data(chunk))
        seen += map(described, connection.receive_data(b""))
        while connection.paused:
            connection.respond(connection.pending[0], None)
            seen += map(described, connection.events())
    except (DecodeError, ProtocolError) as caught:
        error = (caught.kind, caught.path, getattr(caught, "offset", None), getattr(caught, "found", None))
    assert connection.closed
    assert (connection.failure is None) == (error is None)
    refused(lambda: connection.receive_data(b"x"))
    assert list(connection.events()) == []
    if error is None:
        assert connection.rest == b""
        assert seen[-1] == "closed"
    left = [request.header for request in connection.pending]
    return seen, error, (left, connection.versions)


def described(event: kw.Event) -> object:
    if isinstance(event, kw.Closed):
        return "closed"
    error = event.error and (event.error.kind, event.error.offset, event.error.path)
    if isinstance(event, kw.Opaque):
        assert event.error is not None
        return event.body, error
    assert isinstance(event, kw.Request | kw.Response)
    assert (event.message is None) == (event.error is not None)
    return event.body, event.header, event.message, error


def refused(call: Callable[[], Any]) -> None:
    kind = None
    try:
        call()
    except ProtocolError as error:
        kind = error.kind
    assert kind == "closed", "a connection that has ended took more"
