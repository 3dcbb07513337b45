"""The HTTP server: what it takes for a request, however its bytes are cut, and what ends its connections."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.kernel import http_server
from kcoord_wire.kernel.http_server import (
    MOST_BODY,
    MOST_HEAD,
    HttpError,
    HttpServer,
    Request,
    RequestFramer,
    Response,
    parse_head,
)
from tests.support.waiting import eventually

START = b"GET / HTTP/1.1\r\nHost: here\r\n"


class Letters(HttpServer):
    """Answers by path; ``/wait`` and ``/stream`` go on until `released`."""

    def __init__(self) -> None:
        self.released = threading.Event()
        super().__init__("test port", "127.0.0.1", 0, logging.getLogger("kcoord_wire.test"))

    def names(self, host: str) -> bool:
        return host == "here"

    def answer(self, request: Request) -> Response:
        if request.path == "/wait":
            self.released.wait(60)
        if request.path == "/stream":
            return Response(200, self.letters())
        if request.path == "/fault":
            raise LookupError("a fault of the program")
        if request.path == "/large":
            return Response(200, bytes(1 << 24))
        return Response(200, request.method.encode() + b" " + request.path.encode() + b" " + request.body)

    def letters(self) -> Iterator[bytes]:
        while not self.released.is_set():
            yield b"x" * 65536


@pytest.fixture
def server() -> Iterator[Letters]:
    with Letters() as started:
        yield started
        started.released.set()


def connect(server: Letters, *sent: bytes, ends: bool = False) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), 60)
    connection.sendall(b"".join(sent))
    if ends:
        connection.shutdown(socket.SHUT_WR)
    return connection


def rest(connection: socket.socket) -> bytes:
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def bodies(answers: bytes) -> list[bytes]:
    """The bodies of answers that each have a length."""
    found = []
    while answers:
        head, _, after = answers.partition(b"\r\n\r\n")
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        found.append(after[:length])
        answers = after[length:]
    return found


# ---- bytes to requests


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +1", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x1", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1_0", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: \x0b1", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: \xb2", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length:", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 65537", 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000, 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\nContent-Length: 0", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n Transfer-Encoding: chunked", 400),
        (b"GET / HTTP/1.1\r\n Host: x", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nbroken", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n: empty", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\nY: b", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\rY: b", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: \0", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: x", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nauthorization: b", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: a\r\nOrigin: b", 400),
        (b"GET / HTTP/1.1", 400),
        (b"GET / HTTP/1.0", 400),
        (b"GET / HTTP/1.1\nHost: x", 400),
        (b"GET /", 400),
        (b"GET  / HTTP/1.1\r\nHost: x", 400),
        (b"GET / HTTP/1.1 \r\nHost: x", 400),
        (b"GET /a b HTTP/1.1\r\nHost: x", 400),
        (b"GET /\xe9 HTTP/1.1\r\nHost: x", 400),
        (b"GET /#a HTTP/1.1\r\nHost: x", 400),
        (b"GET //evil.example/ HTTP/1.1\r\nHost: x", 400),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: x", 400),
        (b"GET * HTTP/1.1\r\nHost: x", 400),
        (b"get / HTTP/1.1\r\nHost: x", 400),
        (b"GET / http/1.1\r\nHost: x", 400),
        (b"PRI / HTTP/2.0\r\nHost: x", 505),
        (b"GET / HTTP/1.2\r\nHost: x", 505),
        (b"HEAD / HTTP/1.1\r\nHost: x", 501),
        (b"CONNECT / HTTP/1.1\r\nHost: x", 501),
        (b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 200-ok", 417),
        (b"GET / HTTP/1.1\r\nHost: x" + b"\r\nX: y" * 100, 431),
    ],
)
def test_what_is_not_served_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(HttpError) as refused:
        parse_head(head)
    assert refused.value.response.status == status


def test_a_head_is_read() -> None:
    fields = b"Host: here:1\r\nX-Y:\t a  b \r\nACCEPT: a\r\naccept: b\r\nContent-Length: 007\r\nConnection: x, Close"
    wanted = {"host": "here:1", "x-y": "a  b", "accept": "a, b", "content-length": "007", "connection": "x, Close"}
    head = parse_head(b"POST /a%20b?c=d?e HTTP/1.1\r\n" + fields)
    assert head == Request("POST", "/a%20b", "c=d?e", wanted, 7, False)
    assert parse_head(START[:-2]).keeps
    assert not parse_head(START[:-2].replace(b"1.1", b"1.0")).keeps


def requests(stream: bytes, cuts: list[int]) -> list[tuple[object, bytes]]:
    """Methods, or statuses of refusals, with bodies, of a stream that comes in chunks of these sizes and then whole."""
    begun: list[Request | HttpError] = []
    framer = RequestFramer(lambda request, _: begun.append(request))
    found: list[tuple[object, bytes]] = []
    for size in [*cuts, len(stream)]:
        chunk, stream = stream[:size], stream[size:]
        for body in framer.feed(chunk):
            head = begun[-1]
            found.append((head.response.status if isinstance(head, HttpError) else head.path, body))
            if isinstance(head, HttpError):
                return [(what, b"" if type(what) is int else each) for what, each in found]
    return found


PIECES = [
    START + b"\r\n",
    START.replace(b"/ ", b"/body ") + b"Content-Length: 30\r\n\r\n" + START,
    START + b"Content-Length: 2\r\n",
    START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"G",
    b"x" * 100,
    b"X: " + b"y" * MOST_HEAD,
]


@given(st.lists(st.sampled_from(PIECES), max_size=5), st.lists(st.integers(0, 200), max_size=30))
def test_cuts_make_no_difference(pieces: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(pieces)
    assert requests(stream, cuts) == requests(stream, [])


def test_a_stream_byte_by_byte() -> None:
    inner = START + b"\r\n"
    stream = START + b"Content-Length: %d\r\n\r\n" % len(inner) + inner + inner + b"GET / HTTP/1.1\n"
    assert requests(stream, [1] * len(stream)) == [("/", inner), ("/", b""), (400, b"")]


@pytest.mark.parametrize(
    ("start", "status"), [(b"\x16\x03\x01", 400), (b"\r\n", 400), (b"GET /" + b"x" * MOST_HEAD, 414),
                          (START + b"X: " + b"x" * MOST_HEAD, 431), (b"GET / HTTP/1.1\nHost: x", 400)]
)  # fmt: skip
def test_half_a_request_may_be_refused_at_once(start: bytes, status: int) -> None:
    assert requests(start, []) == [(status, b"")]


# ---- connections


def test_requests_of_a_connection_are_answered_in_their_order(server: Letters) -> None:
    inner = START + b"\r\n"
    sent = [START, b"Content-Length: %d\r\n\r\n" % len(inner), inner, inner.replace(b"/ ", b"/b "), inner[:20]]
    answers = rest(connect(server, *sent, ends=True))
    assert bodies(answers) == [b"GET / " + inner, b"GET /b "]
    closing = START.replace(b"/ ", b"/c ") + b"Connection: close\r\n\r\n"
    assert bodies(rest(connect(server, inner, closing, inner))) == [b"GET / ", b"GET /c "]


def test_a_refused_request_is_the_last_one(server: Letters) -> None:
    bad = START + b"Content-Length: 99999\r\n\r\n"
    connection = connect(server, START, b"\r\n", bad, b"x" * (1 << 20), START, b"\r\n")
    answers = rest(connection)
    assert answers.count(b"HTTP/1.1 ") == 2
    assert bodies(answers)[1] == b'{"error": "a body has at most %d bytes"}' % MOST_BODY


@pytest.mark.parametrize("path", [b"/", b"/fault", b"/nothing"])
def test_host_and_origin_are_looked_at_on_every_path(server: Letters, path: bytes) -> None:
    for fields in (b"Host: evil.example", b"Host: here\r\nOrigin: http://evil.example", b"Host: here\r\nOrigin: null"):
        assert rest(connect(server, b"GET ", path, b" HTTP/1.1\r\n", fields, b"\r\n\r\n")).startswith(b"HTTP/1.1 403 ")
    own = rest(connect(server, START, b"Origin: http://here\r\nConnection: close\r\n\r\n"))
    assert own.startswith(b"HTTP/1.1 200 OK")


def test_a_client_may_ask_before_it_sends_a_body(server: Letters) -> None:
    asked = START + b"Expect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    with connect(server, asked) as connection:
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hi")
        assert bodies(rest(connection)) == [b"GET / hi"]
    assert bodies(rest(connect(server, asked, b"hi"))) == [b"GET / hi"], "it has not waited"


def test_a_fault_of_the_program_is_answered(server: Letters, caplog: pytest.LogCaptureFixture) -> None:
    answer = rest(connect(server, START.replace(b"/ ", b"/fault "), b"\r\n"))
    assert bodies(answer) == [b'{"error": "unexpected LookupError: a fault of the program"}']
    assert "a request of the test port has failed" in caplog.text


@pytest.mark.parametrize("start", [START, START + b"Content-Length: 60000\r\n\r\n"], ids=["head", "body"])
def test_the_whole_request_has_its_time(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    """Its bytes keep coming, one at a time."""
    monkeypatch.setattr(http_server, "_LIMITS", replace(http_server._LIMITS, frame_ms=300))
    with Letters() as server, connect(server, start) as slow:
        eventually(lambda: slow.sendall(b"X") or server.counters.closed["half a frame"] == 1)
        eventually(lambda: not server.peers)


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_LIMITS", replace(http_server._LIMITS, idle_ms=200))
    with Letters() as server:
        assert rest(connect(server)) == b""
        assert bodies(rest(connect(server, START, b"\r\n"))) == [b"GET / "]
        assert server.counters.closed["idle"] == 2


@pytest.mark.parametrize("path", [b"/stream", b"/large"])
def test_who_does_not_read_is_closed_and_costs_no_more(monkeypatch: pytest.MonkeyPatch, path: bytes) -> None:
    monkeypatch.setattr(http_server, "_LIMITS", replace(http_server._LIMITS, unread_ms=300, write_high_water=65536))
    with Letters() as server, connect(server, START.replace(b"/ ", path + b" "), b"\r\n"):
        before = threading.active_count()
        eventually(lambda: server.counters.closed["unread answers"] == 1)
        assert server.counters.sent_bytes < 1 << 25
        eventually(lambda: threading.active_count() <= before)
        eventually(lambda: not server.peers)


def test_a_stream_ends_when_its_client_has_gone(server: Letters) -> None:
    with connect(server, START.replace(b"/ ", b"/stream "), b"\r\n") as connection:
        assert connection.recv(100)
        connection.shutdown(socket.SHUT_WR)
        eventually(lambda: not server.peers)
    eventually(lambda: not server._at_work)


def test_what_is_in_progress_at_the_end_is_soon_answered() -> None:
    with Letters() as server:
        waiting = connect(server, START.replace(b"/ ", b"/wait "), b"\r\n")
        eventually(lambda: bool(server._at_work))
        threading.Timer(0.01, server.released.set).start()
        server.stop()
        assert bodies(rest(waiting)) == [b"GET /wait "]
    with Letters() as server:
        waiting = connect(server, START.replace(b"/ ", b"/wait "), b"\r\n")
        eventually(lambda: bool(server._at_work))
        server.stop()
        assert rest(waiting) == b""
        server.released.set()
