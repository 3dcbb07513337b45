"""Groups with members of both protocols, in scripted exchanges: an epoch that both learn of is one rebalance."""

from __future__ import annotations

from kcoord_wire.forensics.causes import Cause
from tests.support.exchange_script import Script

REBALANCE = 27


def changing() -> Script:
    """k1 of KIP-848; c2 joins by the classic protocol (epoch 2), is asked to join again, and k1 leaves (epoch 3)."""
    script = Script()
    script.consumer("k1", 0, 0, 1, {"orders": [0, 1]}, topics=["orders"])
    script.consumer("k1", 1_000, 1, 1, owned={"orders": [0, 1]})
    script.join("c2", 2_000, 2_001, 2, leader="c2", member_id="")
    script.sync("c2", 2_002, 2_003, 2, {})
    script.consumer("k1", 2_500, 1, 2, {"orders": [0]})
    script.consumer("k1", 3_000, 2, 2, owned={"orders": [0]})
    script.beat("c2", 3_100, 2, error=REBALANCE)
    script.join("c2", 3_101, 3_102, 2, leader="c2")
    script.sync("c2", 3_103, 3_104, 2, {"orders": [1]})
    script.consumer("k1", 6_000, -1, -1)
    script.beat("c2", 6_100, 2, error=REBALANCE)
    script.join("c2", 6_101, 6_102, 3, leader="c2")
    script.sync("c2", 6_103, 6_104, 3, {"orders": [0, 1]})
    script.beat("c2", 7_000, 3)
    return script


def test_an_epoch_is_one_rebalance_of_both_protocols() -> None:
    rows = changing().history().rebalances
    assert [(row.cause, row.generation_id) for row in rows] == [
        (Cause.NEW_MEMBER, 1), (Cause.NEW_MEMBER, 2), (Cause.MEMBER_LEFT, None),
    ]  # fmt: skip
    assert [(row.members_before, row.members_after) for row in rows] == [(0, 1), (1, 2), (2, 1)]
    assert [row.outcome for row in rows].count("empty") == 0, "c2 is there at the end"


def test_the_last_one_to_leave_empties_a_mixed_group() -> None:
    script = changing()
    script.leave("c2", 8_000, 8_001)
    last = script.history().rebalances[-1]
    assert (last.cause, last.members_after, last.outcome) == (Cause.MEMBER_LEFT, 0, "empty")
