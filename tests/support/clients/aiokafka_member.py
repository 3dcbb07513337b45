"""A member by aiokafka. See lines.py for what it speaks.

Its event loop runs while a command is served and while it polls, and it polls all the time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.support.clients.lines import Member, Settings, serve


class SlowRange(RangePartitionAssignor):  # type: ignore[misc]
    """An assignor that asks another service first, which takes its time."""

    @classmethod
    def assign(cls, *arguments: Any) -> Any:
        time.sleep(5)
        return super().assign(*arguments)


ASSIGNORS = {
    "range": RangePartitionAssignor,
    "slow-range": SlowRange,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: AiokafkaMember) -> None:
        self.member = member

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.member.own(self.member.owned | {partition.partition for partition in assigned})

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.member.own(self.member.owned - {partition.partition for partition in revoked})


class AiokafkaMember(Member):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.runner = asyncio.Runner()

    def join(self) -> None:
        self.runner.run(self.start())

    async def start(self) -> None:
        options = {
            "bootstrap_servers": self.settings.bootstrap,
            "client_id": self.settings.client_id,
            "group_id": self.settings.group,
            "group_instance_id": self.settings.instance_id,
            "partition_assignment_strategy": [ASSIGNORS[self.settings.assignor]],
            "session_timeout_ms": self.settings.session_timeout_ms,
            "heartbeat_interval_ms": self.settings.heartbeat_interval_ms,
            "rebalance_timeout_ms": self.settings.rebalance_timeout_ms,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        self.consumer = AIOKafkaConsumer(**self.settings.over(options))
        self.subscribe([self.settings.topic])
        await self.consumer.start()

    def subscribe(self, topics: list[str]) -> None:
        if not topics:
            self.consumer.unsubscribe()
            return
        self.consumer.subscribe(topics, listener=Listener(self))

    def stall(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

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
