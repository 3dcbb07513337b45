"""The facts of one rebalance that the rules of `rules` ask for, and the evidence that they cite.

Law: every claim about a frame has that frame in its evidence. What a client learnt of topics has no frame number (-1):
a Metadata response belongs to no group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS, Evidence, Identity, RemovedMember
from kcoord_wire.forensics.refusal_advice import refusal_of
from kcoord_wire.forensics.wire.links import TopicSize
from kcoord_wire.forensics.wire.signs import BEGIN, END, NS_PER_S, REFUSALS, UNKNOWN_SEQ, Moment
from kcoord_wire.forensics.wire.trace import LeaveReason, MemberTrace, RebalanceTrace, StartKind
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic, Partition
from kcoord_wire.protocol.error_codes import ErrorCode, describe_error

MAX_CITED: Final = 8
"""Exchanges of one kind that an explanation cites: in a group of hundreds, more help no reader."""

_JUST_NS: Final = 1_000 * NS_PER_MS  # an assignment that is not older was made from what the leader then knew
_CLOSES_WITHIN_NS: Final = 2 * NS_PER_S  # a client that closes its consumer closes the connection within this time
_NO_FRAME: Final = -1
_MS_PER_S: Final = 1_000

_RETRY_WORDS: Final = (
    "connection was lost",
    "coordinator",
    "tried again",
    "was refused",
    "during syncgroup",
    "member id",
    "member-id",
    "rebalance failed",
    "disconnected",
)
"""Words of reasons that only say that an earlier attempt failed: of Kafka's Java client and of this project's."""

Client = tuple[str | None, str]


def describe_member(member: MemberTrace | None, request: GroupRequest | None = None) -> str:
    """A member as people know it: client id, instance id and host."""
    client_id = member.client_id if member is not None else None
    host = member.host if member is not None else ""
    if request is not None:
        client_id, host = client_id or request.client_id, host or request.host
    name = client_id or (member.member_id if member is not None else "") or "a member"
    instance = member.instance_id if member is not None else None
    more = ", ".join(part for part in (f"instance {instance}" if instance else "", host) if part)
    return f"{name} ({more})" if more else name


def evidence_of(request: GroupRequest, text: str, *, answer: bool = False) -> Evidence:
    """A fact that a request shows, or its response."""
    at = request.answered if answer and request.answered is not None else request.asked
    return Evidence(at.time_ns, at.source, at.seq if at.seq < UNKNOWN_SEQ else request.asked.seq, text)


def identity_of(starter: MemberTrace | GroupRequest | None) -> Identity | None:
    """The columns that name a member, from its life or from a request of it."""
    if starter is None:
        return None
    return Identity(starter.member_id or None, starter.client_id, starter.host or None, starter.instance_id)


def removed_member(member: MemberTrace, why: str) -> RemovedMember:
    """A member that a rebalance removed."""
    return RemovedMember(member.member_id, member.client_id, member.host or None, str(why))


def says(reason: str | None, *words: str) -> bool:
    """Whether a stated reason has one of these words, in any case."""
    said = (reason or "").lower()
    return any(word in said for word in words)


def says_poll_timeout(reason: str | None) -> bool:
    """Whether a stated reason is that max.poll.interval.ms was exceeded."""
    return says(reason, "poll timeout", "max.poll.interval", "poll interval")


class Background:
    """What is known of a group beyond one rebalance. `rules.CauseFinder` keeps it up to date.

    :ivar rules: the rule that explained each join that started a rebalance, by the moment of that join
    :ivar known: the partitions that have been assigned so far
    :ivar known_before: the same without the last completed join
    """

    def __init__(self, traffic: GroupTraffic) -> None:
        self.traffic = traffic
        self.joins = [request for request in traffic.requests if request.api == "JoinGroup"]
        self.too_large = [request for request in self.joins if request.error == ErrorCode.GROUP_MAX_SIZE_REACHED]
        self.by_connection: dict[str, list[GroupRequest]] = {}
        self.by_member: dict[str, list[GroupRequest]] = {}
        for request in traffic.requests:
            if request.who:
                self.by_member.setdefault(request.who, []).append(request)
            self.by_connection.setdefault(request.connection, []).append(request)
        self.rules: dict[Moment, str] = {}
        self.known: set[Partition] = set()
        self.known_before: set[Partition] = set()
        self.assigned = _assigned(traffic.requests)

    def did_not_poll(self, member: MemberTrace) -> bool:
        """Whether a member left because its application did not poll.

        It states that, or it states no reason and its process goes on. A member that leaves sooner after its join than
        its max.poll.interval.ms has only unsubscribed.
        """
        leave = member.leave
        leavers = () if leave is None else leave.leavers
        leaver = next((each for each in leavers if each.member_id == member.member_id), None)
        if leave is None or leaver is None:
            return False
        if leaver.reason:
            return says_poll_timeout(leaver.reason)
        limit_ms = member.rebalance_ms  # clients send their max.poll.interval.ms there
        if member.is_new and limit_ms is not None and leave.due.time_ns - member.since.time_ns < limit_ms * NS_PER_MS:
            return False
        return self.goes_on(leave) is not None or self._stays_open(leave)

    def goes_on(self, leave: GroupRequest) -> GroupRequest | None:
        """A later join on the connection of a LeaveGroup: a client that closes its consumer closes the connection."""
        later = (each for each in self.by_connection[leave.connection] if each.asked > leave.asked)
        return next((each for each in later if each.api == "JoinGroup"), None)

    def _stays_open(self, leave: GroupRequest) -> bool:
        """Whether its connection is not closed, in a source that goes on and shows when connections are closed."""
        closed_ns = self.traffic.links.closed_ns(leave.connection)
        end_ns = self.traffic.horizon_ns if closed_ns is None else closed_ns
        shows_closing = bool(self.traffic.links.show_ends or self.traffic.sizes)
        return shows_closing and end_ns - (leave.answered or leave.due).time_ns >= _CLOSES_WITHIN_NS


class Facts:
    """The facts of one rebalance.

    :ivar start: what started it
    :ivar trace: how it went
    """

    def __init__(self, background: Background, trace: RebalanceTrace) -> None:
        self.background = background
        self.trace = trace
        self.start = trace.start

    def fill(self, sentence: str) -> str:
        """Fill in the ``{names}`` of a sentence: attributes of this class, or of the table of words below."""
        return sentence.format_map(_Words(self))

    # ---- who and what

    @property
    def request(self) -> GroupRequest:
        """The request that started it; only for kinds of start that have one."""
        assert self.start.request is not None, f"a start of kind {self.start.kind} has no request"
        return self.start.request

    @property
    def member(self) -> MemberTrace:
        """The member that started it; only for kinds of start that have one."""
        assert self.start.member is not None, f"a start of kind {self.start.kind} has no member"
        return self.start.member

    @cached_property
    def who(self) -> str:
        """The member that started it; the request fills in what is not known of a member that joins."""
        has_left = self.start.kind == StartKind.LEFT
        return describe_member(self.start.member, None if has_left else self.start.request)

    @property
    def reason(self) -> str | None:
        if self.start.leaver is not None:
            return self.start.leaver.reason or None
        return self.start.request.reason or None if self.start.request is not None else None

    # ---- failovers and sizes

    def failover_signs(self) -> Iterator[Evidence]:
        failover = self.start.failover
        if failover is None:
            return
        for request in failover.signs[:MAX_CITED]:
            yield evidence_of(request, failover.text, answer=request.answered is not None)

    def outage_signs(self) -> Iterator[Evidence]:
        if self.start.outage is not None:
            yield from self.start.outage.evidence[:MAX_CITED]

    @property
    def former_joins(self) -> list[GroupRequest]:
        return [] if self.trace.former_join is None else self.trace.former_join.requests

    @cached_property
    def refused_for_size(self) -> list[GroupRequest]:
        """Joins of members that a coordinator refused after it had loaded them: it allows fewer than there are."""
        loaded, join = self.trace.loaded, self.trace.join
        if loaded is None:
            return []
        until = END if join is None else join.at
        return [
            request
            for request in self.background.too_large
            if loaded.begin < request.asked <= until and request.member_id in self.trace.before
        ]

    @property
    def began_by_itself(self) -> bool:
        """Whether a heartbeat showed the rebalance of a group that had just been loaded, before any member joined."""
        loaded, shown_by = self.trace.loaded, self.trace.shown_by
        if loaded is None or shown_by is None or shown_by.api != "Heartbeat":
            return False
        return not any(
            loaded.begin < join.due < shown_by.due and join.error not in REFUSALS for join in self.background.joins
        )

    # ---- a member that was there before

    @property
    def former(self) -> GroupRequest | None:
        """The join before this one, of the same member."""
        return self.start.former

    @property
    def former_life(self) -> MemberTrace | None:
        """The life that the client had before, if that has ended."""
        former = self.start.member.former if self.start.member is not None else None
        return former if former is not None and former.why is not None and former.left is not None else None

    @property
    def missed_a_join(self) -> bool:
        """Whether the former life ended because it did not rejoin within the rebalance timeout, and this is the same
        process: it was rejected first, or it uses the same connection."""
        former = self.former_life
        if former is None or former.why != LeaveReason.REBALANCE:
            return False
        return self.was_rejected or self.request.connection in former.connections

    @property
    def was_rejected(self) -> bool:
        former = self.former_life
        rejection = former.rejection if former is not None else None
        return rejection is not None and former is not None and rejection.asked > (former.left or END)

    @property
    def missed(self) -> str:
        if self.start.missed is not None:
            return f"generation {self.start.missed.generation}"
        former = self.former_life
        last = former.last_generation if former is not None else None
        return "an earlier generation" if last is None else f"generation {last + 1}"

    @property
    def former_end(self) -> str:
        former = self.former_life
        if former is None or former.left is None:
            return ""
        seconds = (self.request.asked.time_ns - former.left.time_ns) / NS_PER_S
        return f"{former.member_id} until {seconds:.1f} s before ({former.why})"

    # ---- what a join brings that is new

    @property
    def offers_other_assignors(self) -> bool:
        return self.former is not None and self.former.assignors != self.request.assignors

    @property
    def difference(self) -> str:
        before, now = {*_topics(self.former)}, {*self.request.subscribed}
        added, gone = sorted(now - before), sorted(before - now)
        parts = [f"subscribed to {', '.join(added)}"] if added else []
        parts += [f"gave up its subscription to {', '.join(gone)}"] if gone else []
        return " and ".join(parts)

    # ---- topics

    @property
    def may_see_topics(self) -> bool:
        """Whether topics can be the reason of a join: the leader's (or nothing is known of the member), and the stated
        reason, if there is one, is only that an earlier attempt failed."""
        has_own_reason = self.request.reason is not None and not says(self.request.reason, *_RETRY_WORDS)
        return (self.start.leads or self.former is None) and not has_own_reason

    @cached_property
    def changed_topics(self) -> list[tuple[str, Evidence]]:
        """Subscribed topics whose size the sender saw change since the last assignment."""
        return list(_TopicWatch(self).changes())

    def topic_sizes(self) -> Iterator[Evidence]:
        yield from (fact for _, fact in self.changed_topics[:MAX_CITED])

    @cached_property
    def grown(self) -> str:
        """Topics that were assigned before, of which the new assignment has partitions that no member had.

        If there are none: of which the assignment before has, if that had just been made. The leader learnt of them
        while it joined.
        """
        if self.trace.join is None:
            return ""
        given = {partition for parts in self.trace.join.assignments.values() for partition in parts}
        found = _grown_topics(given, self.background.known)
        sync = None if self.trace.former_join is None else self.trace.former_join.leader_sync
        if not found and sync is not None and self.trace.started.time_ns - sync.asked.time_ns < _JUST_NS:
            found = _grown_topics(self.background.known, self.background.known_before)
        return ", ".join(found)

    # ---- repeated joins

    @cached_property
    def repeats(self) -> str | None:
        """The rule behind the join that this one repeats because that came to nothing; None if that had no reason."""
        former = self.former
        if former is None or former.asked in self.background.assigned:
            return None
        if says(former.reason, "metadata has changed", "topics have changed"):
            return None if self._has_assigned(former) else "topics"
        if says(former.reason, "revoke partitions", "partitions were given up"):
            return "gave up partitions"
        rule = self.background.rules.get(former.asked)
        if rule == "topics" and self._has_assigned(former):
            return None  # its assignment has dealt with what it had seen of the topics
        return rule

    def _has_assigned(self, former: GroupRequest) -> bool:
        """Whether the sender has sent an assignment between its former join and this one."""
        later = self.background.by_member.get(former.who, ())
        return any(each.assignments and former.asked < each.asked < self.request.asked for each in later)

    # ---- members that leave, or fall silent

    @property
    def removed_by_another(self) -> bool:
        """Whether the LeaveGroup came from an operator: by instance id, or from another client."""
        leaver, member = self.start.leaver, self.member
        by_instance = leaver is not None and not leaver.member_id
        return by_instance or bool(member.client_id and self.request.client_id != member.client_id)

    @property
    def is_missed_by_coordinator(self) -> bool:
        """Whether the coordinator rejected the member as unknown after its session had ended."""
        rejection = self.member.rejection
        if rejection is None or rejection.error != ErrorCode.UNKNOWN_MEMBER_ID:
            return False
        return rejection.asked >= self.start.at

    @cached_property
    def refused(self) -> list[GroupRequest]:
        """Requests of the member that was lost, after the last that was accepted, that were refused for good."""
        member = self.start.member
        if member is None:
            return []
        requests = self.background.by_member.get(member.member_id, [])
        own = [request for request in requests if request.asked <= self.start.at and request.answered is not None]
        beat = self.background.traffic.heartbeats.answered.moment_before(member.member_id, self.start.at.time_ns)
        accepted = max(
            [request.asked for request in own if not request.error] + ([beat] if beat else []), default=BEGIN
        )
        later = [request for request in own if request.asked > accepted]
        return later if later and all(refusal_of(request.error or 0).is_fatal for request in later) else []

    def last_seen(self) -> Iterator[Evidence]:
        member = self.start.member
        if member is None:
            return
        requests = self.background.by_member.get(member.member_id, [])
        before = [request for request in requests if member.left is None or request.asked <= member.left]
        heartbeats = self.background.traffic.heartbeats
        beat = heartbeats.answered.moment_before(member.member_id, None if member.left is None else member.left.time_ns)
        text = f"the last sign of {describe_member(member)}"
        if beat is not None and (not before or beat > before[-1].asked):
            yield Evidence(*beat, text)
        elif before:
            yield evidence_of(before[-1], text)


class _Words:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def __getitem__(self, name: str) -> object:
        word = _WORDS.get(name)
        return getattr(self._facts, name) if word is None else word(self._facts)


_WORDS: Final[Mapping[str, Callable[[Facts], object]]] = {
    "lead": lambda facts: "the leader " if facts.start.leads else "",
    "stated": lambda facts: f" ({facts.reason})" if facts.reason else "",
    "said": lambda facts: f": {facts.reason}" if facts.reason else "",
    "outage": lambda facts: facts.start.outage.text if facts.start.outage is not None else "",
    "signs": lambda facts: facts.start.failover.text if facts.start.failover is not None else "",
    "instance": lambda facts: facts.request.instance_id,
    "old_topics": lambda facts: ", ".join(_topics(facts.former)) or "nothing",
    "new_assignors": lambda facts: ", ".join(facts.request.assignors),
    "old_assignors": lambda facts: ", ".join(facts.former.assignors) if facts.former is not None else "",
    "gave_up": lambda facts: (
        f"{(count := len(facts.start.gave_up)) or ''} partition{'' if count == 1 else 's'}".strip()
    ),
    "topic": lambda facts: facts.changed_topics[0][0] if facts.changed_topics else "",
    "topics": lambda facts: f": {facts.changed_topics[0][0]}" if facts.changed_topics else "",
    "operator": lambda facts: facts.request.client_id or "an operator",
    "session": lambda facts: (
        f" for its session timeout of {facts.member.session_ms / _MS_PER_S:g} s" if facts.member.session_ms else ""
    ),
    "refused_with": lambda facts: describe_error(facts.refused[-1].error or 0) if facts.refused else "",
    "refused_times": lambda facts: f"{len(facts.refused)} times" if len(facts.refused) > 1 else "once",
    "former_generation": lambda facts: facts.trace.former_join.generation if facts.trace.former_join else "",
    "late_others": lambda facts: (
        f" and {late - 1} more" if (late := sum(why == LeaveReason.SYNC for _, why in facts.trace.removed)) > 1 else ""
    ),
}
"""Words of sentences that are no facts by themselves; all are empty if there is nothing to say."""


class _TopicWatch:
    """Finds subscribed topics whose size the sender of a join saw change."""

    def __init__(self, facts: Facts) -> None:
        start, former_join = facts.start, facts.trace.former_join
        self._sizes = facts.background.traffic.sizes
        self._until = start.at
        self._sender: Client | None = None if start.request is None else start.request.client
        self._topics = set(_topics(start.former))
        self._since = BEGIN
        if former_join is not None:
            self._topics |= {topic for member in former_join.members.values() for topic in member.topics or ()}
            self._since = former_join.at
        if start.former is not None:
            self._since = min(self._since, start.former.asked)  # clients compare with what they knew when they joined

    def changes(self) -> Iterator[tuple[str, Evidence]]:
        sizes: dict[tuple[Client, str], int] = {}
        latest: dict[str, int] = {}
        first = None if self._sender is None else self._sizes.first_of(self._sender)
        is_old = first is not None and first <= self._since
        for sighting in self._sizes.of(self._topics):
            if sighting.at > self._until:
                return
            client = sighting.client
            before = sizes.get((client, sighting.topic), latest.get(sighting.topic))
            is_news = is_old if before is None else before != sighting.partitions
            if is_news and sighting.at > self._since and client == self._sender:
                yield _sighted(sighting, before)
            sizes[client, sighting.topic] = latest[sighting.topic] = sighting.partitions


def _sighted(sighting: TopicSize, before: int | None) -> tuple[str, Evidence]:
    was = "was not there before" if before is None else f"had {before} partitions before"
    text = f"topic {sighting.topic} has {sighting.partitions} partitions and {was}"
    return text, Evidence(sighting.at.time_ns, sighting.at.source, _NO_FRAME, text)


def _grown_topics(given: set[Partition], known: set[Partition]) -> list[str]:
    topics = {topic for topic, _ in known}
    return sorted({topic for topic, _ in given - known if topic in topics})


def _assigned(requests: Iterable[GroupRequest]) -> set[Moment]:
    """The joins after which their member received its assignment."""
    last: dict[str, GroupRequest] = {}
    done = set()
    for request in requests:
        if request.api == "JoinGroup" and request.error == 0:
            last[request.who] = request
        elif request.api == "SyncGroup" and request.error == 0 and request.member_id in last:
            done.add(last[request.member_id].asked)
    return done


def _topics(request: GroupRequest | None) -> tuple[str, ...]:
    return () if request is None else request.subscribed
