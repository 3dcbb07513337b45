"""The network of a virtual world: names, connections, latency, and faults with a beginning and an end.

Laws:

* A name that no host has is an error of DNS; a port that no host listens on is refused.
* An attempt to connect that is dropped is repeated after 1, 2, 4 ... s and ends with ETIMEDOUT after 127 s, as on Linux
  (``tcp_syn_retries``).
* The draws of one connection do not depend on what happens on others.

Laws of servers, which `create_server` returns:

* A server takes connections as the process that made it, with TLS if it has a context.
* `MemoryServer.close` ends the listening; connections that were accepted stay open.

Laws of connections, which behave as those of TCP:

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
import socket
from asyncio import sslproto
from collections import deque
from collections.abc import Callable
from errno import EADDRINUSE, EADDRNOTAVAIL, ECONNABORTED, ECONNREFUSED, ECONNRESET, ETIMEDOUT
from random import Random
from typing import Any, Final, NamedTuple

from kcoord_wire.kernel.virtual.loop.loop import CURRENT, KERNEL, Host, NotSimulatedError, VirtualLoop

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


class BoundSocket:
    """What a program asks a listening socket for: its address."""

    def __init__(self, address: str, port: int) -> None:
        self._name = (address, port)

    def getsockname(self) -> tuple[str, int]:
        """Return address and port."""
        return self._name

    def fileno(self) -> int:
        """There is no file.

        :raises NotSimulatedError: always
        """
        raise NotSimulatedError("a socket of the virtual loop has no file descriptor")


class MemoryServer(asyncio.AbstractServer):
    """What `create_server` returns.

    :ivar sockets: one `BoundSocket`; empty once it is closed
    """

    def __init__(self, loop: VirtualLoop, host: Host, port: int, factory: Any, options: dict[str, Any]) -> None:
        self.sockets: tuple[BoundSocket, ...] = (BoundSocket(host.address, port),)
        self._loop = loop
        self._host = host
        self._port = port
        self._factory = factory
        self._options = options
        self._serving = False
        self._closed = loop.create_future()
        if options.get("start_serving", True):
            self._listen()

    def _listen(self) -> None:
        self._serving = True
        self._host.listeners[self._port] = self

    def accept(self, transport: MemoryTransport) -> None:
        """Take a connection; called as the server's process."""
        protocol = self._factory()
        if self._options.get("ssl") is not None:
            protocol = secured(self._loop, protocol, None, self._options, server=True)
        transport.begin(protocol)

    def get_loop(self) -> VirtualLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._serving

    def close(self) -> None:
        if self._host.listeners.get(self._port) is self:
            del self._host.listeners[self._port]
        self._serving = False
        self.sockets = ()
        if not self._closed.done():
            self._closed.set_result(None)

    async def start_serving(self) -> None:
        if not self._serving:
            self._listen()

    async def serve_forever(self) -> None:
        self._listen()
        try:
            await asyncio.shield(self._closed)
        finally:
            self.close()

    async def wait_closed(self) -> None:
        """Wait until the server listens no more; its connections may be open still, as in Python 3.11."""
        await asyncio.shield(self._closed)


ANY: Final = "*"
"""In a fault: every host."""

ATTEMPTS: Final = 7
FIRST_PORT: Final = 32_768  # of the ephemeral ports of Linux
LAST_PORT: Final = 60_999
_LOCAL: Final = ("localhost", "::1", "::", "")
_HOSTS: Final = 250  # addresses per value of the third octet: 10.0.1.2 to 10.0.1.251


class _Fault(NamedTuple):
    """Something wrong with the packets from `source` to `target`, until a time of the loop."""

    source: str
    target: str
    until: float
    drop: float = 0.0
    delay_s: float = 0.0
    refuse: bool = False


class VirtualNetwork:
    """Connects the hosts of a world. Faults are set now, or at a time by `VirtualWorld.at`; each ends by itself.

    :param record: called with a host, what it does, and a detail
    :param latency_ms: least and most that a packet takes; on one host it takes none
    :ivar taps: called with ms since the Unix epoch, the connection's name, whether the client sends, and the bytes,
        as a capture on the server's machine would have them; the bytes are empty at the end
    """

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        record: Callable[..., None],
        wall_ms: Callable[[], int],
        latency_ms: tuple[float, float],
    ) -> None:
        self.loop = loop
        self.hosts: dict[str, Host] = {}
        self.taps: list[Callable[[int, str, bool, bytes], None]] = []
        self._record = record
        self._wall_ms = wall_ms
        self._seed = seed
        self._latency_ms = latency_ms
        self._faults: list[_Fault] = []
        self._connections = 0

    # ---- faults

    def cut(self, a: str, b: str, seconds: float, *, one_way: bool = False) -> None:
        """Drop all packets between two hosts, or from `a` to `b` alone; `ANY` is all others."""
        self.lose(a, b, seconds, 1.0, one_way=one_way)

    def lose(self, a: str, b: str, seconds: float, drop: float, *, one_way: bool = False) -> None:
        """Drop packets between two hosts, each with probability `drop`; TCP sends them again."""
        self._add("cut" if drop >= 1 else f"loses {drop:g}", a, b, seconds, one_way, drop=drop)

    def delay(self, a: str, b: str, seconds: float, by: float, *, one_way: bool = False) -> None:
        """Let packets between two hosts take `by` seconds longer."""
        self._add(f"delayed by {by:g} s", a, b, seconds, one_way, delay_s=by)

    def refuse(self, host: str, seconds: float) -> None:
        """Let a host refuse new connections; those that are open stay."""
        self._add("refuses", ANY, host, seconds, True, refuse=True)

    def reset(self, a: str, b: str) -> None:
        """Reset all connections between two hosts, on both sides, as a firewall that forgets them."""
        self._record("network", "resets", f"{a} - {b}")
        for host in list(self.hosts.values()):
            for transport in list(host.process.transports):
                if _matches(a, b, host, transport.peer.host) or _matches(b, a, host, transport.peer.host):
                    transport.was_reset()

    def heal(self) -> None:
        """End all faults."""
        self._faults.clear()

    def _add(self, what: str, a: str, b: str, seconds: float, one_way: bool, **kind: Any) -> None:
        for name in (a, b):
            if name != ANY and name not in self.hosts:
                raise ValueError(f"there is no host {name!r}")
        self._record("network", what, f"{a} {'>' if one_way else '-'} {b} for {seconds:g} s")
        now = self.loop.time()
        self._faults = [fault for fault in self._faults if fault.until > now]
        self._faults.append(_Fault(a, b, now + seconds, **kind))
        if not one_way:
            self._faults.append(_Fault(b, a, now + seconds, **kind))

    def _on(self, source: Host, target: Host) -> list[_Fault]:
        now = self.loop.time()
        return [
            fault
            for fault in self._faults
            if fault.until > now and _matches(fault.source, fault.target, source, target)
        ]

    def drops(self, source: Host, target: Host, random: Random) -> bool:
        """Decide whether a packet that is sent now gets lost."""
        return any(fault.drop >= 1 or random.random() < fault.drop for fault in self._on(source, target) if fault.drop)

    def latency(self, source: Host, target: Host, random: Random) -> float:
        """Draw how long a packet takes, in seconds."""
        if source is target:
            return 0.0
        return random.uniform(*self._latency_ms) / 1000 + sum(fault.delay_s for fault in self._on(source, target))

    # ---- what happens

    def record(self, host: Host, what: str, detail: str) -> None:
        """Add a line to the world's trace."""
        self._record(host.name, what, detail)

    def tap(self, connection: str, from_client: bool, data: bytes) -> None:
        """Show bytes to the taps."""
        for tap in self.taps:
            tap(self._wall_ms(), connection, from_client, data)

    # ---- names and connections

    def add_host(self, name: str, make: Callable[[str, str], Host]) -> Host:
        """Return the host of a name; it is made, with the next address, if there is none."""
        if name not in self.hosts:
            network, last = divmod(len(self.hosts), _HOSTS)
            self.hosts[name] = make(name, f"10.0.{network + 1}.{last + 2}")
        return self.hosts[name]

    def _here(self) -> Host:
        process = CURRENT.get()
        if process is None:
            raise RuntimeError("connections belong to a host: use Host.start or Host.call")
        return process.host

    def _resolve(self, name: Any) -> Host:
        text = name.decode() if isinstance(name, bytes) else name
        if text is None or text in _LOCAL or text.startswith("127.") or text == "0.0.0.0":
            return self._here()
        for host in self.hosts.values():
            if text in (host.name, host.address):
                return host
        raise socket.gaierror(socket.EAI_NONAME, f"no host is named {text!r}")

    def addresses(self, name: Any, port: Any) -> list[tuple[Any, ...]]:
        """Answer getaddrinfo: one stream socket.

        :raises socket.gaierror: no host has the name
        """
        address = self._resolve(name).address
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))]

    def listen(self, factory: Any, name: Any, port: Any, **options: Any) -> MemoryServer:
        """Open a port of the host whose process calls."""
        if options.get("sock") is not None:
            raise NotSimulatedError("create_server with a socket of the operating system")
        here = self._here()
        if self._resolve(name) is not here:
            raise OSError(EADDRNOTAVAIL, f"{name} is not an address of {here.name}")
        if port and port in here.listeners:
            raise OSError(EADDRINUSE, f"port {port} of {here.name} is in use")
        return MemoryServer(self.loop, here, port or self._free_port(here), factory, options)

    def _free_port(self, host: Host) -> int:
        host.last_port = max(FIRST_PORT, (host.last_port + 1) % (LAST_PORT + 1))
        while host.last_port in host.listeners:
            host.last_port += 1
        return host.last_port

    async def connect(self, factory: Any, name: Any, port: Any, **options: Any) -> tuple[asyncio.Transport, Any]:
        """Open a connection from the host whose process calls.

        :raises OSError: the name is unknown, or the attempt is refused, or gets no answer for 127 s
        """
        if options.get("sock") is not None:
            raise NotSimulatedError("create_connection with a socket of the operating system")
        here, there = self._here(), self._resolve(name)
        self._connections += 1
        number = self._connections
        connection = f"{here.address}:{self._free_port(here)}-{there.address}:{port}#{number}"
        random = Random((self._seed << 32) + number)
        self.record(here, "connects", f"{there.name}:{port} {connection}")
        await self._reach(here, there, random)
        server = there.listeners.get(int(port))
        if server is None or not there.process.is_alive or any(fault.refuse for fault in self._on(here, there)):
            self.record(here, "is refused", connection)
            raise ConnectionRefusedError(ECONNREFUSED, f"{there.name}:{port} refuses the connection")
        client = MemoryTransport(self, here, connection, random, is_client=True)
        accepted = MemoryTransport(self, there, connection, random, is_client=False)
        client.peer, accepted.peer = accepted, client
        self.record(there, "accepts", connection)
        accepted.plan(server.accept, accepted)
        protocol = factory()
        return await begin_client(client, protocol, {"server_hostname": name, **options}), protocol

    async def _reach(self, here: Host, there: Host, random: Random) -> None:
        """Let the handshake pass, or fail."""
        for attempt in range(ATTEMPTS):
            if not (self.drops(here, there, random) or self.drops(there, here, random)):
                await asyncio.sleep(self.latency(here, there, random) + self.latency(there, here, random))
                return
            await asyncio.sleep(2**attempt)
        raise TimeoutError(ETIMEDOUT, f"{there.name} does not answer")


def _matches(a: str, b: str, source: Host, target: Host) -> bool:
    return a in (ANY, source.name) and b in (ANY, target.name)
