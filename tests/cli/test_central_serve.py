"""`kcoord central serve` as a user runs it: a process, its one line, its log, its signals, and its errors."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kcoord_wire.cli.main import main
from kcoord_wire.messages import rewrite as m
from kcoord_wire.zookeeper.ensemble import Ensemble
from tests.support.central_processes import BrokerProcess
from tests.support.rewrite_wire import RewriteWire
from tests.support.zookeeper import chroot_of_its_own


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_the_session(zookeeper: Ensemble, stack: ExitStack, number: int, status: int) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    first = stack.enter_context(BrokerProcess(connect, 1, "--topics", "orders:4", "--log-format", "json"))
    first.wait_for('"event": "elected"')
    second = stack.enter_context(BrokerProcess(connect, 2, "--topics", "orders:4", "--log-format", "json"))
    assert first.end(number) == status
    second.wait_for('"event": "elected"')
    events = [json.loads(line) for line in second.log.splitlines()]
    [elected] = [event for event in events if event["event"] == "elected"]
    assert (elected["broker"], elected["epoch"], elected["level"]) == (2, 2, "info")
    assert "Traceback" not in first.log + second.log


def test_an_embedded_zookeeper_ends_with_it() -> None:
    with BrokerProcess("embedded", 1, "--topics", "orders:4") as broker:
        broker.wait_for("elected broker=1 epoch=1")
        assert re.fullmatch(r"127\.0\.0\.1:\d+", broker.zookeeper)
        host, _, port = broker.zookeeper.partition(":")
        socket.create_connection((host, int(port)), 10).close()
        assert broker.end(signal.SIGINT) == 130
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 10)


def test_a_broker_of_the_rewrite_serves_members(zookeeper: Ensemble, stack: ExitStack) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    options = ("--design", "rewrite", "--shards", "2", "--topics", "orders:3")
    broker = stack.enter_context(BrokerProcess(connect, 1, *options))
    broker.wait_for("coordination started shard=1")
    with RewriteWire(broker.address) as wire:
        request = m.RewriteJoinGroupRequest(
            group_id="g", session_timeout_ms=6_000, topics=["orders"], strategy="roundrobin"
        )
        joined = wire.ask(request)
        assert [(topic.topic, topic.partitions) for topic in joined.assigned_partitions] == [("orders", [0, 1, 2])]
    assert broker.end(signal.SIGTERM) == 0


def test_what_prevents_the_start_is_one_line(zookeeper: Ensemble) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    with BrokerProcess(connect, 1, "--session-timeout-ms", "1000") as broker:
        port = broker.address.rpartition(":")[2]
        for options, text in (
            (["--broker-id", "2", "--port", port], "address already in use"),
            (["--broker-id", "1", "--port", "0"], f"broker id 1 is taken by the broker at {broker.address}"),
        ):
            command = [sys.executable, "-m", "kcoord_wire", "central", "serve", "--zookeeper", connect]
            command += ["--session-timeout-ms", "1000", *options]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, done.stdout) == (1, "")
            assert text in done.stderr.splitlines()[-1]
            assert done.stderr.splitlines()[-1].startswith("kcoord: ")
            assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "required: --zookeeper"),
        (["--zookeeper", "x:1", "--topics", "orders"], 2, "'orders' is not of the form NAME:PARTITIONS"),
        (["--zookeeper", "x:1", "--topics", "a:1,a:2"], 2, "--topics: 'a' is given twice"),
        (["--zookeeper", "embedded", "--topics", "a/b:1"], 1, "not a topic: 'a/b'"),
        (["--zookeeper", "embedded", "--topics", "a:0"], 2, "topic 'a' needs one partition or more, not 0"),
        (["--zookeeper", "embedded", "--broker-id", "2147483648"], 1, "a broker id is 0 to 2147483647"),
        (["--zookeeper", "x:y"], 1, "'x:y' is not HOST:PORT"),
        (["--zookeeper", "x:1", "--broker-id", "0"], 2, "'0' is not a whole number from 1 up"),
        (["--zookeeper", "x:1", "--rate", "-1"], 2, "argument --rate"),
        (["--zookeeper", "x:1", "--rate", "many"], 2, "'many' is not a number from 0 to 1000000"),
        (["--zookeeper", "x:1", "--advertise", "x"], 2, "'x' is not of the form HOST:PORT"),
        (["--zookeeper", "x:1", "--zookeeper-auth", "user"], 2, "not of the form USER:PASSWORD"),
        (["--zookeeper", "x:1", "--rebalance-by", "magic"], 2, "invalid choice: 'magic'"),
        (["--zookeeper", "x:1", "--max-ping-retries", "x"], 2, "'x' is not a whole number"),
        (["--zookeeper", "x:1", "--shards", "8"], 2, "--shards is not an option of --design draft"),
        (
            ["--zookeeper", "x:1", "--design", "rewrite", "--max-ping-retries", "1"],
            2,
            "not an option of --design rewrite",
        ),
        (["--zookeeper", "x:1", "--design", "rewrite", "--rebalance-by", "sockets"], 2, "not an option of --design"),
        (["--zookeeper", "x:1", "--host", "nowhere.invalid"], 1, "--host nowhere.invalid: "),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["central", "serve", "--port", "0", *arguments]) == status
    out, errors = capsys.readouterr()
    assert (out, errors.count("kcoord: ")) == ("", 1)
    assert text in errors
