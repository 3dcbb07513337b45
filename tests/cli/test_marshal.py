"""`kcoord marshal status`, `watch` and `consume`, on a broker."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from kcoord_wire.cli.main import main
from kcoord_wire.coordinator import Coordinator
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


def test_ranges_are_shown(brokers: str, kcoord: Kcoord) -> None:
    topic_id = KafkaPositions(brokers).topics(["orders"])["orders"].topic_id
    place = f"ranged/orders/0/{topic_id}"
    lines = (f"-2 ClaimingRange i1/c1/{place}/0/4", f"-1 RangeHeartbeat i1/c1/{place}/0/3")
    append_lines(brokers, 4, int(time.time()), *lines)
    code, out, _ = kcoord("marshal", "status", "--kafka", brokers, "--group", "ranged")
    held, free = [line.split() for line in out.splitlines() if line.startswith("ranged")]
    assert (code, held[1:7], held[-3:]) == (0, ["orders/0", "0", "to", "3", "held", "c1"], ["held", "by", "c1"])
    assert free[2:6] == ["4", "to", "8", "free"]
    _, out, _ = kcoord("marshal", "status", "--kafka", brokers, "--group", "ranged", "--format", "json")
    first = json.loads(out)["document"]["ranges"][0]
    shown = ("group_id", "topic", "partition", "topic_id", "first", "end", "situation", "client_id", "position")
    assert [first[name] for name in shown] == ["ranged", "orders", 0, topic_id, 0, 4, "held", "c1", 3]


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


@pytest.fixture
def cluster() -> Iterator[str]:
    with Coordinator(topics={"__marshal": 2, "orders": 2}) as coordinator:
        producer = Producer({"bootstrap.servers": coordinator.address})
        for number in range(20):
            producer.produce("orders", value=f"v{number // 2}", partition=number % 2)
        assert producer.flush(30) == 0
        yield coordinator.address


def consume(cluster: str, *options: str) -> Process:
    common = ("--kafka", cluster, "--group", "g", "--topics", "orders", "--greedy", "--heartbeat-interval", "2")
    return Process("marshal", "consume", *common, "--client-id", "c", *options)


def test_records_are_lines_with_their_tokens(cluster: str) -> None:
    with consume(cluster, "--max-records", "20") as process:
        assert process.wait() == 0
        lines = process.out.splitlines()
    tokens = {line.split()[2]: line.split()[4] for line in lines if line.startswith("# gained")}
    records = [line.split() for line in lines if not line.startswith("#")]
    for partition in "01":
        assert [record[2:] for record in records if record[1] == partition] == [
            [str(offset), tokens[f"orders/{partition}"], f"v{offset}"] for offset in range(10)
        ]
        assert f"# lost orders/{partition} token {tokens[f'orders/{partition}']}: released" in lines


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_releases_and_the_next_goes_on(cluster: str, number: int, status: int) -> None:
    with consume(cluster, "--format", "json") as first:
        first.wait_for('"value": "v9"(.|\n)*"value": "v9"')
        assert first.end(number) == status
        records = [line for line in map(json.loads, first.out.splitlines()) if line["type"] == "record"]
        assert len(records) == 20
        assert set(records[0]) == {"type", "topic", "partition", "token", "offset", "timestamp", "key", "value"}
    producer = Producer({"bootstrap.servers": cluster})
    producer.produce("orders", value="new", partition=0)
    assert producer.flush(30) == 0
    with consume(cluster, "--max-records", "1") as second:
        assert second.wait() == 0
        [record] = [line.split() for line in second.out.splitlines() if not line.startswith("#")]
        assert (record[1], record[2], record[4]) == ("0", "10", "new")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--client-id", "a/b"], 2, 'holds a "/"'),
        (["--balance"], 2, "--balance needs --presence"),
        (["--range-size", "5"], 2, "--range-size needs --ranges"),
        (["--ranges", "--at-most-once"], 2, "--at-most-once does not go with --ranges"),
        (["--ranges", "--keep-claims"], 2, "--keep-claims does not go with --ranges"),
        (["--topics", ","], 2, "names no topic"),
        (["--topics", "orders,__marshal"], 2, "__marshal is the coordination topic"),
        (["--kafka", ""], 2, "no address of a broker"),
        (["--topics", "missing"], 1, "no topic missing"),
        (["--coordination-topic", "missing"], 1, "no topic missing"),
        (["--heartbeat-interval", "1.5"], 2, "whole number"),
        (["--kafka-config", "nonsense=1"], 1, "rejects these settings"),
    ],
)
def test_errors_are_one_line(
    cluster: str, arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--kafka", cluster, "--group", "g", "--client-id", "c", "--topics", "orders"]
    assert main(["marshal", "consume", *common, *arguments]) == status
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("kcoord: ")
    assert words in lines[-1]
