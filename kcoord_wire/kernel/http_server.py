"""A small HTTP/1.1 server for programs that are asked on the side: scrapes of metrics, the control port.

    parse_head      the head of a request, by the letter of RFC 9112, or the answer that refuses it
    RequestFramer   cuts requests out of a connection, however their bytes were cut
    HttpServer      the connections; who derives from it says who may ask (`admit`) and what is answered (`answer`)

Laws:

* What is not served is refused, never guessed: a line that does not end in CRLF, a field whose name is followed by a
  space, folded or repeated fields of those that matter, any Transfer-Encoding, a Content-Length that is not one number.
  So a proxy before this server sees the same requests in the bytes. A refused request is the last one.
* A body belongs to its request, whatever the method; the next request begins behind it.
* On every path the field Host names this server, which a page whose name was made to lead here cannot do (DNS
  rebinding), and Origin, where a browser sends it, is that of this server's own pages.
* A request has `REQUEST_MS` from its first byte to its last, a connection `IDLE_MS` between two.
* A new connection finds a place: where none is left the oldest one without a request in hand is closed, those that have
  been admitted last. So clients that send nothing, half a request, or not what `admit` wants cannot keep out one that
  does; those that connect thousands of times a second may cost it a try. If all have a request in hand, the new one is
  answered 503.
* `admit` runs in the event loop, which who is not admitted cannot leave; `answer` in a thread of its request.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import chain
from json import dumps
from types import TracebackType
from typing import Final, NamedTuple, Self

from kcoord_wire.codec.framing import Framer
from kcoord_wire.kernel.background import Background
from kcoord_wire.kernel.peers import BACKLOG, FramedPeer, PeerLimits, Peers, all_closed, most_connections

MOST_HEAD: Final = 65_536  # bytes of a request without its body
MOST_BODY: Final = 65_536  # bytes
MOST_FIELDS: Final = 100
MOST_CONNECTIONS: Final = 64
REQUEST_MS: Final = 10_000
IDLE_MS: Final = 30_000
STOP_MS: Final = 200  # for the answers in progress when it stops
METHODS: Final = frozenset({"GET", "POST", "DELETE"})

_ACCEPTED_AT_ONCE: Final = 16  # connections; who has sent its request is read before as many places are asked for
_LIMITS: Final = PeerLimits(
    max_connections=MOST_CONNECTIONS, max_frame_size=MOST_HEAD + MOST_BODY, idle_ms=IDLE_MS, frame_ms=REQUEST_MS,
    unread_ms=30_000,
)  # fmt: skip
_LINE: Final = re.compile(r"([A-Z]+) ([!-~]+) HTTP/([0-9])\.([0-9])")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t -~\x80-\xff]*")
_LENGTH: Final = re.compile(r"[0-9]+")
_ONCE: Final = {
    "authorization", "content-length", "content-type", "expect", "host", "origin", "transfer-encoding"
}  # fmt: skip
_CR: Final = 13
_NOT_ONE: Final = "this is no request of HTTP/1.1"
_EVERY_ANSWER: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Request(NamedTuple):
    """A request.

    :ivar path: before the question mark, as it was sent
    :ivar query: behind it
    :ivar fields: by their names in lower case
    :ivar length: bytes of the body
    :ivar keeps: another request may follow
    """

    method: str
    path: str
    query: str
    fields: Mapping[str, str]
    length: int
    keeps: bool
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer.

    :ivar body: an iterator is sent piece by piece as it yields, in the thread of `HttpServer.answer`, until the client
        has gone
    :ivar fields: besides those of every answer, or in place of them
    """

    status: int
    body: bytes | Iterator[bytes] = b""
    kind: str = "application/json"
    fields: Mapping[str, str] = field(default_factory=dict)

    def head(self, keeps: bool) -> bytes:
        """Return the bytes before the body.

        :param keeps: another request may follow
        """
        fields = {"Content-Type": self.kind, **_EVERY_ANSWER, **self.fields}
        if self.status == HTTPStatus.NO_CONTENT:
            del fields["Content-Type"]
        elif isinstance(self.body, bytes):
            fields["Content-Length"] = str(len(self.body))
        if not keeps:
            fields["Connection"] = "close"
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


class HttpError(Exception):
    """An answer that is not a result: an object with the member ``error``."""

    def __init__(self, status: int, text: str, **fields: str) -> None:
        super().__init__(text)
        self.response = Response(status, dumps({"error": text}).encode(), fields=fields)


# ---- bytes to requests


def parse_head(head: bytes) -> Request:
    """Return a request without its body.

    :param head: up to the empty line, without the CRLF before it
    :raises HttpError: it is not one, or one that is not served
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise HttpError(400, _NOT_ONE)
    method, target, major, minor = line.groups()
    if major != "1" or minor not in "01":
        raise HttpError(505, "HTTP/1.1 is served")
    if method not in METHODS:
        raise HttpError(501, f"{', '.join(sorted(METHODS))} are served")
    if not target.startswith("/") or target.startswith("//") or "#" in target:
        raise HttpError(400, "a request names a path, without a host")
    path, _, query = target.partition("?")
    fields = _fields(lines)
    if "host" not in fields:
        raise HttpError(400, "a request has the field Host")
    if fields.get("expect", "100-continue").lower() != "100-continue":
        raise HttpError(417, "100-continue is all that may be expected")
    options = [option.strip().lower() for option in fields.get("connection", "").split(",")]
    return Request(method, path, query, fields, _body_length(fields), minor == "1" and "close" not in options)


def _fields(lines: list[str]) -> dict[str, str]:
    if len(lines) > MOST_FIELDS:
        raise HttpError(431, f"a request has at most {MOST_FIELDS} fields")
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HttpError(400, "a field is NAME: VALUE, on one line")
        name, value = name.lower(), value.strip(" \t")
        if name not in fields:
            fields[name] = value
        elif name in _ONCE:
            raise HttpError(400, f"a request has one field {name}")
        else:
            fields[name] += f", {value}"
    return fields


def _body_length(fields: Mapping[str, str]) -> int:
    length = fields.get("content-length", "0")
    if "transfer-encoding" in fields or not _LENGTH.fullmatch(length):
        raise HttpError(400, "a body has a Content-Length")
    if len(length) > len(str(MOST_BODY)) or int(length) > MOST_BODY:
        raise HttpError(413, f"a body has at most {MOST_BODY} bytes")
    return int(length)


class RequestFramer(Framer):
    """Cuts requests out of a connection: what it yields are their bodies.

    :param begin: called with each head before its body is taken, and whether the client waits for 100 Continue; or
        with what refuses it: the body is empty then, and nothing can follow
    """

    __slots__ = ("_begin", "_head_size", "_searched", "_size")

    def __init__(self, begin: Callable[[Request | HttpError, bool], None]) -> None:
        super().__init__()
        self._begin = begin
        self._searched = 0  # bytes in which the head does not end
        self._head_size = self._size = 0  # of the request in progress, once its head is there

    def _bodies(self) -> Iterator[bytes]:
        while self._has_head() and self.buffered >= self._size:
            begin, end = self._start + self._head_size, self._start + self._size
            self._searched = self._size = 0
            yield self._take(begin, end)
        self._drop_taken()

    def _has_head(self) -> bool:
        if self._size:
            return True
        start, least = self._start, self._start + max(0, self._searched - 3)
        end = self._buffer.find(b"\r\n\r\n", least, start + MOST_HEAD)
        self._searched = self.buffered
        try:
            if end >= 0:
                request = parse_head(bytes(self._buffer[start:end]))
                self._head_size = end + 4 - start
                self._size = self._head_size + request.length
                self._begin(request, "expect" in request.fields and self.buffered == self._head_size < self._size)
            elif self.buffered:
                self._refuse_half(start)
        except HttpError as error:
            self._head_size = self._size = self.buffered
            self._begin(error, False)
        return self._size > 0

    def _refuse_half(self, start: int) -> None:
        line = self._buffer.find(b"\n", start, start + MOST_HEAD)
        if not self._buffer[start : start + 1].isalpha() or (line > start and self._buffer[line - 1] != _CR):
            raise HttpError(400, _NOT_ONE)
        if self.buffered >= MOST_HEAD:
            raise HttpError(414 if line < 0 else 431, f"a request has at most {MOST_HEAD} bytes before its body")


# ---- connections


class _HttpPeer(FramedPeer):
    """One connection.

    :ivar request: the one in progress, or what refuses it
    :ivar is_admitted: it has sent a request that was admitted
    :ivar is_stream: a stream is sent, which nothing can follow
    :ivar room: set when the client has read the stream so far, or has gone
    """

    __slots__ = ("_has_end", "_is_last", "is_admitted", "is_stream", "request", "room")
    owner: HttpServer

    def __init__(self, owner: HttpServer) -> None:
        super().__init__(owner, owner.limits.max_frame_size)
        self.request: Request | HttpError | None = None
        self.is_admitted: bool = False
        self.is_stream: bool = False
        self.room: Future[bool] | None = None
        self._has_end = False  # the client sends nothing more
        self._is_last = False  # the last answer was sent

    @property
    def is_closing(self) -> bool:
        return self._is_last or super().is_closing

    def data_received(self, data: bytes) -> None:
        self._counters.received_bytes += len(data)
        if self.is_closing:
            return  # read all the same: unread bytes would reset the connection before its client has the answer
        self.active_at: float = time.monotonic()
        if self._framer is None:
            self._framer = RequestFramer(self._began)
        self._bodies = self._framer.feed(data)
        self.pump()

    def eof_received(self) -> bool | None:
        self._has_end = True
        if self._lingering is not None:
            self._lingering.cancel()  # that of `close` takes its place
        if self.is_closing or self.is_stream or (self.in_hand is None and self._bodies is None):
            self.close()
            return None
        return True

    def resume_writing(self) -> None:
        super().resume_writing()
        self._make_room(True)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._make_room(False)

    def pump(self) -> None:
        super().pump()
        if self._has_end and self.in_hand is None and self._bodies is None and not self.is_closing:
            self.close()

    def end(self) -> None:
        """Close behind the last answer, when the client has read it or `PeerLimits.unread_ms` are over."""
        if self.is_closing or self.transport is None:
            return
        self._flush()
        self._framer = self._bodies = None
        self._hold()
        if self._has_end:
            self.close()
            return
        self._is_last = True
        self.transport.write_eof()
        self._abort_later(self.transport)

    def _began(self, request: Request | HttpError, is_awaited: bool) -> None:
        self.request = request
        if is_awaited:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _make_room(self, is_there: bool) -> None:
        room, self.room = self.room, None
        if room is not None:
            room.set_result(is_there)


class HttpServer(Peers[_HttpPeer]):
    """Listens until `stop`, in a thread of its own; it has begun when it was made.

    :param what: its name, for threads and errors
    :ivar port: the port it listens on
    :raises OSError: the port cannot be opened
    """

    def __init__(self, what: str, host: str, port: int, log: logging.Logger) -> None:
        super().__init__(_LIMITS, log)
        self.port: int = port
        self._name = what
        self._host = host
        self._call: Callable[..., object]
        self._places = most_connections(self.limits.max_connections)
        self.most: int = self._places + 1  # the last one is answered 503
        self._at_work: set[_HttpPeer] = set()
        self._thread_name = f"kcoord-{what.replace(' ', '-')}"
        self._life = Background(what, self._serve, thread=self._thread_name)
        self._life.start()

    def names(self, host: str) -> bool:
        """Return whether a field Host names this server."""
        raise NotImplementedError

    def admit(self, request: Request) -> Response | None:
        """Return an answer that everybody may have; None for `answer`.

        :raises HttpError: the client may not ask
        """
        return None

    def answer(self, request: Request) -> Response:
        """Return the answer to an admitted request, in any thread.

        :raises HttpError: an answer that is not a result
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Stop listening, and wait until it has ended; what is in progress is answered if that is soon."""
        self._life.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    # ---- in its thread

    async def _serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        self._call = loop.call_soon_threadsafe
        family, _, _, _, address = socket.getaddrinfo(self._host, self.port)[0]  # of a name one, since port 0 differs
        bound = socket.create_server(address[:2], family=family)
        self.port = bound.getsockname()[1]
        listening = await loop.create_server(lambda: _HttpPeer(self), sock=bound, backlog=_ACCEPTED_AT_ONCE)
        bound.listen(BACKLOG)  # may wait until they are accepted
        self.sweep()
        ready()
        await stopping.wait()
        listening.close()
        await all_closed(self._at_work, STOP_MS)
        await self.close(STOP_MS)

    def opened(self, peer: _HttpPeer) -> None:
        """Give a connection a place."""
        is_full = len(self.peers) >= self._places and not self._make_place()
        super().opened(peer)
        if is_full:
            self._reply(peer, HttpError(503, "too many requests are in progress").response)

    def _make_place(self) -> bool:
        idle = [peer for peer in self.peers if peer.in_hand is None]
        oldest = min(idle, key=lambda peer: peer.is_admitted, default=None)
        if oldest is None:
            return False
        self.drop(oldest, "idle", "others have come")
        self.peers.pop(oldest, None)
        return True

    def lost(self, peer: _HttpPeer) -> None:
        """Forget a connection that has ended."""
        self._at_work.discard(peer)
        super().lost(peer)

    def report(self, host: str, reason: str, detail: str) -> None:
        """Count a connection that is closed; clients that keep theirs open are nothing to warn of."""
        if reason == "idle":
            self.counters.closed[reason] += 1
        else:
            super().report(host, reason, detail)

    def receive(self, peer: _HttpPeer, data: bytes, start: int) -> None:
        """Answer a request, or have it answered."""
        try:
            if isinstance(peer.request, HttpError):
                raise peer.request
            assert peer.request is not None
            request = peer.request._replace(body=data[start:])
            self._log.debug("%s %s", request.method, request.path)
            self._refuse_sites(request)
            response = self.admit(request)
        except HttpError as error:
            response = error.response
        if response is not None:
            self._reply(peer, response)
            return
        peer.in_hand, peer.is_admitted = request, True
        self._at_work.add(peer)
        name = f"{self._thread_name}-request"
        threading.Thread(target=self._work, args=(peer, request), name=name, daemon=True).start()

    def _refuse_sites(self, request: Request) -> None:
        host = request.fields["host"]
        if not self.names(host):
            raise HttpError(403, "the header Host must name this server")
        if request.fields.get("origin", f"http://{host}") != f"http://{host}":
            raise HttpError(403, "the header Origin must name this server: pages of other sites may not ask")

    def _reply(self, peer: _HttpPeer, response: Response) -> None:
        """Send an answer whose body is there, and go on with the connection or end it."""
        request = peer.request
        keeps = isinstance(request, Request) and request.keeps and response.status < HTTPStatus.BAD_REQUEST
        assert isinstance(response.body, bytes)
        peer.write(response.head(keeps) + response.body)
        self._done(peer, keeps)

    def _done(self, peer: _HttpPeer, keeps: bool) -> None:
        was_at_work = peer.in_hand is not None
        peer.in_hand = peer.request = None
        peer.active_at = time.monotonic()
        self._at_work.discard(peer)
        if not keeps:
            peer.end()
        elif was_at_work:
            peer.pump()

    def _send(self, peer: _HttpPeer, piece: bytes, room: Future[bool]) -> None:
        """Send a piece of a stream, and say when there is room for the next one, or that there never will be."""
        peer.is_stream = True
        peer.write(piece)
        if peer.is_closing or not peer.is_choked:
            room.set_result(not peer.is_closing)
        else:
            peer.room = room

    # ---- in the thread of a request

    def _work(self, peer: _HttpPeer, request: Request) -> None:
        try:
            response = self.answer(request)
        except HttpError as error:
            response = error.response
        except Exception as error:
            self._log.exception("a request of the %s has failed", self._name)
            response = HttpError(500, f"unexpected {type(error).__name__}: {error}").response
        with suppress(RuntimeError):  # the loop has ended
            if isinstance(response.body, bytes):
                self._call(self._reply, peer, response)
                return
            self._stream(peer, response.head(False), response.body)
            self._call(self._done, peer, False)

    def _stream(self, peer: _HttpPeer, head: bytes, body: Iterator[bytes]) -> None:
        with suppress(TimeoutError):
            for piece in chain((head,), body):
                room: Future[bool] = Future()
                self._call(self._send, peer, piece, room)
                if not room.result(2 * self.limits.unread_ms / 1000):  # it was closed before
                    break
