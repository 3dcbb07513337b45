"""ZooKeeper on the virtual clock: sessions, cuts, pauses, followers that are behind, an ensemble that is down."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.worlds.central.zookeeper import VirtualRegistry, VirtualZooKeeper
from kcoord_wire.zookeeper.requests import (
    Ask,
    Create,
    Fired,
    Outcome,
    Read,
    ReadChildren,
    Replied,
    Request,
    SessionChanged,
    SessionState,
    SetData,
)

TIMEOUT_MS = 6_000
CONNECTED, SUSPENDED, EXPIRED = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.EXPIRED


class Client:
    """A client that writes down when it got what."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        self.world = world
        self.seen: list[tuple[int, Any]] = []
        self.registry: VirtualRegistry = world.zookeeper.client(
            name, lambda event: self.seen.append((world.clock.now, event)), Random(seed), timeout_ms=TIMEOUT_MS
        )
        self.token = 0

    def ask(self, request: Request) -> int:
        self.token += 1
        self.registry.ask(Ask(self.token, request))
        return self.token

    def answer(self, request: Request) -> Any:
        token = self.ask(request)
        self.world.clock.run(20)
        [reply] = [event for _, event in self.seen if isinstance(event, Replied) and event.token == token]
        return reply.value if reply.outcome is Outcome.OK else reply.outcome

    @property
    def states(self) -> list[SessionState]:
        return [event.state for _, event in self.seen if isinstance(event, SessionChanged)]

    def when(self, state: SessionState) -> int:
        return max(at for at, event in self.seen if isinstance(event, SessionChanged) and event.state is state)


class World:
    def __init__(self, lag_ms: tuple[int, int] = (0, 0)) -> None:
        self.clock = VirtualClock()
        self.written: list[tuple[str, int]] = []
        self.zookeeper = VirtualZooKeeper(
            self.clock,
            Random(1),
            lag_ms=lag_ms,
            on_write=lambda writes, session_id: self.written.extend((write.path, session_id) for write in writes),
        )
        self.a, self.b = Client(self, "a", 2), Client(self, "b", 3)
        self.clock.run(100)


@pytest.fixture
def world() -> World:
    return World()


def test_clients_connect_write_and_watch(world: World) -> None:
    assert world.b.answer(Read("/x", watch=True)) is None
    assert world.a.answer(Create("/x", b"1", is_ephemeral=True)) is None
    assert world.b.seen[-1][1] == Fired("/x")
    assert world.b.answer(Read("/x")).ephemeral_owner == world.a.registry.session_id
    assert world.written == [("/x", world.a.registry.session_id)]
    assert world.zookeeper.clients == {world.a.registry.session_id: "a", world.b.registry.session_id: "b"}


@pytest.mark.parametrize("seed", range(6))
def test_a_write_without_an_answer_may_have_happened(seed: int) -> None:
    outcomes = set()
    for number in range(8):
        world = World()
        client = Client(world, "c", seed * 8 + number)
        world.clock.run(100)
        client.ask(Create("/x"))
        client.registry.reset()
        world.clock.run(1_000)
        assert client.states == [CONNECTED, SUSPENDED, CONNECTED]
        assert client.seen[-2][1] == Replied(1, Outcome.CONNECTION_LOSS)
        outcomes.add(world.zookeeper.leader.node("/x") is not None)
    assert outcomes == {True, False}


def test_a_short_cut_is_not_noticed(world: World) -> None:
    world.a.registry.cut(3_000)
    token = world.a.ask(Create("/x"))
    world.clock.run(2_990)
    assert [event for _, event in world.a.seen[1:]] == []
    world.clock.run(30)
    assert [event for _, event in world.a.seen[1:]] == [Replied(token)]


@pytest.mark.parametrize("way", [{}, {"up": False}, {"down": False}], ids=["both", "answers", "requests"])
def test_a_cut_suspends_after_two_thirds_of_the_session(world: World, way: dict[str, bool]) -> None:
    start = world.clock.now
    world.a.registry.cut(20_000, **way)
    world.clock.run(25_000)
    states = world.a.states
    assert states in ([CONNECTED, SUSPENDED, CONNECTED], [CONNECTED, SUSPENDED, EXPIRED, CONNECTED])
    assert world.a.when(SUSPENDED) - start <= TIMEOUT_MS * 2 // 3
    assert world.a.when(CONNECTED) - start >= 20_000
    assert world.a.registry.session_id == max(world.zookeeper.clients)


def test_a_session_expires_before_its_client_knows(world: World) -> None:
    world.a.answer(Create("/x", is_ephemeral=True))
    world.b.answer(Read("/x", watch=True))
    world.a.registry.cut(10_000)
    world.clock.run(7_000)
    assert world.b.seen[-1][1] == Fired("/x")
    assert world.a.states == [CONNECTED, SUSPENDED]


def test_a_paused_client_gets_the_news_after_it_resumes(world: World) -> None:
    world.a.answer(Create("/x", is_ephemeral=True))
    seen = len(world.a.seen)
    world.a.registry.pause()
    world.clock.run(9_000)
    assert world.zookeeper.leader.node("/x") is None
    assert len(world.a.seen) == seen
    resumed = world.clock.now
    world.a.registry.resume()
    token = world.a.ask(SetData("/x", b""))  # acts before its client has read anything
    world.clock.run(2_000)
    late = [event for _, event in world.a.seen[seen:]]
    assert next(event.state for event in late if isinstance(event, SessionChanged)) is SUSPENDED
    assert world.a.states[-1] is CONNECTED
    assert Replied(token, Outcome.CONNECTION_LOSS) in late
    assert world.a.seen[seen][0] <= resumed + 200
    assert world.written[-1][1] == 0  # the node was deleted with its session; the late write has changed nothing


def test_a_client_without_expired_connects_anew(world: World) -> None:
    """CURATOR-220: some clients get CONNECTED with another session id, and nothing between."""
    seen = set()
    for seed in range(12):
        client = Client(world, "c", 100 + seed)
        world.clock.run(50)
        former = client.registry.session_id
        world.zookeeper.expire(former)
        world.clock.run(500)
        assert client.registry.session_id not in (0, former)
        seen.add(tuple(client.states))
    assert seen == {(CONNECTED, SUSPENDED, CONNECTED), (CONNECTED, SUSPENDED, EXPIRED, CONNECTED)}


def test_a_killed_client_keeps_its_session_until_it_expires(world: World) -> None:
    world.a.answer(Create("/x", is_ephemeral=True))
    world.a.registry.kill()
    world.clock.run(TIMEOUT_MS // 2)
    assert world.zookeeper.leader.node("/x") is not None
    world.clock.run(TIMEOUT_MS)
    assert world.zookeeper.leader.node("/x") is None
    assert world.zookeeper.leader.sessions == {world.b.registry.session_id}


def test_a_follower_is_behind_for_others_but_not_for_the_writer(world: World) -> None:
    for number in range(3):
        world.zookeeper.lag(number, 4_000)
    readers = [Client(world, f"r{number}", 10 + number) for number in range(8)]  # more than one a follower
    world.clock.run(50)
    assert world.a.answer(Create("/x", b"1")) is None
    assert world.a.answer(Read("/x")) is not None
    assert world.a.answer(ReadChildren("/")) == ("x",)
    found = [reader.answer(Read("/x")) for reader in readers]
    assert None in found
    world.zookeeper.heal()
    assert None not in [reader.answer(Read("/x")) for reader in readers]


def test_a_client_that_connects_again_has_not_seen_more(world: World) -> None:
    """Single system image: its next server has at least what its last one had."""
    for number in range(3):
        world.zookeeper.lag(number, 4_000)
    world.a.answer(Create("/x"))
    for _ in range(6):
        world.a.registry.reset()
        world.clock.run(200)
        assert world.a.answer(Read("/x")) is not None


def test_no_session_expires_while_zookeeper_is_down(world: World) -> None:
    sessions = world.zookeeper.leader.sessions
    world.zookeeper.stop(20_000)
    world.clock.run(19_000)
    assert world.a.states == [CONNECTED, SUSPENDED]
    assert world.a.answer(Read("/x")) is Outcome.CONNECTION_LOSS
    world.clock.run(5_000)
    assert world.zookeeper.leader.sessions == sessions
    assert world.a.states == [CONNECTED, SUSPENDED, CONNECTED]


def test_healing_ends_all_faults(world: World) -> None:
    world.a.registry.cut(60_000)
    world.zookeeper.stop(60_000)
    world.clock.run(8_000)
    world.zookeeper.heal()
    world.clock.run(3_000)
    assert world.a.states[-1] is world.b.states[-1] is CONNECTED


def test_a_lost_write_may_be_missing_after_the_reconnect(world: World) -> None:
    """The client has not seen it, so its next server may be one that does not have it yet."""
    found = set()
    for number in range(24):
        world = World()
        for follower in range(3):
            world.zookeeper.lag(follower, 4_000)
        client = Client(world, "c", 200 + number)
        world.clock.run(100)
        client.ask(Create("/x"))
        client.registry.reset()
        world.clock.run(500)
        if world.zookeeper.leader.node("/x") is not None:
            found.add(client.answer(Read("/x")) is not None)
    assert False in found
