"""Epochs, accounts of rebalances, and the end of a coordinator's term."""

from __future__ import annotations

from kcoord_wire.coordinator.core.events import Phase, Trigger
from kcoord_wire.error_codes import ErrorCode as E
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
