"""The brokers of one process at work: their listeners, and what happens when one stops, pauses or comes back.

Laws:

* A broker that stops hands over what it leads: leaders are elected among the others, parked requests of its groups are
  answered NOT_COORDINATOR, and the others load its groups and transactional ids from the log. Then its connections are
  closed, and later ones refused. Its port stays its own.
* A broker that is paused keeps its sockets: clients connect, and nothing is read or answered until it is resumed. What
  it led stays with it, or moves after a time, as when the controller fences a broker that sends no heartbeats
  (``broker.session.timeout.ms``).
* A broker that runs again leads what it led, as after an election of preferred leaders.
* An offset whose commit was acknowledged is found by the next coordinator: groups and transactions are loaded when
  everything appended before is on disk.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kcoord_wire.coordinator.core.brokers import Brokers, Leaders
from kcoord_wire.coordinator.durability import Durability
from kcoord_wire.coordinator.listener import Listener
from kcoord_wire.coordinator.scheduler import Scheduler
from kcoord_wire.coordinator.topics.catalog import Catalog

STOP_GRACE_MS: Final = 200  # for the last answers to leave


class BrokerState(enum.StrEnum):
    """What a broker does."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class Cluster:
    """All brokers, in one event loop.

    :param logs: of groups and of transactions, each with the leaders that coordinate what is in it
    :param listener: makes the listener of a broker
    :ivar listeners: of each broker; of one that is stopped, the closed one
    :ivar states: what each broker does
    """

    def __init__(
        self,
        brokers: Brokers,
        catalog: Catalog,
        logs: Sequence[tuple[Leaders, Durability]],
        scheduler: Scheduler,
        listener: Callable[[int], Listener],
    ) -> None:
        self.brokers = brokers
        self.listeners = [listener(broker) for broker in range(len(brokers.endpoints))]
        self.states = [BrokerState.RUNNING for _ in self.listeners]
        self._catalog = catalog
        self._logs = logs
        self._scheduler = scheduler
        self._make_listener = listener
        self._host = ""
        self._ports: list[int] = []
        self._tls: ssl.SSLContext | None = None
        self._failovers: dict[int, asyncio.TimerHandle] = {}

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> list[int]:
        """Open the sockets of all brokers, and return their ports: the one given and those that follow it, or free
        ones where 0 is given.

        :raises OSError: a port is taken, or the host is not an address of this machine
        """
        self._host, self._tls = host, tls
        for at, listener in enumerate(self.listeners):
            self._ports.append(await listener.listen(host, port and port + at, tls))
        return self._ports

    # ---- what befalls brokers

    async def move_coordinator(self, group_id: str, to: int) -> None:
        """Let a broker coordinate a group, with all groups of the same partition of ``__consumer_offsets``, from now
        on; return when it has loaded them.

        :raises ValueError: there is no such broker, or it does not run
        """
        if not self.brokers.runs(self._known(to)):
            raise ValueError(f"broker {to} does not run")
        self.brokers.groups.move(self.brokers.partition_of_group(group_id), to)
        await self._elect([self.brokers.groups])

    async def stop(self, broker: int) -> None:
        """Stop a broker: what it leads moves, then its connections are closed. Nothing happens if it is stopped.

        :raises ValueError: there is no such broker
        """
        if self.states[self._known(broker)] is BrokerState.STOPPED:
            return
        self.states[broker] = BrokerState.STOPPED
        await self._set_running(broker, False)
        listener = self.listeners[broker]
        await listener.stop_accepting()
        await listener.close(STOP_GRACE_MS)

    async def restart(self, broker: int) -> None:
        """Start a stopped broker again at its port; one that runs or is paused is stopped before.

        :raises ValueError: there is no such broker
        :raises OSError: another program has taken the port; the broker stays stopped
        """
        await self.stop(broker)
        self.listeners[broker] = listener = self._make_listener(broker)
        await listener.listen(self._host, self._ports[broker], self._tls)
        self.states[broker] = BrokerState.RUNNING
        await self._set_running(broker, True)

    def pause(self, broker: int, failover_ms: int | None = None) -> None:
        """Pause a running broker: its sockets stay, nothing is read or answered. Nothing happens to another one.

        :param failover_ms: what it leads moves to others after so long; None leaves it there
        :raises ValueError: there is no such broker
        """
        if self.states[self._known(broker)] is not BrokerState.RUNNING:
            return
        self.states[broker] = BrokerState.PAUSED
        self.listeners[broker].pause()
        if failover_ms is not None:
            loop = asyncio.get_running_loop()
            self._failovers[broker] = loop.call_later(failover_ms / 1000, self._fail_over, broker)

    async def resume(self, broker: int) -> None:
        """Let a paused broker go on. Nothing happens to one that is not paused.

        :raises ValueError: there is no such broker
        """
        if self.states[self._known(broker)] is not BrokerState.PAUSED:
            return
        self.states[broker] = BrokerState.RUNNING
        self.listeners[broker].resume()
        await self._set_running(broker, True)

    def _known(self, broker: int) -> int:
        if type(broker) is not int or not 0 <= broker < len(self.listeners):
            raise ValueError(f"there is no broker {broker!r}; there are 0 to {len(self.listeners) - 1}")
        return broker

    # ---- elections

    def _fail_over(self, broker: int) -> None:
        self.brokers.set_running(broker, False)
        self._begin_election(self._all())

    async def _set_running(self, broker: int, runs: bool) -> None:
        timer = self._failovers.pop(broker, None)
        if timer is not None:
            timer.cancel()
        self.brokers.set_running(broker, runs)
        await self._elect(self._all())

    def _all(self) -> list[Leaders]:
        return [self.brokers.groups, self.brokers.transactions, *(topic.leaders for topic in self._catalog)]

    async def _elect(self, changed: Iterable[Leaders]) -> None:
        """Elect the leaders of topics, and return when the groups and transactions that have moved are loaded."""
        for loading in self._begin_election(changed):
            await asyncio.shield(loading)

    def _begin_election(self, changed: Iterable[Leaders]) -> list[asyncio.Task[None]]:
        loading = []
        for leaders in changed:
            moved = leaders.elect()
            self._catalog.raise_epochs(leaders, moved)
            for of_log, log in self._logs:
                if moved and leaders is of_log:
                    loading.append(log.reload(frozenset(moved), self._scheduler.settle))
        self._scheduler.settle()
        return loading

    # ---- the end

    async def stop_accepting(self) -> None:
        """Close the listening sockets of all brokers."""
        for timer in self._failovers.values():
            timer.cancel()
        for listener in self.listeners:
            await listener.stop_accepting()

    async def close(self, grace_ms: int) -> None:
        """Close the connections of all brokers: in order, and after `grace_ms` at once."""
        await asyncio.gather(*(listener.close(grace_ms) for listener in self.listeners))
