"""A member by aiokafka. See lines.py for what it speaks."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.support.clients.lines import AsyncMember, serve, slow

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "slow-range": slow(RangePartitionAssignor),
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: AiokafkaMember) -> None:
        self.member = member

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.member.gain(assigned)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.member.lose(revoked)


class AiokafkaMember(AsyncMember):
    async def start(self) -> None:
        options = self.settings.common(
            [ASSIGNORS[self.settings.assignor]], rebalance_timeout_ms=self.settings.rebalance_timeout_ms
        )
        self.consumer = AIOKafkaConsumer(**options)
        self.subscribe([self.settings.topic])
        await self.consumer.start()

    def subscribe(self, topics: list[str]) -> None:
        if not topics:
            self.consumer.unsubscribe()
            return
        self.consumer.subscribe(topics, listener=Listener(self))

    def poll(self) -> list[tuple[int, int, str]]:
        polled = self.runner.run(self.consumer.getmany(timeout_ms=50))
        return [
            (record.partition, record.offset, record.value.decode())
            for records in polled.values()
            for record in records
        ]

    def commit(self, positions: list[tuple[int, int]]) -> None:
        topic = self.settings.topic
        self.runner.run(self.consumer.commit({TopicPartition(topic, partition): at for partition, at in positions}))

    def seek(self, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(self.settings.topic, partition), offset)

    def leave(self) -> None:
        self.runner.run(self.consumer.stop())

    def produce(self, records: list[tuple[int, str]]) -> list[int]:
        return self.runner.run(self.send(records))

    async def send(self, records: list[tuple[int, str]]) -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.settings.bootstrap,
            client_id=self.settings.client_id,
            acks="all",
            enable_idempotence=True,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(self.settings.topic, value.encode(), partition=partition)
                for partition, value in records
            ]
            return [record.offset for record in await asyncio.gather(*sent)]
        finally:
            await producer.stop()


if __name__ == "__main__":
    serve(AiokafkaMember)
