"""The laws of `laws`, checked after every event of a virtual cluster, with those of `worlds.group.invariants` that
do not depend on the protocol.

Of these stay ``commits``, ``answered once``, ``durable first``, ``never fails``; ``fenced`` becomes: a commit is
accepted only in the member's epoch, or in an earlier one for a partition that it has held since (KIP-1251). And also:

``log is complete``      what a coordinator reads from its log is a state that the one before it was in, no earlier
                         than the last that it had on disk
``revocation is timed``  a member that makes no progress with what it is to give up is removed after its rebalance
                         timeout
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from typing import Any, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup, Member, MemberState
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.groups import Group
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.consumer_groups.laws import (
    Client,
    Epochs,
    assigned,
    check_clients,
    check_group,
    check_step,
    snapshot,
)
from kcoord_wire.worlds.group.invariants import Invariants
from kcoord_wire.worlds.group.topics import VirtualTopics


class _Kept(NamedTuple):
    """What all groups were after an append.

    :ivar append: its number
    :ivar groups: snapshots
    :ivar is_whole: whether it was the only one of its event; else the states between were not seen
    """

    append: int
    groups: Hashable
    is_whole: bool


def consumer_groups(machine: GroupMachine) -> dict[str, ConsumerGroup]:
    """Return the groups of the newer protocol that a coordinator has, by id."""
    return {group_id: group for group_id, group in machine.groups.items() if isinstance(group, ConsumerGroup)}


class ConsumerGroupInvariants(Invariants):
    """Checks the laws of one coordinator and its clients through all its boots.

    :param clients: returns those that run
    """

    def __init__(self, topics: VirtualTopics, clients: Callable[[], Iterable[Client]]) -> None:
        super().__init__(ConsumerProtocol().decode_assignment)
        self._topics = topics
        self._clients = clients
        self._machine: GroupMachine | None = None
        self._epochs: dict[str, Epochs] = {}
        self._kept: deque[_Kept] = deque([_Kept(0, (), is_whole=True)])
        self._revoking: dict[str, tuple[Member, int]] = {}  # by member id: as it is, and since when
        self._members: Set[str] = set()
        self._returning: set[str] = (
            set()
        )  # ids of members that have come with partitions from before; see `check_clients`

    def began(self) -> None:
        """See `Invariants`."""
        super().began()
        self._machine = None
        self._epochs = {}
        self._revoking = {}

    def on_disk(self, last: int) -> None:
        """See `Invariants`."""
        super().on_disk(last)
        while len(self._kept) > 1 and self._kept[1].append <= self._durable:
            self._kept.popleft()

    def handled(self, machine: GroupMachine, event: events.Event, effects: Sequence[events.Effect], now: int) -> None:
        """See `Invariants`."""
        self._machine = machine
        groups = consumer_groups(machine)
        before = self._appended
        super().handled(machine, event, effects, now)
        if isinstance(event, events.Load):
            self._revoking = {}  # the timers start anew
            self._check_loaded_groups(groups)
        elif self._appended > before:
            self._kept.append(_Kept(self._appended, _all(groups), is_whole=self._appended == before + 1))
        rejoined = self._rejoined(event)
        for group_id, group in groups.items():
            check_step(self._epochs.get(group_id), group, rejoined)
            check_group(group)
            self._check_revocations(group, now)
        self._epochs = {group_id: Epochs.of(group) for group_id, group in groups.items()}
        members = {member_id for group in groups.values() for member_id in group.members}
        self._returning |= {each.member_id for each in self._clients() if each.owned} & (members - self._members)
        self._members = members
        self.check_clients()

    def _check_revocations(self, group: ConsumerGroup, now: int) -> None:
        for member_id, member in group.members.items():
            if member.state is not MemberState.UNREVOKED_PARTITIONS or member.classic is not None:
                self._revoking.pop(member_id, None)
                continue
            known, since = self._revoking.get(member_id, (None, now))
            if member != known:
                self._revoking[member_id] = (member, now)
            elif now > since + member.rebalance_timeout_ms:
                text = f"{member_id} may take {member.rebalance_timeout_ms} ms, and has taken {now - since}"
                raise ViolationError("revocation is timed", text)

    @staticmethod
    def _rejoined(event: events.Event) -> Sequence[str]:
        message = event.message if isinstance(event, events.Request) else None
        if isinstance(message, m.ConsumerGroupHeartbeatRequest) and message.member_epoch == 0:
            return [message.member_id]
        return []

    def check_clients(self) -> None:
        """Check what clients own, after something has happened to one of them.

        A classic member that the group had removed may come back by its id, and goes on with what it had until it gets
        its new assignment (as in Kafka; it cannot commit that). It counts when it has given up the rest.

        :raises ViolationError: with the name of the law
        """
        if self._machine is None:
            return
        for group in consumer_groups(self._machine).values():
            clients = list(self._clients())
            self._returning -= {each.member_id for each in clients if each.owned <= assigned(group, each.member_id)}
            check_clients(group, [each for each in clients if each.member_id not in self._returning])

    # ---- the log

    def _check_loaded_groups(self, groups: dict[str, ConsumerGroup]) -> None:
        loaded = _all(groups)
        kept, self._kept = self._kept, deque([_Kept(self._appended, loaded, is_whole=True)])
        was_seen = all(each.is_whole for each in list(kept)[1:])
        if was_seen and all(each.groups != loaded for each in kept):
            raise ViolationError("log is complete", f"read {loaded}, expected one of {[each.groups for each in kept]}")

    # ---- what differs from the classic protocol

    def _consumer_group(self, group_id: str) -> ConsumerGroup | None:
        return None if self._machine is None else consumer_groups(self._machine).get(group_id)

    def _note_report(self, report: events.RebalanceReport, touched: set[str]) -> None:
        if self._consumer_group(report.rebalance.group_id) is None:
            super()._note_report(report, touched)  # else the epochs are checked instead

    def _check_state(self, group_id: str, group: Group | None, event: events.Event) -> None:
        if self._consumer_group(group_id) is not None or group_id in self._epochs:
            self._view(group_id).state = None if group is None else group.state
        else:
            super()._check_state(group_id, group, event)

    def _check_join(self, request: m.JoinGroupRequest, answer: m.JoinGroupResponse) -> None:
        group = self._consumer_group(request.group_id)
        if group is None and request.group_id in self._epochs and not answer.generation_id:
            pass  # a static member whose return makes the group classic, which rebalances at once (as in Kafka)
        elif group is None:
            super()._check_join(request, answer)
        elif not answer.error_code and answer.generation_id != group.members[answer.member_id].epoch:
            text = f"{answer.member_id} joins {answer.generation_id}, for the coordinator {snapshot(group)}"
            raise ViolationError("generation", text)

    def _check_sync(self, request: m.SyncGroupRequest, reply: events.Reply) -> None:
        group = self._consumer_group(request.group_id)
        if group is None:
            super()._check_sync(request, reply)
        elif not reply.message.error_code:
            given = self._decode_assignment(reply.message.assignment).partitions
            held = group.members[request.member_id].assigned
            ids = {self._topics.id_of(name): set(numbers) for name, numbers in given.items() if numbers}
            if ids != {topic_id: set(numbers) for topic_id, numbers in held.items()}:
                text = f"{request.member_id} is given {given}, for the coordinator {snapshot(group)}"
                raise ViolationError("one owner", text)

    def _note_promise(self, request: m.SyncGroupRequest) -> None:
        if self._consumer_group(request.group_id) is None:
            super()._note_promise(request)

    def _check_fence(self, view: Any, request: m.OffsetCommitRequest, partition: TopicPartition) -> None:
        group = self._consumer_group(request.group_id)
        if group is None and self._machine is not None and request.group_id in self._machine.groups:
            return super()._check_fence(view, request, partition)
        member = None if group is None else group.members.get(request.member_id)
        epoch = request.generation_id_or_member_epoch
        if member is None:
            if epoch >= 0:
                raise ViolationError("fenced", f"a commit of {request.member_id} is accepted, who is no member")
            return
        topic_id = self._topics.id_of(partition.topic)
        since = None if topic_id is None else member.assignment_epoch(topic_id, partition.partition)
        if epoch != member.epoch and (since is None or not since <= epoch <= member.epoch):
            text = f"{partition} is committed in {epoch} by {member.member_id}, which has it since {since}"
            raise ViolationError("fenced", text)
        return None


def _all(groups: dict[str, ConsumerGroup]) -> Hashable:
    return tuple((group_id, snapshot(group)) for group_id, group in sorted(groups.items()))
