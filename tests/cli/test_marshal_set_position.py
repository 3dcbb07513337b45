"""`kcoord marshal set-position`, on a broker."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.kafka_topics import KafkaPositions
from tests.support.fixtures import StartCoordinator
from tests.support.marshal_log import append_lines

Kcoord = Callable[..., tuple[int, str, str]]


@pytest.fixture
def brokers(coordinator: StartCoordinator) -> str:
    """A broker on which group billing has read topic orders, partition 0 up to offset 7, and has released it."""
    address = coordinator(topics={"__marshal": 4, "orders": 2}).address
    producer = Producer({"bootstrap.servers": address})
    for number in range(9):
        for partition in range(2):
            producer.produce("orders", value=b"v", partition=partition, timestamp=1_000_000 + number * 1_000)
    assert producer.flush(10) == 0
    lines = ("ClaimingPartition i1/c1/billing/orders/0", "ReleasingPartition i1/c1/billing/orders/0/7")
    append_lines(address, 4, int(time.time()) - 1, *(f"0 {line}" for line in lines))
    return address


def run(kcoord: Kcoord, brokers: str, *argv: str) -> tuple[int, str, str]:
    return kcoord("marshal", "set-position", "billing", "--kafka", brokers, "--heartbeat-interval", "1", *argv)


def positions(kcoord: Kcoord, brokers: str) -> list[int | None]:
    _, out, _ = kcoord("marshal", "status", "--kafka", brokers, "--format", "json")
    return [row["position"] for row in json.loads(out)["document"]["partitions"]]


def test_positions_of_a_topic(brokers: str, kcoord: Kcoord) -> None:
    code, out, err = run(kcoord, brokers, "--topic", "orders", "--to", "3", "--format", "json")
    assert code == 0
    assert json.loads(out)["positions"] == [
        {"topic": "orders", "partition": 0, "old": 7, "new": 3, "result": "set"},
        {"topic": "orders", "partition": 1, "old": None, "new": 3, "result": "set"},
    ]
    assert "releasing: 0 of 2" in err
    assert positions(kcoord, brokers) == [3, 3]
    assert KafkaPositions(brokers).committed("billing") == {TopicPartition("orders", each): 3 for each in (0, 1)}


def test_earliest_latest_and_a_time(brokers: str, kcoord: Kcoord) -> None:
    for to, offset in (("latest", 9), ("1970-01-01T00:16:42Z", 2), ("earliest", 0)):
        code, out, _ = run(kcoord, brokers, "--topic", "orders", "--to", to, "--format", "json")
        assert (code, [each["new"] for each in json.loads(out)["positions"]]) == (0, [offset] * 2)
    assert positions(kcoord, brokers) == [0, 0]  # 0 in the log is unknown, so it is committed, too


def test_single_partitions_from_a_file(brokers: str, kcoord: Kcoord, tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    path.write_text('{"orders": {"1": 5}}')
    code, out, _ = run(kcoord, brokers, "--file", str(path))
    assert code == 0
    assert [line.split() for line in out.splitlines() if "orders" in line] == [["orders/1", "unknown", "5", "set"]]
    assert positions(kcoord, brokers) == [7, 5]


def test_a_dry_run_writes_nothing(brokers: str, kcoord: Kcoord) -> None:
    code, out, _ = run(kcoord, brokers, "--topic", "orders", "--to", "latest", "--dry-run")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines() if "orders/" in line] == [
        ["orders/0", "7", "9"],
        ["orders/1", "unknown", "9"],
    ]
    assert positions(kcoord, brokers) == [7, None]


def test_a_member_that_goes_on_is_named(brokers: str, kcoord: Kcoord) -> None:
    """Its claim is younger than the wait: nothing is set, the group is not paused any more, and the status is 1."""
    append_lines(brokers, 4, int(time.time()) + 30, "0 ClaimingPartition i2/c2/billing/orders/1")  # a fast clock
    code, out, err = run(kcoord, brokers, "--topic", "orders", "--to", "3", "--wait", "1")
    assert code == 1
    assert "after 1 s partitions are still claimed by c2" in err
    assert [line.split()[-1] for line in out.splitlines() if "orders/" in line] == ["kept", "kept"]
    _, out, _ = kcoord("marshal", "status", "--kafka", brokers, "--format", "json")
    assert json.loads(out)["document"]["paused_until_ms"] == {}


def test_what_is_refused(brokers: str, kcoord: Kcoord, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    for argv, code, reason in (
        (["--topic", "orders", "--to", "10"], 1, "orders-0 has no offset 10: it has 0 to 9; orders-1 has no"),
        (["--topic", "none", "--to", "0"], 1, "no topic none"),
        (["--topic", "orders", "--to", "-1"], 2, "neither earliest"),
        (["--topic", "orders", "--to", "soon"], 2, "neither earliest, latest, an offset nor a time"),
        (["--topic", "orders"], 2, "either --topic and --to, or --file"),
        (["--file", str(tmp_path / "none.json")], 1, "No such file"),
        (["--file", str(bad)], 1, "it has no object such as"),
    ):
        bad.write_text("[1]")
        found, _, err = run(kcoord, brokers, *argv)
        assert (found, reason in err) == (code, True), err
    for text, reason in (
        ('{"orders": {"7": 1}}', "orders-7 does not exist"),
        ('{"orders": {"0": -1}}', "is no partition with an offset"),
        ('{"orders": {"0": true}}', "is no partition with an offset"),
        ('{"orders": {"00": 1}}', "is no partition with an offset"),
        ('{"orders": {"\u0661": 1}}', "is no partition with an offset"),
        ('{"orders": {"99999999999": 1}}', "is no partition with an offset"),
        ('{"orders": {"0": 1, "0": 2}}', "it has no object such as"),
        ("{}", "it names no partition"),
    ):
        bad.write_text(text)
        found, _, err = run(kcoord, brokers, "--file", str(bad))
        assert (found, reason in err) == (1, True), err


def test_ctrl_c_gives_everything_back(brokers: str, kcoord: Kcoord) -> None:
    append_lines(brokers, 4, int(time.time()) + 30, "0 ClaimingPartition i2/c2/billing/orders/1")  # held for long
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        while signal.getsignal(signal.SIGINT) is before:  # until the command has begun
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code, out, err = run(kcoord, brokers, "--topic", "orders", "--to", "3", "--wait", "60", "--format", "json")
    thread.join()
    assert (code, json.loads(out)["failure"]) == (130, "it was interrupted")
    assert "gives back what it holds; a second signal kills" in err
    assert positions(kcoord, brokers) == [7, None]
