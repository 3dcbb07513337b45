"""A member by confluent-kafka, that is librdkafka. See lines.py for what it speaks."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.clients.lines import Member, complain, serve

LOGGER = logging.getLogger("librdkafka")


class ConfluentMember(Member):
    def options(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.settings.bootstrap,
            "client.id": self.settings.client_id,
            "error_cb": lambda error: complain(f"error callback: {error}"),
        }

    def join(self) -> None:
        options = self.options() | {
            "group.id": self.settings.group,
            "partition.assignment.strategy": self.settings.assignor,
            "session.timeout.ms": self.settings.session_timeout_ms,
            "heartbeat.interval.ms": self.settings.heartbeat_interval_ms,
            "max.poll.interval.ms": self.settings.rebalance_timeout_ms,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        if self.settings.instance_id is not None:
            options["group.instance.id"] = self.settings.instance_id
        self.consumer = Consumer(self.settings.over(options), logger=LOGGER)
        self.subscribe([self.settings.topic])

    def subscribe(self, topics: list[str]) -> None:
        if not topics:
            self.consumer.unsubscribe()
            return
        self.consumer.subscribe(topics, on_assign=self.assigned, on_revoke=self.revoked)

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.gain(partitions)

    def revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.lose(partitions)

    def poll(self) -> list[tuple[int, int, str]]:
        polled = []
        for message in self.consumer.consume(100, 0.05):
            if message.error() is not None:
                complain(f"polled: {message.error()}")
            else:
                polled.append(read(message))
        return polled

    def commit(self, positions: list[tuple[int, int]]) -> None:
        offsets = [TopicPartition(self.settings.topic, partition, offset) for partition, offset in positions]
        for committed in self.consumer.commit(offsets=offsets, asynchronous=False):
            if committed.error is not None:
                raise RuntimeError(f"not committed: {committed}")

    def pause(self, partitions: list[int]) -> None:
        self.consumer.pause([TopicPartition(self.settings.topic, partition) for partition in partitions])

    def seek(self, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(self.settings.topic, partition, offset))

    def leave(self) -> None:
        self.consumer.close()

    def produce(self, records: list[tuple[int, str]]) -> list[int]:
        producer = Producer(self.options() | {"acks": "all", "enable.idempotence": True}, logger=LOGGER)
        offsets: dict[tuple[int, str], int] = {}

        def deliver(error: KafkaError | None, message: Message) -> None:
            partition, offset, value = read(message)
            if error is not None:
                complain(f"not delivered: {error}")
            offsets[partition, value] = offset

        for partition, value in records:
            producer.produce(self.settings.topic, value=value.encode(), partition=partition, on_delivery=deliver)
        producer.flush(30)
        return [offsets[partition, value] for partition, value in records]


def read(message: Any) -> tuple[int, int, str]:
    return message.partition(), message.offset(), message.value().decode()


if __name__ == "__main__":
    serve(ConfluentMember)
