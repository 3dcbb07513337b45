"""Explains the rebalances of a group: the first rule of `rules` that holds gives the cause.

Law: rebalances are explained in order, because rules ask what earlier ones were and which partitions were assigned.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kcoord_wire.forensics.model import Cause, Evidence
from kcoord_wire.forensics.wire.facts import MAX_CITED, Background, Facts, describe_member, evidence_of
from kcoord_wire.forensics.wire.rules import RULES
from kcoord_wire.forensics.wire.trace import MemberTrace, RebalanceTrace, Start, StartKind
from kcoord_wire.forensics.wire.traffic import GroupTraffic
from kcoord_wire.protocol.error_codes import describe_error

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
        more = f" and {len(others) - MAX_CITED} more" if len(others) > MAX_CITED else ""
        explanation.detail += f"; while the members joined: {', '.join(others[:MAX_CITED])}{more}"


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
