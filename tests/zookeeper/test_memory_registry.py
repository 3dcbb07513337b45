"""The client in memory: suspended, expired, and what becomes of requests meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.zookeeper.memory import MemoryLink, MemoryZooKeeper
from kcoord_wire.zookeeper.model import Ask, Create, Fired, Outcome, Read, Replied, SessionChanged, SessionState

SUSPENDED = SessionChanged(SessionState.SUSPENDED)
EXPIRED = SessionChanged(SessionState.EXPIRED)


class Client:
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
    client = Client(MemoryZooKeeper(), timeout_ms=3_000)
    assert client.run(0, 60_000) == [connected(client.link.registry.session_id, 3_000)]


def test_a_short_cut_leaves_the_session() -> None:
    client = Client(MemoryZooKeeper())
    client.run(0, 1_000)
    session_id = client.link.registry.session_id
    client.link.cut(1_000)
    client.link.heal()
    assert client.run(1_000, 2_000) == [SUSPENDED, connected(session_id)]


@pytest.mark.parametrize("announces_expiry", [True, False])
def test_a_long_cut_leads_to_another_session(announces_expiry: bool) -> None:
    zookeeper = MemoryZooKeeper()
    client = Client(zookeeper, announces_expiry=announces_expiry)
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
    client = Client(zookeeper)
    client.run(0, 100)
    client.link.ask(Ask(1, Create("/a")))
    client.link.cut(100, is_executed=is_executed)
    client.link.ask(Ask(2, Create("/b")))
    lost = [Replied(token, Outcome.CONNECTION_LOSS) for token in (1, 2)]
    assert client.run(100, 1_000) == [SUSPENDED, *lost]
    assert zookeeper.names("/") == (("a",) if is_executed else ())


def test_a_watch_ends_with_its_connection() -> None:
    zookeeper = MemoryZooKeeper()
    client = Client(zookeeper)
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
    client = Client(zookeeper)
    client.run(0, 100)
    client.link.is_cut = True
    assert client.run(200, 3_900) == []
    assert client.run(4_000, 4_100) == [SUSPENDED]
    assert len(zookeeper.sessions) == 1
