"""The coordinator on a socket: connections in and out of one asyncio loop, and what becomes of each request.

Laws:

* One request of a connection is in hand at a time; the next frame is looked at when the former has been answered, or
  dropped by a fault. So answers come in the order of the requests, and a parked JoinGroup holds up its own connection
  and no other.
* Every byte held for a peer is bounded, alone and in sum: frames by `Limits.max_frame_size`, what waits behind a
  request by `Limits.read_ahead` (the socket is not read beyond it), answers that are not read by
  `Limits.write_high_water` (the next request waits), all of it by `Limits.max_bytes_held` (the greatest holder goes).
* Time is bounded too: a frame, an answer, an authentication that does not get on, and an idle connection all end.
* Bytes that are no request close their connection, as Kafka's broker does: no exception leaves a callback, and no
  other connection is touched.
* An answer that promises durability leaves after the append it waits for is on disk. One sync runs at a time, in
  another thread; whatever came in the meantime goes into the next one.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

from kcoord_wire.codec.framing import Framer, frame
from kcoord_wire.codec.registry import Buffer, registry
from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.group.events import Account, Event, Phase, Rebalance, Reply, Request, Tick
from kcoord_wire.group.faults import CLEAN, Faults, Verdict
from kcoord_wire.group.machine import GroupMachine
from kcoord_wire.group.metrics import GroupCounts, Metrics, describe_rebalance, first_error
from kcoord_wire.group.permissions import ANONYMOUS, Finish, Permissions
from kcoord_wire.group.refusals import refusal
from kcoord_wire.group.runtime import Runtime
from kcoord_wire.group.security import FAILURE_DELAY_MS, Admission, Session, Users
from kcoord_wire.group.store import CorruptLogError, Store, Sync
from kcoord_wire.group.topics import SERVED, Topics
from kcoord_wire.messages.produce import ProduceRequest
from kcoord_wire.messages.sasl_handshake import SaslHandshakeRequest

__all__ = ["Limits", "Server"]

API_VERSIONS = 18
JOIN_GROUP = 11
BLOB_APIS = frozenset({0, 11, 14})
MAX_NAME = 0x7FFF - 37  # bytes: what a member id is made of, a dash and a UUID behind it
GROUP_APIS = frozenset({8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47})  # for the machine; all others are the topics'
SASL_APIS = frozenset({17, 36})
HELD = -1  # the token of a request that a fault, or a failed authentication, holds back
BURST = 64  # requests of one connection before another has its turn
JOINED_WRITE = 1 << 16  # answers are joined into one write up to this size
RELOAD_MS = (500, 30_000)  # after the log has failed: first and longest pause before it is read again

_log = logging.getLogger("kcoord_wire.group")
_log.addHandler(logging.NullHandler())  # whoever wants to read it says so
_REQUEST_HEAD = struct.Struct(">hhih")
_RESPONSE_HEAD = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may cost.

    :ivar max_connections: more are closed as they come
    :ivar max_frame_size: bytes of a Produce, JoinGroup or SyncGroup, which carry blobs. Less than the 100 MiB of Kafka's
        ``socket.request.max.bytes``: a request is taken in one go while other connections wait
    :ivar max_plain_frame_size: bytes of any other request, which may be a list of two-byte names: each becomes a hundred
        bytes of memory and a microsecond of work
    :ivar max_unauthenticated_frame_size: the same before SASL has ended (``sasl.server.max.receive.size``)
    :ivar read_ahead: bytes taken from the socket behind a request that is in hand
    :ivar write_high_water: bytes of answers that the peer has not read, above which its next request waits
    :ivar max_bytes_held: all of the above over all connections
    :ivar idle_ms: silence after which a connection is closed (``connections.max.idle.ms``)
    :ivar frame_ms: from the first byte of a frame to its last
    :ivar unread_ms: how long a peer may leave its answers unread once they are above the high water
    :ivar unauthenticated_ms: from the connection to the end of SASL
    """

    max_connections: int = 20_000
    max_frame_size: int = 4 << 20
    max_plain_frame_size: int = 512 << 10
    max_unauthenticated_frame_size: int = 512 << 10
    read_ahead: int = 64 << 10
    write_high_water: int = 256 << 10
    max_bytes_held: int = 256 << 20
    idle_ms: int = 600_000
    frame_ms: int = 60_000
    unread_ms: int = 60_000
    unauthenticated_ms: int = 30_000


class Form(NamedTuple):
    """An api at one version: how its requests are read and its responses written."""

    api_key: int
    version: int
    flexible_head: bool
    decode: Callable[[Buffer, int, bool], tuple[Any, int]]
    encode: Callable[[Any], bytes]
    response_tags: bytes  # the header's tagged fields, of which there are none, where it has that section

    def frame(self, correlation_id: int, message: Any) -> bytes:
        """The response frame, size and header included."""
        body = self.response_tags + self.encode(message)
        return _RESPONSE_HEAD.pack(len(body) + 4, correlation_id) + body


def _form(api_key: int, version: int) -> Form:
    request, response = registry.request(api_key), registry.response(api_key)
    flexible = version in request.flexible_versions
    tags = b"\0" if version in response.flexible_versions and api_key != API_VERSIONS else b""
    encode = response.program(version, reading=False).encode
    return Form(api_key, version, flexible, request.program(version).decode_prefix, encode, tags)


class Connection(asyncio.Protocol):
    """One client. Idle, it holds a few hundred bytes: a framer is there only while bytes wait."""

    __slots__ = (
        "_bodies", "_choked", "_correlation_id", "_framer", "_out", "_paused", "_server", "_transport",
        "active_at", "client_id", "finish", "form", "held", "host", "request", "session", "stuck_at", "token",
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._framer: Framer | None = None
        self._bodies: Iterator[bytes] | None = None  # of the framer, while more of them may come
        self._out: list[bytes] | None = None
        self._correlation_id = 0
        self._choked = self._paused = False
        self.form: Form | None = None  # of the request in hand, or the last one
        self.client_id = ""
        self.finish: Finish | None = None  # what permissions make of the answer to the request in hand
        self.request: Any = None  # kept only where a fault may answer for it
        self.session: Session | None = None
        self.token = 0  # of the request in hand; 0 if there is none
        self.host = ""
        self.held = 0
        self.active_at = 0.0  # monotonic seconds; of the connection itself until it is authenticated
        self.stuck_at: float | None = None  # since when half a frame has waited, or answers have

    # ---- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        peer = transport.get_extra_info("peername")
        self.host = sys.intern(f"/{peer[0]}" if isinstance(peer, tuple) else "/")
        self.active_at = time.monotonic()
        self._transport = transport
        self._server.opened(self)
        transport.set_write_buffer_limits(self._server.limits.write_high_water)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.lost(self)
        self._transport = self._framer = self._bodies = self._out = None

    def data_received(self, data: bytes) -> None:
        server, session = self._server, self.session
        if self.is_closing:
            return
        server.metrics.received_bytes += len(data)
        if session is None or session.principal is not None:
            self.active_at = time.monotonic()
        if self._framer is None:
            limit = server.frame_limit(session)
            size = int.from_bytes(data[:4], "big")
            if size == len(data) - 4 and size <= limit and not self.token and not self._choked:
                self._take(data, 4)  # the whole of one request: the common case, which needs no framer
                server.settle()
                return
            if size > limit and len(data) >= 4:
                server.refuse(self, f"a frame of {size} bytes{_guess(data)}")
                return
            self._framer = Framer(limit)
        self._bodies = self._framer.feed(data)
        self.pump()
        server.settle()

    def pause_writing(self) -> None:
        self._choked = True
        self.stuck_at = time.monotonic()
        self._hold()

    def resume_writing(self) -> None:
        self._choked = False
        self._hold()
        self.pump()
        self._server.settle()

    # ---- requests in

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def pump(self) -> None:
        """Take requests until one is in hand, none is whole, the peer does not read, or others are due."""
        server = self._server
        for _ in range(BURST):
            if self._bodies is None or self.token or self._choked or self.is_closing:
                break
            try:
                body = next(self._bodies, None)
            except DecodeError as error:
                server.refuse(self, error)
                return
            if body is None:
                self._bodies = None
                if self._framer is not None and not self._framer.buffered:
                    self._framer = None
                break
            server.pumping = self
            self._take(body, 0)
            server.pumping = None
        else:
            server.wait_turn(self)
        self._flush()
        self._hold()

    def _take(self, body: bytes, start: int) -> None:
        server, session = self._server, self.session
        try:
            if session is not None and session.raw:
                self._take_raw_token(session, body[start:])
                return
            api_key, version, correlation_id, length = _REQUEST_HEAD.unpack_from(body, start)
            admission = Admission.SERVE if session is None else session.admission(api_key)
            if admission is Admission.CLOSE:
                raise DecodeError("api", start, "RequestHeader", f"api {api_key} before authentication")
            if len(body) > server.limits.max_plain_frame_size and api_key not in BLOB_APIS:
                raise DecodeError("frame", start, "Frame.size", f"{len(body)} bytes of api {api_key}")
            form = server.forms.get(api_key << 16 | version) or server.form(api_key, version)
            if form is not None:
                client_id, at = _read_client_id(body, start, length, form.flexible_head)
                message, _ = form.decode(body, at, False)
            elif api_key == API_VERSIONS:  # answered whatever stands in it (KIP-511)
                form, message, client_id = server.api_versions_fallback, None, ""
            else:
                raise DecodeError("version", start, "RequestHeader", f"api {api_key} has no version {version} here")
            self._correlation_id, self.form, self.client_id = correlation_id, form, client_id
            if admission is Admission.REFUSE:
                self.answer(refusal(message, version, ErrorCode.ILLEGAL_SASL_STATE))
                self.close()
            else:
                server.ask(self, form, message, client_id)
        except (struct.error, DecodeError) as error:
            server.refuse(self, error)
        except Exception as error:  # a fault of ours: it costs this client its connection, and no other
            _log.exception("a request of %s has failed", self.host)
            server.refuse(self, error)

    def _take_raw_token(self, session: Session, token: bytes) -> None:
        answer = session.raw_token(token)
        if answer is not None and self._transport is not None:
            self._transport.write(frame(answer))
        self.end_authentication(session)

    def end_authentication(self, session: Session) -> None:
        """Go on with the limits of one who is known, or end, a little later for those who try passwords."""
        if session.failed:
            self.token = HELD
            self._server.metrics.closed["authentication failed"] += 1
            self._server.later(FAILURE_DELAY_MS, self, self.close)
        elif session.principal is not None and self._framer is not None:
            rest, self._framer = self._framer.rest, Framer(self._server.limits.max_frame_size)
            self._bodies = self._framer.feed(rest)

    # ---- answers out

    def answer(self, message: Any, copies: int = 1) -> None:
        """The request in hand is answered; None answers nothing, as Produce with acks=0 asks for."""
        self.token = 0
        transport, form = self._transport, self.form
        if transport is None or form is None:
            return
        if message is not None:
            try:
                data = form.frame(self._correlation_id, message) * copies
            except EncodeError:
                _log.exception("an answer cannot be written")
                self.abort()
                return
            metrics = self._server.metrics
            metrics.sent_bytes += len(data)
            metrics.count_request(form.api_key, first_error(message), time.monotonic() - self.active_at)
            if self._bodies is None:
                transport.write(data)
            elif self._out is None:
                self._out = [data]
            else:
                self._out.append(data)
                if len(self._out) >= BURST or sum(map(len, self._out)) > JOINED_WRITE:
                    self._flush()
        if self._bodies is not None and self._server.pumping is not self:
            self._server.ready.append(self)

    def _flush(self) -> None:
        if self._out is not None:
            out, self._out = self._out, None
            if self._transport is not None:
                self._transport.write(b"".join(out))

    def close(self) -> None:
        """Close once what has been answered is written; `abort` where the peer does not read it."""
        if self._transport is not None:
            self._flush()
            self.stuck_at = time.monotonic()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # ---- bounds

    def overdue(self, limits: Limits) -> str | None:
        """Why it is to be closed, if it is."""
        now = time.monotonic()
        idle_ms = (now - self.active_at) * 1000
        stuck_ms = 0.0 if self.stuck_at is None else (now - self.stuck_at) * 1000
        if self.session is not None and self.session.principal is None:
            return "unauthenticated" if idle_ms > limits.unauthenticated_ms else None
        if self._choked or self.is_closing:
            return "unread answers" if stuck_ms > limits.unread_ms else None
        if stuck_ms > limits.frame_ms:
            return "half a frame"
        return "idle" if not self.token and idle_ms > limits.idle_ms else None

    def _hold(self) -> None:
        """Account for the bytes held, and let the socket wait while more are there than may be."""
        transport, server = self._transport, self._server
        if transport is None or transport.is_closing():
            return
        waiting = 0 if self._framer is None else self._framer.buffered
        pause = waiting > server.limits.read_ahead and self._bodies is not None  # else it is one frame, to be read on
        if pause != self._paused:
            self._paused = pause
            if pause:
                transport.pause_reading()
            else:
                transport.resume_reading()
        half_frame = waiting and not self.token
        if not (half_frame or self._choked):
            self.stuck_at = None
        elif self.stuck_at is None:
            self.stuck_at = time.monotonic()
        server.hold(self, waiting + (transport.get_write_buffer_size() if self._choked else 0))


def _guess(data: bytes) -> str:
    if data[:2] == b"\x16\x03":
        return ", which would be TLS"
    return ", which would be plain text" if data[:4].isascii() and data[:4].decode().isprintable() else ""


def _read_client_id(body: bytes, start: int, length: int, flexible: bool) -> tuple[str, int]:
    """The client id, empty for null, and where the message begins."""
    at = start + 10 + max(length, 0)
    if length >= -1 and (not flexible or body[at : at + 1] == b"\0"):
        try:
            return body[start + 10 : at].decode(), at + flexible
        except UnicodeDecodeError:
            pass  # said with its place below
    header, at = registry["RequestHeader"].decode_prefix(body, 2 if flexible else 1, offset=start, strict=False)
    return header.client_id or "", at


class Server:
    """All connections of a coordinator, in one event loop.

    :ivar rebalances: the accounts of rebalances that have ended, the last ten thousand of them
    """

    def __init__(
        self,
        machine: GroupMachine,
        store: Store,
        topics: Topics,
        *,
        in_memory: bool = False,
        users: Users | None = None,
        permissions: Permissions | None = None,
        faults: Faults | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.topics = topics
        self.users = users
        self.permissions = permissions
        self.faults = faults
        self.runtime = Runtime(machine, store, self._send, self._account)
        self.rebalances: deque[Rebalance] = deque(maxlen=10_000)
        self.connections: set[Connection] = set()
        self.forms: dict[int, Form] = {}
        self.ready: deque[Connection] = deque()  # answered in another's turn, with more frames waiting
        self.pumping: Connection | None = None
        self.metrics = Metrics()
        self.metrics.read_groups = self._count_groups
        self.api_versions_fallback = _form(API_VERSIONS, 0)
        self._store = store
        self._waiting: dict[int, Connection] = {}
        self._token = 0
        self._held = 0
        self._epoch = time.time() - time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._in_memory = in_memory
        self._threads = ThreadPoolExecutor(2, "kcoord-log")
        self._synced_to = 0
        self._syncing: asyncio.Future[None] | None = None
        self._compacting: asyncio.Future[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._listener: asyncio.Server | None = None
        self._stopping = False
        self._started_at = self.now()
        self._complaints = Allowance()

    def now(self) -> int:
        """Milliseconds since the epoch; runs on evenly when the clock of the machine is set."""
        return int((self._epoch + time.monotonic()) * 1000)

    # ---- life

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the sockets, and give the port: group requests are answered COORDINATOR_LOAD_IN_PROGRESS until `load`.

        :raises OSError: it is taken, or the host is none of ours
        """
        loop = self._loop = asyncio.get_running_loop()
        handshake = None if tls is None else self.limits.unauthenticated_ms / 1000
        make = partial(Connection, self)
        listener = await loop.create_server(make, host, port, ssl=tls, ssl_handshake_timeout=handshake, backlog=1024)
        chosen: int = listener.sockets[0].getsockname()[1]
        if port == 0 and len(listener.sockets) > 1:  # a name with several addresses, each on a port of its own
            listener.close()
            return await self.listen(host, chosen, tls)
        self._listener = listener
        limits = self.limits
        shortest = min(limits.frame_ms, limits.unread_ms, limits.idle_ms, limits.unauthenticated_ms)
        self._sweep_in = max(0.02, shortest / 8000)
        self._sweeper = loop.call_later(self._sweep_in, self._sweep)
        return chosen

    async def load(self) -> None:
        """Read the log and begin to serve groups. Errors as `Store.recover`."""
        records = await self._loop.run_in_executor(self._threads, self._store.recover)
        self._synced_to = 0
        self.runtime.load(records, self.now())
        self.settle()

    async def close(self, grace_ms: int = 1_000) -> None:
        """Write what is answered, answer what waits, and close everything."""
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        if self._reloading is not None:
            self._reloading.cancel()
        self.settle()
        while (work := self._syncing or self._compacting) is not None:
            await asyncio.wait([work])
        self.runtime.sync_failed(self.now())  # nothing is on its way to the disk: parked requests alone are refused
        self.settle()
        for connection in list(self.connections):
            connection.close()
        until = time.monotonic() + grace_ms / 1000
        while self.connections and time.monotonic() < until:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        self._threads.shutdown()
        self._store.close()

    # ---- connections

    def opened(self, connection: Connection) -> None:
        """A client has connected."""
        self.connections.add(connection)
        self.metrics.connections += 1
        self.metrics.accepted += 1
        if len(self.connections) > self.limits.max_connections or self._stopping:
            self._drop(connection, "too many", f"{len(self.connections)} connections are open")
        elif self.users is not None:
            connection.session = Session(self.users)

    def lost(self, connection: Connection) -> None:
        """A client has gone. What it asked of a group goes on; the answer will find nobody."""
        self.connections.discard(connection)
        self.metrics.connections -= 1
        if self._waiting.pop(connection.token, None) is not None:
            self.topics.abandon(connection.token)
        self.hold(connection, 0)

    def refuse(self, connection: Connection, error: object) -> None:
        """A client has sent what is no request, or not yet one: what came before is answered."""
        self._complain(connection, "malformed", str(error))
        connection.close()

    def _drop(self, connection: Connection, reason: str, detail: str = "") -> None:
        self._complain(connection, reason, detail)
        connection.abort()

    def _complain(self, connection: Connection, reason: str, detail: str) -> None:
        self.metrics.closed[reason] += 1
        if self._complaints.take():
            _log.warning("closed the connection from %s: %s%s", connection.host[1:], reason, detail and f": {detail}")

    def hold(self, connection: Connection, held: int) -> None:
        """Account for the bytes held for a client; if all together are too many, let go of the one with the most."""
        self._held += held - connection.held
        connection.held = held
        if self._held > self.limits.max_bytes_held:
            greatest = max(self.connections, key=lambda each: each.held)
            self._drop(greatest, "too many bytes held", f"{greatest.held} of {self._held}")

    def frame_limit(self, session: Session | None) -> int:
        """The largest frame that a client may send now."""
        known = session is None or session.principal is not None
        return self.limits.max_frame_size if known else self.limits.max_unauthenticated_frame_size

    def _sweep(self) -> None:
        for connection in list(self.connections):
            why = connection.overdue(self.limits)
            if why is not None:
                self._drop(connection, why)
        self._sweeper = self._loop.call_later(self._sweep_in, self._sweep)

    # ---- requests

    def form(self, api_key: int, version: int) -> Form | None:
        """How to read an api at a version; None if it is not served."""
        if version not in SERVED.get(api_key, range(0)):
            return None
        return self.forms.setdefault(api_key << 16 | version, _form(api_key, version))

    def ask(self, connection: Connection, form: Form, message: Any, client_id: str) -> None:
        """A request has come: let the faults have it first, where there are any."""
        if message is None:
            connection.answer(self.topics.api_versions_fallback())
        elif self.faults is None:
            self._submit(connection, form, message, client_id)
        else:
            connection.request = message
            verdict = self._decide("request", connection, form)
            if verdict.delay_ms:
                connection.token = HELD
                self.later(verdict.delay_ms, connection, partial(self._arrive, connection, form, verdict))
            else:
                self._arrive(connection, form, verdict)

    def _decide(self, on: str, connection: Connection, form: Form) -> Verdict:
        if self.faults is None:
            return CLEAN
        elapsed = self.now() - self._started_at
        verdict = self.faults.decide(on, form.api_key, connection.request, form.version, connection.client_id, elapsed)
        if verdict is not CLEAN:
            for action, strikes in (
                ("delay", verdict.delay_ms),
                ("drop", verdict.drop),
                ("duplicate", verdict.copies > 1),
                ("error", verdict.error),
                ("disconnect", verdict.disconnect),
            ):
                self.metrics.faults[action] += bool(strikes)
        return verdict

    def _arrive(self, connection: Connection, form: Form, verdict: Verdict) -> None:
        if verdict.disconnect:
            connection.close()
        elif verdict.drop:
            connection.answer(None)
        elif verdict.error is not None:
            connection.answer(refusal(connection.request, form.version, verdict.error))
        else:
            self._submit(connection, form, connection.request, connection.client_id, verdict.copies)

    def _submit(self, connection: Connection, form: Form, message: Any, client_id: str, copies: int = 1) -> None:
        self._token = token = self._token + 1
        connection.token = token
        self._waiting[token] = connection
        if self.permissions is not None:
            session = connection.session
            principal = ANONYMOUS if session is None or session.principal is None else session.principal
            asked, finish = self.permissions.split(message, form.version, principal, self.topics.name_of)
            if finish is not None and isinstance(message, ProduceRequest) and message.acks == 0:
                connection.close()  # Kafka's only way to tell
                return
            connection.finish = finish
            if asked is None:
                self._send(token, None)
                return
            message = asked
        self._hand_over(Request(token, message, form.version, client_id, connection.host), connection, form.api_key)
        for _ in range(copies - 1):  # seen again, and answered to nobody
            self._token += 1
            again = Request(self._token, message, form.version, client_id, connection.host)
            self._hand_over(again, connection, form.api_key)

    def _hand_over(self, request: Request, connection: Connection, api_key: int) -> None:
        now = self.now()
        if api_key in GROUP_APIS:
            if api_key == JOIN_GROUP:
                name: str = request.message.group_instance_id or request.client_id
                if len(name.encode()) > MAX_NAME:
                    raise DecodeError("length", 0, "JoinGroupRequest", "no member id can be made of so long a name")
                request.unique = str(uuid.uuid4())
            self.runtime.submit(request, now)
        elif api_key in SASL_APIS:
            self._send(request.token, self._authenticate(connection, request.message, request.version))
            if connection.session is not None:
                connection.end_authentication(connection.session)
        else:
            self._handle_topics(request, now)

    def _authenticate(self, connection: Connection, message: Any, version: int) -> Any:
        session = connection.session
        if session is None:
            return refusal(message, version, ErrorCode.ILLEGAL_SASL_STATE)
        if isinstance(message, SaslHandshakeRequest):
            return session.handshake(message, version)
        return session.authenticate(message, version)

    def _handle_topics(self, event: Event, now: int) -> None:
        for effect in self.topics.handle(event, now):
            if isinstance(effect, Reply):
                self._send(effect.token, effect.message)

    def _send(self, token: int, message: Any) -> None:
        connection = self._waiting.pop(token, None)
        if connection is None:
            return
        if connection.finish is not None:
            finish, connection.finish = connection.finish, None
            message = finish(message)
        if self.faults is None or connection.request is None or connection.form is None:
            connection.answer(message)
            return
        verdict = self._decide("response", connection, connection.form)
        if verdict.delay_ms:
            connection.token = HELD
            self.later(verdict.delay_ms, connection, partial(self._leave, connection, message, verdict))
        else:
            self._leave(connection, message, verdict)

    def _leave(self, connection: Connection, message: Any, verdict: Verdict) -> None:
        assert connection.form is not None
        if verdict.disconnect:
            connection.close()
        elif verdict.drop:
            connection.answer(None)
        elif verdict.error is not None:
            connection.answer(refusal(connection.request, connection.form.version, verdict.error))
        else:
            connection.answer(message, verdict.copies)

    def later(self, delay_ms: int, connection: Connection, step: Callable[[], None]) -> None:
        """Go on with a connection after a while, if it is still there."""

        def go_on() -> None:
            if not connection.is_closing:
                step()
                connection.pump()
                self.settle()

        self._loop.call_later(delay_ms / 1000, go_on)

    def _account(self, account: Account) -> None:
        self.metrics.count_account(account)
        if account.phase is Phase.ENDED:
            self.rebalances.append(account.rebalance)
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", describe_rebalance(account.rebalance), extra={"account": account})

    def _count_groups(self) -> GroupCounts:
        groups = list(self.runtime.machine.groups.values())
        return GroupCounts(Counter(str(group.state) for group in groups), sum(len(group.members) for group in groups))

    # ---- turns, time and disk

    def settle(self) -> None:
        """After every event from outside: let those who were answered go on, start a write, set the timer."""
        ready = self.ready
        while True:
            while ready:
                ready.popleft().pump()
            if self._syncing is None:
                self._commit()
            if not ready:
                break
        group, topic = self.runtime.deadline, self.topics.deadline
        due = group if topic is None or (group is not None and group < topic) else topic
        if due is not None and (self._timer is None or due < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_later(max(0, due - self.now()) / 1000, self._tick)

    def wait_turn(self, connection: Connection) -> None:
        """Let the others go first: this one has asked much at once."""
        self._loop.call_soon(self._turn, connection)

    def _turn(self, connection: Connection) -> None:
        connection.pump()
        self.settle()

    def _tick(self) -> None:
        self._timer = None
        now = self.now()
        if (due := self.runtime.deadline) is not None and due <= now:
            self.runtime.submit(Tick(), now)
        if (due := self.topics.deadline) is not None and due <= now:
            self._handle_topics(Tick(), now)
        self.settle()

    def _commit(self) -> None:
        sync = self.runtime.begin_sync()
        if sync is None:
            return
        began = time.monotonic()
        if self._in_memory:
            sync.run()
            self._end_sync(sync, began)
        else:
            self._syncing = self._loop.run_in_executor(self._threads, sync.run)
            self._syncing.add_done_callback(partial(self._synced, sync, began))

    def _synced(self, sync: Sync, began: float, done: asyncio.Future[None]) -> None:
        self._syncing = None
        error = done.exception()
        if error is None:
            self._end_sync(sync, began)
        else:
            _log.error("the log cannot be written: %s", error)
            self.runtime.sync_failed(self.now())
            if self._reloading is None and not self._stopping:
                self._reloading = self._loop.create_task(self._reload())
        self.settle()

    def _end_sync(self, sync: Sync, began: float) -> None:
        self.metrics.count_sync(time.monotonic() - began, sync.last - self._synced_to)
        self._synced_to = sync.last
        self.runtime.end_sync(sync, self.now())
        if self._compacting is None and self._store.compaction_due():
            self._compacting = self._loop.run_in_executor(self._threads, self._store.compact)
            self._compacting.add_done_callback(self._compacted)

    def _compacted(self, done: asyncio.Future[None]) -> None:
        self._compacting = None
        if (error := done.exception()) is not None:
            _log.error("the log cannot be compacted: %s", error)

    async def _reload(self) -> None:
        pause, longest = RELOAD_MS
        while not self._stopping:
            await asyncio.sleep(pause / 1000)
            pause = min(2 * pause, longest)
            try:
                await self.load()
            except (OSError, CorruptLogError) as error:
                _log.error("the log cannot be read: %s", error)
            else:
                break
        self._reloading = None


class Allowance:
    """So many log lines and no more in a while: what peers make us say must not fill a disk."""

    LINES, SECONDS = 20, 10.0

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._left = self.LINES

    def take(self) -> bool:
        """Whether one more line may be written."""
        now = time.monotonic()
        if now - self._since >= self.SECONDS:
            self._since, self._left = now, self.LINES
        self._left -= 1
        return self._left >= 0
