"""The simulated network: order, latency, loss, cuts, and servers that restart."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kcoord_wire.kernel.virtual.clock import EPOCH_MS, VirtualClock
from kcoord_wire.kernel.virtual.network import Loss, Network, VirtualConnection
from kcoord_wire.kernel.virtual.processes import Process


class Idle:
    """A machine that does nothing."""

    deadline = None

    def handle(self, event: Any, now: int) -> list[Any]:
        return []


class IdleProcess(Process):
    """Its machine wants nothing."""


class StubServer:
    boot = 1
    is_up = True


class RecordingNetwork(Network[VirtualConnection]):
    """Writes down what happens on it."""

    def __init__(self, clock: VirtualClock, latency_ms: tuple[int, int]) -> None:
        super().__init__(clock, latency_ms)
        self.seen: list[tuple[Any, ...]] = []

    def arrived(self, connection: VirtualConnection, *message: Any) -> None:
        self.seen.append((self._clock.now, "arrived", *message))

    def returned(self, connection: VirtualConnection, *message: Any) -> None:
        self.seen.append((self._clock.now, "returned", *message))

    def disconnected(self, connection: VirtualConnection) -> None:
        self.seen.append((self._clock.now, "disconnected"))

    def closing(self, connection: VirtualConnection) -> None:
        self.seen.append((self._clock.now, "closing"))


class World:
    """One process, one server, and a network between them."""

    def __init__(self, latency_ms: tuple[int, int] = (10, 10)) -> None:
        self.clock = VirtualClock()
        self.network = RecordingNetwork(self.clock, latency_ms)
        self.server = StubServer()
        self.process = IdleProcess(self.clock, "p", self.network.host_of("p"), Idle(), Random(1))
        self.connection = self.connect()

    def connect(self) -> VirtualConnection:
        self.process.connection = self.network.connect(self.process, self.server, "10.0.0.1:9")
        return self.process.connection

    def what(self) -> list[Any]:
        return [line[1:] for line in self.network.seen]


def test_messages_of_a_connection_arrive_in_order() -> None:
    world = World((1, 100))
    for number in range(20):
        world.network.send_to_server(world.connection, number)
        assert world.network.send_to_process(world.connection, number)
    world.clock.run(100)
    for way in ("arrived", "returned"):
        assert [line[1] for line in world.what() if line[0] == way] == list(range(20))


def test_hosts_and_connections_have_names() -> None:
    world = World()
    assert world.connection.name == "10.0.1.2:32769-10.0.0.1:9#1"
    hosts = [world.network.host_of(str(number)) for number in range(251)]
    assert hosts[0] == "10.0.1.3"
    assert hosts[-1] == "10.0.2.3"
    assert world.network.host_of("7") == hosts[7]


def test_a_lossy_network_drops_messages_or_resets() -> None:
    world = World()
    world.network.loss = Loss(EPOCH_MS + 50, drop=1.0)
    world.network.send_to_server(world.connection, "lost")
    world.network.loss = Loss(EPOCH_MS + 50, reset=1.0)
    assert not world.network.send_to_process(world.connection, "lost too")
    world.clock.run(60)
    assert world.what() == [("closing",), ("disconnected",)]
    world.connect()
    world.network.send_to_server(world.process.connection, "the loss has ended")
    world.clock.run(10)
    assert world.what()[-1] == ("arrived", "the loss has ended")


def test_a_cut_connection_is_reset_by_the_next_message() -> None:
    world = World()
    world.process.cut_until = EPOCH_MS + 50
    world.network.send_to_server(world.connection, "lost")
    world.clock.run(60)
    assert world.what() == []
    world.network.send_to_server(world.connection, "lost too")
    world.clock.run(60)
    assert world.what() == [("closing",), ("disconnected",)]
    assert world.process.connection is None


@pytest.mark.parametrize("is_up", [True, False])
def test_a_connection_to_an_earlier_boot_is_reset(is_up: bool) -> None:
    world = World()
    world.network.send_to_server(world.connection, "a")
    world.clock.run(10)
    world.server.boot, world.server.is_up = 2, is_up
    world.network.send_to_server(world.connection, "b")
    world.clock.run(20)
    assert world.what() == [("arrived", "a"), ("closing",), ("disconnected",)]


def test_a_crash_of_the_server_resets_what_it_can_reach() -> None:
    world = World()
    world.connection.boot = 1
    world.network.crashed(world.server)
    assert not world.connection.is_open
    other = World()
    other.process.cut_until = EPOCH_MS + 50
    other.connection.boot = 1
    other.network.crashed(other.server)
    assert other.connection.is_open
    assert other.connection.is_broken


def test_a_closed_connection_delivers_nothing() -> None:
    world = World()
    world.network.send_to_server(world.connection, "on its way")
    world.network.close(world.connection)
    world.network.close(world.connection)
    world.clock.run(20)
    assert world.what() == [("closing",)]


def test_the_reset_of_a_closed_connection_is_not_noticed() -> None:
    world = World()
    world.network.send_to_process(world.connection, "on its way")
    world.network.reset(world.connection)
    world.network.hang_up_all(world.process)
    assert world.process.connection is None
    world.connect()
    world.clock.run(20)
    assert world.what() == [("closing",)]
    assert world.process.connection is not None


class NamedNetwork(RecordingNetwork):
    def returned(self, connection: VirtualConnection, *message: Any) -> None:
        self.seen.append((connection.name[-2:], *message))

    def disconnected(self, connection: VirtualConnection) -> None:
        self.seen.append((connection.name[-2:], "disconnected"))


def test_a_process_may_have_several_connections() -> None:
    world = World()
    world.network = NamedNetwork(world.clock, (10, 10))
    one, other = world.connect(), world.connect()
    for connection in (one, other):
        world.network.send_to_process(connection, "a")
    world.network.reset(one)
    world.clock.run(20)
    assert world.network.seen[1:] == [("#1", "a"), ("#2", "a"), ("#1", "disconnected")]
    world.network.send_to_process(other, "b")
    world.clock.run(20)
    assert world.network.seen[-1] == ("#2", "b")
    world.network.hang_up_all(world.process)
    assert list(world.network.open) == []
    assert world.process.connection is None
