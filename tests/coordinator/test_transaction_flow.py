"""Transactions through all machines of a coordinator, by a real client: librdkafka; and what a full disk does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kcoord_wire import messages as m
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.coordinator.core.error_responses import refusal
from kcoord_wire.coordinator.core.events import MarkersWritten, WriteMarkers
from kcoord_wire.coordinator.transaction_flow import RETRY_MS, TransactionFlow
from kcoord_wire.coordinator.transactions.machine import OFFSETS_TOPIC
from kcoord_wire.error_codes import ErrorCode

SECONDS = 60  # to wait for what must come


def producer(coordinator: Coordinator, name: str = "x") -> Producer:
    made = Producer({"bootstrap.servers": coordinator.address, "transactional.id": name})
    made.init_transactions(SECONDS)
    return made


def committed(coordinator: Coordinator, topic: str = "orders") -> list[bytes]:
    """Return what a reader of committed records gets, up to the end of partition 0."""
    return read(coordinator, topic, "read_committed")


def read(coordinator: Coordinator, topic: str, isolation: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": coordinator.address,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    found = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(SECONDS)
            assert message is not None, "nothing comes"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append(message.value())
    finally:
        consumer.close()


def test_readers_of_committed_records_get_no_others() -> None:
    with Coordinator(topics={"orders": 1}) as coordinator:
        writer = producer(coordinator)
        for text, commit in ((b"a", True), (b"b", False), (b"c", True)):
            writer.begin_transaction()
            writer.produce("orders", text)
            writer.flush(SECONDS)
            if commit:
                writer.commit_transaction(SECONDS)
            else:
                writer.abort_transaction(SECONDS)
        writer.begin_transaction()
        writer.produce("orders", b"open")
        writer.flush(SECONDS)
        assert committed(coordinator) == [b"a", b"c"]
        assert read(coordinator, "orders", "read_uncommitted") == [b"a", b"b", b"c", b"open"]


def test_a_producer_that_was_replaced_is_fenced() -> None:
    with Coordinator(topics={"orders": 1}) as coordinator:
        old = producer(coordinator)
        old.begin_transaction()
        old.produce("orders", b"old")
        old.flush(SECONDS)
        new = producer(coordinator)
        new.begin_transaction()
        new.produce("orders", b"new")
        new.commit_transaction(SECONDS)
        with pytest.raises(KafkaException) as fenced:
            old.commit_transaction(SECONDS)
        assert fenced.value.args[0].code() == KafkaError._FENCED
        assert committed(coordinator) == [b"new"]


def test_a_marker_is_written_again_where_the_disk_has_failed() -> None:
    asked: list[tuple[str, Any]] = []
    flow = TransactionFlow(
        transactions=lambda event, now: asked.append(("transactions", event)),
        groups=lambda event, now: asked.append(("groups", event)),
        topics=lambda event, now: asked.append(("topics", event)),
        unverified=lambda request: (None, []),
        offsets_partition=lambda group: 0,
        send=lambda token, message: None,
        new_token=lambda: len(asked) + 1,
    )
    part = m.WriteTxnMarkersRequestWritableTxnMarkerTopic
    topics = [part(name="a", partition_indexes=[0, 1]), part(name="b", partition_indexes=[0])]
    topics.append(part(name=OFFSETS_TOPIC, partition_indexes=[7]))
    marker = m.WriteTxnMarkersRequestWritableTxnMarker(producer_id=5, producer_epoch=1, topics=topics)

    def answer(*failed: tuple[str, int]) -> dict[str, list[int]]:
        """Answer what was asked last, and return the partitions that it named."""
        event = asked[-1][1]
        response = refusal(event.message, 2, ErrorCode.NONE)
        for topic in response.markers[0].topics:
            for each in topic.partitions:
                if (topic.name, each.partition_index) in failed:
                    each.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        flow.answered(event.token, response, 1_000)
        return {topic.name: topic.partition_indexes for topic in event.message.markers[0].topics}

    flow.write_markers(WriteMarkers("x", marker), 1_000)
    assert answer(("a", 1)) == {"a": [0, 1], "b": [0]}
    assert (len(asked), flow.deadline) == (1, 1_000 + RETRY_MS)
    flow.tick(1_000 + RETRY_MS)
    assert answer() == {"a": [1]}
    assert asked[-1][0] == "groups"
    assert answer() == {OFFSETS_TOPIC: [7]}
    assert asked[-1] == ("transactions", MarkersWritten("x", 5, 1))
    assert flow.deadline is None


def test_ids_and_epochs_survive_a_restart(tmp_path: Path) -> None:
    for epoch in range(3):
        with Coordinator(topics={"orders": 1}, data_dir=tmp_path) as coordinator:
            writer = producer(coordinator)
            writer.begin_transaction()
            writer.produce("orders", b"%d" % epoch)
            writer.commit_transaction(SECONDS)
            assert committed(coordinator)[-1] == b"%d" % epoch
