"""The coordinator on a socket: connections in and out of one asyncio loop, and what becomes of each request.

Laws:

* One request of a connection is in hand at a time; the next frame is looked at when the former has been answered, or
  dropped by a fault. So answers come in the order of the requests, and a parked JoinGroup holds up its own connection
  and no other.
* Every byte held for a peer is bounded, alone and in sum: frames by `PeerLimits.max_frame_size`, what waits behind a
  request by `PeerLimits.read_ahead` (the socket is not read beyond it), answers that are not read by
  `PeerLimits.write_high_water` (the next request waits),
  all of it by `PeerLimits.max_bytes_held` (the greatest holder goes).
* Time is bounded too: a frame, an answer, an authentication that does not get on, and an idle connection all end.
* Bytes that are no request close their connection, as Kafka's broker does: no exception leaves a callback, and no
  other connection is touched.
* An answer that promises durability leaves after the append it waits for is on disk. One sync runs at a time, in
  another thread; whatever came in the meantime goes into the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from kcoord_wire.coordinator.connection import HELD, Connection, Form, PeerLimits, form_of
from kcoord_wire.coordinator.core.error_responses import refusal
from kcoord_wire.coordinator.core.events import Event, Phase, RebalanceAccount, RebalanceReport, Reply, Request, Tick
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.fault_injection import CLEAN, Faults, Injection
from kcoord_wire.coordinator.faulted_exchange import FaultedExchange
from kcoord_wire.coordinator.log.store import CorruptLogError, Store, Sync
from kcoord_wire.coordinator.metrics import GroupCounts, Metrics, describe_rebalance
from kcoord_wire.coordinator.permissions import ANONYMOUS, Permissions
from kcoord_wire.coordinator.runtime import Runtime
from kcoord_wire.coordinator.security import Session, Users
from kcoord_wire.coordinator.topics.topics import SERVED, Topics
from kcoord_wire.disk import Disk, MemoryDisk
from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.errors import DecodeError
from kcoord_wire.messages.produce import ProduceRequest
from kcoord_wire.messages.sasl_handshake import SaslHandshakeRequest
from kcoord_wire.net import LogLimiter

__all__ = ["PeerLimits", "Server"]

API_VERSIONS = 18
JOIN_GROUP = 11
MAX_NAME = 0x7FFF - 37  # bytes: what a member id is made of, a dash and a UUID behind it
MAX_NAMES = 20_000  # in one request: a name takes a byte of the frame, and up to a kilobyte of objects in the answer
NAMES = {9: "groups", 10: "coordinator_keys", 13: "members", 15: "groups", 42: "groups_names"}  # by api key
SASL_APIS = frozenset({17, 36})
SPARE_FILES = 64
BACKLOG = 1024
ACCEPT_AT_ONCE = 64  # connections, before others have their turn
ACCEPT_AGAIN_SECONDS = 1.0  # after the machine has refused one
REMEMBERED_JOINS = 100_000  # the account of a rebalance of 5,000 members takes half a megabyte
RELOAD_MS = (500, 30_000)  # after the log has failed: first and longest pause before it is read again

_log = logging.getLogger("kcoord_wire.coordinator")
_log.addHandler(logging.NullHandler())  # whoever wants to read it says so


class Server:
    """All connections of a coordinator, in one event loop.

    :param disk: the store's; what is in memory is written at once, without another thread
    :ivar rebalances: the accounts of the last rebalances that have ended, `REMEMBERED_JOINS` joins in all
    """

    def __init__(
        self,
        machine: GroupMachine,
        store: Store,
        topics: Topics,
        *,
        disk: Disk,
        users: Users | None = None,
        permissions: Permissions | None = None,
        faults: Faults | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        self.limits = limits or PeerLimits()
        self.topics = topics
        self.users = users
        self.permissions = permissions
        self.faults = faults
        self.runtime = Runtime(machine, store, self._send, self._account)
        self._group_requests = machine.serves  # all others are the topics'
        self.rebalances: deque[RebalanceAccount] = deque()
        self._remembered = 0  # joins in there
        self.connections: set[Connection] = set()
        self.forms: dict[int, Form] = {}
        self.ready: deque[Connection] = deque()  # answered in another's turn, with more frames waiting
        self.pumping: Connection | None = None
        self.metrics = Metrics()
        self.metrics.read_groups = self._count_groups
        self.api_versions_fallback = form_of(API_VERSIONS, 0)
        self._store = store
        self._waiting: dict[int, Connection] = {}
        self._token = 0
        self._settling = False
        self._held = 0
        self._epoch = time.time() - time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._most = self.limits.max_connections
        self._sweeper: asyncio.TimerHandle | None = None
        self._disk = disk
        self._in_memory = isinstance(disk, MemoryDisk)
        self._threads = ThreadPoolExecutor(2, "kcoord-log")
        self._synced_to = 0
        self._syncing: asyncio.Future[None] | None = None
        self._compacting: asyncio.Future[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._listener: asyncio.Server | None = None
        self._doors: list[socket.socket] = []
        self._handshakes: dict[Connection, asyncio.Task[None]] = {}
        self._stopping = False
        self._started_at = self.now()
        self._complaints = LogLimiter()

    def now(self) -> int:
        """Milliseconds since the epoch; runs on evenly when the clock of the machine is set."""
        return int((self._epoch + time.monotonic()) * 1000)

    # ---- life

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the sockets, and give the port: group requests are answered COORDINATOR_LOAD_IN_PROGRESS until `load`.

        :raises OSError: it is taken, or the host is none of ours
        """
        loop = self._loop = asyncio.get_running_loop()
        make = partial(Connection, self)
        listener = await loop.create_server(make, host, port, backlog=BACKLOG, start_serving=tls is None)
        chosen: int = listener.sockets[0].getsockname()[1]
        if port == 0 and len(listener.sockets) > 1:  # a name with several addresses, each on a port of its own
            listener.close()
            return await self.listen(host, chosen, tls)
        self._listener = listener
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # a connection takes one; the log must not go without
        self._most = min(self.limits.max_connections, max(files - SPARE_FILES, SPARE_FILES))
        if tls is not None:
            for bound in listener.sockets:
                door = socket.socket(fileno=os.dup(bound.fileno()))
                door.setblocking(False)
                door.listen(BACKLOG)
                self._doors.append(door)
                self._open_door(door, tls)
        limits = self.limits
        shortest = min(limits.frame_ms, limits.unread_ms, limits.idle_ms, limits.unauthenticated_ms)
        self._sweep_in = max(0.02, shortest / 8000)
        self._sweeper = loop.call_later(self._sweep_in, self._sweep)
        return chosen

    def _accept(self, door: socket.socket, tls: ssl.SSLContext) -> None:
        """Take connections with TLS. The loop's own way is to tell of them once they have shaken hands: until then each
        has a file and 50 KB that nothing would count."""
        for _ in range(ACCEPT_AT_ONCE):
            try:
                client, address = door.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("connections cannot be taken: %s", error)
                self._loop.remove_reader(door)
                self._loop.call_later(ACCEPT_AGAIN_SECONDS, self._open_door, door, tls)
                return
            if len(self.connections) + len(self._handshakes) >= self._most:
                self._complain(address[0], "too many", f"{len(self._handshakes)} are at the TLS handshake")
                client.close()
                continue
            client.setblocking(False)
            connection = Connection(self)
            shaking = self._loop.create_task(self._shake_hands(connection, client, address[0], tls))
            self._handshakes[connection] = shaking
            shaking.add_done_callback(partial(self._have_shaken_hands, connection, client))

    def _open_door(self, door: socket.socket, tls: ssl.SSLContext) -> None:
        if not self._stopping:
            self._loop.add_reader(door, self._accept, door, tls)

    async def _shake_hands(self, connection: Connection, client: socket.socket, host: str, tls: ssl.SSLContext) -> None:
        try:
            timeout = self.limits.unauthenticated_ms / 1000
            await self._loop.connect_accepted_socket(lambda: connection, client, ssl=tls, ssl_handshake_timeout=timeout)
        except OSError as error:  # what TLS has to complain of, and timeouts, are such too
            self._handshakes.pop(connection, None)  # before anybody hears of it
            client.close()
            self._complain(host, "TLS", str(error))

    def _have_shaken_hands(self, connection: Connection, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(connection, None)
        if task.cancelled():  # maybe before it began
            client.close()

    async def load(self) -> None:
        """Read the log and begin to serve groups. Errors as `Store.recover`."""
        records = await self._loop.run_in_executor(self._threads, self._store.recover)
        if (lost := self._store.recovered.truncated) > 0:
            _log.warning("the log ended in %d bytes of a write that a crash had torn; they are cut away", lost)
        self._synced_to = 0
        self.runtime.load(records, self.now())
        self.settle()

    async def close(self, grace_ms: int = 1_000) -> None:
        """Write what is answered, answer what waits, and close everything."""
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        for door in self._doors:
            self._loop.remove_reader(door)
            door.close()
        handshakes = list(self._handshakes.values())
        for task in handshakes:
            task.cancel()
        await asyncio.gather(*handshakes, return_exceptions=True)
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
        self._handshakes.pop(connection, None)
        self.connections.add(connection)
        self.metrics.connections += 1
        self.metrics.accepted += 1
        if len(self.connections) > self._most or self._stopping:
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
        self._complain(connection.host[1:], "malformed", str(error))
        connection.close()

    def _drop(self, connection: Connection, reason: str, detail: str = "") -> None:
        if not connection.is_closing:
            self._complain(connection.host[1:], reason, detail)
        connection.abort()

    def _complain(self, host: str, reason: str, detail: str) -> None:
        self.metrics.closed[reason] += 1
        if self._complaints.allows_line():
            _log.warning("closed the connection from %s: %s%s", host, reason, detail and f": {detail}")

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
        with suppress(OSError, RuntimeError):  # files come and go while it is compacted
            self.metrics.log_bytes = sum(self._disk.sizes().values())
        self._sweeper = self._loop.call_later(self._sweep_in, self._sweep)

    # ---- requests

    def form(self, api_key: int, version: int) -> Form | None:
        """How to read an api at a version; None if it is not served."""
        if version not in SERVED.get(api_key, range(0)):
            return None
        return self.forms.setdefault(api_key << 16 | version, form_of(api_key, version))

    def ask(self, connection: Connection, form: Form, message: Any, client_id: str) -> None:
        """A request has come: let the faults have it first, where there are any.

        :raises DecodeError: it names more, or longer, than can be answered
        """
        if message is None:
            connection.answer(self.topics.api_versions_fallback())
            return
        if form.api_key in NAMES and len(getattr(message, NAMES[form.api_key])) > MAX_NAMES:
            raise DecodeError("length", 0, NAMES[form.api_key], f"more than {MAX_NAMES} in one request")
        if form.api_key == JOIN_GROUP and len((message.group_instance_id or client_id).encode()) > MAX_NAME:
            raise DecodeError("length", 0, "JoinGroupRequest", "no member id can be made of so long a name")
        if self.faults is None:
            self.submit(connection, form, message, client_id)
        else:
            connection.exchange = _Exchange(self, connection, form, message, client_id)
            connection.exchange.receive()

    def injection(self, on: str, exchange: FaultedExchange) -> Injection:
        """Return what the faults in force do to the request of an exchange, or to the response; and count it."""
        if self.faults is None:
            return CLEAN
        injection = self.faults.decide(
            on, exchange.api_key, exchange.message, exchange.version, exchange.client_id, self.now() - self._started_at
        )
        for action in injection.actions:
            self.metrics.faults[action] += 1
        return injection

    def submit(self, connection: Connection, form: Form, message: Any, client_id: str, copies: int = 1) -> None:
        """Give a request, or what the permissions leave of it, to the machine that serves its api."""
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
        if type(request.message) in self._group_requests:
            if api_key == JOIN_GROUP:
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
        exchange, connection.exchange = connection.exchange, None
        if exchange is None:
            connection.answer(message)
        else:
            exchange.respond(message)

    def later(self, delay_ms: int, connection: Connection, step: Callable[[], None]) -> None:
        """Go on with a connection after a while, if it is still there."""

        def go_on() -> None:
            if connection.is_closing:
                return
            step()
            connection.pump()
            self.settle()

        self._loop.call_later(delay_ms / 1000, go_on)

    def _account(self, account: RebalanceReport) -> None:
        self.metrics.count_account(account)
        if account.phase is Phase.ENDED:
            self._remember(account.rebalance)
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", describe_rebalance(account.rebalance), extra={"account": account})

    def _remember(self, rebalance: RebalanceAccount) -> None:
        self.rebalances.append(rebalance)
        self._remembered += 1 + len(rebalance.joins)
        while self._remembered > REMEMBERED_JOINS and len(self.rebalances) > 1:
            self._remembered -= 1 + len(self.rebalances.popleft().joins)

    def _count_groups(self) -> GroupCounts:
        groups = list(self.runtime.machine.groups.values())
        return GroupCounts(Counter(str(group.state) for group in groups), sum(len(group.members) for group in groups))

    # ---- turns, time and disk

    def settle_soon(self) -> None:
        """`settle` once for all that the loop has received in this turn: their commits share a write."""
        if not self._settling:
            self._settling = True
            self._loop.call_soon(self.settle)

    def settle(self) -> None:
        """After events from outside: let those who were answered go on, start a write, set the timer."""
        self._settling = False
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
            _log.error("the log cannot be written: %s; groups are refused until it can", error)
            self.runtime.sync_failed(self.now())
            if self._reloading is None and not self._stopping:
                self._reloading = self._loop.create_task(self._reload())
        self.settle()

    def _end_sync(self, sync: Sync, began: float) -> None:
        self.metrics.count_sync(time.monotonic() - began, sync.last - self._synced_to)
        self._synced_to = sync.last
        self.runtime.end_sync(sync)
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
                _log.error("the log cannot be read: %s; groups are still refused", error)
            else:
                _log.warning("the log has been read again; groups are served")
                break
        self._reloading = None


class _Exchange(FaultedExchange):
    """A request on a connection of the server."""

    __slots__ = ("_connection", "_form", "_server")

    def __init__(self, server: Server, connection: Connection, form: Form, message: Any, client_id: str) -> None:
        super().__init__(form.api_key, message, form.version, client_id)
        self._server = server
        self._connection = connection
        self._form = form

    def decide(self, on: str) -> Injection:
        return self._server.injection(on, self)

    def later(self, delay_ms: int, step: Callable[[], None]) -> None:
        self._connection.token = HELD
        self._server.later(delay_ms, self._connection, step)

    def submit(self, copies: int) -> None:
        self._server.submit(self._connection, self._form, self.message, self.client_id, copies)

    def answer(self, response: Any, copies: int) -> None:
        self._connection.exchange = None
        self._connection.answer(response, copies)

    def disconnect(self) -> None:
        self._connection.close()
