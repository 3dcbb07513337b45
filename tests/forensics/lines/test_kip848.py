"""Groups of KIP-848 as their coordinator logs them: what recordings do not show."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import Cause, GroupHistory
from tests.support.text_logs import history_of, parse


def logged(*lines: str) -> GroupHistory:
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
    ],
)
def test_why_a_member_is_gone(line: str, cause: Cause, why: str) -> None:
    history = logged(JOINED, BUMPED.format(1), TARGET.format(1), line, BUMPED.format(2))
    assert [row.cause for row in history.rebalances] == [Cause.NEW_MEMBER, cause]
    assert [gone.why for gone in history.rebalances[1].removed] == [why]
    assert history.rebalances[1].outcome == "empty"


def test_an_epoch_that_no_member_caused_follows_from_topics() -> None:
    history = logged(JOINED, BUMPED.format(1), TARGET.format(1), BUMPED.format(2), TARGET.format(2))
    second = history.rebalances[1]
    assert (second.cause, second.confidence, second.member_id) == (Cause.TOPICS_CHANGED, 0.6, None)


def test_subscription_metadata_is_a_certain_sign_of_topics() -> None:
    history = logged(JOINED, BUMPED.format(1), "Computed new subscription metadata: {a=6}.", BUMPED.format(2))
    assert (history.rebalances[1].cause, history.rebalances[1].confidence) == (Cause.TOPICS_CHANGED, 1.0)


def test_the_last_member_that_is_stable_ends_a_rebalance() -> None:
    state = "Member {} new assignment state: epoch=1, previousEpoch=0, state=STABLE, assignedPartitions=[a-0]."
    history = logged(JOINED, BUMPED.format(1), TARGET.format(1), state.format("m1"), state.format("m2"))
    [row] = history.rebalances
    assert (row.outcome, row.duration_ms, row.joining_ms, row.assignor) == ("stable", 4000.0, 2000.0, "uniform")


def test_without_such_lines_the_end_is_unknown() -> None:
    history = logged(JOINED, BUMPED.format(1), TARGET.format(1))
    assert (history.rebalances[0].outcome, history.rebalances[0].ended_ns) == ("unseen", None)
    assert any("KIP-848" in sentence for sentence in history.group.blind)
