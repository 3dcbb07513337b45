"""The Java client through a rolling bounce on Kafka: eager members pause more than cooperative ones, as simulated.

What is asserted holds on a busy machine too; the times themselves are properties of the test's report, beside those of
the simulation. That no partition has two owners at a time is a law of `bounce_on`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcoord_wire.worlds.consumer_groups.rolling_bounce import BounceResult, BounceWorkload, simulate_bounce
from tests.bench.bounce.real import bounce_on
from tests.support.clients.java import java_client
from tests.support.kafka_broker import KafkaBroker, create_topics

PROTOCOLS = ("eager", "cooperative", "static")
WORKLOAD = BounceWorkload(
    members=4,
    topics={"events": 24},
    revoke_ms=10,
    assign_ms=100,
    down_ms=1_500,
    poll_ms=0,
    session_timeout_ms=45_000,
    heartbeat_interval_ms=500,
    rebalance_timeout_ms=60_000,
)
PROPERTIES = {"num.partitions": "24", "group.initial.rebalance.delay.ms": "500"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BounceResult]:
    """The same bounce with each protocol."""
    folder = tmp_path_factory.mktemp("bounce")
    client = java_client(folder)
    with KafkaBroker(folder / "kafka-bounce", PROPERTIES) as kafka:
        create_topics(kafka.address, list(WORKLOAD.topics))
        return {name: bounce_on(kafka.address, WORKLOAD, name, client, keeps_process=True) for name in PROTOCOLS}


def test_cooperative_java_members_pause_less_than_eager(
    measured: dict[str, BounceResult], record_property: Callable[[str, object], None]
) -> None:
    simulated = {name: simulate_bounce(WORKLOAD, name) for name in PROTOCOLS}
    for name in PROTOCOLS:
        paused = [f"{result[name].pause_partition_ms / 1_000:.1f} s" for result in (measured, simulated)]
        ratios = [
            f"{result['eager'].pause_partition_ms / result[name].pause_partition_ms:.2f}"
            for result in (measured, simulated)
        ]
        text = f"paused {paused[0]}, simulated {paused[1]}; less than eager: {ratios[0]}, simulated {ratios[1]}"
        record_property(name, text)
        print(name, text)
    assert measured["cooperative"].pause_partition_ms < measured["eager"].pause_partition_ms
    assert measured["cooperative"].pause_instance_ms < measured["eager"].pause_instance_ms


def test_cooperative_java_members_move_only_the_stopped_share(measured: dict[str, BounceResult]) -> None:
    eager, cooperative = measured["eager"], measured["cooperative"]
    assert cooperative.opened == cooperative.moves <= 2 * WORKLOAD.partition_count, "away and back, once for each"
    assert eager.opened >= WORKLOAD.members * WORKLOAD.partition_count, "each restart opens all of them again"


def test_static_java_members_move_nothing(measured: dict[str, BounceResult]) -> None:
    static = measured["static"]
    assert (static.moves, static.opened) == (0, WORKLOAD.partition_count)
