"""`kcoord marshal consume` as a user runs it: a process on our topics, its lines, signals and errors."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from kcoord_wire.cli.main import main
from kcoord_wire.coordinator import Coordinator
from tests.support.central_processes import Process


@pytest.fixture
def brokers() -> Iterator[str]:
    with Coordinator(topics={"__marshal": 2, "orders": 2}) as coordinator:
        producer = Producer({"bootstrap.servers": coordinator.address})
        for number in range(20):
            producer.produce("orders", value=f"v{number // 2}", partition=number % 2)
        assert producer.flush(30) == 0
        yield coordinator.address


def consume(brokers: str, *options: str) -> Process:
    common = ("--kafka", brokers, "--group", "g", "--topics", "orders", "--greedy", "--heartbeat-interval", "2")
    return Process("marshal", "consume", *common, "--client-id", "c", *options)


def test_records_are_lines_with_their_tokens(brokers: str) -> None:
    with consume(brokers, "--max-records", "20") as process:
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
def test_a_signal_releases_and_the_next_goes_on(brokers: str, number: int, status: int) -> None:
    with consume(brokers, "--format", "json") as first:
        first.wait_for('"value": "v9"(.|\n)*"value": "v9"')
        assert first.end(number) == status
        records = [line for line in map(json.loads, first.out.splitlines()) if line["type"] == "record"]
        assert len(records) == 20
        assert set(records[0]) == {"type", "topic", "partition", "token", "offset", "timestamp", "key", "value"}
    producer = Producer({"bootstrap.servers": brokers})
    producer.produce("orders", value="new", partition=0)
    assert producer.flush(30) == 0
    with consume(brokers, "--max-records", "1") as second:
        assert second.wait() == 0
        [record] = [line.split() for line in second.out.splitlines() if not line.startswith("#")]
        assert (record[1], record[2], record[4]) == ("0", "10", "new")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--client-id", "a/b"], 2, 'holds a "/"'),
        (["--balance"], 2, "--balance needs --presence"),
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
    brokers: str, arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--kafka", brokers, "--group", "g", "--client-id", "c", "--topics", "orders"]
    assert main(["marshal", "consume", *common, *arguments]) == status
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("kcoord: ")
    assert words in lines[-1]
