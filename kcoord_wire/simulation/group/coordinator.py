"""The coordinator of a virtual cluster: the real machine, runtime and store, on a virtual clock and a disk that fails.

Laws:

* It has lives. A crash ends one: memory, requests and what the disk had not synced are gone, and nothing planned for
  that life happens any more.
* Whatever it raises, other than what the disk was told to raise, is a `ViolationError`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Final, Generic, TypeVar

from kcoord_wire import messages as m
from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import Phase, RebalanceAccount, RebalanceReport, Request, Tick
from kcoord_wire.coordinator.core.groups import IllegalMoveError, TopicNames
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.log.store import Store, Sync
from kcoord_wire.coordinator.runtime import Runtime
from kcoord_wire.simulation.clock import Timeline
from kcoord_wire.simulation.disk import PowerCutError, VirtualDisk
from kcoord_wire.simulation.group.invariants import Invariants, ViolationError, Watched

__all__ = ["VirtualCoordinator"]

_NEVER: Final = 1 << 62
_TICK: Final = Tick()

CallerT = TypeVar("CallerT")


class VirtualCoordinator(Generic[CallerT]):
    """See the head of the module. Requests come with their caller, whatever that is.

    :param sync_ms: least and most a disk write takes
    :param store_options: of `Store`
    :param answered: called with the caller of a request and the response
    :param crashed: called with the callers that get no answer any more
    :param after: called after what was planned has happened; it has to call `look_after`
    :ivar life: goes up with every start and every crash
    :ivar machine: None while it is down
    :ivar config: of the life that begins next
    :ivar rebalances: accounts of the rebalances that have ended
    :ivar begun: accounts of all that have begun, as they stand
    """

    def __init__(
        self,
        time: Timeline,
        random: Random,
        config: GroupConfig,
        topics: TopicNames,
        invariants: Invariants,
        *,
        sync_ms: tuple[int, int],
        store_options: dict[str, int],
        answered: Callable[[CallerT, Any], None],
        crashed: Callable[[list[CallerT]], None],
        after: Callable[[], None],
    ) -> None:
        self.life = 0
        self.machine: GroupMachine | None = None
        self.disk = VirtualDisk(random)
        self.config = config
        self.rebalances: list[RebalanceAccount] = []
        self.begun: list[RebalanceAccount] = []
        self.invariants = invariants
        self._time = time
        self._random = random
        self._topics = topics
        self._sync_ms = sync_ms
        self._store_options = store_options
        self._answered = answered
        self._crashed = crashed
        self._after = after
        self._outage = (1_000, 100)
        self._runtime: Runtime | None = None
        self._sync: Sync | None = None
        self._ticks_at = _NEVER
        self._tokens = 0
        self._callers: dict[int, CallerT] = {}

    @property
    def is_up(self) -> bool:
        """Whether it takes connections."""
        return self._runtime is not None

    def submit(self, caller: CallerT, message: Any, version: int, client_id: str, host: str) -> None:
        """Give it a request; nothing happens if it is down, as it may be between two requests of one delivery."""
        if self._runtime is None:
            return
        unique = ""
        if isinstance(message, m.JoinGroupRequest):
            unique = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        self._tokens += 1
        self._callers[self._tokens] = caller
        self._time.steps += 1
        request = Request(self._tokens, message, version, client_id, f"/{host}", unique)
        self._guard(self._runtime.submit, request, self._time.clock)

    def crash(self, down_ms: int, load_ms: int, writes: int) -> None:
        """Lose power, now or in the middle of the disk operation number `writes` from now."""
        self._outage = (down_ms, load_ms)
        if writes and self._runtime is not None:
            self.disk.power_left = writes - 1
        else:
            self._lose_power()

    def _reply(self, token: int, message: Any) -> None:
        """The runtime's `send`."""
        self.invariants.sent(token, message)
        self._answered(self._callers.pop(token), message)

    def start(self, load_ms: int) -> None:
        """Begin a life; it answers COORDINATOR_LOAD_IN_PROGRESS for so long."""
        self.life += 1
        self.machine = GroupMachine(Endpoint(1, "127.0.0.1", 9092), self._topics, subscribed_topics, self.config)
        watched: Any = Watched(self.machine, self.invariants)
        store = Store(self.disk, **self._store_options)
        self._runtime = Runtime(watched, store, self._reply, self._account)
        self.invariants.began()
        self._time.note("coordinator", "starts")
        if load_ms:
            self._time.later(self._time.clock + load_ms, self._load, self.life)
        else:
            self._load(self.life)

    def _load(self, life: int) -> None:
        if life != self.life or self._runtime is None:
            return
        self._guard(self._recover, self._runtime)
        self._after()

    def _recover(self, runtime: Runtime) -> None:
        try:
            runtime.recover(self._time.clock)
            self._time.note("coordinator", "serves")
        except PowerCutError:
            raise
        except OSError as error:
            self._time.note("coordinator", "cannot read", error)
            self._time.later(self._time.clock + self.disk.repaired_after_ms, self._load, self.life)

    def _guard(self, step: Callable[..., None], *arguments: Any) -> None:
        """Do something in the coordinator; it may lose power on the way, and must not fail otherwise."""
        try:
            step(*arguments)
        except PowerCutError:
            self._lose_power()
        except (ViolationError, TimeoutError):
            raise
        except IllegalMoveError as error:
            raise ViolationError("transitions", str(error)) from error
        except Exception as error:
            raise ViolationError("never fails", f"the coordinator raised {error!r}") from error

    def look_after(self) -> None:
        """To be called after whatever has happened to it: see to the disk and the clock."""
        runtime = self._runtime
        if runtime is None:
            return
        if self._sync is None:
            sync = runtime.begin_sync()
            if sync is not None:
                self._sync = sync
                self._time.later(
                    self._time.clock + self._random.randint(*self._sync_ms), self._write, (sync, self.life)
                )
        deadline = runtime.deadline
        if deadline is not None and deadline < self._ticks_at:
            self._ticks_at = max(deadline, self._time.clock)
            self._time.later(self._ticks_at, self._tick, (self.life, self._ticks_at))

    def _tick(self, about: tuple[int, int]) -> None:
        life, when = about
        if life != self.life or when != self._ticks_at or self._runtime is None:
            return
        self._ticks_at = _NEVER
        self._time.steps += 1
        self._guard(self._runtime.submit, _TICK, self._time.clock)
        self._after()

    def _write(self, about: tuple[Sync, int]) -> None:
        sync, life = about
        if life != self.life or self._runtime is None:
            return
        self._guard(self._write_now, sync)
        self._after()

    def _write_now(self, sync: Sync) -> None:
        assert self._runtime is not None
        try:
            sync.run()
        except PowerCutError:
            raise
        except OSError as error:
            self._time.note("coordinator", "cannot write", error)
            self._sync = None
            self._runtime.sync_failed(self._time.clock)
            self._time.later(self._time.clock + self.disk.repaired_after_ms, self._load, self.life)
            return
        self._sync = None
        self._time.steps += 1
        if self.disk.unsynced:
            raise ViolationError("durable first", f"{sorted(self.disk.unsynced)} are not on disk when a write ends")
        self.invariants.on_disk(sync.last)
        self._runtime.end_sync(sync)
        if self._runtime.store.compaction_due():
            self._time.note("coordinator", "compacts")
            try:
                self._runtime.store.compact()
            except PowerCutError:
                raise
            except OSError as error:  # what that leaves behind, the next write or the next start has to cope with
                self._time.note("coordinator", "cannot compact", error)

    def _lose_power(self) -> None:
        down_ms, load_ms = self._outage
        self._time.note("coordinator", "crashes", (down_ms, load_ms))
        if self._runtime is not None and self._sync is not None:
            if self.disk.power_left is None:  # in the middle of whatever it was about to write
                self.disk.power_left = self._random.randint(0, 2)
            with suppress(OSError):
                self._sync.run()
        self.disk.crash()
        self._runtime = self.machine = self._sync = None
        self.life += 1  # whatever is under way to or from this life is void
        self._ticks_at = _NEVER
        callers, self._callers = list(self._callers.values()), {}
        self._crashed(callers)
        self._time.later(self._time.clock + down_ms, self._start_again, self.life)

    def _start_again(self, life: int) -> None:
        if life == self.life:
            self.start(self._outage[1])

    def _account(self, account: RebalanceReport) -> None:
        rebalance = account.rebalance
        self._time.note("coordinator", account.phase, rebalance if account.phase is Phase.ENDED else rebalance.trigger)
        if account.phase is Phase.STARTED:
            self.begun.append(rebalance)
        elif account.phase is Phase.ENDED:
            self.rebalances.append(replace(rebalance, joins=list(rebalance.joins), removed=list(rebalance.removed)))
