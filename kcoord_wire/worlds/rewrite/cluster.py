"""Brokers, ZooKeeper and the members of one group under the rewrite, on a virtual clock.

Laws: those of `invariants`, checked after every write and every record; and the seed decides everything: the same calls
in the same order give the same trace.

An action that makes no sense (a crash of a process that does not run) does nothing, so that scripts can be reduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Final

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.central.rewrite.events import CoordinatorSettings, MemberSettings
from kcoord_wire.central.rewrite.layout import topic_record
from kcoord_wire.central.rewrite.member import MemberPhase
from kcoord_wire.kernel.machines import Shutdown, Tick
from kcoord_wire.kernel.virtual.network import Loss, NetworkCluster
from kcoord_wire.worlds.central.wire import Cut, VirtualBroker
from kcoord_wire.worlds.rewrite.invariants import Invariants
from kcoord_wire.worlds.rewrite.processes import BrokerProcess, MemberProcess
from kcoord_wire.worlds.rewrite.wire import RewriteWire
from kcoord_wire.worlds.zookeeper import VirtualZooKeeper
from kcoord_wire.zookeeper.layout import BROKER_TOPICS, ROOTS, topic_path
from kcoord_wire.zookeeper.model import Create, SetData

GROUP: Final = "readers"  # of shard 0, which the controller moves first when a broker joins
_SHARDS: Final = 4
_ZOOKEEPER_SESSION_MS: Final = 6_000


class RewriteCluster(NetworkCluster[MemberProcess, RewriteWire]):
    """A cluster with one group.

    Time passes only in `run` and `run_until`; all else happens at the present moment. Times are virtual milliseconds.

    :param seed: decides everything that is random
    :param topics: name to number of partitions
    :param brokers: how many there are: 1, 2 ...
    :param members: how many start at once: m1, m2 ...
    :param stops_with_session: see `MemberSettings`; then the law is that nothing overlaps
    :param allows_overlaps: False: an overlap is a broken law without that, too
    :param latency_ms: least and most that a message takes between members and brokers
    :ivar topics: as they are now
    :ivar processes: of members, by name; a restarted member has a new process
    :ivar invariants: the laws
    :ivar zookeeper: to look at, and to break
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        topics: Mapping[str, int],
        brokers: int = 2,
        members: int = 0,
        stops_with_session: bool = False,
        allows_overlaps: bool = True,
        latency_ms: tuple[int, int] = (1, 20),
    ) -> None:
        super().__init__()
        self.seed = seed
        self.topics: dict[str, int] = {}
        self._stops_with_session = stops_with_session
        allows = allows_overlaps and not stops_with_session
        self.invariants = Invariants(self._clock, GROUP, _SHARDS, allows_overlaps=allows)
        random = Random(f"{seed}/zookeeper")
        self.zookeeper = VirtualZooKeeper(self._clock, random, on_write=self.invariants.written)
        self._wire = RewriteWire(self._clock, latency_ms)
        self._brokers = {number: VirtualBroker(number) for number in range(1, brokers + 1)}
        self._wire.brokers.update((broker.address.host, broker) for broker in self._brokers.values())
        for path in (*ROOTS, BROKER_TOPICS):
            self.zookeeper.write(Create(path))
        for topic, count in topics.items():
            self.add_partitions(topic, count)
        for number in self._brokers:
            self._start_broker(number)
        for number in range(1, members + 1):
            self.member(f"m{number}")

    # ---- brokers and ZooKeeper

    def _start_broker(self, number: int) -> None:
        broker = self._brokers[number]
        broker.boot += 1
        random = Random(f"{self.seed}/broker-{number}/{broker.boot}")
        settings = CoordinatorSettings(shards=_SHARDS)
        broker.process = process = BrokerProcess(self._clock, self._wire, broker, settings, random)
        process.registry = self.zookeeper.client(
            process.name, process.deliver, random, timeout_ms=_ZOOKEEPER_SESSION_MS
        )
        self._clock.record(process.name, "starts")
        process.deliver(Tick())

    def _broker(self, number: int) -> BrokerProcess | None:
        broker = self._brokers.get(number)
        return broker.process if broker is not None and isinstance(broker.process, BrokerProcess) else None

    def crash_broker(self, number: int, down_ms: int = 1_000) -> None:
        """Kill a broker, which starts again after `down_ms`."""
        process = self._broker(number)
        if process is not None:
            self._clock.record(process.name, "crashes", down_ms)
            process.kill()
            self._wire.crashed(self._brokers[number])
            self._brokers[number].process = None
            self._clock.after(down_ms, self._start_broker, number)

    def pause_broker(self, number: int, ms: int) -> None:
        """Pause a broker's process; the operating system keeps its connections."""
        process = self._broker(number)
        if process is not None:
            process.pause(ms)

    def cut_broker(self, number: int, ms: int, *, up: bool = True, down: bool = True) -> None:
        """Cut a broker off from ZooKeeper."""
        process = self._broker(number)
        if process is not None:
            self._clock.record(process.name, "is cut off from ZooKeeper", (ms, up, down))
            process.registry.cut(ms, up=up, down=down)

    def expire(self, number: int) -> None:
        """End a broker's session at ZooKeeper."""
        process = self._broker(number)
        if process is not None and process.registry.session_id:
            self.zookeeper.expire(process.registry.session_id)

    def stop_zookeeper(self, ms: int) -> None:
        """Let no server of ZooKeeper answer."""
        self.zookeeper.stop(ms)

    def lag_zookeeper(self, server: int, ms: int) -> None:
        """Let a server of ZooKeeper be behind the others."""
        self.zookeeper.lag(server, ms)

    def add_partitions(self, topic: str, count: int) -> None:
        """Add partitions to a topic, or create it."""
        existed = topic in self.topics
        self.topics[topic] = self.topics.get(topic, 0) + count
        self._clock.record("cluster", "has topics", dict(self.topics))
        brokers = list(self._brokers)
        data = topic_record([[brokers[each % len(brokers)]] for each in range(self.topics[topic])])
        self.zookeeper.write(SetData(topic_path(topic), data) if existed else Create(topic_path(topic), data))

    # ---- members

    def member(self, name: str, whitelist: str | None = None, topics: tuple[str, ...] = ()) -> MemberProcess:
        """Start a member, after a process of that name was killed.

        :param whitelist: a wildcard subscription
        :param topics: otherwise what it consumes, all topics if empty
        """
        self.crash(name)
        settings = MemberSettings(
            GROUP,
            tuple(broker.address for broker in self._brokers.values()),
            topics=() if whitelist is not None else topics or tuple(sorted(self.topics)),
            whitelist=whitelist,
            join_timeout_ms=15_000,
            commit_interval_ms=2_000,
            refresh_ms=5_000,
            stops_with_session=self._stops_with_session,
        )
        random = Random(f"{self.seed}/{name}")
        if random.random() < 0.5:
            settings = replace(settings, bootstrap=settings.bootstrap[::-1])
        process = MemberProcess(self._clock, self._wire, self.invariants, name, settings, random)
        self.processes[name] = process
        self._clock.record(name, "starts", settings.topics or settings.whitelist)
        process.deliver(Tick())
        return process

    def leave(self, name: str) -> None:
        """Shut a member down."""
        process = self._working(name)
        if process is not None:
            self._clock.record(name, "shuts down")
            process.deliver(Shutdown())

    # ---- the network

    def cut(self, name: str, broker: int | None, ms: int, *, up: bool = True, down: bool = True) -> None:
        """Carry nothing between a member and a broker, or all brokers; what it fetches comes from elsewhere."""
        self._clock.record(name, "is cut off", (broker, ms, up, down))
        self._wire.cuts.append(Cut(self._clock.time_ms + ms, name, broker, up, down))

    def heal(self) -> None:
        """End all faults and pauses. A broker that is down comes back in time."""
        self._clock.record("cluster", "heals")
        self._wire.loss = Loss()
        self._wire.cuts.clear()
        self.zookeeper.heal()
        running = [self._broker(number) for number in self._brokers]
        for process in (*self.processes.values(), *(each for each in running if each is not None)):
            process.resume()

    # ---- where it stands

    def owners(self) -> dict[TopicPartition, str]:
        """Return which member fetches which partition; of several the one of the newest generation."""
        tenures = [each.tenure for each in self.processes.values() if each.is_alive and each.tenure is not None]
        tenures.sort(key=lambda tenure: tenure.generation)
        return {partition: tenure.process.name for tenure in tenures for partition in tenure.positions}

    def is_settled(self) -> bool:
        """Return whether the group consists of the working members, which fetch all of their topics' partitions."""
        members = [process.machine for process in self.processes.values() if process.is_working]
        if {member.consumer_id for member in members} != set(self.invariants.record.consumers):
            return False
        return all(self._fetches(process) for process in self.processes.values() if process.is_working) and sorted(
            partition for member in members for partition in member.assigned
        ) == self._wanted({topic for member in members for topic in member.topics})

    def _fetches(self, process: MemberProcess) -> bool:
        """Whether a member fetches in the group's present generation."""
        member = process.machine
        is_current = member.generation == self.invariants.record.generation
        return is_current and member.phase is MemberPhase.FETCHING and not process.is_paused

    def _wanted(self, topics: set[str]) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(self.topics[topic])]
