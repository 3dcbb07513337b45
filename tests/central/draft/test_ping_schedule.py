"""The scheduler of pings (section 5, scheduler.run; section 8)."""

from __future__ import annotations

import pytest

from kcoord_wire.messages import central as m
from tests.support.draft_cluster import DraftCluster


def pinged(cluster: DraftCluster, until: int, step: int = 100) -> list[tuple[int, str, int]]:
    """Return time, consumer and retry of each ping until a time."""
    found: list[tuple[int, str, int]] = []
    counts = dict.fromkeys(cluster.consumers.values(), 0)
    begun = cluster.now
    while cluster.now < begun + until:
        cluster.run(step)
        for consumer in counts:
            pings = consumer.got(m.PingRequest)
            found += [(cluster.now - begun, ping.consumer_id, ping.num_retries) for ping in pings[counts[consumer] :]]
            counts[consumer] = len(pings)
    return found


def test_scheduler_run_pings_every_third_of_a_session() -> None:
    cluster = DraftCluster()
    cluster.consumer("a", session_timeout_ms=3_000)
    cluster.consumer("b", session_timeout_ms=6_000)
    assert pinged(cluster, 4_000) == [
        (1_000, "a", 0), (2_000, "a", 0), (2_000, "b", 0), (3_000, "a", 0), (4_000, "a", 0), (4_000, "b", 0),
    ]  # fmt: skip


def test_scheduler_run_counts_retries_after_two_thirds() -> None:
    cluster = DraftCluster(max_ping_retries=3)
    cluster.consumer("a", session_timeout_ms=3_000).answers.clear()
    assert pinged(cluster, 6_000) == [
        (1_000, "a", 0),
        (2_000, "a", 0),
        (3_000, "a", 1),
        (4_000, "a", 2),
        (5_000, "a", 3),
    ]


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_more_failures_than_retries_fail_the_consumer(retries: int) -> None:
    cluster = DraftCluster(max_ping_retries=retries)
    consumer = cluster.consumer("a", session_timeout_ms=3_000)
    consumer.answers.clear()
    cluster.run(3_000 + 1_000 * retries - 1)
    assert consumer.is_open
    cluster.run(1)
    assert not consumer.is_open
    assert cluster.brokers[1].noted("consumer failed")[0]["reason"].startswith(f"{retries + 1} pings")


def test_an_answer_in_time_ends_the_retries() -> None:
    cluster = DraftCluster(max_ping_retries=1)
    consumer = cluster.consumer("a", session_timeout_ms=3_000)
    consumer.answers.clear()
    cluster.run(3_100)
    for ping in consumer.got(m.PingRequest):
        consumer.answer(ping)
    consumer.answers.add(m.PingRequest)
    cluster.run(30_000)
    assert consumer.is_open
    assert consumer.got(m.PingRequest)[-1].num_retries == 0
    assert len(cluster.brokers[1].noted("late answer")) == 1


def test_a_slow_machine_skips_pings() -> None:
    cluster = DraftCluster()
    consumer = cluster.consumer("a", session_timeout_ms=1_000)
    cluster.now += 1_500
    cluster.run(0)
    assert len(consumer.got(m.PingRequest)) == 1
