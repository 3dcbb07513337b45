"""What must hold at every moment of a virtual cluster, checked event by event and cheaply enough to be always on.

The laws, by the name that a violation carries:

``generation``     it goes up by one from join to join, and after a restart is never below one that members were told of
``one leader``     of all members of a generation one at most is told that it leads
``one owner``      no partition is assigned to two members of one generation
``commits``        an acknowledged commit is in the log, is what a fetch gives back unless a later one was written, and
                   outlives every crash; the same for an offset that a fetch gave out
``fenced``         a commit is taken from the present generation alone
``answered once``  every request gets one answer, within the time that the protocol allows it to wait
``durable first``  no answer leaves before the log is on disk as far as the answer depends on it
``transitions``    a group changes its state only as the state machine allows
``settles``        (checked by the cluster) after the last fault the group is Stable within a bound, and every partition
                   has one live owner

The judge sees what goes into the machine and what comes out (`Watched`), what leaves as an answer, and the disk itself;
what the machine remembers it reads for ``transitions`` alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.coordinator.core.events import (
    Append,
    Effect,
    Event,
    Load,
    LogRecord,
    Phase,
    RebalanceReport,
    Reply,
    Request,
    Resign,
    Tick,
)
from kcoord_wire.coordinator.core.groups import Group, State
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.simulation.violation import ViolationError

__all__ = ["Invariants", "Watched"]


# What one event may do, several moves included: a lone member's JoinGroup takes a Stable group to CompletingRebalance.
_REACHABLE: Final[Mapping[State | None, set[State | None]]] = {
    None: {None, State.EMPTY, State.PREPARING, State.COMPLETING},
    State.EMPTY: {None, State.EMPTY, State.PREPARING, State.COMPLETING},
    State.PREPARING: {State.PREPARING, State.COMPLETING, State.EMPTY},
    State.COMPLETING: {State.COMPLETING, State.STABLE, State.PREPARING, State.EMPTY},
    State.STABLE: {State.STABLE, State.PREPARING, State.COMPLETING, State.EMPTY},
}
_PATIENT: Final = (m.JoinGroupRequest, m.SyncGroupRequest)
_NO_OFFSET: Final = -1
_ANSWER_WITHIN_MS: Final = 60_000


class _Asked:
    """A request that the machine has, until its answer has left.

    :ivar answer: what the machine has answered
    :ivar after: the append that the answer waits for
    :ivar reads: for an OffsetFetch, (register, number of the write that was read)
    """

    __slots__ = ("after", "answer", "reads", "request", "token")

    def __init__(self, request: Request) -> None:
        self.token = request.token
        self.request = request
        self.answer: Any = None
        self.after = 0
        self.reads: list[tuple[_Register, _Write]] = []


class _Write:
    """One write of a committed offset: in which append, and which offset; -1 for its deletion."""

    __slots__ = ("append", "number", "offset")

    def __init__(self, number: int, offset: int, append: int) -> None:
        self.number = number
        self.offset = offset
        self.append = append


class _Register:
    """The journal of one partition's committed offset: the writes that a reader may still see, oldest first."""

    __slots__ = ("writes",)

    def __init__(self) -> None:
        self.writes: deque[_Write] = deque([_Write(0, _NO_OFFSET, 0)])

    def known(self, number: int) -> None:
        """Somebody was told of this write: older ones must not be seen again."""
        while self.writes[0].number < number:
            self.writes.popleft()


class _View:
    """What the judge knows of one group."""

    __slots__ = ("generation", "incarnation", "leader", "owners", "promised", "registers", "state", "written")

    def __init__(self) -> None:
        self.state: State | None = None
        self.incarnation = 0
        self.generation = 0  # the present one
        self.promised = -1  # the highest that somebody has an assignment of
        self.written: tuple[int, int] = (-1, 0)  # the generation that the log knows, and the append that told it
        self.leader: tuple[int, str] | None = None
        self.owners: dict[TopicPartition, str] = {}
        self.registers: dict[TopicPartition, _Register] = {}


class Invariants:
    """The judge of one coordinator with all its lives.

    :param read_assignment: reads what SyncGroup gives
    :ivar patience_ms: how long JoinGroup and SyncGroup may wait; the cluster raises it with its members' timeouts
    """

    def __init__(self, read_assignment: Callable[[bytes], Sequence[TopicPartition]]) -> None:
        self.patience_ms = 0
        self._read_assignment = read_assignment
        self._views: dict[str, _View] = {}
        self._asked: dict[int, _Asked] = {}
        self._quick: deque[tuple[int, int]] = deque()
        self._patient: deque[tuple[int, int]] = deque()
        self._appended = 0
        self._durable = 0
        self._base = 0
        self._writes = 0

    def _view(self, group_id: str) -> _View:
        view = self._views.get(group_id)
        if view is None:
            view = self._views[group_id] = _View()
        return view

    def incarnation(self, group_id: str) -> int:
        """How often the group was deleted: its generations begin anew after that."""
        return self._view(group_id).incarnation

    # ---- the coordinator's life

    def began(self) -> None:
        """A coordinator starts: nothing is asked of it, nothing appended."""
        self._asked.clear()
        self._quick.clear()
        self._patient.clear()
        self._appended = self._durable = self._base = 0
        for view in self._views.values():
            view.state = None

    def on_disk(self, last: int) -> None:
        """The disk has the appends up to number `last` since the log was loaded."""
        self._durable = self._base + last

    def handled(self, machine: GroupMachine, event: Event, effects: Sequence[Effect], now: int) -> None:
        """The machine has taken in `event`, and `effects` came of it."""
        touched: set[str] = set()
        asked: _Asked | None = None
        if isinstance(event, Request):
            asked = _Asked(event)
            if event.token in self._asked:
                raise ViolationError("answered once", f"token {event.token} was used twice")
            self._asked[event.token] = asked
            if isinstance(event.message, _PATIENT):
                self._patient.append((now, event.token))
                touched.add(event.message.group_id)
            else:
                self._quick.append((now, event.token))
        elif isinstance(event, Load):
            self._loaded(machine, event.records)
        elif isinstance(event, Resign):
            for view in self._views.values():
                view.state = None
        before = self._appended
        for effect in effects:
            if isinstance(effect, Append):
                self._appended += 1
                self._note_append(effect.records, touched)
            elif isinstance(effect, RebalanceReport):
                rebalance = effect.rebalance
                touched.add(rebalance.group_id)
                if effect.phase is Phase.JOINED:
                    self._note_generation(rebalance.group_id, rebalance.generation_id)
        for effect in effects:
            if isinstance(effect, Reply):
                self._note_reply(effect, before if asked is not None and effect.token == asked.token else None)
        if not isinstance(event, Load | Resign):
            for group_id in touched:
                self._check_state(group_id, machine.groups.get(group_id), event)
        self._check_patience(now)

    def _check_patience(self, now: int) -> None:
        for waiting, patience in ((self._quick, _ANSWER_WITHIN_MS), (self._patient, self.patience_ms)):
            while waiting:
                since, token = waiting[0]
                if token in self._asked:
                    if since + patience < now:
                        request = self._asked[token].request
                        text = f"{type(request.message).__name__} has waited for {now - since} ms"
                        raise ViolationError("answered once", text)
                    break
                waiting.popleft()

    def _check_state(self, group_id: str, group: Group | None, event: Event) -> None:
        view = self._view(group_id)
        state = None if group is None else group.state
        expired = state is None and isinstance(event, Tick)  # the last member and the last offset, in one tick
        if state not in _REACHABLE[view.state] and not expired:
            raise ViolationError("transitions", f"group {group_id!r} went from {view.state} to {state}")
        view.state = state

    # ---- the log

    def _note_append(self, records: Sequence[LogRecord], touched: set[str]) -> None:
        for key, value in records:
            view = self._view(key.group)
            if isinstance(key, m.OffsetCommitKey):
                self._writes += 1
                partition = TopicPartition(key.topic, key.partition)
                register = view.registers.get(partition)
                if register is None:
                    register = view.registers[partition] = _Register()
                offset = _NO_OFFSET if value is None else value.offset
                register.writes.append(_Write(self._writes, offset, self._appended))
            elif isinstance(key, m.GroupMetadataKey):
                touched.add(key.group)
                if value is None:  # the group is deleted: a group of that name begins anew
                    view.promised = view.generation = -1
                    view.written = (-1, 0)
                    view.leader = None
                    view.owners = {}
                    view.incarnation += 1
                else:
                    if value.generation < view.written[0]:
                        text = f"group {key.group!r} is written with {value.generation} after {view.written[0]}"
                        raise ViolationError("generation", text)
                    view.generation = max(view.generation, value.generation)
                    view.written = (value.generation, self._appended)

    def _note_generation(self, group_id: str, generation_id: int) -> None:
        view = self._view(group_id)
        if generation_id <= max(view.generation, view.promised):
            text = f"group {group_id!r} joined into {generation_id} after {max(view.generation, view.promised)}"
            raise ViolationError("generation", text)
        view.generation = generation_id
        view.owners = {}

    def _loaded(self, machine: GroupMachine, records: Sequence[LogRecord]) -> None:
        self._durable = self._base = self._appended
        offsets: dict[tuple[str, TopicPartition], int] = {}
        generations: dict[str, int] = {}
        for key, value in records:
            if isinstance(key, m.OffsetCommitKey):
                offsets[key.group, TopicPartition(key.topic, key.partition)] = (
                    _NO_OFFSET if value is None else value.offset
                )
            elif isinstance(key, m.GroupMetadataKey):
                generations[key.group] = -1 if value is None else value.generation
        for group_id, view in self._views.items():
            view.generation = generations.get(group_id, -1)
            view.written = (view.generation, 0)
            if view.generation < view.promised:
                text = f"group {group_id!r} came back in {view.generation}, members know of {view.promised}"
                raise ViolationError("generation", text)
            view.leader = None
            view.owners = {}
            group = machine.groups.get(group_id)
            view.state = None if group is None else group.state
            for partition, register in view.registers.items():
                offset = offsets.get((group_id, partition), _NO_OFFSET)
                write = next((write for write in reversed(register.writes) if write.offset == offset), None)
                if write is None:
                    known = [write.offset for write in register.writes]
                    text = f"{partition.topic}-{partition.partition} came back as {offset}, not one of {known}"
                    raise ViolationError("commits", text)
                write.append = 0
                register.writes = deque([write])

    # ---- answers

    def _note_reply(self, reply: Reply, before: int | None) -> None:
        """`before`: appends there were before the request came; None if it was not asked in this very call."""
        asked = self._asked.get(reply.token)
        if asked is None or asked.answer is not None:
            raise ViolationError("answered once", f"token {reply.token} has an answer already, or was not asked")
        if reply.after > self._appended:
            raise ViolationError("durable first", f"an answer waits for append {reply.after} of {self._appended}")
        asked.answer = reply.message
        asked.after = reply.after
        message = asked.request.message
        if isinstance(message, m.JoinGroupRequest):
            if not reply.message.error_code:
                self._judge_join(message, reply.message)
        elif isinstance(message, m.SyncGroupRequest):
            if not reply.message.error_code:
                self._judge_sync(message, reply)
        elif isinstance(message, m.OffsetCommitRequest):
            self._judge_commit(message, reply, self._appended if before is None else before)
        elif isinstance(message, m.OffsetFetchRequest):
            self._judge_fetch(asked, message, reply.message)

    def _judge_join(self, request: m.JoinGroupRequest, answer: m.JoinGroupResponse) -> None:
        view = self._view(request.group_id)
        if answer.generation_id != view.generation:
            text = f"a member joins {answer.generation_id} while {view.generation} is the present one"
            raise ViolationError("generation", text)
        if answer.leader != answer.member_id:
            return
        who = request.group_instance_id or answer.member_id
        if view.leader is not None and view.leader[0] == answer.generation_id and view.leader[1] != who:
            text = f"generation {answer.generation_id} of {request.group_id!r} is led by {view.leader[1]} and {who}"
            raise ViolationError("one leader", text)
        view.leader = (answer.generation_id, who)

    def _judge_sync(self, request: m.SyncGroupRequest, reply: Reply) -> None:
        view = self._view(request.group_id)
        if request.generation_id != view.generation:
            text = f"SyncGroup of {request.generation_id} is answered while {view.generation} is the present one"
            raise ViolationError("generation", text)
        generation_id, append = view.written
        if generation_id != request.generation_id or reply.after < append:
            text = f"the assignment of generation {request.generation_id} is told, the log has {generation_id}"
            raise ViolationError("durable first", text)
        who = request.group_instance_id or request.member_id
        for partition in self._read_assignment(reply.message.assignment):
            owner = view.owners.setdefault(partition, who)
            if owner != who:
                text = f"{partition.topic}-{partition.partition} goes to {owner} and {who} in {request.generation_id}"
                raise ViolationError("one owner", text)

    def _judge_commit(self, request: m.OffsetCommitRequest, reply: Reply, before: int) -> None:
        view = self._view(request.group_id)
        asked = {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in request.topics
            for partition in topic.partitions
        }
        for topic in reply.message.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    continue
                generation_id = request.generation_id_or_member_epoch
                if generation_id >= 0 and generation_id != view.generation:
                    text = f"a commit of generation {generation_id} is taken in {view.generation}"
                    raise ViolationError("fenced", text)
                place = TopicPartition(topic.name, partition.partition_index)
                register = view.registers.get(place)
                write = None if register is None else register.writes[-1]
                if write is None or write.append <= before or write.offset != asked[place]:
                    text = f"{topic.name}-{partition.partition_index} is acknowledged, and was not written"
                    raise ViolationError("commits", text)
                if reply.after < write.append:
                    raise ViolationError("durable first", f"a commit in append {write.append} waits for {reply.after}")

    def _judge_fetch(self, asked: _Asked, request: m.OffsetFetchRequest, answer: m.OffsetFetchResponse) -> None:
        groups: list[tuple[str, Sequence[Any]]] = [(group.group_id, group.topics) for group in answer.groups]
        for group_id, topics in groups or [(request.group_id, answer.topics)]:
            registers = self._view(group_id).registers
            for topic in topics:
                for partition in topic.partitions:
                    register = registers.get(TopicPartition(topic.name, partition.partition_index))
                    if register is None or partition.error_code:
                        continue
                    offset = partition.committed_offset
                    for write in reversed(register.writes):
                        if write.offset == offset:
                            asked.reads.append((register, write))
                            break
                    else:
                        text = f"{topic.name}-{partition.partition_index} is {offset}: older than what was told"
                        raise ViolationError("commits", text)

    def sent(self, token: int, message: Any) -> None:
        """This answer to the request has left the coordinator."""
        asked = self._asked.pop(token, None)
        if asked is None:
            raise ViolationError("answered once", f"token {token} is answered twice")
        answer = asked.answer
        if answer is not message:
            return  # refused by the runtime, whose disk has failed
        if asked.after > self._durable:
            text = f"an answer left that waits for append {asked.after}; the disk has {self._durable}"
            raise ViolationError("durable first", text)
        message = asked.request.message
        if isinstance(message, m.SyncGroupRequest):
            if not answer.error_code:
                view = self._view(message.group_id)
                view.promised = max(view.promised, message.generation_id)
        elif isinstance(message, m.OffsetCommitRequest):
            self._acknowledge(message, answer)
        elif isinstance(message, m.OffsetFetchRequest):
            for register, write in asked.reads:
                if write.append > self._durable:
                    raise ViolationError("durable first", f"offset {write.offset} was read before it was on disk")
                register.known(write.number) if register.writes[0].number < write.number else None

    def _acknowledge(self, message: m.OffsetCommitRequest, answer: m.OffsetCommitResponse) -> None:
        registers = self._view(message.group_id).registers
        asked = {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in message.topics
            for partition in topic.partitions
        }
        for topic in answer.topics:
            for partition in topic.partitions:
                if not partition.error_code:
                    place = TopicPartition(topic.name, partition.partition_index)
                    register = registers[place]
                    for write in register.writes:
                        if write.offset == asked[place]:
                            register.known(write.number)
                            break


class Watched:
    """A coordinator's machine with the judge beside it; the runtime takes it for the machine."""

    def __init__(self, machine: GroupMachine, invariants: Invariants) -> None:
        self.machine = machine
        self._invariants = invariants
        self._handle = machine.handle

    @property
    def deadline(self) -> int | None:
        """The machine's."""
        return self.machine.deadline

    @property
    def appended(self) -> int:
        """The machine's."""
        return self.machine.appended

    def handle(self, event: Event, now: int) -> list[Effect]:
        """What the machine does of it, once the judge has looked."""
        effects = self._handle(event, now)
        self._invariants.handled(self.machine, event, effects, now)
        return effects
