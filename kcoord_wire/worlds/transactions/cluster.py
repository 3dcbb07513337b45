"""Applications with transactions and the brokers' process, on a virtual clock.

    with TransactionCluster(seed=7) as sim:
        sim.start("t1")
        sim.run(5_000)
        sim.kill_brokers()
        sim.pause("t1", 8_000)
        sim.start("t1")                 # a second one with the same transactional id: the first is a zombie
        sim.run(20_000)
        print(sim.committed())

The brokers' process is the real one (`broker`), on disks that fail; requests and responses go through the codec. The
applications are `transformer.Transformer`: what they consume are offsets, since records of a source would decide
nothing; what they produce is read by a read_committed consumer after each step (`readers`).

Laws:

* The seed decides everything: the same calls in the same order give the same trace.
* After every step of the brokers the laws of `invariants` are checked; a call that lets time pass raises
  `ViolationError` if one is broken.
* An action that makes no sense (a crash of a process that does not run) does nothing, so that scripts can be reduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.network import Loss, NetworkCluster
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.transactions import transformer as events
from kcoord_wire.worlds.transactions.broker import VirtualBrokers
from kcoord_wire.worlds.transactions.invariants import Invariants
from kcoord_wire.worlds.transactions.transformer import Partition, Place, Plan, Settings, Transformer
from kcoord_wire.worlds.transactions.wire import BrokerConnection, Slow, TransactionWire

GROUP: Final = "applications"
SOURCE: Final = "source"
OUTPUT: Final = "output"
RESTART_MS: Final = 100  # after which an application that was fenced without a successor is started again
_MOST_TRIES: Final = 12
_THINKS_MS: Final = (0, 0, 5, 40, 700)


class ApplicationProcess(Process):
    """An application's process; what every process has is in `Process`.

    :ivar settings: of the application
    :ivar connections: by broker
    """

    __slots__ = ("_brokers_of", "_cluster", "application", "connections", "settings")

    def __init__(
        self, cluster: TransactionCluster, clock: VirtualClock, settings: Settings, host: str, random: Random
    ) -> None:
        application = Transformer(settings, self._draw)
        super().__init__(clock, settings.name, host, application, random)
        self.application = application
        self.settings = settings
        self.connections: dict[int, BrokerConnection] = {}
        self._cluster = cluster
        self._brokers_of: dict[Place, int] = {}

    @property
    def is_working(self) -> bool:
        """Whether it is alive, and its application has not ended."""
        return self.is_alive and not self.application.is_over

    def _draw(self) -> Plan:
        random = self.random
        outputs = [random.randrange(len(self.settings.outputs)) for _ in range(random.randint(1, 4))]
        tries = random.randint(1, _MOST_TRIES)
        return Plan(outputs, tries, random.random() < self._cluster.abort_odds, random.choice(_THINKS_MS))

    def broker_of(self, place: Place) -> int:
        """Return the broker at which it believes a place to be."""
        known = self._brokers_of.get(place)
        if known is None:
            known = self._cluster.locate(place)
            if known is not None:
                self._brokers_of[place] = known
        return known or 0

    def carry_out(self, effect: Any) -> None:
        """Do what the application wants."""
        if isinstance(effect, events.Locate):
            self._brokers_of.pop(effect.place, None)
        elif isinstance(effect, events.GiveUp):
            self._cluster.hang_up(
                [connection for connection in self.connections.values() if effect.token in connection.tokens]
            )
        else:
            self._cluster.carry_out(self, effect)

    def answered(self, token: int, message: Any) -> None:
        """A response has arrived."""
        self.deliver(events.Answered(token, message))

    def lost(self, connection: BrokerConnection) -> None:
        """A connection has ended."""
        tokens = list(connection.tokens)
        connection.tokens.clear()
        self._clock.after(0, self.deliver, events.Lost(tokens))  # the machine may be handling an event

    def handled(self) -> None:
        """Nothing depends on it."""

    def changed(self) -> None:
        """Nothing depends on it."""


class TransactionCluster(NetworkCluster[ApplicationProcess, TransactionWire]):
    """Brokers, and applications with transactional ids. What is done to an id is done to its latest application.

    :param seed: decides everything that is random
    :param ids: the transactional ids, each with its transaction version, 1 or 2
    :param outputs: how many partitions are written to
    :param brokers: how many there are
    :param timeout_ms: of transactions
    :param request_timeout_ms: of applications
    :param abort_odds: how often an application aborts a transaction without a reason
    :param latency_ms: least and most that a message takes
    :param sync_ms: least and most that a write of a coordinator's log takes
    :param segment_bytes: of the coordinators' logs, see `Store`
    :ivar seed: as given
    :ivar processes: of all applications that were started, by name, the latest of each id last
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        ids: Mapping[str, int] | None = None,
        outputs: int = 3,
        brokers: int = 2,
        timeout_ms: int = 5_000,
        request_timeout_ms: int = 1_000,
        abort_odds: float = 0.1,
        latency_ms: tuple[int, int] = (1, 5),
        sync_ms: tuple[int, int] = (0, 3),
        segment_bytes: int = 65_536,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.ids = dict(ids or {"t1": 2})
        self.abort_odds = abort_odds
        self._timeout_ms = timeout_ms
        self._request_timeout_ms = request_timeout_ms
        self._outputs = [(OUTPUT, number) for number in range(outputs)]
        self._sources = {transactional_id: number for number, transactional_id in enumerate(self.ids)}
        self._restarts = True
        self._invariants = Invariants(self._clock, self._outputs, GROUP)
        self._brokers = VirtualBrokers(
            self._clock,
            Random(f"{seed}/brokers"),
            self._invariants,
            {SOURCE: len(self.ids), OUTPUT: outputs},
            count=brokers,
            sync_ms=sync_ms,
            store_options={"segment_bytes": segment_bytes, "min_compaction_bytes": 2 * segment_bytes},
        )
        self._wire = TransactionWire(self._clock, self._brokers, latency_ms)

    # ---- what is seen

    def committed(self) -> dict[Partition, int]:
        """Return the committed offset of each source."""
        return dict(self._invariants.committed)

    def visible(self) -> int:
        """Return how many records count."""
        return sum(len(reader.visible) for reader in self._invariants.readers)

    def has_open(self) -> bool:
        """Return whether a transaction is open in a partition that is written to."""
        return any(reader.open for reader in self._invariants.readers)

    def transactions(self) -> int:
        """Return how many transactions applications have begun."""
        return len(self._invariants.attempts)

    def locate(self, place: Place) -> int | None:
        """Return the broker at which a place is; None while the brokers are down."""
        return self._brokers.locate(place)

    # ---- applications

    def start(self, transactional_id: str) -> None:
        """Start an application; one that has the transactional id already goes on, and is fenced."""
        number = sum(process.settings.transactional_id == transactional_id for process in self.processes.values()) + 1
        settings = Settings(
            name=f"{transactional_id}.{number}",
            transactional_id=transactional_id,
            group=GROUP,
            source=(SOURCE, self._sources[transactional_id]),
            outputs=self._outputs,
            version=self.ids[transactional_id],
            timeout_ms=self._timeout_ms,
            request_timeout_ms=self._request_timeout_ms,
        )
        name = settings.name
        process = ApplicationProcess(
            self, self._clock, settings, self._wire.host_of(name), Random(f"{self.seed}/{name}")
        )
        self.processes[name] = process
        self._clock.record(name, "starts")
        process.deliver(events.Start())

    def _latest(self, transactional_id: str) -> ApplicationProcess | None:
        """Return the application that was started last with an id."""
        found = [
            process for process in self.processes.values() if process.settings.transactional_id == transactional_id
        ]
        return found[-1] if found else None

    def _working(self, transactional_id: str) -> ApplicationProcess | None:
        process = self._latest(transactional_id)
        return process if process is not None and process.is_working else None

    def _hang_up(self, process: ApplicationProcess) -> None:
        self.hang_up(list(process.connections.values()))

    def swap(self, one: str, other: str) -> None:
        """Kill all applications of two ids, and start one of each with the source of the other, as after a rebalance in
        which members leave: what its predecessor has committed is not yet stable (KIP-447)."""
        for process in self.processes.values():
            if process.is_working and process.settings.transactional_id in (one, other):
                self._kill(process)
        sources = self._sources
        sources[one], sources[other] = sources[other], sources[one]
        for transactional_id in dict.fromkeys((one, other)):
            self.start(transactional_id)

    # ---- what applications want

    def carry_out(self, process: ApplicationProcess, effect: Any) -> None:
        """Do what an application wants."""
        if isinstance(effect, events.Ask):
            self._wire.send(process, effect, process.broker_of(effect.place))
        elif isinstance(effect, events.Began):
            self._clock.record(process.name, "begins", effect.attempt)
            self._invariants.attempt_began(effect.attempt)
        else:
            self._clock.record(process.name, "is over", effect.reason)
            self._clock.after(RESTART_MS, self._start_again, process)

    def _start_again(self, process: ApplicationProcess) -> None:
        if self._restarts and self._latest(process.settings.transactional_id) is process:
            self.start(process.settings.transactional_id)

    def hang_up(self, connections: Sequence[BrokerConnection]) -> None:
        """Close connections from the side of their process."""
        for connection in connections:
            self._wire.hang_up(connection)

    # ---- the network and the brokers

    def slow_down(self, ms: int, most_ms: int, late: float = 0.0, twice: float = 0.0) -> None:
        """Let requests be handled late, or twice, for so long; see `Slow`."""
        self._clock.record("cluster", "slows down", (ms, most_ms, late, twice))
        self._wire.slow = Slow(self._clock.time_ms + ms, most_ms, late, twice)

    def kill_brokers(self, down_ms: int = 1_000, load_ms: int = 100, writes: int = 0, on: str = "logs") -> None:
        """Kill the brokers' process; see `VirtualBrokers.kill`."""
        self._brokers.kill(down_ms, load_ms, writes, on)

    def fail_disk(self, on: str, repaired_after_ms: int = 1_000, writes: int = 0) -> None:
        """Let one operation of a disk, ``logs`` or ``records``, fail after `writes` others."""
        disk = self._brokers.disk(on)
        disk.fails_in = writes
        disk.repaired_after_ms = repaired_after_ms

    def fill_disk(self, on: str, ms: int) -> None:
        """Let a disk, ``logs`` or ``records``, take no more bytes for so long."""
        self._clock.record("cluster", "disk is full", (on, ms))
        disk = self._brokers.disk(on)
        disk.is_full = True
        self._clock.after(ms, setattr, disk, "is_full", False)

    def move(self, place: Place, to: int) -> None:
        """Let another broker coordinate a transactional id, or lead a partition."""
        self._brokers.move(place, to)

    # ---- the end

    def heal(self) -> None:
        """End all faults and pauses, and start an application of each id that has none. The brokers come back in
        time."""
        self._clock.record("cluster", "heals")
        self._wire.loss, self._wire.slow = Loss(), Slow()
        for disk in (self._brokers.logs, self._brokers.records):
            disk.power_left = disk.fails_in = None
            disk.is_full = False
        for process in self.processes.values():
            process.cut_until = 0
            process.resume()
        for transactional_id in self.ids:
            if self._working(transactional_id) is None:
                self.start(transactional_id)

    def has_advanced(self, since: Mapping[Partition, int]) -> bool:
        """Return whether two offsets of each source were committed since."""
        committed = self._invariants.committed
        sources = [(SOURCE, number) for number in range(len(self.ids))]
        return all(committed.get(source, 0) >= since.get(source, 0) + 2 for source in sources)

    def stop(self, transactional_id: str) -> None:
        """Let an application end after its transaction."""
        process = self._working(transactional_id)
        if process is not None:
            self._clock.record(process.name, "stops")
            process.deliver(events.Stop())

    def end(self, within_ms: int) -> None:
        """Kill all applications that work, wait until their transactions have ended, and check what must hold then.

        :raises ViolationError: ``ends``, and the laws of `Invariants.check_end`
        """
        self._restarts = False
        for process in self.processes.values():
            if process.is_working:
                self._kill(process)
        self.run(self._timeout_ms + within_ms)
        for reader in self._invariants.readers:
            if reader.open:
                raise ViolationError("ends", f"{reader.partition} has {reader.open} open, their producers are gone")
        self._invariants.check_end()
