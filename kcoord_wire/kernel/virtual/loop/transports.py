"""Connections in memory, as a TCP connection behaves: bytes in order, retransmitted after loss, closed, reset, dead.

Laws:

* Bytes of one direction arrive in order, each write as one piece, or the connection ends with an error.
* Bytes that the network drops are sent again, after 0.2 s and then after twice as long each time, at most 120 s; after
  15 attempts the connection ends with ETIMEDOUT, 924.6 s after the first (Linux: ``tcp_retries2``). So a connection
  outlives a short outage, and notices the end of a long one late.
* Bytes that reach a closed connection, or a killed process, are answered by a reset. A reset is sent once: if the
  network drops it, the other side learns of the end when it next sends.
* Writing pauses as for sockets: above the high-water mark, counted from what a socket's buffer holds.

Source: RFC 9293; Linux ``tcp(7)``.
"""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from collections import deque
from collections.abc import Callable
from errno import ECONNABORTED, ECONNRESET, ETIMEDOUT
from random import Random
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.kernel.virtual.loop.hosts import Host
from kcoord_wire.kernel.virtual.loop.loop import KERNEL, NotSimulatedError, VirtualLoop

if TYPE_CHECKING:
    from kcoord_wire.kernel.virtual.loop.network import VirtualNetwork

FIRST_RETRY_S: Final = 0.2
LONGEST_RETRY_S: Final = 120.0
RETRIES: Final = 15
SOCKET_BUFFER: Final = 212_992  # bytes: Linux's net.core.wmem_default
HIGH_WATER: Final = 65_536  # asyncio's default


class MemoryTransport(asyncio.Transport):
    """One end of a connection.

    :param name: of the connection: ``client_ip:port-server_ip:port#n``
    :param is_client: whether this end has opened it
    :ivar peer: the other end
    """

    peer: MemoryTransport
    _start_tls_compatible = True  # loop.start_tls asks for it

    def __init__(self, network: VirtualNetwork, host: Host, name: str, random: Random, *, is_client: bool) -> None:
        super().__init__()
        self.name = name
        self.host = host
        self.is_client = is_client
        self._network = network
        self.loop: VirtualLoop = network.loop
        self._process = host.process
        self._context = host.new_context()
        self._random = random
        self._protocol: Any = None
        self._outbox: deque[bytes | None] = deque()  # not yet sent; None is the end
        self._retry: asyncio.TimerHandle | None = None
        self._tries = 0
        self._arrives_at = 0.0
        self._unread = 0  # bytes written that the other side's protocol has not got
        self._inbox: deque[bytes | None] = deque()  # arrived, and not yet read
        self._reading = True
        self._ended_writing = self._closing = self._dead = self._choked = False
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._process.transports[self] = None
        here, there = name.partition("#")[0].split("-")[:: 1 if is_client else -1]
        self._extra_info = {"sockname": _split(here), "peername": _split(there)}

    def begin(self, protocol: Any) -> None:
        """Give the protocol its connection; called in the context of the process."""
        self._protocol = protocol
        if not self._dead:
            protocol.connection_made(self)
            self._read()

    def plan(self, callback: Callable[..., object], *args: Any) -> None:
        """Call back soon, as the process that has this end."""
        self.loop.call_soon(callback, *args, context=self._context)

    # ---- asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra_info.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._inbox:
            self.plan(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return max(0, self._unread - SOCKET_BUFFER)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:  # as asyncio's transports: what is written after `close` is dropped
            return
        if self._ended_writing:
            raise RuntimeError("Cannot call write() after write_eof()")
        self._network.record(self.host, "sends", f"{len(data)} B {self.name}")
        self._unread += len(data)
        self._send(bytes(data))
        if self.get_write_buffer_size() > self._high and not self._choked:
            self._choked = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._ended_writing:
            self._ended_writing = True
            self._send(None)

    def close(self) -> None:
        if not self._closing:
            self._network.record(self.host, "closes", self.name)
            self._closing = True
            self.write_eof()
            self.plan(self._end, None)

    def abort(self) -> None:
        self._force_close(None)

    # ---- the sending kernel

    def _send(self, piece: bytes | None) -> None:
        self._outbox.append(piece)
        if self._retry is None:
            self._transmit()

    def _transmit(self) -> None:
        self._retry = None
        network, loop = self._network, self.loop
        if self._tries > RETRIES:
            self.plan(self._force_close, TimeoutError(ETIMEDOUT, "no acknowledgement from the other side"))
            return
        if network.drops(self.host, self.peer.host, self._random):
            wait = min(FIRST_RETRY_S * 2**self._tries, LONGEST_RETRY_S)
            self._tries += 1
            self._retry = loop.call_at(loop.time() + wait, self._transmit, context=KERNEL)
            return
        self._tries = 0
        arrives_at = loop.time() + network.latency(self.host, self.peer.host, self._random)
        self._arrives_at = max(self._arrives_at, arrives_at)
        while self._outbox:
            piece = self._outbox.popleft()
            if piece and not self.is_client:
                network.tap(self.name, False, piece)
            loop.call_at(self._arrives_at, self.peer._arrived, piece, context=KERNEL)

    def _send_reset(self) -> None:
        network, loop = self._network, self.loop
        if not network.drops(self.host, self.peer.host, self._random):
            wait = network.latency(self.host, self.peer.host, self._random)
            loop.call_at(loop.time() + wait, self.peer.was_reset, context=KERNEL)

    def die(self) -> None:
        """The process was killed: the kernel resets the connection."""
        self._closing = self._ended_writing = True
        self._forget()
        self._send_reset()

    # ---- the receiving kernel

    def _arrived(self, piece: bytes | None) -> None:
        if piece and self.peer.is_client:
            self._network.tap(self.name, True, piece)
        if self._dead:
            if piece is not None:
                self._send_reset()
            return
        self._inbox.append(piece)
        self.plan(self._read)

    def was_reset(self) -> None:
        """A reset has arrived."""
        if not self._dead:
            self.plan(self._force_close, ConnectionResetError(ECONNRESET, "the other side has reset the connection"))

    # ---- the process

    def _read(self) -> None:
        while self._inbox and self._reading and not self._closing and self._protocol is not None:
            piece = self._inbox.popleft()
            if piece is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            self._network.record(self.host, "gets", f"{len(piece)} B {self.name}")
            self.peer.plan(self.peer._was_read, len(piece))
            try:
                _feed(self._protocol, piece)
            except Exception as error:  # as asyncio's transports
                what = {"message": "the protocol has failed", "exception": error, "transport": self}
                self.loop.call_exception_handler(what)
                self._force_close(OSError(ECONNABORTED, f"the protocol has failed: {error!r}"))

    def _was_read(self, size: int) -> None:
        self._unread -= size
        if self._choked and self.get_write_buffer_size() <= self._low and not self._dead:
            self._choked = False
            self._protocol.resume_writing()

    def _force_close(self, error: OSError | None) -> None:
        """End at once: because of an error, or None for `abort`. asyncio's TLS calls it, too."""
        if self._dead or (self._closing and not self._outbox):
            return
        self._network.record(self.host, "aborts" if error is None else "loses", self._why(error))
        self._closing = self._ended_writing = True
        if error is None:
            self._send_reset()
        self._forget()
        self.plan(self._end, error)

    def _why(self, error: OSError | None) -> str:
        return self.name if error is None else f"{self.name}: {error.strerror}"

    def _end(self, error: OSError | None) -> None:
        self._forget(keep_outbox=error is None)
        if self._protocol is not None:
            protocol, self._protocol = self._protocol, None
            protocol.connection_lost(error)

    def _forget(self, *, keep_outbox: bool = False) -> None:
        if not self._dead and not self.is_client:
            self._network.tap(self.name, False, b"")
        self._dead = True
        self._inbox.clear()
        self._process.transports.pop(self, None)
        if not keep_outbox:
            self._outbox.clear()
            if self._retry is not None:
                self._retry.cancel()
                self._retry = None


def _feed(protocol: Any, piece: bytes) -> None:
    """Give bytes to a protocol, streaming or buffered."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        protocol.data_received(piece)
        return
    while piece:
        buffer = memoryview(protocol.get_buffer(len(piece)))
        size = min(len(buffer), len(piece))
        buffer[:size] = piece[:size]
        protocol.buffer_updated(size)
        piece = piece[size:]


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def secured(loop: VirtualLoop, protocol: Any, waiter: Any, options: dict[str, Any], *, server: bool) -> Any:
    """Return a protocol that speaks TLS to its transport, and plain bytes to `protocol`."""
    return sslproto.SSLProtocol(
        loop,
        protocol,
        options["ssl"],
        waiter,
        server_side=server,
        server_hostname=None if server else options["server_hostname"],
        ssl_handshake_timeout=options.get("ssl_handshake_timeout"),
        ssl_shutdown_timeout=options.get("ssl_shutdown_timeout"),
    )


async def begin_client(transport: MemoryTransport, protocol: Any, options: dict[str, Any]) -> asyncio.Transport:
    """Give a client's protocol its connection, after the handshake of TLS if there is one; return its transport.

    :param options: those of `create_connection`
    :raises ssl.SSLError: the handshake has failed
    """
    if not options.get("ssl"):
        transport.begin(protocol)
        return transport
    if options["ssl"] is True:
        raise NotSimulatedError("ssl=True: the virtual loop needs an SSLContext")
    loop = transport.loop
    waiter = loop.create_future()
    protected = secured(loop, protocol, waiter, options, server=False)
    transport.begin(protected)
    try:
        await waiter
    except BaseException:
        transport.abort()
        raise
    plain: asyncio.Transport = protected._app_transport
    return plain
