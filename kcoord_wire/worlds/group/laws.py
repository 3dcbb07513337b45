"""The laws of a virtual cluster, checked after every event and cheap enough to be always on.

The laws, by the name that a violation carries:

``generation``     increases from join to join; after a restart it is not below one of which a member has an assignment
``one leader``     at most one member of a generation gets the answer that it leads
``one owner``      no partition is assigned to two members of one generation
``commits``        an acknowledged commit is in the log, is returned by fetches unless a later one was written, and
                   survives every crash; the same holds for an offset that a fetch has returned
``fenced``         a commit is accepted only from the present generation
``answered once``  every request gets one answer, within the time that the protocol allows it to wait
``durable first``  no answer is sent before the part of the log that it depends on is on disk
``retention``      time removes an offset that was not used for the retention time: since its group has no members, or
                   if it never had some or has them, since the commit; it removes none that a member owns, and those of
                   a group without members no later than two checks after that
``given``          (checked by the members' processes) an application is given what its member owns, and goes on with
                   nothing that its member has given up or lost
``stays``          (likewise) a member leaves only when its application closes it
``transitions``    a group changes its state only as the state machine allows
``settles``        (checked by the script) after the last fault the group is Stable within a bound, and every partition
                   has one live owner
``never fails``    (checked by the coordinator's host) the coordinator raises no exception of its own

The laws of silent and late members are in `sessions`, those of errors, descriptions and records in `answers`.

The checks see what goes into the machine and what comes out (`worlds.host.CheckedMachine`), which answers are sent, and
what the disk has. They read the machine's own memory for ``transitions`` alone, so a mistake in it cannot hide itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.assignors import MemberAssignment, TopicPartition, list_partitions
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.groups import Group, State
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.kernel import machines
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.group.answers import Answers
from kcoord_wire.worlds.group.sessions import Sessions

# What one event may do, several moves included: the JoinGroup of a lone member takes Stable to CompletingRebalance.
_REACHABLE: Final[Mapping[State | None, set[State | None]]] = {
    None: {None, State.EMPTY, State.PREPARING, State.COMPLETING},
    State.EMPTY: {None, State.EMPTY, State.PREPARING, State.COMPLETING},
    State.PREPARING: {State.PREPARING, State.COMPLETING, State.EMPTY},
    State.COMPLETING: {State.COMPLETING, State.STABLE, State.PREPARING, State.EMPTY},
    State.STABLE: {State.STABLE, State.PREPARING, State.COMPLETING, State.EMPTY},
}
_PATIENT: Final = (m.JoinGroupRequest, m.SyncGroupRequest)
# Requests whose answers show what a group is or has become, and the groups that each names.
_SHOWING: Final[Mapping[type, Callable[[Any], Sequence[str]]]] = {
    m.SyncGroupRequest: lambda message: [message.group_id],
    m.LeaveGroupRequest: lambda message: [message.group_id],
    m.OffsetDeleteRequest: lambda message: [message.group_id],
    m.OffsetFetchRequest: lambda message: [message.group_id, *(each.group_id for each in message.groups)],
    m.DescribeGroupsRequest: lambda message: message.groups,
    m.ConsumerGroupDescribeRequest: lambda message: message.group_ids,
    m.DeleteGroupsRequest: lambda message: message.groups_names,
}
_NO_OFFSET: Final = -1
_ANSWER_WITHIN_MS: Final = 60_000


class _Asked:
    """A request in the machine, until its answer is sent.

    :ivar answer: the machine's answer; None before that
    :ivar after: the append that the answer waits for
    :ivar reads: for an OffsetFetch, the registers read and the writes found there
    """

    __slots__ = ("after", "answer", "reads", "request", "token")

    def __init__(self, request: events.Request) -> None:
        self.token = request.token
        self.request = request
        self.answer: Any = None
        self.after = 0
        self.reads: list[tuple[_Register, _Write]] = []


@dataclass(slots=True, eq=False)
class _Write:
    """One write of a committed offset: its number, the append that it is in, and the offset; -1 for a deletion.

    :ivar at: ms
    :ivar expires: when the client wants it to expire, in ms; -1 for not at all
    """

    number: int
    offset: int
    append: int
    at: int = 0
    expires: int = -1


class _Register:
    """The history of one partition's committed offset: the writes that a reader may still see, oldest first."""

    __slots__ = ("writes",)

    def __init__(self) -> None:
        self.writes: deque[_Write] = deque([_Write(0, _NO_OFFSET, 0)])

    def find(self, offset: int) -> _Write | None:
        """Return the last write of this offset that a reader may see."""
        return next((write for write in reversed(self.writes) if write.offset == offset), None)

    def seen(self, number: int) -> None:
        """A client has seen this write, so older ones must not be seen again."""
        while self.writes[0].number < number:
            self.writes.popleft()


class _View:
    """What the checks know of one group.

    :ivar state: after the last event; None if there is no group
    :ivar incarnation: how often it was deleted
    :ivar generation: the present one
    :ivar promised: the highest generation that a member got an assignment of
    :ivar written: the generation in the log, and the append that wrote it
    :ivar leader: a generation and its leader, by instance id or member id
    :ivar owners: of the present generation
    :ivar registers: committed offsets
    :ivar emptied_at: since when it has no members, after it had some; None where it has some, or never had
    :ivar appended: the last append that concerns it
    """

    __slots__ = (
        "appended",
        "emptied_at",
        "generation",
        "incarnation",
        "leader",
        "owners",
        "promised",
        "registers",
        "state",
        "written",
    )

    def __init__(self) -> None:
        self.state: State | None = None
        self.incarnation = 0
        self.generation = 0
        self.promised = -1
        self.written: tuple[int, int] = (-1, 0)
        self.leader: tuple[int, str] | None = None
        self.owners: dict[TopicPartition, str] = {}
        self.registers: dict[TopicPartition, _Register] = {}
        self.emptied_at: int | None = None
        self.appended = 0

    def delete(self) -> None:
        """The group is deleted; generations of a new group with this name start again."""
        self.incarnation += 1
        self.promised = self.generation = -1
        self.written = (-1, 0)
        self.leader = self.emptied_at = None
        self.owners = {}

    def note_members(self, value: m.GroupMetadataValue, now: int) -> None:
        """The log has this of the group."""
        if value.members or not value.protocol_type:
            self.emptied_at = None
        elif self.emptied_at is None:
            self.emptied_at = now


class Invariants:
    """Checks the laws of one coordinator through all its boots.

    :param decode_assignment: decodes the assignment in SyncGroup's response
    :param may_break_one_owner: keep what breaks ``one owner``, which members can break, instead of raising it
    :ivar broken: what broke ``one owner`` so far
    :ivar patience_ms: how long JoinGroup and SyncGroup may wait; the cluster raises it with its members' timeouts
    """

    def __init__(
        self, decode_assignment: Callable[[bytes], MemberAssignment], *, may_break_one_owner: bool = False
    ) -> None:
        self.broken: list[ViolationError] = []
        self._may_break_one_owner = may_break_one_owner
        self.patience_ms = 0
        self._decode_assignment = decode_assignment
        self._views: dict[str, _View] = {}
        self._asked: dict[int, _Asked] = {}
        self._quick: deque[tuple[int, int]] = deque()
        self._patient: deque[tuple[int, int]] = deque()
        self._appended = 0
        self._durable = 0
        self._base = 0
        self._writes = 0
        self._sessions = Sessions()
        self._answers = Answers()
        self._loaded_at = 0

    def _view(self, group_id: str) -> _View:
        view = self._views.get(group_id)
        if view is None:
            view = self._views[group_id] = _View()
        return view

    def incarnation(self, group_id: str) -> int:
        """Return how often a group was deleted; after that its generations start again."""
        return self._view(group_id).incarnation

    def break_one_owner(self, what: str) -> None:
        """Two members own a partition.

        :raises ViolationError: unless this is only to be kept
        """
        violation = ViolationError("one owner", what)
        if not self._may_break_one_owner:
            raise violation
        self.broken.append(violation)

    # ---- what the coordinator's host reports

    def began(self) -> None:
        """The coordinator starts: it has no requests, and has appended nothing."""
        self._asked.clear()
        self._quick.clear()
        self._patient.clear()
        self._appended = self._durable = self._base = 0
        self._sessions.forget()
        self._answers.forget()
        self._forget_states()

    def on_disk(self, last: int) -> None:
        """The appends up to number `last` since the log was loaded are on disk."""
        self._durable = self._base + last

    def handled(self, machine: GroupMachine, event: events.Event, effects: Sequence[events.Effect], now: int) -> None:
        """The machine has handled `event` and returned `effects`.

        :raises ViolationError: a law is broken
        """
        before = self._appended
        touched: set[str] = set()  # groups whose state may have changed
        self._note_event(machine, event, now, touched)
        for effect in effects:
            if isinstance(effect, events.Append):
                if isinstance(event, machines.Tick):
                    self._check_expired(machine.config, effect.records, now)
                self._note_append(effect.records, touched, now)
            elif isinstance(effect, events.RebalanceReport):
                self._note_report(effect, touched)
        present = event.token if isinstance(event, events.Request) else None
        for effect in effects:  # an answer may stand before the append that it waits for
            if isinstance(effect, events.Reply):
                self._note_reply(effect, before if effect.token == present else None)
        if not isinstance(event, events.Load | events.Resign):
            for group_id in touched:
                group = machine.groups.get(group_id)
                self._check_state(group_id, group if isinstance(group, Group) else None, event)
        self._check_patience(now)
        if isinstance(event, machines.Tick):
            self._check_kept(machine, now)
        self._sessions.handled(machine, event, effects, now)
        self._answers.handled(machine, event, effects, now)

    def _note_event(self, machine: GroupMachine, event: events.Event, now: int, touched: set[str]) -> None:
        if isinstance(event, events.Request):
            self._note_request(event, now, touched)
        elif isinstance(event, events.Load):
            if event.partitions is None:
                self._durable = self._base = self._appended
            self._loaded_at = now
            self._note_load(machine, event.records)
        elif isinstance(event, events.Resign):
            self._forget_states()

    def _note_request(self, event: events.Request, now: int, touched: set[str]) -> None:
        if event.token in self._asked:
            raise ViolationError("answered once", f"token {event.token} was used twice")
        self._asked[event.token] = _Asked(event)
        if isinstance(event.message, _PATIENT):
            self._patient.append((now, event.token))
            touched.add(event.message.group_id)
        else:
            self._quick.append((now, event.token))

    def _note_report(self, report: events.RebalanceReport, touched: set[str]) -> None:
        rebalance = report.rebalance
        touched.add(rebalance.group_id)
        if report.phase is events.Phase.JOINED:
            self._note_generation(rebalance.group_id, rebalance.generation_id)

    def _forget_states(self) -> None:
        for view in self._views.values():
            view.state = None
            view.appended = 0

    def _check_patience(self, now: int) -> None:
        for waiting, patience_ms in ((self._quick, _ANSWER_WITHIN_MS), (self._patient, self.patience_ms)):
            while waiting and waiting[0][1] not in self._asked:
                waiting.popleft()
            if waiting and waiting[0][0] + patience_ms < now:
                since, token = waiting[0]
                request = self._asked[token].request
                text = f"{type(request.message).__name__} has waited for {now - since} ms"
                raise ViolationError("answered once", text)

    def _check_state(self, group_id: str, group: Group | None, event: events.Event) -> None:
        view = self._view(group_id)
        state = None if group is None else group.state
        expired = state is None and isinstance(event, machines.Tick)  # the last member and the last offset, in one tick
        if state not in _REACHABLE[view.state] and not expired:
            raise ViolationError("transitions", f"group {group_id!r} went from {view.state} to {state}")
        view.state = state

    # ---- the log

    def _note_append(self, records: Sequence[events.LogRecord], touched: set[str], now: int) -> None:
        self._appended += 1
        for key, value in records:
            self._view(_group_of(key)).appended = self._appended
            if isinstance(key, m.OffsetCommitKey):
                view = self._view(key.group)
                self._writes += 1
                register = view.registers.setdefault(TopicPartition(key.topic, key.partition), _Register())
                offset = _NO_OFFSET if value is None else value.offset
                expires = -1 if value is None else value.expire_timestamp
                register.writes.append(_Write(self._writes, offset, self._appended, now, expires))
            elif isinstance(key, m.GroupMetadataKey):
                view = self._view(key.group)
                touched.add(key.group)
                if value is None:
                    view.delete()
                else:
                    self._note_metadata(key.group, view, value.generation)
                    view.note_members(value, now)

    def _check_expired(self, config: GroupConfig, records: Sequence[events.LogRecord], now: int) -> None:
        """Check the offsets that time has removed."""
        for key, value in records:
            view = self._views.get(key.group) if isinstance(key, m.OffsetCommitKey) and value is None else None
            register = None if view is None else view.registers.get(TopicPartition(key.topic, key.partition))
            if view is None or register is None:
                continue
            write = register.writes[-1]
            unused_since = write.at if view.emptied_at is None else view.emptied_at
            due = unused_since + config.offsets_retention_ms if write.expires < 0 else write.expires
            is_used = view.state is State.STABLE and TopicPartition(key.topic, key.partition) in view.owners
            if now < due or is_used:
                text = f"{key.topic}-{key.partition} of {key.group!r} is removed at {now}, written at {write.at}"
                raise ViolationError("retention", f"{text}, used since {unused_since}{', and owned' * is_used}")

    def _check_kept(self, machine: GroupMachine, now: int) -> None:
        """Check that offsets of groups without members are gone when their time has come."""
        config = machine.config
        for group_id, view in self._views.items():
            group = machine.groups.get(group_id)
            if view.emptied_at is None or not isinstance(group, Group) or group.state is not State.EMPTY:
                continue
            due = max(view.emptied_at + config.offsets_retention_ms, self._loaded_at)
            if now > due + 2 * config.offsets_retention_check_interval_ms:
                kept = [each for each, register in view.registers.items() if _is_kept(register.writes[-1])]
                if kept:
                    text = f"{group_id!r} is empty since {view.emptied_at}, and {kept} are kept"
                    raise ViolationError("retention", text)

    def _note_metadata(self, group_id: str, view: _View, generation_id: int) -> None:
        if generation_id < view.written[0]:
            text = f"group {group_id!r} is written with {generation_id} after {view.written[0]}"
            raise ViolationError("generation", text)
        view.generation = max(view.generation, generation_id)
        view.written = (generation_id, self._appended)

    def _note_generation(self, group_id: str, generation_id: int) -> None:
        view = self._view(group_id)
        if generation_id <= max(view.generation, view.promised):
            text = f"group {group_id!r} joined into {generation_id} after {max(view.generation, view.promised)}"
            raise ViolationError("generation", text)
        view.generation = generation_id
        view.owners = {}

    def _note_load(self, machine: GroupMachine, records: Sequence[events.LogRecord]) -> None:
        offsets: dict[tuple[str, TopicPartition], int] = {}
        generations: dict[str, int] = {}
        values = {key.group: value for key, value in records if isinstance(key, m.GroupMetadataKey)}
        for key, value in records:
            if isinstance(key, m.OffsetCommitKey):
                partition = TopicPartition(key.topic, key.partition)
                offsets[key.group, partition] = _NO_OFFSET if value is None else value.offset
            elif isinstance(key, m.GroupMetadataKey):
                generations[key.group] = -1 if value is None else value.generation
        for group_id, view in self._views.items():
            if (value := values.get(group_id)) is not None:
                view.note_members(value, value.current_state_timestamp)
            view.generation = generations.get(group_id, -1)
            view.written = (view.generation, 0)
            if view.generation < view.promised:
                text = f"group {group_id!r} was loaded in {view.generation}, after assignments of {view.promised}"
                raise ViolationError("generation", text)
            view.leader = None
            view.owners = {}
            group = machine.groups.get(group_id)
            view.state = None if group is None else group.state
            for partition, register in view.registers.items():
                self._check_loaded(partition, register, offsets.get((group_id, partition), _NO_OFFSET))

    @staticmethod
    def _check_loaded(partition: TopicPartition, register: _Register, offset: int) -> None:
        write = register.find(offset)
        if write is None:
            known = [write.offset for write in register.writes]
            text = f"{partition.topic}-{partition.partition} was loaded as {offset}, not as one of {known}"
            raise ViolationError("commits", text)
        write.append = 0
        register.writes = deque([write])

    # ---- answers

    def _note_reply(self, reply: events.Reply, before: int | None) -> None:
        """The machine has answered.

        :param before: number of appends before the request arrived; None if it arrived in an earlier event
        """
        asked = self._asked.get(reply.token)
        if asked is None or asked.answer is not None:
            raise ViolationError("answered once", f"token {reply.token} has an answer already, or was not asked")
        if reply.after > self._appended:
            raise ViolationError("durable first", f"an answer waits for append {reply.after} of {self._appended}")
        asked.answer = reply.message
        asked.after = reply.after
        message = asked.request.message
        self._check_shown(message, reply)
        if isinstance(message, m.JoinGroupRequest):
            self._check_join(message, reply.message)
        elif isinstance(message, m.SyncGroupRequest):
            self._check_sync(message, reply)
        elif isinstance(message, m.OffsetCommitRequest):
            self._check_commit(message, reply, self._appended if before is None else before)
        elif isinstance(message, m.OffsetFetchRequest):
            self._check_fetch(asked, message, reply.message)

    def _check_shown(self, message: Any, reply: events.Reply) -> None:
        """An answer that shows what a group is waits until that is in the log."""
        named = _SHOWING.get(type(message))
        is_refused = bool(getattr(reply.message, "error_code", ErrorCode.NONE))
        for group_id in () if named is None or is_refused else named(message):
            append = self._view(group_id).appended
            if reply.after < append and append > self._durable:
                text = f"{type(message).__name__} about {group_id!r} waits for append {reply.after}, not for {append}"
                raise ViolationError("durable first", text)

    def _check_join(self, request: m.JoinGroupRequest, answer: m.JoinGroupResponse) -> None:
        if answer.error_code:
            return
        view = self._view(request.group_id)
        if answer.generation_id != view.generation:
            text = f"a member joins {answer.generation_id} while {view.generation} is the present one"
            raise ViolationError("generation", text)
        if answer.leader != answer.member_id:
            return
        leader = request.group_instance_id or answer.member_id
        if view.leader is not None and view.leader[0] == answer.generation_id and view.leader[1] != leader:
            text = f"generation {answer.generation_id} of {request.group_id!r} is led by {view.leader[1]} and {leader}"
            raise ViolationError("one leader", text)
        view.leader = (answer.generation_id, leader)

    def _check_sync(self, request: m.SyncGroupRequest, reply: events.Reply) -> None:
        if reply.message.error_code:
            return
        view = self._view(request.group_id)
        if request.generation_id != view.generation:
            text = f"SyncGroup of {request.generation_id} is answered while {view.generation} is the present one"
            raise ViolationError("generation", text)
        generation_id, append = view.written
        if generation_id != request.generation_id or reply.after < append:
            text = f"an assignment of generation {request.generation_id} is answered, the log has {generation_id}"
            raise ViolationError("durable first", text)
        member = request.group_instance_id or request.member_id
        for partition in list_partitions(self._decode_assignment(reply.message.assignment).partitions):
            owner = view.owners.setdefault(partition, member)
            if owner != member:
                text = (
                    f"{partition.topic}-{partition.partition} goes to {owner} and {member} in {request.generation_id}"
                )
                self.break_one_owner(text)

    def _check_commit(self, request: m.OffsetCommitRequest, reply: events.Reply, before: int) -> None:
        view = self._view(request.group_id)
        for partition, offset in _acknowledged(request, reply.message):
            self._check_fence(view, request, partition)
            register = view.registers.get(partition)
            write = None if register is None else register.writes[-1]
            if write is None or write.append <= before or write.offset != offset:
                text = f"{partition.topic}-{partition.partition} is acknowledged, and was not written"
                raise ViolationError("commits", text)
            if reply.after < write.append:
                raise ViolationError("durable first", f"a commit in append {write.append} waits for {reply.after}")

    def _check_fence(self, view: _View, request: m.OffsetCommitRequest, _partition: TopicPartition) -> None:
        """An acknowledged commit must be of the present generation, or from outside the group."""
        generation_id = request.generation_id_or_member_epoch
        if generation_id >= 0 and generation_id != view.generation:
            text = f"a commit of generation {generation_id} is accepted in {view.generation}"
            raise ViolationError("fenced", text)

    def _check_fetch(self, asked: _Asked, request: m.OffsetFetchRequest, answer: m.OffsetFetchResponse) -> None:
        groups: list[tuple[str, Sequence[Any]]] = [(group.group_id, group.topics) for group in answer.groups]
        for group_id, topics in groups or [(request.group_id, answer.topics)]:
            registers = self._view(group_id).registers
            for topic in topics:
                for partition in topic.partitions:
                    register = registers.get(TopicPartition(topic.name, partition.partition_index))
                    if register is None or partition.error_code:
                        continue
                    offset = partition.committed_offset
                    write = register.find(offset)
                    if write is None:
                        text = f"{topic.name}-{partition.partition_index} is {offset}: older than what was seen"
                        raise ViolationError("commits", text)
                    asked.reads.append((register, write))

    def sent(self, token: int, message: Any) -> None:
        """The coordinator has sent the answer to a request.

        :raises ViolationError: a law is broken
        """
        asked = self._asked.pop(token, None)
        if asked is None:
            raise ViolationError("answered once", f"token {token} is answered twice")
        answer = asked.answer
        if answer is not message:
            return  # the runtime has refused the request, because its disk has failed
        if asked.after > self._durable:
            text = f"an answer that waits for append {asked.after} was sent; the disk has {self._durable}"
            raise ViolationError("durable first", text)
        request = asked.request.message
        if isinstance(request, m.SyncGroupRequest) and not answer.error_code:
            self._note_promise(request)
        elif isinstance(request, m.OffsetCommitRequest):
            registers = self._view(request.group_id).registers
            for partition, offset in _acknowledged(request, answer):
                write = next((write for write in registers[partition].writes if write.offset == offset), None)
                if write is not None:
                    registers[partition].seen(write.number)
        elif isinstance(request, m.OffsetFetchRequest):
            self._note_reads(asked)

    def _note_promise(self, request: m.SyncGroupRequest) -> None:
        """A member has got its assignment of a generation."""
        view = self._view(request.group_id)
        view.promised = max(view.promised, request.generation_id)

    def _note_reads(self, asked: _Asked) -> None:
        for register, write in asked.reads:
            if write.append > self._durable:
                raise ViolationError("durable first", f"offset {write.offset} was read before it was on disk")
            register.seen(write.number)


def _group_of(key: Any) -> str:
    """Return the group that a record is of."""
    group_id: str = key.group if hasattr(key, "group") else key.group_id
    return group_id


def _is_kept(write: _Write) -> bool:
    return write.offset != _NO_OFFSET and write.expires < 0


def _acknowledged(
    request: m.OffsetCommitRequest, answer: m.OffsetCommitResponse
) -> Iterator[tuple[TopicPartition, int]]:
    """Yield the partitions that a commit's answer acknowledges, with their offsets."""
    offsets = {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in request.topics
        for partition in topic.partitions
    }
    for topic in answer.topics:
        for partition in topic.partitions:
            if not partition.error_code:
                place = TopicPartition(topic.name, partition.partition_index)
                yield place, offsets[place]
