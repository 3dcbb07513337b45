"""Brokers, ZooKeeper, consumers and the network between them, in one thread on a virtual clock.

    with CentralCluster(seed=7, topics={"orders": 3}, brokers=2, consumers=2) as sim:
        sim.run_until(sim.is_settled)
        sim.pause_broker(1, 20_000)
        sim.run(60_000)
        print(sim.owners())

Laws: those of `Invariants`, and that the seed decides everything: the same calls in the same order give the same trace.

An action that makes no sense (a crash of a process that does not run) does nothing, so that scripts can be reduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from kcoord_wire.central.draft.consumer import ConsumerState
from kcoord_wire.central.draft.coordinator import DraftCoordinator
from kcoord_wire.central.draft.events import ConsumerSettings, CoordinatorSettings, Partition
from kcoord_wire.central.draft.subscription import format_topics, parse_topic_count
from kcoord_wire.central.served_topics import GeneratedTopics
from kcoord_wire.kernel.machines import Shutdown, Tick
from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.kernel.virtual.network import Loss
from kcoord_wire.kernel.virtual.processes import ProcessCluster
from kcoord_wire.worlds.central.brokers import BrokerProcess
from kcoord_wire.worlds.central.consumers import ConsumerProcess
from kcoord_wire.worlds.central.invariants import Invariants
from kcoord_wire.worlds.central.wire import Cut, Link, VirtualBroker, Wire
from kcoord_wire.worlds.zookeeper import VirtualZooKeeper
from kcoord_wire.zookeeper.layout import COORDINATOR, ROOTS, owner_path, topic_path
from kcoord_wire.zookeeper.model import Create, Delete, SetData

RATE: Final = 10.0  # records a second of each partition
_DEFAULTS: Final = CoordinatorSettings()


class CentralCluster(ProcessCluster[ConsumerProcess]):
    """A cluster of the draft.

    Time passes only in `run` and `run_until`; all else happens at the present moment. Times are virtual milliseconds.

    :param seed: decides everything that is random
    :param topics: name to number of partitions at each broker
    :param brokers: how many: 1, 2 ...
    :param consumers: how many start at once: c1, c2 ..., in `group`, each with all topics
    :param settings: of the coordinator
    :param zookeeper_timeout_ms: of the brokers' sessions
    :param is_fenced: whether consumers send and compare epochs; without it ``one owner`` can be broken
    :param kept: so many of the newest records of a partition are there; None for all
    :ivar brokers: by id
    :ivar consumers: by name; a restarted consumer has a new process
    :ivar invariants: the checks
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        topics: Mapping[str, int],
        brokers: int = 2,
        consumers: int = 0,
        settings: CoordinatorSettings = _DEFAULTS,
        zookeeper_timeout_ms: int = 6_000,
        is_fenced: bool = True,
        kept: int | None = None,
        latency_ms: tuple[int, int] = (1, 20),
        lag_ms: tuple[int, int] = (0, 60),
    ) -> None:
        super().__init__()
        self.seed = seed
        self.zookeeper_timeout_ms = zookeeper_timeout_ms
        self.is_fenced = is_fenced
        self.invariants = Invariants(self._clock, zookeeper_timeout_ms)
        self.zookeeper = self.invariants.zookeeper = VirtualZooKeeper(
            self._clock, Random(f"{seed}/zookeeper"), lag_ms=lag_ms, on_write=self.invariants.written
        )
        self.wire = Wire(self._clock, latency_ms)
        self.brokers = {number: VirtualBroker(number) for number in range(1, brokers + 1)}
        self.wire.brokers = {broker.address.host: broker for broker in self.brokers.values()}
        self._settings = settings
        self._kept = kept
        self._topics: dict[str, dict[int, int]] = {}  # number of partitions by broker
        self.zookeeper.write(*(Create(path) for path in ROOTS))
        for topic, count in topics.items():
            for number in self.brokers:
                self.add_partitions(topic, number, count)
        for number in self.brokers:
            self.start_broker(number)
        for number in range(1, consumers + 1):
            self.consumer(f"c{number}")

    # ---- topics

    def add_partitions(self, topic: str, broker: int, count: int) -> None:
        """Add partitions of a topic at a broker, or create it."""
        counts = self._topics.setdefault(topic, {})
        path = f"{topic_path(topic)}/{broker}"
        if not counts:
            self.zookeeper.write(Create(topic_path(topic)))
        is_new = broker not in counts
        counts[broker] = counts.get(broker, 0) + count
        data = b"%d" % counts[broker]
        self.zookeeper.write(Create(path, data) if is_new else SetData(path, data))
        self._clock.record("cluster", "has topics", {each: dict(found) for each, found in self._topics.items()})

    def partitions(self, topic: str) -> list[Partition]:
        """Return a topic's partitions."""
        counts = self._topics.get(topic, {})
        return [Partition(topic, f"{broker}-{number}") for broker in counts for number in range(counts[broker])]

    # ---- brokers

    def _process(self, broker: int) -> BrokerProcess | None:
        process = self.brokers[broker].process
        return process if isinstance(process, BrokerProcess) else None

    def start_broker(self, broker: int) -> None:
        """Start a broker's process unless it runs."""
        place = self.brokers[broker]
        if place.process is None:
            place.boot += 1
            counts = _Counts(self._topics, broker)
            topics = GeneratedTopics(broker, counts, EPOCH_MS, RATE, kept=self._kept)
            self.invariants.term_changed(broker)
            coordinator = DraftCoordinator(place.address, self._settings)
            place.process = process = BrokerProcess(self, broker, coordinator, topics)
            self._clock.record(process.name, "starts")
            process.deliver(Tick())

    def crash_broker(self, broker: int, down_ms: int = 1_000) -> None:
        """Kill a broker's process; it starts again after `down_ms`."""
        process = self._process(broker)
        if process is not None:
            self._clock.record(process.name, "crashes", down_ms)
            process.kill()
            self.brokers[broker].process = None
            self.brokers[broker].boot += 1
            self.wire.crashed(self.brokers[broker])
            self._clock.after(down_ms, self.start_broker, broker)

    def pause_broker(self, broker: int, ms: int) -> None:
        """Pause a broker's process: it does not notice how time passes, nor that its session expires."""
        process = self._process(broker)
        if process is not None:
            process.pause(ms)

    def cut_zookeeper(self, broker: int, ms: int, up: bool = True, down: bool = True) -> None:
        """Cut a broker off from ZooKeeper, in one direction or both."""
        process = self._process(broker)
        if process is not None:
            self._clock.record(process.name, "is cut off", ("zookeeper", ms, up, down))
            process.registry.cut(ms, up=up, down=down)

    def reset_zookeeper(self, broker: int) -> None:
        """Reset a broker's connection with ZooKeeper."""
        process = self._process(broker)
        if process is not None:
            self._clock.record(process.name, "loses its connection", "zookeeper")
            process.registry.reset()

    def expire(self, broker: int) -> None:
        """End a broker's session at the servers."""
        process = self._process(broker)
        if process is not None:
            self.invariants.taken_away()
            self.zookeeper.expire(process.registry.session_id)

    # ---- ZooKeeper

    def stop_zookeeper(self, ms: int) -> None:
        """Let no server of the ensemble answer for so long."""
        self.zookeeper.stop(ms)

    def lag_zookeeper(self, follower: int, ms: int) -> None:
        """Let one of the followers apply nothing for so long."""
        self.zookeeper.lag(follower, ms)

    def depose(self) -> None:
        """Delete the coordinator's node, as an operator does to get another one."""
        self._clock.record("cluster", "deposes")
        self.invariants.taken_away()
        self.zookeeper.write(Delete(COORDINATOR))

    # ---- consumers

    def consumer(
        self,
        name: str,
        group: str = "g",
        subscription: str | None = None,
        auto_commit: bool = True,
        session_timeout_ms: int = 6_000,
    ) -> None:
        """Start a consumer, after a process of that name was killed.

        :param subscription: a ``topic_count`` of the draft; None for each topic there is, with one stream
        """
        self.crash(name)
        former = self.processes.get(name)
        settings = ConsumerSettings(
            group_id=group,
            consumer_id=name,
            topic_count=subscription or format_topics(dict.fromkeys(sorted(self._topics), 1)),
            bootstrap=tuple(broker.address for broker in self.brokers.values()),
            auto_commit=auto_commit,
            session_timeout_ms=session_timeout_ms,
            is_fenced=self.is_fenced,
        )
        random = Random(f"{self.seed}/{name}") if former is None else former.random
        process = ConsumerProcess(self._clock, self.wire, self.invariants, name, settings, random)
        self.processes[name] = process
        self._clock.record(name, "starts")
        process.deliver(Tick())

    def shut_down(self, name: str) -> None:
        """Let a consumer's application end it."""
        process = self._working(name)
        if process is not None:
            self._clock.record(name, "shuts down")
            process.deliver(Shutdown())

    # ---- the network between consumers and brokers

    def cut(self, consumer: str | None, broker: int | None, ms: int, up: bool = True, down: bool = True) -> None:
        """Deliver what is sent within `ms` between a consumer and a broker after that; None for all of them."""
        self._clock.record("cluster", "cuts", (consumer, broker, ms, up, down))
        self.wire.cuts.append(Cut(self._clock.time_ms + ms, consumer, broker, up, down))

    def delay(self, consumer: str | None, broker: int | None, ms: int, up: bool, down: bool, by_ms: int) -> None:
        """Deliver what is sent within `ms` between a consumer and a broker later, by `by_ms`."""
        self._clock.record("cluster", "delays", (consumer, broker, ms, up, down, by_ms))
        self.wire.cuts.append(Cut(self._clock.time_ms + ms, consumer, broker, up, down, by_ms))

    def lose(self, ms: int, drop: float = 0.0, reset: float = 0.0) -> None:
        """Make this network lossy for so long."""
        self._clock.record("cluster", "loses", (ms, drop, reset))
        self.wire.loss = Loss(self._clock.time_ms + ms, drop, reset)

    def group_of(self, link: Link) -> str:
        """Return the group of a connection's consumer."""
        process = link.process
        assert isinstance(process, ConsumerProcess)
        return process.settings.group_id

    def heal(self) -> None:
        """End all faults and pauses. A broker that is down comes back in time."""
        self._clock.record("cluster", "heals")
        self.wire.loss = Loss()
        self.wire.cuts.clear()
        self.zookeeper.heal()
        for process in [*self.processes.values(), *map(self._process, self.brokers)]:
            if process is not None:
                process.resume()

    # ---- ownership

    @property
    def leader(self) -> BrokerProcess | None:
        """The process that ZooKeeper has as the coordinator."""
        processes = [process for process in map(self._process, self.brokers) if process is not None]
        return next((process for process in processes if process.is_leader), None)

    def owners(self) -> dict[tuple[str, Partition], str]:
        """Return who fetches which partition, by group and partition; several names are joined."""
        found: dict[tuple[str, Partition], list[str]] = {}
        for process in self.processes.values():
            if process.is_alive and process.tenure is not None:
                for partition in process.tenure.positions.keys() - process.tenure.failed:
                    found.setdefault((process.settings.group_id, partition), []).append(process.name)
        return {place: "+".join(sorted(found[place])) for place in sorted(found)}

    def wanted(self) -> set[tuple[str, Partition]]:
        """Return the partitions that the groups of working consumers subscribe to."""
        wanted = set()
        for process in self.processes.values():
            if process.is_working:
                subscription = parse_topic_count(process.settings.topic_count)
                for topic in self._topics:
                    if subscription.streams_of(topic):
                        wanted |= {(process.settings.group_id, each) for each in self.partitions(topic)}
        return wanted

    def is_settled(self) -> bool:
        """Return whether there is a coordinator, with which all working consumers are registered, and each partition is
        fetched by the one consumer that ZooKeeper has as its owner."""
        working = [process for process in self.processes.values() if process.is_working]
        if self.leader is None or any(process.machine.state is not ConsumerState.REGISTERED for process in working):
            return False
        owners = self.owners()
        return owners.keys() == self.wanted() and all(self._is_recorded(*each, owners[each]) for each in owners)

    def waiting(self) -> list[str]:
        """Return what the coordinator waits for, besides the answers to its last pings: nothing once it has settled."""
        if self.leader is None:
            return ["a coordinator"]
        state = self.leader.coordinator.describe()
        members = sum(process.is_working for process in self.processes.values())
        found = {
            "answers to StopFetcher": state.stops,
            "answers to StartFetcher": state.starts,
            "answers to pings": max(state.pings - 2 * members, 0),  # two thirds of a session, a third apart
            "rebalances": sum(map(len, state.queues)),
        }
        return [f"{count} {what}" for what, count in found.items() if count]

    def _is_recorded(self, group: str, partition: Partition, owner: str) -> bool:
        node = self.zookeeper.leader.node(owner_path(group, *partition))
        return node is not None and node.data.decode().rpartition("-")[0] == owner


class _Counts(Mapping[str, int]):
    """The number of partitions of each topic at one broker, as it grows."""

    def __init__(self, topics: Mapping[str, Mapping[int, int]], broker: int) -> None:
        self._topics = topics
        self._broker = broker

    def __getitem__(self, topic: str) -> int:
        return self._topics[topic][self._broker]

    def __iter__(self) -> Any:
        return (topic for topic, counts in self._topics.items() if self._broker in counts)

    def __len__(self) -> int:
        return sum(1 for _ in self)
