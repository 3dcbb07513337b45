"""Consumers as processes on our own topics, killed, stopped and released: the judge reads their output."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kcoord_wire.coordinator import Coordinator
from kcoord_wire.marshal.member_events import Delivery
from tests.support.marshal_group import ConsumerGroup, feeding
from tests.support.marshal_ranges import PARTITIONS as RANGED_PARTITIONS
from tests.support.marshal_ranges import check_takeover

PARTITIONS = 6
INTERVAL_MS = 1_000


@pytest.mark.slow
@pytest.mark.parametrize("delivery", Delivery)
def test_faults_lose_and_repeat_no_more_than_promised(delivery: Delivery, tmp_path: Path) -> None:
    topics = {"__marshal": 4, "orders": PARTITIONS, "output": 1}
    with Coordinator(topics=topics) as coordinator:
        group = ConsumerGroup(
            coordinator.address,
            tmp_path,
            topic="orders",
            output="output",
            delivery=delivery,
            partitions=PARTITIONS,
            heartbeat_interval_ms=INTERVAL_MS,
            max_claims=3,
        )
        with group:
            with feeding(coordinator.address, "orders", PARTITIONS, rate=120):
                clients = {"a", "b", "c"}
                for client in clients:
                    group.start(client)
                killed = group.wait_until_all_are_held(clients)[0]
                group.members[killed].kill()
                clients -= {killed}
                group.wait_until_all_are_held(clients)
                group.start("d")
                ended, released = group.end_in_order(clients)
                clients = clients - {ended} | {"d"}
                stopped = group.wait_until_all_are_held(clients)[0]
                group.start("e")
                with group.stopped(stopped):
                    time.sleep(3.5 * INTERVAL_MS / 1000)
                group.wait_until_all_are_held(clients | {"e"})
            judge = group.verdict()
            print(delivery, judge.summary())
            group.check(judge)
            assert judge.repeated_of(released) == dict.fromkeys(released, 0)


@pytest.mark.slow
def test_the_ranges_of_a_killed_process_are_taken_over() -> None:
    with Coordinator(topics={"__marshal": 4, "orders": RANGED_PARTITIONS}) as coordinator:
        check_takeover(coordinator.address, "orders", interval_s=1)
