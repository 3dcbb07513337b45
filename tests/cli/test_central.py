"""`kcoord central` as a user runs it: processes, their lines, signals and errors, and the state."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kcoord_wire.central.broker import CentralBroker
from kcoord_wire.central.draft.events import CoordinatorSettings, Partition
from kcoord_wire.central.status import ClusterStatus, GroupStatus
from kcoord_wire.cli.central import status_to_json
from kcoord_wire.cli.main import main
from kcoord_wire.messages import central as m
from kcoord_wire.messages.rewrite import RewriteJoinGroupRequest
from kcoord_wire.zookeeper.ensemble import Ensemble
from kcoord_wire.zookeeper.leadership import LeaderRecord
from tests.support.central_account import ConsumerProcess
from tests.support.central_processes import BrokerProcess, Process
from tests.support.draft_wire import DraftWire
from tests.support.rewrite_wire import RewriteWire
from tests.support.waiting import eventually
from tests.support.zookeeper import chroot_of_its_own


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_the_session(zookeeper: Ensemble, stack: ExitStack, number: int, status: int) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    first = stack.enter_context(BrokerProcess(connect, 1, "--topics", "orders:4", "--format", "json"))
    first.wait_for('"event": "elected"')
    second = stack.enter_context(BrokerProcess(connect, 2, "--topics", "orders:4", "--format", "json"))
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
        request = RewriteJoinGroupRequest(
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
def test_signals_end_a_consumer_in_order(broker: CentralBroker, number: int, status: int) -> None:
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
                    first = int(second.wait_for(r"orders 1-2 (\d+) ")[1])
                    second.wait_for(f"orders 1-2 {first + 600} ")  # six seconds later: several session timeouts
                    assert "orders/1-0" not in second.out
        finally:
            blocked.kill()


def test_a_silent_coordinator_leaves_nulls() -> None:
    group = GroupStatus({Partition("orders", "1-0"): "c-0"}, {Partition("orders", "1-0"): 5})
    status = ClusterStatus([LeaderRecord(1, 3)], groups={"g": group}, silence="it does not answer")
    plain = status_to_json(status)
    assert plain["coordinator"] == {"broker": 1, "epoch": 3, "elected_ms_ago": None, "silence": "it does not answer"}
    assert plain["groups"]["g"] == {
        "generation": None,
        "phase": None,
        "waits_for": None,
        "consumers": None,
        "owners": {"orders/1-0": "c-0"},
        "left": {},
        "offsets": {"orders/1-0": 5},
    }


def test_owners_that_have_left_are_apart() -> None:
    stored = GroupStatus({Partition("orders", "1-0"): "c-0", Partition("orders", "1-1"): "gone-0"})
    consumers = [m.CentralStatusResponseConsumer(consumer_id="c")]
    live = m.CentralStatusResponse(groups=[m.CentralStatusResponseGroup(group_id="g", consumers=consumers)])
    groups = status_to_json(ClusterStatus(groups={"g": stored, "empty": stored}, live=live))["groups"]
    assert (groups["g"]["owners"], groups["g"]["left"]) == ({"orders/1-0": "c-0"}, {"orders/1-1": "gone-0"})
    assert (groups["empty"]["owners"], len(groups["empty"]["left"])) == ({}, 2)


@pytest.mark.slow
def test_a_cluster_as_tables_and_as_json(zookeeper: Ensemble, capsys: pytest.CaptureFixture[str]) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    assert main(["central", "status", "--zookeeper", connect]) == 0
    line = "coordinator: none is elected; ZooKeeper has no broker, topic or group there\n\n"
    assert capsys.readouterr().out == line
    with CentralBroker(connect, topics={"orders": 2}, session_timeout_ms=4_000) as broker:
        eventually(lambda: broker.epoch == 1)
        with DraftWire(broker.port) as wire:
            register = m.RegisterConsumerRequest(group_id="billing", consumer_id="till-1", session_timeout_ms=60_000)
            register.topic_count, register.auto_offset_rest = '{"orders":1}', "smallest"
            wire.ask(register, m.RegisterConsumerResponse)
            wire.request()
            assert main(["central", "status", "--zookeeper", connect]) == 0
            out = capsys.readouterr().out
            assert "coordinator: broker 1, epoch 1, elected " in out
            rows = [line.split() for line in out.splitlines()]
            assert ["1", broker.address, "orders:2"] in rows
            assert ["billing", "1", "stopping", "till-1", "0", "0"] in rows
            assert ["billing", "till-1", "127.0.0.1", '{"orders":1}', "60000", "0", "0"] in rows
            assert main(["central", "status", "--zookeeper", connect, "--format", "json"]) == 0
            plain = json.loads(capsys.readouterr().out)
            assert plain["brokers"] == {"1": broker.address}
            assert plain["groups"]["billing"]["waits_for"] == ["till-1"]
            assert plain["rebalancing_off"] == []
            switch = ["--zookeeper", connect, "--topics"]
            assert main(["central", "rebalancing", "off", *switch, "orders"]) == 0
            assert main(["central", "rebalancing", "on", *switch, "orders,nothing"]) == 1
            assert "there is no topic 'nothing'" in capsys.readouterr().err
            assert main(["central", "status", "--zookeeper", connect]) == 0
            assert "rebalancing is switched off: orders" in capsys.readouterr().out
            assert main(["central", "rebalancing", "on", *switch, "orders"]) == 0
            assert main(["central", "status", "--zookeeper", connect]) == 0
            assert "switched off" not in capsys.readouterr().out


@pytest.mark.slow
def test_brokers_share_the_groups(zookeeper: Ensemble, capsys: pytest.CaptureFixture[str]) -> None:
    """Section 1; also for consumers that send the draft's bytes, which name no group."""
    connect = zookeeper.connect + chroot_of_its_own()
    settings = CoordinatorSettings(coordinators=2)
    topics = {"orders": 2}
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(CentralBroker(connect, broker_id=number, topics=topics, settings=settings))
            for number in (1, 2)
        ]
        eventually(lambda: [len(broker.epochs) for broker in brokers] == [1, 1])
        consumers = [
            stack.enter_context(ConsumerProcess(brokers[0].address, group, 3_000, "--topics", "orders", *options))
            for group in ("g0", "g1")
            for options in ((), ("--no-epoch",))
        ]
        eventually(lambda: all(len(consumer.owned) == 2 for consumer in consumers))
        assert main(["central", "status", "--zookeeper", connect, "--format", "json"]) == 0
        plain = json.loads(capsys.readouterr().out)
        assert {each["broker"] for each in plain["coordinators"]} == {1, 2}
        assert {name: len(group["consumers"]) for name, group in plain["groups"].items()} == {"g0": 2, "g1": 2}
        assert main(["central", "status", "--zookeeper", connect]) == 0
        assert re.match(r"coordinators: broker 1 of subset [01]; broker 2 of subset [01]\n", capsys.readouterr().out)


def test_a_coordinator_that_is_silent_is_named() -> None:
    """The consumers of its groups are not known; those of the others are."""
    stored = GroupStatus({Partition("orders", "1-0"): "c-0"})
    live = m.CentralStatusResponse(groups=[m.CentralStatusResponseGroup(group_id="g")])
    status = ClusterStatus([LeaderRecord(1, 3), None], groups={"g": stored, "h": stored}, live=live)
    status.silence = "no broker is elected"
    plain = status_to_json(status)
    assert plain["coordinators"] == [{"broker": 1, "epoch": 3}, None]
    assert (plain["groups"]["g"]["left"], plain["groups"]["h"]["left"]) == ({"orders/1-0": "c-0"}, {})


@pytest.mark.slow
def test_without_zookeeper_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["central", "status", "--zookeeper", "127.0.0.1:1", "--connect-seconds", "1"]) == 1
    out, errors = capsys.readouterr()
    assert (out, errors) == ("", "kcoord: no ZooKeeper answers at 127.0.0.1:1 within 1 s\n")
