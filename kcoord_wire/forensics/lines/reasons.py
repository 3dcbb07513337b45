"""Why a rebalance began, from the reason that a broker's line states, or a client.

Source: the arguments of ``prepareRebalance`` in GroupCoordinator.scala (2.3.1, 2.8.2, 3.6.1) and
GroupMetadataManager.java; clients' reasons (KIP-800) in AbstractCoordinator.java and ConsumerCoordinator.java.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from kcoord_wire.forensics.lines.parsing import client_of
from kcoord_wire.forensics.lines.shapes import Shape
from kcoord_wire.forensics.model import Cause, Identity

_CERTAIN: Final = 1.0
_LIKELY: Final = 0.6
_NOT_PROVIDED: Final = "not provided"
_REASONS: Final = tuple(
    (Shape(cause.name, template, ("broker",)), cause, confidence)
    for template, cause, confidence in (
        (
            "Adding new member <member> with group {instance id|instanceid} <instance>[[; client reason: <reason>]]",
            Cause.NEW_MEMBER,
            _CERTAIN,
        ),
        ("Adding new member <member>", Cause.NEW_MEMBER, _CERTAIN),
        ("emoving member <member> on heartbeat expiration", Cause.SESSION_EXPIRED, _CERTAIN),
        ("emoving member <member> on LeaveGroup[[; client reason: <reason>]]", Cause.MEMBER_LEFT, _CERTAIN),
        ("explicit `LeaveGroup` request for (<member>) members", Cause.MEMBER_LEFT, _CERTAIN),
        (
            "Leader <member> re-joining group during <state>[[; client reason: <reason>]]",
            Cause.LEADER_REJOINED,
            _CERTAIN,
        ),
        ("leader <member> re-joining group during <state>", Cause.LEADER_REJOINED, _CERTAIN),
        (
            "Updating metadata for static member <member> with instance id <instance>[[; client reason: <reason>]]",
            Cause.STATIC_REPLACED,
            _CERTAIN,
        ),
        (
            "Updating metadata for member <member> during <state>[[; client reason: <reason>]]",
            Cause.SUBSCRIPTION_CHANGED,
            _LIKELY,
        ),
        ("Updating metadata for member <member>", Cause.SUBSCRIPTION_CHANGED, _LIKELY),
        (
            "ember <member> {is |}joining group during <state>[[; client reason: <reason>]]",
            Cause.NEW_MEMBER,
            _LIKELY,
        ),
        (
            "Group's selectedProtocol will change because static member <member> with instance id <instance> joined "
            "with change of protocol[[; client reason: <reason>]]",
            Cause.STATIC_REPLACED,
            _CERTAIN,
        ),
        ("Removing <member> on pending sync request expiration", Cause.SYNC_EXPIRED, _CERTAIN),
        ("Freshly-loaded group <list> is over capacity<list>", Cause.GROUP_TOO_LARGE, _CERTAIN),
    )
)
_CLIENTS: Final = (  # what a client's reason contains
    ("poll timeout has expired", Cause.POLL_TIMEOUT),
    ("max.poll.interval", Cause.POLL_TIMEOUT),
    ("need to revoke partitions", Cause.COOPERATIVE_FOLLOW_UP),
    ("cached metadata has changed", Cause.TOPICS_CHANGED),
    ("Metadata for subscribed topic(s) has changed", Cause.TOPICS_CHANGED),
    ("subscription has changed", Cause.SUBSCRIPTION_CHANGED),
    ("session timed out", Cause.SESSION_EXPIRED),
    ("the consumer is being closed", Cause.MEMBER_LEFT),
    ("the consumer unsubscribed", Cause.MEMBER_LEFT),
)
_SET: Final = re.compile(r"(?:Set|List|HashSet)?[(\[{]?([^()\[\]{}]{1,300})")


class Verdict(NamedTuple):
    """What a reason says.

    :ivar reason: of the client, where it stated one
    """

    cause: Cause
    confidence: float
    trigger: Identity
    reason: str | None = None


def judge_reason(text: str) -> Verdict:
    """Return the cause in the reason of a broker's line ``Preparing to rebalance``."""
    for shape, cause, confidence in _REASONS:
        found = shape.match(text)
        if found is None:
            continue
        named = found.groupdict()
        reason = named.get("reason")
        reason = None if reason in (None, _NOT_PROVIDED) else reason.rstrip(".")
        stated = None if reason is None else cause_of_client(reason)
        if stated is not None and cause not in (Cause.NEW_MEMBER, Cause.STATIC_REPLACED):
            cause, confidence = stated, _CERTAIN
        return Verdict(cause, confidence, _identity(named.get("member"), named.get("instance")), reason)
    return Verdict(Cause.UNKNOWN, 0.0, Identity())


def cause_of_client(reason: str) -> Cause | None:
    """Return the cause in the reason that a client states, or None."""
    return next((cause for part, cause in _CLIENTS if part in reason), None)


def _identity(member: str | None, instance: str | None) -> Identity:
    if member and (first := _SET.match(member)):
        member = first[1].split(", ")[0]
    if instance is not None:
        instance = instance.removeprefix("Some(").removesuffix(")")
        instance = None if instance in ("None", "null") else instance
    return Identity(member, client_of(member), None, instance)
