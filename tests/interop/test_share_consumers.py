"""Share consumers of Java and librdkafka: what they accept does not come again, even if the coordinator is killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.zookeeper.ensemble import free_ports
from tests.support.kafka_broker import class_path, compile_java, java
from tests.support.processes import Process
from tests.support.waiting import PATIENCE, eventually

SOURCE = Path(__file__).parents[1] / "support" / "java" / "ShareMember.java"
MS = str(int(PATIENCE * 1000))
CONFIG = {
    "group.share.assignment.interval.ms": "0",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.record.lock.duration.ms": "600000",  # more than any test takes: who is slow does not lose records
}
EXPLICIT = "share.acknowledgement.mode=explicit"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_java(SOURCE, tmp_path_factory.mktemp("classes"), class_path("kafka-clients", "4.4.0"))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Coordinator(config=GroupConfig.from_properties(CONFIG), auto_create_partitions=1) as coordinator:
        yield coordinator.address


class Member(Process):
    """A share consumer of Java, in a group that begins at the first record."""

    def __init__(self, program: str, address: str, name: str, *options: str) -> None:
        log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        super().__init__(java(program, log, "ShareMember", address, name, name, *options))

    def poll(self, count: int) -> dict[int, int]:
        """Return how often records were delivered, by offset, once there are so many."""
        polled = [each.split(":") for each in self.ask(f"poll {MS} {count}").split()]
        found = {int(offset): int(deliveries) for _, offset, deliveries in polled}
        assert len(polled) == len(found) >= count, polled
        return found

    def say(self, **offsets: range) -> None:
        """Acknowledge records by type, and send that."""
        for kind, which in offsets.items():
            assert self.ask(" ".join([kind, *map(str, which)])) == "acknowledged"
        assert self.ask("commit") == "0:ok"


def fill(address: str, name: str, count: int, first: int = 0, **configs: str) -> None:
    """Write numbered records; let the group of the topic's name begin at the first, and have these configs."""
    configs["share.auto.offset.reset"] = "earliest"
    options = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in configs.items()]
    group = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=options)
    admin = AdminClient({"bootstrap.servers": address})
    for altered in admin.incremental_alter_configs([group]).values():
        altered.result(PATIENCE)
    producer = Producer({"bootstrap.servers": address})
    for number in range(first, first + count):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE) == 0


def test_each_kind_of_acknowledgement(program: str, address: str) -> None:
    fill(address, "kinds", 10)
    with Member(program, address, "kinds", EXPLICIT) as member:
        assert member.poll(10) == dict.fromkeys(range(10), 1)
        member.say(accept=range(4), release=range(4, 6), reject=range(6, 8), renew=range(8, 10))
        assert member.poll(2) == {8: 1, 9: 1}  # as renewed records are
        member.say(accept=range(8, 10))
        assert member.poll(2) == {4: 2, 5: 2}
        member.say(accept=range(4, 6))


def test_two_members_share_a_partition(program: str, address: str) -> None:
    fill(address, "shared", 40)
    how = ("max.poll.records=10", "share.acquire.mode=record_limit")
    with Member(program, address, "shared", *how) as a, Member(program, address, "shared", *how) as b:
        first, second = a.poll(10), b.poll(10)
        assert not first.keys() & second.keys()
        rest = a.poll(10).keys() | b.poll(10).keys()  # by which the first ones are accepted
        assert first.keys() | second.keys() | rest == set(range(40))
        assert (a.ask("commit"), b.ask("commit")) == ("0:ok", "0:ok")
    fill(address, "shared", 1, first=40)
    with Member(program, address, "shared") as c:
        assert c.poll(1) == {40: 1}


def test_a_lock_of_a_member_that_is_silent_runs_out(program: str, address: str) -> None:
    fill(address, "locks", 3, **{"share.record.lock.duration.ms": "2000"})
    with Member(program, address, "locks", EXPLICIT) as slow, Member(program, address, "locks", EXPLICIT) as other:
        first = slow.poll(3)
        later = other.poll(3)
        assert first.keys() == later.keys() == {0, 1, 2}
        assert all(later[offset] > first[offset] for offset in first)
        assert slow.ask("accept 0 1 2") == "acknowledged"
        assert slow.ask("commit") == "0:InvalidRecordStateException"


def test_the_records_of_a_killed_member_go_to_another(program: str, address: str) -> None:
    fill(address, "killed", 3)
    with Member(program, address, "killed", EXPLICIT) as member:
        member.poll(3)
        member.kill()
    with Member(program, address, "killed", EXPLICIT) as another:
        assert another.poll(3).keys() == {0, 1, 2}


def served(folder: Path, port: int) -> Process:
    """A coordinator in a process of its own, which has said that it serves."""
    command = [sys.executable, "-m", "kcoord_wire", "serve", "--port", str(port), "--data-dir", str(folder)]
    for name, value in CONFIG.items():
        command += ["--config", f"{name}={value}"]
    return Process([*command, "--topics", "kills:1"], ready="serves")


def test_what_was_accepted_is_not_delivered_after_a_kill(program: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    accepted: set[int] = set()
    coordinator = served(tmp_path, port)
    try:
        fill(address, "kills", 30)
        for turn in range(3):
            with Member(program, address, "kills", EXPLICIT) as member:
                found = member.poll(30 - len(accepted))
                assert found.keys() == set(range(30)) - accepted
                some = range(turn, 30, 3)
                member.say(accept=some)
                accepted |= set(some)
                coordinator.kill()
                coordinator = served(tmp_path, port)
        fill(address, "kills", 1, first=30)
        with Member(program, address, "kills", EXPLICIT) as member:
            assert member.poll(1) == {30: 1}
    finally:
        coordinator.kill()


def numbers(consumer: ShareConsumer) -> list[int]:
    """Poll until there are records, and return what is in them."""
    return eventually(lambda: [int(each.value()) for each in consumer.poll(timeout=1) if each.error() is None])


def test_librdkafka(address: str) -> None:
    fill(address, "rdkafka", 10)
    consumer = ShareConsumer({"bootstrap.servers": address, "group.id": "rdkafka"})
    consumer.subscribe(["rdkafka"])
    found: list[int] = []
    while len(found) < 10:
        found += numbers(consumer)
    assert found == list(range(10))
    consumer.commit_sync()
    consumer.close()
    fill(address, "rdkafka", 1, first=10)
    again = ShareConsumer({"bootstrap.servers": address, "group.id": "rdkafka"})
    again.subscribe(["rdkafka"])
    assert numbers(again) == [10]
    again.close()


def test_librdkafka_goes_on_when_a_broker_stops() -> None:
    config = GroupConfig.from_properties(CONFIG)
    with Coordinator(topics={"several": 6}, brokers=3, config=config) as coordinator:
        addresses = ",".join(coordinator.addresses)
        option = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        admin = AdminClient({"bootstrap.servers": addresses})
        group = ConfigResource(ConfigResource.Type.GROUP, "several", incremental_configs=[option])
        for altered in admin.incremental_alter_configs([group]).values():
            altered.result(PATIENCE)
        producer = Producer({"bootstrap.servers": addresses})
        consumer = ShareConsumer({"bootstrap.servers": addresses, "group.id": "several"})
        consumer.subscribe(["several"])
        found: set[int] = set()
        changes = (lambda broker: None, coordinator.stop_broker, coordinator.restart_broker)
        for turn, change in enumerate(changes):
            change(1)
            for number in range(60 * turn, 60 * turn + 60):
                producer.produce("several", b"%d" % number, partition=number % 6)
            assert producer.flush(PATIENCE) == 0
            wanted = set(range(60 * turn + 60))
            while not found >= wanted:
                found.update(numbers(consumer))
            consumer.commit_sync()
        consumer.close()
