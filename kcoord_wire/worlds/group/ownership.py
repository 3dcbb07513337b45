"""Which process holds which partition, and how long partitions had no holder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.processes import Process


class Idle(NamedTuple):
    """Time without a holder, in ms, summed over the partitions.

    :ivar revoked: after a rebalance took a partition from a member that lived on: what eager members stop for
    :ivar abandoned: after the holder had left, crashed or was removed
    """

    revoked: int
    abandoned: int


ProcessT = TypeVar("ProcessT", bound=Process)


class Ownership(Generic[ProcessT]):
    """The holder of each partition. Times count from the first holder of a partition on."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._holders: dict[TopicPartition, ProcessT] = {}
        self._orphaned: dict[TopicPartition, tuple[int, bool]] = {}  # since when, and whether it was revoked
        self._idle = Idle(0, 0)

    def holder(self, partition: TopicPartition) -> ProcessT | None:
        """Return the process that holds a partition."""
        return self._holders.get(partition)

    def held_by(self, process: ProcessT) -> list[TopicPartition]:
        """Return the partitions that a process holds."""
        return [partition for partition, holder in self._holders.items() if holder is process]

    def take(self, process: ProcessT, partition: TopicPartition) -> None:
        """A process holds a partition from now on."""
        self._holders[partition] = process
        orphaned = self._orphaned.pop(partition, None)
        if orphaned is not None:
            self._idle = self._with(self._idle, *orphaned)

    def drop(self, process: ProcessT, partitions: Iterable[TopicPartition], *, revoked: bool = False) -> None:
        """A process no longer holds these partitions, if it did.

        :param revoked: a rebalance took them from it
        """
        for partition in partitions:
            if self._holders.get(partition) is process:
                del self._holders[partition]
                self._orphaned[partition] = (self._clock.time_ms, revoked)

    def idle_ms(self) -> Idle:
        """Return the time without a holder so far."""
        idle = self._idle
        for since, revoked in self._orphaned.values():
            idle = self._with(idle, since, revoked)
        return idle

    def _with(self, idle: Idle, since: int, revoked: bool) -> Idle:
        ms = self._clock.time_ms - since
        return Idle(idle.revoked + ms, idle.abandoned) if revoked else Idle(idle.revoked, idle.abandoned + ms)
