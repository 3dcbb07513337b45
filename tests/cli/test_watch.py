"""`kcoord watch` on a broker: how it is now, changes as they happen, metrics, and the report at its end."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer

from kcoord_wire.coordinator.coordinator import Coordinator
from tests.support.central_processes import Process
from tests.support.fixtures import StartCoordinator
from tests.support.waiting import eventually

Kcoord = Callable[..., tuple[int, str, str]]


def consumer(coordinator: Coordinator, client_id: str) -> Consumer:
    """A member of billing; it has joined when it has partitions."""
    made = Consumer(
        {
            "bootstrap.servers": coordinator.address,
            "group.id": "billing",
            "client.id": client_id,
            "heartbeat.interval.ms": 200,
        }
    )
    made.subscribe(["orders"])
    return made


def settle(*consumers: Consumer) -> None:
    """Poll until each has its share of 12 partitions."""

    def shares() -> list[int]:
        for each in consumers:
            each.poll(0.02)
        return [len(each.assignment()) for each in consumers]

    eventually(shares, until=lambda found: set(found) == {12 // len(consumers)})


def test_once(coordinator: StartCoordinator, kcoord: Kcoord) -> None:
    started = coordinator()
    one = consumer(started, "c-1")
    settle(one)
    code, out, err = kcoord("watch", "--kafka", started.address, "--once")
    assert (code, err) == (0, "")
    assert re.search(r"^billing  Stable for at least \d+.* m?s  1 member$", out, re.M)
    assert "\n  c-1 (127.0.0.1)  orders 0-11\n" in out
    code, out, _ = kcoord("watch", "--kafka", started.address, "--once", "--format", "json")
    (group,) = map(json.loads, out.splitlines())
    assert (code, group["state"], len(group["members"][0]["partitions"])) == (0, "Stable", 12)
    one.close()


def test_a_cluster_without_groups(coordinator: StartCoordinator, kcoord: Kcoord) -> None:
    address = coordinator().address
    code, _, err = kcoord("watch", "--kafka", address, "--once", "--group", "nobody")
    assert (code, err) == (0, f"kcoord: no consumer group called nobody is at {address}, or you may not see it\n")


def test_a_folder_that_cannot_be_made(tmp_path: Path, kcoord: Kcoord) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = kcoord("watch", "--kafka", "127.0.0.1:1", "--out", str(tmp_path / "file"))
    assert (code, err.count("\n")) == (1, 1)


@pytest.mark.slow
def test_changes_metrics_and_the_report(coordinator: StartCoordinator, tmp_path: Path) -> None:
    started = coordinator()
    one = consumer(started, "c-1")
    settle(one)
    options = ("--interval", "0.1", "--metrics-port", "0", "--out", str(tmp_path / "report"))
    with Process("watch", "--kafka", started.address, *options) as process:
        eventually(lambda: "billing: Stable, 1 member: c-1 (127.0.0.1)" in process.out)
        two = consumer(started, "c-2")
        settle(one, two)
        eventually(lambda: "member c-2 (127.0.0.1) joined" in process.out)
        eventually(lambda: "6 partitions moved" in process.out)
        two.close()
        settle(one)
        eventually(lambda: process.out.count("partitions moved") == 2)
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/metrics", process.log)
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        assert 'kcoord_group_rebalances_total{cause="new member",group="billing"} 1.0' in text
        assert 'kcoord_group_members{group="billing"} 1.0' in text
        assert process.end(signal.SIGINT) == 0
        assert "2 rebalances in " in process.out
    one.close()
    rebalances = pq.read_table(tmp_path / "report" / "rebalances.parquet").to_pylist()
    assert [(row["cause"], row["client_id"], row["moved"]) for row in rebalances] == [
        ("new member", "c-2", 6),
        ("member left", "c-2", 6),
    ]
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000
