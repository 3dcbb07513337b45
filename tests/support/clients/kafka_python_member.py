"""A member by kafka-python. See lines.py for what it speaks."""

from __future__ import annotations

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.support.clients.lines import Member, serve, slow

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "slow-range": slow(RangePartitionAssignor),
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: KafkaPythonMember) -> None:
        self.member = member

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.member.gain(assigned)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.member.lose(revoked)


class KafkaPythonMember(Member):
    def join(self) -> None:
        options = self.settings.common(
            [ASSIGNORS[self.settings.assignor]], max_poll_interval_ms=self.settings.rebalance_timeout_ms
        )
        self.consumer = KafkaConsumer(**options)
        # A refresh of metadata that is under way when it subscribes is one without the topic, and the next one comes in
        # five minutes: a leader assigns nothing then.
        self.consumer.partitions_for_topic(self.settings.topic)
        self.subscribe([self.settings.topic])

    def subscribe(self, topics: list[str]) -> None:
        if not topics:
            self.consumer.unsubscribe()
            return
        self.consumer.subscribe(topics, listener=Listener(self))

    def poll(self) -> list[tuple[int, int, str]]:
        # kafka-python 3.0.12 drops the answer to a join that ends between two polls, and joins again: with short polls
        # on a busy machine that may happen again and again, and it sends no heartbeats meanwhile.
        return [
            (record.partition, record.offset, record.value.decode())
            for records in self.consumer.poll(timeout_ms=500).values()
            for record in records
        ]

    def commit(self, positions: list[tuple[int, int]]) -> None:
        topic = self.settings.topic
        self.consumer.commit(
            {TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1) for partition, offset in positions}
        )

    def pause(self, partitions: list[int]) -> None:
        self.consumer.pause(*(TopicPartition(self.settings.topic, partition) for partition in partitions))

    def seek(self, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(self.settings.topic, partition), offset)

    def leave(self) -> None:
        self.consumer.close()

    def produce(self, records: list[tuple[int, str]]) -> list[int]:
        bootstrap, name = self.settings.bootstrap, self.settings.client_id
        producer = KafkaProducer(bootstrap_servers=bootstrap, client_id=name, acks="all", enable_idempotence=True)
        sent = [producer.send(self.settings.topic, value.encode(), partition=partition) for partition, value in records]
        producer.flush(30)
        offsets = [future.get(30).offset for future in sent]
        producer.close()
        return offsets


if __name__ == "__main__":
    serve(KafkaPythonMember)
