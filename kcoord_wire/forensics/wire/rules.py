"""The causes of rebalances as data: which rule explains a rebalance, how sure that is, and what it cites.

Laws:

* The first rule that holds explains a rebalance (`CauseFinder`): `RULES` is in order. Every kind of start has a last
  rule that always holds. Rebalances are explained in order, because rules ask what earlier ones were and which
  partitions were assigned.
* The cause is that of the start that moved the group out of its state. What came while the members were joining is
  in the detail and the evidence.
* Confidence 1 is what the source says outright: a member id given and joined with, a LeaveGroup that was answered, a
  reason that the client states (KIP-800). A timeout is inferred from silence (0.9), what no frame shows has less, and
  `Cause.UNKNOWN` has 0.2 or less.
* docs/causes.md is generated from this module, and the truth harness (tests/truth) uses the same names.

To add a cause:

* A row of `causes.Cause`, and a rule here, at its place in `RULES` (and in `EPOCH_RULES` for KIP-848): all that is
  shown and documented follows from these. A rule may need a `trace.StartKind` where a rebalance starts in a new way,
  and a fact in `facts.Facts`. Where records show the cause, it has a rule in records/classic.py or records/kip848.py.
* ``python -m tests.truth.causes`` writes docs/causes.md. That the rule is right, the truth harness shows once it has a
  branch in tests/truth/labels.py and an act in tests/truth/scenarios.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Evidence
from kcoord_wire.forensics.wire.facts import (
    MAX_CITED,
    Background,
    Facts,
    describe_member,
    evidence_of,
    says,
    says_poll_timeout,
)
from kcoord_wire.forensics.wire.trace import MemberTrace, RebalanceTrace, Start, StartKind
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic
from kcoord_wire.protocol.error_codes import describe_error
from kcoord_wire.protocol.wording import first_of

UNKNOWN: Final = "unknown"
"""The name of the rules that find no cause."""

Condition = Callable[[Facts], bool]
Citation = Callable[[Facts], Iterable[Evidence]]


@dataclass(frozen=True, slots=True)
class CauseRule:
    """One way in which a rebalance starts.

    :ivar name: shared by rules that find the same thing in different ways
    :ivar starts: the kinds of start that it may explain
    :ivar when: the condition in words
    :ivar holds: the condition
    :ivar sentence: for people; see `Facts.fill` for ``{names}``
    :ivar evidence: what it cites, in order
    :ivar unless: in words, what makes it less certain, with the confidence that is left
    :ivar weakened: the condition of `unless`
    """

    name: str
    starts: frozenset[StartKind]
    when: str
    holds: Condition
    cause: Cause
    confidence: float
    sentence: str
    evidence: tuple[Citation, ...] = ()
    unless: tuple[str, float] | None = None
    weakened: Condition = lambda facts: False

    def confidence_for(self, facts: Facts) -> float:
        return self.unless[1] if self.unless is not None and self.weakened(facts) else self.confidence


# ---- what rules cite


def _cite(pick: Callable[[Facts], GroupRequest | None], text: str, *, answer: bool = False) -> Citation:
    """Cite a request that the facts have, or its response."""

    def cite(facts: Facts) -> Iterable[Evidence]:
        request = pick(facts)
        return [] if request is None else [evidence_of(request, facts.fill(text), answer=answer)]

    return cite


def _answered_with_error(facts: Facts, request: GroupRequest | None) -> Iterable[Evidence]:
    if request is not None:
        who, error = describe_member(None, request), describe_error(request.error or 0)
        yield evidence_of(request, f"{who} was answered with {error} to its {request.api}", answer=True)


def _size_refusals(facts: Facts) -> Iterable[Evidence]:
    return (fact for each in facts.refused_for_size[:MAX_CITED] for fact in _answered_with_error(facts, each))


def _refusals(facts: Facts) -> Iterable[Evidence]:
    return (fact for each in facts.refused[:MAX_CITED] for fact in _answered_with_error(facts, each))


def _rejection(facts: Facts) -> Iterable[Evidence]:
    return _answered_with_error(facts, facts.start.rejection)


def _former_rejection(facts: Facts) -> Iterable[Evidence]:
    former = facts.former_life
    return _answered_with_error(facts, former.rejection if former is not None and facts.was_rejected else None)


def _rejection_afterwards(facts: Facts) -> Iterable[Evidence]:
    return _answered_with_error(facts, facts.member.rejection if facts.is_missed_by_coordinator else None)


def _former_join(text: str) -> Citation:
    return _cite(lambda facts: facts.former, text)


_joins_as_new: Final = _cite(lambda facts: facts.request, "{who} asks to join as a new member")
_joins_as_static: Final = _cite(
    lambda facts: facts.request, "{who} joins with the instance id {instance} of a present member"
)
_joins_again: Final = _cite(lambda facts: facts.request, "{who} joins again{said}")
_leaves: Final = _cite(lambda facts: facts.request, "{who} leaves{said}")
_later_join: Final = _cite(
    lambda facts: facts.background.goes_on(facts.request), "the same connection goes on afterwards"
)
_taken_away: Final = _cite(
    lambda facts: facts.start.gave_up_by, "its assignment before that took partitions away", answer=True
)
_former_generation: Final = _cite(
    lambda facts: next(iter(facts.former_joins), None), "generation {former_generation} had joined", answer=True
)


# ---- the rules

_ANY: Final = frozenset(StartKind)
_JOINED: Final = frozenset({StartKind.JOINED})
_STATIC: Final = frozenset({StartKind.STATIC})
_REJOINED: Final = frozenset({StartKind.REJOINED})
_LEFT: Final = frozenset({StartKind.LEFT})
_SESSION: Final = frozenset({StartKind.SESSION})
_SYNC: Final = frozenset({StartKind.SYNC})
_VANISHED: Final = frozenset({StartKind.VANISHED})
_HIDDEN: Final = frozenset({StartKind.HIDDEN})
_UNANSWERED: Final = ("the LeaveGroup has no response", 0.9)


def _always(facts: Facts) -> bool:
    return True


def _is_unanswered(facts: Facts) -> bool:
    return facts.request.answered is None


def _states_no_reason(facts: Facts) -> bool:
    return not facts.reason


def _after_failover(
    starts: frozenset[StartKind], holds: Condition, what: str, confidence: float, *evidence: Citation
) -> tuple[CauseRule, CauseRule]:
    """The two rules for a member that comes back because the coordinator was lost."""
    sentence = f"the coordinator was lost ({{signs}}), and {what}"
    cited = (Facts.failover_signs, *evidence)
    return (
        CauseRule(
            "broken off", starts,
            "the loss of the coordinator broke off the JoinGroup or SyncGroup that the member had sent before",
            lambda facts: facts.start.is_repeat and holds(facts),
            Cause.COORDINATOR_FAILOVER, confidence, sentence, cited,
        ),
        CauseRule(
            "forgotten", starts, "after the loss of the coordinator, the member was rejected",
            holds, Cause.COORDINATOR_FAILOVER, confidence, sentence, cited,
        ),
    )  # fmt: skip


def _after_outage(
    starts: frozenset[StartKind], what: str, confidence: float, *evidence: Citation, when: str | None = None
) -> CauseRule:
    """The rule for a member that comes back, or is gone, because no coordinator answered for a time."""
    return CauseRule(
        "cut off", starts,
        when or "no member was answered for a time, and this one, which was in the group before, comes back after it",
        lambda facts: facts.start.outage is not None,
        Cause.OUTAGE, confidence, f"{{outage}}; {what}", (Facts.outage_signs, *evidence),
    )  # fmt: skip


def _repeated(name: str, cause: Cause) -> CauseRule:
    return CauseRule(
        name, _REJOINED,
        f'the member\'s join before that, which the rule "{name}" explains, led to no assignment',
        lambda facts: facts.repeats == name,
        cause, 0.8, "{lead}{who} repeats a join that led to no assignment{stated}",
        (_joins_again, _former_join("its join before that led to no assignment")),
    )  # fmt: skip


RULES: Final[tuple[CauseRule, ...]] = (
    CauseRule(
        "too large", _ANY, "a coordinator that has just loaded the group refuses members for its size",
        lambda facts: bool(facts.refused_for_size),
        Cause.GROUP_TOO_LARGE, 0.8, "the coordinator came back with a group.max.size below the size of the group",
        (_size_refusals,),
    ),
    # A JoinGroup of an unknown member.
    *_after_failover(
        _JOINED, lambda facts: facts.start.failover is not None, "{who} had to rejoin", 0.9, _joins_as_new
    ),
    CauseRule(
        "did not poll", _JOINED, "the client states that max.poll.interval.ms was exceeded",
        lambda facts: says_poll_timeout(facts.reason),
        Cause.POLL_TIMEOUT, 1.0, "{who} had not polled in time and joins again", (_joins_as_new,),
    ),
    _after_outage(_JOINED, "{who} came back", 0.9, _joins_as_new),
    CauseRule(
        "missed the join", _JOINED, "the same process was removed because it had not rejoined in time",
        lambda facts: facts.missed_a_join,
        Cause.REBALANCE_TIMEOUT, 0.95, "{who} missed the join of {missed} and came back",
        (_joins_as_new, _former_rejection),
        ("only its connection shows that it is the same process", 0.7), lambda facts: not facts.was_rejected,
    ),
    CauseRule(
        "new", _JOINED, "the client was in the group before, under another member id",
        lambda facts: facts.former_life is not None,
        Cause.NEW_MEMBER, 1.0, "{who} joined as a new member; it had been {former_end}", (_joins_as_new,),
    ),
    CauseRule("new", _JOINED, "else", _always, Cause.NEW_MEMBER, 1.0, "{who} joined as a new member", (_joins_as_new,)),
    # A JoinGroup with a known instance id.
    *_after_failover(
        _STATIC,
        lambda facts: facts.start.failover is not None and facts.start.failover.begin <= facts.request.asked,
        "{who} had to rejoin", 0.8, _joins_as_static,
    ),
    _after_outage(_STATIC, "{who} came back", 0.8, _joins_as_static),
    CauseRule(
        "replaced", _STATIC, "it interrupts the assignment of the generation before",
        lambda facts: facts.trace.former_join is not None and facts.trace.former_join.leader_sync is None,
        Cause.STATIC_REPLACED, 1.0,
        "{who} took its former place while the members waited for their assignment",
        (_joins_as_static,),
    ),
    CauseRule(
        "replaced", _STATIC, "it offers other assignors than the member that it replaces",
        lambda facts: facts.offers_other_assignors,
        Cause.STATIC_REPLACED, 1.0, "{who} took its former place with other assignors ({new_assignors})",
        (_joins_as_static,),
    ),
    CauseRule(
        "replaced", _STATIC, "else", _always, Cause.STATIC_REPLACED, 1.0,
        "{who} took its former place, and the coordinator rebalanced", (_joins_as_static,),
    ),
    # A JoinGroup of a member of the group.
    *_after_failover(
        _REJOINED, lambda facts: facts.start.failover is not None, "{lead}{who} joined again", 0.9,
        _joins_again, _rejection,
    ),
    CauseRule(
        "did not poll", _REJOINED, "the client states that max.poll.interval.ms was exceeded",
        lambda facts: says_poll_timeout(facts.reason),
        Cause.POLL_TIMEOUT, 1.0, "{lead}{who} had not polled in time and joins again", (_joins_again,),
    ),
    _after_outage(_REJOINED, "{lead}{who} joined again", 0.9, _joins_again, _rejection),
    CauseRule(
        "gave up partitions", _REJOINED, "the last assignment took partitions from the member, or the client states it",
        lambda facts: bool(facts.start.gave_up)
        or says(facts.reason, "revoke partitions", "partitions were given up"),
        Cause.COOPERATIVE_FOLLOW_UP, 1.0,
        "{lead}{who} gave up {gave_up} and joined again so that others can have them",
        (_joins_again, _taken_away),
        ("the client states no reason", 0.95), _states_no_reason,
    ),
    CauseRule(
        "assignors", _REJOINED, "it offers other assignors than before",
        lambda facts: facts.offers_other_assignors,
        Cause.ASSIGNORS_CHANGED, 1.0, "{lead}{who} offers {new_assignors} in place of {old_assignors}",
        (_joins_again, _former_join("before, it offered {old_assignors}")),
    ),
    CauseRule(
        "subscription", _REJOINED, "it subscribes to other topics than before",
        lambda facts: facts.former is not None and facts.former.subscribed != facts.request.subscribed,
        Cause.SUBSCRIPTION_CHANGED, 1.0, "{lead}{who} {difference}",
        (_joins_again, _former_join("before, it subscribed to {old_topics}")),
    ),
    CauseRule(
        "topics", _REJOINED, "the client states that topics have changed",
        lambda facts: says(facts.reason, "metadata has changed", "topics have changed"),
        Cause.TOPICS_CHANGED, 1.0, "{lead}{who} saw topics change{topics}",
        (_joins_again, Facts.topic_sizes),
    ),
    CauseRule(
        "topics", _REJOINED,
        "the leader received Metadata in which a topic of the group has another size than at the last assignment",
        lambda facts: facts.may_see_topics and bool(facts.changed_topics),
        Cause.TOPICS_CHANGED, 0.9, "{lead}{who} joined again after {topic}", (_joins_again, Facts.topic_sizes),
    ),
    CauseRule(
        "topics", _REJOINED, "the leader then assigned partitions of a known topic that no member had before",
        lambda facts: facts.may_see_topics and bool(facts.grown),
        Cause.TOPICS_CHANGED, 0.8,
        "{lead}{who} joined again, and partitions of {grown} were assigned that no member had before", (_joins_again,),
    ),
    _repeated("gave up partitions", Cause.COOPERATIVE_FOLLOW_UP),
    _repeated("topics", Cause.TOPICS_CHANGED),
    _repeated("subscription", Cause.SUBSCRIPTION_CHANGED),
    _repeated("metadata", Cause.SUBSCRIPTION_CHANGED),
    _repeated("assignors", Cause.ASSIGNORS_CHANGED),
    CauseRule(
        "missed, not removed", _REJOINED, "a static member was not part of the last completed join",
        lambda facts: facts.start.missed is not None,
        Cause.REBALANCE_TIMEOUT, 0.9, "{who} (static) missed the join of {missed} and rejoined later",
        (_joins_again, _rejection),
    ),
    CauseRule(
        "leader", _REJOINED, "the leader joins again without anything new",
        lambda facts: facts.start.leads,
        Cause.LEADER_REJOINED, 1.0, "the leader {who} joined again{stated}", (_joins_again, _rejection),
        ("the client states no reason", 0.8), _states_no_reason,
    ),
    CauseRule(
        UNKNOWN, _REJOINED, "the member's join before that is not in the source",
        lambda facts: facts.former is None,
        Cause.UNKNOWN, 0.2, "{who} joined again; what it did before is not in the source", (_joins_again,),
    ),
    CauseRule(
        "metadata", _REJOINED, "else: only other bytes of its subscription are new", _always,
        Cause.SUBSCRIPTION_CHANGED, 0.7,
        "{who} joined again with the same topics, but other bytes in its subscription{stated}",
        (_joins_again, _former_join("its join before that had other bytes in its subscription"), _rejection),
    ),
    # A LeaveGroup.
    CauseRule(
        "did not poll", _LEFT, "the client states that max.poll.interval.ms was exceeded",
        lambda facts: says_poll_timeout(facts.reason),
        Cause.POLL_TIMEOUT, 1.0, "{who} left because its application did not poll", (_leaves,),
        _UNANSWERED, _is_unanswered,
    ),
    CauseRule(
        "left", _LEFT, "an operator removed the member",
        lambda facts: facts.removed_by_another,
        Cause.MEMBER_LEFT, 1.0, "{who} was removed by {operator}", (_leaves,), _UNANSWERED, _is_unanswered,
    ),
    CauseRule(
        "did not poll", _LEFT, "no reason is stated, and the member joins again over the same connection",
        lambda facts: facts.background.did_not_poll(facts.member)
        and facts.background.goes_on(facts.request) is not None,
        Cause.POLL_TIMEOUT, 0.6, "{who} left, but did not close: most likely its application did not poll in time",
        (_leaves, _later_join),
    ),
    CauseRule(
        "did not poll", _LEFT, "no reason is stated, and the connection stays open",
        lambda facts: facts.background.did_not_poll(facts.member),
        Cause.POLL_TIMEOUT, 0.5,
        "{who} left, but kept its connection open: most likely its application did not poll in time", (_leaves,),
    ),
    CauseRule(
        "left", _LEFT, "else", _always, Cause.MEMBER_LEFT, 1.0, "{who} left{said}", (_leaves,),
        _UNANSWERED, _is_unanswered,
    ),
    # Timers. A coordinator that refuses the requests of a member does not hear them.
    CauseRule(
        "member refused", _SESSION | _VANISHED,
        "the member's requests were refused with an error that a retry does not help, up to its end",
        lambda facts: bool(facts.refused),
        Cause.REFUSED, 0.95, "{who} was refused with {refused_with}, {refused_times}, and its session ran out",
        (_refusals,),
    ),
    _after_outage(
        _SESSION, "the session of {who} ended meanwhile", 0.9, Facts.last_seen, _rejection_afterwards,
        when="no member was answered for a time, in which sessions ended",
    ),
    CauseRule(
        "session", _SESSION, "a member sent nothing, and was answered nothing, for its session timeout", _always,
        Cause.SESSION_EXPIRED, 0.95, "{who} sent nothing{session}",
        (Facts.last_seen, _rejection_afterwards),
        ("the coordinator does not reject the member afterwards", 0.9),
        lambda facts: not facts.is_missed_by_coordinator,
    ),
    CauseRule(
        "sync", _SYNC, "a member joined, and sent no SyncGroup within the rebalance timeout", _always,
        Cause.SYNC_EXPIRED, 0.9,
        "{who}{late_others} had joined, but did not send SyncGroup within the rebalance timeout",
        (Facts.last_seen, _former_generation),
    ),
    CauseRule(
        "session", _VANISHED, "a member whose session timeout is not known is not part of the next join", _always,
        Cause.SESSION_EXPIRED, 0.5, "{who} fell silent; its session timeout is not in the source",
        (Facts.last_seen,),
    ),
    # Nothing in the source.
    CauseRule(
        "too large", _HIDDEN, "a heartbeat shows that a group rebalances that has just been loaded, before any join",
        lambda facts: facts.began_by_itself,
        Cause.GROUP_TOO_LARGE, 0.5,
        "the coordinator made the group rebalance as soon as it was back: "
        "most likely group.max.size is below the size of the group",
    ),
    CauseRule(
        "forgotten", _HIDDEN, "it follows a loss of the coordinator",
        lambda facts: facts.start.failover is not None,
        Cause.COORDINATOR_FAILOVER, 0.5, "the coordinator was lost ({signs}), and the group rebalanced after it",
        (Facts.failover_signs,),
    ),
    CauseRule(
        UNKNOWN, _HIDDEN, "else", _always, Cause.UNKNOWN, 0.2, "nothing in the source started it", (),
        ("no exchange shows it either", 0.1), lambda facts: facts.trace.shown_by is None,
    ),
)  # fmt: skip


# ---- KIP-848


@dataclass(frozen=True, slots=True)
class EpochRule:
    """One way in which the epoch of a KIP-848 group rises.

    :ivar name: as in `CauseRule`
    :ivar when: the condition in words; `kip848` evaluates it
    :ivar sentence: for people; ``{who}`` is the member, ``{what}`` what it asks for
    """

    name: str
    when: str
    cause: Cause
    confidence: float
    sentence: str


EPOCH_RULES: Final[dict[str, EpochRule]] = {
    "returned": EpochRule(
        "new", "a member joins that had left", Cause.NEW_MEMBER, 1.0, "{who} is back after it had left"
    ),
    "missed": EpochRule(
        "missed the join", "a member joins that was fenced (110)",
        Cause.REBALANCE_TIMEOUT, 0.8, "{who} had been removed and joined again",
    ),
    "removed": EpochRule(
        "new", "a member joins that the coordinator had removed and rejected (25)",
        Cause.NEW_MEMBER, 0.8, "{who} had been removed and joined again",
    ),
    "replaced": EpochRule(
        "replaced", "a member joins with a known instance id", Cause.STATIC_REPLACED, 0.9,
        "{who} took its former place",
    ),
    "new": EpochRule("new", "a member joins with epoch 0", Cause.NEW_MEMBER, 1.0, "{who} joined as a new member"),
    "left": EpochRule("left", "a member leaves with epoch -1", Cause.MEMBER_LEFT, 1.0, "{who} left"),
    "left unanswered": EpochRule("left", "the same, without a response", Cause.MEMBER_LEFT, 0.9, "{who} left"),
    "did not poll": EpochRule(
        "did not poll", "a member that left joins again under its member id", Cause.POLL_TIMEOUT, 0.7,
        "{who} left, and came back as the same process: it had not polled in time",
    ),
    "subscription": EpochRule(
        "subscription", "a heartbeat names other topics", Cause.SUBSCRIPTION_CHANGED, 1.0,
        "{who} subscribes to {what} now",
    ),
    "assignors": EpochRule(
        "assignors", "a heartbeat names another assignor", Cause.ASSIGNORS_CHANGED, 0.9, "{who} asks for {what} now"
    ),
    "fenced": EpochRule(
        "missed the join", "a member is rejected with 110 (fenced epoch)", Cause.REBALANCE_TIMEOUT, 0.7,
        "{who} was removed: it is rejected when it returns",
    ),
    "did not revoke": EpochRule(
        "did not revoke",
        "a member is rejected (25 or 110) that had partitions to give up, its rebalance timeout ended between its last "
        "good heartbeat and the rejection",
        Cause.REBALANCE_TIMEOUT, 0.95, "{who} was fenced: it had not given up partitions within {what}",
    ),
    "expired": EpochRule(
        "session", "a member is rejected with 25 (unknown member id)", Cause.SESSION_EXPIRED, 0.7,
        "{who} was removed: it is rejected when it returns",
    ),
    "silent": EpochRule(
        "session", "a member sends no heartbeat while others send three", Cause.SESSION_EXPIRED, 0.6,
        "{who} fell silent",
    ),
    "topics": EpochRule(
        "topics", "no member asks for anything, and a topic of the group has another size, is new to the "
        "coordinator, or has partitions whose share state is initialized (KIP-932)", Cause.TOPICS_CHANGED, 0.8,
        "{what}",
    ),
    "pattern": EpochRule(
        "pattern", "no member asks for anything, one with a pattern, or of a streams group, has joined, and the first "
        "partitions are assigned",
        Cause.NEW_MEMBER, 0.9, "{what}",
    ),
    UNKNOWN: EpochRule(UNKNOWN, "else", Cause.UNKNOWN, 0.2, "nothing in the source started it"),
}  # fmt: skip


_MAX_INFERRED: Final = 0.6  # no frame shows that an unanswered request arrived
_OTHER_STARTS: Final = MappingProxyType(
    {
        StartKind.JOINED: "joined",
        StartKind.STATIC: "came back",
        StartKind.REJOINED: "joined again",
        StartKind.LEFT: "left",
        StartKind.SESSION: "fell silent",
        StartKind.SYNC: "did not sync",
    }
)


@dataclass(slots=True)
class Explanation:
    """Why a rebalance began.

    :ivar rule: the name of the rule that holds
    :ivar detail: the cause in a sentence
    :ivar reason: the reason that the client states
    """

    rule: str
    cause: Cause
    confidence: float
    detail: str
    evidence: list[Evidence]
    reason: str | None


class CauseFinder:
    """Explains the rebalances of one group, in order."""

    def __init__(self, traffic: GroupTraffic) -> None:
        self._background = Background(traffic)

    def did_not_poll(self, member: MemberTrace) -> bool:
        """Whether a member left because its application did not poll."""
        return self._background.did_not_poll(member)

    def explain(self, trace: RebalanceTrace) -> Explanation:
        facts = Facts(self._background, trace)
        start = trace.start
        rule = next(rule for rule in RULES if start.kind in rule.starts and rule.holds(facts))
        explanation = Explanation(
            rule.name,
            rule.cause,
            rule.confidence_for(facts),
            facts.fill(rule.sentence),
            [fact for cite in rule.evidence for fact in cite(facts)],
            facts.reason,
        )
        if start.request is not None:
            self._background.rules[start.request.asked] = rule.name
            if start.inferred:
                explanation.confidence = min(explanation.confidence, _MAX_INFERRED)
        _add_others(trace, explanation)
        _add_proof(trace, explanation)
        if trace.join is not None:
            self._background.known_before = set(self._background.known)
            self._background.known.update(*trace.join.assignments.values())
        return explanation


def _add_others(trace: RebalanceTrace, explanation: Explanation) -> None:
    """Add what would have started the rebalance, had it not been under way."""
    others = []
    for other in trace.others:
        if other.kind not in _OTHER_STARTS or (other.kind == StartKind.REJOINED and not _is_news(other)):
            continue
        text = f"{describe_member(other.member, other.request)} {_OTHER_STARTS[other.kind]}"
        others.append(text)
        if other.request is not None and len(others) <= MAX_CITED:
            explanation.evidence.append(evidence_of(other.request, text))
    if others:
        explanation.detail += f"; while the members joined: {first_of(others, MAX_CITED)}"


def _is_news(other: Start) -> bool:
    """Whether a member joins with other topics or assignors than before, and not only because all members have to."""
    request, former = other.request, other.former
    if request is None or former is None:
        return False
    return former.subscribed != request.subscribed or former.assignors != request.assignors


def _add_proof(trace: RebalanceTrace, explanation: Explanation) -> None:
    """Cite the exchange that shows a rebalance whose start is not in the source."""
    shown_by = trace.shown_by
    if shown_by is None or shown_by is trace.start.request:
        return
    text = f"{shown_by.api} shows that the group was rebalancing"
    if shown_by.error:
        text = f"{shown_by.api} was answered with {describe_error(shown_by.error)}"
    explanation.evidence.append(evidence_of(shown_by, text, answer=bool(shown_by.error)))
