"""ZooKeeper in memory: the tree, sessions and watches of the server, and what a client sees of cuts and expiry."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.zookeeper.memory import (
    Closed,
    MemoryConnection,
    MemoryLink,
    MemoryZooKeeper,
    OpenSession,
    Ping,
    SessionOpened,
)
from kcoord_wire.zookeeper.requests import (
    Ask,
    Check,
    Create,
    Delete,
    Fired,
    Multi,
    Node,
    Outcome,
    Read,
    ReadChildren,
    Replied,
    Request,
    SessionChanged,
    SessionState,
    SetData,
)


class Client:
    """A connection and what has come over it."""

    def __init__(
        self, zookeeper: MemoryZooKeeper, session_id: int = 0, *, now: int = 0, timeout_ms: int = 6_000
    ) -> None:
        self.seen: list[Any] = []
        self.connection = MemoryConnection(zookeeper, self.seen.append)
        self.connection.receive(OpenSession(session_id, timeout_ms), now)
        self.session_id = self.seen.pop().session_id

    def ask(self, request: Request, now: int = 0) -> Replied:
        self.connection.receive(Ask(1, request), now)
        return self.seen.pop()


def test_a_multi_that_fails_changes_and_fires_nothing() -> None:
    zookeeper = MemoryZooKeeper()
    zookeeper.write(Create("/epoch", b"7"), Create("/old"))
    watching, writing = Client(zookeeper), Client(zookeeper)
    for path in ("/epoch", "/old", "/new"):
        watching.ask(Read(path, watch=True))
    watching.ask(ReadChildren("/", watch=True))
    writes = (Create("/new"), Delete("/old"), SetData("/epoch", b"8"), Check("/epoch", 0))
    assert writing.ask(Multi(writes)) == Replied(1, Outcome.BAD_VERSION, failed=3)
    assert (zookeeper.names("/"), zookeeper.node("/epoch")) == (("epoch", "old"), Node(b"7", 0))
    assert watching.seen == []
    assert writing.ask(Multi(writes[:3])) == Replied(1)
    assert (zookeeper.names("/"), zookeeper.node("/epoch")) == (("epoch", "new"), Node(b"8", 1))
    assert set(watching.seen) == {Fired("/epoch"), Fired("/old"), Fired("/new"), Fired("/", of_children=True)}
    assert len(watching.seen) == 4


def test_a_multi_sees_its_own_writes() -> None:
    zookeeper = MemoryZooKeeper()
    client = Client(zookeeper)
    assert client.ask(
        Multi((Create("/a"), Create("/a/b"), Check("/a", 0), SetData("/a", b"x"), Check("/a", 1)))
    ) == Replied(1)
    assert client.ask(Multi((Delete("/a/b"), Delete("/a"), Create("/a/b")))) == Replied(1, Outcome.NO_NODE, failed=2)
    assert (zookeeper.names("/a"), zookeeper.node("/a")) == (("b",), Node(b"x", 1))


def test_a_silent_session_expires_with_its_ephemerals() -> None:
    zookeeper = MemoryZooKeeper()
    silent, pinging = Client(zookeeper, timeout_ms=3_000), Client(zookeeper, timeout_ms=3_000)
    silent.ask(Create("/mine", is_ephemeral=True))
    pinging.ask(Read("/mine", watch=True))
    assert zookeeper.node("/mine") == Node(b"", 0, silent.session_id)
    pinging.connection.receive(Ping(), 2_000)
    assert (pinging.seen.pop(), zookeeper.deadline) == (Ping(), 3_000)
    zookeeper.advance(2_999)
    assert zookeeper.node("/mine") is not None
    zookeeper.advance(3_000)
    assert (zookeeper.node("/mine"), pinging.seen, silent.seen) == (None, [Fired("/mine")], [Closed()])
    assert zookeeper.sessions == {pinging.session_id}
    assert Client(zookeeper, silent.session_id, now=3_001).session_id == 0


def test_a_session_goes_on_over_another_connection() -> None:
    zookeeper = MemoryZooKeeper()
    first = Client(zookeeper)
    first.ask(Create("/mine", is_ephemeral=True))
    first.ask(Read("/mine", watch=True))
    second = Client(zookeeper, first.session_id, now=5_000)
    assert (second.session_id, first.seen) == (first.session_id, [Closed()])
    first.connection.receive(Ask(2, Delete("/mine")), 5_000)
    assert (zookeeper.node("/mine"), first.seen) == (Node(b"", 0, first.session_id), [Closed()])
    second.ask(SetData("/mine", b"x"), 5_000)
    assert second.seen == [], "the watch was the first connection's"
    assert zookeeper.deadline == 11_000


def test_a_request_of_an_expired_session_closes_its_connection() -> None:
    zookeeper = MemoryZooKeeper()
    client = Client(zookeeper, timeout_ms=3_000)
    client.connection.receive(Ask(1, Create("/late")), 3_000)
    assert (client.seen, zookeeper.names("/")) == ([Closed()], ())


def test_an_unknown_session_is_not_opened() -> None:
    seen: list[Any] = []
    connection = MemoryConnection(MemoryZooKeeper(), seen.append)
    connection.receive(OpenSession(77, 6_000), 0)
    assert seen == [SessionOpened(0, 0)]


def test_a_replica_has_what_the_original_has() -> None:
    replica = MemoryZooKeeper()
    original = MemoryZooKeeper(lambda writes, session_id: replica.write(*writes, session_id=session_id) and None)
    original.write(Create("/a", b"1", is_ephemeral=True), session_id=7)
    assert original.write(Create("/b"), Delete("/c")).outcome is Outcome.NO_NODE
    original.write(SetData("/a", b"2"))
    assert replica.node("/a") == original.node("/a") == Node(b"2", 1, 7)
    assert replica.names("/") == ("a",)


def test_after_a_restart_sessions_have_their_timeout_again() -> None:
    zookeeper = MemoryZooKeeper()
    MemoryConnection(zookeeper, lambda message: None).receive(OpenSession(0, 1_000), 0)
    zookeeper.restart(900)
    zookeeper.advance(1_899)
    assert len(zookeeper.sessions) == 1
    zookeeper.advance(1_900)
    assert not zookeeper.sessions


SUSPENDED = SessionChanged(SessionState.SUSPENDED)
EXPIRED = SessionChanged(SessionState.EXPIRED)


class ClientOfMemoryRegistry:
    def __init__(self, zookeeper: MemoryZooKeeper, **settings: Any) -> None:
        self.seen: list[Any] = []
        self.zookeeper = zookeeper
        self.link = MemoryLink(zookeeper, self.seen.append, **settings)

    def run(self, start: int, end: int) -> list[Any]:
        """Let time pass; return and forget what was delivered."""
        for now in range(start, end + 1, 100):
            self.link.advance(now)
        seen, self.seen[:] = self.seen[:], []
        return seen


def connected(session_id: int, timeout_ms: int = 6_000) -> SessionChanged:
    return SessionChanged(SessionState.CONNECTED, session_id, timeout_ms)


def test_pings_keep_an_idle_session() -> None:
    client = ClientOfMemoryRegistry(MemoryZooKeeper(), timeout_ms=3_000)
    assert client.run(0, 60_000) == [connected(client.link.registry.session_id, 3_000)]


def test_a_short_cut_leaves_the_session() -> None:
    client = ClientOfMemoryRegistry(MemoryZooKeeper())
    client.run(0, 1_000)
    session_id = client.link.registry.session_id
    client.link.cut(1_000)
    client.link.heal()
    assert client.run(1_000, 2_000) == [SUSPENDED, connected(session_id)]


@pytest.mark.parametrize("announces_expiry", [True, False])
def test_a_long_cut_leads_to_another_session(announces_expiry: bool) -> None:
    zookeeper = MemoryZooKeeper()
    client = ClientOfMemoryRegistry(zookeeper, announces_expiry=announces_expiry)
    client.run(0, 1_000)
    first = client.link.registry.session_id
    client.link.cut(1_000)
    assert client.run(1_000, 20_000) == [SUSPENDED], "without the server it cannot know that its session has ended"
    assert zookeeper.sessions == frozenset()
    client.link.heal()
    second = connected(first + 1)
    assert client.run(20_000, 25_000) == ([EXPIRED, second] if announces_expiry else [second])


@pytest.mark.parametrize("is_executed", [True, False])
def test_a_request_on_its_way_at_a_cut_is_lost(is_executed: bool) -> None:
    zookeeper = MemoryZooKeeper()
    client = ClientOfMemoryRegistry(zookeeper)
    client.run(0, 100)
    client.link.ask(Ask(1, Create("/a")))
    client.link.cut(100, is_executed=is_executed)
    client.link.ask(Ask(2, Create("/b")))
    lost = [Replied(token, Outcome.CONNECTION_LOSS) for token in (1, 2)]
    assert client.run(100, 1_000) == [SUSPENDED, *lost]
    assert zookeeper.names("/") == (("a",) if is_executed else ())


def test_a_watch_ends_with_its_connection() -> None:
    zookeeper = MemoryZooKeeper()
    client = ClientOfMemoryRegistry(zookeeper)
    client.run(0, 100)
    client.link.ask(Ask(1, Read("/a", watch=True)))
    client.run(100, 200)
    client.link.cut(200)
    client.link.heal()
    client.run(200, 500)
    zookeeper.write(Create("/a"))
    assert client.run(500, 1_000) == []
    client.link.ask(Ask(2, Read("/b", watch=True)))
    client.run(1_000, 1_100)
    zookeeper.write(Create("/b"))
    assert client.run(1_100, 1_200) == [Fired("/b")]


def test_a_silent_server_suspends_before_the_session_ends() -> None:
    """The network takes messages and brings none: the client notices at two thirds of the timeout."""
    zookeeper = MemoryZooKeeper()
    client = ClientOfMemoryRegistry(zookeeper)
    client.run(0, 100)
    client.link.is_cut = True
    assert client.run(200, 3_900) == []
    assert client.run(4_000, 4_100) == [SUSPENDED]
    assert len(zookeeper.sessions) == 1
