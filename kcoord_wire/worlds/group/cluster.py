"""A coordinator, its disk, its clients and the network between them, in one thread on a virtual clock.

    with Cluster(seed=7, topics={"orders": 12}, members=3) as sim:
        sim.run_until(sim.is_settled)
        sim.crash("m2")
        sim.run(60_000)
        print(sim.rebalances[-1].trigger, sim.owners())

The coordinator is the real one (machine, runtime, store), and so are the bytes: every request and response goes through
the codec. Members are `consumer.machine.MemberMachine`. Time, the network and the disk are virtual.

Laws:

* The seed decides everything: the same calls in the same order give the same trace, event by event.
* A step is one event delivered to a machine. `Invariants` checks each; a broken law raises `ViolationError` from the
  call that let time pass.
* A coordinator that crashes loses its memory and what its disk had not synced; the disk may be cut off inside a write.

The parts are made in this order, and each knows only those before it: clock, topics, invariants, coordinator, wire,
members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from kcoord_wire.assignors import ASSIGNORS, Assignor, TopicPartition
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.consumer.events import Offer, Polled, Rejoin, Stalled, Subscribe
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import RebalanceAccount
from kcoord_wire.coordinator.core.groups import Group, State
from kcoord_wire.coordinator.fault_injection import Fault, Faults
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.kernel.virtual.network import Loss, NetworkCluster
from kcoord_wire.worlds.group.client_bugs import assignors_with, machine_with
from kcoord_wire.worlds.group.coordinator import VirtualCoordinator
from kcoord_wire.worlds.group.invariants import Invariants
from kcoord_wire.worlds.group.members import MemberOptions, MemberProcess, Members, check_known
from kcoord_wire.worlds.group.ownership import Idle
from kcoord_wire.worlds.group.topics import VirtualTopics
from kcoord_wire.worlds.group.wire import Tap, Wire

_EMBEDDED: Final = ConsumerProtocol()
_DEFAULTS: Final = MemberOptions()
_DEFAULT_TOPICS: Final = {"topic": 4}


class Cluster(NetworkCluster[MemberProcess, Wire]):
    """A coordinator and its consumers on a virtual clock.

    Time passes only in `run`, `run_until`, `ask` and `answer`. Everything else happens at the present moment: members
    join and leave (`member`, `restart`, `leave`), things fail (`crash`, `pause`, `partition`, `lose`, `meddle`,
    `crash_coordinator`, `fail_disk`), and the result can be looked at (`owners`, `rebalances`, `state`, `trace`).
    After every event the laws of `Invariants` are checked; a call that lets time pass raises `ViolationError` if one
    is broken. All times are virtual milliseconds.

    :param seed: decides everything that is random
    :param topics: name to number of partitions; None is one topic ``topic`` of 4
    :param members: their names, or how many (m1, m2 ...); they have the defaults of `MemberOptions`
    :param config: the coordinator's settings
    :param faults: injected into requests and responses, as on the real server
    :param latency_ms: least and most that a message takes
    :param sync_ms: least and most that a disk write takes
    :param segment_bytes: of the coordinator's log, see `Store`; small, so that a short run has several segments
    :param min_compaction_bytes: of the coordinator's log, see `Store`
    :param tap: gets the frames on the wire
    :param may_break_one_owner: keep what breaks the law ``one owner`` in `Invariants.broken` instead of raising it:
        members with bugs break it
    :ivar seed: as given
    :ivar processes: by name; a restarted consumer has a new process
    :ivar config: the coordinator's settings
    :ivar invariants: the checks
    :raises ValueError: a topic without partitions
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
        may_break_one_owner: bool = False,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.config = config or GroupConfig()
        self.invariants = Invariants(_EMBEDDED.decode_assignment, may_break_one_owner=may_break_one_owner)
        self._topics = VirtualTopics(_DEFAULT_TOPICS if topics is None else topics)
        self._coordinator = VirtualCoordinator(
            self._clock,
            Random(f"{seed}/coordinator"),
            self.config,
            self._topics,
            self.invariants,
            sync_ms=sync_ms,
            store_options={"segment_bytes": segment_bytes, "min_compaction_bytes": min_compaction_bytes},
        )
        self._wire = Wire(
            self._clock, self._coordinator, self._topics, self.processes, latency_ms=latency_ms, faults=faults, tap=tap
        )
        self._members = Members(self._clock, self._topics, self.processes, self.invariants, self._wire)
        for name in [f"m{number}" for number in range(1, members + 1)] if isinstance(members, int) else members:
            self.member(name)

    # ---- what has happened

    @property
    def rebalances(self) -> Sequence[RebalanceAccount]:
        """The coordinator's accounts of the rebalances that have ended, oldest first."""
        return self._coordinator.rebalances

    @property
    def begun(self) -> Sequence[RebalanceAccount]:
        """The coordinator's accounts of all rebalances that have begun, as they stand, oldest first.

        A rebalance that a crash of the coordinator interrupts never ends.
        """
        return self._coordinator.begun

    @property
    def disk(self) -> VirtualDisk:
        """The coordinator's disk, with the segments of its log."""
        return self._coordinator.disk

    def run_until(self, holds: Callable[[], bool], within_ms: int = 600_000) -> int:
        """Let time pass until `holds` returns True; return the virtual ms that took.

        :raises TimeoutError: `holds` has not returned True within `within_ms`
        :raises ViolationError: a law was broken
        """
        return self._clock.run_until(holds, within_ms)

    def at(self, ms: int, action: Callable[[], None]) -> None:
        """Plan an action for so many ms after the start; one for the past happens as soon as time passes."""
        self._clock.after(max(ms - self.now, 0), action)

    # ---- members

    def member(self, name: str, options: MemberOptions = _DEFAULTS, **changes: Any) -> MemberProcess:
        """Start a consumer.

        :param options: how it is set up
        :param changes: fields of `MemberOptions` that differ from `options`
        :raises ValueError: a process of that name is running; no such assignor, client or bug
        :raises TypeError: topics, assignors or bugs are one string; no such field
        """
        options = replace(options, **changes)
        former = self.processes.get(name)
        if former is not None and former.is_working:
            raise ValueError(f"a process called {name!r} is running")
        random = Random(f"{self.seed}/{name}") if former is None else former.random
        member = machine_with(options.bugs)(
            options.settings(name), _offered(options), ConsumerProtocol(options.subscription_version)
        )
        process = MemberProcess(self._clock, self._members, name, self._wire.host_of(name), member, random, options)
        self.processes[name] = process
        # Two rebalances, a join that waits for a member that was killed while it was new, and some latency.
        wait = max(options.rebalance_timeout_ms, options.session_timeout_ms) * 2
        wait += self.config.new_member_join_timeout_ms + 10_000
        self.invariants.patience_ms = max(self.invariants.patience_ms, wait)
        self._members.revision += 1
        self._clock.record(name, "starts", replace(options))
        self._members.learn_topics(process)
        process.deliver(Subscribe(tuple(self._topics.counts if options.topics is None else options.topics)))
        if options.commit_ms is not None:
            self._clock.after(random.randint(1, options.commit_ms), self._members.commit_regularly, process)
        return process

    def _process(self, name: str) -> MemberProcess:
        process = self.processes.get(name)
        if process is None:
            raise KeyError(f"no process is called {name!r}")
        return process

    def restart(self, name: str, **changes: Any) -> MemberProcess:
        """Kill a consumer's process and start it again with the same options.

        :param changes: fields of `MemberOptions` that differ from before
        """
        process = self._process(name)
        if process.is_working:
            self.crash(name)
        return self.member(name, process.options, **changes)

    def _working(self, name: str) -> MemberProcess | None:
        process = self._process(name)
        return process if process.is_alive else None

    def _kill(self, process: MemberProcess) -> None:
        self._clock.record(process.name, "crashes")
        self._members.kill(process)

    def leave(self, name: str, reason: str | None = None) -> None:
        """Close a consumer at once, which leaves its group unless it is static."""
        self._members.leave(self._process(name), reason)

    def shut_down(self, name: str, reason: str | None = None) -> int:
        """Let a consumer's application give up its partitions (`MemberOptions.release_ms` each), then `leave`.

        :returns: how long that takes
        """
        process = self._process(name)
        return self._members.shut_down(process, reason) if process.is_working else 0

    def subscribe(self, name: str, topics: Sequence[str]) -> None:
        """Change a consumer's subscription."""
        process = self._process(name)
        if process.is_alive:
            self._clock.record(name, "subscribes", tuple(topics))
            process.options.topics = tuple(topics)
            process.deliver(Subscribe(tuple(topics)))

    def offer(self, name: str, assignors: Sequence[str]) -> None:
        """Change the assignors that a consumer offers, most preferred first, without a restart.

        :raises ValueError: no such assignor
        """
        process = self._process(name)
        check_known("assignor", assignors, ASSIGNORS)
        if process.is_alive:
            self._clock.record(name, "offers", tuple(assignors))
            process.options.assignors = tuple(assignors)
            process.deliver(Offer(_offered(process.options)))

    def rejoin(self, name: str, reason: str | None = None) -> None:
        """Let a consumer's application enforce a rebalance (KIP-568)."""
        process = self._process(name)
        if process.is_alive:
            self._clock.record(name, "asks", reason)
            process.deliver(Rejoin(reason))

    def stall(self, name: str, ms: int) -> None:
        """Let a consumer's application stop polling for so long.

        After its rebalance timeout the consumer leaves; it rejoins when the application polls again.
        """
        process = self._process(name)
        if process.is_alive:
            self._clock.record(name, "stalls", ms)
            process.deliver(Stalled())
            self._clock.after(ms, self._poll, process)

    def _poll(self, process: MemberProcess) -> None:
        self._clock.record(process.name, "polls")
        process.deliver(Polled())

    # ---- the network and the coordinator

    def meddle(self, fault: Fault) -> None:
        """Inject one more fault into requests or responses."""
        self._clock.record("cluster", "meddles", fault)
        if self._wire.faults is None:
            self._wire.faults = Faults()
        self._wire.faults.add(fault)

    def add_partitions(self, topic: str, count: int, refresh_ms: int = 2_000) -> None:
        """Add partitions to a topic, or create it; members learn about it within `refresh_ms`."""
        self._topics.counts[topic] = self._topics.counts.get(topic, 0) + count
        self._members.revision += 1
        self._clock.record("cluster", "has topics", dict(self._topics.counts))
        for process in self.processes.values():
            if process.is_alive:
                self._clock.after(process.random.randint(0, refresh_ms), self._members.learn_topics, process)

    def crash_coordinator(
        self, down_ms: int = 1_000, *, load_ms: int = 100, writes: int = 0, config: GroupConfig | None = None
    ) -> None:
        """Let the coordinator lose power.

        :param down_ms: how long connections are refused
        :param load_ms: how long it answers COORDINATOR_LOAD_IN_PROGRESS after that
        :param writes: power is lost during the n-th disk operation from now; 0 for at once
        :param config: settings that it comes back with
        """
        if config is not None:
            self.config = config
            self._coordinator.config = config
        self._coordinator.crash(down_ms, load_ms, writes)

    def move_coordinator(self, *, load_ms: int = 100, stops: bool = False) -> None:
        """Let the other broker coordinate all groups; members find it by themselves.

        :param load_ms: how long it answers COORDINATOR_LOAD_IN_PROGRESS
        :param stops: whether the broker that did so until now stops, which resets its connections
        """
        self._coordinator.move(load_ms)
        if stops:
            self._wire.broker_stopped()

    def fail_disk(self, repaired_after_ms: int = 1_000, *, writes: int = 0) -> None:
        """Let one operation of the coordinator's disk fail; the coordinator resigns.

        :param repaired_after_ms: how long after that it reads its log again
        :param writes: how many operations succeed before that
        """
        self._coordinator.disk.fails_in = writes
        self._coordinator.disk.repaired_after_ms = repaired_after_ms

    def heal(self) -> None:
        """End all faults of the network and the disk, and all pauses. A coordinator that is down comes back in time."""
        self._clock.record("cluster", "heals")
        self._wire.loss = Loss()
        self._coordinator.disk.power_left = self._coordinator.disk.fails_in = None
        self._wire.faults = None
        for process in self.processes.values():
            process.cut_until = 0
            process.resume()

    def nudge(self) -> None:
        """Make every group rebalance: one more member joins each, and leaves again after a minute.

        A static member that restarts is answered without a rebalance (KIP-345), and if it leads, it assigns nothing
        (KIP-814; before JoinGroup 9 it cannot even know). So other topics in its new subscription, or partitions that
        were added while the leader was away, have no owner until something else makes the group rebalance.
        """
        groups = {process.options.group: process for process in self.processes.values() if process.is_working}
        for group, process in groups.items():
            name = f"nudge-{group}"
            self.member(name, process.options, instance_id=None)
            self.at(self.now + 60_000, partial(self.leave, name))

    def rests_on_static_members(self) -> bool:
        """Whether all members are at rest and some of them are static, so that `nudge` may be needed."""
        members = [process.member for process in self.processes.values() if process.is_working]
        return all(member.is_at_rest for member in members) and any(
            member.settings.group_instance_id is not None for member in members
        )

    # ---- requests of the user

    def send(self, message: Any, version: int, *, client_id: str = "probe") -> int:
        """Send a request past all faults and without latency; return a number for `answer`.

        :raises ConnectionRefusedError: the coordinator is down
        """
        if not self._coordinator.is_up:
            raise ConnectionRefusedError("the coordinator is down")
        return self._wire.probe(message, version, client_id)

    def answer(self, sent: int, within_ms: int = 600_000) -> Any:
        """Let time pass until a request of `send` is answered; return the response.

        :raises TimeoutError: it is not answered within `within_ms`
        :raises ConnectionResetError: the coordinator crashed first
        """
        self.run_until(lambda: sent in self._wire.answers, within_ms)
        answer = self._wire.answers.pop(sent)
        if isinstance(answer, ConnectionResetError):
            raise answer
        return answer

    def ask(self, message: Any, version: int, *, client_id: str = "probe", within_ms: int = 600_000) -> Any:
        """Send a request past all faults, and let time pass until it is answered; see `send` and `answer`."""
        return self.answer(self.send(message, version, client_id=client_id), within_ms)

    # ---- what the user sees

    def owners(self) -> dict[TopicPartition, str]:
        """Return which live process holds which partition."""
        return self._members.owners()

    def is_busy(self, name: str) -> bool:
        """Whether a consumer's application opens or closes partitions, is about to, or does not know where to begin."""
        process = self._process(name)
        is_waiting = process.listeners > 0 or bool(process.opening) or not process.member.has_offsets
        return process.is_working and is_waiting

    def idle_ms(self) -> Idle:
        """Return how long partitions had no holder, summed over the partitions, since each first had one."""
        return self._members.idle_ms()

    @property
    def is_up(self) -> bool:
        """Whether the coordinator takes connections."""
        return self._coordinator.is_up

    @property
    def topics(self) -> Mapping[str, int]:
        """The topics, with their numbers of partitions."""
        return self._topics.counts

    def _group(self, group: str) -> Group | None:
        machine = self._coordinator.machine
        found = None if machine is None else machine.groups.get(group)
        return found if isinstance(found, Group) else None

    def state(self, group: str = "group") -> State | None:
        """Return the state of a group; None if there is no such group, or the coordinator is down."""
        known = self._group(group)
        return None if known is None else known.state

    def leader(self, group: str = "group") -> MemberProcess | None:
        """Return the working process that leads a group, if there is one."""
        known = self._group(group)
        if known is None or known.leader_id is None:
            return None
        working = (process for process in self.processes.values() if process.is_working)
        return next((process for process in working if process.member.member_id == known.leader_id), None)

    def fresh_offset(self) -> int:
        """Return an offset that was not committed before."""
        return self._members.fresh_offset()

    def is_settled(self) -> bool:
        """Whether, in every group, all working members are in one generation and hold each partition exactly once."""
        return self._members.is_settled()


def _offered(options: MemberOptions) -> list[Assignor]:
    """Return the assignors of a member, with what its bugs do to them."""
    return assignors_with(options.bugs, (ASSIGNORS[name] for name in options.assignors))
