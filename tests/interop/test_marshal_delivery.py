"""Marshal's consumers on a real broker: 8 processes, 64 partitions, faults, a pause, a new position, and a judge."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kcoord_wire.cli.main import main
from kcoord_wire.kernel.driver import monotonic_ms
from kcoord_wire.marshal.kafka_log import create_topic
from kcoord_wire.marshal.member_events import Delivery
from tests.support.kafka_broker import KafkaBroker, make_topics, wait_for_producer_ids
from tests.support.marshal_group import ConsumerGroup, feeding
from tests.support.marshal_ranges import PARTITIONS as RANGED_PARTITIONS
from tests.support.marshal_ranges import check_takeover

PARTITIONS = 64
PROCESSES = 8
INTERVAL_S = 2
RATE = 320  # records a second
COUNTS = {"orders": PARTITIONS, "output": 1}
REWOUND = range(4)
REWOUND_TO = 5


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KafkaBroker(tmp_path_factory.mktemp("marshal") / "delivery") as broker:
        assert create_topic(broker.address, "__marshal", 8, heartbeat_interval_ms=INTERVAL_S * 1000)
        make_topics(broker.address, {f"{kind}.{each}": count for each in Delivery for kind, count in COUNTS.items()})
        make_topics(broker.address, {"ranged": RANGED_PARTITIONS})
        wait_for_producer_ids(broker.address)
        yield broker.address


def group_of(brokers: str, folder: Path, delivery: Delivery) -> ConsumerGroup:
    return ConsumerGroup(
        brokers,
        folder,
        topic=f"orders.{delivery}",
        output=f"output.{delivery}",
        delivery=delivery,
        partitions=PARTITIONS,
        heartbeat_interval_ms=INTERVAL_S * 1000,
        max_claims=PARTITIONS // PROCESSES * 2,
    )


@pytest.mark.parametrize("delivery", Delivery)
def test_eight_processes_keep_their_promise(brokers: str, delivery: Delivery, tmp_path: Path) -> None:
    with group_of(brokers, tmp_path, delivery) as group:
        clients = {f"c{number}" for number in range(PROCESSES)}
        with feeding(brokers, group.topic, PARTITIONS, RATE):
            for client in sorted(clients):
                group.start(client)
            killed = group.wait_until_all_are_held(clients)[:2]
            for client in killed:
                group.members[client].kill()
            clients -= set(killed)
            stopped = group.wait_until_all_are_held(clients)[0]
            with group.stopped(stopped):
                ended, released = group.end_in_order(clients - {stopped})
                time.sleep(2.6 * INTERVAL_S)
            group.start("c8")
            group.wait_until_all_are_held(clients - {ended} | {"c8"})
        judge = group.verdict()
        print(delivery, judge.summary())
        group.check(judge)
        assert judge.repeated_of(released) == dict.fromkeys(released, 0)
        if delivery is Delivery.AT_LEAST_ONCE:
            pause_and_rewind(group, tmp_path)


def test_the_ranges_of_a_killed_process_are_taken_over(brokers: str) -> None:
    check_takeover(brokers, "ranged", INTERVAL_S)


def pause_and_rewind(group: ConsumerGroup, folder: Path) -> None:
    """Pause the group, then set the position of some partitions, by the commands."""
    common = [f"{group.topic}.group", "--kafka", group.brokers, "--heartbeat-interval", str(INTERVAL_S)]
    positions = folder / "positions.json"
    positions.write_text(json.dumps({group.topic: {str(partition): REWOUND_TO for partition in REWOUND}}))
    with feeding(group.brokers, group.topic, PARTITIONS, RATE):
        group.wait_until_all_are_held(set(group.members))
        pause(group, common)
        group.wait_until_all_are_held(set(group.members))
        before = {row.partition: row.token for row in group.rows()}
        rewind(common, positions)
        group.wait_until_all_are_held(set(group.members))
    judge = group.verdict()
    again: dict[int, int] = {}
    for row in group.rows():
        if row.token > before[row.partition]:
            again[row.partition] = min(again.get(row.partition, row.offset), row.offset)
    assert {partition: again.get(partition) for partition in REWOUND} == dict.fromkeys(REWOUND, REWOUND_TO)
    assert [partition for partition, first in again.items() if partition not in REWOUND and first <= REWOUND_TO] == []
    assert judge.missing == [], group.logs()


def pause(group: ConsumerGroup, common: Sequence[str]) -> None:
    """Pause the group: in the last half of the pause, but for the second to which it is rounded, nothing is handed out.

    A machine that stands still has members release late, so there are longer pauses for it.
    """
    for seconds in (9, 20, 40):
        began_ms = monotonic_ms()
        assert main(["marshal", "pause", *common, "--for", f"{seconds}s"]) == 0
        time.sleep(max(began_ms + seconds * 1000 - monotonic_ms(), 0) / 1000)
        group.wait_until_all_are_held(set(group.members))
        window = range(began_ms + seconds * 500, began_ms + (seconds - 1) * 1000)
        if not any(row.handed_ms in window for row in group.rows()):
            return
    raise AssertionError(f"records are handed out in each pause\n{group.logs()}")


def rewind(common: Sequence[str], positions: Path) -> None:
    """Set the positions. An admin that stood still for a heartbeat interval has set none, and may try again."""
    command = ["marshal", "set-position", *common, "--file", str(positions), "--wait", "30"]
    assert any(main(command) == 0 for _ in range(5))
