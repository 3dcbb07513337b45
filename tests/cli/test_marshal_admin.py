"""`kcoord marshal pause`, `set-position` and `export-offsets`, on a broker; offsets read back by a real consumer."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from kcoord_wire.cli.marshal_admin import parse_span, parse_time
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.kafka_topics import KafkaPositions
from tests.support.fixtures import StartCoordinator
from tests.support.marshal_log import append_lines
from tests.support.waiting import consumed, eventually

Kcoord = Callable[..., tuple[int, str, str]]


def test_a_pause_and_its_end(coordinator: StartCoordinator, kcoord: Kcoord) -> None:
    address = coordinator(topics={"__marshal": 3, "orders": 1}).address
    append_lines(address, 3, int(time.time()), "0 ClaimingPartition i1/c1/billing/orders/0")
    code, out, err = kcoord("marshal", "pause", "billing", "--kafka", address, "--for", "5m")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"group billing is paused until [\d: -]+ UTC\n", out)
    code, out, _ = kcoord("marshal", "status", "--kafka", address, "--format", "json")
    status = json.loads(out)["document"]
    assert 0 < status["paused_until_ms"]["billing"] - status["now_ms"] <= 300_000
    assert "although the group is paused until" in status["partitions"][0]["why"]
    code, out, _ = kcoord("marshal", "pause", "billing", "--kafka", address, "--resume")
    assert (code, out) == (0, "group billing is not paused any more\n")
    _, out, _ = kcoord("marshal", "status", "--kafka", address, "--format", "json")
    assert json.loads(out)["document"]["paused_until_ms"] == {}


def test_a_pause_as_json(coordinator: StartCoordinator, kcoord: Kcoord) -> None:
    address = coordinator(topics={"__marshal": 1}).address
    code, out, _ = kcoord("marshal", "pause", "billing", "--kafka", address, "--for", "90s", "--format", "json")
    assert code == 0
    assert 0 < json.loads(out)["paused_until_ms"] - time.time() * 1000 <= 90_000


def test_which_pauses_are_refused(coordinator: StartCoordinator, kcoord: Kcoord) -> None:
    address = coordinator(topics={"__marshal": 1}).address
    for argv, code, reason in (
        (["g/h", "--for", "5m"], 2, 'holds a "/"'),
        (["g", "--for", "8d"], 1, "within 7 days"),
        (["g", "--until", "2020-01-01"], 1, "ends in the future"),
        (["g", "--for", "5"], 2, "is not a span of time"),
        (["g", "--until", "soon"], 2, "is not a time"),
        (["g"], 2, "--for --until --resume"),
    ):
        found, out, err = kcoord("marshal", "pause", *argv, "--kafka", address)
        assert (found, out) == (code, "")
        assert reason in err


def test_times_are_read() -> None:
    assert [parse_span(text) for text in ("90s", "5m", "2h", "1d")] == [90, 300, 7_200, 86_400]
    assert parse_time("1970-01-01T00:00:02Z") == 2_000
    assert parse_time("1970-01-01T01:00:02+01:00") == 2_000
    assert parse_time("1970-01-02") == 86_400_000
    for text in ("", "m", "0s", "-1s", "1.5h"):
        with pytest.raises(ValueError, match="span"):
            parse_span(text)


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


def set_position(kcoord: Kcoord, brokers: str, *argv: str) -> tuple[int, str, str]:
    return kcoord("marshal", "set-position", "billing", "--kafka", brokers, "--heartbeat-interval", "1", *argv)


def positions(kcoord: Kcoord, brokers: str) -> list[int | None]:
    _, out, _ = kcoord("marshal", "status", "--kafka", brokers, "--format", "json")
    return [row["position"] for row in json.loads(out)["document"]["partitions"]]


def test_positions_of_a_topic(brokers: str, kcoord: Kcoord) -> None:
    code, out, err = set_position(kcoord, brokers, "--topic", "orders", "--to", "3", "--format", "json")
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
        code, out, _ = set_position(kcoord, brokers, "--topic", "orders", "--to", to, "--format", "json")
        assert (code, [each["new"] for each in json.loads(out)["positions"]]) == (0, [offset] * 2)
    assert positions(kcoord, brokers) == [0, 0]  # 0 in the log is unknown, so it is committed, too


def test_single_partitions_from_a_file(brokers: str, kcoord: Kcoord, tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    path.write_text('{"orders": {"1": 5}}')
    code, out, _ = set_position(kcoord, brokers, "--file", str(path))
    assert code == 0
    assert [line.split() for line in out.splitlines() if "orders" in line] == [["orders/1", "unknown", "5", "set"]]
    assert positions(kcoord, brokers) == [7, 5]


def test_a_dry_run_writes_nothing(brokers: str, kcoord: Kcoord) -> None:
    code, out, _ = set_position(kcoord, brokers, "--topic", "orders", "--to", "latest", "--dry-run")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines() if "orders/" in line] == [
        ["orders/0", "7", "9"],
        ["orders/1", "unknown", "9"],
    ]
    assert positions(kcoord, brokers) == [7, None]


def test_a_member_that_goes_on_is_named(brokers: str, kcoord: Kcoord) -> None:
    """Its claim is younger than the wait: nothing is set, the group is not paused any more, and the status is 1."""
    append_lines(brokers, 4, int(time.time()) + 30, "0 ClaimingPartition i2/c2/billing/orders/1")  # a fast clock
    code, out, err = set_position(kcoord, brokers, "--topic", "orders", "--to", "3", "--wait", "1")
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
        found, _, err = set_position(kcoord, brokers, *argv)
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
        found, _, err = set_position(kcoord, brokers, "--file", str(bad))
        assert (found, reason in err) == (1, True), err


def test_no_position_of_ranges_is_set(brokers: str, kcoord: Kcoord) -> None:
    topic_id = KafkaPositions(brokers).topics(["orders"])["orders"].topic_id
    append_lines(brokers, 4, int(time.time()), f"0 ClaimingRange i1/c1/billing/orders/1/{topic_id}/0/100")
    for more in ((), ("--dry-run",), ("--rules", "library")):
        code, out, err = set_position(kcoord, brokers, "--topic", "orders", "--to", "3", *more)
        assert (code, out) == (1, "")
        assert "group billing: members claim ranges of offsets of orders-1, which have no position" in err
    assert positions(kcoord, brokers) == [7, None]


def test_ctrl_c_gives_everything_back(brokers: str, kcoord: Kcoord) -> None:
    append_lines(brokers, 4, int(time.time()) + 30, "0 ClaimingPartition i2/c2/billing/orders/1")  # held for long
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        while signal.getsignal(signal.SIGINT) is before:  # until the command has begun
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code, out, err = set_position(kcoord, brokers, "--topic", "orders", "--to", "3", "--wait", "60", "--format", "json")
    thread.join()
    assert (code, json.loads(out)["failure"]) == (130, "it was interrupted")
    assert "gives back what it holds; a second signal kills" in err
    assert positions(kcoord, brokers) == [7, None]


@pytest.fixture
def ended(coordinator: StartCoordinator) -> str:
    """A broker on which group billing has ended: at 7 and, above the end, at 99."""
    address = coordinator(topics={"__marshal": 4, "orders": 3, "audit": 1}).address
    producer = Producer({"bootstrap.servers": address})
    for number in range(9):
        for partition in range(3):
            producer.produce("orders", value=f"{partition}:{number}".encode(), partition=partition)
    assert producer.flush(10) == 0
    lines = [
        f"{second} ClaimingPartition i1/c1/billing/{place}" for second, place in enumerate(("orders/0", "orders/1"))
    ]
    lines += ["3 ReleasingPartition i1/c1/billing/orders/0/7", "4 ReleasingPartition i1/c1/billing/orders/1/99"]
    append_lines(address, 4, int(time.time()) - 10, *lines)
    return address


def export(kcoord: Kcoord, ended: str, *argv: str) -> tuple[int, str, str]:
    return kcoord("marshal", "export-offsets", "billing", "--kafka", ended, *argv)


def test_a_consumer_group_goes_on_exactly_there(ended: str, kcoord: Kcoord) -> None:
    code, out, err = export(kcoord, ended, "--reset", "latest", "--format", "json")
    assert (code, err) == (0, "")
    first, second = json.loads(out)["offsets"]
    assert (first["partition"], first["offset"], first["source"], first["committed"]) == (0, 7, "log", 7)
    assert (second["offset"], second["note"]) == (9, "the log's offset 99 is above the end, 9")
    settings = {"bootstrap.servers": ended, "group.id": "billing", "auto.offset.reset": "latest"}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    values = [message.value() for message in consumed(consumer, 2)]
    consumer.close()
    assert values == [b"0:7", b"0:8"]


def test_another_group_and_one_topic(ended: str, kcoord: Kcoord) -> None:
    kafka = KafkaPositions(ended)
    kafka.commit("billing", {TopicPartition("orders", 2): 4})
    code, out, _ = export(kcoord, ended, "--to-group", "new", "--topic", "orders")
    assert code == 0
    assert [line.split()[:5] for line in out.splitlines() if "orders/" in line] == [
        ["orders/0", "7", "log", "-", "7"],
        ["orders/1", "0", "log", "-", "0"],
        ["orders/2", "4", "committed", "-", "4"],
    ]
    assert kafka.committed("new") == {TopicPartition("orders", each): at for each, at in enumerate((7, 0, 4))}


def test_a_dry_run_exports_nothing(ended: str, kcoord: Kcoord) -> None:
    code, out, _ = export(kcoord, ended, "--dry-run")
    assert code == 0
    assert "would be written" in out
    assert KafkaPositions(ended).committed("billing") == {}


def test_a_group_that_runs_is_left_alone(ended: str, kcoord: Kcoord) -> None:
    append_lines(ended, 4, int(time.time()), "0 ClaimingPartition i2/c2/billing/orders/2")
    code, out, err = export(kcoord, ended)
    assert (code, out) == (1, "")
    assert "group billing still runs, stop it first (or --force-live): c2" in err
    assert KafkaPositions(ended).committed("billing") == {}
    assert export(kcoord, ended, "--force-live")[0] == 0
    assert len(KafkaPositions(ended).committed("billing")) == 2


def test_a_consumer_group_with_members_is_left_alone(ended: str, kcoord: Kcoord) -> None:
    consumer = Consumer({"bootstrap.servers": ended, "group.id": "new", "client.id": "n-1"})
    consumer.subscribe(["orders"])
    kafka = KafkaPositions(ended)
    eventually(lambda: (consumer.poll(0.1), kafka.live_members("new"))[1])
    code, _, err = export(kcoord, ended, "--to-group", "")
    assert (code, err) == (2, "kcoord: --to-group: the name is empty\n")
    code, _, err = export(kcoord, ended, "--to-group", "new", "--force-live")
    assert code == 1
    assert "consumer group new has members, and Kafka takes offsets of one without: n-1" in err
    consumer.close()


def test_a_group_that_is_not_known(ended: str, kcoord: Kcoord) -> None:
    code, _, err = kcoord("marshal", "export-offsets", "none", "--kafka", ended)
    assert code == 1
    assert "no position of group none is known" in err
