"""A client's connection and the one to its broker behind it: bytes go through, frames are seen as they pass.

Laws:

* Requests reach the broker as the client sent them. Responses reach the client as the broker sent them, but for those
  whose addresses are changed: these alone are held until they are whole.
* A frame is told by its size and the first bytes of its header; nothing is decoded but what is changed.
* What is held is bounded: `HELD_FOR_REWRITING` bytes of a response, `Limits.max_frame` of a frame that is recorded, all
  of it by `Limits.max_held`; the requests that wait for an answer by `MAX_WAITING`. A peer that does not read stops the
  reading from the other one.
* Bytes that are no frame end the connection, with a line in the log; where nothing is rewritten they go through, and
  the connection is not recorded from there on.
* Passwords are not recorded: no SaslAuthenticate, and none of the bare tokens that follow a SaslHandshake of version 0.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from kcoord_wire.api_keys import API_NAMES, api_name
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE, frame
from kcoord_wire.recorder.addresses import DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA, AddressError, rewrite_addresses

if TYPE_CHECKING:
    from kcoord_wire.recorder.proxy import Proxy

__all__ = ["GROUP_APIS", "HELD_FOR_REWRITING", "Limits", "Relay", "plan_of"]

GROUP_APIS: Final = frozenset(
    (METADATA, 8, 9, FIND_COORDINATOR, 11, 12, 13, 14, 15, 16, 18, 28, 42, 47, DESCRIBE_CLUSTER, 68, 69, 76, 77, 88, 89)
)
"""What tells of groups: these, and Metadata, ApiVersions and DescribeCluster. No produced or fetched record."""

HELD_FOR_REWRITING: Final = 32 << 20
MAX_WAITING: Final = 4096
WRITE_HIGH_WATER: Final = 256 << 10
LINGER_SECONDS: Final = 30.0  # for what is still to be written to a peer that does not read

TRACKED, RECORDED, REWRITTEN = 1, 2, 4  # what is done with an api
_PRODUCE, _SASL_HANDSHAKE, _SASL_AUTHENTICATE = 0, 17, 36
_REQUEST_HEAD: Final = struct.Struct(">IhhIh")  # size, api key, version, correlation id, length of the client id
_RESPONSE_HEAD: Final = struct.Struct(">II")
_SIZE: Final = struct.Struct(">I")
_LARGEST_VERSION: Final = 31


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be held.

    :ivar max_frame: bytes of a frame that are recorded; the rest of a larger one passes
    :ivar max_held: bytes of frames in progress, over all connections
    :ivar connect_seconds: how long a broker has to take a connection
    """

    max_frame: int = 16 << 20
    max_held: int = 256 << 20
    connect_seconds: float = 10.0


def plan_of(apis: str, *, rewrite: bool) -> Callable[[int], int]:
    """What is done with each api, as a sum of `TRACKED`, `RECORDED` and `REWRITTEN`.

    :param apis: ``group`` or ``all``
    """
    plan = dict.fromkeys(GROUP_APIS, TRACKED | RECORDED)
    other = 0
    if apis == "all":
        other = TRACKED | RECORDED
        plan[_PRODUCE] = RECORDED  # has no answer where none is asked for
        plan[_SASL_AUTHENTICATE] = TRACKED
    if rewrite:
        for api_key in (METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER):
            plan[api_key] |= REWRITTEN
    return lambda api_key: plan.get(api_key, other)


class Relay:
    """One client and its broker.

    :ivar number: of the connection, for the recording
    :ivar waiting: api key, version and plan of the requests that are to be answered, by correlation id
    :ivar raw: bare SASL tokens may follow
    """

    __slots__ = (
        "_connecting", "_early", "_ended_early", "client", "host", "name", "number", "proxy", "raw", "target",
        "upstream", "waiting",
    )  # fmt: skip

    def __init__(self, proxy: Proxy, target: tuple[str, int]) -> None:
        self.proxy = proxy
        self.target = target
        self.number = 0
        self.name = ""
        self.host = ""  # under which the client has reached us
        self.client = _Client(self)
        self.upstream = _Upstream(self)
        self.client.other, self.upstream.other = self.upstream, self.client
        self.waiting: dict[int, tuple[int, int, int]] = {}
        self.raw = False
        self._ended_early = False
        self._early: list[bytes] = []  # what the client sent before there was a broker to send it to
        self._connecting: asyncio.Task[None] | None = None

    # ---- life

    def connect(self) -> None:
        """A client is there: find its broker."""
        self.proxy.joined(self)
        self._connecting = self.proxy.loop.create_task(self._connect())

    async def _connect(self) -> None:
        host, port = self.target
        try:
            async with asyncio.timeout(self.proxy.limits.connect_seconds):
                await self.proxy.loop.create_connection(
                    lambda: self.upstream,
                    host,
                    port,
                    ssl=self.proxy.tls,
                    server_hostname=host if self.proxy.tls is not None else None,
                )
        except OSError as error:  # what TLS has to complain of is such too
            self._connecting = None
            reason = "no answer in time" if isinstance(error, TimeoutError) and not error.args else str(error)
            self.proxy.counters.unreachable += 1
            self.proxy.complain(f"cannot reach {host}:{port} for {self.client.peer}: {reason}")
            self.close()
        finally:
            self._connecting = None

    def connected(self) -> None:
        """The broker is there: let bytes go through."""
        self._connecting = None  # it has nothing more to do, and must not be cancelled in this very moment
        if self.client.transport is None or self.client.transport.is_closing():
            self.close()
            return
        self.number = self.proxy.next_number()
        self.name = f"{self.client.peer}-{self.upstream.peer}#{self.number}"
        if self.proxy.tape is not None:
            self.proxy.tape.opened(self.number, self.name)
        early, self._early = self._early, []
        for data in early:
            self.client.data_received(data)
        if self._ended_early:
            self.client.eof_received()
        self.client.resume_reading()

    def wait_for_broker(self, data: bytes) -> None:
        """Keep what has come too early, the end if it is nothing; from then on the client is not read."""
        if data:
            self._early.append(data)
        else:
            self._ended_early = True

    def close(self, *, at_once: bool = False) -> None:
        """End both, once what is on its way has been written."""
        if self._connecting is not None:
            self._connecting.cancel()
        for end in (self.client, self.upstream):
            end.close(at_once=at_once)

    def lost(self) -> None:
        """One of the two has gone: so must the other."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self.client.transport is None and self.upstream.transport is None:
            if self.number and self.proxy.tape is not None:
                self.proxy.tape.closed(self.number)
            self.proxy.left(self)
        else:
            self.close()

    def refuse(self, end: _End, why: str, data: bytes) -> bool:
        """Bytes of one side are no frame. Whether the connection goes on all the same."""
        self.proxy.counters.foreign += 1
        side = "client" if end is self.client else "broker"
        text = f"{self.name}: the {side} does not speak Kafka: {why}{_guess(data)}"
        if self.proxy.rewrites:
            self.proxy.complain(f"{text}; closed")
            end.close(at_once=True)  # and the other one, when what came before has been written
            return False
        self.proxy.complain(f"{text}; it goes through, and is not recorded any more")
        return True


class _End(asyncio.Protocol):
    """One of the two: what it sends is seen here, and goes to the other.

    :ivar peer: its address
    :ivar held_back: the frame in progress waits for its end before it is passed on
    """

    __slots__ = (
        "_keep", "_kept", "_kept_size", "_left", "_lingering", "_size", "_start", "_time_ns", "_wanted", "held_back",
        "in_step", "other", "peer", "relay", "transport",
    )  # fmt: skip
    HEAD: int
    LIMIT: int
    other: _End

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.in_step = True
        self.held_back = False
        self._start = b""  # of a frame of which not enough is there to tell what it is
        self._left = 0  # bytes that the frame in progress lacks
        self._size = 0  # bytes of it without its size
        self._keep = 0  # bytes of it that are to be kept
        self._wanted = False  # it is to be recorded, or changed
        self._kept: list[bytes] = []
        self._kept_size = 0
        self._time_ns = 0
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        transport.set_write_buffer_limits(WRITE_HIGH_WATER)
        address = transport.get_extra_info("peername")
        self.peer = address_text(*address[:2]) if isinstance(address, tuple) else "?"
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._lingering is not None:
            self._lingering.cancel()
        self._forget()
        self.relay.lost()

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

    def close(self, *, at_once: bool) -> None:
        transport = self.transport
        if transport is None:
            return
        if at_once:
            transport.abort()
        elif not transport.is_closing():
            transport.close()
            self._lingering = self.relay.proxy.loop.call_later(LINGER_SECONDS, transport.abort)

    # ---- frames

    def begin(self, data: bytes, at: int, size: int) -> tuple[int, bool]:
        """A frame of `size` bytes begins at `at`, its first `HEAD` bytes, or all it has, are in `data`: how many of its
        bytes to keep, and whether to hold it back."""
        raise NotImplementedError

    def end(self, body: bytes, size: int) -> bytes | None:
        """A frame of which something was kept, or which was held back, is whole: what is to be passed on instead."""
        raise NotImplementedError

    def split(self, data: bytes) -> list[bytes] | None:
        """See the frames in `data`; give what is to be passed on now, None if the connection has ended."""
        passed: list[bytes] = []
        at, filled = 0, len(data)
        while at < filled:
            if not self._left and not self._start:
                at = self._pass_whole(data, at, passed)
                if at == filled:
                    break
            if self._left:
                piece = data[at : at + self._left] if at or filled > self._left else data
                at += len(piece)
                self._left -= len(piece)
                self._hold(piece)
                if not self.held_back:
                    passed.append(piece)
            else:
                start = self._start + data[at : at + self.HEAD - len(self._start)]
                size = int.from_bytes(start[:4], "big")
                if len(start) >= 4 and size > self.LIMIT:
                    if not self.relay.refuse(self, f"a frame of {size} bytes", start):
                        self.other.write(b"".join(passed))
                        return None
                    self.in_step = self.other.in_step = False
                    return [*passed, self._start + data[at:]]
                if len(start) < 4 or len(start) < min(self.HEAD, 4 + size):
                    self._start = start
                    break
                start = start[: 4 + size]
                at += len(start) - len(self._start)
                self._start = b""
                self._size, self._left = size, 4 + size - len(start)
                self._keep, self.held_back = self.begin(start, 0, size)
                self._wanted = self._keep > 0
                self._hold(start[4:])
                if not self.held_back:
                    passed.append(start)
            if not self._left:
                self._finish(passed)
        return passed

    def _pass_whole(self, data: bytes, at: int, passed: list[bytes]) -> int:
        """Take the frames that are whole, from `at` on: most of all frames. Where they end."""
        filled, begun, shortest = len(data), at, self.HEAD - 4
        longest = min(self.LIMIT, self.relay.proxy.limits.max_frame)
        while at + self.HEAD <= filled:
            size = _SIZE.unpack_from(data, at)[0]
            end = at + 4 + size
            if end > filled or not shortest <= size <= longest:
                break
            keep, held_back = self.begin(data, at, size)
            if held_back:
                if begun < at:
                    passed.append(data[begun:at])
                body = data[at + 4 : end]
                passed.append(self.end(body, size) or frame(body))
                begun = end
            elif keep:
                self.record(data[at + 4 : end], size)
            at = end
        if begun < at:
            passed.append(data[begun:at])
        return at

    def _finish(self, passed: list[bytes]) -> None:
        if self._wanted:
            body = b"".join(self._kept)
            instead = self.end(body, self._size)
            if self.held_back:
                passed.append(instead or frame(body))
        self._forget()

    def _hold(self, piece: bytes) -> None:
        proxy = self.relay.proxy
        if self._kept_size < self._keep:
            if proxy.held + len(piece) > proxy.limits.max_held and not self.held_back:
                self._keep = self._kept_size  # what there is of it is recorded
                return
            piece = piece[: self._keep - self._kept_size]
            self._kept.append(piece)
            self._kept_size += len(piece)
            proxy.held += len(piece)

    def _forget(self) -> None:
        self.relay.proxy.held -= self._kept_size
        self._kept.clear()
        self._kept_size = self._keep = self._left = 0
        self.held_back = self._wanted = False

    def record(self, body: bytes, size: int) -> None:
        tape = self.relay.proxy.tape
        if tape is not None:
            tape.frame(self.relay.number, self.SIDE, body, self._time_ns, size)

    SIDE: Any


class _Client(_End):
    """What clients send: passed on as it is."""

    __slots__ = ()
    HEAD = _REQUEST_HEAD.size
    LIMIT = DEFAULT_MAX_FRAME_SIZE
    SIDE = "request"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        own = transport.get_extra_info("sockname")
        self.relay.host = own[0] if isinstance(own, tuple) else ""
        self.relay.connect()
        self.relay.proxy.loop.call_soon(self._wait_for_broker)  # uvloop begins to read behind this call

    def _wait_for_broker(self) -> None:
        if not self.relay.number and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        relay = self.relay
        broker = relay.upstream.transport
        if broker is None or not relay.number:
            relay.wait_for_broker(data)
            return
        proxy = relay.proxy
        proxy.counters.request_bytes += len(data)
        if not self.in_step:
            broker.write(data)
            return
        self._time_ns = time.time_ns()
        if self.split(data) is not None:
            broker.write(data)

    def eof_received(self) -> bool:
        relay = self.relay
        transport = relay.upstream.transport
        if transport is None or not relay.number:
            relay.wait_for_broker(b"")
            return True
        if not transport.can_write_eof():
            return False
        transport.write_eof()
        return True

    def begin(self, data: bytes, at: int, size: int) -> tuple[int, bool]:
        relay = self.relay
        proxy = relay.proxy
        proxy.counters.requests += 1
        if size < 10:  # a bare SASL token can be as short, a request cannot
            return 0, False
        _, api_key, version, correlation_id, client_id = _REQUEST_HEAD.unpack_from(data, at)
        if relay.raw:
            if api_key not in API_NAMES or not 0 <= version <= _LARGEST_VERSION or not -1 <= client_id <= size - 10:
                return 0, False
            relay.raw = False
        if api_key == _SASL_HANDSHAKE and version == 0:
            relay.raw = True
        what = proxy.plan(api_key)
        if what & TRACKED:
            waiting = relay.waiting
            waiting[correlation_id] = api_key, version, what
            if len(waiting) > MAX_WAITING:
                del waiting[next(iter(waiting))]
        return (min(size, proxy.limits.max_frame) if what & RECORDED else 0), False

    def end(self, body: bytes, size: int) -> bytes | None:
        self.record(body, size)
        return None


class _Upstream(_End):
    """What brokers send: passed on as it comes, but for answers with addresses."""

    __slots__ = ("_answered",)
    HEAD = _RESPONSE_HEAD.size
    LIMIT = 0x7FFFFFFF
    SIDE = "response"

    def __init__(self, relay: Relay) -> None:
        super().__init__(relay)
        self._answered: tuple[int, int, int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.relay.connected()

    def data_received(self, data: bytes) -> None:
        relay = self.relay
        client = relay.client.transport
        if client is None:
            return
        proxy = relay.proxy
        proxy.counters.response_bytes += len(data)
        if not self.in_step:
            client.write(data)
            return
        self._time_ns = time.time_ns()
        if proxy.rewrites:
            passed = self.split(data)
            if passed:
                client.write(b"".join(passed) if len(passed) > 1 else passed[0])
        else:
            client.write(data)
            self.split(data)

    def begin(self, data: bytes, at: int, size: int) -> tuple[int, bool]:
        relay = self.relay
        proxy = relay.proxy
        proxy.counters.responses += 1
        self._answered = None
        if size < 4:
            return 0, False
        answered = self._answered = relay.waiting.pop(_RESPONSE_HEAD.unpack_from(data, at)[1], None)
        stray = RECORDED if proxy.records_all and not relay.raw else 0
        what = stray if answered is None else answered[2]
        if what & REWRITTEN:
            if size <= HELD_FOR_REWRITING and proxy.held + size <= proxy.limits.max_held:
                return size, True
            if answered is not None:
                proxy.cannot_rewrite(*answered[:2], f"{size} bytes are too many to hold")
            self._answered = None
        return (min(size, proxy.limits.max_frame) if what & RECORDED else 0), False

    def end(self, body: bytes, size: int) -> bytes | None:
        proxy = self.relay.proxy
        self.record(body[: proxy.limits.max_frame], size)
        answered = self._answered
        if answered is None or not answered[2] & REWRITTEN:
            return None
        try:
            new = rewrite_addresses(
                body, answered[0], answered[1], partial(proxy.replacement, host_of_client=self.relay.host)
            )
        except AddressError as error:
            proxy.cannot_rewrite(*answered[:2], str(error))
            return None
        if new is None:
            return None
        proxy.counters.rewritten += 1
        return frame(new)


def address_text(host: str, port: int) -> str:
    """``HOST:PORT``, with brackets where the host has colons."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def api_text(api_key: int, version: int) -> str:
    """An api and its version, for people."""
    return f"{api_name(api_key)} v{version}"


def _guess(data: bytes) -> str:
    if data[:2] in (b"\x16\x03", b"\x15\x03"):
        return ", which would be TLS"
    return ", which would be plain text" if all(32 <= byte < 127 for byte in data[:4]) else ""
