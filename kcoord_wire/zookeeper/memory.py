"""A ZooKeeper in memory: the server, with its tree, its sessions and its watches, and its clients.

It is pure: times are arguments, and the network is the caller's. A client (`MemoryLink`) sends `OpenSession`,
`Ask` and `Ping`, a `MemoryConnection` takes them and sends `SessionOpened`, `Replied`, `Fired`, `Ping` and `Closed`.
What carries them may delay or lose them and may end a connection, but keeps the order of each direction.

Laws:

* A `Multi` changes everything or nothing. Watches fire when a request has succeeded, before its answer is sent.
* A session from which nothing has come for its timeout expires: its ephemeral nodes are deleted and its connection is
  closed. It is never opened again.
* Watches belong to a connection and end with it; one that is set twice fires once.

Laws of a client, besides those of `zookeeper.requests`:

* It pings at a third of the session timeout, and gives a connection up from which nothing has come for two thirds, as
  kazoo does. So it can be suspended while its session lives, and the session can end before it knows.
* Events are delivered in `receive`, `advance` and `disconnected`, never in `ask`. ``SUSPENDED`` comes before the
  answers of the requests that were lost with the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from kcoord_wire.zookeeper.requests import (
    ANY_VERSION,
    Ask,
    Check,
    Create,
    Delete,
    Deliver,
    Fired,
    Multi,
    Node,
    Outcome,
    Read,
    ReadChildren,
    Replied,
    SessionChanged,
    SessionState,
    SetData,
    Write,
    can_be_node,
)

_FIRST_SESSION: Final = 0x1000


# ---- messages between client and server, besides `Ask`, `Replied` and `Fired`


@dataclass(frozen=True, slots=True)
class OpenSession:
    """The first message of each connection.

    :ivar session_id: of the session to go on with; 0 for a new one
    """

    session_id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The answer to `OpenSession`.

    :ivar session_id: 0 if the session has expired
    """

    session_id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Keeps the session alive; the server answers with the same."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The server has closed the connection."""


ToServer: TypeAlias = OpenSession | Ask | Ping
ToClient: TypeAlias = SessionOpened | Replied | Fired | Ping | Closed


# ---- the server


class _RefusedError(Exception):
    """A write that cannot be executed."""

    def __init__(self, outcome: Outcome, detail: str = "") -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.detail = detail


class _Tree:
    """The nodes. What `write` did is undone by `roll_back` until it is kept by `commit`."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node(b"", 0)}
        self.children: dict[str, set[str]] = {"/": set()}
        self._before: list[tuple[str, Node | None]] = []

    def write(self, write: Write, session_id: int) -> int | None:
        """Execute one write; return the new version of `SetData`.

        :raises _RefusedError: it cannot be executed
        """
        match write:
            case Create():
                self._create(write, session_id)
            case Delete():
                self._expect(write.path, write.version)
                if self.children[write.path]:
                    raise _RefusedError(Outcome.NOT_EMPTY)
                self._put(write.path, None)
            case SetData():
                node = self._expect(write.path, write.version)
                self._put(write.path, Node(write.data, node.version + 1, node.ephemeral_owner))
                return node.version + 1
            case Check():
                self._expect(write.path, write.version)
        return None

    def _create(self, write: Create, session_id: int) -> None:
        if not can_be_node(write.path.rpartition("/")[2]):
            raise _RefusedError(Outcome.OTHER, "the path is invalid")
        if write.path in self.nodes:
            raise _RefusedError(Outcome.NODE_EXISTS)
        parent = self.nodes.get(_parent(write.path))
        if parent is None:
            raise _RefusedError(Outcome.NO_NODE)
        if parent.ephemeral_owner:
            raise _RefusedError(Outcome.OTHER, "an ephemeral node has no children")
        self._put(write.path, Node(write.data, 0, session_id if write.is_ephemeral else 0))

    def _expect(self, path: str, version: int) -> Node:
        node = self.nodes.get(path)
        if node is None:
            raise _RefusedError(Outcome.NO_NODE)
        if version not in (ANY_VERSION, node.version):
            raise _RefusedError(Outcome.BAD_VERSION)
        return node

    def _put(self, path: str, node: Node | None) -> None:
        self._before.append((path, self._replace(path, node)))

    def _replace(self, path: str, node: Node | None) -> Node | None:
        before = self.nodes.get(path)
        if node is None:
            del self.nodes[path], self.children[path]
            self.children[_parent(path)].discard(path)
        else:
            self.nodes[path] = node
            if before is None:
                self.children[path] = set()
                self.children[_parent(path)].add(path)
        return before

    def roll_back(self) -> None:
        """Undo what was written since the last `commit`."""
        for path, before in reversed(self._before):
            self._replace(path, before)
        self._before.clear()

    def commit(self) -> list[Fired]:
        """Keep what was written; return the watches that it may fire, set or not."""
        fired = []
        for path, before in self._before:
            fired.append(Fired(path))
            if before is None or path not in self.nodes:
                fired += [Fired(path, of_children=True), Fired(_parent(path), of_children=True)]
        self._before.clear()
        return fired


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


@dataclass(slots=True, eq=False)
class _Session:
    session_id: int
    timeout_ms: int
    heard_at: int
    connection: MemoryConnection

    @property
    def expires_at(self) -> int:
        return self.heard_at + self.timeout_ms


class MemoryZooKeeper:
    """The server, or an ensemble of them that never loses its majority: clients cannot tell the difference.

    :param on_write: called with the writes of each request that was executed, before its watches fire and its answer is
        sent, and with the id of its session; 0 for none
    """

    def __init__(self, on_write: Callable[[tuple[Write, ...], int], None] = lambda writes, session_id: None) -> None:
        self._on_write = on_write
        self._tree = _Tree()
        self._sessions: dict[int, _Session] = {}
        self._last_session = _FIRST_SESSION
        self._watches: dict[Fired, set[MemoryConnection]] = {}

    # ---- for tests and laws: without a session

    def node(self, path: str) -> Node | None:
        """Return a node, None if it does not exist."""
        return self._tree.nodes.get(path)

    def names(self, path: str) -> tuple[str, ...] | None:
        """Return the names of a node's children, sorted; None if it does not exist."""
        children = self._tree.children.get(path)
        return None if children is None else tuple(sorted(child.rpartition("/")[2] for child in children))

    def write(self, *writes: Write, session_id: int = 0) -> Replied:
        """Execute writes, all or none, as another client would that leaves at once; the answer has the token 0.

        :param session_id: the owner of the ephemeral nodes that this creates; a replica names those of its original
        """
        return self._write(writes, session_id)

    @property
    def sessions(self) -> frozenset[int]:
        """The ids of the sessions that live."""
        return frozenset(self._sessions)

    # ---- time

    @property
    def deadline(self) -> int | None:
        """When the next session expires unless something comes from it, in ms; None without sessions."""
        return min((session.expires_at for session in self._sessions.values()), default=None)

    def advance(self, now: int) -> None:
        """Expire the sessions whose time has come."""
        for session in [session for session in self._sessions.values() if session.expires_at <= now]:
            self.expire(session.session_id)

    def restart(self, now: int) -> None:
        """Another leader begins: each session has its whole timeout again."""
        for session in self._sessions.values():
            session.heard_at = now

    def expire(self, session_id: int) -> None:
        """End a session as if it had timed out; one that has ended is left alone."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        owned = [path for path, node in self._tree.nodes.items() if node.ephemeral_owner == session_id]
        self._write(tuple(Delete(path) for path in sorted(owned)), 0)
        session.connection.end()

    # ---- what connections do

    def open_session(self, connection: MemoryConnection, message: OpenSession, now: int) -> SessionOpened:
        """Open a session, or go on with one; the connection that it had is closed."""
        session = self._sessions.get(message.session_id)
        if session is None and message.session_id:
            return SessionOpened(0, 0)
        if session is None:
            self._last_session += 1
            session = _Session(self._last_session, message.timeout_ms, now, connection)
            self._sessions[self._last_session] = session
        else:
            session.connection.end()
            session.connection, session.heard_at = connection, now
        return SessionOpened(session.session_id, session.timeout_ms)

    def hears(self, connection: MemoryConnection, now: int) -> bool:
        """Something has come; return False if the connection's session has ended or has another connection."""
        session = self._sessions.get(connection.session_id)
        if session is None or session.connection is not connection:
            return False
        session.heard_at = now
        return True

    def execute(self, connection: MemoryConnection, ask: Ask) -> Replied:
        """Execute a request of a session that lives."""
        request = ask.request
        if isinstance(request, Read | ReadChildren):
            of_children = isinstance(request, ReadChildren)
            if request.watch:
                self._watches.setdefault(Fired(request.path, of_children), set()).add(connection)
            return Replied(ask.token, value=self.names(request.path) if of_children else self.node(request.path))
        if isinstance(request, Multi):
            return replace(self._write(request.writes, connection.session_id), token=ask.token, value=None)
        return replace(self._write((request,), connection.session_id), token=ask.token, failed=-1)

    def drop_watches(self, connection: MemoryConnection) -> None:
        """End the watches of a connection."""
        for watch in [watch for watch, connections in self._watches.items() if connection in connections]:
            self._watches[watch].discard(connection)
            if not self._watches[watch]:
                del self._watches[watch]

    def _write(self, writes: tuple[Write, ...], session_id: int) -> Replied:
        version = None
        for index, write in enumerate(writes):
            try:
                version = self._tree.write(write, session_id)
            except _RefusedError as refused:
                self._tree.roll_back()
                return Replied(0, refused.outcome, failed=index, detail=refused.detail)
        fires = self._tree.commit()
        self._on_write(writes, session_id)
        for fired in fires:
            watching = self._watches.pop(fired, set())
            for connection in sorted(watching, key=lambda connection: connection.session_id):
                connection.send(fired)
        return Replied(0, value=version)


class MemoryConnection:
    """The server's end of a connection of a client.

    :param send: called with each message to the client, in order
    :ivar session_id: 0 before it is opened
    :ivar is_open: False once either side has ended it
    """

    def __init__(self, zookeeper: MemoryZooKeeper, send: Callable[[ToClient], None]) -> None:
        self.session_id = 0
        self.send = send
        self._zookeeper = zookeeper
        self.is_open = True

    def receive(self, message: ToServer, now: int) -> None:
        """Take in a message of the client; the answer is sent within this call."""
        self._zookeeper.advance(now)
        if not self.is_open:
            return
        if isinstance(message, OpenSession):
            opened = self._zookeeper.open_session(self, message, now)
            self.session_id = opened.session_id
            self.send(opened)
        elif not self._zookeeper.hears(self, now):
            self.end()
        elif isinstance(message, Ask):
            self.send(self._zookeeper.execute(self, message))
        else:
            self.send(Ping())

    def close(self) -> None:
        """The client or the network has ended the connection; the session goes on."""
        self.is_open = False
        self._zookeeper.drop_watches(self)

    def end(self) -> None:
        """The server ends the connection."""
        if self.is_open:
            self.close()
            self.send(Closed())


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
