"""What a Marshal consumer costs next to confluent-kafka alone, in processor time of the consuming process.

    python -m tests.bench.marshal.client

Topics are those of a coordinator of ours in another process. The second table has a consumer that holds 64 partitions
without records: heartbeats, and the looks of its thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition

from kcoord_wire.marshal import KafkaLog, KafkaTopics, MarshalConsumer
from kcoord_wire.marshal.member_events import Delivery
from tests.support.central_processes import Process

PARTITIONS = 64
VALUE = b"x" * 100
BATCH = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--idle-seconds", type=int, default=15)
    args = parser.parse_args()
    with Process("serve", "--port", "0", "--topics", f"__marshal:4,orders:{PARTITIONS},empty:{PARTITIONS}") as server:
        brokers = server.wait_for(r"127\.0\.0\.1:\d+")[0]
        fill(brokers, args.records)
        print(f"{'consumer':34} {'records/s':>10} {'CPU us/record':>14}")
        for name, run in (
            ("confluent-kafka, poll()", plain_poll),
            (f"confluent-kafka, consume({BATCH})", plain_batches),
            ("MarshalConsumer, at least once", lambda brokers, count: marshal(brokers, count, Delivery.AT_LEAST_ONCE)),
            ("MarshalConsumer, at most once", lambda brokers, count: marshal(brokers, count, Delivery.AT_MOST_ONCE)),
        ):
            wall, cpu = measured(run, brokers, args.records)
            print(f"{name:34} {args.records / wall:10,.0f} {cpu / args.records * 1e6:14.1f}")
        print(f"\nholding {PARTITIONS} partitions without records")
        print(f"{'heartbeat interval':34} {'CPU of one core':>14}")
        for interval_s in (60, 10, 2):
            print(f"{f'{interval_s} s':34} {idle(brokers, interval_s, args.idle_seconds):14.2%}")


def fill(brokers: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 20, "batch.size": 200_000})
    for number in range(records):
        while True:
            try:
                producer.produce("orders", value=VALUE, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def measured(run: Callable[[str, int], None], brokers: str, records: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    run(brokers, records)
    return time.perf_counter() - wall, time.process_time() - cpu


def assigned(brokers: str) -> Consumer:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "plain", "enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", partition, 0) for partition in range(PARTITIONS)])
    return consumer


def plain_poll(brokers: str, records: int) -> None:
    consumer, seen = assigned(brokers), 0
    while seen < records:
        message = consumer.poll(1.0)
        if message is not None and message.value() is not None:
            seen += 1
    consumer.close()


def plain_batches(brokers: str, records: int) -> None:
    consumer, seen = assigned(brokers), 0
    while seen < records:
        seen += sum(message.value() is not None for message in consumer.consume(BATCH, timeout=0.1))
    consumer.close()


def consumer_of(brokers: str, group_id: str, topic: str, interval_s: int, delivery: Delivery) -> MarshalConsumer:
    return MarshalConsumer(
        KafkaLog(brokers),
        KafkaTopics(brokers, group_id, [topic]),
        group_id=group_id,
        client_id="bench",
        topics=[topic],
        greedy=True,
        heartbeat_interval_ms=interval_s * 1000,
        delivery=delivery,
    )


def marshal(brokers: str, records: int, delivery: Delivery) -> None:
    seen = 0
    with consumer_of(brokers, f"bench.{delivery}", "orders", 60, delivery) as consumer:
        for record in consumer:
            seen += record.value is not None
            if seen == records:
                consumer.processed(record)
                break


def idle(brokers: str, interval_s: int, seconds: int) -> float:
    with consumer_of(brokers, f"idle.{interval_s}", "empty", interval_s, Delivery.AT_LEAST_ONCE) as consumer:
        while len(consumer.tenures) < PARTITIONS:
            consumer.poll(0.1)
        began = time.process_time()
        assert consumer.poll(seconds) is None
        return (time.process_time() - began) / seconds


if __name__ == "__main__":
    main()
