"""The world of the 0.8 draft: brokers, ZooKeeper, consumers and the network between them; and random runs of it.

    with CentralCluster(seed=7, topics={"orders": 3}, brokers=2, members=2) as sim:
        sim.run_until(sim.is_settled)
        sim.pause("broker-1", 20_000)
        sim.run(60_000)
        print(sim.owners())

Laws: those of `draft_laws`, besides those of every world.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

from kcoord_wire.central.dialects import decode_to_broker, draft_frame
from kcoord_wire.central.draft.consumer import ConsumerState
from kcoord_wire.central.draft.coordinator import DraftCoordinator
from kcoord_wire.central.draft.events import ConsumerSettings, CoordinatorSettings, Partition, RebalanceBy
from kcoord_wire.central.draft.subscription import format_topics, parse_topic_count
from kcoord_wire.central.served_topics import GeneratedTopics
from kcoord_wire.codec.registry import registry
from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.kernel.virtual.network import ProcessServer
from kcoord_wire.kernel.virtual.scripts import (
    Do,
    Script,
    ViolationError,
    between,
    draw_actions,
    draw_arguments,
    losses,
    one_of,
    process_name,
    row,
    spread,
)
from kcoord_wire.worlds.central.broker_world import BrokerDraw, BrokerNetwork, BrokerWorld, Link, address_of, broker
from kcoord_wire.worlds.central.draft_laws import Invariants, Place
from kcoord_wire.worlds.central.draft_processes import ConsumerProcess, DraftBroker
from kcoord_wire.zookeeper.layout import ROOTS, election_of, owner_path, topic_path, topic_switch
from kcoord_wire.zookeeper.requests import Create, Delete, SetData

RATE: Final = 10.0  # records a second of each partition
SESSION_MS: Final = 3_000
LONGEST_SESSION_MS: Final = 4_500
ZOOKEEPER_MS: Final = 4_000
SETTINGS: Final = CoordinatorSettings(offset_commit_interval_ms=500, rebalance_backoff_ms=500, max_rebalance_retries=3)
LATEST_MS: Final = 17_000  # a message that was sent in the longest cut, 12 s, and delayed by 5 s
ATTEMPT_MS: Final = LONGEST_SESSION_MS * 2 // 3 * 2 + SETTINGS.rebalance_backoff_ms  # StopFetcher and StartFetcher
SETTLE_MS: Final = (
    LATEST_MS + 2 * ZOOKEEPER_MS + 3 * LONGEST_SESSION_MS + (SETTINGS.max_rebalance_retries + 1) * ATTEMPT_MS
)
"""So long after the last fault every partition is owned at the latest: the last late message has come, a session of
ZooKeeper has expired and a coordinator was elected (two sessions), the consumers have suspected the former one (one
session) and have registered (two), and one rebalance has used all its retries. That is 64.5 s."""

_DEFAULTS: Final = CoordinatorSettings()
_SIZE: Final = 4  # bytes before each frame
_TYPE_ID: Final = 2


class DraftNetwork(BrokerNetwork):
    """Carries the draft's frames."""

    def encode_to_broker(self, client: str, message: Any) -> bytes:
        return draft_frame(message)

    def decode_to_broker(self, frame: bytes) -> Any:
        return decode_to_broker(frame[_SIZE:])

    def encode_to_client(self, message: Any) -> bytes:
        return draft_frame(message)

    def decode_to_client(self, frame: bytes, cls: type[Any]) -> Any:
        codec = registry.by_class(cls)
        start = _SIZE + (_TYPE_ID if codec.header == "typeId" else 0)
        return codec.decode_prefix(frame, 0, offset=start)[0]


class CentralCluster(BrokerWorld[ConsumerProcess]):
    """A cluster of the draft.

    :param seed: decides everything that is random
    :param topics: name to number of partitions at each broker
    :param brokers: how many: 1, 2 ...
    :param members: how many start at once: c1, c2 ..., in `group`, each with all topics
    :param settings: of the coordinator
    :param zookeeper_timeout_ms: of the brokers' sessions
    :param is_fenced: whether consumers send and compare epochs; without it ``one owner`` can be broken
    :param kept: so many of the newest records of a partition are there; None for all
    :ivar invariants: the checks
    """

    settle_ms = SETTLE_MS
    invariants: Invariants
    hold_ms = 10_000  # in which every partition is consumed and committed
    look_ms = 250

    def __init__(
        self,
        seed: int = 0,
        *,
        topics: Mapping[str, int],
        brokers: int = 2,
        members: int = 0,
        settings: CoordinatorSettings = _DEFAULTS,
        zookeeper_timeout_ms: int = 6_000,
        is_fenced: bool = True,
        kept: int | None = None,
        latency_ms: tuple[int, int] = (1, 20),
        lag_ms: tuple[int, int] = (0, 60),
    ) -> None:
        super().__init__(seed, DraftNetwork, brokers, zookeeper_timeout_ms, latency_ms, lag_ms)
        self.is_fenced = is_fenced
        self.invariants = Invariants(self._clock, zookeeper_timeout_ms, settings.coordinators)
        self.invariants.zookeeper = self.zookeeper
        self._settings = settings
        self._kept = kept
        self._fixed: set[str] = set()
        self._consumed: dict[Place, int] = {}  # when the cluster had settled
        self._topics: dict[int, dict[str, int]] = {server.number: {} for server in self.servers.values()}  # by broker
        self.zookeeper.write(*(Create(path) for path in ROOTS))
        for topic, count in topics.items():
            for server in self.servers.values():
                self.add_partitions(topic, server.number, count)
        for server_name in self.servers:
            self._start_server(server_name)
        for number in range(1, members + 1):
            self.member(f"c{number}")

    # ---- topics

    def add_partitions(self, topic: str, broker: int, count: int) -> None:
        """Add partitions of a topic at a broker, or create it."""
        counts = self._topics[broker]
        path = f"{topic_path(topic)}/{broker}"
        if topic not in self.topics:
            self.zookeeper.write(Create(topic_path(topic)))
        is_new = topic not in counts
        counts[topic] = counts.get(topic, 0) + count
        data = b"%d" % counts[topic]
        self.zookeeper.write(Create(path, data) if is_new else SetData(path, data))
        self._clock.record("cluster", "has topics", {each: dict(found) for each, found in self._topics.items()})

    @property
    def topics(self) -> set[str]:
        """Those that there are."""
        return {topic for counts in self._topics.values() for topic in counts}

    def partitions(self, topic: str) -> list[Partition]:
        """Return a topic's partitions."""
        counts = {broker: topics.get(topic, 0) for broker, topics in self._topics.items()}
        return [Partition(topic, f"{broker}-{number}") for broker in counts for number in range(counts[broker])]

    # ---- brokers and ZooKeeper

    def _make_server(self, server: ProcessServer) -> DraftBroker:
        topics = GeneratedTopics(server.number, self._topics[server.number], EPOCH_MS, RATE, kept=self._kept)
        self.invariants.started(server.number)
        return DraftBroker(self, server, DraftCoordinator(address_of(server), self._settings), topics)

    def expire(self, broker: str) -> None:
        """End a broker's session at the servers."""
        if self._broker(broker) is not None:
            self.invariants.taken_away()
            super().expire(broker)

    def depose(self, subset: int = 0) -> None:
        """Delete the node of a subset's coordinator, as an operator does to get another one."""
        self._clock.record("cluster", "deposes", subset)
        self.invariants.taken_away()
        self.zookeeper.write(Delete(election_of(subset)[0]))

    def switch_rebalancing(self, topic: str, is_on: bool) -> None:
        """Switch the rebalancing of a topic on or off, until the faults end."""
        if topic in self.topics:
            self._clock.record("cluster", "switches", (topic, is_on))
            self.zookeeper.write(SetData(topic_path(topic), topic_switch(is_on)))
            (self._fixed.discard if is_on else self._fixed.add)(topic)

    def _end_faults(self) -> None:
        super()._end_faults()
        for topic in sorted(self._fixed):
            self.switch_rebalancing(topic, True)

    # ---- consumers

    def member(
        self,
        name: str,
        group: str = "g",
        subscription: str | None = None,
        auto_commit: bool = True,
        session_timeout_ms: int = 6_000,
    ) -> ConsumerProcess:
        """Start a consumer, after a process of that name was killed.

        :param subscription: a ``topic_count`` of the draft; None for each topic there is, with one stream
        """
        self.crash(name)
        former = self.processes.get(name)
        settings = ConsumerSettings(
            group_id=group,
            consumer_id=name,
            topic_count=subscription or format_topics(dict.fromkeys(sorted(self.topics), 1)),
            bootstrap=self.addresses,
            auto_commit=auto_commit,
            session_timeout_ms=session_timeout_ms,
            is_fenced=self.is_fenced,
        )
        random = Random(f"{self.seed}/{name}") if former is None else former.random
        return self._begin(ConsumerProcess(self, name, settings, random))

    def settings_of(self, link: Link) -> ConsumerSettings:
        """Return those of a connection's consumer."""
        process = link.process
        assert isinstance(process, ConsumerProcess)
        return process.settings

    # ---- ownership

    @property
    def leader(self) -> DraftBroker | None:
        """The process that ZooKeeper has as the coordinator, of the first subset."""
        return self.leaders()[0]

    def _brokers(self) -> list[DraftBroker]:
        return [each for server in self.servers.values() if isinstance(each := server.process, DraftBroker)]

    def leaders(self) -> list[DraftBroker | None]:
        """Return the process that ZooKeeper has as the coordinator of each subset of the groups."""
        subsets = range(self._settings.coordinators)
        return [next((each for each in self._brokers() if each.leads(subset)), None) for subset in subsets]

    def _is_coordinated(self) -> bool:
        """Whether each subset has a coordinator, and no broker two more than another."""
        leaders = self.leaders()
        counts = [sum(leader is each for leader in leaders) for each in self._brokers()]
        return None not in leaders and (len(leaders) == 1 or max(counts) - min(counts) <= 1)

    def owners(self) -> dict[tuple[str, Partition], str]:
        """Return who fetches which partition, by group and partition; several names are joined."""
        found: dict[tuple[str, Partition], list[str]] = {}
        for process in self.processes.values():
            if process.is_alive and process.fetching is not None:
                for partition in process.fetching.positions.keys() - process.fetching.failed:
                    found.setdefault((process.settings.group_id, partition), []).append(process.name)
        return {place: "+".join(sorted(found[place])) for place in sorted(found)}

    def wanted(self) -> set[tuple[str, Partition]]:
        """Return the partitions that the groups of working consumers subscribe to."""
        wanted = set()
        for process in self.working():
            subscription = parse_topic_count(process.settings.topic_count)
            for topic in self.topics:
                if subscription.streams_of(topic):
                    wanted |= {(process.settings.group_id, each) for each in self.partitions(topic)}
        return wanted

    def is_settled(self) -> bool:
        """Return whether there are coordinators, with which all working consumers are registered, and each partition is
        fetched by the one consumer that ZooKeeper has as its owner."""
        if not self._is_coordinated() or any(
            each.machine.state is not ConsumerState.REGISTERED for each in self.working()
        ):
            return False
        owners = self.owners()
        return owners.keys() == self.wanted() and all(self._is_recorded(*each, owners[each]) for each in owners)

    def waiting(self) -> list[str]:
        """Return what the coordinators wait for, besides the answers to the last pings: nothing once it has settled."""
        if not self._is_coordinated():
            return ["coordinators"]
        terms = [
            term
            for subset, broker in enumerate(self.leaders())
            if broker is not None and (term := broker.coordinator.candidates[subset].term) is not None
        ]
        fetchers = [term.fetchers for term in terms if term.fetchers is not None]
        pings = sum(len(term.pings.purgatory) for term in terms)
        found = {
            "answers to StopFetcher": sum(len(each.stops) for each in fetchers),
            "answers to StartFetcher": sum(len(each.starts) for each in fetchers),
            # two thirds of a session, a third apart
            "answers to pings": max(pings - 2 * len(list(self.working())), 0),
            "rebalances": sum(group.needs_rebalance for term in terms for group in term.groups.by_id.values()),
        }
        return [f"{count} {what}" for what, count in found.items() if count]

    def unsettled(self) -> str:
        """Return the states of the consumers, and what is missing."""
        states = {name: process.machine.state.value for name, process in self.processes.items()}
        return f"{states}, not owned: {sorted(self.wanted() - self.owners().keys())}, waiting: {self.waiting()}"

    def course(self) -> object:
        """Return what does not change while a settled cluster is held."""
        return self._count("elected"), self.owners()

    def _hold(self) -> None:
        self._consumed = dict(self.invariants.consumed_to)

    def _finish(self) -> None:
        """See that a settled cluster waits for nothing, and goes on to consume.

        :raises ViolationError: ``settles``
        """
        reached = self.invariants.consumed_to
        stuck = [
            each for each in map(Place._make, self.owners()) if reached.get(each, 0) <= self._consumed.get(each, 0)
        ]
        if (waiting := self.waiting()) or stuck:
            text = f"{self.hold_ms} ms later it waits for {waiting}; not consumed: {stuck}"
            raise ViolationError("settles", text)

    def _count(self, what: str) -> int:
        return sum(line.what == what for line in self.trace)

    def counts(self) -> Mapping[str, int]:
        """Return how many rebalances were completed, coordinators elected, and messages sent by deposed ones."""
        counted = Counter(line.what for line in self.trace)
        return {
            "rebalances": counted["rebalance completed"],
            "elections": counted["elected"],
            "deposed_messages": self.invariants.deposed_messages.total(),
        }

    def _is_recorded(self, group: str, partition: Partition, owner: str) -> bool:
        node = self.zookeeper.leader.node(owner_path(group, *partition))
        return node is not None and node.data.decode().rpartition("-")[0] == owner


# ---- random runs


class _Draw(BrokerDraw):
    """Draws of a script: what its actions have in common is drawn first."""

    def __init__(self, random: Random, *, is_fenced: bool, coordinators: int) -> None:
        self.coordinators = coordinators
        brokers = random.choice([2, 2, 3])
        topics = {f"t{number}": random.randint(1, 2) for number in range(1, random.randint(1, 3) + 1)}
        counts = [1] if not is_fenced else [1, 1, 2, 3] if coordinators == 1 else [2, 3, 4]
        groups = [f"g{number}" for number in range(1, random.choice(counts) + 1)]
        self.groups = {f"c{number}": random.choice(groups) for number in range(1, random.randint(2, 6) + 1)}
        super().__init__(random, list(self.groups), brokers, topics)


def _consumer(draw: _Draw) -> tuple[str, str]:
    consumer = process_name(draw)
    return consumer, draw.groups[consumer]


def _subscription(draw: _Draw) -> str | None:
    random = draw.random
    topics = random.sample(sorted(draw.topics), random.randint(1, len(draw.topics)))
    return random.choice([None, None, format_topics({topic: random.choice([1, 1, 2]) for topic in topics}), "*1*t.*"])


def _any_broker(draw: _Draw) -> str | None:
    return draw.random.choice([None, broker(draw)])


def _any_name(draw: _Draw) -> str | None:
    return draw.random.choice([*[process_name(draw)] * 2, None])


_ms: Final = one_of(200, 1_000, 2_500, 4_000, 7_000, 12_000)
_ways: Final = spread(one_of((True, True), (True, True), (True, False), (False, True)))
_starts: Final = (
    _subscription,
    lambda draw: draw.random.random() < 0.9,
    one_of(SESSION_MS, LONGEST_SESSION_MS),
)
_start: Final = (spread(_consumer), *_starts)
_cut: Final = (_any_name, _any_broker, _ms, _ways)
_delay: Final = (process_name, _any_broker, one_of(4_000, 7_000, 12_000), _ways, one_of(200, 1_500, 1_500, 5_000))
ROWS: Final = (
    row(14, "member", *_start),
    row(8, "crash", process_name),
    row(5, "leave", process_name),
    row(10, "pause", process_name, _ms),
    row(9, "cut", *_cut),
    row(6, "delay", *_delay),
    row(5, "lose", _ms, losses),
    row(9, "crash", broker, one_of(0, 200, 3_000, 9_000)),
    row(9, "pause", broker, _ms),
    row(7, "cut_zookeeper", broker, _ms, _ways),
    row(4, "reset_zookeeper", broker),
    row(3, "expire", broker),
    row(2, "stop_zookeeper", _ms),
    row(3, "lag_zookeeper", between(0, 2), _ms),
    row(2, "depose"),
    row(4, "add_partitions", lambda draw: draw.random.choice([*sorted(draw.topics), "t9"]), between(1, 2), 1),
)
ROWS_OF_SEVERAL: Final = (
    row(8, "member", *_start),
    *(each for each in ROWS if each.call not in ("member", "depose")),
    row(4, "depose", lambda draw: draw.random.randrange(draw.coordinators)),
    row(4, "switch_rebalancing", lambda draw: draw.random.choice(sorted(draw.topics)), one_of(True, False, False)),
)
"""With several coordinators."""
ROWS_OF_DELAYS: Final = (
    row(25, "member", *_start),
    row(60, "delay", *_delay),
    row(10, "cut", *_cut),
    row(5, "pause", broker, _ms),
)
"""The same without epochs: a search for two owners, which late messages bring about."""


def random_script(
    seed: int,
    *,
    rebalance_by: str = RebalanceBy.FETCHERS.value,
    is_fenced: bool = True,
    coordinators: int = 1,
    actions: int = 40,
) -> Script[CentralCluster]:
    """Return a run of up to four groups on two or three brokers; the arguments alone decide what happens in it.

    :param actions: at most so many, and at least half as many, besides the first consumers
    """
    random = Random(f"{seed}/central")
    draw = _Draw(random, is_fenced=is_fenced, coordinators=coordinators)
    first = [
        Do(random.choice([0, 0, 3_000]), "member", each, draw.groups[each], *draw_arguments(draw, _starts))
        for each in draw.names
        if random.random() < 0.8
    ]
    # So that in some runs actions meet in the middle of a rebalance, and in others late messages do their work.
    haste_ms = random.choice([100, 700, 3_000] if is_fenced else [3_000])
    rows = ROWS_OF_DELAYS if not is_fenced else ROWS if coordinators == 1 else ROWS_OF_SEVERAL
    drawn = draw_actions(draw, rows, actions, haste_ms, start=random.choice([0, 5_000]))
    options: dict[str, Any] = {
        "topics": draw.topics,
        "brokers": draw.brokers,
        "settings": replace(SETTINGS, rebalance_by=RebalanceBy(rebalance_by), coordinators=coordinators),
        "zookeeper_timeout_ms": ZOOKEEPER_MS,
        "is_fenced": is_fenced,
        "kept": 400,
    }
    return Script(CentralCluster, seed, options, [*first, *drawn])
