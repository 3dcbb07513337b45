"""A coordinator and its members under a variant of the proposal, on a virtual clock.

    with ProposalCluster("single_assignor", seed=7, topics={"orders": 12}, members=3) as sim:
        sim.run_until(sim.is_settled)
        sim.crash_coordinator()
        sim.run(60_000)
        print(sim.owners(), sim.to_members)

Laws, checked after every event that could break them; a broken one raises `ViolationError`:

* ``one owner``: no partition is held by two members of one generation, nor by two members that the coordinator counts
  among the group.
* The seed decides everything: the same calls in the same order give the same trace.

An action that makes no sense (a crash of a process that does not run) does nothing, so that scripts can be reduced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any, Final

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.kernel.virtual.network import Loss, NetworkCluster
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.proposal import events
from kcoord_wire.worlds.proposal.all_members import topics_of
from kcoord_wire.worlds.proposal.coordinator import Coordinator, Phase, boot_of
from kcoord_wire.worlds.proposal.embedded import MemberCodec
from kcoord_wire.worlds.proposal.events import Subscription
from kcoord_wire.worlds.proposal.member import Member
from kcoord_wire.worlds.proposal.processes import CoordinatorProcess, MemberOptions, MemberProcess
from kcoord_wire.worlds.proposal.variants import VARIANTS
from kcoord_wire.worlds.proposal.wire import Broker, Wire

_FETCH_MS: Final = (1, 20)  # that Metadata takes
_DEFAULTS: Final = MemberOptions()
_COORDINATOR_DEFAULTS: Final = events.CoordinatorSettings()


class ProposalCluster(NetworkCluster[MemberProcess, Wire]):
    """A group under a variant of the proposal.

    Time passes only in `run` and `run_until`; all else happens at the present moment. Times are virtual milliseconds.

    :param variant: a key of `variants.VARIANTS`
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
    :ivar processes: by name; a restarted member has a new process
    :ivar saved: what is on the coordinator's disk
    """

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
        super().__init__()
        self.seed = seed
        self.is_persistent = is_persistent
        self.write_ms = write_ms
        self.topics = dict(topics)
        self.saved: events.Save | None = None
        self._variant = VARIANTS[variant]
        self._options = options
        self._settings = settings
        self._codec = MemberCodec(compresses=compresses)
        self._broker = Broker()
        self._wire = Wire(
            self._clock, self._broker, self._variant.family, latency_ms, compresses_joins=compresses_joins
        )
        self._holders: dict[TopicPartition, set[MemberProcess]] = {}
        self._views: dict[str, Mapping[str, int]] = {}  # of members whose broker is behind
        self._start()
        for number in range(1, members + 1):
            self.member(f"m{number}")

    # ---- what has happened

    @property
    def to_coordinator(self) -> Counter[str]:
        """Bytes that have arrived at the coordinator, by message; grows."""
        return self._wire.to_coordinator

    @property
    def to_members(self) -> Counter[str]:
        """Bytes that have arrived at members, by message; grows."""
        return self._wire.to_members

    # ---- the coordinator

    @property
    def coordinator(self) -> Coordinator | None:
        """The coordinator's machine; None while it is down."""
        process = self._broker.process
        return process.machine if isinstance(process, CoordinatorProcess) else None

    def _start(self) -> None:
        self._broker.boot += 1
        saved = self.saved if self.is_persistent else None
        machine = self._variant.coordinator(self._settings, self._broker.boot, saved, self._clock.time_ms)
        random = Random(f"{self.seed}/coordinator/{self._broker.boot}")
        self._broker.process = process = CoordinatorProcess(self, self._clock, machine, random)
        self._clock.record("coordinator", "starts", machine.phase)
        process.deliver(Tick())

    def crash_coordinator(self, down_ms: int = 1_000) -> None:
        """Kill the coordinator; another one starts after `down_ms`."""
        if self._broker.process is not None:
            self._clock.record("coordinator", "crashes", down_ms)
            self._broker.process.kill()
            self._broker.process = None
            self._wire.crashed()
            self._clock.after(down_ms, self._start)

    def written(self, process: CoordinatorProcess, save: events.Save) -> None:
        """The disk has a generation."""
        if process.is_alive:
            self.saved = save
            self._clock.record("coordinator", "saved", save.generation)

    def answer(self, process: CoordinatorProcess, effect: events.Answer) -> None:
        """The coordinator answers."""
        if process.is_alive:
            self._wire.answer(effect)

    # ---- members

    def member(self, name: str, options: MemberOptions | None = None) -> MemberProcess:
        """Start a member, after a process of that name was killed."""
        self.crash(name)
        options = options or self._options
        settings = events.MemberSettings(**options.settings)
        machine = self._variant.member(settings, self._codec, options.strategies)
        process = MemberProcess(self, self._clock, name, self._wire.host_of(name), machine, options)
        self.processes[name] = process
        self._clock.record(name, "starts")
        process.deliver(events.Subscribe(options.subscription or Subscription(tuple(self.topics))))
        self._fetch(process)
        return process

    def restart(self, name: str, options: MemberOptions | None = None) -> None:
        """Close a member and start it again at once, as in a rolling upgrade."""
        self.leave(name)
        self.member(name, options or self.processes[name].options)

    def leave(self, name: str) -> None:
        """Close a member."""
        process = self._working(name)
        if process is not None:
            self._clock.record(name, "leaves")
            process.deliver(events.Leave())

    def subscribe(self, name: str, *topics: str) -> None:
        """Change what a member consumes."""
        process = self._working(name)
        if process is not None:
            self._clock.record(name, "subscribes", topics)
            process.deliver(events.Subscribe(Subscription(topics)))

    def carry_out(self, process: MemberProcess, effect: Any) -> None:
        """Do what a member wants."""
        if isinstance(effect, events.Send):
            self._wire.send(process, effect)
        elif isinstance(effect, events.Close):
            self._hang_up(process)
        elif isinstance(effect, events.Refetch):
            self._clock.after(process.random.randint(*_FETCH_MS), self._fetch, process)
        else:
            self._clock.record(process.name, "fails", effect)

    # ---- topics and the network

    def _fetch(self, process: MemberProcess) -> None:
        view = self.topics if process.options.asks_coordinator else self._views.get(process.name, self.topics)
        process.deliver(events.TopicsKnown(dict(view)))

    def add_partitions(self, topic: str, count: int, refresh_ms: int = 2_000) -> None:
        """Add partitions to a topic, or create it; members learn about it within `refresh_ms`."""
        self.topics[topic] = self.topics.get(topic, 0) + count
        self._clock.record("cluster", "has topics", dict(self.topics))
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

    def heal(self) -> None:
        """End all faults and pauses. A coordinator that is down comes back in time."""
        self._clock.record("cluster", "heals")
        self._wire.loss = Loss()
        for name in list(self._views):
            self._catch_up(name)
        for process in self.processes.values():
            process.cut_until = 0
            process.resume()

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
        working = [process for process in self.processes.values() if process.is_working]
        members = [process.machine for process in working]
        if coordinator is None or any(process.is_paused or not process.machine.is_at_rest for process in working):
            return False
        if {member.member_id for member in members} != coordinator.members.keys():
            return False
        in_step = all(member.generation == coordinator.generation for member in members)
        return not working or (coordinator.phase is Phase.STABLE and in_step and self._is_all_held(members))

    def _is_all_held(self, members: Sequence[Member]) -> bool:
        held = [partition for member in members for partition in member.owned]
        active = [member.subscription or Subscription() for member in members if not member.is_dormant]
        wanted = {topic for subscription in active for topic in topics_of(subscription, self.topics)}
        return len(held) == len(set(held)) == sum(self.topics[topic] for topic in wanted)
