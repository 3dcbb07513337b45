"""Kafka's own command line tools against the coordinator: topics, configs, records, groups and the cluster."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import kcoord_wire as kw
from kcoord_wire.coordinator import Coordinator, GroupConfig
from tests.support.kafka_broker import KAFKA, class_path, compile_java, java
from tests.support.processes import Process
from tests.support.waiting import eventually
from tests.support.wire import Wire

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "java" / "KafkaTools.java"
TOOLS = "org.apache.kafka.tools."


class Tools(Process):
    """The tools in one process, pointed at a coordinator."""

    def __init__(self, path: str, address: str) -> None:
        self._address = address
        super().__init__(java(path, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "KafkaTools"))

    def run(self, tool: str, *arguments: str, status: int = 0, address: str = "") -> str:
        """Run a tool that ends with this status, and return what it writes; `address` is another coordinator's."""
        to = ("--bootstrap-server", address or self._address)
        ended, written = self.ask("\t".join([tool, *arguments, *to])).split(" ")
        text = base64.b64decode(written).decode()
        assert int(ended) == status, f"{tool} {arguments} ended with {ended}:\n{text}"
        return text


@pytest.fixture(scope="module")
def coordinator() -> Iterator[Coordinator]:
    with Coordinator(topics={"orders": 2}, config=GroupConfig(share_assignment_interval_ms=0)) as running:
        yield running


@pytest.fixture(scope="module")
def tools(coordinator: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    yield from run_tools(coordinator, tmp_path_factory.mktemp("classes"), KAFKA)


@pytest.fixture(scope="module")
def newer_tools(coordinator: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    yield from run_tools(coordinator, tmp_path_factory.mktemp("classes"), "4.4.0")


def run_tools(coordinator: Coordinator, classes: Path, version: str) -> Iterator[Tools]:
    path = os.pathsep.join(class_path(artifact, version) for artifact in ("kafka_2.13", "kafka-tools"))
    with Tools(compile_java(PROGRAM, classes, path), coordinator.address) as running:
        yield running
        running.finish()


def test_topics(tools: Tools) -> None:
    topics = f"{TOOLS}TopicCommand"
    created = tools.run(topics, "--create", "--topic", "new", "--partitions", "3", "--config", "retention.ms=1000")
    assert "Created topic new." in created
    assert "already exists" in tools.run(topics, "--create", "--topic", "new", status=1)
    three = tools.run(topics, "--create", "--topic", "three", "--replication-factor", "3", status=1)
    assert "replication factor of 3 cannot be reached" in three
    assert {"new", "orders"} <= set(tools.run(topics, "--list").split())
    tools.run(topics, "--alter", "--topic", "new", "--partitions", "5")
    described = tools.run(topics, "--describe", "--topic", "new")
    assert "PartitionCount: 5\tReplicationFactor: 1\tConfigs: min.insync.replicas=1,retention.ms=1000" in described
    assert described.count("Leader: 0") == 5
    tools.run(topics, "--delete", "--topic", "new")
    assert "does not exist" in tools.run(topics, "--describe", "--topic", "new", status=1)


def test_configs(tools: Tools) -> None:
    configs, name = "kafka.admin.ConfigCommand", ("--entity-type", "topics", "--entity-name", "orders")
    changed = tools.run(configs, "--alter", *name, "--add-config", "cleanup.policy=[compact,delete],flush.ms=5")
    assert "Completed updating config for topic orders." in changed
    described = tools.run(configs, "--describe", *name)
    assert "cleanup.policy=compact,delete" in described
    assert "flush.ms=5" in described
    tools.run(configs, "--alter", *name, "--delete-config", "cleanup.policy,flush.ms")
    assert "flush.ms" not in tools.run(configs, "--describe", *name)
    assert "nonsense" in tools.run(configs, "--alter", *name, "--add-config", "nonsense=1", status=1)
    broker = tools.run(configs, "--describe", "--entity-type", "brokers", "--entity-name", "0", "--all")
    assert "num.partitions=1" in broker
    user = "--entity-type", "users", "--entity-name", "alice"
    tools.run(configs, "--alter", *user, "--add-config", "producer_byte_rate=1024")
    assert "producer_byte_rate=1024" in tools.run(configs, "--describe", *user)


def test_records_offsets_and_sizes(tools: Tools, coordinator: Coordinator, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": coordinator.address})
    for number in range(10):
        producer.produce("orders", str(number), partition=0)
    producer.flush(60)
    offsets = f"{TOOLS}GetOffsetShell"
    assert "orders:0:10\norders:1:0" in tools.run(offsets, "--topic", "orders")
    wanted = tmp_path / "offsets.json"
    parts = [{"topic": "orders", "partition": 0, "offset": 4}]
    wanted.write_text(json.dumps({"partitions": parts, "version": 1}))
    deleted = tools.run(f"{TOOLS}DeleteRecordsCommand", "--offset-json-file", str(wanted))
    assert "partition: orders-0\tlow_watermark: 4" in deleted
    assert "orders:0:4\norders:1:0" in tools.run(offsets, "--topic", "orders", "--time", "earliest")
    sizes = json.loads(tools.run(f"{TOOLS}LogDirsCommand", "--describe").splitlines()[-1])
    (folder,) = sizes["brokers"][0]["logDirs"]
    assert {part["partition"] for part in folder["partitions"]} >= {"orders-0", "orders-1"}


def test_groups_and_the_cluster(tools: Tools, coordinator: Coordinator) -> None:
    consumer = Consumer({"bootstrap.servers": coordinator.address, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 1, 0)], asynchronous=False)
    groups = f"{TOOLS}consumer.group.ConsumerGroupCommand"
    assert "billing" in tools.run(groups, "--list")
    assert "orders" in tools.run(groups, "--describe", "--group", "billing")
    tools.run(groups, "--reset-offsets", "--group", "billing", "--topic", "orders", "--to-latest", "--execute")
    assert "successful" in tools.run(groups, "--delete", "--group", "billing")
    consumer.close()
    assert "SecurityDisabledException" in tools.run("kafka.admin.AclCommand", "--list", status=1)
    elect = ("--election-type", "preferred", "--topic", "orders", "--partition", "0")
    assert "Valid replica already elected for partitions orders-0" in tools.run(f"{TOOLS}LeaderElectionCommand", *elect)


def test_reassignments(newer_tools: Tools, tmp_path: Path) -> None:
    """``kafka-reassign-partitions.sh`` moves partitions and groups, and verifies that they are moved; without the last
    option it would take throttles from ``__consumer_offsets``, whose configs no client can set here."""
    tool, wanted = f"{TOOLS}reassign.ReassignPartitionsCommand", tmp_path / "moves.json"
    moves = [("orders", 0, [3, 1]), ("orders", 1, [2]), ("__consumer_offsets", 0, [3])]
    parts = [{"topic": topic, "partition": at, "replicas": on} for topic, at, on in moves]
    wanted.write_text(json.dumps({"version": 1, "partitions": parts}))
    config = GroupConfig(offsets_topic_partitions=1)
    with Coordinator(topics={"orders": 2}, brokers=3, node_id=1, config=config) as three:
        where = {"address": three.address}
        started = newer_tools.run(tool, "--execute", "--reassignment-json-file", str(wanted), **where)
        assert "Successfully started partition reassignments for __consumer_offsets-0,orders-0,orders-1" in started
        verified = newer_tools.run(
            tool, "--verify", "--reassignment-json-file", str(wanted), "--preserve-throttles", **where
        )
        assert verified.count("is completed.") == len(moves)
        assert "No partition reassignments found." in newer_tools.run(tool, "--list", **where)
        found = [three.leader_of("orders", 0), three.leader_of("orders", 1), three.coordinator_of("billing")]
    assert found == [3, 2, 3]


def test_share_groups(newer_tools: Tools, coordinator: Coordinator) -> None:
    """``kafka-share-groups.sh`` and ``kafka-groups.sh``; the group has one member, which is this test."""
    tool, describe = f"{TOOLS}consumer.group.ShareGroupCommand", ("--describe", "--group", "sharing")
    with Wire(coordinator.address, client_id="a-client") as wire:

        def beat(epoch: int, topics: list[str] | None = None) -> kw.ShareGroupHeartbeatResponse:
            heartbeat = kw.ShareGroupHeartbeatRequest(
                group_id="sharing", member_id="a-member", member_epoch=epoch, subscribed_topic_names=topics
            )
            answer: kw.ShareGroupHeartbeatResponse = wire.call(heartbeat, 1)
            return answer

        joined = beat(0, ["orders"]).member_epoch
        eventually(lambda: beat(joined), until=lambda answer: answer.member_epoch > joined)
        assert "sharing" in newer_tools.run(tool, "--list").split()
        assert re.search(r"sharing +Stable", newer_tools.run(tool, "--list", "--state"))
        members = newer_tools.run(tool, *describe, "--members", "--verbose")
        assert re.search(r"sharing +a-member +/127\.0\.0\.1 +a-client +2 +3 +orders:0,1", members)
        assert re.search(r"sharing .* Stable +1\n", newer_tools.run(tool, *describe, "--state"))
        assert "is not EMPTY" in newer_tools.run(tool, "--delete", "--group", "sharing")
        beat(-1)
        assert re.search(r"sharing .* Empty +0\n", newer_tools.run(tool, *describe, "--state"))
        assert re.search(r"sharing +Share +share", newer_tools.run(f"{TOOLS}GroupsCommand", "--list"))
        assert "successful" in newer_tools.run(tool, "--delete", "--group", "sharing")
        assert "sharing" not in newer_tools.run(tool, "--list").split()


def test_offsets_of_share_groups(newer_tools: Tools, coordinator: Coordinator) -> None:
    """What ``kafka-share-groups.sh`` shows of a group without members, sets and deletes."""
    coordinator.create_topic("shared", 1)
    producer = Producer({"bootstrap.servers": coordinator.address})
    for number in range(10):
        producer.produce("shared", b"%d" % number)
    assert producer.flush(60) == 0
    tool, group = f"{TOOLS}consumer.group.ShareGroupCommand", ("--group", "offsets")
    reset = ("--reset-offsets", *group, "--topic", "shared")
    newer_tools.run(tool, *reset, "--to-earliest", "--execute")
    shown = newer_tools.run(tool, "--describe", *group, "--offsets")
    assert re.search(r"offsets +shared +0 +0 +10\n", shown), shown
    newer_tools.run(tool, *reset, "--to-latest", "--execute")
    assert re.search(r"offsets +shared +0 +10 +0\n", newer_tools.run(tool, "--describe", *group, "--offsets"))
    newer_tools.run(tool, "--delete-offsets", *group, "--topic", "shared")
    assert "shared" not in newer_tools.run(tool, "--describe", *group, "--offsets")
    newer_tools.run(tool, "--delete", *group)
