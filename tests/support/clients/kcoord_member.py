"""A member by this package's own consumer. See lines.py for what it speaks.

Its event loop runs while a command is served and while it polls, and it polls all the time.
"""

from __future__ import annotations

import asyncio

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer, ConsumerSettings, RebalanceListener
from kcoord_wire.consumer.connection import ConnectionSettings
from tests.support.clients.lines import Member, Settings, serve
from tests.support.clients.producing import produce


class Listener(RebalanceListener):
    def __init__(self, member: KcoordMember) -> None:
        self.member = member

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.member.own(self.member.owned | {partition.partition for partition in partitions})

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.member.own(self.member.owned - {partition.partition for partition in partitions})


class KcoordMember(Member):
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
            "partition_assignment_strategy": self.settings.assignor.split(","),
            "session_timeout_ms": self.settings.session_timeout_ms,
            "heartbeat_interval_ms": self.settings.heartbeat_interval_ms,
            "max_poll_interval_ms": self.settings.rebalance_timeout_ms,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        self.consumer = Consumer(ConsumerSettings(**self.settings.over(options)))
        self.consumer.subscribe([self.settings.topic], Listener(self))

    def subscribe(self, topics: list[str]) -> None:
        self.runner.run(self.change(topics))

    async def change(self, topics: list[str]) -> None:
        if topics:
            self.consumer.subscribe(topics)
        else:
            await self.consumer.unsubscribe()

    def stall(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    def rebalance(self, reason: str) -> None:
        self.consumer.enforce_rebalance(reason)

    def poll(self) -> list[tuple[int, int, str]]:
        if not self.consumer.subscription:
            self.stall(0.05)
            return []
        polled = self.runner.run(self.consumer.poll(50))
        return [(record.partition, record.offset, (record.value or b"").decode()) for record in polled]

    def commit(self, positions: list[tuple[int, int]]) -> None:
        topic = self.settings.topic
        self.runner.run(self.consumer.commit({TopicPartition(topic, partition): at for partition, at in positions}))

    def leave(self) -> None:
        self.runner.run(self.consumer.close())

    def produce(self, records: list[tuple[int, str]]) -> list[int]:
        settings = ConnectionSettings(client_id=self.settings.client_id)
        encoded = [(partition, value.encode()) for partition, value in records]
        return self.runner.run(produce(self.settings.bootstrap, self.settings.topic, encoded, settings))


if __name__ == "__main__":
    serve(KcoordMember)
