"""Groups whose coordinator assigns (`EPOCH_APIS`): what their heartbeats show of epochs, members and owners.

The coordinator assigns in these groups, and each member learns its part from the response to its next heartbeat. A
rebalance is the way from one group epoch to the next: from what raised it to the moment when every member has the new
epoch and has stated that it owns what it was assigned. An epoch that no member received is not seen, and not counted.

Laws:

* A member owns a partition from the response that assigns it to the first heartbeat that no longer names it. A static
  member that will return (epoch -2) keeps its partitions meanwhile.
* The session timeout is the broker's (``group.consumer.session.timeout.ms``) and not on the wire: a member that falls
  silent is taken to have exceeded it, with less confidence.
* Members of a share group have partitions together: none waits for another to give one up, and no move is needless.
* Of a streams group, partitions are active tasks, with the subtopology in place of the topic.
* A member joins with epoch 0 and leaves with -1, or with -2 if it is static and will return.
* An epoch counts from the moment when the first member receives it; the epoch that the source begins with is not new.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.history import StateMove
from kcoord_wire.forensics.model import EPOCH_APIS, Evidence, Generation, MemberLife
from kcoord_wire.forensics.wire.facts import MAX_CITED, describe_member, evidence_of
from kcoord_wire.forensics.wire.members import member_row
from kcoord_wire.forensics.wire.ownership import HeldPartition, Holder, Owners, fair_share
from kcoord_wire.forensics.wire.revocations import Revocation, fenced_at, revocations
from kcoord_wire.forensics.wire.rules import EPOCH_RULES, UNKNOWN, Explanation
from kcoord_wire.forensics.wire.signs import END, NEVER_NS, NS_PER_S, Moment, end_of
from kcoord_wire.forensics.wire.trace import LeaveReason, MemberTrace, RebalanceTrace, Start, StartKind
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic, Partition
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.wording import counted, first_of

_JOINS: Final = 0
_LEAVES: Final = -1
_LEAVES_FOR_NOW: Final = -2
_SHARE: Final = EPOCH_APIS["ShareGroupHeartbeat"]
_STREAMS: Final = EPOCH_APIS["StreamsGroupHeartbeat"]
_DEPARTURES: Final = (Cause.MEMBER_LEFT, Cause.SESSION_EXPIRED, Cause.POLL_TIMEOUT)
_REJECTIONS: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID: LeaveReason.SESSION,
    ErrorCode.FENCED_MEMBER_EPOCH: LeaveReason.REBALANCE,
}


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


@dataclass(slots=True, eq=False)
class EpochMember(MemberTrace):
    """The life of a member id in a group whose coordinator assigns.

    :ivar api: of its heartbeats
    :ivar received: the epochs that it received
    :ivar reports: what it stated that it owns
    :ivar revocations: what it had to give up
    """

    api: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    assignor: str | None = None
    received: list[ReceivedEpoch] = field(default_factory=list)
    reports: list[OwnedReport] = field(default_factory=list)
    revocations: list[Revocation] = field(default_factory=list)

    @property
    def protocol_type(self) -> str:
        """Of its group."""
        return EPOCH_APIS[self.api]

    @property
    def is_sharing(self) -> bool:
        """Whether it is in a share group: others have its partitions, too, and none waits for it to give one up."""
        return self.protocol_type == _SHARE

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

    @property
    def is_departure(self) -> bool:
        """Whether the member was in the group until then."""
        is_fenced = self.cause == Cause.REBALANCE_TIMEOUT and self.member.rejection is not None
        return is_fenced or self.cause in _DEPARTURES


def new_trigger(
    rule: str, at: Moment, member: EpochMember, request: GroupRequest | None, what: str = ""
) -> EpochTrigger:
    """Make the trigger that a rule of `EPOCH_RULES` describes."""
    found = EPOCH_RULES[rule]
    text = found.sentence.format(who=describe_member(member), what=what)
    return EpochTrigger(at, found.cause, member, request, text, found.confidence)


def read_heartbeats(traffic: GroupTraffic) -> EpochReader:
    """Read all exchanges of `EPOCH_APIS` of a group."""
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
        if request.api in EPOCH_APIS:
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
    :ivar base: the epoch that the source begins with, 0 for none
    :ivar began: when that was seen
    """

    def __init__(self, traffic: GroupTraffic) -> None:
        self.traffic = traffic
        self.members: dict[str, EpochMember] = {}
        self.lives: list[EpochMember] = []
        self.triggers: list[EpochTrigger] = []
        self.epochs: list[NewEpoch] = []
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
        member.api = self.traffic.heartbeats.modern[member_id]
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
        member.api = request.api
        member.topics, member.regex, member.assignor = request.topics or (), request.topic_regex, request.assignor
        member.connections.add(request.connection)
        member.joins.append(request)
        self._admit(member)
        return member

    def _admit(self, member: EpochMember) -> None:
        self.members[member.member_id] = member
        self.lives.append(member)
        self._names.add(member.member_id)

    def _end(self, member: EpochMember, at: Moment, why: LeaveReason) -> None:
        if member.left is None:
            member.left, member.why = at, why
        if self.members.get(member.member_id) is member:
            del self.members[member.member_id]

    def _join(self, at: Moment, request: GroupRequest, present: EpochMember | None) -> None:
        member_id = request.member_id or request.given_id
        if not member_id:
            return
        former = present or next((old for old in reversed(self.lives) if old.member_id == member_id), None)
        holder = None
        if request.instance_id is not None:
            holder = next((old for old in reversed(self.lives) if old.instance_id == request.instance_id), None)
        if present is not None:
            self._end(present, at, LeaveReason.SESSION if present.rejection is None else LeaveReason.REBALANCE)
        member = self._begin(at, request, member_id, is_new=True)
        member.former = former
        self._senders[request] = member
        self.triggers.append(new_trigger(self._joining_rule(at, member, former, holder), at, member, request))

    def _joining_rule(
        self, at: Moment, member: EpochMember, former: EpochMember | None, holder: EpochMember | None
    ) -> str:
        """Name the rule for a join, and correct what was recorded of the life before."""
        if former is not None and former.why == LeaveReason.LEFT and former.leave is not None:
            self._correct_leave(member, former)
            return "returned"
        if former is not None and former.rejection is not None:
            return "missed" if former.rejection.error == ErrorCode.FENCED_MEMBER_EPOCH else "removed"
        if holder is None or holder is former:
            return "new"
        if holder.left is None:
            self._end(holder, at, LeaveReason.REPLACED)
        else:
            holder.why = LeaveReason.REPLACED
        return "replaced"

    def _correct_leave(self, member: EpochMember, former: EpochMember) -> None:
        """A member that left and returns under its id is the same process: it had not polled in time."""
        former.why = LeaveReason.POLL_TIMEOUT
        rule = EPOCH_RULES["did not poll"]
        for trigger in self.triggers:
            if trigger.request is former.leave:
                trigger.cause, trigger.confidence = rule.cause, rule.confidence
                trigger.text = rule.sentence.format(who=describe_member(member))

    def _leave(self, at: Moment, request: GroupRequest, member: EpochMember) -> None:
        member.leave = request
        self._end(member, at, LeaveReason.LEFT)
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


_MISSED_HEARTBEATS: Final = 3  # after these a member counts as silent; its session lasts for nine by default
_COMPARED_MEMBERS: Final = 16  # whose heartbeats give the interval; one that goes on is enough
_MS_PER_S: Final = 1_000
_METADATA_DELAY_NS: Final = 300 * NS_PER_S  # clients refresh their metadata every five minutes by default


@dataclass(slots=True, eq=False)
class EpochTrace(RebalanceTrace):
    """The way from one epoch of the group to the next.

    :ivar request: of the first member that received the epoch; None if the last members have left
    :ivar triggers: what may have raised it
    :ivar assignor: that a member asked for
    :ivar following: when the next one starts
    :ivar moved: how many partitions moved, and how many of them needlessly
    :ivar protocol_type: of the group
    """

    request: GroupRequest | None = None
    triggers: Sequence[EpochTrigger] = ()
    assignor: str | None = None
    following: Moment | None = None
    moved: tuple[int, int] = (0, 0)
    protocol_type: str = "consumer"

    @property
    def until(self) -> Moment:
        return self.following or END


@dataclass(slots=True)
class Epochs:
    """The history of a KIP-848 group; each list in order of time."""

    rebalances: list[tuple[EpochTrace, Explanation]] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    states: list[StateMove] = field(default_factory=list)
    members: list[MemberLife] = field(default_factory=list)
    lives: list[EpochMember] = field(default_factory=list)
    holdings: list[HeldPartition] = field(default_factory=list)

    @property
    def protocol_type(self) -> str | None:
        """Of the group; None without members."""
        return next((member.protocol_type for member in self.lives), None)

    @property
    def unknown(self) -> int:
        """How many rebalances have no known cause."""
        return sum(explanation.cause == Cause.UNKNOWN for _, explanation in self.rebalances)


def read_epochs(traffic: GroupTraffic) -> Epochs:
    """Read the history of a group from its exchanges of `EPOCH_APIS`; empty if there are none."""
    if not traffic.heartbeats.modern and all(request.api not in EPOCH_APIS for request in traffic.requests):
        return Epochs()
    return EpochHistory(read_heartbeats(traffic)).epochs()


class EpochHistory:
    """Finds what `EpochReader` has read of members and owners in each epoch."""

    def __init__(self, read: EpochReader) -> None:
        self._read = read
        self._group_id = read.traffic.group_id
        self._assigned: dict[int, set[Partition]] = defaultdict(set)
        for member in read.lives:
            member.revocations = [] if member.is_sharing else revocations(member)
            for epoch, _, partitions in member.received:
                self._assigned[epoch] |= partitions or frozenset()

    def epochs(self) -> Epochs:
        lives = self._read.lives
        triggers = sorted([*self._read.triggers, *self._silent_members()], key=attrgetter("at"))
        traces, rest = self._traces(triggers)
        holdings = sorted((holding for member in lives for holding in self._holdings(member)), key=attrgetter("order"))
        by_time = sorted(holdings, key=attrgetter("from_ns"))
        owners = Owners()
        for trace in traces:
            self._follow(trace)
            trace.moved = self._count_moves(trace, by_time, owners)
        generations = [self._generation(trace) for trace in traces]
        explained = [(trace, self._explain(trace)) for trace in traces]
        last = self._last_departures(rest)
        if last is not None:
            if traces and traces[-1].outcome == "open":
                traces[-1].outcome = "interrupted"
            explained.append((last, _departed(last)))
        states = list(self._states([trace for trace, _ in explained]))
        return Epochs(explained, generations, states, [self._member(member) for member in lives], lives, holdings)

    def _traces(self, triggers: list[EpochTrigger]) -> tuple[list[EpochTrace], list[EpochTrigger]]:
        """Give each epoch the triggers since the one before; return the triggers behind the last epoch too."""
        traces: list[EpochTrace] = []
        used = 0
        assignor = next((member.assignor for member in self._read.lives if member.assignor is not None), None)
        moments = [trigger.at for trigger in triggers]
        for new in self._read.epochs:
            fresh = triggers[used : bisect_right(moments, new.at)]
            used += len(fresh)
            trace = self._trace(fresh, new.at)
            trace.joined, trace.generation, trace.request, trace.assignor = new.at, new.epoch, new.request, assignor
            traces.append(trace)
        for trace, following in pairwise(traces):
            trace.following = following.started
        return traces, triggers[used:]

    def _trace(self, triggers: Sequence[EpochTrigger], at: Moment) -> EpochTrace:
        """Begin a rebalance at the first of its triggers, or at a moment if it has none."""
        if triggers:
            first = triggers[0]
            is_silent = first.cause == Cause.SESSION_EXPIRED
            start = Start(StartKind.SESSION if is_silent else StartKind.JOINED, first.at, first.member)
        else:
            start = Start(StartKind.HIDDEN, at)
        before: dict[str, MemberTrace] = {
            member.member_id: member
            for member in self._read.lives
            if member.since < start.at and (member.left is None or member.left >= start.at)
        }
        gone = [trigger.member for trigger in triggers if trigger.is_departure]
        kind = self._read.lives[0].protocol_type
        trace = EpochTrace(start, before, not before, None, triggers=triggers, protocol_type=kind)
        trace.removed += [(member, member.why or LeaveReason.LEFT) for member in gone]
        return trace

    # ---- members that fall silent

    def _silent_members(self) -> list[EpochTrigger]:
        """Find members that fall silent although the source goes on, or are rejected when they come back."""
        latest = sorted(self._read.lives, key=lambda member: -self._last_seen(member, None))[:_COMPARED_MEMBERS]
        triggers = []
        for member in self._read.lives:
            if member.left is None:
                gone = self._silent_since(member, latest)
                if gone is not None:
                    member.left, member.why = gone, LeaveReason.SESSION
                    triggers.append(new_trigger("silent", gone, member, None))
            elif member.rejection is not None:
                triggers.append(self._rejected(member, member.left, member.rejection))
        return triggers

    def _rejected(self, member: EpochMember, left: Moment, rejection: GroupRequest) -> EpochTrigger:
        """Why the coordinator had removed a member that it rejects."""
        last_ns = self._last_seen(member, left.time_ns - 1)
        rhythm = self._read.traffic.heartbeats.answered.rhythms(left.time_ns).get(member.member_id)
        fenced_ns = fenced_at(member, last_ns, None if rhythm is None else rhythm[1])
        if fenced_ns is not None:
            at = min(end_of(fenced_ns), left)
            limit = "its rebalance timeout" + (f" of {ms / _MS_PER_S:g} s" if (ms := member.rebalance_ms) else "")
            trigger = new_trigger("did not revoke", at, member, None, limit)
            member.left, member.why = at, LeaveReason.REBALANCE
        else:
            rule = "fenced" if rejection.error == ErrorCode.FENCED_MEMBER_EPOCH else "expired"
            trigger = new_trigger(rule, self._removed_at(last_ns, left), member, None)
        trigger.request = rejection
        return trigger

    def _removed_at(self, last_ns: int, left: Moment) -> Moment:
        """The first new epoch since a member's last good heartbeat, or its rejection."""
        return min(next((new.at for new in self._read.epochs if last_ns < new.at.time_ns <= left.time_ns), left), left)

    def _silent_since(self, member: EpochMember, latest: list[EpochMember]) -> Moment | None:
        """The first new epoch after which a member has missed its heartbeats, if there is one."""
        last_ns = self._last_seen(member, None)
        times = [self._third_heartbeat(other, last_ns) for other in latest if other is not member]
        missed_ns = min((time for time in times if time is not None), default=None)
        if missed_ns is None or missed_ns > self._read.traffic.seen_until(member.member_id):
            return None
        return next((new.at for new in self._read.epochs if new.at.time_ns >= missed_ns), None)

    def _third_heartbeat(self, member: EpochMember, after_ns: int) -> int | None:
        """The third heartbeat of a member after a time: all members have the same interval, whatever it is."""
        at: int | None = after_ns
        for _ in range(_MISSED_HEARTBEATS):
            at = None if at is None else self._read.traffic.heartbeats.answered.after(member.member_id, at)
        return at

    def _last_seen(self, member: EpochMember, until_ns: int | None) -> int:
        heartbeats = self._read.traffic.heartbeats
        if until_ns is None:
            beat, until_ns = heartbeats.last(member.member_id), NEVER_NS
        else:
            beat = heartbeats.answered.before(member.member_id, until_ns)
        seen = [member.since, *(each.at for each in member.received), *(each.at for each in member.reports)]
        return max([beat or 0, *(at.time_ns for at in seen if at.time_ns <= until_ns)])

    # ---- rebalances

    def _follow(self, trace: EpochTrace) -> None:
        """Find which members have the epoch, and when the last of them had."""
        acks = self._acknowledged(trace)
        trace.after = {member.member_id: member for member, _ in acks}
        trace.joins = sorted(((at, member) for member, at in acks if at is not None), key=itemgetter(0))
        assert trace.joined is not None, "a member has received it"
        last = trace.joins[-1][0] if trace.joins else trace.joined
        is_over = len(trace.joins) == len(acks) and last <= trace.until
        trace.over = last if is_over else trace.following
        trace.outcome = "stable" if is_over else "open" if trace.following is None else "interrupted"

    def _explain(self, trace: EpochTrace) -> Explanation:
        facts = _cited(trace.triggers)
        assert trace.request is not None, "a member has received it"
        text = f"{describe_member(None, trace.request)} is the first to receive epoch {trace.generation}"
        facts.append(evidence_of(trace.request, text, answer=True))
        if trace.triggers:
            first, *others = trace.triggers
            more = "; with it: " + ", ".join(other.text for other in others[:MAX_CITED]) if others else ""
            return Explanation("", first.cause, first.confidence, first.text + more, facts, None)
        changed, matched = self._changed_topics(trace), self._matched_pattern(trace)
        seen = changed or matched
        rule = EPOCH_RULES["topics" if changed else "pattern" if matched else UNKNOWN]
        what = "" if seen is None else seen.text
        facts = [*([seen] if seen else ()), *facts]
        return Explanation(rule.name, rule.cause, rule.confidence, rule.sentence.format(what=what), facts, None)

    def _acknowledged(self, trace: EpochTrace) -> list[tuple[EpochMember, Moment | None]]:
        """When each member had the epoch, and had stated that it owns what came with it; None: it has not."""
        found: list[tuple[EpochMember, Moment | None]] = []
        for member in self._read.lives:
            if member.since > trace.until or (member.left is not None and member.left <= trace.started):
                continue
            first = bisect_left(member.received, trace.generation, key=attrgetter("epoch"))
            if first < len(member.received):
                at = _acknowledged_at(member, first, trace)
                if at is not None:
                    found.append((member, at))
            elif (member.left is None or member.left > trace.until) and (
                member.since <= trace.started or member.received
            ):
                found.append((member, None))
        return found

    def _changed_topics(self, trace: EpochTrace) -> Evidence | None:
        """A topic of the group of which a client learnt another size since the epoch before, or that it got new."""
        earlier = next((new for new in reversed(self._read.epochs) if new.epoch < (trace.generation or 0)), None)
        if earlier is None and not self._read.base:
            return None  # the first epoch: all topics are new
        since_ns = 0 if earlier is None else earlier.at.time_ns
        found = self._initialized(trace) or self._created_topic(trace) or self._late_topic(trace)
        return found or self._grown_topic(trace, since_ns)

    def _initialized(self, trace: EpochTrace) -> Evidence | None:
        """Partitions that a share group assigns for the first time: once they have a share state (KIP-932)."""
        if trace.protocol_type != _SHARE:
            return None
        number, at = trace.generation or 0, trace.started
        before = {place for epoch, given in self._assigned.items() if epoch < number for place in given}
        new = self._assigned.get(number, set()) - before
        topics = sorted({topic for topic, _ in new})
        text = f"{counted(len(new), 'partition')} of {first_of(topics)} assigned for the first time"
        return Evidence(at.time_ns, at.source, -1, f"{text}: share state initialized") if new else None

    def _created_topic(self, trace: EpochTrace) -> Evidence | None:
        """A topic that a pattern matches, and that was never assigned before."""
        number, at = trace.generation or 0, trace.started
        patterns = sorted({member.regex for member in self._read.lives if member.regex})
        before = {topic for epoch, given in self._assigned.items() if epoch < number for topic, _ in given}
        named = {topic for member in self._read.lives for topic in member.topics}
        topics = sorted({topic for topic, _ in self._assigned.get(number, ())} - before - named)
        if not patterns or not topics or not before:
            return None
        text = f"{first_of(topics)} {'are' if len(topics) > 1 else 'is'} assigned for the first time"
        return Evidence(at.time_ns, at.source, -1, f"{text}: created, and matched by the pattern {first_of(patterns)}")

    def _late_topic(self, trace: EpochTrace) -> Evidence | None:
        """A topic that members have named since they joined, of which they had no partition in an earlier epoch.

        The coordinator learns of topics from the controller: of one that was just created it knows later than clients.
        """
        number, at = trace.generation or 0, trace.started
        before = {topic for epoch, given in self._assigned.items() if epoch < number for topic, _ in given}
        topics = {topic for topic, _ in self._assigned.get(number, ())} - before
        waiting = [
            member
            for member in self._read.lives
            if member.is_new and topics & set(member.topics) and any(epoch < number for epoch, _, _ in member.received)
        ]
        if not waiting:
            return None
        late = sorted(topics & {topic for member in waiting for topic in member.topics})
        text = f"{first_of(late)} {'are' if len(late) > 1 else 'is'} assigned for the first time"
        return Evidence(at.time_ns, at.source, -1, f"{text}: the coordinator did not know of it before")

    def _matched_pattern(self, trace: EpochTrace) -> Evidence | None:
        """The first assignment, to a member whose pattern the broker has matched after it had joined (KIP-848).

        Of a streams group, behind ``group.streams.initial.rebalance.delay.ms`` and the internal topics (KIP-1071).
        """
        number, at = trace.generation or 0, trace.started
        waits = trace.protocol_type == _STREAMS
        new = [each for each in self._read.lives if (each.regex or waits) and each.since < at and each.is_new]
        before = any(given for epoch, given in self._assigned.items() if epoch < number)
        if not new or before or not self._assigned.get(number):
            return None
        took = (at.time_ns - new[-1].since.time_ns) / NS_PER_S
        done = "the initial delay is over, and internal topics are there," if waits else None
        text = f"{done or f'the broker has matched the pattern {new[-1].regex}'} {took:.1f} s after"
        return Evidence(
            at.time_ns, at.source, -1, f"{text} {describe_member(new[-1], None)} joined: its first partitions"
        )

    def _grown_topic(self, trace: EpochTrace, since_ns: int) -> Evidence | None:
        until_ns = trace.started.time_ns + _METADATA_DELAY_NS
        topics = {topic for member in self._read.lives for topic in member.topics}
        topics |= {topic for assigned in self._assigned.values() for topic, _ in assigned}  # subscribed by a pattern
        sizes: dict[str, int] = {}
        for sighting in self._read.traffic.sizes.of(topics):
            before = sizes.get(sighting.topic)
            if since_ns < sighting.at.time_ns <= until_ns and before not in (None, sighting.partitions):
                text = f"topic {sighting.topic} has {sighting.partitions} partitions and had {before} before"
                return Evidence(sighting.at.time_ns, sighting.at.source, -1, text)
            sizes[sighting.topic] = sighting.partitions
        return None

    def _last_departures(self, triggers: Sequence[EpochTrigger]) -> EpochTrace | None:
        """The last members have left: no member receives the epoch that follows."""
        rest = [trigger for trigger in triggers if trigger.is_departure]
        if not rest or any(member.left is None for member in self._read.lives):
            return None
        trace = self._trace(rest, END)
        trace.over, trace.outcome = rest[-1].at, "empty"
        return trace

    # ---- owners

    def _holdings(self, member: EpochMember) -> list[HeldPartition]:
        holder = Holder(member)
        moments = [(at, 1, assigned, epoch) for epoch, at, assigned in member.received if assigned is not None]
        moments += [(at, 0, owned, 0) for at, owned in member.reports]  # a report describes what was held before
        for at, is_assignment, partitions, epoch in sorted(moments, key=lambda moment: moment[:2]):
            if not is_assignment:
                holder.keep([*partitions, *holder.held_since(at.time_ns)], at.time_ns)
            if is_assignment or not member.is_new:
                holder.begin(partitions, epoch or member.first_generation, at.time_ns)
        if member.left is not None:
            end = self._returned(member) if member.has_left_for_now else None
            holder.keep((), (end or member.left).time_ns)
        return holder.holdings

    def _returned(self, member: EpochMember) -> Moment | None:
        if member.instance_id is None:
            return None
        later = (other for other in self._read.lives if other.since > member.since)
        return next((other.since for other in later if other.instance_id == member.instance_id), None)

    def _count_moves(self, trace: EpochTrace, holdings: list[HeldPartition], owners: Owners) -> tuple[int, int]:
        """Count the partitions that changed owner from the beginning of an epoch to the next.

        :param holdings: sorted by their beginning
        """
        first = bisect_left(holdings, trace.started.time_ns, key=attrgetter("from_ns"))
        end = bisect_left(holdings, trace.until.time_ns, lo=first, key=attrgetter("from_ns"))
        gains = [(holding.partition, holding.member) for holding in holdings[first:end]]
        staying = {
            member.identity
            for member in self._read.lives
            if member.left is None or member.left.time_ns > trace.started.time_ns
        }
        moved, needless = owners.count_moves(gains, staying, fair_share(len(owners.owners), len(staying)))
        return moved, 0 if trace.protocol_type == _SHARE else needless  # several members have the same partition there

    # ---- rows

    def _generation(self, trace: EpochTrace) -> Generation:
        assert trace.generation is not None, "it is not the end of the group"
        assert trace.joined is not None, "a member has received it"
        return Generation(
            group_id=self._group_id,
            generation_id=trace.generation,
            joined_ns=trace.joined.time_ns,
            stable_ns=trace.over.time_ns if trace.outcome == "stable" and trace.over is not None else None,
            ended_ns=None if trace.following is None else trace.following.time_ns,
            assignor=trace.assignor,
            leader_id=None,
            members=len(trace.after),
            partitions=len(self._assigned.get(trace.generation, ())),
        )

    def _states(self, traces: Iterable[EpochTrace]) -> Iterator[StateMove]:
        if self._read.began is not None:
            yield self._read.began.time_ns, "Stable", self._read.base
        for each in traces:
            over_ns = None if each.over is None else each.over.time_ns
            if each.outcome == "empty":
                yield over_ns or each.started.time_ns, "Empty", None
                continue
            joined = each.joined or each.started
            if joined.time_ns > each.started.time_ns:
                yield each.started.time_ns, "Assigning", each.generation
            yield max(joined.time_ns, each.started.time_ns), "Reconciling", each.generation
            if each.outcome == "stable" and over_ns is not None:
                yield over_ns, "Stable", each.generation

    def _member(self, member: EpochMember) -> MemberLife:
        row = member_row(self._group_id, member, self._last_seen(member, None))
        row.protocol, row.rebalance_timeout_ms = member.protocol_type, member.rebalance_ms
        row.assignors = [] if member.assignor is None else [member.assignor]
        row.topics = list(member.topics) or ([member.regex] if member.regex else [])
        return row


def _acknowledged_at(member: EpochMember, first: int, trace: EpochTrace) -> Moment | None:
    """When a member that received the epoch had stated that it owns what came with it; None: it belongs to the next.

    :param first: which of its epochs this one is
    """
    # It may be assigned more in the same epoch, when others let go.
    last = bisect_left(member.received, trace.until, lo=first, key=attrgetter("at")) - 1
    _, at, assignment = member.received[max(first, last)]
    if at > trace.until and member.since > trace.started:
        return None
    if assignment is None:
        return at
    later = member.reports[bisect_left(member.reports, at, key=attrgetter("at")) :]
    return next((report.at for report in later if report.owned == assignment), at)


def _cited(triggers: Iterable[EpochTrigger]) -> list[Evidence]:
    return [
        evidence_of(trigger.request, trigger.text, answer=bool(trigger.request.error))
        for trigger in triggers
        if trigger.request is not None
    ]


def _departed(trace: EpochTrace) -> Explanation:
    first = trace.triggers[0]
    return Explanation("", first.cause, first.confidence, first.text, _cited(trace.triggers), None)
