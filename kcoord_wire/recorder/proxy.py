"""The recorder: a proxy between Kafka clients and their brokers that records what they send each other.

Laws:

* Recording never delays traffic. A thread writes the files (`RecordingThread`); if the disk cannot keep up, frames are
  not recorded (`Counters.not_recorded`), and if it fails, nothing is recorded any more (`Proxy.failure`).
* What is recorded is what passed on the broker's side, byte for byte.
* Clients stay on the proxy: every broker that a response names has a port of the proxy, the same one as long as the
  proxy runs, whose address replaces the broker's. A response that cannot be rewritten passes as it is, which is logged
  once per api and reason.
* A broker that cannot be reached, or bytes that are not Kafka's, cost their connection and a line in the log.

`relay` passes the bytes, `bodies` rewrites responses, `counters` has what all relays share.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, Self

from kcoord_wire.kernel.background import Background, Service
from kcoord_wire.kernel.net import WILDCARD_HOSTS, address_text, local_address, parse_address
from kcoord_wire.kernel.peers import BACKLOG, all_closed
from kcoord_wire.recorder.counters import Counters, RecordingThread, RelayContext, RelayLimits, log
from kcoord_wire.recorder.recording import RecordingWriter
from kcoord_wire.recorder.relay import Relay

MAX_BROKERS: Final = 1000
GRACE_MS: Final = 1_000
_LARGEST_PORT: Final = 65_535


class Proxy:
    """A recording proxy in the running event loop: ``async with Proxy("127.0.0.1:9092", folder=...) as proxy``.

    :param upstream: a broker, as ``HOST:PORT``
    :param listen: where clients connect, as ``HOST:PORT``; port 0 takes a free one
    :param folder: of the recording; None records nothing
    :param apis: ``group`` records the apis of consumer groups (`counters.GROUP_APIS`), ``all`` everything but passwords
    :param rewrite: whether to replace the brokers' addresses in responses by the proxy's
    :param ports: first and last port for the brokers that responses name; None takes free ones
    :param advertise: the host in these addresses; by default that of `listen`, or if it listens on every address, the
        one that the client has connected to
    :param tls: use TLS to the brokers
    :param limits: on the memory of connections
    :param max_file_bytes: as for `RecordingWriter`
    :param max_file_seconds: as for `RecordingWriter`
    :param fsync: as for `RecordingWriter`
    :ivar upstream: host and port of the first broker
    :ivar host: where clients connect
    :ivar port: where clients connect; the one in use once the proxy has started
    :ivar context: what the relays share
    :ivar failure: why nothing is recorded any more
    :raises ValueError: an address or a port is not one
    """

    def __init__(
        self,
        upstream: str,
        *,
        listen: str = "127.0.0.1:0",
        folder: str | PathLike[str] | None = None,
        apis: Literal["group", "all"] = "group",
        rewrite: bool = True,
        ports: tuple[int, int] | None = None,
        advertise: str | None = None,
        tls: ssl.SSLContext | None = None,
        limits: RelayLimits | None = None,
        max_file_bytes: int = 256 << 20,
        max_file_seconds: float | None = None,
        fsync: bool = False,
    ) -> None:
        if apis not in ("group", "all"):
            raise ValueError(f"apis is 'group' or 'all', not {apis!r}")
        if ports is not None and not 0 < ports[0] <= ports[1] <= _LARGEST_PORT:
            raise ValueError(f"ports must be a first and a last one, not {ports}")
        self.upstream = parse_address(upstream)
        if not self.upstream[1]:
            raise ValueError("port 0 cannot be connected to")
        self.host, self.port = parse_address(listen)
        self.failure: OSError | None = None
        self.context = RelayContext(
            apis=apis, rewrites=rewrite, tls=tls, limits=limits or RelayLimits(), replacement=self._replacement
        )
        self.loop: asyncio.AbstractEventLoop
        self._writer: Callable[[], RecordingWriter] | None = None
        if folder is not None:
            limit, age = max_file_bytes, max_file_seconds
            self._writer = partial(
                RecordingWriter, folder, max_file_bytes=limit, max_file_seconds=age, fsync=fsync, flush_at=None
            )
        self._ports = ports
        self._advertise = advertise or (None if self.host in WILDCARD_HOSTS else self.host)
        self._addresses: list[tuple[socket.AddressFamily, str]] = []  # that the host resolves to
        self._brokers: dict[tuple[str, int], int | None] = {}  # and the port of the proxy for each
        self._servers: list[asyncio.Server] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._closed = False

    # ---- start and end

    async def start(self) -> None:
        """Open the port and the recording.

        :raises OSError: the port is taken, the host is not one of this machine, or the folder cannot be used
        """
        self.loop = self.context.loop = asyncio.get_running_loop()
        found = await self.loop.getaddrinfo(
            self.host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self._addresses = list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))
        sockets = self._bind(self.port)
        try:
            if self._writer:
                self.context.recording = RecordingThread(self.loop, self._writer(), self.counters, self._fail)
        except BaseException:
            for each in sockets:
                each.close()
            raise
        self.port = sockets[0].getsockname()[1]
        self._brokers[self.upstream] = self.port
        await self._serve(sockets, self.upstream)

    async def close(self) -> None:
        """Close everything in order, the file last; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for server in self._servers:
            server.close()
        for relay in list(self.context.relays):
            relay.close()
        await all_closed(self.context.relays, GRACE_MS)
        for relay in list(self.context.relays):
            relay.close(at_once=True)
        await all_closed(self.context.relays, GRACE_MS)
        if self.context.recording is not None:
            await self.context.recording.close()

    def _fail(self, error: OSError) -> None:
        self.failure = error

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """What clients connect to: ``HOST:PORT``."""
        return local_address(self.host, self.port)

    @property
    def counters(self) -> Counters:
        """The traffic so far; the numbers go on changing."""
        return self.context.counters

    @property
    def brokers(self) -> dict[str, int]:
        """The brokers that are reached through the proxy, as ``HOST:PORT``, and the port of the proxy for each."""
        return {address_text(*broker): port for broker, port in self._brokers.items() if port is not None}

    # ---- ports

    def _bind(self, port: int) -> list[socket.socket]:
        """Sockets at a port on each address of the host; 0 takes a free one."""
        sockets: list[socket.socket] = []
        try:
            for family, host in self._addresses:
                bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
                bound.setblocking(False)
                sockets.append(bound)
                port = bound.getsockname()[1]
        except OSError:
            for each in sockets:
                each.close()
            raise
        return sockets

    async def _serve(self, sockets: list[socket.socket], broker: tuple[str, int]) -> None:
        for each in sockets:
            self._servers.append(await self.loop.create_server(lambda: Relay(self.context, broker).client, sock=each))

    def _open(self, broker: tuple[str, int]) -> int | None:
        """Open a port for a broker and return it, None if there is none. Connections queue there until it is served."""
        if len(self._brokers) >= MAX_BROKERS:
            return None
        for port in (0,) if self._ports is None else range(self._ports[0], self._ports[1] + 1):
            if port and port in self._brokers.values():
                continue
            try:
                sockets = self._bind(port)
            except OSError as error:
                if port and error.errno == errno.EADDRINUSE:
                    continue
                log.error("no port can be opened for the broker at %s: %s", address_text(*broker), error)
                return None
            task = self.loop.create_task(self._serve(sockets, broker))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            chosen: int = sockets[0].getsockname()[1]
            log.info("the broker at %s is reached at port %d", address_text(*broker), chosen)
            return chosen
        return None

    def _replacement(self, host: str, port: int, host_of_client: str) -> tuple[str, int] | None:
        """The address for a client in place of a broker's; None if no port is left for it."""
        broker = host, port
        if broker not in self._brokers and not self._closed:
            self._brokers[broker] = self._open(broker)
            if self._brokers[broker] is None:
                text = f"no port is left for the broker at {address_text(*broker)}: clients bypass the recorder"
                self.context.warn(text)
        ours = self._brokers.get(broker)
        return None if ours is None else (self._advertise or host_of_client, ours)


class Recorder(Service):
    """A `Proxy` in a thread with its own event loop, for code that blocks::

        with Recorder(upstream="127.0.0.1:9092", folder="recording") as recorder:
            consumer = Consumer({"bootstrap.servers": recorder.address, ...})

    :param upstream: as for `Proxy`, like all other arguments
    :ivar proxy: the proxy; its attributes may be read from any thread
    :raises ValueError: as `Proxy`
    """

    def __init__(self, upstream: str, **options: Any) -> None:
        self.proxy = Proxy(upstream, **options)
        self._life = Background("recorder", self._serve, thread="kcoord-record")

    def start(self) -> Self:
        """Open the port and the recording.

        :raises OSError: as `Proxy.start`
        :raises RuntimeError: it was started before
        """
        self._life.start()
        return self

    def stop(self) -> None:
        """Close everything in order; a second call does nothing.

        :raises RuntimeError: it does not end
        """
        self._life.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until another thread or a signal has stopped it, or for `seconds`; return whether it has stopped.

        :raises BackgroundError: an error has ended it
        """
        return self._life.wait(seconds)

    @property
    def address(self) -> str:
        """What clients connect to: ``HOST:PORT``."""
        return self.proxy.address

    @property
    def counters(self) -> Counters:
        """The traffic so far; the numbers go on changing while it runs."""
        return self.proxy.counters

    @property
    def failure(self) -> OSError | None:
        """Why nothing is recorded any more."""
        return self.proxy.failure

    async def _serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        await self.proxy.start()
        try:
            ready()
            await stopping.wait()
        finally:
            await self.proxy.close()
