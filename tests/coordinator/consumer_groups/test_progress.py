"""Epochs, accounts of rebalances, and the end of a coordinator's term."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.assignors import kip848 as server
from kcoord_wire.coordinator.consumer_groups.epochs import hash_topics, may_assign
from kcoord_wire.coordinator.consumer_groups.group import NOBODY, ConsumerGroup, Member, MemberState
from kcoord_wire.coordinator.consumer_groups.progress import Goal, preferred_assignor, reconcile
from kcoord_wire.coordinator.core import config
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Phase, Rebalance, Trigger
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.consumer_script import ORDERS, PAYMENTS, ConsumerScript
from tests.support.scripted import Topics


def test_a_rebalance_has_an_account_from_its_epoch_to_its_end(script: ConsumerScript) -> None:
    script.enter("a")
    script.accounts.clear()
    script.enter("b")
    script.wait(200)
    script.beat("a", 2, owned={ORDERS: range(12)})
    script.wait(300)
    script.beat("a", 2, owned=script.holds("a"))
    script.beat("b", 3)
    assert [phase for phase, _ in script.accounts] == [Phase.STARTED, Phase.JOINED, Phase.ENDED]
    account = script.accounts[-1][1]
    assert (account.generation_id, account.trigger, account.member_id) == (3, Trigger.NEW_MEMBER, "b")
    assert (account.protocol, account.outcome) == ("uniform", "stable")
    assert account.ended_at == account.started_at + 500
    assert account.joins == [("a", 500), ("b", 500)]  # when each held its whole target


def test_a_group_may_have_configs_of_its_own() -> None:
    script = ConsumerScript(GroupConfig())
    script.group_configs["g"] = {
        "consumer.session.timeout.ms": "7000",
        "consumer.heartbeat.interval.ms": "700",
        "consumer.assignment.interval.ms": "0",
    }
    assert script.enter("a").heartbeat_interval_ms == 700
    assert script.enter("b").member_epoch == 3  # without an interval between assignments
    script.wait(7_000)
    assert script.group.members == {}
    script.group_id = "other"
    assert script.enter("a").heartbeat_interval_ms == 5_000


def test_an_operator_wants_a_rebalance(script: ConsumerScript) -> None:
    script.do(Rebalance("g", "why not"))
    script.enter("a")
    script.do(Rebalance("g", "why not"))
    account = script.accounts[-1][1]
    assert (account.trigger, account.reason, script.group.epoch) == (Trigger.REQUESTED, "why not", 3)
    script.follow("a")
    assert script.group.members["a"].epoch == 3


def test_a_new_epoch_interrupts_a_rebalance(script: ConsumerScript) -> None:
    script.enter("a")
    script.enter("b")
    script.enter("c")
    ended = [account.outcome for phase, account in script.accounts if phase is Phase.ENDED]
    assert ended == ["stable", "interrupted"]
    script.follow("a", "b", "c")
    assert script.accounts[-1][1].outcome == "stable"
    for member_id in ("a", "b", "c"):
        script.beat(member_id, -1)
    assert script.accounts[-1][1].outcome == "empty"


def test_a_rebalance_ends_that_a_kill_has_cut_short(script: ConsumerScript) -> None:
    script.enter("a")
    assert script.restarted().accounts == []
    script.enter("b")
    again = script.restarted()
    assert [phase for phase, _ in again.accounts] == [Phase.STARTED, Phase.JOINED]
    again.wait(300)
    again.follow("a", "b")
    phase, account = again.accounts[-1]
    assert (phase, account.outcome, account.generation_id, account.trigger) == (
        Phase.ENDED,
        "stable",
        3,
        Trigger.LOADED,
    )
    assert [member_id for member_id, _ in account.joins] == ["a", "b"]
    assert account.ended_at == account.started_at + 300


def test_an_assignment_that_was_due_at_a_kill_is_made_and_ends() -> None:
    script = ConsumerScript(GroupConfig())  # with a second between two assignments
    script.enter("a")
    script.enter("b")
    again = script.restarted()
    assert [phase for phase, _ in again.accounts] == [Phase.STARTED]
    again.wait(1_000)
    again.follow("a", "b")
    assert [phase for phase, _ in again.accounts] == [Phase.STARTED, Phase.JOINED, Phase.ENDED]
    assert again.accounts[-1][1].outcome == "stable"


def test_a_coordinator_that_resigns_knows_no_group(script: ConsumerScript) -> None:
    script.enter("a")
    script.enter("b")
    script.resign()
    assert script.accounts[-1][1].outcome == "interrupted"
    assert script.machine.deadline is None
    assert script.beat("a", 2).error_code == E.NOT_COORDINATOR


# ---- The target assignment: who gets what, when it may be computed, and which topics it depends on


def test_the_settings_know_the_assignors_that_there_are() -> None:
    assert tuple(server.SERVER_ASSIGNORS) == config.SERVER_ASSIGNORS


def test_the_hash_is_of_the_topics_that_exist() -> None:
    topics = Topics()
    both = hash_topics(topics, ["orders", "payments"])
    assert hash_topics(topics, ["payments", "orders", "missing"]) == both != hash_topics(topics, ["orders"])
    assert hash_topics(topics, ["missing"]) == hash_topics(topics, []) == 0
    topics.set("orders", 13)
    assert hash_topics(topics, ["orders", "payments"]) != both
    assert -(1 << 63) <= both < 1 << 63


def test_assignments_have_an_interval() -> None:
    group = ConsumerGroup("g", 0)
    assert may_assign(group, 1_000, 10)
    group.set_assignment_epoch(2, 10)
    assert [may_assign(group, 1_000, now) for now in (10, 1_009, 1_010)] == [False, False, True]
    assert may_assign(group, 0, 10)


def test_most_votes_choose_the_assignor() -> None:
    group = ConsumerGroup("g", 0)
    assert preferred_assignor(group, "uniform") == "uniform"
    for member_id, assignor in (("a", "range"), ("b", "uniform"), ("c", "uniform")):
        group.put(Member(member_id=member_id, assignor=assignor))
        assert preferred_assignor(group, "x") == ("uniform" if member_id == "c" else "range")


def test_a_member_that_joins_soon_after_waits_for_its_target() -> None:
    script = ConsumerScript(GroupConfig())
    script.enter("a")
    answer = script.enter("b")
    assert (answer.member_epoch, script.group.epoch, script.group.assignment_epoch) == (2, 3, 2)
    assert script.group.state == "Assigning"
    script.wait(1_000)
    script.follow("a", "b")
    assert script.counts() == {"a": 6, "b": 6}


def test_targets_follow_subscriptions_topics_and_members(script: ConsumerScript) -> None:
    script.enter("a", "orders", "payments", "later")
    script.enter("b", "orders", "payments")
    script.follow("a", "b")
    assert script.counts() == {"a": 10, "b": 10}
    before = script.holds("a")
    script.topics.set("orders", 14)
    script.follow("a", "b")
    assert script.counts() == {"a": 11, "b": 11}
    assert all(set(before[topic]) <= set(script.holds("a")[topic]) for topic in (ORDERS, PAYMENTS))  # nothing moves
    script.topics.set("later", 2)
    script.follow("a", "b")
    assert script.counts() == {"a": 12, "b": 12}
    epoch = script.group.epoch
    script.topics.set("unrelated", 2)
    script.follow("a", "b")
    assert script.group.epoch == epoch
    del script.topics.known["orders"]
    script.topics.changes += 1
    script.follow("a", "b")
    assert sum(script.counts().values()) == 10


@pytest.mark.parametrize(
    ("topic_id", "metadata_hash"),
    [
        ("91b39818-d1a6-4926-8f5a-ff482c3a02be", -3660960966340111460),
        ("2425cd50-b5f7-4f9e-acc0-36d6b7750680", 2241680044773259608),
    ],
)
def test_the_hash_is_what_kafka_has_written(topic_id: str, metadata_hash: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the topic orders with three partitions, in logs of Kafka 4.4."""
    topics = Topics()
    topics.known = {"orders": 3}
    monkeypatch.setattr(topics, "id_of", {"orders": uuid.UUID(topic_id)}.get)
    assert hash_topics(topics, ["orders", "absent"]) == metadata_hash


# ---- One member's way to its target: every state, with and without what it must give up or wait for

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
