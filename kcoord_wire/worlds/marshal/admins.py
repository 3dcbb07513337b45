"""The admin's processes of a virtual cluster: what they pause and set, and the law of positions.

Law; if it is broken, `ViolationError`:

* ``positions``: the last position that an admin has written for a partition is the one that it reports: the new one for
  ``set``, the one from before for ``kept``.
"""

from __future__ import annotations

from random import Random
from typing import Any

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.marshal.admin import Admin, CommitPositions, Finished, Moved, PositionsCommitted, Result
from kcoord_wire.worlds.marshal.clients import LocalClock, LogProcess
from kcoord_wire.worlds.marshal.invariants import Invariants
from kcoord_wire.worlds.marshal.log import LATENCY_MS, VirtualLog
from kcoord_wire.worlds.marshal.topics import VirtualTopics


class AdminProcess(LogProcess):
    """An admin's process; it ends by itself.

    :ivar finished: what it has reported; None before
    """

    __slots__ = ("_admin", "_invariants", "_topics", "finished")

    def __init__(
        self,
        clock: VirtualClock,
        log: VirtualLog,
        topics: VirtualTopics,
        invariants: Invariants,
        name: str,
        admin: Admin,
        local: LocalClock,
        random: Random,
        lag_ms: tuple[int, int],
    ) -> None:
        self.finished: Finished | None = None
        self._admin = admin
        self._topics = topics
        self._invariants = invariants
        super().__init__(clock, log, name, admin, local, random, lag_ms, admin.reads)

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        match effect:
            case CommitPositions():
                self._clock.after(self.random.randint(*LATENCY_MS), self._commit, effect)
            case Finished():
                self.finished = effect
                self._clock.record(self.name, "finishes", effect)
                for moved in effect.positions:
                    self._check(moved)
            case _:
                super().carry_out(effect)

    def _commit(self, effect: CommitPositions) -> None:
        for place, offset in effect.offsets.items():
            self._topics.committed[self._admin.settings.group_id, *place] = offset
        self.deliver(PositionsCommitted(effect.request))

    def _check(self, moved: Moved) -> None:
        settings = self._admin.settings
        written = self._invariants.written_by(settings.instance_id, settings.group_id, *moved.place)
        expected = {Result.SET: moved.new, Result.KEPT: moved.old}.get(moved.result)
        if written is not None and expected is not None and written != expected:
            raise ViolationError("positions", f"{self.name} reports {moved}, and has written {written}")
