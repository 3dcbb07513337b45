"""A coordinator and members of KIP-848 on a virtual clock.

    with ConsumerGroupCluster(seed=7, topics={"orders": 12}, members=3) as sim:
        sim.run_until(sim.has_converged)
        sim.crash("m2")
        sim.run(60_000)
        print(sim.owners())

The coordinator is the real one (machine, runtime, store) on a disk that fails, as in `worlds.group`, and requests
and responses go through the codec. The members are `member.ConsumerGroupMember`, and `classic.ClassicProcess` for those
with assignors of their own.

Laws:

* The seed decides everything: the same calls in the same order give the same trace.
* After every event the laws of `invariants` are checked; a call that lets time pass raises `ViolationError` if one is
  broken.
* An action that makes no sense (a crash of a process that does not run) does nothing, so that scripts can be reduced.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, Literal

from kcoord_wire import messages as m
from kcoord_wire.consumer import events as classic_events
from kcoord_wire.consumer.events import Close, Send
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import RebalanceAccount
from kcoord_wire.coordinator.core.groups import BaseGroup
from kcoord_wire.coordinator.fault_injection import Fault, Faults
from kcoord_wire.kernel.virtual.clock import NEVER, VirtualClock
from kcoord_wire.kernel.virtual.network import Loss, NetworkCluster
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.worlds.consumer_groups import member as events
from kcoord_wire.worlds.consumer_groups.classic import (
    ClassicClient,
    ClassicProcess,
    classic_options,
    machine_of,
)
from kcoord_wire.worlds.consumer_groups.invariants import ConsumerGroupInvariants
from kcoord_wire.worlds.consumer_groups.laws import Client, check_client_step, has_converged
from kcoord_wire.worlds.consumer_groups.member import ConsumerGroupMember, MemberSettings, Partition
from kcoord_wire.worlds.group.coordinator import VirtualCoordinator
from kcoord_wire.worlds.group.members import Members
from kcoord_wire.worlds.group.topics import VirtualTopics
from kcoord_wire.worlds.group.wire import MemberConnection, Wire

GROUP: Final = "group"
"""The id of the group."""

_HEALED_RELEASE_MS: Final = 1_000  # what an application takes at most when nothing fails any more


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """How a member is set up. Times are in virtual milliseconds.

    :ivar topics: what it subscribes to; None for all topics that there are
    :ivar regex: what it subscribes to besides; with a pattern and no topics, `topics` is empty
    :ivar instance_id: of a static member; None for a dynamic one
    :ivar assignor: the server assignor that it asks for; None for none
    :ivar assignors: of a member of the classic protocol, most preferred first; None for one of KIP-848
    :ivar rebalance_timeout_ms: what it may take to give partitions up
    :ivar request_timeout_ms: after which a heartbeat that is not answered is sent again
    :ivar release_ms: how long its application takes to give up one partition
    :ivar restore_ms: how long it takes to open one; a bounce counts it, nothing else depends on it
    :ivar commit_ms: between two commits; None for no commits
    """

    topics: Sequence[str] | None = None
    regex: str = ""
    instance_id: str | None = None
    assignor: str | None = None
    assignors: Sequence[str] | None = None
    rebalance_timeout_ms: int = 60_000
    request_timeout_ms: int = 5_000
    release_ms: int = 0
    restore_ms: int = 0
    commit_ms: int | None = 2_000


class MemberProcess(Process):
    """A member's process; what every process has is in `Process`.

    :ivar member: the machine
    :ivar options: how it was set up
    """

    __slots__ = ("_cluster", "_epoch", "member", "options")

    connection: MemberConnection | None

    def __init__(
        self,
        cluster: ConsumerGroupCluster,
        clock: VirtualClock,
        name: str,
        host: str,
        member: ConsumerGroupMember,
        random: Random,
        options: MemberOptions,
    ) -> None:
        super().__init__(clock, name, host, member, random)
        self.member = member
        self.options = options
        self._cluster = cluster
        self._epoch = member.epoch

    @property
    def client(self) -> ConsumerGroupMember:
        """Its member, as the laws see it."""
        return self.member

    @property
    def origin(self) -> MemberOptions:
        """The options with which a process like it is started."""
        return self.options

    @property
    def is_working(self) -> bool:
        """Whether it is alive, and its member has neither left nor failed."""
        return self.is_alive and not self.member.is_over

    def carry_out(self, effect: Any) -> None:
        """Do what the member wants."""
        self._cluster.carry_out(self, effect)

    def handled(self) -> None:
        """Check the laws that depend on what clients own."""
        check_client_step(self._epoch, self.member)
        self._epoch = self.member.epoch
        self._cluster.check_clients()

    def changed(self) -> None:
        """Nothing depends on it."""


AnyProcess = MemberProcess | ClassicProcess


class ConsumerGroupCluster(NetworkCluster[AnyProcess, Wire]):
    """A coordinator and the members of one group, on a virtual clock.

    :param seed: decides everything that is random
    :param topics: name to number of partitions
    :param members: how many start at once: m1, m2 ...
    :param options: of these, and the defaults of `member`
    :param config: the coordinator's settings
    :param latency_ms: least and most that a message takes
    :param sync_ms: least and most that a disk write takes
    :param segment_bytes: of the coordinator's log, see `Store`
    :param min_compaction_bytes: of the coordinator's log, see `Store`
    :ivar seed: as given
    :ivar processes: by name; a member that starts again has a new process, and another member id
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        topics: Mapping[str, int],
        members: int = 0,
        options: Mapping[str, Any] | None = None,
        config: GroupConfig | None = None,
        latency_ms: tuple[int, int] = (1, 5),
        sync_ms: tuple[int, int] = (0, 3),
        segment_bytes: int = 65_536,
        min_compaction_bytes: int = 65_536,
    ) -> None:
        super().__init__()
        self.seed = seed
        self._options = dict(options or {})
        self._config = config or GroupConfig()
        self._topics = VirtualTopics(topics)
        self._invariants = ConsumerGroupInvariants(self._topics, self._clients)
        self._coordinator = VirtualCoordinator(
            self._clock,
            Random(f"{seed}/coordinator"),
            self._config,
            self._topics,
            self._invariants,
            sync_ms=sync_ms,
            store_options={"segment_bytes": segment_bytes, "min_compaction_bytes": min_compaction_bytes},
        )
        processes: Any = self.processes  # the wire needs no more of a process than its name, host and client id
        self._wire = Wire(
            self._clock, self._coordinator, self._topics, processes, latency_ms=latency_ms, faults=None, tap=None
        )
        self._classic: dict[str, ClassicProcess] = {}  # those among the processes
        self._applications = Members(self._clock, self._topics, self._classic, self._invariants, self._wire)
        self._incarnations = 0
        self._longest_release_ms = NEVER
        for number in range(1, members + 1):
            self.member(f"m{number}")

    # ---- what is seen

    def _workers(self) -> Iterator[AnyProcess]:
        return (process for process in self.processes.values() if process.is_working)

    def _clients(self) -> Iterator[Client]:
        return (process.client for process in self._workers())

    @property
    def rebalances(self) -> Sequence[RebalanceAccount]:
        """The coordinator's accounts of the rebalances that have ended, oldest first."""
        return self._coordinator.rebalances

    @property
    def begun(self) -> Sequence[RebalanceAccount]:
        """The coordinator's accounts of all rebalances that have begun, as they stand, oldest first."""
        return self._coordinator.begun

    def owners(self) -> dict[Partition, str]:
        """Return which process owns which partition, as the members see it."""
        return {partition: process.name for process in self._workers() for partition in process.client.owned}

    @property
    def group(self) -> BaseGroup | None:
        """The group, of either protocol; None if there is none, or the coordinator is down."""
        machine = self._coordinator.machine
        return None if machine is None else machine.groups.get(GROUP)

    def has_converged(self) -> bool:
        """Return whether every partition has one owner and all members are in one epoch or generation."""
        group = self.group
        clients = list(self._clients())
        if isinstance(group, ConsumerGroup):
            return has_converged(group, clients, self._topics)
        if any(isinstance(process, MemberProcess) for process in self._workers()):
            return False
        return not clients or (group is not None and self._applications.is_settled())

    @property
    def has_classic_members(self) -> bool:
        """Whether some of the members that run are classic."""
        return any(isinstance(process, ClassicProcess) for process in self._workers())

    def rests_on_static_members(self) -> bool:
        """Return whether all members are classic, static and at rest: see `Cluster.rests_on_static_members`."""
        return all(
            isinstance(process, ClassicProcess) and process.client.is_at_rest for process in self._workers()
        ) and any(process.origin.instance_id is not None for process in self._workers())

    def nudge(self) -> None:
        """Make a classic group rebalance: a member of KIP-848 joins it, and leaves again after a minute."""
        self.member("nudge", {"topics": (), "regex": ".*"})
        self._clock.after(60_000, self.leave, "nudge")

    # ---- members

    def member(self, name: str, changes: Mapping[str, Any] | None = None) -> None:
        """Start a member, after a process of that name was killed.

        :param changes: fields of `MemberOptions` that differ from the cluster's
        """
        self.crash(name)
        former = self.processes.get(name)
        random = Random(f"{self.seed}/{name}") if former is None else former.random
        options = MemberOptions(**{**self._options, **(changes or {})})
        self._incarnations += 1
        self._clock.record(name, "starts", options)
        self._classic.pop(name, None)
        if options.assignors is None:
            self._start(name, options, random)
        else:
            self._start_classic(name, options, random)

    def _start(self, name: str, options: MemberOptions, random: Random) -> None:
        settings = MemberSettings(
            group_id=GROUP,
            client_id=name,
            member_id=f"{name}-{self._incarnations}",
            instance_id=options.instance_id,
            assignor=options.assignor,
            rebalance_timeout_ms=options.rebalance_timeout_ms,
            request_timeout_ms=options.request_timeout_ms,
        )
        machine = ConsumerGroupMember(settings)
        process = MemberProcess(self, self._clock, name, self._wire.host_of(name), machine, random, options)
        self.processes[name] = process
        topics = tuple(self._topics.counts) if options.topics is None else tuple(options.topics)
        process.deliver(events.Subscribe(topics, options.regex))
        if options.commit_ms is not None:
            self._clock.after(random.randint(1, options.commit_ms), self._commit_regularly, process)

    def _start_classic(self, name: str, origin: MemberOptions, random: Random) -> None:
        options = classic_options(origin, GROUP, self._config)
        client = ClassicClient(machine_of(options, name), self._topics)
        host = self._wire.host_of(name)
        process = ClassicProcess(self, self._clock, self._applications, name, host, client, random, options, origin)
        self.processes[name] = self._classic[name] = process
        wait = 2 * max(options.rebalance_timeout_ms, options.session_timeout_ms) + 10_000
        wait += self._config.new_member_join_timeout_ms
        self._invariants.patience_ms = max(self._invariants.patience_ms, wait)
        self._applications.revision += 1
        self._applications.learn_topics(process)
        topics = self._topics.counts if options.topics is None else options.topics
        process.deliver(classic_events.Subscribe(tuple(topics)))
        if options.commit_ms is not None:
            self._clock.after(random.randint(1, options.commit_ms), self._applications.commit_regularly, process)

    def restart(self, name: str, assignors: Sequence[str] | None = None) -> None:
        """Close a member, a static one for a while, and start it again when that is done.

        :param assignors: with which it changes its protocol: a member of KIP-848 becomes a classic one, and the reverse
        """
        process = self._working(name)
        if process is not None:
            changes = dict(vars(process.origin))
            if assignors is not None:
                changes["assignors"] = assignors if changes["assignors"] is None else None
            self.leave(name, for_a_while=True)
            self._clock.after(1, self._start_after, process, changes)

    def _start_after(self, process: AnyProcess, changes: Mapping[str, Any]) -> None:
        if self.processes.get(process.name) is not process:
            return
        if process.is_working:
            self._clock.after(10, self._start_after, process, changes)
        else:
            self.member(process.name, changes)

    def _kill(self, process: AnyProcess) -> None:
        if isinstance(process, ClassicProcess):
            self._applications.kill(process)
        else:
            super()._kill(process)

    def leave(self, name: str, for_a_while: bool = False) -> None:
        """Close a member; a static one perhaps for a while, which a classic one does without a word."""
        process = self._working(name)
        if process is None:
            return
        self._clock.record(name, "leaves", for_a_while)
        if isinstance(process, ClassicProcess):
            self._applications.leave(process, None)
        else:
            process.deliver(events.Leave(for_a_while))

    def subscribe(self, name: str, topics: Sequence[str], regex: str = "") -> None:
        """Change what a member consumes; a classic one has no patterns."""
        process = self._working(name)
        if process is None:
            return
        self._clock.record(name, "subscribes", (topics, regex))
        if isinstance(process, ClassicProcess):
            process.deliver(classic_events.Subscribe(tuple(topics)))
        else:
            process.deliver(events.Subscribe(tuple(topics), regex))

    # ---- what members want

    def carry_out(self, process: MemberProcess, effect: Any) -> None:
        """Do what a member wants."""
        if isinstance(effect, Send):
            peer: Any = process
            self._wire.send(peer, effect)
            return
        if isinstance(effect, Close):
            self._hang_up(process)
            return
        self._clock.record(process.name, type(effect).__name__.lower(), effect)
        if isinstance(effect, events.Revoking):
            wait = min(process.options.release_ms * len(effect.partitions), self._longest_release_ms)
            self._clock.after(wait, process.deliver, events.Released(effect.ticket))
        elif isinstance(effect, events.Left):
            self._hang_up(process)

    def check_clients(self) -> None:
        """Check the laws that depend on what clients own."""
        self._invariants.check_clients()

    def _commit_regularly(self, process: MemberProcess) -> None:
        commit_ms = process.options.commit_ms
        if not process.is_working or commit_ms is None:
            return
        self._clock.after(commit_ms, self._commit_regularly, process)
        member = process.member
        if member.owned and member.epoch > 0 and not process.paused_until:
            offsets = {}
            for topic_id, number in sorted(member.owned):
                offsets[self._name_of(topic_id), number] = self._applications.fresh_offset()
            process.deliver(events.Commit(offsets))

    def stray_commit(self, name: str, topic: str, number: int, ahead: int) -> None:
        """Commit an offset of any partition, its own or not, as a member in an epoch that differs from its own."""
        process = self._working(name)
        if process is None or process.client.epoch <= 0 or not self._coordinator.is_up:
            return
        part = m.OffsetCommitRequestPartition(
            partition_index=number, committed_offset=self._applications.fresh_offset(), committed_metadata=""
        )
        request = m.OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=max(process.client.epoch + ahead, 1),
            member_id=process.client.member_id,
            group_instance_id=process.origin.instance_id,
            topics=[m.OffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        self._clock.record(name, "strays", request)
        self._wire.probe(request, 9, name)

    def _name_of(self, topic_id: uuid.UUID) -> str:
        name = self._topics.name_of(topic_id)
        assert name is not None, "topics are never deleted here"
        return name

    # ---- the network, the topics and the coordinator

    def meddle(
        self,
        action: Literal["delay", "drop", "duplicate", "error", "disconnect"],
        on: Literal["request", "response"],
        count: int,
        every: int,
        delay_ms: int = 0,
        error: str | None = None,
    ) -> None:
        """Do something to some heartbeats of KIP-848 or their answers; see `Fault`."""
        fault = Fault(
            api="ConsumerGroupHeartbeat", action=action, on=on, count=count, every=every, delay_ms=delay_ms, error=error
        )
        self._clock.record("cluster", "meddles", fault)
        if self._wire.faults is None:
            self._wire.faults = Faults()
        self._wire.faults.add(fault)

    def add_partitions(self, topic: str, count: int) -> None:
        """Add partitions to a topic, or create it."""
        self._topics.counts[topic] = self._topics.counts.get(topic, 0) + count
        self._clock.record("cluster", "has topics", dict(self._topics.counts))
        self._applications.revision += 1
        for process in self._classic.values():
            if process.is_alive:
                self._clock.after(process.random.randint(0, 2_000), self._applications.learn_topics, process)

    def crash_coordinator(self, down_ms: int = 1_000, load_ms: int = 100, writes: int = 0) -> None:
        """Let the coordinator lose power; see `VirtualCoordinator.crash`."""
        self._coordinator.crash(down_ms, load_ms, writes)

    def move_coordinator(self, load_ms: int = 100, stops: bool = False) -> None:
        """Let the other broker coordinate all groups; see `Cluster.move_coordinator`."""
        self._coordinator.move(load_ms)
        if stops:
            self._wire.broker_stopped()

    def fail_disk(self, repaired_after_ms: int = 1_000, writes: int = 0) -> None:
        """Let one operation of the coordinator's disk fail after `writes` others; it resigns, and loads again."""
        self._coordinator.disk.fails_in = writes
        self._coordinator.disk.repaired_after_ms = repaired_after_ms

    def heal(self) -> None:
        """End all faults and pauses, and let applications give up what they were to give up. A coordinator that is down
        comes back in time."""
        self._clock.record("cluster", "heals")
        self._wire.loss = Loss()
        self._wire.faults = None
        self._coordinator.disk.power_left = self._coordinator.disk.fails_in = None
        for process in self.processes.values():
            process.cut_until = 0
            process.resume()
            if isinstance(process, MemberProcess):
                process.deliver(events.Released(process.member.ticket))
        self._longest_release_ms = _HEALED_RELEASE_MS

    def at(self, ms: int, action: Callable[[], None]) -> None:
        """Plan an action for so many ms after the start."""
        self._clock.after(max(ms - self.now, 0), partial(action))
