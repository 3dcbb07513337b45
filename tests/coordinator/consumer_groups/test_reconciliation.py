"""One member's way to its target: every state, with and without what it must give up or wait for."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.group import NOBODY, Member, MemberState
from kcoord_wire.coordinator.consumer_groups.progress import Goal, reconcile

T, U = uuid.UUID(int=1), uuid.UUID(int=2)
STABLE, UNREVOKED, UNRELEASED = list(MemberState)[:3]


def member(state: MemberState, epoch: int, assigned: dict[int, int], revoking: dict[int, int] | None = None) -> Member:
    return Member(
        member_id="a",
        epoch=epoch,
        previous_epoch=epoch - 1,
        state=state,
        assigned={T: assigned} if assigned else {},
        revoking={T: revoking} if revoking else {},
    )


def owned(*numbers: int) -> list[Any]:
    return [m.ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=T, partitions=list(numbers))]


@pytest.mark.parametrize(
    ("before", "reports", "target", "taken", "after"),
    [
        # It holds its target already.
        (member(STABLE, 5, {0: 4}), None, {0}, {0}, member(STABLE, 5, {0: 4})),
        # A new epoch with the same partitions.
        (member(STABLE, 4, {0: 4}), None, {0}, {0}, member(STABLE, 5, {0: 4})),
        # A free partition is given, with the epoch of the target.
        (member(STABLE, 4, {0: 4}), None, {0, 1}, {0}, member(STABLE, 5, {0: 4, 1: 5})),
        # A partition that another member holds is waited for; what is free comes at once.
        (member(STABLE, 4, {0: 4}), None, {0, 1, 2}, {0, 1}, member(UNRELEASED, 5, {0: 4, 2: 5})),
        (member(UNRELEASED, 5, {0: 4}), None, {0, 1}, {0, 1}, member(UNRELEASED, 5, {0: 4})),
        (member(UNRELEASED, 5, {0: 4}), None, {0, 1}, {0}, member(STABLE, 5, {0: 4, 1: 5})),
        # What the target takes away is given up first, in the old epoch, and nothing is given before.
        (member(STABLE, 4, {0: 4, 1: 4}), None, {0, 2}, {0, 1}, member(UNREVOKED, 4, {0: 4}, {1: 4})),
        (member(UNREVOKED, 4, {0: 4}, {1: 4}), None, {0, 2}, {0, 1}, member(UNREVOKED, 4, {0: 4}, {1: 4})),
        (member(UNREVOKED, 4, {0: 4}, {1: 4}), owned(0, 1), {0, 2}, {0, 1}, member(UNREVOKED, 4, {0: 4}, {1: 4})),
        (member(UNREVOKED, 4, {0: 4}, {1: 4}), owned(0), {0, 2}, {0, 1}, member(STABLE, 5, {0: 4, 2: 5})),
        # It never used what is taken away: it need not say so again.
        (member(STABLE, 4, {0: 4, 1: 4}), owned(0), {0}, {0, 1}, member(STABLE, 5, {0: 4})),
        # What it has just given up comes back to it.
        (member(UNREVOKED, 4, {0: 4}, {1: 4}), owned(0), {0, 1}, {0, 1}, member(STABLE, 5, {0: 4, 1: 5})),
        # A member in a state of another release begins anew.
        (member(MemberState.UNKNOWN, 3, {}), [], {0}, set(), member(STABLE, 5, {0: 5})),
    ],
)
def test_the_next_step(before: Member, reports: Any, target: set[int], taken: set[int], after: Member) -> None:
    goal = Goal(5, {T: frozenset(target)}, frozenset([T]), lambda _, number: 4 if number in taken else NOBODY)
    found = reconcile(before, goal, reports, has_new_topics=False)
    names = ("state", "epoch", "assigned", "revoking")
    assert {name: getattr(found, name) for name in names} == {name: getattr(after, name) for name in names}
    if found is not before:
        assert found.previous_epoch == (5 if before.state is MemberState.UNKNOWN else before.epoch)


@pytest.mark.parametrize("reports", [None, owned(0), []])
@pytest.mark.parametrize("state", [STABLE, UNREVOKED])
def test_topics_no_longer_subscribed_are_taken_away(state: MemberState, reports: Any) -> None:
    before = member(state, 5, {0: 4}, {1: 3} if state is UNREVOKED else None)
    goal = Goal(5, {T: frozenset([0])}, frozenset([U]), lambda _topic, _number: 4)
    found = reconcile(before, goal, reports, has_new_topics=True)
    if reports == []:
        assert (found.assigned, found.revoking, found.epoch) == ({}, {}, 5)
    else:
        assert (found.state, found.assigned) == (UNREVOKED, {})
        had = {0: 4, 1: 3} if state is UNREVOKED and reports is None else {0: 4}  # partition 1 is given up
        assert found.revoking == {T: had}
