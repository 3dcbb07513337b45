"""The reasons that brokers state, of all releases, and those of clients in them."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.lines.reasons import cause_of_client, judge_reason
from kcoord_wire.forensics.model import Cause

UUID = "b542b773-d427-4892-9760-92cf58a9215a"
M = f"app-1-{UUID}"


@pytest.mark.parametrize(
    ("reason", "cause", "confidence"),
    [
        (f"Adding new member {M}", Cause.NEW_MEMBER, 1.0),
        (f"Adding new member {M} with group instance id None; client reason: not provided", Cause.NEW_MEMBER, 1.0),
        (f"Adding new member {M} with group instanceid None", Cause.NEW_MEMBER, 1.0),
        (f"removing member {M} on heartbeat expiration", Cause.SESSION_EXPIRED, 1.0),
        (f"removing member {M} on heartbeat expiration.", Cause.SESSION_EXPIRED, 1.0),
        (f"removing member {M} on LeaveGroup", Cause.MEMBER_LEFT, 1.0),
        (
            f"Removing member {M} on LeaveGroup; client reason: consumer poll timeout has expired.",
            Cause.POLL_TIMEOUT,
            1.0,
        ),
        (f"Removing member {M} on LeaveGroup; client reason: the consumer is being closed", Cause.MEMBER_LEFT, 1.0),
        (f"explicit `LeaveGroup` request for ({M}) members.", Cause.MEMBER_LEFT, 1.0),
        (f"Leader {M} re-joining group during Stable; client reason: not provided", Cause.LEADER_REJOINED, 1.0),
        (
            f"Leader {M} re-joining group during Stable; client reason: cached metadata has "
            f"changed from (version5: {{a=4}}) "
            "at the beginning of the rebalance to (version6: {a=6})",
            Cause.TOPICS_CHANGED,
            1.0,
        ),
        (
            f"Updating metadata for member {M} during Stable; client reason: need to revoke "
            "partitions [a-1] as indicated by "
            "the current assignment and re-join",
            Cause.COOPERATIVE_FOLLOW_UP,
            1.0,
        ),
        (
            f"Updating metadata for member {M} during Stable; client reason: not provided",
            Cause.SUBSCRIPTION_CHANGED,
            0.6,
        ),
        (
            f"Updating metadata for static member {M} with instance id Some(pod-1); client reason: not provided",
            Cause.STATIC_REPLACED,
            1.0,
        ),
        (f"Removing Set({M}) on pending sync request expiration", Cause.SYNC_EXPIRED, 1.0),
        (
            "Freshly-loaded group g (size 5) is over capacity 4. Rebalancing in order to "
            "give a chance for consumers to "
            "commit offsets",
            Cause.GROUP_TOO_LARGE,
            1.0,
        ),
        ("a reason of a later release", Cause.UNKNOWN, 0.0),
    ],
)
def test_the_cause_in_a_brokers_reason(reason: str, cause: Cause, confidence: float) -> None:
    verdict = judge_reason(reason)
    assert (verdict.cause, verdict.confidence) == (cause, confidence)
    if M in reason:
        assert (verdict.trigger.member_id, verdict.trigger.client_id) == (M, "app-1")


def test_the_instance_of_a_static_member_is_named() -> None:
    assert judge_reason(
        f"Adding new member {M} with group instance id Some(pod-1); client reason: x"
    ).trigger.instance_id == ("pod-1")


def test_reasons_of_clients_that_name_no_cause_are_none() -> None:
    assert cause_of_client("need to re-join with the given member-id: x") is None
