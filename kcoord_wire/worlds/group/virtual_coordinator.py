"""The coordinator of a virtual cluster: the real machine with its log, on a virtual clock and a disk that fails.

Laws (besides those of `worlds.host`):

* There are two brokers in one process, as in `coordinator.server`; one coordinates all groups. A request reaches the
  broker that its connection leads to, and is routed there as on the server.
* When the coordinator moves, parked requests are refused, and the groups are read again when all that was appended is
  on disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final, Protocol

from kcoord_wire import messages as m
from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.brokers import Brokers, route
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import Phase, RebalanceAccount, RebalanceReport, Request
from kcoord_wire.coordinator.core.groups import TopicNames
from kcoord_wire.coordinator.host import DurableLog, Runtime
from kcoord_wire.coordinator.log.store import Store, Sync
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.worlds.group.laws import Invariants
from kcoord_wire.worlds.host import CheckedMachine, VirtualHost

_ENDPOINTS: Final = [Endpoint(1, "127.0.0.1", 9092), Endpoint(2, "127.0.0.1", 9092)]  # connections know their broker


class Caller(Protocol):
    """Who gets the answer to a request."""

    def answered(self, message: Any) -> None:
        """The coordinator has answered."""

    def dropped(self) -> None:
        """The coordinator has crashed and will not answer."""


class VirtualCoordinator(VirtualHost):
    """A coordinator that can crash and whose disk can fail.

    It starts when it is made. After anything else was done to it, its host calls `settle`.

    :param sync_ms: least and most that a disk write takes
    :param store_options: of `Store`
    :ivar broker: which of the brokers coordinates the groups
    :ivar machine: None while the coordinator is down
    :ivar config: of the next boot
    :ivar disk: outlives crashes
    :ivar on_crash: called, in order, when the coordinator has lost power
    :ivar rebalances: accounts of the rebalances that have ended
    :ivar begun: accounts of all rebalances that have begun, as they stand
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        config: GroupConfig,
        topics: TopicNames,
        invariants: Invariants,
        *,
        sync_ms: tuple[int, int],
        store_options: dict[str, int],
    ) -> None:
        self.disk = VirtualDisk(random)
        super().__init__(clock, random, sync_ms=sync_ms, disks=[self.disk])
        self.broker = 0
        self.machine: CoordinatorMachine | None = None
        self.config = config
        self.on_crash: list[Callable[[], None]] = []
        self.rebalances: list[RebalanceAccount] = []
        self.begun: list[RebalanceAccount] = []
        self._topics = topics
        self._invariants = invariants
        self._store_options = store_options
        self._brokers = Brokers(_ENDPOINTS)
        self._tokens = 0
        self._callers: dict[int, Caller | None] = {}
        self._deferred: list[Callable[[], None]] = []
        self._move_ms = 0
        self._start(0)

    def submit(
        self, caller: Caller | None, message: Any, version: int, client_id: str, host: str, broker: int | None = None
    ) -> None:
        """Give the machine a request; nothing happens if the coordinator is down, as it may be between two requests.

        :param caller: gets the answer; None for the second copy of a request that a fault has duplicated
        :param broker: that gets the request; None for the one that coordinates the groups
        """
        if not self._logs:
            return
        taken, finish = route(self._brokers, message, version, self.broker if broker is None else broker)
        if taken is None:
            assert finish is not None, "what is not taken is answered"
            if caller is not None:
                caller.answered(finish(None))
            return
        unique = ""
        if isinstance(message, m.JoinGroupRequest):
            unique = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        self._tokens += 1
        self._callers[self._tokens] = caller
        request = Request(self._tokens, message, version, client_id, f"/{host}", unique)
        self._step(request, self._logs[0].runtime.submit, request, self._clock.time_ms)

    def _reply(self, token: int, message: Any) -> None:
        self._invariants.sent(token, message)
        caller = self._callers.pop(token)
        if caller is not None:
            caller.answered(message)

    def defer(self, step: Callable[[], None]) -> None:
        """Do something when the machine has finished its present event: it must not be entered twice."""
        self._deferred.append(step)

    def settle(self) -> None:
        """Do the deferred steps, then plan the next disk write and the next `Tick` that are wanted."""
        while self._deferred:
            self._deferred.pop()()
        super().settle()

    # ---- starting and crashing

    def _start(self, load_ms: int) -> None:
        self._brokers = Brokers(_ENDPOINTS)
        self._elect()
        self.machine = CoordinatorMachine(self._brokers, self._topics, subscribed_topics, self.config)
        checked: Any = CheckedMachine(self.machine, self._invariants.handled)
        log = DurableLog(
            "groups",
            Runtime(checked, Store(self.disk, **self._store_options), self._reply, self._report),
            self,
            self._brokers.groups.partition_of,
            loading=self._brokers.set_loading,
            wrote=self._wrote,
            pause=lambda attempt: self.disk.repaired_after_ms,
        )
        self._invariants.began()
        self._clock.record("coordinator", "starts")
        self._serve(log, [log], load_ms)

    def _elect(self) -> frozenset[int]:
        """Make the broker the leader of all partitions of ``__consumer_offsets``; return those that it did not lead."""
        groups = self._brokers.groups
        for partition in range(len(groups.of)):
            groups.move(partition, self.broker)
        return frozenset(groups.elect())

    def move(self, load_ms: int) -> None:
        """Let the other broker coordinate the groups from now on.

        :param load_ms: how long it takes to read them, at least
        """
        if self._logs:
            self.broker = 1 - self.broker
            self._move_ms = load_ms
            self._clock.record("coordinator", "moves", self.broker)
            self._step("moves", self._logs[0].move, self._elect())

    def _load_ms(self) -> int:
        return self._move_ms

    def crash(self, down_ms: int, load_ms: int, writes: int) -> None:
        """Lose power: at once, or during the n-th disk operation from now (`writes`).

        :param down_ms: how long it stays down
        :param load_ms: how long it answers COORDINATOR_LOAD_IN_PROGRESS after that
        """
        self._outage = (down_ms, load_ms)
        if writes and self.is_up:
            self.disk.power_left = writes - 1
        else:
            self._die()

    def _ended(self) -> None:
        self._clock.record("coordinator", "crashes", self._outage)
        self.disk.crash()
        self.machine = None
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            if caller is not None:
                caller.dropped()
        self._deferred.clear()
        for listener in self.on_crash:
            listener()

    def _wrote(self, sync: Sync) -> None:
        if self.disk.unsynced:
            raise ViolationError("durable first", f"{sorted(self.disk.unsynced)} are not on disk when a write ends")
        self._invariants.on_disk(sync.last)

    # ---- accounts

    def note(self, what: str, log: str, detail: object = None) -> None:
        self._clock.record("coordinator", what, detail)

    def _report(self, report: RebalanceReport) -> None:
        rebalance = report.rebalance
        detail = rebalance if report.phase is Phase.ENDED else rebalance.trigger
        self._clock.record("coordinator", report.phase, detail)
        if report.phase is Phase.STARTED:
            self.begun.append(rebalance)
        elif report.phase is Phase.ENDED:
            self.rebalances.append(replace(rebalance, joins=list(rebalance.joins), removed=list(rebalance.removed)))
