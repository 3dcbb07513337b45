"""The world of the rewrite: brokers, ZooKeeper and the members of one group; and random runs of it.

Laws: those of `rewrite_laws`, checked after every write and every record, besides those of every world.

* A member consumes between `StartFetching` and `StopFetching`, and not while it is paused; when it resumes, its machine
  is first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.central.dialects import decode_to_rewrite_broker, version_of
from kcoord_wire.central.rewrite.coordinator import RewriteCoordinator
from kcoord_wire.central.rewrite.events import (
    CoordinatorSettings,
    FetchingStopped,
    MemberSettings,
    Progress,
    StartFetching,
    StopFetching,
)
from kcoord_wire.central.rewrite.layout import topic_record
from kcoord_wire.central.rewrite.member import MemberPhase, RewriteMember
from kcoord_wire.codec.registry import decode_response, encode_request, encode_response
from kcoord_wire.kernel.machines import LogEvent, Received, Send
from kcoord_wire.kernel.virtual.network import ProcessServer
from kcoord_wire.kernel.virtual.scripts import (
    Do,
    Row,
    Script,
    between,
    draw_actions,
    losses,
    one_of,
    process_name,
    row,
    spread,
)
from kcoord_wire.messages.rewrite import RewriteJoinGroupRequest
from kcoord_wire.protocol.key_partitions import partition_of
from kcoord_wire.worlds.central.broker_world import (
    BrokerDraw,
    BrokerNetwork,
    BrokerProcess,
    BrokerWorld,
    ClientProcess,
    address_of,
    broker,
)
from kcoord_wire.worlds.central.rewrite_laws import Fetching, Invariants, Sessions
from kcoord_wire.zookeeper.layout import ROOTS, topic_path
from kcoord_wire.zookeeper.requests import Create, SetData

SETTLE_MS: Final = 90_000
"""A group is settled within this after the last fault: a broker that is down for up to 12 s, sessions at ZooKeeper and
of members of 6 s each, a JoinGroup of 15 s that was lost, and the rebalances after them."""

GROUP: Final = "readers"  # of shard 0, which the controller moves first when a broker joins
_SHARDS: Final = 4
_ZOOKEEPER_SESSION_MS: Final = 6_000
_FETCH_MS: Final = (50, 300)  # between records
_STOP_MS: Final = (0, 30)  # until the fetchers have stopped
_MOST_RECORDS: Final = 5


class RewriteNetwork(BrokerNetwork):
    """Carries the rewrite's messages, whose size is left out."""

    def encode_to_broker(self, client: str, message: Any) -> bytes:
        return encode_request(message, version_of(type(message)), client_id=client)

    def decode_to_broker(self, frame: bytes) -> Any:
        return decode_to_rewrite_broker(frame)[1]

    def encode_to_client(self, message: Any) -> bytes:
        return encode_response(message, version_of(type(message)))

    def decode_to_client(self, frame: bytes, cls: type[Any]) -> Any:
        return decode_response(frame, cls, version_of(cls))[1]


class MemberProcess(ClientProcess):
    """A member's process."""

    __slots__ = ("machine",)

    fetching: Fetching | None
    machine: RewriteMember

    @property
    def is_working(self) -> bool:
        """Whether it is alive and has not ended."""
        return self.is_alive and self.machine.phase is not MemberPhase.ENDED

    def carry_out(self, effect: Any) -> None:
        """Do what the member wants."""
        match effect:
            case StartFetching():
                self._start(effect)
            case StopFetching():
                fetching = self._end_fetching()
                positions = {} if fetching is None else fetching.positions
                self._clock.after(self.random.randint(*_STOP_MS), self.deliver, FetchingStopped(positions))
            case _:
                if isinstance(effect, Send) and isinstance(effect.message, RewriteJoinGroupRequest):
                    self._invariants.joins(self)
                super().carry_out(effect)

    # ---- fetching

    def _start(self, effect: StartFetching) -> None:
        positions = {partition: max(offset, 0) for partition, offset in effect.positions.items()}
        self.fetching = fetching = Fetching(self, effect.generation, positions)
        begins = {f"{partition.topic}-{partition.partition}": offset for partition, offset in positions.items()}
        self._clock.record(self.name, "fetches", (effect.generation, begins))
        self._invariants.started(fetching)
        for partition in positions:
            self._plan(fetching, partition)

    def _end_fetching(self) -> Fetching | None:
        fetching: Fetching | None = super()._end_fetching()
        if fetching is not None:
            self._clock.record(self.name, "stops", fetching.generation)
            self._invariants.stopped(fetching)
        return fetching

    def _plan(self, fetching: Fetching, partition: TopicPartition) -> None:
        self._clock.after(self.random.randint(*_FETCH_MS), self._consume, fetching, partition)

    def _consume(self, fetching: Fetching, partition: TopicPartition) -> None:
        if fetching is not self.fetching:
            return
        if not self.is_paused:
            first = fetching.positions[partition]
            end = first + self.random.randint(1, _MOST_RECORDS)
            self._invariants.consumed(fetching, partition, first, end)
            fetching.positions[partition] = end
            self.deliver(Progress({partition: end}))
        if fetching is self.fetching:
            self._plan(fetching, partition)


class CoordinatorProcess(BrokerProcess):
    """A broker's process."""

    __slots__ = ("_sessions",)

    def __init__(self, world: RewriteCluster, server: ProcessServer, machine: RewriteCoordinator) -> None:
        super().__init__(world, server, machine)
        self._sessions = Sessions(self._clock, partition_of(GROUP, _SHARDS))

    def deliver(self, event: Any) -> None:
        """Give the machine an event."""
        if isinstance(event, Received):
            self._sessions.asked(event.connection, event.message)
        super().deliver(event)

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        super().carry_out(effect)
        if isinstance(effect, Send):
            self._sessions.answered(effect.connection, effect.message)
        elif isinstance(effect, LogEvent):
            self._sessions.noted(effect.what, effect.facts)


class RewriteCluster(BrokerWorld[MemberProcess]):
    """A cluster with one group.

    :param seed: decides everything that is random
    :param topics: name to number of partitions
    :param brokers: how many there are: 1, 2 ...
    :param members: how many start at once: m1, m2 ...
    :param stops_with_session: see `MemberSettings`; then the law is that nothing overlaps
    :param allows_overlaps: False: an overlap is a broken law without that, too
    :param latency_ms: least and most that a message takes between members and brokers
    :ivar topics: as they are now
    :ivar invariants: the laws
    """

    settle_ms = SETTLE_MS
    invariants: Invariants

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
        super().__init__(seed, RewriteNetwork, brokers, _ZOOKEEPER_SESSION_MS, latency_ms, (0, 30))
        self.topics: dict[str, int] = {}
        self._stops_with_session = stops_with_session
        allows = allows_overlaps and not stops_with_session
        self.invariants = Invariants(self._clock, GROUP, _SHARDS, allows_overlaps=allows)
        for path in ROOTS:
            self.zookeeper.write(Create(path))
        for topic, count in topics.items():
            self.add_partitions(topic, count)
        for server_name in self.servers:
            self._start_server(server_name)
        for number in range(1, members + 1):
            self.member(f"m{number}")

    # ---- brokers and topics

    def _make_server(self, server: ProcessServer) -> BrokerProcess:
        return CoordinatorProcess(
            self, server, RewriteCoordinator(address_of(server), CoordinatorSettings(shards=_SHARDS))
        )

    def add_partitions(self, topic: str, count: int) -> None:
        """Add partitions to a topic, or create it."""
        existed = topic in self.topics
        self.topics[topic] = self.topics.get(topic, 0) + count
        self._clock.record("cluster", "has topics", dict(self.topics))
        brokers = [server.number for server in self.servers.values()]
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
            self.addresses,
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
        process = MemberProcess(self, name, RewriteMember(settings), random)
        return self._begin(process, detail=settings.topics or settings.whitelist)

    # ---- where it stands

    def owners(self) -> dict[TopicPartition, str]:
        """Return which member fetches which partition; of several the one of the newest generation."""
        found = [each.fetching for each in self.processes.values() if each.is_alive and each.fetching is not None]
        found.sort(key=lambda each: each.generation)
        return {partition: each.process.name for each in found for partition in each.positions}

    def is_settled(self) -> bool:
        """Return whether the group consists of the working members, which fetch all of their topics' partitions."""
        members = [process.machine for process in self.working()]
        if {member.consumer_id for member in members} != set(self.invariants.record.consumers):
            return False
        return all(map(self._fetches, self.working())) and sorted(
            partition for member in members for partition in member.assigned
        ) == self._wanted({topic for member in members for topic in member.topics})

    def _fetches(self, process: MemberProcess) -> bool:
        """Whether a member fetches in the group's present generation."""
        member = process.machine
        is_current = member.generation == self.invariants.record.generation
        return is_current and member.phase is MemberPhase.FETCHING and not process.is_paused

    def _wanted(self, topics: set[str]) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(self.topics[topic])]

    def unsettled(self) -> object:
        """Return the states of the members."""
        return {process.name: process.machine.phase.value for process in self.working()}

    def counts(self) -> Mapping[str, int]:
        """Return how many generations the group had, and how many overlaps (see `Invariants`)."""
        return {"rebalances": self.invariants.record.generation, "overlaps": len(self.invariants.overlaps)}


# ---- random runs

_ms: Final = one_of(200, 2_000, 5_000, 8_000, 15_000)
ROWS: Final = (
    row(18, "member", process_name, spread(one_of((), (), ("t.*",), (None, ("t1",))))),
    row(6, "leave", process_name),
    row(8, "crash", process_name),
    row(12, "pause", process_name, _ms),
    row(10, "cut", process_name, lambda draw: draw.random.choice([None, broker(draw)]), _ms),
    row(6, "lose", _ms, losses),
    row(10, "crash", broker, one_of(0, 200, 3_000, 12_000)),
    row(8, "pause", broker, _ms),
    row(6, "cut_zookeeper", broker, _ms),
    row(5, "expire", broker),
    row(2, "stop_zookeeper", _ms),
    row(3, "lag_zookeeper", between(0, 2), _ms),
    row(6, "add_partitions", one_of("t1", "t2", "t3"), between(1, 2)),
)


def random_script(
    seed: int,
    actions: int = 40,
    *,
    stops_with_session: bool = False,
    allows_overlaps: bool = True,
    rows: Sequence[Row] = ROWS,
) -> Script[RewriteCluster]:
    """Return a run of a group with up to six members; the seed decides what happens in it.

    :param stops_with_session: see `RewriteCluster`, like `allows_overlaps`
    :param rows: like `ROWS`
    """
    random = Random(f"{seed}/rewrite")
    brokers = random.randint(1, 3)
    names = [f"m{number}" for number in range(1, random.randint(2, 6) + 1)]
    draw = BrokerDraw(random, names, brokers, {f"t{number}": random.randint(1, 5) for number in (1, 2)})
    haste_ms = random.choice([50, 500, 3_000])  # so that in some runs actions meet in the middle of a rebalance
    drawn = [*(Do(0, "member", each) for each in names), *draw_actions(draw, rows, actions, haste_ms)]
    options = {
        "topics": draw.topics,
        "brokers": brokers,
        "stops_with_session": stops_with_session,
        "allows_overlaps": allows_overlaps,
        "latency_ms": random.choice([(1, 20), (1, 20), (20, 400)]),
    }
    return Script(RewriteCluster, seed, options, drawn)
