"""A coordinator, its disk, its clients and the network between them, in one thread on a virtual clock.

    with Cluster(seed=7, topics={"orders": 12}, members=3) as sim:
        sim.run_until(sim.is_settled)
        sim.crash("m2")
        sim.run(60_000)
        print(sim.rebalances[-1].trigger, sim.owners())

The coordinator is the real one (machine, runtime, store), and so are the bytes: every request and response goes through
the codec. Members are `member.Member`. What is virtual is time, the wire and the disk.

Laws:

* The seed decides everything: the same calls in the same order give the same trace, event by event.
* A step is one event delivered to a machine. After each, `Invariants` has looked at it; a broken law raises
  `ViolationError` out of whatever call ran the clock.
* Connections are Kafka's: messages of one connection stay in order, and the coordinator looks at the next request of a
  connection when the one before is answered. Between connections nothing keeps its order.
* A coordinator that crashes loses its memory and what its disk had not synced; the disk may be cut off inside a write.
* Members have their own random source, named after them: what one does leaves the others' luck as it was.
* A `Tap` sees what a capture at the broker would, and changes nothing: the trace is the same with it and without.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

from kcoord_wire.assignors import ASSIGNORS, TopicPartition
from kcoord_wire.codec.headers import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from kcoord_wire.codec.registry import registry
from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.group.blobs import ConsumerBlobs
from kcoord_wire.group.config import GroupConfig
from kcoord_wire.group.events import Rebalance, Tick
from kcoord_wire.group.faults import Fault, Faults
from kcoord_wire.group.invariants import Invariants, ViolationError
from kcoord_wire.group.member import Member
from kcoord_wire.group.member_events import (
    CLIENT_VERSIONS,
    Arrived,
    Assigned,
    Close,
    Commit,
    Committed,
    Disconnected,
    Failed,
    Fetched,
    Leave,
    Left,
    Lost,
    MemberEffect,
    MemberEvent,
    MemberSettings,
    MemberState,
    NotCommitted,
    Offer,
    Polled,
    Rejoin,
    Released,
    Revoking,
    Send,
    Stalled,
    Subscribe,
    TopicsKnown,
)
from kcoord_wire.group.model import State
from kcoord_wire.group.refusals import refusal
from kcoord_wire.group.timeline import EPOCH_MS, Happening, Timeline
from kcoord_wire.group.virtual_coordinator import VirtualCoordinator
from kcoord_wire.group.virtual_disk import VirtualDisk
from kcoord_wire.messages import (
    JoinGroupRequest,
    LeaveGroupRequest,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SyncGroupRequest,
)

__all__ = ["EPOCH_MS", "Cluster", "Happening", "Idle", "Process", "Tap"]

_NEVER: Final = 1 << 62
_BLOBS: Final = ConsumerBlobs()
_TICK: Final = Tick()
_DISCONNECTED: Final = Disconnected()
_BROKER: Final = "10.0.0.1:9092"
_FIRST_PORT: Final = 32_768  # of those that a system gives out
_HOSTS: Final = 250  # addresses a network of the last octet: 10.0.1.2 to 10.0.1.251


class Idle(NamedTuple):
    """Time in ms, summed over the partitions, in which nobody held them.

    :ivar revoked: because a rebalance took them from a member that lived on: what eager members stop for
    :ivar abandoned: because their owner had left or died, or was thrown out
    """

    revoked: int
    abandoned: int


class Tap(Protocol):
    """Is told of every frame between clients and coordinator, as a capture on the broker's machine has it."""

    def __call__(self, time_ms: int, connection: str, direction: str, frame: bytes, /) -> None:
        """A request when it arrives, a response when it leaves; what the network loses on the way to the coordinator
        is never seen, what it loses on the way back is. A delay that a fault asks for is in the time, so that a
        response may be told of before its time; times of one connection never go back otherwise.

        What members know of the topics comes to them by the way; the tap is told the Metadata exchange that it stands
        for, on a connection of its own, as clients have one for that.

        :param time_ms: ms since the epoch
        :param connection: ``client_ip:port-broker_ip:port#n``
        :param direction: ``request`` or ``response``; ``opened`` and ``closed`` have no frame
        :param frame: header and message, without the four bytes of size
        """


def _check_known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"no {kind} is called {name!r}; there are {', '.join(known)}")


class _Topics:
    """The topics of the cluster, as the machine asks for them."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)

    def partitions(self, name: str) -> int | None:
        return self.counts.get(name)

    def id_of(self, name: str) -> uuid.UUID | None:
        return uuid.uuid5(uuid.NAMESPACE_OID, name) if name in self.counts else None

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name in self.counts if self.id_of(name) == topic_id), None)


# ---- the wire


class _Connection:
    """A connection from a member to the coordinator.

    :ivar life: which life of the coordinator it leads to; 0 before its first bytes arrive there
    :ivar is_told: whether the tap knows of it
    :ivar is_broken: bytes were lost while the network was cut; the next ones find no connection
    :ivar queue: requests that have arrived and were not looked at
    :ivar sent_at: when the coordinator sent its last response on it
    :ivar in_hand: how many requests the coordinator works at: 0 or 1
    """

    __slots__ = (
        "down_at",
        "in_hand",
        "is_broken",
        "is_open",
        "is_told",
        "life",
        "name",
        "process",
        "queue",
        "sent_at",
        "up_at",
    )

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.name = name
        self.life = 0
        self.is_told = False
        self.is_open = True
        self.is_broken = False
        self.queue: list[tuple[int, int, bytes]] = []
        self.in_hand = 0
        self.up_at = 0
        self.sent_at = 0
        self.down_at = 0


class _Caller(NamedTuple):
    """Whose request a token is."""

    connection: _Connection | None  # None: a probe, or the second sight of a request that was duplicated
    request_id: int
    version: int
    request: Any
    probe: int = 0
    probe_name: str = ""  # of its connection


class Process:
    """A virtual consumer process.

    :ivar name: as in the script
    :ivar host: its address; a process that is restarted keeps it
    :ivar member: its side of the protocol
    :ivar is_alive: neither crashed nor gone
    :ivar is_paused: it takes in nothing at the moment (a long garbage collection, a stopped virtual machine)
    """

    __slots__ = (
        "_armed",
        "_bootstrap",
        "_connection",
        "_cut_until",
        "_inbox",
        "_incarnation",
        "_paused_until",
        "_random",
        "commit_ms",
        "host",
        "is_alive",
        "member",
        "name",
        "options",
        "release_ms",
    )

    def __init__(
        self,
        name: str,
        host: str,
        member: Member,
        random: Random,
        options: dict[str, Any],
        commit_ms: int | None,
        release_ms: int,
    ) -> None:
        self.name = name
        self.host = host
        self.member = member
        self.options = options
        self.commit_ms = commit_ms
        self.release_ms = release_ms
        self.is_alive = True
        self._connection: _Connection | None = None
        self._bootstrap = ""  # name of the connection for Metadata, once there is one
        self._armed = _NEVER
        self._paused_until = 0
        self._cut_until = 0
        self._inbox: list[MemberEvent] = []
        self._incarnation = 0
        self._random = random

    @property
    def is_paused(self) -> bool:
        """Whether it stands still."""
        return self._paused_until > 0

    @property
    def is_working(self) -> bool:
        """Whether it is alive and has not given up."""
        return self.is_alive and self.member.state not in (MemberState.LEFT, MemberState.FAILED)

    def __repr__(self) -> str:
        return f"<{self.name} {self.member.member_id or '-'} {self.member.state} {self.member.generation_id}>"


class Cluster:
    """See the head of the module.

    :param seed: of everything random
    :param topics: name to number of partitions
    :param members: so many, named m1, m2 ...; or their names. They subscribe to all topics and range
    :param config: the coordinator's
    :param faults: see faults.py; they meet requests as on the real server
    :param latency_ms: least and most a message takes
    :param sync_ms: least and most a disk write takes
    :param segment_bytes: see `Store`; small, so that a short run has several segments
    :param tap: is told of the frames on the wire
    :ivar processes: by name; a member that was restarted is there as what it is now
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        topics: Mapping[str, int] | None = None,
        members: int | Iterable[str] = 0,
        config: GroupConfig | None = None,
        faults: Faults | None = None,
        latency_ms: tuple[int, int] = (1, 5),
        sync_ms: tuple[int, int] = (0, 3),
        segment_bytes: int = 65_536,
        min_compaction_bytes: int = 65_536,
        tap: Tap | None = None,
    ) -> None:
        self.seed = seed
        self._tap = tap
        self._hosts: dict[str, str] = {}
        self._connections = 0
        self._asked = 0  # for metadata
        self.processes: dict[str, Process] = {}
        self.config = config or GroupConfig()
        self.invariants = Invariants(_BLOBS.read_assignment)
        for topic, count in (topics or {}).items():
            if type(count) is not int or count < 1:
                raise ValueError(f"topic {topic!r} needs one partition or more, not {count!r}")
        self._topics = _Topics({"topic": 4} if topics is None else topics)
        self._time = Timeline()
        self._latency = latency_ms
        self._faults = faults
        self._lossy_until = 0
        self._loss = (0.0, 0.0)
        self._offset = 0
        self._revision = 0  # goes up with whatever may change whether the group is settled
        self._settled: tuple[int, bool] = (-1, False)
        self._restless: set[Process] = set()  # who works, and is paused or not at rest in a generation
        self._owner: dict[TopicPartition, Process] = {}
        self._orphaned: dict[TopicPartition, tuple[int, bool]] = {}  # since when, and whether it was revoked
        self._revoked_ms = 0
        self._abandoned_ms = 0
        self._probes: dict[int, Any] = {}

        self._probed = 0
        self._ready: list[_Connection] = []
        self._coordinator: VirtualCoordinator[_Caller] = VirtualCoordinator(
            self._time,
            Random(f"{seed}/coordinator"),
            self.config,
            self._topics,
            self.invariants,
            sync_ms=sync_ms,
            store_options={"segment_bytes": segment_bytes, "min_compaction_bytes": min_compaction_bytes},
            answered=self._answered,
            crashed=self._crashed,
            after=self._look_after_coordinator,
        )
        self._coordinator.start(0)
        for name in [f"m{number}" for number in range(1, members + 1)] if isinstance(members, int) else members:
            self.member(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._time.clear()

    # ---- time, and what has happened

    @property
    def now(self) -> int:
        """Virtual ms since the start."""
        return self._time.now

    @property
    def steps(self) -> int:
        """Events delivered so far."""
        return self._time.steps

    @property
    def trace(self) -> Sequence[Happening]:
        """What has happened, oldest first."""
        return self._time.trace

    @property
    def rebalances(self) -> Sequence[Rebalance]:
        """The coordinator's accounts of the rebalances that have ended, oldest first."""
        return self._coordinator.rebalances

    @property
    def begun(self) -> Sequence[Rebalance]:
        """The coordinator's accounts of all rebalances that have begun, as they stand, oldest first. One that a crash
        of the coordinator has cut off never ends."""
        return self._coordinator.begun

    @property
    def disk(self) -> VirtualDisk:
        """The coordinator's disk, with the segments of its log."""
        return self._coordinator.disk

    def run(self, ms: int) -> None:
        """Let so much time pass. ValueError: it cannot pass backwards."""
        if ms < 0:
            raise ValueError(f"time cannot pass by {ms} ms")
        self._time.run(ms)

    def run_until(self, holds: Callable[[], bool], within_ms: int = 600_000) -> int:
        """Let time pass until `holds`; the virtual ms that took.

        :raises TimeoutError: it does not within `within_ms`
        """
        return self._time.run_until(holds, within_ms)

    def at(self, ms: int, action: Callable[[], None]) -> None:
        """Do something at so many ms after the start."""
        self._time.later(max(EPOCH_MS + ms, self._time.clock), lambda _: action(), None)

    # ---- what the user does

    def member(
        self,
        name: str,
        *,
        topics: Sequence[str] | None = None,
        assignors: Sequence[str] = ("range",),
        group: str = "group",
        instance_id: str | None = None,
        client: str = "java",
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        heartbeat_interval_ms: int = 3_000,
        request_timeout_ms: int = 30_000,
        commit_ms: int | None = 5_000,
        release_ms: int = 0,
        poll_ms: int = 0,
        assign_ms: int = 0,
        assign_blocks: bool = False,
        client_id: str | None = None,
    ) -> Process:
        """Start a consumer.

        :param topics: what it subscribes to; None is all there are
        :param assignors: keys of `kcoord_wire.assignors.ASSIGNORS`, the one it likes best first
        :param client: whose versions of the protocol it speaks: a key of `CLIENT_VERSIONS`
        :param commit_ms: how often it commits; None for never
        :param release_ms: how long the application needs to give up one partition
        :param poll_ms: how long at most it works between two polls; only there does it learn that it has to
        :param assign_ms: how long it computes on the assignment when it leads
        :param client_id: what it is called in its requests; None is `name`
        :param assign_blocks: whether it sends no heartbeats meanwhile, as a client with one thread for everything
        :raises ValueError: a process of that name is alive; no such assignor or client
        :raises TypeError: topics or assignors are one text
        """
        options = {key: value for key, value in locals().items() if key not in ("self", "name")}
        for key, names in (("topics", topics), ("assignors", assignors)):
            if isinstance(names, str):
                raise TypeError(f"{key} must be a list of texts, not {names!r}")
        _check_known("assignor", assignors, ASSIGNORS)
        _check_known("client", [client], CLIENT_VERSIONS)
        former = self.processes.get(name)
        if former is not None and former.is_working:
            raise ValueError(f"{name!r} is alive")
        settings = MemberSettings(
            group_id=group,
            client_id=name if client_id is None else client_id,
            group_instance_id=instance_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            request_timeout_ms=request_timeout_ms,
            versions=CLIENT_VERSIONS[client],
        )
        random = Random(f"{self.seed}/{name}") if former is None else former._random
        member = Member(settings, [ASSIGNORS[assignor] for assignor in assignors], _BLOBS)
        process = Process(name, self._host(name), member, random, options, commit_ms, release_ms)
        self.processes[name] = process
        wait = max(rebalance_timeout_ms, session_timeout_ms) * 2 + self.config.new_member_join_timeout_ms + 10_000
        self.invariants.patience_ms = max(self.invariants.patience_ms, wait)
        self._revision += 1
        self._time.note(name, "starts", process.options)
        self._refresh(process)
        self._deliver(process, Subscribe(tuple(self._topics.counts) if topics is None else tuple(topics)))
        if commit_ms is not None:
            self._time.later(self._time.clock + random.randint(1, commit_ms), self._commit_time, process)
        return process

    def _host(self, name: str) -> str:
        """An address of its own for everybody, in the order of their coming."""
        if name not in self._hosts:
            network, last = divmod(len(self._hosts), _HOSTS)
            self._hosts[name] = f"10.0.{network + 1}.{last + 2}"
        return self._hosts[name]

    def _connection_of(self, host: str) -> str:
        self._connections += 1
        port = _FIRST_PORT + self._connections % 28_000
        return f"{host}:{port}-{_BROKER}#{self._connections}"

    def _process(self, name: str) -> Process:
        process = self.processes.get(name)
        if process is None:
            raise KeyError(f"no member is called {name!r}")
        return process

    def restart(self, name: str, **changes: Any) -> Process:
        """Kill a process and start it again with the same options but for `changes`."""
        process = self._process(name)
        if process.is_working:
            self.crash(name)
        return self.member(name, **{**process.options, **changes})

    def crash(self, name: str) -> None:
        """The process is gone; the coordinator sees its connection close, no more."""
        process = self._process(name)
        if process.is_alive:
            self._time.note(name, "crashes")
            self._end(process)

    def leave(self, name: str, reason: str | None = None) -> None:
        """The consumer is closed in good order."""
        process = self._process(name)
        if process.is_alive:
            self._time.note(name, "leaves", reason)
            self._deliver(process, Leave(reason))

    def pause(self, name: str, ms: int) -> None:
        """The process stands still; what comes to it waits."""
        process = self._process(name)
        if process.is_alive:
            self._time.note(name, "pauses", ms)
            if process.is_working:
                self._restless.add(process)
            process._paused_until = max(process._paused_until, self._time.clock + ms)
            self._revision += 1
            self._time.later(process._paused_until, self._resume, process)

    def partition(self, name: str, ms: int) -> None:
        """Nothing comes through between the process and the coordinator."""
        process = self._process(name)
        self._time.note(name, "is cut off", ms)
        process._cut_until = max(process._cut_until, self._time.clock + ms)

    def lose(self, ms: int, *, drop: float = 0.0, reset: float = 0.0) -> None:
        """For so long, messages vanish with the probability `drop` and take their connection with them with `reset`."""
        self._time.note("cluster", "loses", (ms, drop, reset))
        self._lossy_until = self._time.clock + ms
        self._loss = (drop, reset)

    def subscribe(self, name: str, topics: Sequence[str]) -> None:
        """The consumer wants other topics."""
        process = self._process(name)
        if process.is_alive:
            self._time.note(name, "subscribes", tuple(topics))
            process.options["topics"] = tuple(topics)
            self._deliver(process, Subscribe(tuple(topics)))

    def offer(self, name: str, assignors: Sequence[str]) -> None:
        """The consumer offers other assignors from now on, best first, without a restart."""
        process = self._process(name)
        _check_known("assignor", assignors, ASSIGNORS)
        if process.is_alive:
            self._time.note(name, "offers", tuple(assignors))
            process.options["assignors"] = tuple(assignors)
            self._deliver(process, Offer([ASSIGNORS[assignor] for assignor in assignors]))

    def rejoin(self, name: str, reason: str | None = None) -> None:
        """The consumer's user asks for a rebalance (KIP-568)."""
        process = self._process(name)
        if process.is_alive:
            self._time.note(name, "asks", reason)
            self._deliver(process, Rejoin(reason))

    def stall(self, name: str, ms: int) -> None:
        """The consumer's application does not poll for so long. Past the rebalance timeout the consumer leaves, and it
        comes back when the application polls again."""
        process = self._process(name)
        if process.is_alive:
            self._time.note(name, "stalls", ms)
            self._deliver(process, Stalled())
            self._time.later(self._time.clock + ms, self._poll, process)

    def _poll(self, process: Process) -> None:
        self._time.note(process.name, "polls")
        self._deliver(process, Polled())

    def add_partitions(self, topic: str, count: int, refresh_ms: int = 2_000) -> None:
        """Make a topic larger, or a new one; members hear of it within `refresh_ms`."""
        self._topics.counts[topic] = self._topics.counts.get(topic, 0) + count
        self._revision += 1
        self._time.note("cluster", "has topics", dict(self._topics.counts))
        for process in self.processes.values():
            if process.is_alive:
                self._time.later(self._time.clock + process._random.randint(0, refresh_ms), self._refresh, process)

    def meddle(self, fault: Fault) -> None:
        """One more rule for requests and responses."""
        self._time.note("cluster", "meddles", fault)
        if self._faults is None:
            self._faults = Faults()
        self._faults.add(fault)

    def crash_coordinator(
        self, down_ms: int = 1_000, *, load_ms: int = 100, writes: int = 0, config: GroupConfig | None = None
    ) -> None:
        """The coordinator loses power, now or in the middle of the disk operation number `writes` from now.

        :param down_ms: how long connections are refused
        :param load_ms: how long after that it answers COORDINATOR_LOAD_IN_PROGRESS
        :param config: other settings that it comes back with
        """
        if config is not None:
            self.config = config
            self._coordinator.config = config
        self._coordinator.crash(down_ms, load_ms, writes)

    def heal(self) -> None:
        """End all faults of the network, of the disk and of processes that stand still; a coordinator that is down
        comes back when it would."""
        self._time.note("cluster", "heals")
        self._lossy_until = 0
        self._coordinator.disk.power_left = self._coordinator.disk.fails_in = None
        self._faults = None
        for process in self.processes.values():
            process._cut_until = 0
            if process._paused_until:
                process._paused_until = self._time.clock
                self._resume(process)

    def rests_on_static_members(self) -> bool:
        """Whether everybody is at rest, static members among them: see `nudge`."""
        working = [process for process in self.processes.values() if process.is_working]
        return all(process.member.is_at_rest for process in working) and any(
            process.member.settings.group_instance_id is not None for process in working
        )

    def nudge(self) -> None:
        """Make every group rebalance: one more member joins each, and leaves again.

        A static member that restarts is answered without a rebalance (KIP-345), and if it leads, it assigns nothing
        (KIP-814; before JoinGroup 9 it does not even know). So other topics in its new subscription, or partitions that
        came while the leader was away, have no owner before something else makes the group rebalance.
        """
        groups = {process.options["group"]: process for process in self.processes.values() if process.is_working}
        for group, process in groups.items():
            name = f"nudge-{group}"
            self.member(name, **{**process.options, "instance_id": None})
            self.at(self.now + 60_000, partial(self.leave, name))

    def ask(self, message: Any, version: int, *, client_id: str = "probe", within_ms: int = 600_000) -> Any:
        """Send a request of your own past all faults, and let time pass until it is answered."""
        return self.answer(self.send(message, version, client_id=client_id), within_ms)

    def fail_disk(self, repaired_after_ms: int = 1_000, *, writes: int = 0) -> None:
        """The disk operation number `writes` from now fails; the coordinator resigns, and reads its log again later."""
        self._coordinator.disk.fails_in = writes
        self._coordinator.disk.repaired_after_ms = repaired_after_ms

    def send(self, message: Any, version: int, *, client_id: str = "probe") -> int:
        """Send a request of your own past all faults; `answer` waits for what comes back.

        :raises ConnectionRefusedError: the coordinator is down
        """
        if not self._coordinator.is_up:
            raise ConnectionRefusedError("the coordinator is down")
        self._probed += 1
        host = self._host(client_id)
        caller = _Caller(None, 0, version, message, self._probed, self._connection_of(host))
        data = encode_request(message, version, client_id=client_id)
        self._tell(caller.probe_name, "opened")
        self._tell(caller.probe_name, "request", data)
        self._coordinator.submit(caller, decode_request(data)[1], version, client_id, host)
        self._look_after_coordinator()
        return caller.probe

    def answer(self, sent: int, within_ms: int = 600_000) -> Any:
        """What a request of `send` was answered; time passes until it is.

        :raises TimeoutError: it is not within `within_ms`
        :raises ConnectionResetError: the coordinator crashed before that
        """
        self.run_until(lambda: sent in self._probes, within_ms)
        answer = self._probes.pop(sent)
        if isinstance(answer, ConnectionResetError):
            raise answer
        return answer

    # ---- what the user sees

    def owners(self) -> dict[TopicPartition, str]:
        """Which live process holds which partition."""
        return {
            partition: process.name
            for process in self.processes.values()
            if process.is_alive
            for partition in process.member.owned
        }

    def idle_ms(self) -> Idle:
        """For how long partitions were held by nobody since somebody first held them, summed over the partitions."""
        revoked, abandoned = self._revoked_ms, self._abandoned_ms
        for since, was_revoked in self._orphaned.values():
            if was_revoked:
                revoked += self._time.clock - since
            else:
                abandoned += self._time.clock - since
        return Idle(revoked, abandoned)

    @property
    def is_up(self) -> bool:
        """Whether the coordinator takes connections."""
        return self._coordinator.is_up

    @property
    def topics(self) -> Mapping[str, int]:
        """The topics there are, with the number of their partitions."""
        return self._topics.counts

    def state(self, group: str = "group") -> State | None:
        """The state of a group; None where there is none, or no coordinator."""
        known = None if self._coordinator.machine is None else self._coordinator.machine.groups.get(group)
        return None if known is None else known.state

    def leader(self, group: str = "group") -> Process | None:
        """The working process that leads a group."""
        known = None if self._coordinator.machine is None else self._coordinator.machine.groups.get(group)
        if known is None or known.leader_id is None:
            return None
        return next(
            (
                process
                for process in self.processes.values()
                if process.is_working and process.member.member_id == known.leader_id
            ),
            None,
        )

    def fresh_offset(self) -> int:
        """An offset that nobody has committed before."""
        self._offset += 1
        return self._offset

    def is_settled(self) -> bool:
        """Whether, in every group, all working members are in one generation and hold each partition exactly once."""
        revision, settled = self._settled
        if revision != self._revision:
            settled = self._is_settled()
            self._settled = (self._revision, settled)
        return settled

    def _is_settled(self) -> bool:
        if self._restless:
            return False
        groups: dict[str, list[Process]] = {}
        for process in self.processes.values():
            if process.is_working:
                groups.setdefault(process.member.settings.group_id, []).append(process)
        for processes in groups.values():
            held: list[TopicPartition] = []
            wanted: set[str] = set()
            generation_id = processes[0].member.generation_id
            for process in processes:
                member = process.member
                if member.generation_id != generation_id:
                    return False
                held += member.owned
                wanted.update(member.topics)
            counts = self._topics.counts
            if len(held) != sum(counts.get(topic, 0) for topic in wanted) or len(held) != len(set(held)):
                return False
        return True

    # ---- members

    def _deliver(self, process: Process, event: MemberEvent) -> None:
        if not process.is_alive:
            return
        if process._paused_until:
            process._inbox.append(event)
            return
        self._time.steps += 1
        member = process.member
        state = member.state
        for effect in member.handle(event, self._time.clock):
            _CARRY_OUT[type(effect)](self, process, effect)
        if member.state is not state:
            self._revision += 1
        if member.is_at_rest or member.state in (MemberState.LEFT, MemberState.FAILED):
            self._restless.discard(process)
        else:
            self._restless.add(process)
        deadline = member.deadline
        if deadline is not None and deadline < process._armed:
            process._armed = deadline
            self._time.later(deadline, self._tick_member, (process, deadline))

    def _tick_member(self, about: tuple[Process, int]) -> None:
        process, when = about
        if when != process._armed or not process.is_alive:
            return
        process._armed = _NEVER
        deadline = process.member.deadline
        if deadline is None:
            return
        if deadline <= self._time.clock:
            self._deliver(process, _TICK)
        else:
            process._armed = deadline
            self._time.later(deadline, self._tick_member, (process, deadline))

    def _resume(self, process: Process) -> None:
        if process._paused_until and process._paused_until <= self._time.clock:
            process._paused_until = 0
            self._revision += 1
            self._time.note(process.name, "resumes")
            waiting, process._inbox = process._inbox, []
            for event in waiting:
                self._deliver(process, event)
            self._deliver(process, _TICK)

    def _refresh(self, process: Process) -> None:
        if self._tap is not None and process.is_alive:
            self._tell_topics(process)
        self._time.note(process.name, "learns", dict(self._topics.counts))
        self._deliver(process, TopicsKnown(dict(self._topics.counts)))

    def _commit_time(self, process: Process) -> None:
        if not process.is_working or process.commit_ms is None:
            return
        self._time.later(self._time.clock + process.commit_ms, self._commit_time, process)
        member = process.member
        if member.owned and member.state is MemberState.STABLE and not process._paused_until:
            self._deliver(process, Commit(self._progress(member.owned)))

    def _progress(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Offsets that nobody has committed before, so that each tells which commit it comes from."""
        return {partition: self.fresh_offset() for partition in sorted(partitions)}

    def _end(self, process: Process) -> None:
        process.is_alive = False
        self._revision += 1
        self._restless.discard(process)
        self._drop(process, process.member.owned)
        if process._bootstrap:
            self._tell(process._bootstrap, "closed")
        if process._connection is not None:
            self._shut(process._connection)
            process._connection = None

    def _drop(self, process: Process, partitions: Iterable[TopicPartition], *, revoked: bool = False) -> None:
        for partition in partitions:
            if self._owner.get(partition) is process:
                del self._owner[partition]
                self._orphaned[partition] = (self._time.clock, revoked)

    def _do_send(self, process: Process, effect: Send) -> None:
        if isinstance(effect.message, JoinGroupRequest):
            self._time.note(process.name, "joins", process.member.joined_for)
        assign_ms = process.options["assign_ms"]
        if assign_ms and isinstance(effect.message, SyncGroupRequest) and effect.message.assignments:
            self._time.note(process.name, "assigns", assign_ms)
            about = (process, process._connection, effect)
            self._time.later(self._time.clock + assign_ms, self._send_assigned, about)
            if process.options["assign_blocks"]:
                self.pause(process.name, assign_ms)  # which ends behind that: a client goes on where it was
        else:
            self._send_now(process, effect)

    def _send_assigned(self, about: tuple[Process, _Connection | None, Send]) -> None:
        """The assignment is computed; it goes out if the member still waits for the answer to that."""
        process, connection, effect = about
        if process.is_alive and process._connection is connection and process.member.waits_for(effect.request_id):
            self._send_now(process, effect)

    def _send_now(self, process: Process, effect: Send) -> None:
        connection = process._connection
        if connection is None:
            connection = process._connection = _Connection(process, self._connection_of(process.host))
        self._time.note(process.name, "sends", effect.message)
        data = encode_request(
            effect.message,
            effect.version,
            correlation_id=effect.request_id,
            client_id=process.member.settings.client_id,
        )
        if self._gets_lost(connection):
            return
        connection.up_at = max(connection.up_at, self._time.clock + process._random.randint(*self._latency))
        self._time.later(connection.up_at, self._arrive, (connection, effect.request_id, effect.version, data))

    def _do_close(self, process: Process, _effect: Close) -> None:
        if process._connection is not None:
            self._shut(process._connection)
            process._connection = None

    def _do_assigned(self, process: Process, effect: Assigned) -> None:
        self._revision += 1
        self._time.note(process.name, "assigned", effect)
        member = process.member
        me = member.settings.group_instance_id or process.name
        process._incarnation = self.invariants.incarnation(member.settings.group_id)
        for partition in member.owned:
            holder = self._owner.get(partition)
            if holder is not None and holder is not process and holder.is_working:
                other = holder.member
                if (
                    # not generation_id: a join that the log has lost gave it out, and another one gave it out again
                    (holder._incarnation, other.owned_generation) == (process._incarnation, effect.generation_id)
                    and partition in other.owned
                    and (other.settings.group_instance_id or holder.name) != me
                    and other.settings.group_id == member.settings.group_id
                ):
                    text = f"{partition} is held by {holder.name} and {process.name} in {effect.generation_id}"
                    raise ViolationError("one owner", text)
            self._owner[partition] = process
            since, revoked = self._orphaned.pop(partition, (self._time.clock, False))
            if revoked:
                self._revoked_ms += self._time.clock - since
            else:
                self._abandoned_ms += self._time.clock - since

    def _do_revoking(self, process: Process, effect: Revoking) -> None:
        self._revision += 1
        self._time.note(process.name, "revoking", effect)
        poll_ms = process.options["poll_ms"]
        wait = process._random.randint(0, poll_ms) if poll_ms else 0
        self._time.later(self._time.clock + wait, self._stop_work, (process, effect))

    def _stop_work(self, about: tuple[Process, Revoking]) -> None:
        process, effect = about
        if not process.is_alive or not process.member.owned >= effect.partitions:
            return  # dead, or lost them meanwhile
        self._drop(process, effect.partitions, revoked=True)
        wait = process.release_ms * len(effect.partitions)
        self._time.later(self._time.clock + wait, self._release, about)

    def _release(self, about: tuple[Process, Revoking]) -> None:
        process, effect = about
        offsets = {} if process.commit_ms is None else self._progress(effect.partitions)
        self._revision += 1
        self._deliver(process, Released(effect.ticket, offsets))

    def _do_lost(self, process: Process, effect: Lost) -> None:
        self._revision += 1
        self._time.note(process.name, "lost", effect)
        self._drop(process, effect.partitions)

    def _do_note(self, process: Process, effect: MemberEffect) -> None:
        self._time.note(process.name, type(effect).__name__.lower(), effect)

    def _do_left(self, process: Process, _effect: Left) -> None:
        """The connection stays until LeaveGroup is through; nobody waits for its answer."""
        self._revision += 1
        self._time.note(process.name, "left")
        self._drop(process, list(self._owner))
        if process._bootstrap:
            self._tell(process._bootstrap, "closed")
            process._bootstrap = ""
        if process._connection is not None and not process.member.is_waiting:
            self._part(process._connection)

    # ---- the wire

    def _tell(self, connection: str, direction: str, frame: bytes = b"", time_ms: int | None = None) -> None:
        if self._tap is not None:
            self._tap(self._time.clock if time_ms is None else time_ms, connection, direction, frame)

    def _tell_topics(self, process: Process) -> None:
        version = process.member.settings.versions.metadata
        client_id = process.member.settings.client_id
        if not process._bootstrap:
            process._bootstrap = self._connection_of(process.host)
            self._tell(process._bootstrap, "opened")
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="10.0.0.1", port=9092)],
            topics=[
                MetadataResponseTopic(
                    name=name,
                    topic_id=self._topics.id_of(name) or uuid.UUID(int=0),
                    partitions=[
                        MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1])
                        for index in range(count)
                    ],
                )
                for name, count in self._topics.counts.items()
            ],
        )
        request = MetadataRequest(topics=None if version else [])
        self._asked += 1
        asked = encode_request(request, version, correlation_id=self._asked, client_id=client_id)
        self._tell(process._bootstrap, "request", asked)
        self._tell(process._bootstrap, "response", encode_response(response, version, correlation_id=self._asked))

    def _shut(self, connection: _Connection) -> None:
        self._part(connection)
        connection.is_open = False

    def _part(self, connection: _Connection) -> None:
        """The client is done with it, or it has ended."""
        if connection.is_open and connection.is_told:
            connection.is_told = False
            self._tell(connection.name, "closed", time_ms=max(self._time.clock, connection.sent_at))

    def _gets_lost(self, connection: _Connection) -> bool:
        """Whether the network swallows what is sent on this connection now."""
        process = connection.process
        if process._cut_until > self._time.clock:
            connection.is_broken = True
            return True
        if connection.is_broken:
            self._reset(connection)
            return True
        if self._lossy_until > self._time.clock:
            drop, reset = self._loss
            luck = process._random.random()
            if luck < drop:
                return True
            if luck < drop + reset:
                self._reset(connection)
                return True
        return False

    def _reset(self, connection: _Connection) -> None:
        """The connection ends; the client sees it a little later."""
        self._shut(connection)
        wait = connection.process._random.randint(*self._latency)
        self._time.later(max(connection.down_at, self._time.clock + wait), self._see_reset, connection)

    def _see_reset(self, connection: _Connection) -> None:
        process = connection.process
        if process._connection is connection:
            process._connection = None
            self._deliver(process, _DISCONNECTED)

    def _arrive(self, about: tuple[_Connection, int, int, bytes]) -> None:
        connection, request_id, version, data = about
        if not connection.is_open:
            return
        if connection.life == 0:
            connection.life = self._coordinator.life
        if not self._coordinator.is_up or connection.life != self._coordinator.life:
            self._reset(connection)
            return
        if self._tap is not None:
            if not connection.is_told:
                connection.is_told = True
                self._tell(connection.name, "opened")
            self._tell(connection.name, "request", data)
        connection.queue.append((request_id, version, data))
        self._serve(connection)
        self._look_after_coordinator()

    def _serve(self, connection: _Connection) -> None:
        """Look at the next request, if none is in hand."""
        while connection.queue and not connection.in_hand and connection.is_open:
            request_id, version, data = connection.queue.pop(0)
            header, message = decode_request(data)
            delay = 0
            copies = 1
            if self._faults is not None:
                verdict = self._faults.decide(
                    "request", header.request_api_key, message, version, header.client_id or "", self.now
                )
                if verdict.disconnect:
                    self._reset(connection)
                    return
                if verdict.drop:
                    continue
                if verdict.error is not None:
                    connection.in_hand += 1
                    caller = _Caller(connection, request_id, version, message)
                    self._time.later(self._time.clock + verdict.delay_ms, self._refuse, (caller, verdict.error))
                    continue
                delay, copies = verdict.delay_ms, verdict.copies
            connection.in_hand += 1
            caller = _Caller(connection, request_id, version, message)
            about = (caller, header.client_id or "", copies, self._coordinator.life)
            if delay:
                self._time.later(self._time.clock + delay, self._hand_over_late, about)
            else:
                self._hand_over(about)

    def _refuse(self, about: tuple[_Caller, ErrorCode]) -> None:
        caller, error = about
        self._give_back(caller, refusal(caller.request, caller.version, error))
        self._look_after_coordinator()

    def _hand_over_late(self, about: tuple[_Caller, str, int, int]) -> None:
        self._hand_over(about)
        self._look_after_coordinator()

    def _hand_over(self, about: tuple[_Caller, str, int, int]) -> None:
        caller, client_id, copies, life = about
        connection = caller.connection
        assert connection is not None
        if life != self._coordinator.life:
            return
        for copy in range(copies):
            whose = caller if copy == 0 else caller._replace(connection=None)
            host = connection.process.host
            self._coordinator.submit(whose, caller.request, caller.version, client_id, host)

    def _answered(self, caller: _Caller, message: Any) -> None:
        if caller.probe:
            data = encode_response(message, caller.version)
            self._tell(caller.probe_name, "response", data)
            self._tell(caller.probe_name, "closed")
            self._probes[caller.probe] = decode_response(data, type(message), caller.version)[1]
        elif caller.connection is not None:
            self._give_back(caller, message)

    def _crashed(self, callers: list[_Caller]) -> None:
        """The coordinator has: every connection to it ends."""
        for caller in callers:
            if caller.probe:
                self._probes[caller.probe] = ConnectionResetError("the coordinator has crashed")
        self._ready.clear()
        self._revision += 1
        for process in self.processes.values():
            connection = process._connection
            if connection is None or not connection.life:
                continue
            if connection.is_open and process._cut_until <= self._time.clock:
                self._reset(connection)
            else:
                connection.is_broken = True

    def _look_after_coordinator(self) -> None:
        """After whatever has happened to it: requests that wait their turn, the disk, the clock."""
        while self._ready:
            self._serve(self._ready.pop())
        self._coordinator.look_after()

    def _give_back(self, caller: _Caller, message: Any) -> None:
        connection = caller.connection
        assert connection is not None
        connection.in_hand -= 1
        if not connection.is_open:
            return
        delay = 0
        copies = 1
        if self._faults is not None:
            api_key = registry.by_class(type(caller.request)).api_key or 0
            verdict = self._faults.decide(
                "response",
                api_key,
                caller.request,
                caller.version,
                connection.process.member.settings.client_id,
                self.now,
            )
            if verdict.disconnect:
                self._reset(connection)
                return
            if verdict.error is not None:
                message = refusal(caller.request, caller.version, verdict.error)
            delay, copies = verdict.delay_ms, 0 if verdict.drop else verdict.copies
        self._ready.append(connection)
        data = encode_response(message, caller.version, correlation_id=caller.request_id)
        api = type(message)
        connection.sent_at = max(connection.sent_at, self._time.clock + delay)
        for _ in range(copies):
            self._tell(connection.name, "response", data, connection.sent_at)
            if self._gets_lost(connection):
                return
            wait = delay + connection.process._random.randint(*self._latency)
            connection.down_at = max(connection.down_at, self._time.clock + wait)
            self._time.later(connection.down_at, self._come_back, (connection, data, api, caller.version))
        if isinstance(caller.request, LeaveGroupRequest) and connection.process.member.state is MemberState.LEFT:
            self._part(connection)  # nothing came behind that

    def _come_back(self, about: tuple[_Connection, bytes, type, int]) -> None:
        connection, data, api, version = about
        process = connection.process
        if process._connection is not connection or not process.is_alive:
            return
        header, message = decode_response(data, api, version)
        self._time.note(process.name, "gets", message)
        self._deliver(process, Arrived(header.correlation_id, message))


_CARRY_OUT: Final[Mapping[type, Callable[[Cluster, Process, Any], None]]] = {
    Send: Cluster._do_send,
    Close: Cluster._do_close,
    Assigned: Cluster._do_assigned,
    Revoking: Cluster._do_revoking,
    Lost: Cluster._do_lost,
    Fetched: Cluster._do_note,
    Committed: Cluster._do_note,
    NotCommitted: Cluster._do_note,
    Left: Cluster._do_left,
    Failed: Cluster._do_note,
}
