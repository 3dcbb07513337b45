"""A member by this package's own consumer. See lines.py for what it speaks."""

from __future__ import annotations

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer, ConsumerSettings, RebalanceListener
from kcoord_wire.consumer.connection import ConnectionSettings
from tests.support.clients.lines import AsyncMember, serve
from tests.support.clients.producing import produce


class Listener(RebalanceListener):
    def __init__(self, member: KcoordMember) -> None:
        self.member = member

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.member.gain(partitions)

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.member.lose(partitions)


class KcoordMember(AsyncMember):
    async def start(self) -> None:
        options = self.settings.common(
            self.settings.assignor.split(","), max_poll_interval_ms=self.settings.rebalance_timeout_ms
        )
        self.consumer = Consumer(ConsumerSettings(**options))
        self.consumer.subscribe([self.settings.topic], Listener(self))

    def subscribe(self, topics: list[str]) -> None:
        self.runner.run(self.change(topics))

    async def change(self, topics: list[str]) -> None:
        if topics:
            self.consumer.subscribe(topics)
        else:
            await self.consumer.unsubscribe()

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
