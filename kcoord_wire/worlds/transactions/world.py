"""The world of transactions: applications that use them, and the brokers' process; and random runs of them.

    with TransactionCluster(seed=7) as sim:
        sim.member("t1")
        sim.run(5_000)
        sim.kill_brokers()
        sim.pause("t1", 8_000)
        sim.member("t1")                # a second one with the same transactional id: the first is a zombie
        sim.run(20_000)
        print(sim.committed())

The brokers' process is the real one (`virtual_broker`), on disks that fail; requests and responses go through the
codec. The applications are `transformer.Transformer`: what they consume are offsets, since records of a source would
decide nothing; what they produce is read by a read_committed consumer after each step.

Laws, besides those of every world:

* After every step of the brokers those of `laws` are checked; a call that lets time pass raises `ViolationError` if one
  is broken.
* A process has one connection to each broker; messages on it arrive in order.
* While the brokers are slow (`Slow`), a request that has arrived is handled late, or once more later, even if its
  connection has been closed since: what lay in a queue of the broker. That is for transaction version 2; the protocol
  of version 1 does not allow for it, which is why there is a version 2 (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from kcoord_wire.codec.registry import decode_request, decode_response, encode_request
from kcoord_wire.consumer.member_events import Arrived
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.network import Network, VirtualConnection
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.kernel.virtual.scripts import (
    Do,
    Draw,
    Script,
    ViolationError,
    between,
    draw_actions,
    losses,
    one_of,
    process_name,
    row,
    spread,
)
from kcoord_wire.kernel.virtual.world import World
from kcoord_wire.worlds.transactions import transformer as events
from kcoord_wire.worlds.transactions.laws import Invariants
from kcoord_wire.worlds.transactions.transformer import Ask, Partition, Place, Plan, Settings, Transformer
from kcoord_wire.worlds.transactions.virtual_broker import Call, VirtualBrokers

SETTLE_MS: Final = 20_000
"""Within this after the last fault every application has committed two more offsets: the transaction of its predecessor
times out, which takes less."""

END_MS: Final = 2_000
"""A transaction whose producer is gone has ended so long after its timeout at the latest: its markers are written."""

TIMEOUT_MS: Final = 3_000
GROUP: Final = "applications"
SOURCE: Final = "source"
OUTPUT: Final = "output"
RESTART_MS: Final = 100  # after which an application that was fenced without a successor is started again
_MOST_TRIES: Final = 12
_THINKS_MS: Final = (0, 0, 5, 40, 700)


class Slow(NamedTuple):
    """How slow the brokers are.

    :ivar until: for how long, in ms since the Unix epoch
    :ivar most_ms: what a request waits at most
    :ivar late: probability that it waits
    :ivar twice: probability that it is handled once more
    """

    until: int = 0
    most_ms: int = 0
    late: float = 0.0
    twice: float = 0.0


class BrokerConnection(VirtualConnection):
    """A process's connection to one broker.

    :ivar broker: which
    :ivar tokens: of the requests that are not answered yet
    """

    __slots__ = ("broker", "tokens")

    process: ApplicationProcess

    def __init__(self, process: ApplicationProcess, server: VirtualBrokers, name: str, number: int) -> None:
        super().__init__(process, server, name, number)
        self.broker = 0
        self.tokens: dict[int, Any] = {}


class TransactionNetwork(Network[BrokerConnection]):
    """Carries requests and responses.

    :param latency_ms: least and most that a message takes
    :ivar slow: see `Slow`
    """

    def __init__(self, clock: VirtualClock, brokers: VirtualBrokers, latency_ms: tuple[int, int]) -> None:
        super().__init__(clock, latency_ms, BrokerConnection)
        self.slow = Slow()
        self._brokers = brokers
        brokers.on_kill.append(partial(self.crashed, brokers))

    def heal(self) -> None:
        """End all faults of the network."""
        super().heal()
        self.slow = Slow()

    def send(self, process: ApplicationProcess, ask: Ask, broker: int) -> None:
        """Send a request, on a new connection if there is none to this broker."""
        connection = process.connections.get(broker)
        if connection is None:
            connection = self.connect(process, self._brokers, f"10.0.0.{broker + 1}:9092")
            connection.broker = broker
            process.connections[broker] = connection
        connection.tokens[ask.token] = None
        self._clock.record(process.name, "sends", ask.message)
        data = encode_request(ask.message, ask.version, correlation_id=ask.token, client_id=process.name)
        self.send_to_server(connection, data)

    def arrived(self, connection: BrokerConnection, *message: Any) -> None:
        """A request has reached its broker."""
        until, most_ms, late, twice = self.slow
        random = connection.process.random
        if until > self._clock.time_ms and connection.process.settings.version > 1:
            is_late, is_twice = random.random() < late, random.random() < twice
            if is_twice:
                self._clock.after(random.randint(1, most_ms), self._handle_late, connection, connection.boot, *message)
            if is_late:
                self._clock.after(random.randint(1, most_ms), self._handle_late, connection, connection.boot, *message)
                return
        self._handle(connection, connection.boot, *message)

    def _handle_late(self, connection: BrokerConnection, boot: int, data: bytes) -> None:
        if boot == self._brokers.boot:
            self._clock.record(connection.process.name, "is late with", decode_request(data)[1])
            self._handle(connection, boot, data)

    def _handle(self, connection: BrokerConnection, boot: int, data: bytes) -> None:
        if boot == self._brokers.boot:
            call = Call(self._brokers, connection.broker, connection.process.host, partial(self._answered, connection))
            self._brokers.receive(call, data)

    def _answered(self, connection: BrokerConnection, message: Any, version: int, data: bytes) -> None:
        if connection.is_open and message is not None:
            self.send_to_process(connection, data, type(message), version)

    def returned(self, connection: BrokerConnection, *message: Any) -> None:
        """A response has reached the process."""
        header, response = decode_response(*message)
        if header.correlation_id in connection.tokens:
            del connection.tokens[header.correlation_id]
            self._clock.record(connection.process.name, "gets", response)
            connection.process.deliver(Arrived(header.correlation_id, response))

    # ---- the ends of connections

    def _release(self, connection: BrokerConnection) -> None:
        super()._release(connection)
        connection.process.connections.pop(connection.broker, None)

    def hang_up(self, connection: BrokerConnection) -> None:
        """The process closes a connection."""
        super().hang_up(connection)
        connection.process.lost(connection)

    def disconnected(self, connection: BrokerConnection) -> None:
        """The process has noticed the end of a connection."""
        connection.process.lost(connection)


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
            for connection in [each for each in self.connections.values() if effect.token in each.tokens]:
                self._cluster.network.hang_up(connection)
        else:
            self._cluster.carry_out(self, effect)

    def lost(self, connection: BrokerConnection) -> None:
        """A connection has ended."""
        tokens = list(connection.tokens)
        connection.tokens.clear()
        self._clock.after(0, self.deliver, events.Lost(tokens))  # the machine may be handling an event


class TransactionCluster(World[ApplicationProcess]):
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
    :ivar processes: of all applications that were started, by name, the latest of each id last
    """

    settle_ms = SETTLE_MS
    network: TransactionNetwork

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
        super().__init__(seed)
        self.ids = dict(ids or {"t1": 2})
        self.abort_odds = abort_odds
        self._timeout_ms = timeout_ms
        self._request_timeout_ms = request_timeout_ms
        self._outputs = [(OUTPUT, number) for number in range(outputs)]
        self._sources = {transactional_id: number for number, transactional_id in enumerate(self.ids)}
        self._restarts = True
        self._before: Mapping[Partition, int] = {}  # what was committed at the last fault
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
        self.network = TransactionNetwork(self._clock, self._brokers, latency_ms)

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

    def member(self, transactional_id: str) -> None:
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
            self, self._clock, settings, self.network.host_of(name), Random(f"{self.seed}/{name}")
        )
        self._begin(process, events.Start())

    def _latest(self, transactional_id: str) -> ApplicationProcess | None:
        """Return the application that was started last with an id."""
        found = [
            process for process in self.processes.values() if process.settings.transactional_id == transactional_id
        ]
        return found[-1] if found else None

    def _working(self, transactional_id: str) -> ApplicationProcess | None:
        process = self._latest(transactional_id)
        return process if process is not None and process.is_working else None

    def swap(self, one: str, other: str) -> None:
        """Kill all applications of two ids, and start one of each with the source of the other, as after a rebalance in
        which members leave: what its predecessor has committed is not yet stable (KIP-447)."""
        for process in list(self.working()):
            if process.settings.transactional_id in (one, other):
                self._kill(process)
        sources = self._sources
        sources[one], sources[other] = sources[other], sources[one]
        for transactional_id in dict.fromkeys((one, other)):
            self.member(transactional_id)

    # ---- what applications want

    def carry_out(self, process: ApplicationProcess, effect: Any) -> None:
        """Do what an application wants."""
        if isinstance(effect, events.Ask):
            self.network.send(process, effect, process.broker_of(effect.place))
        elif isinstance(effect, events.Began):
            self._clock.record(process.name, "begins", effect.attempt)
            self._invariants.attempt_began(effect.attempt)
        else:
            self._clock.record(process.name, "is over", effect.reason)
            self._clock.after(RESTART_MS, self._start_again, process)

    def _start_again(self, process: ApplicationProcess) -> None:
        if self._restarts and self._latest(process.settings.transactional_id) is process:
            self.member(process.settings.transactional_id)

    # ---- the network and the brokers

    def slow_down(self, ms: int, most_ms: int, late: float = 0.0, twice: float = 0.0) -> None:
        """Let requests be handled late, or twice, for so long; see `Slow`."""
        self._clock.record("cluster", "slows down", (ms, most_ms, late, twice))
        self.network.slow = Slow(self._clock.time_ms + ms, most_ms, late, twice)

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

    def _end_faults(self) -> None:
        """Also: start an application of each id that has none."""
        for disk in (self._brokers.logs, self._brokers.records):
            disk.power_left = disk.fails_in = None
            disk.is_full = False
        for transactional_id in self.ids:
            if self._working(transactional_id) is None:
                self.member(transactional_id)

    def is_settled(self) -> bool:
        """Return whether two offsets of each source were committed since the last fault."""
        committed = self._invariants.committed
        sources = [(SOURCE, number) for number in range(len(self.ids))]
        return all(committed.get(source, 0) >= self._before.get(source, 0) + 2 for source in sources)

    def unsettled(self) -> object:
        """Return what is committed, and what was at the last fault."""
        return f"{self.committed()}, before {self._before}"

    def _await_settled(self) -> int:
        self._before = self.committed()
        return super()._await_settled()

    def _finish(self) -> None:
        self.end(END_MS)

    def counts(self) -> Mapping[str, int]:
        """Return how many transactions were begun, and how many records count."""
        return {"transactions": self.transactions(), "records": self.visible()}

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
        for process in list(self.working()):
            self._kill(process)
        self.run(self._timeout_ms + within_ms)
        for reader in self._invariants.readers:
            if reader.open:
                raise ViolationError("ends", f"{reader.partition} has {reader.open} open, their producers are gone")
        self._invariants.check_end()


# ---- random runs

_ms: Final = one_of(200, 1_000, 2_500, 4_000, 8_000)
_disk: Final = one_of("logs", "records")
_slowness: Final = spread(one_of((0.3, 0.0), (0.1, 0.1), (0.02, 0.3), (0.6, 0.2)))


class _Draw(Draw):
    def __init__(self, random: Random, names: list[str], outputs: int) -> None:
        super().__init__(random, names)
        self.outputs = outputs


def _place(draw: _Draw) -> Place:
    output = "topics", OUTPUT, draw.random.randrange(draw.outputs)
    return draw.random.choice([("transactions", process_name(draw), 0), output, ("groups", GROUP, 0)])


ROWS: Final = (
    row(14, "member", process_name),
    row(10, "crash", process_name),
    row(15, "pause", process_name, _ms),
    row(5, "swap", process_name, process_name),
    row(8, "partition", process_name, _ms),
    row(8, "lose", _ms, losses),
    row(12, "slow_down", _ms, one_of(30, 400, 3_000), _slowness),
    row(12, "kill_brokers", one_of(0, 200, 1_500), one_of(0, 100, 1_000), one_of(0, 1, 2, 3, 5, 9), _disk),
    row(4, "fail_disk", _disk, one_of(10, 1_000), between(0, 3)),
    row(4, "fill_disk", _disk, one_of(50, 1_000, 4_000)),
    row(8, "move", _place, between(0, 2)),
)


def random_script(seed: int, actions: int = 24) -> Script[TransactionCluster]:
    """Return a run of up to three applications; the seed alone decides what happens in it.

    :param actions: at most so many, and at least half as many, besides the first starts
    """
    random = Random(f"{seed}/transactions")
    ids = {f"t{number}": random.choice([1, 2, 2]) for number in range(1, random.randint(1, 3) + 1)}
    draw = _Draw(random, sorted(ids), random.randint(1, 3))
    haste_ms = random.choice([20, 150, 800])  # so that in some runs actions meet in the middle of a transaction
    drawn = [*(Do(0, "member", each) for each in ids), *draw_actions(draw, ROWS, actions, haste_ms)]
    options = {
        "ids": ids,
        "outputs": draw.outputs,
        "brokers": random.choice([1, 2, 3]),
        "timeout_ms": TIMEOUT_MS,
        "abort_odds": random.choice([0.0, 0.1, 0.4]),
        "segment_bytes": random.choice([1_000, 8_000, 65_536]),
    }
    return Script(TransactionCluster, seed, options, drawn)
