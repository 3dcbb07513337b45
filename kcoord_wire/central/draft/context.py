"""What the parts of an elected coordinator share: the epoch, time, and the ways out.

Laws:

* Everything that is written to ZooKeeper goes through `write`, so it fails once another coordinator has been elected;
  `is_fenced_off` then says so, and the coordinator resigns after the event.
* A `Multi` has at most `MOST_WRITES` writes, so it stays below ZooKeeper's limit of 1 MB for a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from kcoord_wire.central.draft.events import CoordinatorSettings, Fence
from kcoord_wire.central.draft.groups import Group, Groups, Member
from kcoord_wire.kernel.machines import BrokerAddress, Close, Noted, Send
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.kernel.timers import Timers
from kcoord_wire.zookeeper.leadership import is_fenced_off
from kcoord_wire.zookeeper.model import Multi, Write
from kcoord_wire.zookeeper.procedures import RegistryError, ZooKeeperProcedures

MOST_WRITES: Final = 200  # of a Multi: paths have at most 800 bytes


class Context:
    """One term of an elected coordinator.

    :param guarded: makes a `Multi` that only the leader of this epoch can execute
    :param brokers: returns those of the cluster
    :ivar elected_at: ms
    :ivar now: of the present event, ms
    :ivar has_topics: the topics and their partitions have been read; until then no rebalance begins
    :ivar least_generation: of groups that are new in memory; so a group that was dropped goes on counting
    :ivar is_fenced_off: another coordinator has been elected
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        epoch: int,
        elected_at: int,
        emit: Callable[[Any], None],
        guarded: Callable[..., Multi],
        brokers: Callable[[], Sequence[BrokerAddress]],
        make_procedures: Callable[[Timers], ZooKeeperProcedures],
    ) -> None:
        self.settings = settings
        self.epoch = epoch
        self.elected_at = self.now = elected_at
        self.emit = emit
        self.brokers = brokers
        self.groups = Groups()
        self.timers = Timers()
        self.procedures = make_procedures(self.timers)
        self.has_topics = False
        self.least_generation = 0
        self.is_fenced_off = False
        self._guarded = guarded

    def start(self, procedure: Procedure) -> Procedure:
        """Run a procedure until it first waits."""
        return self.procedures.start(procedure, self.now)

    def note(self, level: int, what: str, **facts: Any) -> None:
        """Log something."""
        self.emit(Noted(level, what, facts))

    def send(self, member: Member, message: Any) -> None:
        """Send a message to a consumer."""
        self.emit(Send(member.connection, message))

    def close(self, member: Member) -> None:
        """Close a consumer's connection."""
        self.emit(Close(member.connection))

    def fence(self, member: Member, generation: int) -> Fence | None:
        """Return the fence for a message to a consumer; None if it did not ask for one."""
        return Fence(self.epoch, generation) if member.is_fenced else None

    def write(self, groups: Sequence[Group], writes: Iterable[Write]) -> Procedure:
        """Execute writes to the nodes of some groups, in their order; a part of other procedures.

        :raises RegistryError: one failed; the stores of these groups are then unknown
        """
        left = iter(writes)
        try:
            while batch := list(islice(left, MOST_WRITES)):
                yield self._guarded(*batch)
        except RegistryError as error:
            for group in groups:
                group.store.forget()
            if is_fenced_off(error):
                self.is_fenced_off = True
            else:
                self.note(logging.WARNING, "write failed", group=groups[0].group_id, reason=str(error))
            raise
