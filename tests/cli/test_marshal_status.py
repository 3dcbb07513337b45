"""`kcoord marshal status` and `watch`, on a broker."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.kafka_topics import KafkaPositions
from tests.support.central_processes import Process
from tests.support.fixtures import StartCoordinator
from tests.support.marshal_log import append_lines

Kcoord = Callable[..., tuple[int, str, str]]
LINES = (
    "-400 ClaimingPartition i2/c2/billing/orders/1",
    "-399 Heartbeat i2/c2/billing/orders/1/7",
    "-3 ClaimingPartition i1/c1/billing/orders/0",
    "-2 Heartbeat i1/c1/billing/orders/0/2",
    "-1 ClaimingPartition i3/c3/audit/orders/0",
)


@pytest.fixture
def brokers(coordinator: StartCoordinator) -> str:
    """A broker on which two groups have consumed topic orders."""
    address = coordinator(topics={"__marshal": 4, "orders": 3}).address
    producer = Producer({"bootstrap.servers": address})
    for _ in range(9):
        producer.produce("orders", value=b"v", partition=0)
    assert producer.flush(10) == 0
    append_lines(address, 4, int(time.time()), *LINES)
    return address


def test_each_partition_has_its_reason(brokers: str, kcoord: Kcoord) -> None:
    code, out, err = kcoord("marshal", "status", "--kafka", brokers, "--rules", "library", "--group", "billing")
    assert (code, err) == (0, "")
    held, stale, never = [line for line in out.splitlines() if line.startswith("billing  orders/")]
    assert "c1 (i1)" in held
    assert "held by c1 for" in held
    assert held.split()[7:10] == ["fresh", "2", "7"]  # position and lag
    assert "stale since" in stale
    assert stale.endswith("the next claim wins")
    assert "never claimed: c1 may claim it" in never
    assert "audit" not in out


def test_json_has_positions_and_lag(brokers: str, kcoord: Kcoord) -> None:
    KafkaPositions(brokers).commit("billing", {TopicPartition("orders", 2): 1})
    code, out, _ = kcoord("marshal", "status", "--kafka", brokers, "--rules", "library", "--format", "json")
    assert code == 0
    status = json.loads(out)["library"]
    rows = {(row["group_id"], row["partition"]): row for row in status["partitions"]}
    assert len(rows) == 6
    held = rows["billing", 0]
    assert (held["situation"], held["client_id"], held["position"], held["end"], held["lag"]) == ("held", "c1", 2, 9, 7)
    assert (rows["billing", 2]["position"], rows["billing", 2]["position_from"]) == (1, "committed")
    assert rows["audit", 0]["situation"] == "held"
    assert {member["client_id"] for member in status["members"]} >= {"c1", "c3"}


def test_both_rule_sets_say_where_they_do_not_agree(brokers: str, kcoord: Kcoord) -> None:
    now = int(time.time())
    append_lines(
        brokers, 4, now, "0 Heartbeat i9/c9/billing/orders/0/5"
    )  # takes the partition from c1, says the library
    code, out, _ = kcoord("marshal", "status", "--kafka", brokers, "--rules", "both", "--format", "json")
    assert code == 0
    found = json.loads(out)
    [pair] = [
        pair
        for pair in found["diverging"]
        if pair["document"]["group_id"] == "billing"
        if pair["document"]["partition"] == 0
    ]
    assert (pair["document"]["client_id"], pair["library"]["client_id"]) == ("c1", "c9")
    code, out, _ = kcoord("marshal", "status", "--kafka", brokers, "--rules", "both")
    assert "the rule sets do not agree" in out
    assert "divergence on billing/orders-0 at " in out
    assert "so i9 takes the claim over by a heartbeat; it is held by i9, position 5" in out


def test_garbage_is_counted_and_shown(brokers: str, kcoord: Kcoord) -> None:
    producer = Producer({"bootstrap.servers": brokers})
    producer.produce("__marshal", value=b"\x1b[31mno message", partition=1)
    assert producer.flush(10) == 0
    code, out, _ = kcoord("marshal", "status", "--kafka", brokers)
    assert code == 0
    assert "skipped entries" in out
    assert "\x1b" not in out


def test_an_empty_coordination_topic(coordinator: StartCoordinator, kcoord: Kcoord) -> None:
    address = coordinator(topics={"__marshal": 2}).address
    assert kcoord("marshal", "status", "--kafka", address)[:2] == (0, "no claims\n\n")


def test_watch_repeats_it(brokers: str, kcoord: Kcoord) -> None:
    code, out, _ = kcoord(
        "marshal", "watch", "--kafka", brokers, "--interval", "0.01", "--times", "3", "--format", "json"
    )
    assert code == 0
    assert len(out.splitlines()) == 3


def test_watch_goes_on_until_ctrl_c(brokers: str) -> None:
    with Process("marshal", "watch", "--kafka", brokers, "--interval", "0.01", "--format", "json") as process:
        process.wait_for("(.*\n){3}")
        assert process.end(signal.SIGINT) == 130


def test_a_topic_that_is_not_there(coordinator: StartCoordinator, kcoord: Kcoord) -> None:
    code, out, err = kcoord("marshal", "status", "--kafka", coordinator(topics={"orders": 1}).address)
    assert (code, out) == (1, "")
    assert err.startswith("kcoord: ")
    assert "__marshal" in err
