"""The recorder: a proxy between Kafka clients and their brokers that writes down what they say.

Laws:

* Traffic never suffers from the recording. Files are written by another thread; if the disk cannot keep up, frames are
  not recorded (`Counters.not_recorded`), and if it fails, nothing is recorded any more, which is said as an error and
  stays in `Proxy.failure`. Clients notice neither.
* What is recorded is what went over the broker's side, byte for byte.
* Clients come back: every broker that an answer names has a port of the proxy, the same one as long as the proxy runs,
  and its address is put in the place of the broker's. An answer that cannot be changed goes through as it is, which is
  said once per api and reason.
* A broker that cannot be reached, and bytes that are not Kafka's, cost their connection and a line in the log.

The bytes themselves are relay.py's, the addresses in answers addresses.py's.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, Self

from kcoord_wire.background import Background
from kcoord_wire.net import parse_address
from kcoord_wire.recorder.recording import Batch, Direction, RecordingWriter
from kcoord_wire.recorder.relay import Limits, Relay, address_text, api_text, plan_of

__all__ = ["Counters", "Limits", "Proxy", "Recorder"]

FLUSH_SECONDS: Final = 0.005
HELD_FOR_DISK: Final = 64 << 20  # bytes; frames beyond are not recorded
MAX_BROKERS: Final = 1000
BACKLOG: Final = 1024
GRACE_SECONDS: Final = 1.0
LINES, LINES_SECONDS = 20, 10.0  # what peers make us say must not fill a disk
WILDCARDS: Final = frozenset(("", "0.0.0.0", "::"))

_log = logging.getLogger("kcoord_wire.capture")
_log.addHandler(logging.NullHandler())  # whoever wants to read it says so


@dataclass(slots=True)
class Counters:
    """What has passed since the proxy began.

    :ivar connections: of clients; `open` are there now
    :ivar unreachable: of these, for how many there was no broker
    :ivar foreign: of these, on how many something other than Kafka was spoken
    :ivar requests: frames seen, as are `responses`
    :ivar request_bytes: that clients sent, as brokers did `response_bytes`
    :ivar rewritten: answers with other addresses
    :ivar not_rewritten: answers that should have been, but could not
    :ivar recorded: records written, openings and closings included; `recorded_bytes` together
    :ivar not_recorded: frames that were due to be, but the disk was too slow or had failed
    :ivar cut: frames of which only the beginning was recorded
    """

    connections: int = 0
    open: int = 0
    unreachable: int = 0
    foreign: int = 0
    requests: int = 0
    responses: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    rewritten: int = 0
    not_rewritten: int = 0
    recorded: int = 0
    recorded_bytes: int = 0
    not_recorded: int = 0
    cut: int = 0


class _Tape:
    """The recording, as the event loop sees it: takes frames at once, and has a thread write them a little later."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: RecordingWriter, proxy: Proxy) -> None:
        self._loop = loop
        self._writer = writer
        self._proxy = proxy
        self._batches: queue.SimpleQueue[tuple[list[Batch], int] | None] = queue.SimpleQueue()
        self._taken = 0  # bytes given to the thread
        self._written = 0  # by the thread
        self._flushing = self._failed = self._slow = False
        self._thread = threading.Thread(target=self._run, name="kcoord-tape", daemon=True)
        self._thread.start()

    def opened(self, connection: int, name: str) -> None:
        if not self._failed:
            self._writer.opened(connection, name, time.time_ns())
            self._flush_soon()

    def closed(self, connection: int) -> None:
        if not self._failed:
            self._writer.closed(connection, time.time_ns())
            self._flush_soon()

    def frame(self, connection: int, direction: Direction, body: bytes, time_ns: int, size: int) -> None:
        counters = self._proxy.counters
        if self._failed or self._taken - self._written + self._writer.held > HELD_FOR_DISK:
            counters.not_recorded += 1
            if not self._failed and not self._slow:
                self._slow = True
                _log.error("the disk is too slow for the recording: frames are not recorded until it has caught up")
            return
        self._writer.frame(connection, direction, body, time_ns, size=size)
        counters.cut += len(body) < size
        if not self._flushing:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._hand_over()
        self._proxy.counters.recorded = self._writer.records
        self._proxy.counters.recorded_bytes = self._writer.size
        if self._slow and self._taken - self._written < HELD_FOR_DISK // 2:
            self._slow = False
            _log.warning(
                "the disk has caught up: frames are recorded again; %d were not", self._proxy.counters.not_recorded
            )

    def _hand_over(self) -> None:
        if not self._failed:
            held = self._writer.held
            self._taken += held
            self._batches.put((self._writer.take(), held))

    def _run(self) -> None:
        while (given := self._batches.get()) is not None:
            batches, size = given
            try:
                self._writer.write(batches)
            except OSError as error:
                with suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._fail, error)
                break
            self._written += size

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            self._proxy.failure = error
            _log.error("nothing is recorded any more: %s: %s", self._writer.folder, error.strerror or error)

    async def close(self) -> None:
        """Write what is held, and close the file."""
        self._flush()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)
        try:
            self._writer.close()
        except OSError as error:
            self._fail(error)
        await asyncio.sleep(0)  # what the thread had to say comes before this


class Proxy:
    """A recording proxy in the running event loop: ``async with Proxy("127.0.0.1:9092", folder=...) as proxy``.

    :param upstream: a broker, as ``HOST:PORT``
    :param listen: where clients connect, as ``HOST:PORT``; port 0 takes a free one
    :param folder: of the recording; None records nothing
    :param apis: ``group`` records what tells of groups (`relay.GROUP_APIS`), ``all`` everything but passwords
    :param rewrite: whether to put the proxy's addresses in the place of the brokers'
    :param ports: first and last port for the brokers that answers name; None takes free ones
    :param advertise: the host that clients are told; by default that of `listen`, or where it listens on every
        address, the one that the client has used
    :param tls: speak TLS with the brokers
    :param max_file_bytes: as for `RecordingWriter`, as are `max_file_seconds` and `fsync`
    :ivar failure: why nothing is recorded any more
    :raises ValueError: an address or a port is none
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
        limits: Limits | None = None,
        max_file_bytes: int = 256 << 20,
        max_file_seconds: float | None = None,
        fsync: bool = False,
    ) -> None:
        if apis not in ("group", "all"):
            raise ValueError(f"apis is 'group' or 'all', not {apis!r}")
        if ports is not None and not 0 < ports[0] <= ports[1] <= 65_535:
            raise ValueError(f"ports must be a first and a last one, not {ports}")
        self.upstream = parse_address(upstream)
        if not self.upstream[1]:
            raise ValueError("nobody can connect to port 0")
        self.host, self.port = parse_address(listen)
        self.tls = tls
        self.limits = limits or Limits()
        self.rewrites = rewrite
        self.records_all = apis == "all"
        self.plan = plan_of(apis, rewrite=rewrite)
        self.counters = Counters()
        self.failure: OSError | None = None
        self.held = 0  # bytes of frames in progress
        self.tape: _Tape | None = None
        self.loop: asyncio.AbstractEventLoop
        self._writer: Callable[[], RecordingWriter] | None = None
        if folder is not None:
            limit, age = max_file_bytes, max_file_seconds
            self._writer = partial(
                RecordingWriter, folder, max_file_bytes=limit, max_file_seconds=age, fsync=fsync, flush_at=None
            )
        self._ports = ports
        self._advertise = advertise or (None if self.host in WILDCARDS else self.host)
        self._addresses: list[tuple[socket.AddressFamily, str]] = []  # that the host stands for
        self._brokers: dict[tuple[str, int], int | None] = {}  # and the port at which each is reached
        self._servers: list[asyncio.Server] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._relays: set[Relay] = set()
        self._number = 0
        self._said: set[tuple[int, str]] = set()
        self._lines, self._lines_since = LINES, 0.0
        self._closed = False

    # ---- life

    async def start(self) -> None:
        """Open the port and the recording.

        :raises OSError: the port is taken, the host is none of ours, or the folder cannot be used
        """
        self.loop = asyncio.get_running_loop()
        found = await self.loop.getaddrinfo(
            self.host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self._addresses = list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))
        sockets = self._bind(self.port)
        try:
            if self._writer:
                self.tape = _Tape(self.loop, self._writer(), self)
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
        for relay in list(self._relays):
            relay.close()
        until = time.monotonic() + GRACE_SECONDS
        while self._relays and time.monotonic() < until:
            await asyncio.sleep(0.01)
        for relay in list(self._relays):
            relay.close(at_once=True)
        while self._relays and time.monotonic() < until + GRACE_SECONDS:
            await asyncio.sleep(0.01)
        if self.tape is not None:
            await self.tape.close()

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
        return address_text({"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host), self.port)

    @property
    def brokers(self) -> dict[str, int]:
        """The brokers that are reached through the proxy, as ``HOST:PORT``, and at which of its ports each."""
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
            self._servers.append(await self.loop.create_server(lambda: Relay(self, broker).client, sock=each))

    def _open(self, broker: tuple[str, int]) -> int | None:
        """A port of ours for a broker. Connections wait in it until it is served."""
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
                _log.error("no port can be opened for the broker at %s: %s", address_text(*broker), error)
                return None
            task = self.loop.create_task(self._serve(sockets, broker))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            chosen: int = sockets[0].getsockname()[1]
            _log.info("the broker at %s is reached at port %d", address_text(*broker), chosen)
            return chosen
        return None

    def replacement(self, host: str, port: int, *, host_of_client: str) -> tuple[str, int] | None:
        """What a client is told in the place of a broker's address; None if there is no port left for it."""
        broker = host, port
        if broker not in self._brokers and not self._closed:
            self._brokers[broker] = self._open(broker)
            if self._brokers[broker] is None:
                self.complain(
                    f"no port is left for the broker at {address_text(*broker)}: clients go past the recorder"
                )
        ours = self._brokers.get(broker)
        return None if ours is None else (self._advertise or host_of_client, ours)

    # ---- what relays tell

    def next_number(self) -> int:
        """The number of a new connection."""
        self._number += 1
        return self._number

    def joined(self, relay: Relay) -> None:
        """A client has connected."""
        self._relays.add(relay)
        self.counters.connections += 1
        self.counters.open += 1

    def left(self, relay: Relay) -> None:
        """A client and its broker have gone."""
        if relay in self._relays:
            self._relays.discard(relay)
            self.counters.open -= 1

    def cannot_rewrite(self, api_key: int, version: int, why: str) -> None:
        """An answer goes through with the brokers' own addresses."""
        self.counters.not_rewritten += 1
        if (api_key, why) not in self._said and len(self._said) < 100:
            self._said.add((api_key, why))
            self.complain(f"addresses in a {api_text(api_key, version)} response are left as they are: {why}")

    def complain(self, text: str) -> None:
        """A line in the log, if there were not too many."""
        now = time.monotonic()
        if now - self._lines_since >= LINES_SECONDS:
            self._lines, self._lines_since = LINES, now
        self._lines -= 1
        if self._lines >= 0:
            _log.warning("%s", text)


class Recorder:
    """A `Proxy` with a thread and an event loop of its own, for code that blocks::

        with Recorder(upstream="127.0.0.1:9092", folder="recording") as recorder:
            consumer = Consumer({"bootstrap.servers": recorder.address, ...})

    :raises ValueError: as `Proxy`, which takes the same arguments
    """

    def __init__(self, upstream: str, **options: Any) -> None:
        self.proxy = Proxy(upstream, **options)
        self._life = Background("recorder", self._serve, thread="kcoord-record")

    def start(self) -> Self:
        """Open the port and the recording. Errors as `Proxy.start`; RuntimeError: it was started before."""
        self._life.start()
        return self

    def stop(self) -> None:
        """Close everything in order. A second call does nothing. RuntimeError: it does not end."""
        self._life.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has been stopped, from another thread or by a signal's exception; whether it has."""
        return self._life.wait(seconds)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """What clients connect to: ``HOST:PORT``."""
        return self.proxy.address

    @property
    def counters(self) -> Counters:
        """What has passed; the numbers go on changing while it runs."""
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
