"""The causes of rebalances in groups whose coordinator assigns round by round, as data; `rounds` has the method.

docs/causes.md is generated from this module, as from `rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kcoord_wire.forensics.model import Cause


@dataclass(frozen=True, slots=True)
class RoundRule:
    """One way in which a round begins.

    :ivar name: of the rule
    :ivar when: the condition in words
    :ivar sentence: for people; ``{who}`` is the member, ``{what}`` what the condition has found
    """

    name: str
    when: str
    cause: Cause
    confidence: float
    sentence: str


def _by_name(*rules: RoundRule) -> Mapping[str, RoundRule]:
    return {rule.name: rule for rule in rules}


DRAFT_RULES: Final = _by_name(
    RoundRule(
        "takeover", "consumers registered with a coordinator that has another address or a higher epoch than the last",
        Cause.COORDINATOR_FAILOVER, 1.0, "{what}",
    ),
    RoundRule(
        "known epoch", "the source begins with registrations of consumers that know a lower epoch",
        Cause.COORDINATOR_FAILOVER, 0.9, "{what}",
    ),
    RoundRule(
        "lost", "all consumers, two or more, lost their connections at once and registered again at the same address",
        Cause.COORDINATOR_FAILOVER, 0.7, "{what}",
    ),
    RoundRule("new", "a consumer registered", Cause.NEW_MEMBER, 1.0, "{who} registered"),
    RoundRule(
        "reconnected", "a consumer registered again after its connection was closed: the draft does so when a fetcher "
        "is out of range, or when the coordinator was silent for the session timeout",
        Cause.NEW_MEMBER, 0.9, "{who} registered again {what}",
    ),
    RoundRule(
        "silent", "a consumer is gone that had not answered a request for half its session timeout or more",
        Cause.SESSION_EXPIRED, 0.95, "{who} had not answered {what}",
    ),
    RoundRule(
        "left", "a consumer is gone whose connection was closed while no request waited for it",
        Cause.MEMBER_LEFT, 0.9, "{who} closed its connection: it was shut down, or its process ended",
    ),
    RoundRule(
        "vanished", "a consumer is not asked any more, and the end of its connection is not in the source",
        Cause.MEMBER_LEFT, 0.5, "{who} is not asked any more; the end of its connection is not in the source",
    ),
    RoundRule(
        "retry", "the same consumers as before, one of which had not answered StopFetcher or StartFetcher",
        Cause.REBALANCE_TIMEOUT, 0.95, "{who} had not answered {what}, and the coordinator tries again",
    ),
    RoundRule(
        "refused", "the same consumers as before, one of which had answered StopFetcher or StartFetcher with an error",
        Cause.REBALANCE_TIMEOUT, 0.9, "{who} had answered {what}, and the coordinator tries again",
    ),
    RoundRule(
        "topics", "the same consumers as before, all of which had answered, and partitions are assigned that no "
        "consumer had before",
        Cause.TOPICS_CHANGED, 0.9, "partitions were assigned that no consumer had before: {what}",
    ),
    RoundRule(
        "subscription", "a consumer registered again with other topics", Cause.SUBSCRIPTION_CHANGED, 1.0,
        "{who} registered again {what}",
    ),
    RoundRule(
        "topics, by exclusion", "else: the same consumers as before, all of which had answered",
        Cause.TOPICS_CHANGED, 0.6,
        "the consumers are the same and all had answered: most likely topics or partitions have changed",
    ),
)  # fmt: skip

REWRITE_RULES: Final = _by_name(
    RoundRule(
        "takeover", "the members joined at another address than in the round before", Cause.COORDINATOR_FAILOVER, 1.0,
        "{what}",
    ),
    RoundRule(
        "restarted", "since the round before, the coordinator answered that it starts up, or is not the coordinator "
        "(14, 15, 16, 110)",
        Cause.COORDINATOR_FAILOVER, 0.9, "{what}",
    ),
    RoundRule("new", "a JoinGroup without consumer id", Cause.NEW_MEMBER, 1.0, "{who} joined as a new member"),
    RoundRule(
        "returned", "a JoinGroup of a consumer id that was not in the round before", Cause.NEW_MEMBER, 0.9,
        "{who} joined again after a round without it",
    ),
    RoundRule(
        "subscription", "a JoinGroup with other topics than the member's last one", Cause.SUBSCRIPTION_CHANGED, 1.0,
        "{who} subscribes to {what} now",
    ),
    RoundRule(
        "session", "a member is not in the round: the design has no LeaveGroup, so its session was over",
        Cause.SESSION_EXPIRED, 0.9, "{who} had sent nothing for {what}",
    ),
    RoundRule(
        "vanished", "the same, and its session timeout is not in the source", Cause.SESSION_EXPIRED, 0.5,
        "{who} had sent nothing for {what}; its session timeout is not in the source",
    ),
    RoundRule(
        "failed", "the same members, after a round that was answered with RebalanceFailed", Cause.REBALANCE_TIMEOUT,
        0.9, "a member had not joined in time, and the others join again after RebalanceFailed",
    ),
    RoundRule(
        "topics", "the same members, and partitions are assigned that no member had before", Cause.TOPICS_CHANGED, 0.9,
        "partitions were assigned that no member had before: {what}",
    ),
    RoundRule(
        "sockets", "the same members, whose connections were closed within a second", Cause.TOPICS_CHANGED, 0.7,
        "the connections of all {what} members were closed at once, as the coordinator does when partitions change",
    ),
    RoundRule("rejoined", "else: the same members", Cause.UNKNOWN, 0.2, "the same members joined again"),
    RoundRule("unknown", "the first round of the source", Cause.UNKNOWN, 0.2, "nothing in the source started it"),
)  # fmt: skip
