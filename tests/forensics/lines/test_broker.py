"""Classic groups as their coordinator logs them: what recordings do not show.

The reasons that brokers state, of all releases, and those of clients in them.

Groups of KIP-848 as their coordinator logs them: what recordings do not show.
"""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors import findings_of
from kcoord_wire.forensics.lines.broker import cause_of_client, judge_reason
from kcoord_wire.forensics.model import GroupHistory
from tests.support.text_logs import history_of, parse

A, B = "a-b542b773-d427-4892-9760-92cf58a9215a", "b-b542b773-d427-4892-9760-92cf58a9215b"


def logged(*lines: str) -> GroupHistory:
    """The history in lines that follow one another by a second."""
    text = "\n".join(f"[2026-11-22 12:00:{second:02},000] INFO {line}" for second, line in enumerate(lines))
    return history_of(row for row in parse(text) if row.group_id is not None)


def preparing(generation: int, reason: str | None = None) -> str:
    head = (
        "[GroupCoordinator 1]: Preparing to rebalance group g in state PreparingRebalance with "
        f"old generation {generation}"
    )
    return head if reason is None else f"{head} (__consumer_offsets-3) (reason: {reason})"


def stabilized(generation: int, members: int) -> list[str]:
    return [
        f"[GroupCoordinator 1]: Stabilized group g generation {generation} "
        f"(__consumer_offsets-3) with {members} members",
        f"[GroupCoordinator 1]: Assignment received from leader {A} for group g for "
        f"generation {generation}. The group has "
        f"{members} members, 0 of which are static.",
    ]


def test_a_rebalance_that_the_next_cuts_off_is_interrupted() -> None:
    history = logged(
        preparing(0, f"Adding new member {A}"), stabilized(1, 1)[0], preparing(1, f"Adding new member {B}")
    )
    assert [row.outcome for row in history.rebalances] == ["interrupted", "open"]
    assert history.rebalances[0].duration_ms == 2000.0


def test_members_that_did_not_rejoin_in_time_are_removed() -> None:
    late = f"[GroupCoordinator 1]: Group g removed dynamic members who haven't joined: Set({B})"
    history = logged(preparing(1, f"Leader {A} re-joining group during Stable"), late, *stabilized(2, 1))
    [row] = history.rebalances
    assert [(gone.member_id, gone.why) for gone in row.removed] == [(B, "rebalance timeout")]
    assert (row.members_after, row.leader_id, row.outcome) == (1, A, "stable")


def test_a_member_that_failed_just_before_is_the_trigger() -> None:
    text = (
        f"[2026-11-22 12:00:00,100] INFO Member {B} in group g has failed, removing it from the group\n"
        "[2026-11-22 12:00:00,101] INFO Preparing to rebalance group g with old generation 5 (__consumer_offsets-3)\n"
    )
    [row] = history_of(parse(text)).rebalances
    assert (row.cause, row.member_id, row.client_id, row.confidence) == (Cause.SESSION_EXPIRED, B, "b", 0.95)
    assert len(row.evidence) == 2


def test_two_brokers_share_a_group_after_each_other() -> None:
    first = parse(f"[2026-11-22 12:00:00,000] {preparing(0, f'Adding new member {A}')}", source="one/server.log")
    later = parse(
        "[2026-11-22 12:00:05,000] [GroupCoordinator 2]: Loading group metadata for g with generation 1\n"
        f"[2026-11-22 12:00:06,000] {preparing(1, f'Adding new member {B}').replace('or 1]', 'or 2]')}",
        source="two/server.log",
    )
    assert [row.client_id for row in history_of([*later, *first]).rebalances] == ["a", "b"]


def test_a_pending_member_that_never_joined_was_no_member() -> None:
    history = logged(
        "Dynamic member with unknown member id joins group g in Stable state. Created a "
        f"new member id {B} and request the "
        "member to rejoin with this id.",
        f"Pending member {B} in group g has been removed after session timeout expiration.",
        preparing(1, f"Adding new member {A}"),
    )
    assert [life.member_id for life in history.members] == [A]


def test_a_static_member_that_is_replaced_lives_no_longer() -> None:
    history = logged(
        "Static member with groupInstanceId=pod and unknown member id joins group g in "
        "Stable state. Created a new member id "
        f"{A} for this member and added to the group.",
        "Static member with groupInstanceId=pod and unknown member id joins group g in "
        "Stable state. Replacing previously "
        f"mapped member {A} with this groupInstanceId.",
        preparing(1, f"Updating metadata for static member {B} with instance id pod; client reason: not provided"),
    )
    assert [(life.member_id, life.why_left) for life in history.members] == [(A, "replaced"), (B, None)]
    assert history.rebalances[0].cause == Cause.STATIC_REPLACED


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


def epochs_logged(*lines: str) -> GroupHistory:
    text = "\n".join(f"[2026-11-22 12:00:{s:02},000] INFO [GroupId g] {line}" for s, line in enumerate(lines))
    return history_of(parse(text))


JOINED = "Member m1 joins the consumer group using the consumer protocol."
BUMPED = "Bumped group epoch to {}."
TARGET = "Computed a new target assignment for epoch {} with 'uniform' assignor in 3ms."


@pytest.mark.parametrize(
    ("line", "cause", "why"),
    [
        (
            "Member m1 fenced from the group because the member session expired.",
            Cause.SESSION_EXPIRED,
            "session timeout",
        ),
        (
            "Member m1 fenced from the group because it failed to transition from epoch 1 within 45000ms.",
            Cause.REBALANCE_TIMEOUT,
            "rebalance timeout",
        ),
        ("Member m1 left the consumer group.", Cause.MEMBER_LEFT, "left"),
        (
            "Dynamic member m1 has left group through explicit `LeaveGroup` request; client reason: not provided",
            Cause.MEMBER_LEFT,
            "left",
        ),
        (
            "Dynamic member m1 has left group through explicit `LeaveGroup` request; client reason: consumer poll "
            "timeout has expired.",
            Cause.POLL_TIMEOUT,
            "poll timeout",
        ),
    ],
)
def test_why_a_member_is_gone(line: str, cause: Cause, why: str) -> None:
    history = epochs_logged(JOINED, BUMPED.format(1), TARGET.format(1), line, BUMPED.format(2))
    assert [row.cause for row in history.rebalances] == [Cause.NEW_MEMBER, cause]
    assert [gone.why for gone in history.rebalances[1].removed] == [why]
    assert history.rebalances[1].outcome == "empty"


REVOKING = (
    "Member m1 new assignment state: epoch=1, previousEpoch=1, state=UNREVOKED_PARTITIONS, "
    "assignedPartitions=[a-0], revokedPartitions=[a-1]."
)
REVOKED = "Member m1 new assignment state: epoch=2, previousEpoch=1, state=STABLE, assignedPartitions=[a-0]."


def test_a_member_that_is_fenced_for_revoking_too_slowly() -> None:
    slow = "Member m1 fenced from the group because it failed to transition from epoch 1 within 8000ms."
    history = epochs_logged(JOINED, BUMPED.format(1), TARGET.format(1), slow, BUMPED.format(2))
    [found] = findings_of("slow_revocation", history)
    assert found.text == "m1 was fenced: it did not give up partitions within its rebalance timeout of 8.0 s"


@pytest.mark.parametrize("seconds", [3, 18])
def test_how_long_a_member_took_to_give_up_partitions(seconds: int) -> None:
    other = ["Member m2 joins the consumer group using the consumer protocol."] * seconds
    lines = (JOINED, BUMPED.format(1), TARGET.format(1), other[0], BUMPED.format(2), REVOKING, *other[1:], REVOKED)
    history = epochs_logged(*lines)
    [wait] = history.rebalances[1].waited_for
    assert (wait.member_id, wait.end, wait.ms) == ("m1", "revoking", seconds * 1_000.0)
    assert len(findings_of("slow_revocation", history)) == (seconds >= 5)


def test_the_topics_that_are_computed_with_a_join_are_no_cause() -> None:
    history = epochs_logged(JOINED, "Computed new subscription metadata: {a=6}.", BUMPED.format(1), TARGET.format(1))
    assert [rebalance.cause for rebalance in history.rebalances] == [Cause.NEW_MEMBER]
    history = epochs_logged("Computed new subscription metadata: {a=6}.", BUMPED.format(1), TARGET.format(1))
    assert [rebalance.cause for rebalance in history.rebalances] == [Cause.NEW_MEMBER]


def test_an_epoch_that_no_member_caused_follows_from_topics() -> None:
    history = epochs_logged(JOINED, BUMPED.format(1), TARGET.format(1), BUMPED.format(2), TARGET.format(2))
    second = history.rebalances[1]
    assert (second.cause, second.confidence, second.member_id) == (Cause.TOPICS_CHANGED, 0.6, None)


def test_subscription_metadata_is_a_certain_sign_of_topics() -> None:
    history = epochs_logged(JOINED, BUMPED.format(1), "Computed new subscription metadata: {a=6}.", BUMPED.format(2))
    assert (history.rebalances[1].cause, history.rebalances[1].confidence) == (Cause.TOPICS_CHANGED, 1.0)


def test_the_last_member_that_is_stable_ends_a_rebalance() -> None:
    state = "Member {} new assignment state: epoch=1, previousEpoch=0, state=STABLE, assignedPartitions=[a-0]."
    history = epochs_logged(JOINED, BUMPED.format(1), TARGET.format(1), state.format("m1"), state.format("m2"))
    [row] = history.rebalances
    assert (row.outcome, row.duration_ms, row.joining_ms, row.assignor) == ("stable", 4000.0, 2000.0, "uniform")


def test_without_such_lines_the_end_is_unknown() -> None:
    history = epochs_logged(JOINED, BUMPED.format(1), TARGET.format(1))
    assert (history.rebalances[0].outcome, history.rebalances[0].ended_ns) == ("unseen", None)
    assert any("KIP-848" in sentence for sentence in history.group.blind)
