"""The world of the proposal: a coordinator and its members under one of its variants; and random runs of it.

    with ProposalCluster("single_assignor", seed=7, topics={"orders": 12}, members=3) as sim:
        sim.run_until(sim.is_settled)
        sim.crash("coordinator")
        sim.run(60_000)
        print(sim.owners(), sim.to_members)

Laws, besides those of every world:

* ``one owner``, checked after every event that changes what a member owns, or who is a member: no partition is held by
  two members of one generation, nor by two members that the coordinator counts among the group.
* An answer of the coordinator leaves after what was saved before it is on the disk.
* Every request and response is encoded and decoded, and counted as it arrives: size, header and message. A response is
  encoded when it arrives, not when it leaves: the responses of a rebalance of `all_members` would otherwise be in
  memory at one time, 1 GB in the proposal's example.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.codec.registry import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    peek_request,
    registry,
)
from kcoord_wire.consumer.member_events import Arrived, Leave, SendRequest, TopicsKnown
from kcoord_wire.kernel.machines import Close, Disconnected
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.network import Network, ProcessServer, VirtualConnection
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
from kcoord_wire.messages import HeartbeatResponse, LeaveGroupResponse
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.worlds.proposal import proposal_coordinator as events
from kcoord_wire.worlds.proposal.all_members import topics_of
from kcoord_wire.worlds.proposal.member import ProposalMember
from kcoord_wire.worlds.proposal.proposal_coordinator import (
    Answer,
    Asked,
    Caller,
    Coordinator,
    CoordinatorSettings,
    MemberState,
    Phase,
    Strategy,
    Subscription,
    boot_of,
)
from kcoord_wire.worlds.proposal.single_assignor import ROUND_ROBIN, VARIANTS

SETTLE_MS: Final = 120_000
"""A group is settled within this after the last fault: sessions of 6 s, JoinGroups of 30 s that were lost, and the
delays of members that have disagreed."""

_SIZE: Final = 4  # bytes before each frame
_ADDRESS: Final = "10.0.0.1:9092"
_OVER: Final = (MemberState.LEFT, MemberState.FAILED)
_FETCH_MS: Final = (1, 20)  # that Metadata takes


_LONGEST: Final = 1 << 24  # decompressed; more than any metadata that fits a request

MessageT = TypeVar("MessageT")


class MemberCodec:
    """Encodes a member's metadata and state, which have no version in front.

    :param compresses: with zlib, level 6
    """

    def __init__(self, *, compresses: bool = False) -> None:
        self._compresses = compresses

    def encode(self, message: Any) -> bytes:
        """Return the bytes of a message."""
        data = registry.by_class(type(message)).encode(message, 0)
        return zlib.compress(data) if self._compresses else data

    def decode(self, cls: type[MessageT], data: bytes) -> MessageT:
        """Read a message.

        :raises ValueError: these are not its bytes, or they decompress to more than 16 MiB
        """
        if self._compresses:
            data = _decompress(data)
        message: MessageT = registry.by_class(cls).decode(data, 0)
        return message


def _decompress(data: bytes) -> bytes:
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(data, _LONGEST)
    except zlib.error as error:
        raise ValueError(f"the metadata does not decompress: {error}") from None
    if not reader.eof:
        raise ValueError(f"the metadata is cut off, or decompresses to more than {_LONGEST} bytes")
    return plain


class Moved(NamedTuple):
    """What the trace has of a message.

    :ivar message: the name of its class
    :ivar size: bytes on the wire
    :ivar error: of a response; 0 for none
    """

    message: str
    size: int
    error: int = 0


class ProposalNetwork(Network[VirtualConnection]):
    """Carries requests and responses.

    :param family: of the variant's JoinGroup; the other requests are Kafka's
    :param compresses_joins: whether responses to JoinGroup are compressed whole, with zlib at level 6
    :ivar to_coordinator: bytes that have arrived there, by message
    :ivar to_members: likewise
    """

    def __init__(
        self,
        clock: VirtualClock,
        server: ProcessServer,
        family: str,
        latency_ms: tuple[int, int],
        *,
        compresses_joins: bool,
    ) -> None:
        super().__init__(clock, latency_ms)
        self.to_coordinator: Counter[str] = Counter()
        self.to_members: Counter[str] = Counter()
        self._server = server
        self._family = family
        self._compresses_joins = compresses_joins
        self._links: dict[int, VirtualConnection] = {}

    def send(self, process: Process, effect: SendRequest) -> None:
        """Send a member's request, on a new connection if it has none."""
        link = process.connection
        if link is None:
            link = process.connection = self.connect(process, self._server, _ADDRESS)
            self._links[link.number] = link
        data = encode_request(effect.message, effect.version, correlation_id=effect.request_id, client_id=process.name)
        self._clock.record(process.name, "sends", Moved(type(effect.message).__name__, len(data) + _SIZE))
        self.send_to_server(link, data)

    def arrived(self, connection: VirtualConnection, *message: Any) -> None:
        """A request has reached the coordinator."""
        [data] = message
        is_of_variant = peek_request(data).request_api_key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
        header, request = decode_request(data, family=self._family if is_of_variant else "kafka")
        self.to_coordinator[type(request).__name__] += len(data) + _SIZE
        if self._server.process is not None:
            caller = Caller(connection.number, header.correlation_id)
            self._server.process.deliver(Asked(caller, header.client_id or "", request))

    def answer(self, effect: Answer) -> None:
        """Send the coordinator's answer."""
        link = self._links[effect.caller.connection]
        if link.is_open:
            self.send_to_process(link, effect.caller.request_id, effect.message)

    def returned(self, connection: VirtualConnection, *message: Any) -> None:
        """A response has reached the member."""
        request_id, response = message
        data = encode_response(response, 0, correlation_id=request_id)
        is_compressed = self._compresses_joins and not isinstance(response, HeartbeatResponse | LeaveGroupResponse)
        if is_compressed:
            data = zlib.compress(data)
        self.to_members[type(response).__name__] += len(data) + _SIZE
        moved = Moved(type(response).__name__, len(data) + _SIZE, response.error_code)
        self._clock.record(connection.process.name, "gets", moved)
        plain = zlib.decompress(data) if is_compressed else data
        header, response = decode_response(plain, type(response), 0)
        connection.process.deliver(Arrived(header.correlation_id, response))

    def disconnected(self, connection: VirtualConnection) -> None:
        """The member's connection was reset."""
        connection.process.deliver(Disconnected())


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """How a member is set up.

    :ivar subscription: what it consumes; None for all topics there are when it starts
    :ivar strategies: the preferred one first
    :ivar asks_coordinator: whether it fetches metadata from the coordinator, which sees every change at once; other
        brokers may be behind
    :ivar settings: fields of `events.MemberSettings` that differ from the defaults
    """

    subscription: Subscription | None = None
    strategies: Sequence[Strategy] = (ROUND_ROBIN,)
    asks_coordinator: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


class CoordinatorProcess(Process):
    """The coordinator's process. Answers leave when the disk has what they depend on."""

    __slots__ = ("_cluster", "_seen", "_written_at", "machine")

    machine: Coordinator

    def __init__(self, cluster: ProposalCluster, clock: VirtualClock, machine: Coordinator, random: Random) -> None:
        super().__init__(clock, "coordinator", "10.0.0.1", machine, random)
        self._cluster = cluster
        self._seen: set[str] = set()
        self._written_at = 0

    def carry_out(self, effect: events.Answer | events.Save) -> None:
        """Write to the disk, or answer after what was written."""
        self._written_at = max(self._written_at, self._clock.time_ms)
        if isinstance(effect, events.Answer):
            self._clock.at(self._written_at, self._cluster.answer, self, effect)
        elif self._cluster.is_persistent:
            self._written_at += self.random.randint(*self._cluster.write_ms)
            self._clock.at(self._written_at, self._cluster.written, self, effect)

    def handled(self) -> None:
        """Check the law of one owner."""
        if self.machine.members.keys() != self._seen:
            self._seen = set(self.machine.members)
            self._cluster.members_changed()


class MemberProcess(Process):
    """A member's process.

    :ivar options: how it was set up
    """

    __slots__ = ("_cluster", "_seen", "machine", "options")

    machine: ProposalMember

    def __init__(
        self,
        cluster: ProposalCluster,
        clock: VirtualClock,
        name: str,
        host: str,
        machine: ProposalMember,
        options: MemberOptions,
    ) -> None:
        super().__init__(clock, name, host, machine, Random(f"{cluster.seed}/{name}"))
        self.options = options
        self._cluster = cluster
        self._seen: frozenset[TopicPartition] = machine.owned

    @property
    def is_working(self) -> bool:
        """Whether it is alive, and its member has neither left nor failed."""
        return self.is_alive and self.machine.state not in _OVER

    def carry_out(self, effect: Any) -> None:
        """Do what the member wants."""
        self._cluster.carry_out(self, effect)

    def handled(self) -> None:
        """Check the law of one owner."""
        owned = self.machine.owned
        if owned is not self._seen:
            before, self._seen = self._seen, owned
            self._cluster.owned_changed(self, before, owned)

    def changed(self) -> None:
        """A killed process owns nothing."""
        if not self.is_alive:
            self._cluster.owned_changed(self, self._seen, frozenset())


_DEFAULTS: Final = MemberOptions()
_COORDINATOR_DEFAULTS: Final = CoordinatorSettings()


class ProposalCluster(World[MemberProcess]):
    """A group under a variant of the proposal.

    :param variant: a key of `VARIANTS`
    :param seed: decides everything that is random
    :param topics: name to number of partitions
    :param members: how many start at once: m1, m2 ...
    :param options: of these, and the defaults of `member`
    :param settings: the coordinator's
    :param is_persistent: whether a coordinator that starts has what the one before has saved
    :param compresses: whether members compress their metadata
    :param compresses_joins: whether the coordinator compresses responses to JoinGroup, each as a whole
    :param latency_ms: least and most that a message takes
    :param write_ms: least and most that the coordinator's disk takes to save a generation
    :ivar saved: what is on the coordinator's disk
    :ivar racks: of the leader of each partition, where one was moved
    """

    settle_ms = SETTLE_MS
    leaves = Leave()
    network: ProposalNetwork

    def __init__(
        self,
        variant: str,
        seed: int = 0,
        *,
        topics: Mapping[str, int],
        members: int = 0,
        options: MemberOptions = _DEFAULTS,
        settings: events.CoordinatorSettings = _COORDINATOR_DEFAULTS,
        is_persistent: bool = True,
        compresses: bool = False,
        compresses_joins: bool = False,
        latency_ms: tuple[int, int] = (1, 5),
        write_ms: tuple[int, int] = (0, 3),
    ) -> None:
        super().__init__(seed)
        self.is_persistent = is_persistent
        self.write_ms = write_ms
        self.topics = dict(topics)
        self.racks: dict[str, list[str]] = {}
        self.saved: events.Save | None = None
        self._variant = VARIANTS[variant]
        self._options = options
        self._settings = settings
        self._codec = MemberCodec(compresses=compresses)
        self._server = self.servers["coordinator"] = ProcessServer("coordinator", "10.0.0.1")
        self.network = ProposalNetwork(
            self._clock, self._server, self._variant.family, latency_ms, compresses_joins=compresses_joins
        )
        self._holders: dict[TopicPartition, set[MemberProcess]] = {}
        self._views: dict[str, Mapping[str, int]] = {}  # of members whose broker is behind
        self._start_server(self._server.name)
        for number in range(1, members + 1):
            self.member(f"m{number}")

    # ---- what has happened

    @property
    def to_coordinator(self) -> Counter[str]:
        """Bytes that have arrived at the coordinator, by message; grows."""
        return self.network.to_coordinator

    @property
    def to_members(self) -> Counter[str]:
        """Bytes that have arrived at members, by message; grows."""
        return self.network.to_members

    # ---- the coordinator

    @property
    def coordinator(self) -> Coordinator | None:
        """The coordinator's machine; None while it is down."""
        process = self._server.process
        return process.machine if isinstance(process, CoordinatorProcess) else None

    def _make_server(self, server: ProcessServer) -> CoordinatorProcess:
        saved = self.saved if self.is_persistent else None
        machine = self._variant.coordinator(self._settings, server.boot, saved, self._clock.time_ms)
        random = Random(f"{self.seed}/coordinator/{server.boot}")
        return CoordinatorProcess(self, self._clock, machine, random)

    def written(self, process: CoordinatorProcess, save: events.Save) -> None:
        """The disk has a generation."""
        if process.is_alive:
            self.saved = save
            self._clock.record("coordinator", "saved", save.generation)

    def answer(self, process: CoordinatorProcess, effect: events.Answer) -> None:
        """The coordinator answers."""
        if process.is_alive:
            self.network.answer(effect)

    # ---- members

    def member(self, name: str, options: MemberOptions | None = None) -> MemberProcess:
        """Start a member, after a process of that name was killed."""
        self.crash(name)
        options = options or self._options
        settings = events.MemberSettings(**options.settings)
        machine = self._variant.member(settings, self._codec, options.strategies)
        process = MemberProcess(self, self._clock, name, self.network.host_of(name), machine, options)
        self._begin(process, events.Subscribe(options.subscription or Subscription(tuple(self.topics))))
        self._fetch(process)
        return process

    def restart(self, name: str, options: MemberOptions | None = None) -> None:
        """Close a member and start it again at once, as in a rolling upgrade."""
        self.leave(name)
        self.member(name, options or self.processes[name].options)

    def subscribe(self, name: str, *topics: str) -> None:
        """Change what a member consumes."""
        process = self._working(name)
        if process is not None:
            self._clock.record(name, "subscribes", topics)
            process.deliver(events.Subscribe(Subscription(topics)))

    def carry_out(self, process: MemberProcess, effect: Any) -> None:
        """Do what a member wants."""
        if isinstance(effect, SendRequest):
            self.network.send(process, effect)
        elif isinstance(effect, Close):
            self.network.hang_up_all(process)
        elif isinstance(effect, events.Refetch):
            self._clock.after(process.random.randint(*_FETCH_MS), self._fetch, process)
        else:
            self._clock.record(process.name, "fails", effect)

    # ---- topics and the network

    def _fetch(self, process: MemberProcess) -> None:
        view = self.topics if process.options.asks_coordinator else self._views.get(process.name, self.topics)
        racks = {topic: [[rack] for rack in racks] for topic, racks in self.racks.items()}
        process.deliver(TopicsKnown(dict(view), racks))

    def add_partitions(self, topic: str, count: int, refresh_ms: int = 2_000) -> None:
        """Add partitions to a topic, or create it; members learn about it within `refresh_ms`."""
        self.topics[topic] = self.topics.get(topic, 0) + count
        self._clock.record("cluster", "has topics", dict(self.topics))
        for process in self.processes.values():
            self._clock.after(process.random.randint(0, refresh_ms), self._fetch, process)

    def move_leader(self, topic: str, partition: int, rack: str, refresh_ms: int = 2_000) -> None:
        """Make a broker in a rack the leader of a partition; members learn about it within `refresh_ms`."""
        racks = self.racks.setdefault(topic, [""] * self.topics[topic])
        racks += [""] * (self.topics[topic] - len(racks))
        racks[partition % len(racks)] = rack
        self._clock.record("cluster", "moves a leader", (topic, partition, rack))
        for process in self.processes.values():
            self._clock.after(process.random.randint(0, refresh_ms), self._fetch, process)

    def lag(self, name: str, ms: int) -> None:
        """The broker from which a member fetches metadata keeps its present view for so long, then catches up."""
        self._clock.record("cluster", "lags", (name, ms))
        self._views[name] = dict(self.topics)
        self._clock.after(ms, self._catch_up, name)

    def _catch_up(self, name: str) -> None:
        self._views.pop(name, None)
        process = self._working(name)
        if process is not None:
            self._fetch(process)

    def _end_faults(self) -> None:
        for name in list(self._views):
            self._catch_up(name)

    # ---- ownership

    def owned_changed(
        self, process: MemberProcess, before: Iterable[TopicPartition], after: Iterable[TopicPartition]
    ) -> None:
        """Note what a process holds.

        :raises ViolationError: ``one owner``
        """
        for partition in before:
            self._holders[partition].discard(process)
        for partition in after:
            self._holders.setdefault(partition, set()).add(process)
            self._check(partition)

    def members_changed(self) -> None:
        """The coordinator counts other members among the group.

        :raises ViolationError: ``one owner``
        """
        for partition in self._holders:
            self._check(partition)

    def _check(self, partition: TopicPartition) -> None:
        for one, other in combinations(self._holders[partition], 2):
            if self._are_rivals(one, other):
                names = " and ".join(sorted((one.name, other.name)))
                raise ViolationError("one owner", f"{partition} is held by {names}")

    def _are_rivals(self, one: MemberProcess, other: MemberProcess) -> bool:
        known = self.coordinator.members if self.coordinator is not None else {}
        return self._era(one) == self._era(other) or {one.machine.member_id, other.machine.member_id} <= known.keys()

    def _era(self, process: MemberProcess) -> tuple[int, str]:
        """A process's generation, and who counts it: without persistence each coordinator counts anew."""
        member = process.machine
        return (member.generation, "" if self.is_persistent else boot_of(member.member_id))

    def owners(self) -> dict[TopicPartition, str]:
        """Return which live process holds which partition."""
        return {
            partition: process.name
            for process in self.processes.values()
            if process.is_alive
            for partition in process.machine.owned
        }

    def is_settled(self) -> bool:
        """Return whether all working members are in one generation and hold each partition that they want once."""
        coordinator = self.coordinator
        working = list(self.working())
        members = [process.machine for process in working]
        if coordinator is None or any(process.is_paused or not process.machine.is_at_rest for process in working):
            return False
        if {member.member_id for member in members} != coordinator.members.keys():
            return False
        in_step = all(member.generation == coordinator.generation for member in members)
        return not working or (coordinator.phase is Phase.STABLE and in_step and self._is_all_held(members))

    def _is_all_held(self, members: Sequence[ProposalMember]) -> bool:
        held = [partition for member in members for partition in member.owned]
        active = [member.subscription or Subscription() for member in members if not member.is_dormant]
        wanted = {topic for subscription in active for topic in topics_of(subscription, self.topics)}
        return len(held) == len(set(held)) == sum(self.topics[topic] for topic in wanted)

    def unsettled(self) -> object:
        """Return the states of the members."""
        return {process.name: process.machine.state.value for process in self.working()}


# ---- random runs


class _Draw(Draw):
    def __init__(self, random: Random, names: Sequence[str], topics: Mapping[str, int]) -> None:
        super().__init__(random, names)
        self.topics = topics


def _some_topics(draw: _Draw) -> list[str]:
    return draw.random.sample(sorted(draw.topics), draw.random.randint(1, len(draw.topics)))


_ms: Final = one_of(200, 2_000, 5_000, 8_000, 15_000)
ROWS: Final = (
    row(20, "member", process_name),
    row(8, "leave", process_name),
    row(10, "crash", process_name),
    row(14, "pause", process_name, _ms),
    row(12, "partition", process_name, _ms),
    row(8, "lose", _ms, losses),
    row(10, "crash", "coordinator", one_of(0, 200, 3_000, 12_000)),
    row(8, "subscribe", process_name, spread(_some_topics)),
    row(5, "add_partitions", lambda draw: draw.random.choice(sorted(draw.topics)), between(1, 3)),
    row(5, "lag", process_name, _ms),
)


def random_script(variant: str, seed: int, actions: int = 40) -> Script[ProposalCluster]:
    """Return a run of one group with up to six members; variant and seed decide what happens in it."""
    random = Random(f"{seed}/{variant}")
    names = [f"m{number}" for number in range(1, random.randint(2, 6) + 1)]
    draw = _Draw(random, names, {f"t{number}": random.randint(1, 6) for number in (1, 2, 3)})
    haste_ms = random.choice([50, 500, 3_000])  # so that in some runs actions meet in the middle of a rebalance
    drawn = [*(Do(0, "member", each) for each in names), *draw_actions(draw, ROWS, actions, haste_ms)]
    options = {
        "variant": variant,
        "topics": draw.topics,
        "is_persistent": random.random() < 0.7,
        "options": MemberOptions(settings={"max_disagreements": 50, "batch_ms": random.choice([0, 1_000])}),
        "settings": CoordinatorSettings(synchronization_timeout_ms=3_000),
        "latency_ms": (1, 40),
        "write_ms": (0, 40),
    }
    return Script(ProposalCluster, seed, options, drawn)
