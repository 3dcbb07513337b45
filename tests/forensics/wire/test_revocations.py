"""Members of KIP-848 groups that have partitions to give up: how long others wait, and who is fenced for it."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors import findings_of
from kcoord_wire.forensics.model import Rebalance
from tests.support.exchange_script import Script, at
from tests.support.revocations import ALL, HALF, REST, TIMEOUT_MS, given_up, revoked


def fenced(script: Script, told: int, timeout_ms: int = TIMEOUT_MS, beat_ms: int = 1_500, error: int = 25) -> Rebalance:
    """It goes on with heartbeats until the first one behind its timeout, which is rejected."""
    for ms in range(told + beat_ms, told + timeout_ms, beat_ms):
        script.consumer("c1", ms, 1, 1)
        script.consumer("c2", ms + 5, 2, 2, {}, owned={})
    after = told + (timeout_ms // beat_ms + 1) * beat_ms
    script.consumer("c1", after, 1, 0, error_code=error)
    script.consumer("c2", after + 50, 2, 3, ALL)
    script.consumer("c2", after + 60, 3, 3, owned=ALL)
    return script.history().rebalances[-1]


@pytest.mark.parametrize("took_ms", [5_200, 18_000, 60_000])
def test_the_others_wait_for_the_member_that_gives_up_late(took_ms: int) -> None:
    script, told = revoked(timeout_ms=300_000)
    history = given_up(script, told, took_ms)
    [wait] = history.rebalances[1].waited_for
    assert (wait.client_id, wait.end, wait.from_ns) == ("c1", "revoking", at(told + 1))
    assert wait.ms == pytest.approx(took_ms, abs=2)
    [found] = findings_of("slow_revocation", history)
    assert (found.severity, found.subject, found.rebalances) == ("warning", "c1 (10.0.0.1)", [2])
    assert found.text.startswith("the reconciliation to epoch 2 waited ")
    assert "for c1 (10.0.0.1) to give up partitions" in found.text


@pytest.mark.parametrize("took_ms", [20, 800, 4_000])
def test_a_usual_revocation_is_no_finding(took_ms: int) -> None:
    script, told = revoked(timeout_ms=300_000)
    assert findings_of("slow_revocation", given_up(script, told, took_ms)) == []


@pytest.mark.parametrize("beat_ms", [500, 1_500, 3_000])
@pytest.mark.parametrize("timeout_ms", [6_000, 8_000, 45_000])
def test_a_member_is_fenced_at_its_rebalance_timeout(timeout_ms: int, beat_ms: int) -> None:
    script, told = revoked(timeout_ms=timeout_ms, beat_ms=beat_ms)
    row = fenced(script, told, timeout_ms, beat_ms)
    assert (row.cause, row.client_id, row.confidence) == (Cause.REBALANCE_TIMEOUT, "c1", 0.95)
    assert row.started_ns == at(told + 1 + timeout_ms)
    assert f"had not given up partitions within its rebalance timeout of {timeout_ms // 1000} s" in row.detail
    assert [(gone.client_id, gone.why) for gone in row.removed] == [("c1", "rebalance timeout")]
    history = script.history()
    [found] = findings_of("slow_revocation", history)
    assert found.text.startswith("c1 (10.0.0.1) was fenced: it did not give up partitions within its rebalance timeout")
    assert not any(word in found.text for word in ("frozen", "session", "network"))
    assert [life.end for life in history.members if life.client_id == "c1"] == [None]


def test_without_its_timeout_regular_heartbeats_say_it() -> None:
    script, told = revoked(timeout_ms=None)
    assert fenced(script, told).cause == Cause.REBALANCE_TIMEOUT


def test_a_member_that_fell_silent_was_not_fenced_for_it() -> None:
    script, told = revoked(timeout_ms=300_000)
    for ms in range(told + 1_500, told + 60_000, 1_500):
        script.consumer("c2", ms, 2, 2, {}, owned={})
    script.consumer("c2", told + 60_000, 2, 3, ALL)
    script.consumer("c1", told + 61_000, 1, 0, error_code=25)
    script.consumer("c2", told + 62_000, 3, 3, owned=ALL)
    row = script.history().rebalances[-1]
    assert (row.cause, row.client_id) == (Cause.SESSION_EXPIRED, "c1")


def test_a_member_that_had_given_up_was_not_fenced_for_it() -> None:
    script, told = revoked()
    script.consumer("c1", told + 1_000, 1, 2, owned=HALF)
    script.consumer("c2", told + 1_100, 2, 2, REST)
    script.consumer("c1", told + 9_000, 2, 0, error_code=25)
    script.consumer("c2", told + 9_500, 2, 3, ALL)
    assert script.history().rebalances[-1].cause == Cause.SESSION_EXPIRED


def test_the_first_epoch_is_no_change_of_topics() -> None:
    script = Script()
    script.saw("c1", -10, "orders", 2)
    script.saw("c1", 5, "orders", 4)
    script.consumer("c1", 10, 1, 1, owned=HALF)
    script.consumer("c1", 1_000, 1, 1, owned=HALF)
    assert Cause.TOPICS_CHANGED not in [row.cause for row in script.history().rebalances]


def test_a_topic_that_a_pattern_matches_is_named() -> None:
    script = Script()
    script.consumer("c1", 0, 0, 1, {"orders.de": [0]}, topic_regex="orders.*", owned={}, rebalance_timeout_ms=300_000)
    script.consumer("c1", 100, 1, 1, owned={"orders.de": [0]})
    script.consumer("c1", 5_000, 1, 2, {"orders.de": [0], "orders.fr": [0, 1]})
    script.consumer("c1", 5_100, 2, 2, owned={"orders.de": [0], "orders.fr": [0, 1]})
    row = script.history().rebalances[-1]
    assert row.cause == Cause.TOPICS_CHANGED
    assert row.detail == "orders.fr is assigned for the first time: created, and matched by the pattern orders.*"


def test_a_topic_that_the_coordinator_learnt_of_late_is_named() -> None:
    script = Script()
    script.consumer("c1", 0, 0, 1, {}, topics=["orders"], owned={}, rebalance_timeout_ms=300_000)
    script.consumer("c1", 500, 1, 1)
    script.consumer("c1", 1_000, 1, 2, {"orders": [0, 1]})
    script.consumer("c1", 1_100, 2, 2, owned={"orders": [0, 1]})
    row = script.history().rebalances[-1]
    assert row.cause == Cause.TOPICS_CHANGED
    assert row.detail == "orders is assigned for the first time: the coordinator did not know of it before"
