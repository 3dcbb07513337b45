"""The rebalance listener, and the queue of the changes that it has not been called for.

Laws:

* The listener's methods run one after another, in the order of the events, in the task that calls `Callbacks.run`.
* A partition is announced by `on_assigned` once, and ends by one `on_revoked` or one `on_lost`; by both if it is lost
  while `on_revoked` runs. Partitions that are lost before they are announced are never mentioned.
* Whatever a method does, partitions that were to be given up are given up when it ends: the group never waits for an
  application that has failed.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.events import Assigned, Lost, Revoking
from kcoord_wire.consumer.failures import ListenerError
from kcoord_wire.consumer.positions import Positions

Partitions = frozenset[TopicPartition]

_NONE: Final[Partitions] = frozenset()


class RebalanceListener:
    """What happens to an application's partitions. Each method may be a coroutine function.

    The methods run within `Consumer.poll` (and `close`, `unsubscribe`), in the task that polls. Heartbeats go on
    meanwhile, but the group waits: after the rebalance timeout (``max_poll_interval_ms``) the coordinator removes the
    member. An error is raised by that poll as `ListenerError`; the rebalance goes on as if the method had returned.

    Source: kafka/clients `ConsumerRebalanceListener.java`; KIP-429.
    """

    def on_revoked(self, partitions: Partitions) -> Awaitable[None] | None:
        """Give up partitions that this consumer still owns: finish work, commit. Never called with none."""

    def on_assigned(self, partitions: Partitions) -> Awaitable[None] | None:
        """A rebalance has ended, and these partitions are new; none are if the assignment has not grown."""

    def on_lost(self, partitions: Partitions) -> Awaitable[None] | None:
        """Partitions are lost: another member may own them already, and commits for them fail. Never called with none.

        Calls `on_revoked` unless overridden, as in Java.
        """
        return self.on_revoked(partitions)


class Callbacks:
    """Keeps events about partitions until the application polls.

    :param revoking: called before `on_revoked`, with the partitions
    :param released: called when the partitions of a `Revoking` are given up, with its ticket
    """

    def __init__(
        self, positions: Positions, revoking: Callable[[Partitions], None], released: Callable[[int], None]
    ) -> None:
        self.listener = RebalanceListener()
        self._positions = positions
        self._revoking = revoking
        self._released = released
        self._queue: deque[Assigned | Revoking | Lost] = deque()
        self._announcing = _NONE

    @property
    def are_waiting(self) -> bool:
        """Whether there is anything to call the listener for."""
        return bool(self._queue)

    def add(self, event: Assigned | Revoking | Lost) -> None:
        """Take in what the member reports."""
        if isinstance(event, Assigned):
            self._positions.assign(event.partitions)
        elif isinstance(event, Lost):
            self._forget_what_is_over()
            known = event.partitions & (self._positions.announced | self._announcing)
            self._positions.drop(event.partitions)
            if not known:
                return
            event = Lost(known)
        self._queue.append(event)

    async def run(self) -> None:
        """Call the listener for everything that has happened.

        :raises ListenerError: a method has failed; the events after it wait for the next call
        """
        while self._queue:
            event = self._queue.popleft()
            match event:
                case Assigned():
                    await self._assigned(event.partitions)
                case Revoking():
                    self._revoking(event.partitions)
                    try:
                        await self._revoke(event.partitions)
                    finally:
                        self._released(event.ticket)
                case Lost():
                    await self._call("on_lost", event.partitions)

    async def _assigned(self, partitions: Partitions) -> None:
        self._announcing = partitions
        try:
            await self._call("on_assigned", partitions)
        finally:
            self._announcing = _NONE
            self._positions.announce(partitions)

    async def revoke_all(self) -> None:
        """Let the listener give up everything, because the member leaves.

        :raises ListenerError: it has failed
        """
        self._forget_what_is_over()
        try:
            await self.run()
        finally:
            await self._revoke(frozenset(state.partition for state in self._positions))

    def _forget_what_is_over(self) -> None:
        """Drop what was still to be announced or given up; what is lost remains so."""
        self._queue = deque(each for each in self._queue if isinstance(each, Lost))

    async def _revoke(self, partitions: Partitions) -> None:
        try:
            known = partitions & self._positions.announced
            if known:
                await self._call("on_revoked", known)
        finally:
            self._positions.drop(partitions)

    async def _call(self, method: str, partitions: Partitions) -> None:
        try:
            result = getattr(self.listener, method)(partitions)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            raise ListenerError(method, partitions) from error
