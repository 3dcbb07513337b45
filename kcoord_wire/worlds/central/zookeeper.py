"""A ZooKeeper of several servers on a virtual clock, and its clients: what a coordinator sees of it when things fail.

    zookeeper = VirtualZooKeeper(clock, Random(7))
    registry = zookeeper.client("broker-1", process.deliver, Random(8), timeout_ms=6_000)
    registry.ask(Ask(1, Read("/consumers/coordinator", watch=True)))

Sessions, tree and client are those of `zookeeper.memory`; here are time, the network, and servers that are behind.

Laws, besides those of `zookeeper.requests`:

* Each client is connected to one follower. Reads are answered by the follower, which may be behind the others; a write
  is answered when the follower has it (ZooKeeper Programmer's Guide, "Consistency Guarantees": single system image,
  timeliness). What one client sees keeps its order; between clients there is none.
* A cut holds messages back, as TCP does; the client gives its connection up after two thirds of its session timeout.
  What was sent before may still be executed, unless the session has another connection by then.
* A client that is paused gets what was sent to it when it resumes, and a moment later than its process acts: its
  session may have expired long before.
* While ZooKeeper is down no session expires; afterwards each has its whole timeout again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, TypeAlias

from kcoord_wire.kernel.virtual.clock import NEVER, VirtualClock
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.zookeeper.memory import (
    Closed,
    MemoryConnection,
    MemoryRegistry,
    MemoryZooKeeper,
    OpenSession,
    Ping,
    SessionOpened,
    ToClient,
    ToServer,
)
from kcoord_wire.zookeeper.requests import Ask, Deliver, Read, ReadChildren, Replied, Write

_FOLLOWERS: Final = 3
_LATE_MS: Final = (0, 200)  # what a resumed process does before its client library, on another thread, reads its socket


class VirtualZooKeeper:
    """An ensemble of which a majority always agrees, while it is not stopped as a whole.

    :param latency_ms: least and most that a message takes between a client and its server
    :param lag_ms: least and most that a follower is behind the leader
    :param on_write: called with the writes of each request that was executed and the id of its session, 0 for none
    :ivar leader: its tree and its sessions: what is committed
    :ivar clients: the name of each session's client
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        *,
        latency_ms: tuple[int, int] = (1, 5),
        lag_ms: tuple[int, int] = (0, 30),
        on_write: OnWrite | None = None,
    ) -> None:
        self.clock = clock
        self.latency_ms = latency_ms
        self.leader = MemoryZooKeeper(self._executed)
        self.is_up = True
        self.clients: dict[int, str] = {}
        self._on_write = on_write
        self._followers = [_Follower(clock, random, lag_ms) for _ in range(_FOLLOWERS)]
        self._registries: list[VirtualRegistry] = []
        self._down_until = 0
        self._expires_at = NEVER

    def client(self, name: str, deliver: Deliver, random: Random, *, timeout_ms: int) -> VirtualRegistry:
        """Start a client; its first event is ``CONNECTED``.

        :param deliver: called with each event
        :param random: decides latencies, followers, what is executed when a connection ends
        :param timeout_ms: of its sessions
        """
        registry = VirtualRegistry(self, name, deliver, random, timeout_ms)
        self._registries.append(registry)
        return registry

    def write(self, *writes: Write) -> Replied:
        """Execute writes as an operator would, or a client that leaves at once."""
        return self.leader.write(*writes)

    def _executed(self, writes: tuple[Write, ...], session_id: int) -> None:
        for follower in self._followers:
            follower.executed(writes, session_id)
        if self._on_write is not None:
            self._on_write(writes, session_id)

    # ---- faults

    def stop(self, ms: int) -> None:
        """Let no server answer for so long; connections are reset."""
        if self.is_up:
            self.clock.record("zookeeper", "is down", ms)
            self.is_up = False
            for registry in self._registries:
                registry.reset()
        self._down_until = max(self._down_until, self.clock.time_ms + ms)
        self.clock.at(self._down_until, self._start)

    def _start(self) -> None:
        if not self.is_up and self._down_until <= self.clock.time_ms:
            self.clock.record("zookeeper", "is up")
            self.is_up = True
            self.leader.restart(self.clock.time_ms)
            self.watch_expiry()

    def expire(self, session_id: int) -> None:
        """End a session at the servers, as a second client does that closes it."""
        self.clock.record("zookeeper", "expires", self.clients.get(session_id))
        self.leader.expire(session_id)

    def lag(self, number: int, ms: int) -> None:
        """Let a follower apply nothing for so long, unless a client of it writes."""
        self.clock.record("zookeeper", "lags", (number, ms))
        self._followers[number % _FOLLOWERS].behind_until = self.clock.time_ms + ms

    def heal(self) -> None:
        """End all faults. Paused clients stay paused."""
        self._down_until = 0
        self._start()
        for follower in self._followers:
            follower.behind_until = 0
            follower.catch_up()
        for registry in self._registries:
            registry.heal()

    # ---- for its clients

    def accept(self, random: Random, seen: int, send: Callable[[ToClient], None]) -> _Serving:
        """Return the servers' end of a new connection.

        :param seen: number of requests whose effects the client may have seen
        """
        follower = random.choice(self._followers)
        follower.catch_up(seen)
        return _Serving(self.leader, follower, send)

    def watch_expiry(self) -> None:
        """Expire sessions when their time has come."""
        deadline = self.leader.deadline
        if deadline is not None and deadline < self._expires_at:
            self._expires_at = max(deadline, self.clock.time_ms)
            self.clock.at(self._expires_at, self._expire)

    def _expire(self) -> None:
        self._expires_at = NEVER
        if self.is_up:
            self.leader.advance(self.clock.time_ms)
            self.watch_expiry()


OnWrite: TypeAlias = Callable[[tuple[Write, ...], int], None]


class _Follower:
    """A server that has applied the writes up to some point.

    :ivar replica: what it has
    :ivar behind_until: it applies nothing before, in ms since the Unix epoch
    :ivar applied: number of requests that it has applied
    """

    def __init__(self, clock: VirtualClock, random: Random, lag_ms: tuple[int, int]) -> None:
        self.replica = MemoryZooKeeper()
        self.behind_until = 0
        self._clock = clock
        self._random = random
        self.applied = 0
        self._lag = lag_ms
        self._pending: deque[tuple[int, tuple[Write, ...], int]] = deque()

    def executed(self, writes: tuple[Write, ...], session_id: int) -> None:
        """The leader has executed writes; this server will, too."""
        before = self._pending[-1][0] if self._pending else 0
        lag_ms = self._random.randint(*self._lag)
        at = max(before, self._clock.time_ms + lag_ms, self.behind_until)
        self._pending.append((at, writes, session_id))
        self._clock.at(at, self._apply_due)

    def _apply_due(self) -> None:
        while self._pending and self._pending[0][0] <= self._clock.time_ms:
            self._apply()

    def _apply(self) -> None:
        _, writes, session_id = self._pending.popleft()
        self.applied += 1
        self.replica.write(*writes, session_id=session_id)

    def catch_up(self, least: int | None = None) -> None:
        """Apply so many requests at least; None for all that the leader has executed."""
        while self._pending and (least is None or self.applied < least):
            self._apply()


class _Serving:
    """The servers' end of a connection: the leader has the session and executes writes, a follower answers reads."""

    def __init__(self, leader: MemoryZooKeeper, follower: _Follower, send: Callable[[ToClient], None]) -> None:
        self._follower = follower
        self._to_client = send
        self._session = MemoryConnection(leader, self._send)
        self._reads = MemoryConnection(follower.replica, send)

    @property
    def applied(self) -> int:
        """Number of requests whose effects the client may have seen."""
        return self._follower.applied

    def _send(self, message: ToClient) -> None:
        if isinstance(message, Replied):  # to a write
            self._follower.catch_up()
        elif isinstance(message, Closed):
            self._reads.close()
        self._to_client(message)

    def receive(self, message: ToServer, now: int) -> None:
        """Take in a message of the client."""
        if not isinstance(message, Ask) or not isinstance(message.request, Read | ReadChildren):
            self._session.receive(message, now)
            self._reads.session_id = self._session.session_id
            return
        self._session.receive(Ping(), now)  # the session lives on; or it has ended, and so has the connection
        if self._session.is_open:
            self._to_client(self._follower.replica.execute(self._reads, message))

    def close(self) -> None:
        """The connection has ended; the session goes on."""
        self._session.close()
        self._reads.close()


class _Link:
    """A connection of a client.

    :ivar serving: its other end; None before that has accepted it
    :ivar is_reset: nothing more comes from the servers but the end of the connection
    :ivar loses: whether what is under way to the servers is lost
    :ivar up_at: when the last message to the server arrives
    :ivar down_at: when the last message to the client arrives
    """

    __slots__ = ("down_at", "is_reset", "loses", "serving", "up_at")

    def __init__(self) -> None:
        self.serving: _Serving | None = None
        self.is_reset = self.loses = False
        self.up_at = self.down_at = 0


class VirtualRegistry:
    """A client of ZooKeeper, see `VirtualZooKeeper.client`. It is paused, resumed and killed with its process."""

    def __init__(
        self, zookeeper: VirtualZooKeeper, name: str, deliver: Deliver, random: Random, timeout_ms: int
    ) -> None:
        self.name = name
        self._zookeeper = zookeeper
        self._clock = zookeeper.clock
        self._random = random
        self._client = MemoryRegistry(
            self._send, deliver, timeout_ms=timeout_ms, announces_expiry=random.random() < 0.5
        )
        self._link = _Link()
        self._seen = 0
        self._is_alive = True
        self._is_paused = False
        self._resumed = 0
        self._held: list[tuple[int, ToClient]] = []  # while paused: when it arrived, and what
        self._cut_until = [0, 0]  # to the server, to the client
        self._stuck: list[Callable[[], None]] = []
        self._wakes_at = NEVER
        self._plan()

    @property
    def session_id(self) -> int:
        """Of the last session that was opened, for all that the client knows; 0 before."""
        return self._client.session_id

    def ask(self, ask: Ask) -> None:
        """Execute a request; see `zookeeper.requests.Registry`."""
        if self._is_alive:
            self._client.ask(ask)
            self._plan()

    # ---- its process

    def follow(self, process: Process) -> None:
        """Be paused, resumed or killed as the process was."""
        if not process.is_alive:
            self.kill()
        elif process.is_paused:
            self.pause()
        else:
            self.resume()

    def pause(self) -> None:
        """Take in nothing and send nothing until `resume`."""
        self._is_paused = True
        self._resumed += 1

    def resume(self) -> None:
        """Go on, a moment later."""
        self._resumed += 1
        self._clock.after(self._random.randint(*_LATE_MS), self._go_on, self._resumed)

    def _go_on(self, resumed: int) -> None:
        if resumed == self._resumed and self._is_alive:
            self._is_paused = False
            held, self._held = self._held, []
            for arrived_at, message in held:
                self._client.receive(message, arrived_at)
            self._client.advance(self._clock.time_ms)
            self._plan()

    def kill(self) -> None:
        """End without closing the session, which expires in time."""
        self._is_alive = False

    # ---- faults

    def cut(self, ms: int, *, up: bool = True, down: bool = True) -> None:
        """Carry nothing for so long, to the servers, from them, or both."""
        until = self._clock.time_ms + ms
        self._cut_until = [max(before, until * way) for before, way in zip(self._cut_until, (up, down), strict=True)]
        self._clock.at(until, self._carry_stuck)

    def reset(self) -> None:
        """End the connection. What is under way from the servers is lost, and to them perhaps."""
        link = self._link
        link.is_reset = True
        link.loses = self._random.random() < 0.5
        if link.serving is not None and not self._zookeeper.is_up:
            link.serving.close()
        self._reach_client(link, Closed())

    def heal(self) -> None:
        """End a cut."""
        self._cut_until = [0, 0]
        self._carry_stuck()

    def _carry_stuck(self) -> None:
        stuck, self._stuck = self._stuck, []
        for carry in stuck:  # what is still cut off gets stuck again, in the same order
            carry()

    # ---- messages

    def _send(self, message: ToServer) -> None:
        if isinstance(message, OpenSession):
            self._link = _Link()
        link = self._link
        link.up_at = max(link.up_at, self._arrival())
        self._clock.at(link.up_at, self._reach_server, link, message)

    def _arrival(self) -> int:
        return self._clock.time_ms + self._random.randint(*self._zookeeper.latency_ms)

    def _reach_server(self, link: _Link, message: ToServer) -> None:
        # Without its answers TCP makes no connection.
        cut_until = max(self._cut_until) if isinstance(message, OpenSession) else self._cut_until[0]
        if cut_until > self._clock.time_ms:
            self._stuck.append(partial(self._reach_server, link, message))
        elif not self._zookeeper.is_up:
            self._reach_client(link, Closed())
        elif not link.loses:
            if link.serving is None and link is self._link and self._is_alive:
                link.serving = self._zookeeper.accept(self._random, self._seen, partial(self._send_down, link))
            if link.serving is not None:
                link.serving.receive(message, self._clock.time_ms)
                self._zookeeper.watch_expiry()

    def _send_down(self, link: _Link, message: ToClient) -> None:
        if isinstance(message, SessionOpened):
            self._zookeeper.clients[message.session_id] = self.name
        applied = 0 if link.serving is None else link.serving.applied
        link.down_at = max(link.down_at, self._arrival())
        self._clock.at(link.down_at, self._reach_client, link, message, applied)

    def _reach_client(self, link: _Link, message: ToClient, applied: int = 0) -> None:
        is_lost = link.is_reset and not isinstance(message, Closed)
        if link is not self._link or is_lost or not self._is_alive:
            return
        if self._cut_until[1] > self._clock.time_ms:
            self._stuck.append(partial(self._reach_client, link, message, applied))
        elif self._is_paused:
            self._seen = max(self._seen, applied)
            self._held.append((self._clock.time_ms, message))
        else:
            self._seen = max(self._seen, applied)
            self._client.receive(message, self._clock.time_ms)
            self._plan()

    # ---- time

    def _plan(self) -> None:
        deadline = max(self._client.deadline, self._clock.time_ms)
        if deadline < self._wakes_at:
            self._wakes_at = deadline
            self._clock.at(deadline, self._wake, deadline)

    def _wake(self, planned_for: int) -> None:
        if planned_for == self._wakes_at and self._is_alive:
            self._wakes_at = NEVER
            if not self._is_paused:
                self._client.advance(self._clock.time_ms)
                self._plan()
