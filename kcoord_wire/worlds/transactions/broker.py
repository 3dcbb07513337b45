"""The coordinator's process with everything that transactions need: both coordinators, topics, and two disks.

What runs here is what the server runs, below its sockets: `Requests` with its machines, runtimes and `TransactionFlow`,
on `Store` and `PartitionLog`. It has several brokers, whose coordinators and partitions move.

Laws:

* A kill ends a boot: memory and requests are gone. Of the logs of the coordinators, which are fsynced, the disk keeps
  what it must; of the records of topics, which are not, what the process has written, as the page cache does.
* A write that a kill hits leaves a part of it. No answer leaves a process that is being killed.
* An exception of the coordinator is a `ViolationError`, unless it is an error that the disk was made to raise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, Final

from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.coordinator.api_codec import ApiCodec
from kcoord_wire.coordinator.connection import PeerLimits
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.brokers import Brokers, Leaders
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import IllegalMoveError, Load, Resign
from kcoord_wire.coordinator.log.segments import OFFSETS_FOLDER, TRANSACTIONS, TRANSACTIONS_FOLDER
from kcoord_wire.coordinator.log.store import Store, Sync
from kcoord_wire.coordinator.metrics import Metrics
from kcoord_wire.coordinator.requests import Requests
from kcoord_wire.coordinator.runtime import Runtime
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.kernel.virtual.clock import NEVER, VirtualClock
from kcoord_wire.kernel.virtual.disk import PowerCutError, VirtualDisk
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.protocol.key_partitions import partition_of
from kcoord_wire.worlds.transactions.invariants import Invariants, Watched
from kcoord_wire.worlds.transactions.transformer import Place

logging.getLogger("kcoord_wire.coordinator").addHandler(logging.NullHandler())  # the faults are in the trace

CONFIG: Final = GroupConfig(offsets_topic_partitions=4)
_RESTART_MS: Final = 500  # after a start or a write that the disk has failed
_LOAD_MS: Final = (0, 3, 60, 400)  # from reading the groups of a partition that has moved to serving them


class Call:
    """A request at a broker, which takes it for a connection of the server.

    :param broker: at which it has arrived
    :param host: of the client
    :param then: called with the message, its version and the response's bytes without their size, when it is answered
    """

    session = exchange = finish = beat = None
    codec: ApiCodec
    correlation_id = token = 0
    client_id = ""

    def __init__(self, owner: VirtualBrokers, broker: int, host: str, then: Callable[[Any, int, bytes], None]) -> None:
        self.broker = broker
        self.host = f"/{host}"
        self._owner = owner
        self._then = then

    def answer(self, message: Any, copies: int = 1) -> None:
        """See `Connection` of the server."""
        if not self._owner.is_dying:
            self._owner.answered(message, self.correlation_id)
            self._then(message, self.codec.version, self.codec.frame(self.correlation_id, message)[4:])

    def close(self) -> None:
        """See `Connection` of the server."""


class _Log:
    """The log of one coordinator: what is appended is written after a while, and read again after a failure."""

    def __init__(
        self, owner: VirtualBrokers, runtime: Runtime[Any], name: str, then: Callable[[], None] = lambda: None
    ) -> None:
        self.runtime = runtime
        self.sync: Sync | None = None
        self.failures = 0
        self._owner = owner
        self._name = name
        self._then = then  # when the log has been read

    def settle(self) -> None:
        """Plan the next write, if one is wanted."""
        if self.sync is None:
            self.sync = self.runtime.begin_sync()
            if self.sync is not None:
                self._owner.plan_write(self._write, self.sync)

    def load(self) -> None:
        """Read the log, and serve."""
        try:
            self.runtime.recover(self._owner.now)
            self._then()
        except PowerCutError:
            raise
        except OSError as error:
            self._fail("cannot read", error)

    def _fail(self, what: str, error: OSError) -> None:
        self.failures += 1
        self._owner.note(f"{what} {self._name}", error)
        self._owner.plan(self._owner.logs.repaired_after_ms, self.load)

    def _write(self, sync: Sync) -> None:
        try:
            sync.run()
        except PowerCutError:
            raise
        except OSError as error:
            self.sync = None
            self.runtime.sync_failed(self._owner.now)
            self._fail("cannot write", error)
            return
        self.sync = None
        self.runtime.end_sync(sync)
        if self.runtime.store.compaction_due():
            try:
                self.runtime.store.compact()
            except PowerCutError:
                raise
            except OSError as error:  # the next write or the next start has to cope with what that leaves
                self._owner.note(f"cannot compact {self._name}", error)


class VirtualBrokers:
    """All brokers of one process, which can be killed, and whose disks can fail.

    :param topics: name to number of partitions
    :param count: of brokers
    :param sync_ms: least and most that a write of a coordinator's log takes
    :param store_options: of both `Store`
    :ivar boot: changes with every start and every kill
    :ivar logs: the disk of the coordinators' logs
    :ivar records: the disk of the topics
    :ivar requests: what serves them; None while the process is down
    :ivar on_kill: called when the process has been killed
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        invariants: Invariants,
        topics: Mapping[str, int],
        *,
        count: int,
        sync_ms: tuple[int, int],
        store_options: Mapping[str, int],
    ) -> None:
        self.boot = 0
        self.logs = VirtualDisk(random)
        self.records = VirtualDisk(random)
        self.logs.repaired_after_ms = _RESTART_MS
        self.requests: Requests | None = None
        self.on_kill: list[Callable[[], None]] = []
        self._clock = clock
        self._random = random
        self._invariants = invariants
        self._topics = topics
        self._count = count
        self._sync_ms = sync_ms
        self._store_options = dict(store_options)
        self._outage = (1_000, 100)  # down_ms and load_ms of the next kill
        self._runs: list[_Log] = []
        self._wakes_at = NEVER
        self._start(0)

    # ---- what is seen

    @property
    def now(self) -> int:
        """In ms since the Unix epoch."""
        return self._clock.time_ms

    @property
    def is_up(self) -> bool:
        """Whether it takes connections."""
        return self.requests is not None

    @property
    def is_dying(self) -> bool:
        """Whether a disk operation was cut off, with which the process ends."""
        return any(disk.power_left is not None and disk.power_left < 0 for disk in (self.logs, self.records))

    def disk(self, name: str) -> VirtualDisk:
        """Return the disk of this name: ``logs`` or ``records``."""
        return self.logs if name == "logs" else self.records

    def locate(self, place: Place) -> int | None:
        """Return the broker at which a place is; None while the process is down."""
        requests = self.requests
        if requests is None:
            return None
        leaders, number = self._leaders(requests, place)
        return leaders.of[number]

    @staticmethod
    def _leaders(requests: Requests, place: Place) -> tuple[Leaders, int]:
        kind, name, number = place
        brokers: Brokers = requests.runtime.machine.brokers
        if kind == "topics":
            topic = requests.topics.catalog.named(name)
            assert topic is not None, name
            return topic.leaders, number
        leaders = brokers.groups if kind == "groups" else brokers.transactions
        return leaders, partition_of(name, len(leaders.of))

    def note(self, what: str, detail: Any = None) -> None:
        """Add a line to the trace."""
        self._clock.record("brokers", what, detail)

    # ---- requests

    def receive(self, call: Any, frame: bytes) -> None:
        """Handle a request; nothing happens while the process is down."""
        if self.requests is not None:
            self._step(self.requests.receive, call, frame, 0)

    def answered(self, message: Any, correlation_id: int) -> None:
        """A request is answered."""
        self._invariants.answered(message)

    def _step(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run a step of the process, plan what it wants next, and check the laws. The disk may lose power in it; any
        other failure is a violation."""
        self._clock.steps += 1
        try:
            step(*arguments)
        except PowerCutError:
            pass
        except ViolationError:
            raise
        except IllegalMoveError as error:
            raise ViolationError("transitions", str(error)) from error
        except Exception as error:
            raise ViolationError("never fails", f"the coordinator raised {error!r}") from error
        if self.is_dying:
            self._die()
        else:
            self._settle()
            with self.records.undisturbed():
                self._invariants.check()

    def _settle(self) -> None:
        for log in self._runs:
            log.settle()
        deadline = None if self.requests is None else self.requests.deadline
        if deadline is not None and deadline < self._wakes_at:
            self._wakes_at = max(deadline, self.now)
            self._clock.at(self._wakes_at, self._wake, self.boot, self._wakes_at)

    def _wake(self, boot: int, planned_for: int) -> None:
        if boot == self.boot and planned_for == self._wakes_at and self.requests is not None:
            self._wakes_at = NEVER
            self._step(self.requests.tick)

    def plan(self, ms: int, step: Callable[..., None], *arguments: Any) -> None:
        """Plan a step of the process, which a kill prevents."""
        self._clock.after(ms, self._planned, self.boot, step, arguments)

    def plan_write(self, write: Callable[[Sync], None], sync: Sync) -> None:
        """Plan the end of a write."""
        self.plan(self._random.randint(*self._sync_ms), write, sync)

    def _planned(self, boot: int, step: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if boot == self.boot and self.requests is not None:
            self._step(step, *arguments)

    # ---- starting, and being killed

    def _start(self, load_ms: int) -> None:
        self.boot += 1
        try:
            requests = self._open()
        except OSError as error:
            self.note("cannot start", error)
            self.records.restart()
            self._clock.after(_RESTART_MS, self._start_again, self.boot, load_ms)
            return
        self.requests = requests
        watched: Any = Watched(requests.transactions.machine, self._invariants)
        requests.transactions.machine = watched
        brokers = requests.runtime.machine.brokers
        self._runs = [
            _Log(self, requests.runtime, "groups", lambda: brokers.set_loading(())),
            _Log(self, requests.transactions, "transactions"),
        ]
        self._invariants.began(requests)
        self.note("start")
        for log in self._runs:
            if load_ms:
                self.plan(load_ms, log.load)
            else:
                self._step(log.load)

    def _open(self) -> Requests:
        brokers = Brokers(
            [Endpoint(number, f"10.0.0.{number + 1}", 9_092) for number in range(self._count)],
            offsets_partitions=CONFIG.offsets_topic_partitions,
        )
        topics = Topics(brokers, self._topics, cluster_id="virtual")
        topics.open(self.records)
        offsets, transactions = self.logs.folder(OFFSETS_FOLDER), self.logs.folder(TRANSACTIONS_FOLDER)
        self.logs.sync_names()
        return Requests(
            CoordinatorMachine(brokers, topics, subscribed_topics, CONFIG),
            Store(offsets, **self._store_options),
            topics,
            Metrics(),
            lambda: self._clock.time_ms,
            transactions=Store(transactions, TRANSACTIONS, **self._store_options),
            limits=PeerLimits(),
            permissions=None,
            faults=None,
        )

    def kill(self, down_ms: int, load_ms: int, writes: int = 0, on: str = "logs") -> None:
        """Kill the process: at once, or during the n-th operation from now on one of its disks.

        :param down_ms: how long it stays down
        :param load_ms: how long its coordinators answer COORDINATOR_LOAD_IN_PROGRESS after that
        :param writes: which operation; 0 for at once
        :param on: the disk: ``logs`` or ``records``
        """
        if self.requests is None:
            return
        self._outage = (down_ms, load_ms)
        if writes:
            self.disk(on).power_left = writes - 1
        else:
            self._die()

    def _die(self) -> None:
        down_ms, load_ms = self._outage
        self.note("are killed", (down_ms, load_ms))
        for log in self._runs:
            if log.sync is not None:
                if self.logs.power_left is None:  # cut off the write that was under way
                    self.logs.power_left = self._random.randint(0, 2)
                with suppress(OSError):
                    log.sync.run()
        self.logs.crash()
        self.records.restart()
        self.requests = None
        self._runs = []
        self.boot += 1
        self._wakes_at = NEVER
        self._invariants.ended()
        for listener in self.on_kill:
            listener()
        self._clock.after(down_ms, self._start_again, self.boot, load_ms)

    def _start_again(self, boot: int, load_ms: int) -> None:
        if boot == self.boot:
            self._start(load_ms)

    # ---- moves

    def move(self, place: Place, to: int) -> None:
        """Let another broker lead a partition, or coordinate a transactional id."""
        if self.requests is not None:
            self._step(self._move, self.requests, place, to % self._count)

    def _move(self, requests: Requests, place: Place, to: int) -> None:
        leaders, number = self._leaders(requests, place)
        leaders.move(number, to)
        moved = leaders.elect()
        requests.topics.catalog.raise_epochs(leaders, moved)
        self.note("move", (place, to))
        brokers: Brokers = requests.runtime.machine.brokers
        if moved and leaders is brokers.groups:
            requests.runtime.submit(Resign(frozenset(moved)), self.now)
            brokers.set_loading(brokers.loading.union(moved))
            self._read_moved(requests)

    def _read_moved(self, requests: Requests) -> None:
        """Read the groups whose coordinator has changed, once all that was appended is on disk; as `GroupDurability`
        does it, which is bound to asyncio."""
        runtime = requests.runtime
        brokers: Brokers = runtime.machine.brokers
        moved = brokers.loading
        if runtime.durable < runtime.machine.appended:
            self.plan(1, self._read_moved, requests)
        elif moved:
            try:
                records, pending = runtime.store.read(lambda group: brokers.partition_of_group(group) in moved)
            except OSError as error:
                self.note("cannot read moved groups", error)
                self.plan(self.logs.repaired_after_ms, self._read_moved, requests)
                return
            load, failures = Load(records, moved, pending), self._runs[0].failures
            self.plan(self._random.choice(_LOAD_MS), self._load_moved, requests, load, failures)

    def _load_moved(self, requests: Requests, load: Load, failures: int) -> None:
        brokers: Brokers = requests.runtime.machine.brokers
        assert load.partitions is not None
        if failures == self._runs[0].failures and load.partitions <= brokers.loading:  # else all groups are read again
            requests.runtime.submit(load, self.now)
            brokers.set_loading(brokers.loading - load.partitions)
