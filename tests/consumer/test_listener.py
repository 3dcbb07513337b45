"""The listener's calls: their order, what is left out, and what happens when one fails."""

from __future__ import annotations

import asyncio

import pytest

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.client import Callbacks, RebalanceListener
from kcoord_wire.consumer.errors import ListenerError
from kcoord_wire.consumer.events import Assigned, Lost, Revoking
from kcoord_wire.consumer.positions import Positions
from tests.support.consumers import NotingListener, partitions


class Host:
    """Callbacks with what they report; `during` is called within `on_revoked` and `on_assigned`."""

    def __init__(self, listener: RebalanceListener | None = None) -> None:
        self.positions = Positions("earliest")
        self.released: list[int] = []
        self.revoking: list[frozenset[TopicPartition]] = []
        self.callbacks = Callbacks(self.positions, self.revoking.append, self.released.append)
        self.callbacks.listener = listener or NotingListener()

    def run(self, *events: Assigned | Revoking | Lost) -> None:
        for event in events:
            self.callbacks.add(event)
        asyncio.run(self.callbacks.run())

    @property
    def calls(self) -> list[tuple[str, tuple[int, ...]]]:
        assert isinstance(self.callbacks.listener, NotingListener)
        return self.callbacks.listener.calls


def test_the_listener_follows_the_member() -> None:
    host = Host()
    host.run(Assigned(1, partitions(0, 1)))
    assert host.positions.announced == partitions(0, 1)
    host.run(Revoking(1, partitions(1)), Assigned(2, frozenset()))
    assert (host.revoking, host.released) == ([partitions(1)], [1])
    assert host.positions.announced == partitions(0)
    host.run(Lost(partitions(0)))
    assert host.calls == [("assigned", (0, 1)), ("revoked", (1,)), ("assigned", ()), ("lost", (0,))]


def test_what_is_lost_before_it_is_announced_is_not_mentioned() -> None:
    host = Host()
    host.run(Assigned(1, partitions(0, 1)), Revoking(1, partitions(1)), Lost(partitions(0, 1)))
    assert host.calls == []
    assert list(host.positions) == []
    assert not host.callbacks.are_waiting


def test_partitions_lost_during_revocation_are_revoked_and_lost() -> None:
    class Slow(NotingListener):
        async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            host.callbacks.add(Lost(partitions))
            self._note("revoked", partitions)

    host = Host(Slow())
    host.run(Assigned(1, partitions(0)), Revoking(1, partitions(0)))
    assert host.calls == [("assigned", (0,)), ("revoked", (0,)), ("lost", (0,))]


def test_partitions_lost_while_they_are_announced_are_lost() -> None:
    class Slow(NotingListener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            self._note("assigned", partitions)
            host.callbacks.add(Lost(partitions))

    host = Host(Slow())
    host.run(Assigned(1, partitions(0)))
    assert host.calls == [("assigned", (0,)), ("lost", (0,))]
    assert host.positions.announced == frozenset()


class Raising(RebalanceListener):
    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        raise KeyError("assigned")

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        raise KeyError("revoked")


def test_a_listener_that_raises_keeps_nothing_back() -> None:
    host = Host(Raising())
    with pytest.raises(ListenerError) as raised:
        host.run(Assigned(1, partitions(0)), Revoking(7, partitions(0)))
    assert (raised.value.method, raised.value.partitions) == ("on_assigned", partitions(0))
    assert host.positions.announced == partitions(0), "it is assigned all the same"
    with pytest.raises(ListenerError, match="on_revoked"):
        host.run()
    assert host.released == [7]
    host.run(Lost(partitions(0)))
    assert not host.callbacks.are_waiting


def test_a_listener_that_is_cancelled_gives_up_its_partitions() -> None:
    class Endless(RebalanceListener):
        async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            await asyncio.Event().wait()

    async def run() -> None:
        host.callbacks.add(Assigned(1, partitions(0)))
        host.callbacks.add(Revoking(7, partitions(0)))
        async with asyncio.timeout(0.01):
            await host.callbacks.run()

    host = Host(Endless())
    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert host.released == [7]
    assert list(host.positions) == []


def test_losing_is_revoking_unless_the_listener_says_otherwise() -> None:
    class Revoked(RebalanceListener):
        def __init__(self) -> None:
            self.revoked: list[frozenset[TopicPartition]] = []

        def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            self.revoked.append(partitions)

    listener = Revoked()
    host = Host(listener)
    host.run(Assigned(1, partitions(0)))
    host.run(Lost(partitions(0)))
    assert listener.revoked == [partitions(0)]


def test_giving_up_all_at_the_end() -> None:
    host = Host()
    host.run(Assigned(1, partitions(0)))
    host.callbacks.add(Assigned(2, partitions(1)))
    asyncio.run(host.callbacks.revoke_all())
    assert host.calls == [("assigned", (0,)), ("revoked", (0,))]
    assert list(host.positions) == []
    assert not host.callbacks.are_waiting
