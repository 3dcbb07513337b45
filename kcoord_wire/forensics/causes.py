"""The causes of rebalances, each with what is said of it wherever one is shown.

To add a cause: a row of `Cause`, and the rule that finds it: in wire/rules.py for frames, in records/ for records, in
lines/ for logs.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class CauseFacts(NamedTuple):
    """A cause in words.

    :ivar about: a sentence about it
    :ivar colour: in charts and tables; families share a hue: faults of clients are orange to red, joins and departures
        blue, changes green and brown, the coordinator violet, consequences grey
    :ivar is_fault: it is no part of normal work
    :ivar in_a_storm: what to do where it is the commonest cause of a storm
    :ivar stated: what to look at where a line states it; None where no line does
    """

    about: str
    colour: str
    is_fault: bool = False
    in_a_storm: str = "Look at the members that set off most of the rebalances, and at what they have in common."
    stated: str | None = None


class Cause(enum.StrEnum):
    """Why a rebalance began. The order means nothing: which cause counts is up to the rules of wire/ and records/."""

    facts: CauseFacts

    def __new__(cls, value: str, facts: CauseFacts) -> Cause:
        member = str.__new__(cls, value)
        member._value_ = value
        member.facts = facts
        return member

    POLL_TIMEOUT = (
        "max.poll.interval.ms exceeded",
        CauseFacts(
            about="The application took longer between two polls than max.poll.interval.ms; its client left.",
            colour="#d55e00",
            is_fault=True,
            in_a_storm="The application does too much between two polls: fetch less at once (max.poll.records), or "
            "raise max.poll.interval.ms above what a batch takes.",
            stated="Do less per poll (max.poll.records), move slow work off the polling thread, or raise "
            "max.poll.interval.ms.",
        ),
    )
    SESSION_EXPIRED = (
        "session timeout",
        CauseFacts(
            about="No heartbeat within session.timeout.ms: the process died, hung, or lost its network.",
            colour="#d1495b",
            is_fault=True,
            in_a_storm="Members die, stand still, or lose their network: look at those processes first. A longer "
            "session timeout helps only where they come back by themselves.",
            stated="Was the process paused (garbage collection, CPU limit), killed, or cut off? Only then raise "
            "session.timeout.ms.",
        ),
    )
    # a member that joined did not sync within the rebalance timeout (KAFKA-9752)
    SYNC_EXPIRED = (
        "sync timeout",
        CauseFacts(
            about="A member joined but did not request its assignment in time, and was removed.",
            colour="#b5526e",
            is_fault=True,
            in_a_storm="The leader's assignor is too slow for so many members and partitions, or the leader is gone.",
            stated="These members joined and never asked for their assignment: they hang or died.",
        ),
    )
    REBALANCE_TIMEOUT = (
        "rebalance timeout",
        CauseFacts(
            about="A member that had missed an earlier join came back, or a coordinator tries again.",
            colour="#c0392b",
            is_fault=True,
            in_a_storm="Members join too late: look what they do between two polls when a rebalance begins.",
        ),
    )
    GROUP_TOO_LARGE = (
        "group larger than group.max.size",
        CauseFacts(
            about="The group has more members than group.max.size allows.",
            colour="#a8552b",
            is_fault=True,
            stated="The broker's group.max.size is smaller than the group.",
        ),
    )
    REFUSED = (
        "member refused",
        CauseFacts(
            about="The broker refused a member's requests, as for want of an ACL, until its session was over.",
            colour="#b3446c",
            is_fault=True,
            in_a_storm="Members are refused: see the finding about the error.",
        ),
    )
    COORDINATOR_FAILOVER = (
        "coordinator failover",
        CauseFacts(
            about="The group moved to another broker, or its broker restarted; its members joined anew.",
            colour="#8f5fd0",
            is_fault=True,
            in_a_storm="The coordinator's broker is lost again and again: look at brokers, not at members.",
        ),
    )
    OUTAGE = (
        "outage",
        CauseFacts(
            about="No coordinator answered the members for a time: the broker or the network, not a client.",
            colour="#a044b8",
            is_fault=True,
        ),
    )
    NEW_MEMBER = (
        "new member",
        CauseFacts(
            about="A consumer started, or came back with a new member id.",
            colour="#2a7fc1",
            in_a_storm="Processes start again and again: look at their supervisor (crashes, failed liveness probes, an "
            "autoscaler that follows the lag of the rebalances).",
            stated="A start or a scale-out is fine; the same client again and again is a crash loop.",
        ),
    )
    MEMBER_LEFT = (
        "member left",
        CauseFacts(
            about="A consumer was closed normally.",
            colour="#3f8f9f",
            in_a_storm="Processes are stopped and started again and again: look at their supervisor, or at an "
            "autoscaler that follows the lag of the rebalances.",
            stated="A close or a deploy is fine. Its client's log says why it left.",
        ),
    )
    # a new process with a known group.instance.id (KIP-345)
    STATIC_REPLACED = (
        "static member replaced",
        CauseFacts(
            about="A new process joined with the group.instance.id of a member.",
            colour="#5b7bd5",
            stated="A static member was restarted with another subscription or assignor.",
        ),
    )
    TOPICS_CHANGED = (
        "topic metadata changed",
        CauseFacts(
            about="Topics or partitions were created or deleted; the leader requested a new assignment.",
            colour="#2f8f5b",
            in_a_storm="Topics or partitions change all the time, or members disagree on them: look at what creates "
            "topics, and whether a pattern matches more than it should.",
            stated="Who created or deleted topics or partitions?",
        ),
    )
    SUBSCRIPTION_CHANGED = (
        "subscription changed",
        CauseFacts(
            about="A member subscribed to other topics.",
            colour="#6b8e23",
            in_a_storm="A member changes its subscription all the time: subscribe once to all topics.",
            stated="The member's subscription, or what it owns, is another than before.",
        ),
    )
    ASSIGNORS_CHANGED = (
        "list of assignors changed",
        CauseFacts(
            about="A member offered other assignors than before.",
            colour="#9a7b00",
        ),
    )
    LEADER_REJOINED = (
        "leader rejoined",
        CauseFacts(
            about="The leader joined again, which starts a rebalance by itself.",
            colour="#b07d2b",
            in_a_storm="The leader asks for rebalances: look at its log, and at topics that come and go.",
            stated="The leader may have seen topics change, or it lost its coordinator.",
        ),
    )
    # assigns what the first one revoked (KIP-429)
    COOPERATIVE_FOLLOW_UP = (
        "second round of a cooperative rebalance",
        CauseFacts(
            about="The second round of a cooperative rebalance assigns what the first one revoked.",
            colour="#7d8590",
            in_a_storm="The assignor does not come to rest: update the client libraries, the leader's first.",
            stated="The second round of a cooperative rebalance; a third is a loop.",
        ),
    )
    UNKNOWN = (
        "unknown",
        CauseFacts(
            about="The source does not show it.",
            colour="#6e7781",
        ),
    )
