"""Causes from the difference of two descriptions: each row of the module's table, and who it names."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.watch.seen import Difference, Reason, SeenGroup, SeenMember, explain, listed, topics_changed, who
from tests.support.watching import group, member

ONE, TWO, STATIC = member("c-1", 0), member("c-2", 1), member("c-3", 2, instance="i-3")


def reason(
    before: SeenGroup, after: SeenGroup, *, outage: bool = False, unowned: bool = False, assignor: str | None = None
) -> Reason:
    difference = Difference.between(before, after)
    return explain(
        before, after, difference, assignor=before.assignor or assignor, after_outage=outage, has_unowned=unowned
    )


def stable(*members: SeenMember, assignor: str | None = "range") -> SeenGroup:
    return group("Stable", *members, assignor=assignor)


@pytest.mark.parametrize(
    ("before", "after", "cause", "confidence", "client"),
    [
        (stable(), stable(ONE), Cause.NEW_MEMBER, 0.9, "c-1"),
        (stable(), stable(ONE, TWO), Cause.NEW_MEMBER, 0.9, None),
        (stable(ONE), stable(ONE, TWO), Cause.NEW_MEMBER, 0.8, "c-2"),
        (stable(ONE, TWO), stable(ONE), Cause.MEMBER_LEFT, 0.5, "c-2"),
        (stable(ONE, STATIC), stable(ONE), Cause.SESSION_EXPIRED, 0.7, "c-3"),
        (stable(ONE, TWO, STATIC), stable(ONE), Cause.MEMBER_LEFT, 0.5, None),
        (stable(ONE, TWO), stable(ONE, member("c-2", life="b")), Cause.MEMBER_LEFT, 0.5, "c-2"),
        (stable(ONE, TWO), stable(ONE, member("c-9")), Cause.UNKNOWN, 0.0, None),
        (stable(STATIC), stable(member("c-3", life="b", instance="i-3")), Cause.STATIC_REPLACED, 0.8, "c-3"),
        (stable(ONE), stable(ONE), Cause.UNKNOWN, 0.0, None),
    ],
)
def test_members(before: SeenGroup, after: SeenGroup, cause: Cause, confidence: float, client: str | None) -> None:
    found = reason(before, after)
    assert (found.cause, found.confidence) == (cause, confidence)
    assert (found.trigger and found.trigger.client_id) == client


def test_the_same_members_after_an_outage() -> None:
    assert reason(stable(ONE), stable(ONE), outage=True)[:2] == (Cause.COORDINATOR_FAILOVER, 0.6)


def test_what_the_members_show_counts_more_than_an_outage() -> None:
    assert reason(stable(ONE, TWO), stable(ONE), outage=True).cause == Cause.MEMBER_LEFT


def test_a_second_round_needs_a_cooperative_assignor() -> None:
    cooperative = stable(ONE, assignor="cooperative-sticky")
    preparing = group("PreparingRebalance", ONE, assignor=None)
    assert reason(cooperative, preparing, unowned=True).cause == Cause.COOPERATIVE_FOLLOW_UP
    assert reason(cooperative, preparing).cause == Cause.UNKNOWN
    assert reason(stable(ONE), preparing, unowned=True).cause == Cause.UNKNOWN
    completing = group("CompletingRebalance", ONE, assignor=None)
    follows = reason(completing, preparing, assignor="cooperative-sticky")
    assert (follows.cause, follows.confidence) == (Cause.COOPERATIVE_FOLLOW_UP, 0.6)
    assert reason(completing, preparing, assignor="range").cause == Cause.UNKNOWN


def test_no_cause_is_certain() -> None:
    assert topics_changed(["orders"]).confidence < 1
    assert "orders" in topics_changed(["orders"]).detail


def test_names_are_bounded_and_printable() -> None:
    assert who(member("c-2")) == "c-2 (10.0.0.2)"
    assert listed([member(f"c-{n}") for n in range(6)]).endswith("c-3 (10.0.0.3) and 2 more")
    assert "\x1b" not in who(SeenMember("m", "\x1b[31m", "h\n", None, frozenset()))
