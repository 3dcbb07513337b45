"""`kcoord central consume` as a user runs it: a process, its lines, its signals, and its errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kcoord_wire.central.broker import CentralBroker
from kcoord_wire.cli.main import main
from tests.support.central_processes import Process


@pytest.fixture
def broker() -> Iterator[CentralBroker]:
    with CentralBroker(topics={"orders": 4, "payments": 1}, rate=100) as started:
        yield started


def consume(broker: CentralBroker, *options: str) -> Process:
    topics = () if any(option.endswith("list") for option in options) else ("--topics", "orders")
    common = ("--kafka", broker.address, "--group", "g", "--session-timeout-ms", "3000")
    return Process("central", "consume", *common, *topics, *options)


def test_records_are_lines_with_their_offsets(broker: CentralBroker) -> None:
    with consume(broker, "--max-records", "20") as first:
        assert first.wait() == 0
        lines = first.out.splitlines()
        assert lines[0] == "# assigned: orders/1-0 orders/1-1 orders/1-2 orders/1-3"
        assert lines[-1] == "# assigned: none"
        records = [line.split() for line in lines[1:-1]]
        assert len(records) == 20
        for topic, name, offset, value in records:
            assert (topic, value) == ("orders", f"orders-{name}@{offset}")


def test_the_next_consumer_begins_where_the_last_ended(broker: CentralBroker) -> None:
    seen: dict[str, int] = {}
    for _ in range(2):
        with consume(broker, "--format", "json", "--max-records", "30") as process:
            assert process.wait() == 0
            for line in map(json.loads, process.out.splitlines()):
                if line["type"] == "record":
                    assert line["offset"] == seen.get(line["partition"], 0)
                    seen[line["partition"]] = line["offset"] + 1
    assert sum(seen.values()) == 60


def test_without_auto_commit_it_begins_at_the_start_again(broker: CentralBroker) -> None:
    for epochs in ([], ["--no-epoch"]):
        with consume(broker, "--no-auto-commit", "--max-records", "1", *epochs) as process:
            assert process.wait() == 0
            assert process.out.splitlines()[1] == "orders 1-0 0 orders-1-0@0"


def test_from_largest_leaves_out_what_was_there(broker: CentralBroker) -> None:
    with consume(broker, "--reset", "largest", "--max-records", "1") as process:
        assert process.wait() == 0
        assert int(process.out.splitlines()[1].split()[2]) > 0


def test_two_consumers_share_the_partitions(broker: CentralBroker) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(consume(broker, "--consumer-id", name)) for name in ("c-1", "c-2"))
        first.wait_for("# assigned: orders/1-0 orders/1-1\n")
        second.wait_for("# assigned: orders/1-2 orders/1-3\n")
        assert first.end(signal.SIGTERM) == 0
        second.wait_for("# assigned: orders/1-0 orders/1-1 orders/1-2 orders/1-3\n")


@pytest.mark.parametrize(("option", "pattern"), [("--whitelist", "ord.*"), ("--blacklist", "pay.*")])
def test_wildcards_select_topics(broker: CentralBroker, option: str, pattern: str) -> None:
    with consume(broker, option, pattern) as process:
        process.wait_for("# assigned: orders/1-0 orders/1-1 orders/1-2 orders/1-3\n")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_in_order(broker: CentralBroker, number: int, status: int) -> None:
    with consume(broker) as process:
        process.wait_for("orders 1-0 3 ")
        assert process.end(number) == status
        assert process.out.splitlines()[-1] == "# assigned: none"
        assert "Traceback" not in process.log


def test_a_closed_stderr_does_not_stop_the_shutdown(broker: CentralBroker) -> None:
    read, write = os.pipe()
    command = [sys.executable, "-m", "kcoord_wire", "central", "consume", "--kafka", broker.address]
    options = ["--group", "g", "--topics", "orders", "--session-timeout-ms", "3000"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=write) as process:
        os.close(write)
        os.close(read)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"# assigned")
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_second_signal_kills_at_once(broker: CentralBroker) -> None:
    with consume(broker, "--session-timeout-ms", "300000") as process:
        process.wait_for("orders 1-0 0 ")
        process.send(signal.SIGINT)  # the next ping is more than a minute away
        process.wait_for("waits for")
        assert process.end(signal.SIGINT) == -signal.SIGINT


def test_a_stdout_that_takes_nothing_does_not_stop_it(broker: CentralBroker) -> None:
    """Its records wait, its pings do not: the coordinator keeps it, and the second consumer gets only half."""
    read, write = os.pipe()
    command = [sys.executable, "-m", "kcoord_wire", "central", "consume", "--kafka", broker.address]
    options = ["--group", "g", "--topics", "orders", "--session-timeout-ms", "1500", "--consumer-id", "c-1"]
    with subprocess.Popen([*command, *options], stdout=write, stderr=subprocess.DEVNULL) as blocked:
        os.close(write)
        try:
            with open(read, "rb", buffering=0) as out:
                out.read(10)
                with consume(broker, "--consumer-id", "c-2", "--session-timeout-ms", "1500") as second:
                    second.wait_for("# assigned: orders/1-2 orders/1-3\n")
                    second.wait_for("orders 1-2 600 ")  # six seconds later: several session timeouts
                    assert "orders/1-0" not in second.out
        finally:
            blocked.kill()


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "--kafka, --group"),
        (["--kafka", "x:1", "--group", "g"], 2, "one of the arguments --topics --whitelist --blacklist"),
        (["--kafka", "x:1", "--group", "g", "--topics", "a", "--whitelist", "b"], 2, "not allowed with"),
        (["--kafka", "x", "--group", "g", "--topics", "a"], 2, "'x' is not of the form HOST:PORT"),
        (["--kafka", "x:1,:2", "--group", "g", "--topics", "a"], 2, "'x:1,:2' is not of the form HOST:PORT"),
        (["--kafka", "x:1", "--group", "g", "--topics", "a,,b"], 2, "not a topic: ''"),
        (["--kafka", "x:1", "--group", "g", "--whitelist", "("], 2, "a parenthesis is not closed"),
        (["--kafka", "x:1", "--group", "g", "--topics", "a", "--streams", "0"], 2, "'0' is not a whole number"),
        (["--kafka", "x:1", "--group", "g", "--topics", "a", "--streams", "9999"], 2, "1 to 1000 streams"),
        (["--kafka", "x:1", "--group", "g" * 40_000, "--topics", "a"], 2, "cannot be the name of a node"),
        (["--kafka", "x:1", "--group", "", "--topics", "a"], 2, "--group: '' cannot be the name of a node"),
        (["--kafka", "x:1", "--group", "a/b", "--topics", "a"], 2, "--group: 'a/b' cannot be the name of a node"),
        (["--kafka", "x:1", "--group", "g", "--consumer-id", "a/b", "--topics", "a"], 2, "--consumer-id: 'a/b'"),
        (["--kafka", "x:1", "--group", "g", "--topics", "a", "--session-timeout-ms", "9" * 12], 1, "session_tim"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["central", "consume", *arguments]) == status
    out, errors = capsys.readouterr()
    assert (out, errors.count("kcoord: ")) == ("", 1)
    assert text in errors
