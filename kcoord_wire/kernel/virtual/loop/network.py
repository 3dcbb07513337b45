"""The network of a virtual world: names, connections, latency, and faults with a beginning and an end.

Laws:

* A name that no host has is an error of DNS; a port that no host listens on is refused.
* An attempt to connect that is dropped is repeated after 1, 2, 4 ... s and ends with ETIMEDOUT after 127 s, as on Linux
  (``tcp_syn_retries``).
* The draws of one connection do not depend on what happens on others.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from errno import EADDRINUSE, EADDRNOTAVAIL, ECONNREFUSED, ETIMEDOUT
from random import Random
from typing import Any, Final, NamedTuple

from kcoord_wire.kernel.virtual.loop.hosts import CURRENT, Host
from kcoord_wire.kernel.virtual.loop.loop import NotSimulatedError, VirtualLoop
from kcoord_wire.kernel.virtual.loop.servers import MemoryServer
from kcoord_wire.kernel.virtual.loop.transports import MemoryTransport, begin_client

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
