"""A client's connection and the one to its broker: bytes pass through, and frames are seen as they pass.

Laws:

* Requests reach the broker as the client sent them. Responses reach the client as the broker sent them, except those
  with replaced addresses: only these are held until they are whole.
* Kafka's protocol and the 0.8 draft's (`central`) are recorded; the first frame of a client decides.
* A frame is recognised by its size and the first bytes of its header; only responses to rewrite are decoded.
* Memory is bounded: `HELD_FOR_REWRITING` bytes of a response, `RelayLimits.max_frame` of a frame that is recorded,
  `RelayLimits.max_held` over all connections, `MAX_WAITING` requests without a response. If one peer does not read,
  the other one is not read from.
* Bytes that are not a frame end the connection, with a line in the log; where nothing is rewritten they pass through,
  and the connection is not recorded from there on.
* Passwords are not recorded: no SaslAuthenticate, and none of the bare tokens that follow a SaslHandshake of version 0.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Final, Literal

from kcoord_wire.capture.fetches import FetchWalk
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE, SIZE_BYTES, frame
from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.codec.registry import MessageCodec
from kcoord_wire.kernel.net import address_text, guess_protocol
from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey, api_name
from kcoord_wire.recorder.bodies import AddressError, CentralTraffic, FetchNumbers, rewrite_addresses, rewrite_message
from kcoord_wire.recorder.counters import NUMBERS, RECORDED, REWRITTEN, TRACKED, RelayContext
from kcoord_wire.recorder.passing import FramePasser
from kcoord_wire.recorder.recording import Side

HELD_FOR_REWRITING: Final = 32 << 20
MAX_WAITING: Final = 4096

_REQUEST_HEAD: Final = struct.Struct(">IhhIh")  # size, api key, version, correlation id, length of the client id
_RESPONSE_HEAD: Final = struct.Struct(">II")
_SMALLEST_REQUEST: Final = _REQUEST_HEAD.size - SIZE_BYTES
_LARGEST_VERSION: Final = 31
_SASL_HANDSHAKE: Final = int(ApiKey.SASL_HANDSHAKE)


class Relay:
    """One client and its broker.

    :param target: host and port of the broker
    :ivar number: of the connection, for the recording; 0 until the broker is connected
    :ivar name: of the connection, as it is recorded
    :ivar host: the address of the proxy that the client has connected to
    :ivar waiting: api key, version and plan of the requests without a response, of the apis that a relay follows
    :ivar raw: bare SASL tokens may follow
    :ivar fetches: of a connection on which a client fetches
    :ivar central: of a connection of the 0.8 draft; None until the first frame of the client, False on one of Kafka
    :ivar ended: the side that ended the connection first, whether it broke it off, and when; None where neither did
    """

    __slots__ = (
        "_connecting", "_early", "_ended_early", "central", "client", "context", "ended", "fetches", "host", "name",
        "number", "raw", "target", "upstream", "waiting",
    )  # fmt: skip

    def __init__(self, context: RelayContext, target: tuple[str, int]) -> None:
        self.context = context
        self.target = target
        self.number = 0
        self.name = ""
        self.host = ""
        self.client = _Client(self)
        self.upstream = _Upstream(self)
        self.client.other, self.upstream.other = self.upstream, self.client
        self.waiting: PendingRequests[tuple[int, int, int]] = PendingRequests(MAX_WAITING)
        self.raw = False
        self.fetches: FetchNumbers | None = None
        self.central: CentralTraffic | Literal[False] | None = None
        self.ended: tuple[Side, bool, int] | None = None
        self._ended_early = False
        self._early: list[bytes] = []  # sent by the client before the broker was connected
        self._connecting: asyncio.Task[None] | None = None

    # ---- life

    def connect(self) -> None:
        """Connect to the broker of a client that has connected."""
        self.context.joined(self)
        self._connecting = self.context.loop.create_task(self._connect())

    async def _connect(self) -> None:
        host, port = self.target
        try:
            async with asyncio.timeout(self.context.limits.connect_seconds):
                await self.context.loop.create_connection(
                    lambda: self.upstream,
                    host,
                    port,
                    ssl=self.context.tls,
                    server_hostname=host if self.context.tls is not None else None,
                )
        except OSError as error:  # includes the errors of TLS
            self._connecting = None
            reason = "no answer in time" if isinstance(error, TimeoutError) and not error.args else str(error)
            self.context.counters.unreachable += 1
            self.context.warn(f"cannot reach {host}:{port} for {self.client.peer}: {reason}")
            if self.context.recording is not None:
                number, broker = self.context.next_number(), self.context.reached.get(self.target)
                name = f"{self.client.peer}-{broker or address_text(host, port)}#{number}"
                self.context.recording.refused(number, name, reason)
            self.close()
        finally:
            self._connecting = None

    def connected(self) -> None:
        """Let bytes pass: the broker is connected."""
        self._connecting = None  # this task is at its end, and must not be cancelled now
        if self.client.is_closing:
            self.close()
            return
        self.number = self.context.next_number()
        self.name = f"{self.client.peer}-{self.upstream.peer}#{self.number}"
        self.context.reached[self.target] = self.upstream.peer
        if self.context.recording is not None:
            self.context.recording.opened(self.number, self.name)
        early, self._early = self._early, []
        for data in early:
            self.client.data_received(data)
        if self._ended_early:
            self.client.eof_received()
        self.client.resume_reading()

    def wait_for_broker(self, data: bytes) -> None:
        """Keep bytes, or the end of them if there are none, that came before the broker was connected."""
        if data:
            self._early.append(data)
        else:
            self._ended_early = True

    def close(self, *, at_once: bool = False) -> None:
        """End both connections, once what is buffered has been written."""
        if self._connecting is not None:
            self._connecting.cancel()
        for end in (self.client, self.upstream):
            end.abort() if at_once else end.close()

    def lost(self) -> None:
        """Note that one connection has ended, and end the other one."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self.client.transport is None and self.upstream.transport is None:
            if self.number and self.context.recording is not None:
                # A broker reads no end while a JoinGroup waits: the other side's may come a minute later.
                by, reset, time_ns = self.ended or (None, False, time.time_ns())
                self.context.recording.closed(self.number, by, reset=reset, time_ns=time_ns)
            self.context.left(self)
        else:
            self.close()

    def refuse(self, end: _End, why: str, data: bytes) -> bool:
        """Handle bytes of one side that are not a frame; return whether the connection continues."""
        self.context.counters.foreign += 1
        side: Side = "client" if end is self.client else "broker"
        reason = f"the {side} does not speak Kafka: {why}{guess_protocol(data)}"
        text = f"{self.name}: {reason}"
        if self.number and self.context.recording is not None:
            self.context.recording.foreign(self.number, side, reason)
        if self.context.rewrites:
            self.context.warn(f"{text}; closed")
            end.abort()  # and the other one, when what came before has been written
            return False
        self.context.warn(f"{text}; it passes through, and is not recorded any more")
        return True


class _End(FramePasser):
    """One of the two connections.

    :ivar peer: the address at its other end
    :ivar other: the other connection
    """

    __slots__ = ("other", "peer")
    NAME: Side
    other: _End

    def __init__(self, relay: Relay) -> None:
        super().__init__(relay)
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        self.peer = address_text(*address[:2]) if isinstance(address, tuple) else "?"

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if exc is not None:
            self.note_end(reset=True)
        self.forget()
        self.relay.lost()

    def note_end(self, *, reset: bool) -> None:
        """Note that this side has ended the connection, or broken it off, unless it had ended before."""
        if self.relay.ended is None:
            self.relay.ended = self.NAME, reset, time.time_ns()

    def pause_writing(self) -> None:
        source = self.other.transport
        if source is not None and not source.is_closing():
            source.pause_reading()

    def resume_writing(self) -> None:
        self.other.resume_reading()

    def resume_reading(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def leave_step(self, why: str, start: bytes, passed: list[bytes]) -> bool:
        if not self.relay.refuse(self, why, start):
            self.other.write(b"".join(passed))
            return False
        self.in_step = self.other.in_step = False
        return True


class _Client(_End):
    """What the client sends: passed on as it is."""

    __slots__ = ("_fetches",)
    HEAD = _REQUEST_HEAD.size
    LIMIT = DEFAULT_MAX_FRAME_SIZE
    SIDE = "request"
    NAME: Side = "client"

    def __init__(self, relay: Relay) -> None:
        super().__init__(relay)
        self._fetches = False  # of the frame in progress, only the numbers are recorded

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        own = transport.get_extra_info("sockname")
        self.relay.host = own[0] if isinstance(own, tuple) else ""
        self.relay.connect()
        self.relay.context.loop.call_soon(self._wait_for_broker)  # uvloop begins to read only after this call

    def _wait_for_broker(self) -> None:
        if not self.relay.number and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        relay = self.relay
        broker = relay.upstream.transport
        if broker is None or not relay.number:
            relay.wait_for_broker(data)
            return
        context = relay.context
        context.counters.request_bytes += len(data)
        if not self.in_step:
            broker.write(data)
            return
        self.time_ns = time.time_ns()
        if self.split(data) is not None:
            broker.write(data)

    def eof_received(self) -> bool | None:
        self.note_end(reset=False)
        relay = self.relay
        transport = relay.upstream.transport
        if transport is None or not relay.number:
            relay.wait_for_broker(b"")
            return True
        if not transport.can_write_eof():
            return super().eof_received()
        transport.write_eof()
        return True

    def begin(self, data: bytes, at: int, size: int) -> tuple[int, bool]:
        relay = self.relay
        context = relay.context
        context.counters.requests += 1
        if relay.central is None:
            relay.central = CentralTraffic.opens(data[at + 4 : at + self.HEAD], size) and CentralTraffic()
        if relay.central:
            relay.central.from_consumer(data[at + 4 : at + 6])
            return min(size, context.limits.max_frame), False
        if size < _SMALLEST_REQUEST:  # a bare SASL token can be as short, a request cannot
            return 0, False
        _, api_key, version, correlation_id, client_id = _REQUEST_HEAD.unpack_from(data, at)
        if relay.raw:
            known = api_key in API_NAMES and 0 <= version <= _LARGEST_VERSION
            if not known or not -1 <= client_id <= size - _SMALLEST_REQUEST:
                return 0, False
            relay.raw = False
        if api_key == _SASL_HANDSHAKE and version == 0:
            relay.raw = True
        what = context.plan(api_key)
        if what & TRACKED:
            relay.waiting.add(correlation_id, (api_key, version, what))
        self._fetches = what & NUMBERS != 0
        return (min(size, context.limits.max_frame) if what & (RECORDED | NUMBERS) else 0), False

    def end(self, body: bytes, size: int) -> bytes | None:
        self.record(body, size)
        return None

    def record(self, body: bytes, size: int) -> None:
        if not self._fetches:
            super().record(body, size)
            return
        relay = self.relay
        if relay.fetches is None:
            relay.fetches = FetchNumbers()
        relay.fetches.ask(body)


class _Upstream(_End):
    """What the broker sends: passed on as it comes, except responses with addresses."""

    __slots__ = ("_answered", "_correlation_id", "_named", "_walk")
    HEAD = _RESPONSE_HEAD.size
    LIMIT = 0x7FFFFFFF
    SIDE = "response"
    NAME: Side = "broker"

    def __init__(self, relay: Relay) -> None:
        super().__init__(relay)
        self._answered: tuple[int, int, int] | None = None
        self._named: tuple[MessageCodec, int] | None = None  # a message of the 0.8 draft that names brokers
        self._correlation_id = 0
        self._walk: FetchWalk | None = None  # through a response of which only the numbers are recorded

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.relay.connected()

    def eof_received(self) -> bool | None:
        self.note_end(reset=False)
        return super().eof_received()

    def data_received(self, data: bytes) -> None:
        relay = self.relay
        client = relay.client.transport
        if client is None:
            return
        context = relay.context
        context.counters.response_bytes += len(data)
        if not self.in_step:
            client.write(data)
            return
        self.time_ns = time.time_ns()
        if context.rewrites:
            passed = self.split(data)
            if passed:
                client.write(b"".join(passed) if len(passed) > 1 else passed[0])
        else:
            client.write(data)
            self.split(data)

    def begin(self, data: bytes, at: int, size: int) -> tuple[int, bool]:
        relay = self.relay
        context = relay.context
        context.counters.responses += 1
        self._answered = self._named = self._walk = None
        if relay.central:
            self._named = relay.central.from_coordinator(data[at + 4 : at + 6]) if context.rewrites else None
            may_hold = size <= HELD_FOR_REWRITING and context.held + size <= context.limits.max_held
            return min(size, context.limits.max_frame), self._named is not None and may_hold
        if size < 4:
            return 0, False
        self._correlation_id = _RESPONSE_HEAD.unpack_from(data, at)[1]
        found = relay.waiting.answer(self._correlation_id)
        answered = self._answered = None if found is None else found[0]
        stray = RECORDED if context.records_all and not relay.raw else 0
        what = stray if answered is None else answered[2]
        if what & REWRITTEN:
            if size <= HELD_FOR_REWRITING and context.held + size <= context.limits.max_held:
                return size, True
            if answered is not None:
                context.cannot_rewrite(_described(answered, None), f"{size} bytes are too many to hold")
            self._answered = None
        return self._to_keep(what, answered, size), False

    def _to_keep(self, what: int, answered: tuple[int, int, int] | None, size: int) -> int:
        """Return how many bytes of a response to keep, or to walk through."""
        if what & NUMBERS and answered is not None:
            self._walk = FetchWalk(answered[1])
            return size
        return min(size, self.relay.context.limits.max_frame) if what & RECORDED else 0

    def hold(self, piece: bytes) -> None:
        if self._walk is None:
            super().hold(piece)
        else:
            self._walk.feed(piece)

    def record(self, body: bytes, size: int) -> None:
        """Record a frame; of a Fetch that was held back nowhere, `body` is what was not fed to its walk before."""
        relay, walk, self._walk = self.relay, self._walk, None
        if walk is None:
            super().record(body, size)
        elif relay.fetches is not None and relay.context.recording is not None:
            walk.feed(body)
            made = relay.fetches.answer(self._correlation_id, walk, self.time_ns)
            # Requests are answered in order. Behind a recorded one that still waits, this one would have overtaken it.
            if made is not None and not any(what & RECORDED for _, _, what in relay.waiting):
                record = relay.context.recording.frame
                record(relay.number, "request", made[0], self.time_ns, len(made[0]))
                record(relay.number, "response", made[1], self.time_ns, len(made[1]))

    def end(self, body: bytes, size: int) -> bytes | None:
        context = self.relay.context
        self.record(body[: context.limits.max_frame], size)
        answered, named = self._answered, self._named
        if named is None and (answered is None or not answered[2] & REWRITTEN):
            return None
        client_sees = self.relay.host

        def replace(host: str, port: int) -> tuple[str, int] | None:
            return context.replacement(host, port, client_sees)

        try:
            if named is not None:
                new = rewrite_message(body, named[0], 0, named[1], replace)
            elif answered is not None:
                new = rewrite_addresses(body, *answered[:2], replace)
        except AddressError as error:
            context.cannot_rewrite(_described(answered, named), str(error))
            return None
        if new is None:
            return None
        context.counters.rewritten += 1
        return frame(new)


def _described(answered: tuple[int, int, int] | None, named: tuple[MessageCodec, int] | None) -> str:
    """The message whose addresses could not be replaced."""
    if named is not None:
        return named[0].name
    return "response" if answered is None else f"{api_name(answered[0])} v{answered[1]} response"
