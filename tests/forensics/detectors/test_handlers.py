"""The detector slow_handler: members that go on with what they have in hand while the others wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcoord_wire.forensics.model import Exchange, GroupHistory, RemovedMember
from tests.support.detector_groups import SECOND, exchange, group, life, of, rebalance


def handled(
    took_s: float, *, timeout_s: float = 60, software: str = "sarama 1.43", commits: int = 0
) -> tuple[GroupHistory, list[Exchange]]:
    """A rebalance at 100 s, c1 hears of it at 101 s; it joins `took_s` later, and is removed if that is too late."""
    own = life("c1", rebalance_timeout_ms=int(timeout_s * 1000), software=software)
    gone = [RemovedMember("c1-id", "c1", "10.0.0.1", "rebalance timeout")] if took_s > timeout_s else []
    row = rebalance(
        2, 100, client="c2", ended_ns=int((101 + took_s) * SECOND), joined_ns=None, removed=gone,
        last_member_id="c1-id", late_ms=took_s * 1000,
    )  # fmt: skip
    rows = [exchange("Heartbeat", 101 + 3 * n, error_code=27) for n in range(int(took_s) // 3 + 1)]
    rows += [exchange("OffsetCommit", 102 + n) for n in range(commits)]
    rows.append(exchange("JoinGroup", 101 + took_s))
    return group(300, members=[own, life("c2")], rebalances=[row]), rows


@pytest.mark.parametrize(
    ("took_s", "timeout_s", "software", "words"),
    [
        (75, 60, "sarama 1.43", "Consumer.Group.Rebalance.Timeout above 75.0 s"),
        (20, 10, "kafkajs 2.2", "rebalanceTimeout above 20.0 s"),
        (320, 300, "apache-kafka-java 3.9", "max.poll.interval.ms above 5 min"),
        (45, 60, "sarama 1.43", "Consumer.Group.Rebalance.Timeout above 45.0 s"),
        (20, 60, "sarama 1.43", ""),
        (4, 6, "sarama 1.43", ""),
    ],
)
def test_a_handler_that_outlives_the_rebalance_timeout(
    took_s: float, timeout_s: float, software: str, words: str
) -> None:
    found = of("slow_handler", *handled(took_s, timeout_s=timeout_s, software=software))
    assert len(found) == bool(words)
    for each in found:
        assert words in each.advice
        assert ("so that the coordinator removed it" in each.text) is (took_s > timeout_s)


@pytest.mark.parametrize(("socket", "found"), [("1", True), ("2", False)])
def test_sarama_is_silent_while_its_handler_goes_on(socket: str, found: bool) -> None:
    """It is removed when its session is over, and joins on its old connection; another one is of another process."""
    history, rows = handled(40)
    [row] = history.rebalances
    row.removed = [RemovedMember("c1-id", "c1", "10.0.0.1", "session timeout")]
    row.last_member_id = None
    history.members[0].session_timeout_ms = 10_000
    rows = [rows[0], replace(rows[-1], member_id="", connection=f"10.0.0.1:1-10.0.0.9:9092#{socket}")]
    results = of("slow_handler", history, rows)
    assert len(results) == found
    if found:
        assert "the session 10.0 s, without heartbeats then, so that the coordinator removed it" in results[0].text


def test_a_silent_member_has_no_slow_handler() -> None:
    history, rows = handled(75)
    assert of("slow_handler", history, [row for row in rows if row.api != "Heartbeat"]) == []


def test_commits_in_the_background_are_no_refusal_to_join() -> None:
    assert of("commits_instead_of_joining", *handled(75, commits=9)) == []
    assert of("commits_instead_of_joining", *handled(75, commits=9, software="apache-kafka-java 3.9"))
