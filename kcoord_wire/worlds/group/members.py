"""The consumer processes of a virtual cluster, which of them holds which partition, and their applications.

Laws:

* Two working members of one generation never hold the same partition: that breaks ``one owner`` (`Invariants`).
* A committed offset is committed once, so that it says which commit it comes from.
* An application that opens its partitions beside its work, as Kafka Streams restores state (KAFKA-10199), opens one at
  a time, in the order of their assignment; a batch goes in the order of topic and number. A partition that is dropped
  before it is open is never reported, and takes no time from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kcoord_wire.assignors import ASSIGNORS, Assignor, TopicPartition
from kcoord_wire.consumer import member_events as events
from kcoord_wire.consumer.classic_member import MemberMachine
from kcoord_wire.kernel.machines import Close, Machine
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.kernel.virtual.scripts import ViolationError, source_of
from kcoord_wire.messages import JoinGroupRequest, SyncGroupRequest
from kcoord_wire.worlds.group.client_bugs import SWITCHES
from kcoord_wire.worlds.group.laws import Invariants
from kcoord_wire.worlds.group.wire import GroupNetwork, MemberConnection, VirtualTopics


class Opening:
    """The partitions of one process that are not open yet.

    :param ms: returns how long some take
    :param opened: called with each when it is open
    """

    __slots__ = ("_clock", "_ms", "_opened", "_serial", "_waiting")

    def __init__(
        self,
        clock: VirtualClock,
        ms: Callable[[Sequence[TopicPartition]], int],
        opened: Callable[[TopicPartition], None],
    ) -> None:
        self._clock = clock
        self._ms = ms
        self._opened = opened
        self._waiting: list[TopicPartition] = []  # the first is being opened
        self._serial = 0  # of the opening that is under way

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Open these after those that wait already."""
        is_idle = not self._waiting
        self._waiting += sorted(partitions)
        if is_idle:
            self._begin()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Do not open these any more."""
        dropped = set(partitions)
        is_first_dropped = bool(self._waiting) and self._waiting[0] in dropped
        self._waiting = [partition for partition in self._waiting if partition not in dropped]
        if is_first_dropped:
            self._begin()

    def _begin(self) -> None:
        self._serial += 1
        if self._waiting:
            self._clock.after(self._ms(self._waiting[:1]), self._end, self._serial)

    def _end(self, serial: int) -> None:
        if serial == self._serial:
            partition = self._waiting.pop(0)
            self._begin()
            self._opened(partition)


class Idle(NamedTuple):
    """Time without a holder, in ms, summed over the partitions.

    :ivar revoked: after a rebalance took a partition from a member that lived on: what eager members stop for
    :ivar abandoned: after the holder had left, crashed or was removed
    """

    revoked: int
    abandoned: int


ProcessT = TypeVar("ProcessT", bound=Process)


class Ownership(Generic[ProcessT]):
    """The holder of each partition. Times count from the first holder of a partition on."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._holders: dict[TopicPartition, ProcessT] = {}
        self._orphaned: dict[TopicPartition, tuple[int, bool]] = {}  # since when, and whether it was revoked
        self._idle = Idle(0, 0)

    def holder(self, partition: TopicPartition) -> ProcessT | None:
        """Return the process that holds a partition."""
        return self._holders.get(partition)

    def held_by(self, process: ProcessT) -> list[TopicPartition]:
        """Return the partitions that a process holds."""
        return [partition for partition, holder in self._holders.items() if holder is process]

    def take(self, process: ProcessT, partition: TopicPartition) -> None:
        """A process holds a partition from now on."""
        self._holders[partition] = process
        orphaned = self._orphaned.pop(partition, None)
        if orphaned is not None:
            self._idle = self._with(self._idle, *orphaned)

    def drop(self, process: ProcessT, partitions: Iterable[TopicPartition], *, revoked: bool = False) -> None:
        """A process no longer holds these partitions, if it did.

        :param revoked: a rebalance took them from it
        """
        for partition in partitions:
            if self._holders.get(partition) is process:
                del self._holders[partition]
                self._orphaned[partition] = (self._clock.time_ms, revoked)

    def idle_ms(self) -> Idle:
        """Return the time without a holder so far."""
        idle = self._idle
        for since, revoked in self._orphaned.values():
            idle = self._with(idle, since, revoked)
        return idle

    def _with(self, idle: Idle, since: int, revoked: bool) -> Idle:
        ms = self._clock.time_ms - since
        return Idle(idle.revoked + ms, idle.abandoned) if revoked else Idle(idle.revoked, idle.abandoned + ms)


_OVER: Final = (events.MemberState.LEFT, events.MemberState.FAILED)


def check_known(kind: str, names: Sequence[str], known: Iterable[str]) -> None:
    """Raise ValueError, with the names there are, for a name that is not known."""
    for name in names:
        if name not in known:
            raise ValueError(f"no {kind} is called {name!r}; there are {', '.join(known)}")


@dataclass(kw_only=True, repr=False)
class MemberOptions:
    """How a consumer is set up. Times are in virtual milliseconds.

    :ivar topics: what it subscribes to; None for all topics there are
    :ivar regex: what it subscribes to besides, in KIP-848; with a pattern and no topics, `topics` is empty
    :ivar assignors: keys of `kcoord_wire.assignors.ASSIGNORS`, or others, most preferred first; None for a member of
        KIP-848
    :ivar assignor: the server assignor that a member of KIP-848 asks for; None for none
    :ivar group: its group id
    :ivar instance_id: the group instance id of a static member (KIP-345); None for a dynamic one
    :ivar client: the client library whose protocol versions it speaks: a key of `CLIENT_VERSIONS`
    :ivar client_id: in the headers of its requests; None for the name of its process
    :ivar software: name and version that it states in ApiVersions (KIP-511), ``librdkafka 2.6.0``; None for none
    :ivar bugs: what it does wrong: keys of `client_bugs.SWITCHES`
    :ivar rack: see `MemberSettings`
    :ivar subscription_version: of the embedded protocol; clients before KIP-792 write 1, without a generation
    :ivar session_timeout_ms: see `MemberSettings`
    :ivar rebalance_timeout_ms: see `MemberSettings`
    :ivar heartbeat_interval_ms: see `MemberSettings`
    :ivar heartbeat_restarts: see `MemberSettings`
    :ivar request_timeout_ms: see `MemberSettings`
    :ivar commit_ms: between two commits; None for no commits
    :ivar release_ms: how long the application takes to give up one partition: to commit, flush and close a store
    :ivar restore_ms: how long it takes to open one that it was assigned. It processes nothing during either, and does
        not poll, so that it rejoins after that; heartbeats go on
    :ivar restoring: returns how long opening these partitions takes, in place of `restore_ms` each; None for that
    :ivar restores_aside: whether it opens partitions beside its work instead, see `Opening`
    :ivar poll_ms: how long the application works between two polls, at most; it notices a rebalance when it polls
    :ivar assign_ms: how long a leader computes the assignment
    :ivar assign_blocks: whether a leader sends no heartbeats meanwhile, like a client that has a single thread
    :raises ValueError: no such assignor, client or bug
    :raises TypeError: topics, assignors or bugs are one string
    """

    topics: Sequence[str] | None = None
    regex: str = ""
    assignors: Sequence[str | Assignor] | None = ("range",)
    assignor: str | None = None
    group: str = "group"
    instance_id: str | None = None
    client: str = "java"
    client_id: str | None = None
    software: str | None = None
    bugs: Sequence[str] = ()
    rack: str | None = None
    subscription_version: int = 3
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    heartbeat_interval_ms: int = 3_000
    heartbeat_restarts: bool = True
    request_timeout_ms: int = 30_000
    commit_ms: int | None = 5_000
    release_ms: int = 0
    restore_ms: int = 0
    restoring: Callable[[Collection[TopicPartition]], int] | None = None
    restores_aside: bool = False
    poll_ms: int = 0
    assign_ms: int = 0
    assign_blocks: bool = False

    def __post_init__(self) -> None:
        for key in ("topics", "assignors", "bugs"):
            if isinstance(names := getattr(self, key), str):
                raise TypeError(f"{key} must be a list of strings, not {names!r}")
        check_known("assignor", [each for each in self.assignors or () if isinstance(each, str)], ASSIGNORS)
        check_known("client", [self.client], events.CLIENT_VERSIONS)
        check_known("bug", self.bugs, SWITCHES)

    __repr__ = source_of

    def offered(self) -> list[Assignor]:
        """Return the assignors themselves."""
        return [ASSIGNORS[each] if isinstance(each, str) else each for each in self.assignors or ()]

    def opening_ms(self, partitions: Collection[TopicPartition]) -> int:
        """Return how long the application takes to open these."""
        return self.restore_ms * len(partitions) if self.restoring is None else self.restoring(partitions)

    def settings(self, name: str) -> events.MemberSettings:
        """Return the settings of the member machine in the process `name`."""
        return events.MemberSettings(
            group_id=self.group,
            client_id=name if self.client_id is None else self.client_id,
            group_instance_id=self.instance_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            heartbeat_restarts=self.heartbeat_restarts,
            request_timeout_ms=self.request_timeout_ms,
            versions=events.CLIENT_VERSIONS[self.client],
            rack=self.rack,
        )


class Given:
    """What an application was given by its member: the law ``given``."""

    def __init__(self) -> None:
        self._given: frozenset[Any] = frozenset()
        self._taken: frozenset[Any] = frozenset()

    def gets(self, partitions: frozenset[Any]) -> None:
        """It is given partitions."""
        self._given |= partitions

    def gives_up(self, partitions: frozenset[Any]) -> None:
        """It has to give partitions up, or has lost them."""
        self._taken |= partitions

    def check(self, name: str, owned: frozenset[Any]) -> None:
        """Check the law after an event.

        :param owned: what its member owns
        :raises ViolationError: ``given``
        """
        if unknown := owned - self._given:
            raise ViolationError("given", f"{name} owns {sorted(unknown)}, of which its application does not know")
        if lost := self._given - owned - self._taken:
            raise ViolationError("given", f"{name} owns {sorted(lost)} no longer, and its application goes on")
        self._given, self._taken = owned, self._taken & owned


class ConsumerProcess(Process):
    """A process whose application has one thread: a listener runs when it polls, and no other runs meanwhile.

    :param opened: called with each partition that it has opened beside its work
    :ivar options: how the consumer was set up; changes take effect at once where they concern the application
    :ivar busy_until: until when its application is in a listener, and does not poll, in ms since the Unix epoch
    :ivar listeners: how many are planned or running; one at a time
    :ivar opening: the partitions that its application opens beside its work
    :ivar given: the partitions that its application was given
    :ivar may_end: whether its application has closed it
    """

    connection: MemberConnection | None

    def __init__(
        self,
        clock: VirtualClock,
        name: str,
        host: str,
        machine: Machine,
        random: Random,
        options: MemberOptions,
        opened: Callable[[TopicPartition], None],
    ) -> None:
        super().__init__(clock, name, host, machine, random)
        self.options = options
        self.busy_until = 0
        self.listeners = 0
        self.opening = Opening(clock, options.opening_ms, opened)
        self.given = Given()
        self.may_end = False

    def check_end(self) -> None:
        """Check the law ``stays`` when its member has left.

        :raises ViolationError: its application goes on
        """
        if not self.may_end:
            raise ViolationError("stays", f"{self.name} has left, and its application has not closed it")

    @property
    def is_busy(self) -> bool:
        """Whether its application opens or closes partitions, or is about to."""
        return self.listeners > 0 or bool(self.opening)

    def until_poll(self) -> int:
        """Draw how long the application works until it polls; it does not work while a listener of its runs."""
        poll_ms = self.options.poll_ms
        return self.random.randint(0, poll_ms) if poll_ms and self.busy_until != self._clock.time_ms else 0

    def listen(self, ms: int, begin: Callable[..., None], *arguments: Any) -> None:
        """Call a listener when the application polls and no other listener runs.

        :param ms: how long it takes
        :param begin: called with the process, the time of its end, and the arguments
        """
        starts = max(self.busy_until, self._clock.time_ms + self.until_poll())
        self.busy_until = starts + ms
        self.listeners += 1
        self._clock.at(starts, begin, self, starts + ms, *arguments)


class MemberProcess(ConsumerProcess):
    """A process of a member of the classic protocol.

    :ivar member: the machine
    :ivar bootstrap: name of the connection for Metadata; empty as long as there is none
    :ivar incarnation: of its group when it was last assigned partitions, see `Invariants.incarnation`
    """

    def __init__(
        self,
        clock: VirtualClock,
        members: Members,
        name: str,
        host: str,
        member: MemberMachine,
        random: Random,
        options: MemberOptions,
    ) -> None:
        super().__init__(
            clock, name, host, member, random, options, lambda partition: members.opened(self, {partition})
        )
        self.member = member
        self.bootstrap = ""
        self.incarnation = 0
        self._members = members
        self._seen = member.state  # the state after the last event

    @property
    def is_working(self) -> bool:
        """Whether it is alive, and its member has neither left nor failed."""
        return self.is_alive and self.member.state not in _OVER

    def carry_out(self, effect: events.MemberEffect) -> None:
        """Do what the member wants."""
        _CARRY_OUT[type(effect)](self._members, self, effect)

    def handled(self) -> None:
        """Note whether the member is at rest."""
        state = self.member.state
        if self.is_working and not self.options.bugs:
            self.given.check(self.name, self.member.owned)
        if state is not self._seen:
            self._seen = state
            self._members.revision += 1
        is_restless = not self.member.is_at_rest and state not in _OVER
        self._members.note_rest(self, is_restless=is_restless)

    def changed(self) -> None:
        """A paused process is not at rest; a killed one is no longer waited for."""
        self._members.revision += 1
        if not self.is_alive:
            self._members.note_rest(self, is_restless=False)
        elif self.paused_until and self.is_working:
            self._members.note_rest(self, is_restless=True)

    def __repr__(self) -> str:
        return f"<{self.name} {self.member.member_id or '-'} {self.member.state} {self.member.generation_id}>"


class Members:
    """Carries out what the members want, on behalf of their processes and applications.

    :param processes: by name
    :ivar ownership: which process holds which partition
    :ivar revision: goes up with every change that may settle or unsettle a group
    """

    def __init__(
        self,
        clock: VirtualClock,
        topics: VirtualTopics,
        processes: Mapping[str, MemberProcess],
        invariants: Invariants,
        wire: GroupNetwork,
    ) -> None:
        self.ownership: Ownership[MemberProcess] = Ownership(clock)
        self.revision = 0
        self._clock = clock
        self._topics = topics
        self._processes = processes
        self._invariants = invariants
        self._wire = wire
        self._offset = 0
        self._settled: tuple[int, bool] = (-1, False)  # the answer of `is_settled`, and for which revision
        self._restless: set[MemberProcess] = set()  # working processes that are paused or not at rest in a generation

    def note_rest(self, process: MemberProcess, *, is_restless: bool) -> None:
        """Note whether a group can be settled while this process is as it is."""
        if is_restless:
            self._restless.add(process)
        else:
            self._restless.discard(process)

    # ---- what applications and processes do

    def begin(self, process: MemberProcess, join_timeout_ms: int) -> None:
        """A consumer has started: it learns the topics, and subscribes.

        :param join_timeout_ms: of the coordinator, for members that are new
        """
        options = process.options
        # Two rebalances, a join that waits for a member that was killed while it was new, and some latency.
        wait = max(options.rebalance_timeout_ms, options.session_timeout_ms) * 2 + join_timeout_ms + 10_000
        self._invariants.patience_ms = max(self._invariants.patience_ms, wait)
        self.revision += 1
        self.learn_topics(process)
        process.deliver(events.Subscribe(tuple(self._topics.counts if options.topics is None else options.topics)))
        if options.commit_ms is not None:
            self._clock.after(process.random.randint(1, options.commit_ms), self.commit_regularly, process)

    def topics_changed(self, within_ms: int) -> None:
        """There are other topics, which the members learn within so long."""
        self.revision += 1
        for process in self._processes.values():
            if process.is_alive:
                self._clock.after(process.random.randint(0, within_ms), self.learn_topics, process)

    def learn_topics(self, process: MemberProcess) -> None:
        """A process gets the present topics."""
        if process.is_alive:
            self._wire.tap_metadata(process)
        self._clock.record(process.name, "learns", dict(self._topics.counts))
        process.deliver(events.TopicsKnown(dict(self._topics.counts)))

    def commit_regularly(self, process: MemberProcess) -> None:
        """An application commits what it has reached, and plans the next commit."""
        commit_ms = process.options.commit_ms
        if not process.is_working or commit_ms is None:
            return
        self._clock.after(commit_ms, self.commit_regularly, process)
        member = process.member
        is_busy = process.paused_until or process.busy_until > self._clock.time_ms
        if member.owned and member.state is events.MemberState.STABLE and not is_busy:
            process.deliver(events.Commit(self._progress(member.owned)))

    def _progress(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.fresh_offset() for partition in sorted(partitions)}

    def fresh_offset(self) -> int:
        """Return an offset that was not committed before."""
        self._offset += 1
        return self._offset

    def shut_down(self, process: MemberProcess, reason: str | None) -> int:
        """The application gives up its partitions, then closes the consumer; return how long that takes, in ms."""
        partitions = process.member.owned
        self._clock.record(process.name, "shuts down", partitions)
        self.ownership.drop(process, partitions)
        process.opening.drop(partitions)
        process.deliver(events.Stalled())
        process.busy_until = max(process.busy_until, self._clock.time_ms) + process.options.release_ms * len(partitions)
        self._clock.at(process.busy_until, self.leave, process, reason)
        return process.busy_until - self._clock.time_ms

    def leave(self, process: MemberProcess, reason: str | None) -> None:
        """The application closes the consumer."""
        if process.is_alive:
            self._clock.record(process.name, "leaves", reason)
            process.may_end = True
            process.deliver(events.Leave(reason))

    def kill(self, process: MemberProcess) -> None:
        """End a process; its connections close."""
        process.kill()
        self.ownership.drop(process, process.member.owned)
        if process.bootstrap:
            self._wire.tap(process.bootstrap, "closed")
        self._wire.hang_up_all(process)

    # ---- what members want

    def _do_send(self, process: MemberProcess, effect: events.SendRequest) -> None:
        options = process.options
        if isinstance(effect.message, JoinGroupRequest):
            self._clock.record(process.name, "joins", process.member.joined_for)
            if process.member.generation_id >= 0 and (wait := process.until_poll()):
                self._clock.after(wait, self._send_late, process, process.connection, effect)
                return
        if options.assign_ms and isinstance(effect.message, SyncGroupRequest) and effect.message.assignments:
            self._clock.record(process.name, "assigns", options.assign_ms)
            self._clock.after(options.assign_ms, self._send_late, process, process.connection, effect)
            if options.assign_blocks:
                process.pause(options.assign_ms)  # planned after the sending, so the request leaves before it resumes
        else:
            self._wire.send(process, effect)

    def _send_late(
        self, process: MemberProcess, connection: MemberConnection | None, effect: events.SendRequest
    ) -> None:
        """Send a request for which the application took its time, unless the member no longer waits for the answer."""
        if process.is_alive and process.connection is connection and process.member.waits_for(effect.request_id):
            self._wire.send(process, effect)

    def _do_close(self, process: MemberProcess, _effect: Close) -> None:
        if process.connection is not None:
            self._wire.hang_up(process.connection)

    def _do_assigned(self, process: MemberProcess, effect: events.Assigned) -> None:
        self.revision += 1
        self._clock.record(process.name, "assigned", effect)
        process.given.gets(effect.partitions)
        process.incarnation = self._invariants.incarnation(process.member.settings.group_id)
        for partition in process.member.owned:
            holder = self.ownership.holder(partition)
            if holder is not None and self._are_rivals(holder, process, partition):
                text = f"{partition} is held by {holder.name} and {process.name} in {effect.generation_id}"
                self._invariants.break_one_owner(text)
            self.ownership.take(process, partition)
        if process.options.restores_aside:
            process.opening.add(effect.partitions)
        elif opening_ms := process.options.opening_ms(effect.partitions):
            process.listen(opening_ms, self._open, effect.partitions)

    def _open(self, process: MemberProcess, until: int, partitions: frozenset[TopicPartition]) -> None:
        if process.is_working:
            self._clock.record(process.name, "opens", partitions)
            process.deliver(events.Stalled())
            self._clock.at(until, self._opened_all, process, partitions)

    def _opened_all(self, process: MemberProcess, partitions: frozenset[TopicPartition]) -> None:
        process.listeners -= 1
        self.opened(process, partitions)
        process.deliver(events.Polled())

    def opened(self, process: MemberProcess, partitions: AbstractSet[TopicPartition]) -> None:
        """An application has opened partitions; it may have lost some of them in the meantime."""
        if process.is_working:
            self._clock.record(process.name, "opened", partitions & process.member.owned)

    @staticmethod
    def _are_rivals(holder: MemberProcess, process: MemberProcess, partition: TopicPartition) -> bool:
        """Whether two processes hold a partition in the same generation of the same group as different members.

        Generations are compared by the assignment that a process holds, not by `generation_id`: a generation whose join
        was lost from the log is given out again.
        """
        one, other = holder.member, process.member
        return (
            holder is not process
            and holder.is_working
            and partition in one.owned
            and one.settings.group_id == other.settings.group_id
            and (holder.incarnation, one.owned_generation) == (process.incarnation, other.owned_generation)
            and (one.settings.group_instance_id or holder.name) != (other.settings.group_instance_id or process.name)
        )

    def _do_revoking(self, process: MemberProcess, effect: events.Revoking) -> None:
        self.revision += 1
        self._clock.record(process.name, "revoking", effect)
        process.given.gives_up(effect.partitions)
        process.listen(process.options.release_ms * len(effect.partitions), self._stop_work, effect)

    def _stop_work(self, process: MemberProcess, until: int, effect: events.Revoking) -> None:
        if not process.is_alive or not process.member.owned >= effect.partitions:
            process.listeners -= 1
            return  # killed, or lost them in the meantime
        self._clock.record(process.name, "closes", effect.partitions)
        self.ownership.drop(process, effect.partitions, revoked=True)
        process.opening.drop(effect.partitions)
        self._clock.at(until, self._release, process, effect)

    def _release(self, process: MemberProcess, effect: events.Revoking) -> None:
        process.listeners -= 1
        offsets = {} if process.options.commit_ms is None else self._progress(effect.partitions)
        self.revision += 1
        if process.is_alive:
            self._clock.record(process.name, "closed", effect.partitions)
        process.deliver(events.Released(effect.ticket, offsets))

    def _do_lost(self, process: MemberProcess, effect: events.Lost) -> None:
        self.revision += 1
        self._clock.record(process.name, "lost", effect)
        process.given.gives_up(effect.partitions)
        self.ownership.drop(process, effect.partitions)
        process.opening.drop(effect.partitions)

    def _do_record(self, process: MemberProcess, effect: events.MemberEffect) -> None:
        self._clock.record(process.name, type(effect).__name__.lower(), effect)

    def _do_left(self, process: MemberProcess, _effect: events.Left) -> None:
        """The connection stays open until LeaveGroup is answered, and the answer is discarded."""
        self.revision += 1
        self._clock.record(process.name, "left")
        process.check_end()
        self.ownership.drop(process, self.ownership.held_by(process))
        if process.bootstrap:
            self._wire.tap(process.bootstrap, "closed")
            process.bootstrap = ""
        if process.connection is not None and not process.member.is_waiting:
            self._wire.closing(process.connection)

    # ---- what is seen of them

    def owners(self) -> dict[TopicPartition, str]:
        """Return which live process holds which partition, as the members see it."""
        return {
            partition: process.name
            for process in self._processes.values()
            if process.is_alive
            for partition in process.member.owned
        }

    def idle_ms(self) -> Idle:
        """Return how long partitions had no holder."""
        return self.ownership.idle_ms()

    def is_settled(self) -> bool:
        """Return whether every group is settled; computed again only after a change."""
        revision, settled = self._settled
        if revision != self.revision:
            settled = not self._restless and all(map(self._has_settled, self._groups()))
            self._settled = (self.revision, settled)
        return settled

    def _groups(self) -> Iterable[list[MemberProcess]]:
        groups: dict[str, list[MemberProcess]] = {}
        for process in self._processes.values():
            if process.is_working:
                groups.setdefault(process.options.group, []).append(process)
        return groups.values()

    def _has_settled(self, group: list[MemberProcess]) -> bool:
        """Whether the members are in one generation and hold each partition that they want exactly once."""
        members = [process.member for process in group]
        if len({member.generation_id for member in members}) > 1:
            return False
        held = [partition for member in members for partition in member.owned]
        wanted = {topic for member in members for topic in member.topics}
        count = sum(self._topics.counts.get(topic, 0) for topic in wanted)
        return len(held) == len(set(held)) == count


_CARRY_OUT: Final[Mapping[type, Callable[[Members, MemberProcess, Any], None]]] = {
    events.SendRequest: Members._do_send,
    Close: Members._do_close,
    events.Assigned: Members._do_assigned,
    events.Revoking: Members._do_revoking,
    events.Lost: Members._do_lost,
    events.Fetched: Members._do_record,
    events.NotFetched: Members._do_record,
    events.Committed: Members._do_record,
    events.NotCommitted: Members._do_record,
    events.PollExpired: Members._do_record,
    events.Left: Members._do_left,
    events.Failed: Members._do_record,
}
