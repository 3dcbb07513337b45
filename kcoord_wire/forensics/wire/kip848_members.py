"""Members of KIP-848 groups: what their heartbeats say and are answered, and what may have raised the group's epoch.

Laws:

* A member joins with epoch 0 and leaves with -1, or with -2 if it is static and will return.
* An epoch counts from the moment when the first member receives it; the epoch that the source begins with is not new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kcoord_wire.forensics.model import Cause
from kcoord_wire.forensics.wire.facts import describe_member
from kcoord_wire.forensics.wire.moments import Moment
from kcoord_wire.forensics.wire.rules import EPOCH_RULES
from kcoord_wire.forensics.wire.trace import MemberTrace, Why
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic, Partition
from kcoord_wire.protocol.error_codes import ErrorCode

_API: Final = "ConsumerGroupHeartbeat"
_JOINS: Final = 0
_LEAVES: Final = -1
_LEAVES_FOR_NOW: Final = -2
_REJECTIONS: Final = {ErrorCode.UNKNOWN_MEMBER_ID: Why.SESSION, ErrorCode.FENCED_MEMBER_EPOCH: Why.REBALANCE}


class ReceivedEpoch(NamedTuple):
    """A member received an epoch for the first time, or partitions in it.

    :ivar assignment: None: the assignment is unchanged
    """

    epoch: int
    at: Moment
    assignment: frozenset[Partition] | None


class OwnedReport(NamedTuple):
    """A member stated which partitions it owns."""

    at: Moment
    owned: frozenset[Partition]


class NewEpoch(NamedTuple):
    """The first time that a member received an epoch of the group."""

    epoch: int
    at: Moment
    request: GroupRequest


class MemberCount(NamedTuple):
    """How many members the group has from a moment on."""

    at: Moment
    size: int


@dataclass(slots=True, eq=False)
class EpochMember(MemberTrace):
    """The life of a member id of the KIP-848 protocol.

    :ivar received: the epochs that it received
    :ivar reports: what it stated that it owns
    """

    topics: tuple[str, ...] = ()
    regex: str | None = None
    assignor: str | None = None
    received: list[ReceivedEpoch] = field(default_factory=list)
    reports: list[OwnedReport] = field(default_factory=list)
    timeout_ms: int | None = None

    @property
    def has_left_for_now(self) -> bool:
        """Whether it left as a static member that will return."""
        return self.leave is not None and self.leave.generation == _LEAVES_FOR_NOW


@dataclass(slots=True)
class EpochTrigger:
    """What may have raised the epoch of a group."""

    at: Moment
    cause: Cause
    member: EpochMember
    request: GroupRequest | None
    text: str
    confidence: float


def new_trigger(
    rule: str, at: Moment, member: EpochMember, request: GroupRequest | None, what: str = ""
) -> EpochTrigger:
    """Make the trigger that a rule of `EPOCH_RULES` describes."""
    found = EPOCH_RULES[rule]
    text = found.sentence.format(who=describe_member(member), what=what)
    return EpochTrigger(at, found.cause, member, request, text, found.confidence)


def read_heartbeats(traffic: GroupTraffic) -> EpochReader:
    """Read all ConsumerGroupHeartbeat exchanges of a group."""
    reader = EpochReader(traffic)
    first = traffic.heartbeats.first
    silent = sorted(((first[name].at, name) for name in traffic.heartbeats.modern), reverse=True)
    for at, is_answer, request in _moments(traffic.requests):
        while silent and silent[-1][0] < at:
            reader.take_first_sign(*silent.pop())
        (reader.take_answer if is_answer else reader.take_request)(at, request)
    while silent:
        reader.take_first_sign(*silent.pop())
    return reader


def _moments(requests: list[GroupRequest]) -> list[tuple[Moment, bool, GroupRequest]]:
    moments = []
    for request in requests:
        if request.api == _API:
            moments.append((request.due, False, request))
            if request.answered is not None:
                moments.append((request.answered, True, request))
    return sorted(moments, key=lambda moment: moment[:2])


class EpochReader:
    """Follows the members and the epochs of a group through its heartbeats.

    :ivar members: the present members, by member id
    :ivar lives: all that there were
    :ivar triggers: what may have raised the epoch, in order of time
    :ivar epochs: the epochs of the group
    :ivar counts: the number of members, whenever that changed
    :ivar base: the epoch that the source begins with, 0 for none
    :ivar began: when that was seen
    """

    def __init__(self, traffic: GroupTraffic) -> None:
        self.traffic = traffic
        self.members: dict[str, EpochMember] = {}
        self.lives: list[EpochMember] = []
        self.triggers: list[EpochTrigger] = []
        self.epochs: list[NewEpoch] = []
        self.counts: list[MemberCount] = []
        self.base = 0
        self.began: Moment | None = None
        self._senders: dict[GroupRequest, EpochMember] = {}
        self._names: set[str] = set()

    # ---- requests and responses

    def take_first_sign(self, at: Moment, member_id: str) -> None:
        """A quiet heartbeat of a member of which nothing else was seen before."""
        if member_id in self._names:
            return
        sign = self.traffic.heartbeats.first[member_id]
        member = EpochMember(member_id, sign.instance_id, sign.client_id, sign.host, at, is_new=False)
        member.first_generation = member.last_generation = sign.generation
        self._admit(member)
        self._set_base(at, sign.generation or 0)

    def take_request(self, at: Moment, request: GroupRequest) -> None:
        member = self.members.get(request.member_id) if request.member_id else None
        if request.generation in (_LEAVES, _LEAVES_FOR_NOW):
            if member is not None and not request.error:
                self._leave(at, request, member)
        elif request.generation == _JOINS:
            if not request.error:
                self._join(at, request, member)
        elif request.generation is not None and request.error not in _REJECTIONS:
            if member is None and request.member_id:
                member = self._begin(at, request, request.member_id, is_new=False)
            if member is not None:
                self._take_epoch(at, request, request.generation, member)

    def _take_epoch(self, at: Moment, request: GroupRequest, epoch: int, member: EpochMember) -> None:
        self._senders[request] = member
        if not member.is_new:
            self._set_base(at, epoch)
        if request.owned is not None:
            member.reports.append(OwnedReport(at, request.owned))
        if not request.error:
            self._compare(at, request, member)

    def take_answer(self, at: Moment, request: GroupRequest) -> None:
        member = self._senders.get(request) or self.members.get(request.who)
        if member is None:
            return
        if request.error in _REJECTIONS:
            member.rejection = request
            self._end(member, at, _REJECTIONS[ErrorCode(request.error)])
            return
        epoch = request.new_generation
        if request.error or epoch is None or epoch <= 0:
            return
        if epoch > (self.epochs[-1].epoch if self.epochs else self.base):
            self.epochs.append(NewEpoch(epoch, at, request))
        if not member.received or member.received[-1].epoch != epoch or request.assignment is not None:
            member.received.append(ReceivedEpoch(epoch, at, request.assignment))
        member.first_generation = epoch if member.first_generation is None else member.first_generation
        member.last_generation = epoch

    def _set_base(self, at: Moment, epoch: int) -> None:
        """The source begins with a group that has an epoch."""
        if not self.epochs and epoch > self.base:
            self.base = epoch
            self.began = self.began or at

    # ---- members

    def _begin(self, at: Moment, request: GroupRequest, member_id: str, *, is_new: bool) -> EpochMember:
        member = EpochMember(member_id, request.instance_id, request.client_id, request.host, at, is_new)
        member.topics, member.regex, member.assignor = request.topics or (), request.topic_regex, request.assignor
        if request.rebalance_ms is not None and request.rebalance_ms >= 0:
            member.timeout_ms = request.rebalance_ms
        member.connections.add(request.connection)
        member.joins.append(request)
        self._admit(member)
        return member

    def _admit(self, member: EpochMember) -> None:
        self.members[member.member_id] = member
        self.lives.append(member)
        self._names.add(member.member_id)
        self.counts.append(MemberCount(member.since, len(self.members)))

    def _end(self, member: EpochMember, at: Moment, why: Why) -> None:
        if member.left is None:
            member.left, member.why = at, why
        if self.members.get(member.member_id) is member:
            del self.members[member.member_id]
            self.counts.append(MemberCount(at, len(self.members)))

    def _join(self, at: Moment, request: GroupRequest, present: EpochMember | None) -> None:
        member_id = request.member_id or request.given_id
        if not member_id:
            return
        former = present or next((old for old in reversed(self.lives) if old.member_id == member_id), None)
        holder = None
        if request.instance_id is not None:
            holder = next((old for old in reversed(self.lives) if old.instance_id == request.instance_id), None)
        if present is not None:
            self._end(present, at, Why.SESSION if present.rejection is None else Why.REBALANCE)
        member = self._begin(at, request, member_id, is_new=True)
        member.former = former
        self._senders[request] = member
        self.triggers.append(new_trigger(self._joining_rule(at, member, former, holder), at, member, request))

    def _joining_rule(
        self, at: Moment, member: EpochMember, former: EpochMember | None, holder: EpochMember | None
    ) -> str:
        """Name the rule for a join, and correct what was recorded of the life before."""
        if former is not None and former.why == Why.LEFT and former.leave is not None:
            self._correct_leave(member, former)
            return "returned"
        if former is not None and former.rejection is not None:
            return "missed" if former.rejection.error == ErrorCode.FENCED_MEMBER_EPOCH else "removed"
        if holder is None or holder is former:
            return "new"
        if holder.left is None:
            self._end(holder, at, Why.REPLACED)
        else:
            holder.why = Why.REPLACED
        return "replaced"

    def _correct_leave(self, member: EpochMember, former: EpochMember) -> None:
        """A member that left and returns under its id is the same process: it had not polled in time."""
        former.why = Why.POLL_TIMEOUT
        rule = EPOCH_RULES["did not poll"]
        for trigger in self.triggers:
            if trigger.request is former.leave:
                trigger.cause, trigger.confidence = rule.cause, rule.confidence
                trigger.text = rule.sentence.format(who=describe_member(member))

    def _leave(self, at: Moment, request: GroupRequest, member: EpochMember) -> None:
        member.leave = request
        self._end(member, at, Why.LEFT)
        if not member.has_left_for_now:  # else it will return, and its partitions stay with it
            rule = "left unanswered" if request.answered is None else "left"
            self.triggers.append(new_trigger(rule, at, member, request))

    def _compare(self, at: Moment, request: GroupRequest, member: EpochMember) -> None:
        """Find what a heartbeat changes in what the member asks for."""
        topics = request.topics if request.topics is not None else member.topics
        regex = request.topic_regex or member.regex
        if (topics, regex) != (member.topics, member.regex):
            if member.topics or member.regex or member.is_new:
                names = ", ".join(topics) or regex or "nothing"
                self.triggers.append(new_trigger("subscription", at, member, request, names))
            member.topics, member.regex = topics, regex
        if request.assignor is not None and request.assignor != member.assignor:
            if member.assignor is not None:
                self.triggers.append(new_trigger("assignors", at, member, request, request.assignor))
            member.assignor = request.assignor
