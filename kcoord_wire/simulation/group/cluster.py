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
* A coordinator that crashes loses its memory and what its disk had not synced; the disk may be cut off inside a write.

The network is virtual_wire.py's, the processes are virtual_fleet.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from kcoord_wire.assignors import ASSIGNORS, TopicPartition
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.consumer.events import (
    CLIENT_VERSIONS,
    Leave,
    MemberSettings,
    Offer,
    Polled,
    Rejoin,
    Stalled,
    Subscribe,
)
from kcoord_wire.consumer.machine import Member
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import RebalanceAccount
from kcoord_wire.coordinator.core.groups import State
from kcoord_wire.coordinator.fault_injection import Fault, Faults
from kcoord_wire.simulation.clock import EPOCH_MS, Happening, Timeline
from kcoord_wire.simulation.disk import VirtualDisk
from kcoord_wire.simulation.group.coordinator import VirtualCoordinator
from kcoord_wire.simulation.group.invariants import Invariants
from kcoord_wire.simulation.group.network import Caller, Tap, VirtualTopics, Wire
from kcoord_wire.simulation.group.processes import Fleet, Idle, Process

__all__ = ["EPOCH_MS", "Cluster", "Happening", "Idle", "Process", "Tap"]

_EMBEDDED: Final = ConsumerProtocol()


def _check_known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"no {kind} is called {name!r}; there are {', '.join(known)}")


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
        for topic, count in (topics or {}).items():
            if type(count) is not int or count < 1:
                raise ValueError(f"topic {topic!r} needs one partition or more, not {count!r}")
        self.seed = seed
        self.processes: dict[str, Process] = {}
        self.config = config or GroupConfig()
        self.invariants = Invariants(_EMBEDDED.decode_assignment)
        self._topics = VirtualTopics({"topic": 4} if topics is None else topics)
        self._time = Timeline()
        self._wire = Wire(
            self._time,
            self._topics,
            self.processes,
            latency_ms=latency_ms,
            faults=faults,
            tap=tap,
            deliver=lambda process, event: self._fleet.deliver(process, event),
        )
        self._fleet = Fleet(self._time, self._topics, self.processes, self.invariants, self._wire)
        self._coordinator = self._wire.coordinator = VirtualCoordinator(
            self._time,
            Random(f"{seed}/coordinator"),
            self.config,
            self._topics,
            self.invariants,
            sync_ms=sync_ms,
            store_options={"segment_bytes": segment_bytes, "min_compaction_bytes": min_compaction_bytes},
            answered=self._wire.answered,
            crashed=self._crashed,
            after=self._wire.look_after_coordinator,
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
    def rebalances(self) -> Sequence[RebalanceAccount]:
        """The coordinator's accounts of the rebalances that have ended, oldest first."""
        return self._coordinator.rebalances

    @property
    def begun(self) -> Sequence[RebalanceAccount]:
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
        random = Random(f"{self.seed}/{name}") if former is None else former.random
        member = Member(settings, [ASSIGNORS[assignor] for assignor in assignors], _EMBEDDED)
        process = Process(name, self._wire.host_of(name), member, random, options, commit_ms, release_ms)
        self.processes[name] = process
        wait = max(rebalance_timeout_ms, session_timeout_ms) * 2 + self.config.new_member_join_timeout_ms + 10_000
        self.invariants.patience_ms = max(self.invariants.patience_ms, wait)
        self._fleet.revision += 1
        self._time.note(name, "starts", process.options)
        self._fleet.refresh(process)
        self._fleet.deliver(process, Subscribe(tuple(self._topics.counts) if topics is None else tuple(topics)))
        if commit_ms is not None:
            self._time.later(self._time.clock + random.randint(1, commit_ms), self._fleet.commit_time, process)
        return process

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
            self._fleet.end(process)

    def leave(self, name: str, reason: str | None = None) -> None:
        """The consumer is closed in good order."""
        process = self._process(name)
        if process.is_alive:
            self._time.note(name, "leaves", reason)
            self._fleet.deliver(process, Leave(reason))

    def pause(self, name: str, ms: int) -> None:
        """The process stands still; what comes to it waits."""
        self._fleet.pause(self._process(name), ms)

    def partition(self, name: str, ms: int) -> None:
        """Nothing comes through between the process and the coordinator."""
        process = self._process(name)
        self._time.note(name, "is cut off", ms)
        process.cut_until = max(process.cut_until, self._time.clock + ms)

    def lose(self, ms: int, *, drop: float = 0.0, reset: float = 0.0) -> None:
        """For so long, messages vanish with the probability `drop` and take their connection with them with `reset`."""
        self._time.note("cluster", "loses", (ms, drop, reset))
        self._wire.lossy_until = self._time.clock + ms
        self._wire.loss = (drop, reset)

    def subscribe(self, name: str, topics: Sequence[str]) -> None:
        """The consumer wants other topics."""
        process = self._process(name)
        if process.is_alive:
            self._time.note(name, "subscribes", tuple(topics))
            process.options["topics"] = tuple(topics)
            self._fleet.deliver(process, Subscribe(tuple(topics)))

    def offer(self, name: str, assignors: Sequence[str]) -> None:
        """The consumer offers other assignors from now on, best first, without a restart."""
        process = self._process(name)
        _check_known("assignor", assignors, ASSIGNORS)
        if process.is_alive:
            self._time.note(name, "offers", tuple(assignors))
            process.options["assignors"] = tuple(assignors)
            self._fleet.deliver(process, Offer([ASSIGNORS[assignor] for assignor in assignors]))

    def rejoin(self, name: str, reason: str | None = None) -> None:
        """The consumer's user asks for a rebalance (KIP-568)."""
        process = self._process(name)
        if process.is_alive:
            self._time.note(name, "asks", reason)
            self._fleet.deliver(process, Rejoin(reason))

    def stall(self, name: str, ms: int) -> None:
        """The consumer's application does not poll for so long. Past the rebalance timeout the consumer leaves, and it
        comes back when the application polls again."""
        process = self._process(name)
        if process.is_alive:
            self._time.note(name, "stalls", ms)
            self._fleet.deliver(process, Stalled())
            self._time.later(self._time.clock + ms, self._poll, process)

    def _poll(self, process: Process) -> None:
        self._time.note(process.name, "polls")
        self._fleet.deliver(process, Polled())

    def add_partitions(self, topic: str, count: int, refresh_ms: int = 2_000) -> None:
        """Make a topic larger, or a new one; members hear of it within `refresh_ms`."""
        self._topics.counts[topic] = self._topics.counts.get(topic, 0) + count
        self._fleet.revision += 1
        self._time.note("cluster", "has topics", dict(self._topics.counts))
        for process in self.processes.values():
            if process.is_alive:
                self._time.later(self._time.clock + process.random.randint(0, refresh_ms), self._fleet.refresh, process)

    def meddle(self, fault: Fault) -> None:
        """One more rule for requests and responses."""
        self._time.note("cluster", "meddles", fault)
        if self._wire.faults is None:
            self._wire.faults = Faults()
        self._wire.faults.add(fault)

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
        self._wire.lossy_until = 0
        self._coordinator.disk.power_left = self._coordinator.disk.fails_in = None
        self._wire.faults = None
        for process in self.processes.values():
            process.cut_until = 0
            if process.paused_until:
                process.paused_until = self._time.clock
                self._fleet.resume(process)

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
        return self._wire.probe(message, version, client_id)

    def answer(self, sent: int, within_ms: int = 600_000) -> Any:
        """What a request of `send` was answered; time passes until it is.

        :raises TimeoutError: it is not within `within_ms`
        :raises ConnectionResetError: the coordinator crashed before that
        """
        self.run_until(lambda: sent in self._wire.answers, within_ms)
        answer = self._wire.answers.pop(sent)
        if isinstance(answer, ConnectionResetError):
            raise answer
        return answer

    # ---- what the user sees

    def owners(self) -> dict[TopicPartition, str]:
        """Which live process holds which partition."""
        return self._fleet.owners()

    def idle_ms(self) -> Idle:
        """For how long partitions were held by nobody since somebody first held them, summed over the partitions."""
        return self._fleet.idle_ms()

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
        return self._fleet.fresh_offset()

    def is_settled(self) -> bool:
        """Whether, in every group, all working members are in one generation and hold each partition exactly once."""
        return self._fleet.is_settled()

    def _crashed(self, callers: list[Caller]) -> None:
        self._wire.crashed(callers)
        self._fleet.revision += 1
