"""The coordinator of a virtual cluster: the real machine, runtime and store, on a virtual clock and a disk that fails.

Laws:

* There are two brokers in one process, as in `coordinator.cluster`; one coordinates all groups. A request reaches the
  broker that its connection leads to, and is routed there as on the server.
* When the coordinator moves, parked requests are refused, and the groups are read again when all that was appended is
  on disk.
* A crash ends a boot: memory, requests and the bytes that the disk had not synced are gone, and nothing planned during
  that boot happens any more.
* An exception of the coordinator is a `ViolationError`, unless it is an error that the disk was made to raise.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Final, Protocol

from kcoord_wire import messages as m
from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.brokers import Brokers, route
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import (
    IllegalMoveError,
    Load,
    Phase,
    RebalanceAccount,
    RebalanceReport,
    Request,
    Resign,
)
from kcoord_wire.coordinator.core.groups import TopicNames
from kcoord_wire.coordinator.log.store import Store, Sync
from kcoord_wire.coordinator.runtime import Runtime
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.kernel.virtual.clock import NEVER, VirtualClock
from kcoord_wire.kernel.virtual.disk import PowerCutError, VirtualDisk
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.group.invariants import Invariants, Watched

_TICK: Final = Tick()
_ENDPOINTS: Final = [Endpoint(1, "127.0.0.1", 9092), Endpoint(2, "127.0.0.1", 9092)]  # connections know their broker


class Caller(Protocol):
    """Who gets the answer to a request."""

    def answered(self, message: Any) -> None:
        """The coordinator has answered."""

    def dropped(self) -> None:
        """The coordinator has crashed and will not answer."""


class VirtualCoordinator:
    """A coordinator that can crash and whose disk can fail.

    It starts when it is made. After anything else was done to it, its host calls `settle`.

    :param sync_ms: least and most that a disk write takes
    :param store_options: of `Store`
    :ivar boot: changes with every start and every crash
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
        self.boot = 0
        self.broker = 0
        self.machine: CoordinatorMachine | None = None
        self.disk = VirtualDisk(random)
        self.config = config
        self.on_crash: list[Callable[[], None]] = []
        self.rebalances: list[RebalanceAccount] = []
        self.begun: list[RebalanceAccount] = []
        self._clock = clock
        self._random = random
        self._topics = topics
        self._invariants = invariants
        self._sync_ms = sync_ms
        self._store_options = store_options
        self._outage = (1_000, 100)  # down_ms and load_ms of the next crash
        self._runtime: Runtime[CoordinatorMachine] | None = None
        self._sync: Sync | None = None
        self._wakes_at = NEVER
        self._brokers = Brokers(_ENDPOINTS)
        self._is_failed = False  # the disk has failed, and the log is to be read as a whole
        self._tokens = 0
        self._callers: dict[int, Caller | None] = {}
        self._deferred: list[Callable[[], None]] = []
        self._start(0)

    @property
    def is_up(self) -> bool:
        """Whether it takes connections."""
        return self._runtime is not None

    def submit(
        self, caller: Caller | None, message: Any, version: int, client_id: str, host: str, broker: int | None = None
    ) -> None:
        """Give the machine a request; nothing happens if the coordinator is down, as it may be between two requests.

        :param caller: gets the answer; None for the second copy of a request that a fault has duplicated
        :param broker: that gets the request; None for the one that coordinates the groups, whatever it is loading
        """
        if self._runtime is None:
            return
        if broker is not None:
            taken, finish = route(self._brokers, message, version, broker)
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
        self._clock.steps += 1
        request = Request(self._tokens, message, version, client_id, f"/{host}", unique)
        self._guard(self._runtime.submit, request, self._clock.time_ms)

    def _reply(self, token: int, message: Any) -> None:
        """Hand on an answer. The runtime calls this."""
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
        runtime = self._runtime
        if runtime is None:
            return
        if self._sync is None:
            self._sync = runtime.begin_sync()
            if self._sync is not None:
                self._clock.after(self._random.randint(*self._sync_ms), self._write, self._sync, self.boot)
        deadline = runtime.deadline
        if deadline is not None and deadline < self._wakes_at:
            self._wakes_at = max(deadline, self._clock.time_ms)
            self._clock.at(self._wakes_at, self._wake, self.boot, self._wakes_at)

    def _wake(self, boot: int, planned_for: int) -> None:
        if boot != self.boot or planned_for != self._wakes_at or self._runtime is None:
            return
        self._wakes_at = NEVER
        self._clock.steps += 1
        self._guard(self._runtime.submit, _TICK, self._clock.time_ms)
        self.settle()

    def _guard(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run a step of the coordinator. The disk may lose power in it; any other failure is a violation."""
        try:
            step(*arguments)
        except PowerCutError:
            self._lose_power()
        except (ViolationError, TimeoutError, MissingLibraryError):
            raise
        except IllegalMoveError as error:
            raise ViolationError("transitions", str(error)) from error
        except Exception as error:
            raise ViolationError("never fails", f"the coordinator raised {error!r}") from error

    # ---- starting and crashing

    def _start(self, load_ms: int) -> None:
        self.boot += 1
        self._brokers = Brokers(_ENDPOINTS)
        self._elect()
        self._is_failed = False
        self.machine = CoordinatorMachine(self._brokers, self._topics, subscribed_topics, self.config)
        watched: Any = Watched(self.machine, self._invariants)
        store = Store(self.disk, **self._store_options)
        self._runtime = Runtime(watched, store, self._reply, self._report)
        self._invariants.began()
        self._clock.record("coordinator", "starts")
        if load_ms:
            self._clock.after(load_ms, self._load, self.boot)
        else:
            self._load(self.boot)

    def _load(self, boot: int) -> None:
        if boot == self.boot and self._runtime is not None:
            self._guard(self._recover, self._runtime)
            self.settle()

    def _recover(self, runtime: Runtime[CoordinatorMachine]) -> None:
        try:
            runtime.recover(self._clock.time_ms)
            self._is_failed = False
            self._brokers.set_loading(())
            self._clock.record("coordinator", "serves")
        except PowerCutError:
            raise
        except OSError as error:
            self._clock.record("coordinator", "cannot read", error)
            self._clock.after(self.disk.repaired_after_ms, self._load, self.boot)

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
        if self._runtime is None:
            return
        self.broker = 1 - self.broker
        moved = self._elect()
        self._clock.record("coordinator", "moves", self.broker)
        self._guard(self._runtime.submit, Resign(moved), self._clock.time_ms)
        self._brokers.set_loading(moved)
        self._clock.after(load_ms, self._reload, self.boot, self.broker, self._runtime.machine.appended)
        self.settle()

    def _reload(self, boot: int, broker: int, appended: int) -> None:
        """Read the groups that have moved to a broker, when what was appended before is on disk."""
        runtime = self._runtime
        if boot != self.boot or broker != self.broker or runtime is None or not self._brokers.loading:
            return
        if self._is_failed or runtime.durable < appended:
            self._clock.after(1, self._reload, boot, broker, appended)
            return
        self._guard(self._read_moved, runtime)
        self.settle()

    def _read_moved(self, runtime: Runtime[CoordinatorMachine]) -> None:
        loading = self._brokers.loading
        try:
            records, pending = runtime.store.read(lambda group: self._brokers.partition_of_group(group) in loading)
        except PowerCutError:
            raise
        except OSError as error:
            self._clock.record("coordinator", "cannot read", error)
            if self._sync is None:
                self._fail(runtime)
            else:  # a write is under way, after which it tries again
                self._clock.after(1, self._reload, self.boot, self.broker, runtime.machine.appended)
            return
        runtime.submit(Load(records, loading, pending), self._clock.time_ms)
        self._brokers.set_loading(())
        self._clock.record("coordinator", "serves")

    def crash(self, down_ms: int, load_ms: int, writes: int) -> None:
        """Lose power: at once, or during the n-th disk operation from now (`writes`).

        :param down_ms: how long it stays down
        :param load_ms: how long it answers COORDINATOR_LOAD_IN_PROGRESS after that
        """
        self._outage = (down_ms, load_ms)
        if writes and self._runtime is not None:
            self.disk.power_left = writes - 1
        else:
            self._lose_power()

    def _lose_power(self) -> None:
        down_ms, load_ms = self._outage
        self._clock.record("coordinator", "crashes", (down_ms, load_ms))
        if self._runtime is not None and self._sync is not None:
            if self.disk.power_left is None:  # cut off the write that was under way
                self.disk.power_left = self._random.randint(0, 2)
            with suppress(OSError):
                self._sync.run()
        self.disk.crash()
        self._runtime = self.machine = self._sync = None
        self.boot += 1
        self._wakes_at = NEVER
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            if caller is not None:
                caller.dropped()
        self._deferred.clear()
        for listener in self.on_crash:
            listener()
        self._clock.after(down_ms, self._restart, self.boot)

    def _restart(self, boot: int) -> None:
        if boot == self.boot:
            self._start(self._outage[1])

    # ---- the disk

    def _write(self, sync: Sync, boot: int) -> None:
        if boot == self.boot and self._runtime is not None:
            self._guard(self._run_sync, sync, self._runtime)
            self.settle()

    def _run_sync(self, sync: Sync, runtime: Runtime[CoordinatorMachine]) -> None:
        try:
            sync.run()
        except PowerCutError:
            raise
        except OSError as error:
            self._clock.record("coordinator", "cannot write", error)
            self._fail(runtime)
            return
        self._sync = None
        self._clock.steps += 1
        if self.disk.unsynced:
            raise ViolationError("durable first", f"{sorted(self.disk.unsynced)} are not on disk when a write ends")
        self._invariants.on_disk(sync.last)
        runtime.end_sync(sync)
        if runtime.store.compaction_due():
            self._compact(runtime)

    def _fail(self, runtime: Runtime[CoordinatorMachine]) -> None:
        """The disk has failed: resign, and read the whole log when it is repaired."""
        self._sync = None
        self._is_failed = True
        runtime.sync_failed(self._clock.time_ms)
        self._clock.after(self.disk.repaired_after_ms, self._load, self.boot)

    def _compact(self, runtime: Runtime[CoordinatorMachine]) -> None:
        self._clock.record("coordinator", "compacts")
        try:
            runtime.store.compact()
        except PowerCutError:
            raise
        except OSError as error:  # the next write or the next start has to cope with what that leaves
            self._clock.record("coordinator", "cannot compact", error)

    # ---- accounts

    def _report(self, report: RebalanceReport) -> None:
        """Keep the account of a rebalance. The runtime calls this."""
        rebalance = report.rebalance
        detail = rebalance if report.phase is Phase.ENDED else rebalance.trigger
        self._clock.record("coordinator", report.phase, detail)
        if report.phase is Phase.STARTED:
            self.begun.append(rebalance)
        elif report.phase is Phase.ENDED:
            self.rebalances.append(replace(rebalance, joins=list(rebalance.joins), removed=list(rebalance.removed)))
