"""The world of KIP-848: a coordinator, and members of it and of the classic protocol; and random runs of them.

    with ConsumerGroupCluster(seed=7, topics={"orders": 12}, members=3) as sim:
        sim.run_until(sim.is_settled)
        sim.crash("m2")
        sim.run(60_000)
        print(sim.owners())

The coordinator is the real one (machine, runtime, store) on a disk that fails, as in `worlds.group`, and requests and
responses go through the codec. The members are `ConsumerGroupMember`. Those with assignors of their own are the
consumers of `worlds.group`: they join by JoinGroup and SyncGroup whatever the group is. It becomes one of KIP-848 when
the first consumer of that joins, and classic again when the last one has gone.

Laws, besides those of every world:

* After every event the laws of `consumer_group_laws` are checked; a call that lets time pass raises `ViolationError` if
  one is broken.
* To these laws a classic member is a client like any other. Its epoch is the generation of its last assignment: that of
  a JoinGroup which no SyncGroup has followed may be given out again after a crash.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Unpack

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.consumer import kip848_member as events
from kcoord_wire.consumer import member_events as classic_events
from kcoord_wire.consumer.classic_member import MemberMachine
from kcoord_wire.consumer.kip848_member import ConsumerGroupMember, MemberSettings, Partition
from kcoord_wire.consumer.member_events import SendRequest
from kcoord_wire.consumer.requests import commit_of
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.groups import BaseGroup, TopicNames
from kcoord_wire.kernel.machines import Close
from kcoord_wire.kernel.virtual.clock import NEVER, VirtualClock
from kcoord_wire.kernel.virtual.scripts import (
    Do,
    Script,
    between,
    draw_actions,
    losses,
    one_of,
    process_name,
    row,
    spread,
)
from kcoord_wire.worlds.consumer_groups.consumer_group_laws import (
    Client,
    ConsumerGroupInvariants,
    check_client_step,
    has_converged,
)
from kcoord_wire.worlds.group import members
from kcoord_wire.worlds.group.members import ConsumerProcess, MemberOptions, Members
from kcoord_wire.worlds.group.wire import VirtualTopics
from kcoord_wire.worlds.group.world import CoordinatorWorld, GroupDraw, Wiring, draw_fault, draw_moves

SETTLE_MS: Final = 120_000
"""A group has converged within this after the last fault: sessions and rebalance timeouts of 6 to 15 s, one after the
other, and the refresh of regular expressions."""

CLASSIC_SETTLE_MS: Final = 300_000
"""The same of a group with classic members, in which a rebalance waits for those that are gone; see `group.world`."""

STUCK_MS: Final = 600_000
"""An application that gives a partition up after this never does so within a rebalance timeout."""

SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 1_000

GROUP: Final = "group"
"""The id of the group."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "group": GROUP,
    "assignors": None,
    "rebalance_timeout_ms": 60_000,
    "request_timeout_ms": 5_000,
    "commit_ms": 2_000,
}
_HEALED_RELEASE_MS: Final = 1_000  # what an application takes at most when nothing fails any more


@dataclass(frozen=True, slots=True)
class ClassicClient:
    """A classic member as the laws see clients; see `consumer_group_laws.Client`."""

    member: MemberMachine
    topics: TopicNames

    @property
    def member_id(self) -> str:
        """Its id; empty before the coordinator has given it one."""
        return self.member.member_id

    @property
    def epoch(self) -> int:
        """The generation of its last assignment; -1 outside of a generation."""
        return min(self.member.owned_generation, self.member.generation_id)

    @property
    def owned(self) -> frozenset[Partition]:
        """What it may use."""
        named = ((self.topics.id_of(partition.topic), partition.partition) for partition in self.member.owned)
        return frozenset(Partition(topic_id, number) for topic_id, number in named if topic_id is not None)

    @property
    def is_at_rest(self) -> bool:
        """Whether it has its assignment, and no reason to join again."""
        return self.member.is_at_rest


class ClassicProcess(members.MemberProcess):
    """A process of a classic member in the cluster of KIP-848.

    :ivar client: its member, as the laws see it
    """

    def __init__(
        self,
        cluster: ConsumerGroupCluster,
        clock: VirtualClock,
        applications: Members,
        name: str,
        host: str,
        client: ClassicClient,
        random: Random,
        options: MemberOptions,
    ) -> None:
        super().__init__(clock, applications, name, host, client.member, random, options)
        self.client = client
        self._cluster = cluster
        self._epoch = client.epoch

    def handled(self) -> None:
        """Check the laws that depend on what clients own."""
        super().handled()
        check_client_step(self._epoch, self.client)
        self._epoch = self.client.epoch
        self._cluster.invariants.check_clients()


class MemberProcess(ConsumerProcess):
    """A process of a member of KIP-848. It beats while its application is in a listener.

    :ivar member: the machine
    """

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
        super().__init__(
            clock, name, host, member, random, options, lambda partition: self.note("opened", frozenset({partition}))
        )
        self.member = member
        self._cluster = cluster
        self._epoch = member.epoch

    @property
    def client(self) -> ConsumerGroupMember:
        """Its member, as the laws see it."""
        return self.member

    @property
    def is_working(self) -> bool:
        """Whether it is alive, and its member has neither left nor failed."""
        return self.is_alive and not self.member.is_over

    def note(self, what: str, partitions: frozenset[TopicPartition]) -> None:
        """Record what its application does with partitions."""
        if self.is_working:
            self._clock.record(self.name, what, partitions)

    def carry_out(self, effect: Any) -> None:
        """Do what the member wants."""
        self._cluster.carry_out(self, effect)

    def handled(self) -> None:
        """Check the laws that depend on what clients own."""
        check_client_step(self._epoch, self.member)
        if self.is_working:
            self.given.check(self.name, self.member.owned)
        self._epoch = self.member.epoch
        self._cluster.invariants.check_clients()


AnyProcess = MemberProcess | ClassicProcess


class ConsumerGroupCluster(CoordinatorWorld[AnyProcess]):
    """A coordinator and the members of one group, on a virtual clock.

    :param seed: decides everything that is random
    :param topics: name to number of partitions
    :param members: how many start at once: m1, m2 ...
    :param options: fields of `MemberOptions` of these, and the defaults of `member`
    :param wiring: see `CoordinatorWorld`
    :ivar processes: by name; a member that starts again has a new process, and another member id
    """

    settles = "EventuallyConverges"
    hold_ms = 5_000  # some heartbeats
    invariants: ConsumerGroupInvariants

    def __init__(
        self,
        seed: int = 0,
        *,
        topics: Mapping[str, int],
        members: int = 0,
        options: Mapping[str, Any] | None = None,
        **wiring: Unpack[Wiring],
    ) -> None:
        known = VirtualTopics(topics)
        super().__init__(seed, known, ConsumerGroupInvariants(known, self._clients), **wiring)
        self._options = {**_DEFAULTS, **(options or {})}
        self._classic: dict[str, ClassicProcess] = {}  # those among the processes
        self._members = Members(self._clock, self._topics, self._classic, self.invariants, self.network)
        self._incarnations = 0
        self._longest_release_ms = NEVER
        for number in range(1, members + 1):
            self.member(f"m{number}")

    # ---- what is seen

    def _clients(self) -> Iterator[Client]:
        return (process.client for process in self.working())

    def owners(self) -> dict[Partition, str]:
        """Return which process owns which partition, as the members see it."""
        return {partition: process.name for process in self.working() for partition in process.client.owned}

    @property
    def group(self) -> BaseGroup | None:
        """The group, of either protocol; None if there is none, or the coordinator is down."""
        machine = self._coordinator.machine
        return None if machine is None else machine.groups.get(GROUP)

    def is_settled(self) -> bool:
        """Return whether every partition has one owner and all members are in one epoch or generation."""
        group = self.group
        clients = list(self._clients())
        if isinstance(group, ConsumerGroup):
            return has_converged(group, clients, self._topics)
        if any(isinstance(process, MemberProcess) for process in self.working()):
            return False
        return not clients or (group is not None and self._members.is_settled())

    def settle_within(self) -> int:
        """Return within which time a group converges after the last fault, in ms."""
        is_classic = any(isinstance(process, ClassicProcess) for process in self.working())
        return CLASSIC_SETTLE_MS if is_classic else SETTLE_MS

    def unsettled(self) -> object:
        """Return the states of the members, and who owns what."""
        states = {process.name: str(process.member.state) for process in self.working()}
        return f"{states}, owners {self.owners()}"

    def needs_rebalance(self) -> bool:
        """Whether all members are classic and at rest, and static (see `Cluster.needs_rebalance`) or in a group of
        KIP-848: none of them leads there, and the coordinator looks for new partitions with a heartbeat of KIP-848
        alone, as in Kafka."""
        return all(
            isinstance(process, ClassicProcess) and process.client.is_at_rest for process in self.working()
        ) and (
            isinstance(self.group, ConsumerGroup)
            or any(process.options.instance_id is not None for process in self.working())
        )

    def force_rebalance(self) -> None:
        """Make a classic group rebalance: a member of KIP-848 joins it, and leaves again after a minute."""
        self.member("extra", {"topics": (), "regex": ".*"})
        self._clock.after(60_000, self.leave, "extra")

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
        process = MemberProcess(self, self._clock, name, self.network.host_of(name), machine, random, options)
        self.processes[name] = process
        topics = tuple(self._topics.counts) if options.topics is None else tuple(options.topics)
        process.deliver(events.Subscribe(topics, options.regex))
        if options.commit_ms is not None:
            self._clock.after(random.randint(1, options.commit_ms), self._commit_regularly, process)

    def _start_classic(self, name: str, options: MemberOptions, random: Random) -> None:
        options = replace(
            options,
            session_timeout_ms=self.config.consumer_session_timeout_ms,
            heartbeat_interval_ms=self.config.consumer_heartbeat_interval_ms,
        )
        client = ClassicClient(
            MemberMachine(options.settings(name), options.offered(), ConsumerProtocol()), self._topics
        )
        host = self.network.host_of(name)
        process = ClassicProcess(self, self._clock, self._members, name, host, client, random, options)
        self.processes[name] = self._classic[name] = process
        self._members.begin(process, self.config.new_member_join_timeout_ms)

    def restart(self, name: str, assignors: Sequence[str] | None = None) -> None:
        """Close a member, a static one for a while, and start it again when that is done.

        :param assignors: with which it changes its protocol: a member of KIP-848 becomes a classic one, and the reverse
        """
        process = self._working(name)
        if process is not None:
            changes = dict(vars(process.options))
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
            self._members.kill(process)
        else:
            super()._kill(process)

    def leave(self, name: str, for_a_while: bool = False) -> None:
        """Close a member; a static one perhaps for a while, which a classic one does without a word."""
        process = self._working(name)
        if process is None:
            return
        self._clock.record(name, "leaves", for_a_while)
        if isinstance(process, ClassicProcess):
            self._members.leave(process, None)
        else:
            process.may_end = True
            process.deliver(events.Leave(for_a_while))

    def shut_down(self, name: str) -> int:
        """Let an application give up its partitions, then close its member; return how long that takes, in ms."""
        process = self.processes[name]
        if isinstance(process, ClassicProcess):
            return self._members.shut_down(process, None)
        self._clock.record(name, "shuts down", self._named(process.client.owned))
        process.opening.drop(self._named(process.client.owned))
        process.busy_until = max(process.busy_until, self._clock.time_ms)
        process.busy_until += process.options.release_ms * len(process.client.owned)
        self._clock.at(process.busy_until, self.leave, name)
        return process.busy_until - self._clock.time_ms

    def is_busy(self, name: str) -> bool:
        """Whether an application opens or closes partitions, or is about to."""
        return self.processes[name].is_busy

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
        if isinstance(effect, SendRequest):
            peer: Any = process
            self.network.send(peer, effect)
            return
        if isinstance(effect, Close):
            self.network.hang_up_all(process)
            return
        if isinstance(effect, events.Lost):
            lost = self._named(effect.partitions)
            process.given.gives_up(effect.partitions)
            self._clock.record(process.name, "lost", lost)
            process.opening.drop(lost)
            return
        self._clock.record(process.name, type(effect).__name__.lower(), effect)
        options = process.options
        if isinstance(effect, events.Assigned):
            process.given.gets(effect.partitions)
        if isinstance(effect, events.Revoking):
            process.given.gives_up(effect.partitions)
            named, ms = self._named(effect.partitions), options.release_ms * len(effect.partitions)
            process.opening.drop(named)
            process.listen(
                min(ms, self._longest_release_ms),
                self._enter,
                "closes",
                "closed",
                named,
                events.Released(effect.ticket),
            )
        elif isinstance(effect, events.Assigned) and options.restores_aside:
            process.opening.add(self._named(effect.partitions))
        elif isinstance(effect, events.Assigned):
            named = self._named(effect.partitions)
            process.listen(options.opening_ms(named), self._enter, "opens", "opened", named, None)
        elif isinstance(effect, events.Left):
            process.check_end()
            self.network.hang_up_all(process)

    def _enter(self, process: MemberProcess, until: int, begins: str, *more: Any) -> None:
        """A listener begins."""
        process.note(begins, more[1])
        self._clock.at(until, self._return, process, *more)

    def _return(
        self, process: MemberProcess, ends: str, named: frozenset[TopicPartition], event: events.Released | None
    ) -> None:
        """A listener returns."""
        process.listeners -= 1
        process.note(ends, named)
        if event is not None:
            process.deliver(event)

    def _commit_regularly(self, process: MemberProcess) -> None:
        commit_ms = process.options.commit_ms
        if not process.is_working or commit_ms is None:
            return
        self._clock.after(commit_ms, self._commit_regularly, process)
        member = process.member
        if member.owned and member.epoch > 0 and not process.paused_until:
            offsets = {}
            for topic_id, number in sorted(member.owned):
                offsets[self._name_of(topic_id), number] = self._members.fresh_offset()
            process.deliver(events.Commit(offsets))

    def commit_stale(self, name: str, topic: str, number: int, ahead: int) -> None:
        """Commit an offset of any partition, its own or not, as a member in an epoch that differs from its own."""
        process = self._working(name)
        if process is None or process.client.epoch <= 0 or not self._coordinator.is_up:
            return
        request = commit_of(
            GROUP,
            max(process.client.epoch + ahead, 1),
            process.client.member_id,
            process.options.instance_id,
            [((topic, number), self._members.fresh_offset())],
            has_epochs=True,
        )
        self.network.probe(request, 9, f"late {name}")

    def _name_of(self, topic_id: uuid.UUID) -> str:
        name = self._topics.name_of(topic_id)
        assert name is not None, "topics are never deleted here"
        return name

    def _named(self, partitions: Iterable[Partition]) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(self._name_of(topic_id), number) for topic_id, number in partitions)

    def _end_faults(self) -> None:
        """Also: let applications give up what they were to give up."""
        super()._end_faults()
        for process in self.processes.values():
            if isinstance(process, MemberProcess):
                process.busy_until = min(process.busy_until, self._clock.time_ms)
                process.deliver(events.Released(process.member.ticket))
        self._longest_release_ms = _HEALED_RELEASE_MS


# ---- random runs

_ASSIGNORS: Final = (("range",), ("cooperative-sticky",), ("cooperative-sticky", "range"))


class _Draw(GroupDraw):
    """Draws of a script: first what all its actions have in common."""

    def __init__(self, random: Random) -> None:
        super().__init__(random, [f"m{number}" for number in range(1, random.randint(2, 6) + 1)])
        self.topics = {f"t{number}": random.randint(1, 6) for number in range(1, random.randint(1, 3) + 1)}
        self.has_static = random.random() < 0.4
        self.has_patterns = random.random() < 0.3
        self.is_lazy = random.random() < 0.3
        self.assignors = random.choice(_ASSIGNORS) if random.random() < 0.5 else None

    def pattern(self) -> str:
        """Draw a subscription by pattern; empty for none."""
        return self.random.choice(["", "t[12]", "t.*"]) if self.has_patterns else ""

    def options(self, name: str) -> dict[str, Any]:
        """Draw the options of a member."""
        random = self.random
        options: dict[str, Any] = {
            "topics": random.choice([tuple(self.topics), self.some_topics()]),
            "regex": self.pattern(),
            "assignor": random.choice([None, None, "uniform", "range"]),
            "rebalance_timeout_ms": random.choice([3_000, 10_000]),
            "request_timeout_ms": 2_000,
            "release_ms": random.choice([0, 10, 300, 1_500, STUCK_MS]) if self.is_lazy else random.choice([0, 0, 10]),
            "commit_ms": random.choice([500, 2_000, None]),
        }
        if self.has_static and random.random() < 0.6:
            options["instance_id"] = f"of-{name}"
        if self.assignors is not None and random.random() < 0.5:
            options |= {"assignors": self.assignors, "release_ms": random.choice([0, 0, 10, 300])}
        return options

    def config(self) -> GroupConfig:
        """Draw the coordinator's settings."""
        random = self.random
        config: dict[str, Any] = {
            "consumer_session_timeout_ms": SESSION_MS,
            "consumer_heartbeat_interval_ms": random.choice([300, HEARTBEAT_MS]),
            "consumer_assignment_interval_ms": random.choice([0, 0, 1_000]),
        }
        if self.assignors is not None:
            config["initial_rebalance_delay_ms"] = random.choice([0, 500])
            config["new_member_join_timeout_ms"] = 15_000
            config["consumer_migration_policy"] = random.choice(["bidirectional", "bidirectional", "upgrade"])
        return GroupConfig(**config)


def _member(draw: _Draw) -> tuple[str, dict[str, Any]]:
    name = process_name(draw)
    return name, draw.options(name)


def _migration(draw: _Draw) -> Sequence[str] | None:
    """Draw the assignors with which a member changes its protocol; None if it does not."""
    return draw.assignors if draw.assignors is not None and draw.random.random() < 0.5 else None


def _partition(draw: _Draw) -> tuple[str, int]:
    topic = draw.topic()
    return topic, draw.random.randrange(draw.topics[topic])


_ms: Final = one_of(200, 1_000, 3_000, 5_000, 8_000, 15_000)
ROWS: Final = (
    row(23, "member", spread(_member)),
    row(8, "leave", process_name, one_of(False, True)),
    row(7, "restart", process_name, _migration),
    row(8, "crash", process_name),
    row(10, "pause", process_name, _ms),
    row(8, "partition", process_name, _ms),
    row(6, "lose", _ms, losses),
    row(7, "inject_fault", lambda draw: draw_fault(draw, ["ConsumerGroupHeartbeat"])),
    row(6, "crash_coordinator", one_of(0, 200, 3_000), one_of(0, 100, 1_500), one_of(0, 1, 2, 3, 5, 9)),
    row(3, "fail_disk", one_of(10, 2_000), between(0, 3)),
    row(8, "subscribe", process_name, GroupDraw.some_topics, _Draw.pattern),
    row(3, "add_partitions", GroupDraw.topic, between(1, 3)),
    row(3, "commit_stale", process_name, spread(_partition), one_of(-2, -1, 0, 1)),
)


def random_script(seed: int, actions: int = 40) -> Script[ConsumerGroupCluster]:
    """Return a run of one group with up to six members; the seed alone decides what happens in it.

    :param actions: at most so many, and at least half as many, besides the first joins
    """
    random = Random(f"{seed}/consumer groups")
    draw = _Draw(random)
    first = [Do(0, "member", each, draw.options(each)) for each in draw.names if random.random() < 0.7]
    haste_ms = random.choice([30, 300, 2_000])  # so that in some runs actions meet in the middle of a rebalance
    drawn = draw_actions(draw, ROWS, actions, haste_ms)
    segment_bytes = random.choice([1_000, 4_000, 65_536])
    options = {
        "topics": draw.topics,
        "config": draw.config(),
        "segment_bytes": segment_bytes,
        "min_compaction_bytes": 2 * segment_bytes,
    }
    return Script(
        ConsumerGroupCluster, seed, options, [*first, *drawn, *draw_moves(seed, drawn[-1].at if drawn else 0)]
    )
