"""Epochs, accounts of rebalances, and the end of a coordinator's term."""

from __future__ import annotations

from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Phase, Rebalance, Trigger
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.consumer_script import ORDERS, ConsumerScript


def test_a_rebalance_has_an_account_from_its_epoch_to_its_end() -> None:
    script = ConsumerScript()
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


def test_an_operator_wants_a_rebalance() -> None:
    script = ConsumerScript()
    script.do(Rebalance("g", "why not"))
    script.enter("a")
    script.do(Rebalance("g", "why not"))
    account = script.accounts[-1][1]
    assert (account.trigger, account.reason, script.group.epoch) == (Trigger.REQUESTED, "why not", 3)
    script.follow("a")
    assert script.group.members["a"].epoch == 3


def test_a_new_epoch_interrupts_a_rebalance() -> None:
    script = ConsumerScript()
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


def test_a_coordinator_that_resigns_knows_no_group() -> None:
    script = ConsumerScript()
    script.enter("a")
    script.enter("b")
    script.resign()
    assert script.accounts[-1][1].outcome == "interrupted"
    assert script.machine.deadline is None
    assert script.beat("a", 2).error_code == E.NOT_COORDINATOR
