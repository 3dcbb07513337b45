"""Classic groups as their coordinator logs them: what recordings do not show."""

from __future__ import annotations

from kcoord_wire.forensics.model import Cause, GroupHistory
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
