"""What the coordinator's own log says of groups of KIP-848 agrees with what the coordinator has reported of them."""

from __future__ import annotations

from typing import Any

from kcoord_wire.coordinator.consumer_groups.group import AWAY, LEAVING
from kcoord_wire.coordinator.core.events import Append, Phase, Trigger
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import NS_PER_MS, LogRow, table_of
from kcoord_wire.forensics.records.reader import log_history
from kcoord_wire.records import encode_offsets_record
from tests.support.consumer_script import ConsumerScript

CAUSES = {
    Trigger.NEW_MEMBER: Cause.NEW_MEMBER,
    Trigger.MEMBER_LEFT: Cause.MEMBER_LEFT,
    Trigger.SESSION_EXPIRED: Cause.MEMBER_LEFT,  # the log does not tell them apart
    Trigger.REBALANCE_EXPIRED: Cause.MEMBER_LEFT,
    Trigger.SUBSCRIPTION_CHANGED: Cause.SUBSCRIPTION_CHANGED,
    Trigger.TOPICS_CHANGED: Cause.TOPICS_CHANGED,
    Trigger.ASSIGNOR_CHANGED: Cause.ASSIGNORS_CHANGED,
}


class Recorded(ConsumerScript):
    """A script that notes when each record was written."""

    def __post_init__(self) -> None:
        self.rows: list[LogRow] = []
        super().__post_init__()

    def carry_out(self, effect: Any) -> None:
        super().carry_out(effect)
        for key, value in effect.records if isinstance(effect, Append) else ():
            raw_key, raw_value = encode_offsets_record(key, value)
            offset = len(self.rows)
            self.rows.append(LogRow("x.log", 0, offset, offset, self.now * NS_PER_MS, raw_key, raw_value))


def test_the_log_and_the_accounts_agree() -> None:
    script = Recorded()
    script.enter("a")
    script.wait(1_000)
    script.enter("b")
    script.follow("a", "b")
    script.wait(1_000)
    script.enter("c", instance_id="i")
    script.wait(500)
    script.enter("d")
    script.follow("a", "b", "c", "d")
    script.wait(1_000)
    script.beat("c", AWAY, instance_id="i")
    script.enter("c2", instance_id="i")
    script.follow("a", "b", "c2", "d")
    script.beat("b", LEAVING)
    script.follow("a", "c2", "d")
    script.wait(1_000)
    script.topics.set("orders", 13)
    script.follow("a", "c2", "d")
    script.beat("a", script.group.members["a"].epoch, server_assignor="range", owned=script.holds("a"))
    script.beat("d", script.group.members["d"].epoch, topics=["orders", "payments"], owned=script.holds("d"))
    script.follow("a", "c2", "d")
    for _ in range(9):
        script.wait(5_000)
        script.beat("d", script.group.members["d"].epoch)
    script.follow("d")
    script.beat("d", LEAVING)

    history = log_history(table_of(LogRow, script.rows))
    accounts = [account for phase, account in script.accounts if phase is Phase.ENDED]
    assert [found.generation_id for found in history.rebalances] == [account.generation_id for account in accounts]
    assert [found.outcome for found in history.rebalances] == [account.outcome for account in accounts]
    assert [found.started_ns // NS_PER_MS for found in history.rebalances] == [one.started_at for one in accounts]
    assert {account.trigger for account in accounts} >= CAUSES.keys() - {Trigger.REBALANCE_EXPIRED}
    for found, account in zip(history.rebalances, accounts, strict=True):
        causes = {
            CAUSES[account.trigger],
            Cause.SESSION_EXPIRED if account.trigger is Trigger.SESSION_EXPIRED else None,
        }
        assert found.cause in causes, (account.generation_id, account.trigger, found)
        if account.outcome == "stable" and account.ended_at is not None:
            assert found.ended_ns == account.ended_at * NS_PER_MS
