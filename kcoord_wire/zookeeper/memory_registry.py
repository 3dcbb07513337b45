"""The registry of `memory`: a client whose messages reach the server by a network of the caller's, or at once.

Laws, besides those of `zookeeper.model`:

* It pings at a third of the session timeout, and gives a connection up from which nothing has come for two thirds, as
  kazoo does. So it can be suspended while its session lives, and the session can end before it knows.
* Events are delivered in `receive`, `advance` and `disconnected`, never in `ask`. ``SUSPENDED`` comes before the
  answers of the requests that were lost with the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from kcoord_wire.zookeeper.memory import (
    Closed,
    MemoryConnection,
    MemoryZooKeeper,
    OpenSession,
    Ping,
    SessionOpened,
    ToClient,
    ToServer,
)
from kcoord_wire.zookeeper.model import Ask, Deliver, Fired, Outcome, Replied, SessionChanged, SessionState

_RECONNECT_MS: Final = 100


class MemoryRegistry:
    """The client: one session after the other, each over one connection after the other.

    :param send: called with each message to the server, in order; an `OpenSession` begins a new connection, and what
        comes late from the one before must not be given to `receive`
    :param deliver: called with each event
    :param announces_expiry: whether ``EXPIRED`` precedes the next ``CONNECTED`` (CURATOR-220 is about clients without)
    :ivar session_id: of the last session that was opened; 0 before
    """

    def __init__(
        self, send: Callable[[ToServer], None], deliver: Deliver, *, timeout_ms: int, announces_expiry: bool = True
    ) -> None:
        self.session_id = 0
        self._send = send
        self._deliver = deliver
        self._timeout_ms = timeout_ms
        self._announces_expiry = announces_expiry
        self._is_connected = False
        self._is_opening = False
        self._now = 0
        self._heard_at = 0
        self._acts_at = 0  # not connected: tries to connect; connected: pings
        self._asked: deque[int] = deque()
        self._lost: deque[int] = deque()

    @property
    def deadline(self) -> int:
        """When `advance` has something to do, in ms."""
        if self._lost:
            return self._now
        return min(self._acts_at, self._silent_at) if self._is_connected else self._acts_at

    @property
    def _silent_at(self) -> int:
        return self._heard_at + self._timeout_ms * 2 // 3

    def ask(self, ask: Ask) -> None:
        """Execute a request; its answer is ``CONNECTION_LOSS`` while there is no connection."""
        if self._is_connected:
            self._asked.append(ask.token)
            self._send(ask)
        else:
            self._lost.append(ask.token)

    def receive(self, message: ToClient, now: int) -> None:
        """Take in a message of the server."""
        self._now = now
        self._answer_lost()
        if not (self._is_connected or self._is_opening):
            return
        self._heard_at = now
        match message:
            case SessionOpened():
                self._opened(message, now)
            case Replied():
                self._asked.popleft()
                self._deliver(message)
            case Fired():
                self._deliver(message)
            case Closed():
                self.disconnected(now)

    def _opened(self, message: SessionOpened, now: int) -> None:
        if message.session_id == 0:
            self.session_id = 0
            if self._announces_expiry:
                self._deliver(SessionChanged(SessionState.EXPIRED))
            self._open(now)
            return
        self._is_connected, self._is_opening = True, False
        self.session_id = message.session_id
        self._acts_at = now + message.timeout_ms // 3
        self._deliver(SessionChanged(SessionState.CONNECTED, message.session_id, message.timeout_ms))

    def disconnected(self, now: int) -> None:
        """The connection has ended: what was asked is lost, and may have happened."""
        self._now = now
        was_connected = self._is_connected
        self._is_connected = self._is_opening = False
        self._acts_at = now + _RECONNECT_MS
        self._lost += self._asked
        self._asked.clear()
        if was_connected:
            self._deliver(SessionChanged(SessionState.SUSPENDED))
        self._answer_lost()

    def advance(self, now: int) -> None:
        """Do what is due: answer for lost requests, connect, ping, give a silent connection up."""
        self._now = now
        self._answer_lost()
        if self._is_connected and self._silent_at <= now:
            self.disconnected(now)
        elif self._acts_at <= now and self._is_connected:
            self._acts_at = now + self._timeout_ms // 3
            self._send(Ping())
        elif self._acts_at <= now:
            self._open(now)

    def _open(self, now: int) -> None:
        self._is_opening = True
        self._acts_at = now + self._timeout_ms // 3
        self._send(OpenSession(self.session_id, self._timeout_ms))

    def _answer_lost(self) -> None:
        while self._lost:
            self._deliver(Replied(self._lost.popleft(), Outcome.CONNECTION_LOSS))


class MemoryLink:
    """A registry and its server, with a network between them that needs no time and can be cut.

    :param deliver: called with each event, within `advance` and `cut`
    :param timeout_ms: of the session
    :ivar registry: the client
    :ivar is_cut: nothing is carried
    """

    def __init__(
        self, zookeeper: MemoryZooKeeper, deliver: Deliver, *, timeout_ms: int = 6_000, announces_expiry: bool = True
    ) -> None:
        self.registry = MemoryRegistry(
            self._to_server, deliver, timeout_ms=timeout_ms, announces_expiry=announces_expiry
        )
        self.is_cut = False
        self._zookeeper = zookeeper
        self._connection: MemoryConnection | None = None
        self._up: deque[ToServer] = deque()
        self._down: deque[ToClient] = deque()

    @property
    def deadline(self) -> int:
        """When `advance` has something to do, in ms; 0 if a message is under way."""
        return 0 if self._up or self._down else self.registry.deadline

    def ask(self, ask: Ask) -> None:
        """Execute a request at the next `advance`."""
        self.registry.ask(ask)

    def advance(self, now: int) -> None:
        """Carry the messages that are under way, and do what is due."""
        self._zookeeper.advance(now)
        self.registry.advance(now)
        while self._up or self._down:
            if self._up:
                self._reach_server(self._up.popleft(), now)
            else:
                self.registry.receive(self._down.popleft(), now)

    def cut(self, now: int, *, is_executed: bool = False) -> None:
        """End the connection and allow none; with `is_executed` the server still executes what is under way to it."""
        while is_executed and self._up:
            self._reach_server(self._up.popleft(), now)
        self.is_cut = True
        self._end()
        self.registry.disconnected(now)

    def heal(self) -> None:
        """Allow connections again."""
        self.is_cut = False

    def _to_server(self, message: ToServer) -> None:
        if not self.is_cut:
            self._up.append(message)

    def _reach_server(self, message: ToServer, now: int) -> None:
        if isinstance(message, OpenSession):
            self._end()
            self._connection = MemoryConnection(self._zookeeper, self._down.append)
        if self._connection is not None:
            self._connection.receive(message, now)

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._up.clear()
        self._down.clear()
