"""Transactions through all machines of a coordinator, by a real client: librdkafka; and markers that are refused."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kcoord_wire import messages as m
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.coordinator.core.apis import refusal
from kcoord_wire.coordinator.core.events import MarkersWritten, WriteMarkers
from kcoord_wire.coordinator.transaction_flow import RETRY_MS, TransactionFlow
from kcoord_wire.protocol.error_codes import ErrorCode

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


def test_ids_and_epochs_survive_a_restart(tmp_path: Path) -> None:
    for epoch in range(3):
        with Coordinator(topics={"orders": 1}, data_dir=tmp_path) as coordinator:
            writer = producer(coordinator)
            writer.begin_transaction()
            writer.produce("orders", b"%d" % epoch)
            writer.commit_transaction(SECONDS)
            assert committed(coordinator)[-1] == b"%d" % epoch


class Markers:
    """A flow whose topics and groups answer markers as scripted.

    :ivar errors: by topic and partition, of the topics' next answers
    :ivar asked: the markers' partitions of each request, in order
    :ivar groups: requests to the groups that are not answered
    :ivar complete: transactional ids whose markers are written
    """

    def __init__(self) -> None:
        self.errors: dict[tuple[str, int], ErrorCode] = {}
        self.asked: list[list[tuple[str, int]]] = []
        self.groups: list[Any] = []
        self.complete: list[MarkersWritten] = []
        self.now = 0
        tokens = count()
        self.flow = TransactionFlow(
            transactions=self._transactions,
            groups=self._groups,
            topics=self._topics,
            unverified=lambda request: (None, []),
            offsets_partition=len,
            send=lambda token, message: None,
            new_token=lambda: next(tokens),
        )

    def _transactions(self, event: Any, now: int) -> None:
        assert isinstance(event, MarkersWritten)
        self.complete.append(event)

    def _note(self, request: Any) -> None:
        (marker,) = request.message.markers
        self.asked.append([(topic.name, index) for topic in marker.topics for index in topic.partition_indexes])

    def _groups(self, request: Any, now: int) -> None:
        self._note(request)
        self.groups.append(request)

    def _topics(self, request: Any, now: int) -> None:
        self._note(request)
        answer = refusal(request.message, request.version, ErrorCode.NONE)
        for topic in answer.markers[0].topics:
            for each in topic.partitions:
                each.error_code = self.errors.get((topic.name, each.partition_index), ErrorCode.NONE)
        self.flow.answered(request.token, answer, now)

    def answer_groups(self, error: ErrorCode = ErrorCode.NONE) -> None:
        request = self.groups.pop(0)
        self.flow.answered(request.token, refusal(request.message, request.version, error), self.now)

    def write(self, *partitions: tuple[str, int]) -> None:
        topics = [
            m.WriteTxnMarkersRequestWritableTxnMarkerTopic(name=name, partition_indexes=[index])
            for name, index in partitions
        ]
        marker = m.WriteTxnMarkersRequestWritableTxnMarker(producer_id=7, producer_epoch=1, topics=topics)
        self.flow.write_markers(WriteMarkers("x", marker), self.now)

    def retry(self) -> None:
        self.now += RETRY_MS
        self.flow.tick(self.now)


OFFSETS = ("__consumer_offsets", 3)
COMPLETE = MarkersWritten("x", 7, 1)


def test_a_marker_that_a_disk_refuses_is_written_again() -> None:
    script = Markers()
    script.errors = {("a", 0): ErrorCode.KAFKA_STORAGE_ERROR, ("b", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    script.write(("a", 0), ("b", 0), ("c", 0), OFFSETS)
    assert script.flow.deadline == script.now + RETRY_MS
    script.retry()
    assert (script.complete, script.asked) == ([], [[("a", 0), ("b", 0), ("c", 0)], [("a", 0)]])
    script.errors = {}
    script.retry()
    script.answer_groups(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    script.retry()
    assert (script.complete, script.asked[2:]) == ([], [[("a", 0)], [OFFSETS], [], [OFFSETS]])
    script.answer_groups()
    assert (script.complete, script.flow.deadline) == ([COMPLETE], None)


def test_markers_that_are_written_anew_are_not_repeated_twice() -> None:
    script = Markers()
    script.write(("a", 0), OFFSETS)
    script.write(("a", 0), OFFSETS)  # the log has been read again
    script.answer_groups()
    assert script.complete == [], "the last decides: it would write once more"
    script.answer_groups(ErrorCode.NOT_COORDINATOR)
    script.write(("a", 0), OFFSETS)
    script.answer_groups()
    written = len(script.asked)
    script.retry()
    assert (script.complete, len(script.asked)) == ([COMPLETE], written), "it might end the next transaction"
