"""The processes of a virtual cluster: what their members want is carried out here, and who holds what is kept.

Laws:

* An event reaches a member only while its process is alive and does not stand still; a paused one gets it later.
* A partition that two working members of one generation hold is a `ViolationError`.
* Members have their own random source, named after them: what one does leaves the others' luck as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, Final, NamedTuple

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.events import (
    Assigned,
    Close,
    Commit,
    Committed,
    Failed,
    Fetched,
    Left,
    Lost,
    MemberEffect,
    MemberEvent,
    MemberState,
    NotCommitted,
    Released,
    Revoking,
    Send,
    TopicsKnown,
)
from kcoord_wire.consumer.machine import Member
from kcoord_wire.coordinator.core.events import Tick
from kcoord_wire.messages import JoinGroupRequest, SyncGroupRequest
from kcoord_wire.simulation.clock import Timeline
from kcoord_wire.simulation.group.invariants import Invariants, ViolationError
from kcoord_wire.simulation.group.network import Connection, VirtualTopics, Wire

__all__ = ["Fleet", "Idle", "Process"]

_NEVER: Final = 1 << 62
_TICK: Final = Tick()


class Idle(NamedTuple):
    """Time in ms, summed over the partitions, in which nobody held them.

    :ivar revoked: because a rebalance took them from a member that lived on: what eager members stop for
    :ivar abandoned: because their owner had left or died, or was thrown out
    """

    revoked: int
    abandoned: int


class Process:
    """A virtual consumer process.

    :ivar name: as in the script
    :ivar host: its address; a process that is restarted keeps it
    :ivar member: its side of the protocol
    :ivar is_alive: neither crashed nor gone
    :ivar is_paused: it takes in nothing at the moment (a long garbage collection, a stopped virtual machine)
    :ivar options: it was started with, as of `Cluster.member`
    :ivar commit_ms: how often it commits; None for never
    :ivar release_ms: how long it needs to give up one partition
    :ivar connection: to the coordinator, if there is one
    :ivar bootstrap: name of the connection for Metadata, once there is one
    :ivar armed: when its member is to be woken
    :ivar paused_until: ms since the epoch, as `cut_until`, to when the network lets nothing through; 0 for not
    :ivar inbox: what came while it stood still
    :ivar incarnation: of its group, when it was assigned what it holds
    :ivar random: its luck
    """

    __slots__ = (
        "armed",
        "bootstrap",
        "commit_ms",
        "connection",
        "cut_until",
        "host",
        "inbox",
        "incarnation",
        "is_alive",
        "member",
        "name",
        "options",
        "paused_until",
        "random",
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
        self.connection: Connection | None = None
        self.bootstrap = ""
        self.armed = _NEVER
        self.paused_until = 0
        self.cut_until = 0
        self.inbox: list[MemberEvent] = []
        self.incarnation = 0
        self.random = random

    @property
    def is_paused(self) -> bool:
        """Whether it stands still."""
        return self.paused_until > 0

    @property
    def is_working(self) -> bool:
        """Whether it is alive and has not given up."""
        return self.is_alive and self.member.state not in (MemberState.LEFT, MemberState.FAILED)

    def __repr__(self) -> str:
        return f"<{self.name} {self.member.member_id or '-'} {self.member.state} {self.member.generation_id}>"


class Fleet:
    """See the head of the module.

    :param processes: by name
    :ivar revision: goes up with whatever may change whether the group is settled
    """

    def __init__(
        self,
        time: Timeline,
        topics: VirtualTopics,
        processes: Mapping[str, Process],
        invariants: Invariants,
        wire: Wire,
    ) -> None:
        self.revision = 0
        self._time = time
        self._topics = topics
        self._processes = processes
        self._invariants = invariants
        self._wire = wire
        self._offset = 0
        self._settled: tuple[int, bool] = (-1, False)
        self._restless: set[Process] = set()  # who works, and is paused or not at rest in a generation
        self._owner: dict[TopicPartition, Process] = {}
        self._orphaned: dict[TopicPartition, tuple[int, bool]] = {}  # since when, and whether it was revoked
        self._revoked_ms = 0
        self._abandoned_ms = 0

    def deliver(self, process: Process, event: MemberEvent) -> None:
        """Give it an event, and carry out what its member wants."""
        if not process.is_alive:
            return
        if process.paused_until:
            process.inbox.append(event)
            return
        self._time.steps += 1
        member = process.member
        state = member.state
        for effect in member.handle(event, self._time.clock):
            _CARRY_OUT[type(effect)](self, process, effect)
        if member.state is not state:
            self.revision += 1
        if member.is_at_rest or member.state in (MemberState.LEFT, MemberState.FAILED):
            self._restless.discard(process)
        else:
            self._restless.add(process)
        deadline = member.deadline
        if deadline is not None and deadline < process.armed:
            process.armed = deadline
            self._time.later(deadline, self._tick_member, (process, deadline))

    def _tick_member(self, about: tuple[Process, int]) -> None:
        process, when = about
        if when != process.armed or not process.is_alive:
            return
        process.armed = _NEVER
        deadline = process.member.deadline
        if deadline is None:
            return
        if deadline <= self._time.clock:
            self.deliver(process, _TICK)
        else:
            process.armed = deadline
            self._time.later(deadline, self._tick_member, (process, deadline))

    def pause(self, process: Process, ms: int) -> None:
        """It stands still, if it is alive."""
        if process.is_alive:
            self._time.note(process.name, "pauses", ms)
            if process.is_working:
                self._restless.add(process)
            process.paused_until = max(process.paused_until, self._time.clock + ms)
            self.revision += 1
            self._time.later(process.paused_until, self.resume, process)

    def resume(self, process: Process) -> None:
        """It goes on, if its time has come."""
        if process.paused_until and process.paused_until <= self._time.clock:
            process.paused_until = 0
            self.revision += 1
            self._time.note(process.name, "resumes")
            waiting, process.inbox = process.inbox, []
            for event in waiting:
                self.deliver(process, event)
            self.deliver(process, _TICK)

    def refresh(self, process: Process) -> None:
        """It learns of the topics."""
        if process.is_alive:
            self._wire.tell_topics(process)
        self._time.note(process.name, "learns", dict(self._topics.counts))
        self.deliver(process, TopicsKnown(dict(self._topics.counts)))

    def commit_time(self, process: Process) -> None:
        """It commits now and then, if it has to."""
        if not process.is_working or process.commit_ms is None:
            return
        self._time.later(self._time.clock + process.commit_ms, self.commit_time, process)
        member = process.member
        if member.owned and member.state is MemberState.STABLE and not process.paused_until:
            self.deliver(process, Commit(self._progress(member.owned)))

    def _progress(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Offsets that nobody has committed before, so that each tells which commit it comes from."""
        return {partition: self.fresh_offset() for partition in sorted(partitions)}

    def end(self, process: Process) -> None:
        """It is dead."""
        process.is_alive = False
        self.revision += 1
        self._restless.discard(process)
        self._drop(process, process.member.owned)
        if process.bootstrap:
            self._wire.tell(process.bootstrap, "closed")
        if process.connection is not None:
            self._wire.shut(process.connection)
            process.connection = None

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
            about = (process, process.connection, effect)
            self._time.later(self._time.clock + assign_ms, self._send_assigned, about)
            if process.options["assign_blocks"]:
                self.pause(process, assign_ms)  # which ends behind that: a client goes on where it was
        else:
            self._wire.send(process, effect)

    def _send_assigned(self, about: tuple[Process, Connection | None, Send]) -> None:
        """The assignment is computed; it goes out if the member still waits for the answer to that."""
        process, connection, effect = about
        if process.is_alive and process.connection is connection and process.member.waits_for(effect.request_id):
            self._wire.send(process, effect)

    def _do_close(self, process: Process, _effect: Close) -> None:
        if process.connection is not None:
            self._wire.shut(process.connection)
            process.connection = None

    def _do_assigned(self, process: Process, effect: Assigned) -> None:
        self.revision += 1
        self._time.note(process.name, "assigned", effect)
        member = process.member
        me = member.settings.group_instance_id or process.name
        process.incarnation = self._invariants.incarnation(member.settings.group_id)
        for partition in member.owned:
            holder = self._owner.get(partition)
            if holder is not None and holder is not process and holder.is_working:
                other = holder.member
                if (
                    # not generation_id: a join that the log has lost gave it out, and another one gave it out again
                    (holder.incarnation, other.owned_generation) == (process.incarnation, effect.generation_id)
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
        self.revision += 1
        self._time.note(process.name, "revoking", effect)
        poll_ms = process.options["poll_ms"]
        wait = process.random.randint(0, poll_ms) if poll_ms else 0
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
        self.revision += 1
        self.deliver(process, Released(effect.ticket, offsets))

    def _do_lost(self, process: Process, effect: Lost) -> None:
        self.revision += 1
        self._time.note(process.name, "lost", effect)
        self._drop(process, effect.partitions)

    def _do_note(self, process: Process, effect: MemberEffect) -> None:
        self._time.note(process.name, type(effect).__name__.lower(), effect)

    def _do_left(self, process: Process, _effect: Left) -> None:
        """The connection stays until LeaveGroup is through; nobody waits for its answer."""
        self.revision += 1
        self._time.note(process.name, "left")
        self._drop(process, list(self._owner))
        if process.bootstrap:
            self._wire.tell(process.bootstrap, "closed")
            process.bootstrap = ""
        if process.connection is not None and not process.member.is_waiting:
            self._wire.part(process.connection)

    # ---- what is seen of them

    def owners(self) -> dict[TopicPartition, str]:
        """Which live process holds which partition."""
        return {
            partition: process.name
            for process in self._processes.values()
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

    def fresh_offset(self) -> int:
        """An offset that nobody has committed before."""
        self._offset += 1
        return self._offset

    def is_settled(self) -> bool:
        """Whether, in every group, all working members are in one generation and hold each partition exactly once."""
        revision, settled = self._settled
        if revision != self.revision:
            settled = self._is_settled()
            self._settled = (self.revision, settled)
        return settled

    def _is_settled(self) -> bool:
        if self._restless:
            return False
        groups: dict[str, list[Process]] = {}
        for process in self._processes.values():
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


_CARRY_OUT: Final[Mapping[type, Callable[[Fleet, Process, Any], None]]] = {
    Send: Fleet._do_send,
    Close: Fleet._do_close,
    Assigned: Fleet._do_assigned,
    Revoking: Fleet._do_revoking,
    Lost: Fleet._do_lost,
    Fetched: Fleet._do_note,
    Committed: Fleet._do_note,
    NotCommitted: Fleet._do_note,
    Left: Fleet._do_left,
    Failed: Fleet._do_note,
}
