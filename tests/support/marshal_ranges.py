"""Two `kcoord marshal consume --ranges` processes on a broker, of which one is killed while it holds ranges."""

from __future__ import annotations

import json
import time
from typing import Any

from confluent_kafka import Producer

from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.hosting import LogReader
from kcoord_wire.marshal.kafka_log import KafkaLog
from kcoord_wire.marshal.kafka_topics import KafkaPositions
from kcoord_wire.messages.marshal import ClaimingRange, Heartbeat
from tests.support.central_processes import SECONDS, Process

PARTITIONS = 2
SIZE = 20


class RangeGroup:
    """The group, its input, and what its consumers have printed."""

    def __init__(self, brokers: str, topic: str, interval_s: int) -> None:
        self.brokers = brokers
        self.topic = topic
        self._interval_s = interval_s
        self._producer = Producer({"bootstrap.servers": brokers})
        self._produced = 0

    def start(self, client: str) -> Process:
        common = ("--kafka", self.brokers, "--group", f"{self.topic}.group", "--topics", self.topic)
        ranges = ("--ranges", "--range-size", str(SIZE), "--heartbeat-interval", str(self._interval_s))
        return Process("marshal", "consume", *common, *ranges, "--client-id", client, "--format", "json")

    def produce(self, each: int) -> None:
        """Append so many records to each partition."""
        for number in range(each * PARTITIONS):
            self._producer.produce(self.topic, value=b"v", partition=number % PARTITIONS)
        assert self._producer.flush(SECONDS) == 0
        self._produced += each

    def wait_until_all_are_read(self, *consumers: Process) -> None:
        """Wait until consumers have printed every record among them."""
        wanted = {(partition, offset) for partition in range(PARTITIONS) for offset in range(self._produced)}
        until = time.monotonic() + SECONDS
        while missing := wanted - {place for each in consumers for place in records(each)}:
            logs = "\n".join(each.log[-2000:] for each in consumers)
            assert time.monotonic() < until, f"{len(missing)} are missing, {sorted(missing)[:10]}\n{logs}"
            time.sleep(0.05)

    def claims(self) -> list[ClaimingRange]:
        """Return the claims in the log; no member claims a partition."""
        log = KafkaLog(self.brokers)
        try:
            messages = [entry.message for entry in LogReader(log, []).entries()]
        finally:
            log.close()
        of_topic = [each for each in messages if getattr(each, "topic", "") == self.topic]
        assert not any(isinstance(each, Heartbeat) for each in of_topic)
        return [each for each in of_topic if isinstance(each, ClaimingRange)]

    def committed(self) -> list[int | None]:
        """Return the committed offsets of the partitions."""
        places = [TopicPartition(self.topic, partition) for partition in range(PARTITIONS)]
        found = KafkaPositions(self.brokers).committed(f"{self.topic}.group", places)
        return [found.get(place) for place in places]

    @property
    def produced(self) -> int:
        """Records of each partition."""
        return self._produced


def records(consumer: Process) -> dict[tuple[int, int], int]:
    """Return what a consumer has printed: partition and offset to token."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in consumer.out.splitlines() if line.endswith("}")]
    return {(each["partition"], each["offset"]): each["token"] for each in lines if each["type"] == "record"}


def check_takeover(brokers: str, topic: str, interval_s: int) -> None:
    """Kill one of two consumers while it holds ranges; the other one takes them over, and no record is lost."""
    group = RangeGroup(brokers, topic, interval_s)
    with group.start("a") as killed, group.start("b") as other:
        for each in (killed, other):
            each.wait_for('"gained"')
        group.produce(10 * SIZE)
        group.wait_until_all_are_read(killed, other)
        assert all(map(records, (killed, other))), "both take part"
        until = time.monotonic() + SECONDS
        while not any(each.client_id == "a" and each.end_offset > group.produced for each in group.claims()):
            assert time.monotonic() < until, "the one to be killed never claims a range in advance"
            group.produce(SIZE)  # then the next ones are claimed, by either
            group.wait_until_all_are_read(killed, other)
        killed.kill()
        of_killed = records(killed)
        group.produce(4 * SIZE)  # among them those of ranges that the killed one has claimed in advance
        group.wait_until_all_are_read(killed, other)
        twice = of_killed.keys() & records(other).keys()
        assert len(twice) <= 2 * SIZE * PARTITIONS, "only ranges come again whose end was not in the log"
        assert all(records(other)[place] > of_killed[place] for place in twice), "tokens grow"
        claims = group.claims()
        spans = {who: [each for each in claims if each.client_id == who] for who in "ab"}
        taken_over = [
            (one.partition, other_one.first_offset)
            for one in spans["a"]
            for other_one in spans["b"]
            if one.partition == other_one.partition
            and one.first_offset < other_one.end_offset
            and other_one.first_offset < one.end_offset
        ]
        assert taken_over, "the other one has claimed what the killed one held"
        assert other.end() == 0
        assert group.committed() == [group.produced] * PARTITIONS
    with group.start("c") as third:
        third.wait_for('"gained"')
        group.produce(1)
        third.wait_for('"record"')
        assert all(offset == group.produced - 1 for _, offset in records(third)), "nothing is read again"
