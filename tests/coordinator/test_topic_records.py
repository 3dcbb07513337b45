"""Records that a test reads and writes beside the clients, and the state of transactional ids."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import Consumer, Producer

from kcoord_wire.coordinator import Coordinator, GroupConfig, SettingsError
from kcoord_wire.coordinator.topic_records import TopicRecord
from tests.support.fixtures import StartCoordinator
from tests.support.waiting import in_background


def values(records: list[TopicRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def test_a_client_reads_what_was_produced(coordinator: StartCoordinator) -> None:
    c = coordinator()
    assert c.produce("orders", "first", key="k", headers={"kind": "new", "none": None}, timestamp=7) == 0
    assert c.produce("orders", b"second") == 1
    assert c.produce("orders", None, key=b"k", partition=3) == 0
    consumer = Consumer({"bootstrap.servers": c.address, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    read = []
    while len(read) < 3:
        message = consumer.poll(1)
        if message is not None:
            read.append(message)
    consumer.close()
    first = min(read, key=lambda each: (each.partition(), each.offset()))
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", b"first", 7)
    assert first.headers() == [("kind", b"new"), ("none", None)]
    assert sorted((each.partition(), each.offset()) for each in read) == [(0, 0), (0, 1), (3, 0)]
    assert c.records("orders")[0] == TopicRecord("orders", 0, 0, 7, b"k", b"first", (("kind", b"new"), ("none", None)))
    assert values(c.records("orders", partition=3)) == [None]


def test_transactions_are_seen_as_their_readers_see_them(coordinator: StartCoordinator) -> None:
    c = coordinator()
    producer = Producer({"bootstrap.servers": c.address, "transactional.id": "pay-1"})
    producer.init_transactions()
    waiting: Future[list[TopicRecord]] = in_background(
        c, lambda: c.wait_for_records("orders", 2, isolation="read_committed")
    )
    for value, end in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        producer.produce("orders", value, partition=0)
        producer.flush()
        assert c.wait_for_transaction("pay-1", "Ongoing").partitions == {"orders": (0,)}
        assert not waiting.done()
        (producer.commit_transaction if end else producer.abort_transaction)()
        assert c.wait_for_transaction("pay-1", "CompleteCommit" if end else "CompleteAbort").started_at is not None
    assert values(waiting.result(60)) == values(c.records("orders", isolation="read_committed")) == [b"a", b"c"]
    assert values(c.wait_for_records("orders", 3)) == [b"a", b"b", b"c"]
    assert c.transaction("pay-1") == c.transactions()[0]


def test_what_has_not_come_is_said(coordinator: StartCoordinator) -> None:
    c = coordinator()
    c.produce("orders", "a")
    with pytest.raises(
        TimeoutError, match=r"^topic 'orders' has 1 records and not 2 after 0.01 s \(read_uncommitted\)$"
    ):
        c.wait_for_records("orders", 2, timeout=0.01)
    with pytest.raises(TimeoutError, match=r"'pay-1' is not Ongoing after 0\.01 s: no producer has used it"):
        c.wait_for_transaction("pay-1", "Ongoing", timeout=0.01)


def test_what_does_not_exist_is_refused(coordinator: StartCoordinator) -> None:
    c = coordinator()
    for ask in (c.records, c.wait_for_records, lambda topic: c.produce(topic, "a")):
        with pytest.raises(KeyError, match="no topic 'order'"):
            ask("order")  # type: ignore[operator]
    for partition in (-1, 12):
        with pytest.raises(KeyError, match=f"topic 'orders' has no partition {partition}"):
            c.produce("orders", "a", partition=partition)
    with pytest.raises(KeyError, match="no transactional id 'pay-1'"):
        c.transaction("pay-1")
    with pytest.raises(SettingsError, match="did you mean read_committed"):
        c.records("orders", isolation="committed")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="did you mean CompleteCommit"):
        c.wait_for_transaction("pay-1", "Completecommit")
    c.create_topic("small", 1, {"max.message.bytes": "100"})
    with pytest.raises(ValueError, match="small-0: MESSAGE_TOO_LARGE"):
        c.produce("small", b"x" * 100)


def test_settings_are_given_by_kafkas_names() -> None:
    with Coordinator(config={"group.max.size": "2"}) as c:
        assert c._machine.config == GroupConfig(max_size=2)
    with pytest.raises(SettingsError, match=r"group.max.sizes: unknown; did you mean group.max.size\?"):
        Coordinator(config={"group.max.sizes": "2"})
