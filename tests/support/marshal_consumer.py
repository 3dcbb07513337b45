"""A consumer as a process: it writes what it has processed to a topic, and then acknowledges it.

    python -m tests.support.marshal_consumer '{"brokers": ..., "output": ..., "group_id": ..., "client_id": ..., ...}'

A record of the output is a JSON array, `marshal_judge.Processed`. It is there before its record is acknowledged, so a
record that was acknowledged and is not in the output was not processed. SIGTERM releases everything.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any

from confluent_kafka import Producer

from kcoord_wire.marshal.client import MarshalConsumer
from kcoord_wire.marshal.kafka_log import KafkaLog
from kcoord_wire.marshal.kafka_topics import KafkaTopics
from kcoord_wire.marshal.member_events import Delivery
from kcoord_wire.marshal.world_state import Rules


def main(settings: dict[str, Any]) -> None:
    brokers, output, group_id = settings.pop("brokers"), settings.pop("output"), settings["group_id"]
    settings["delivery"] = Delivery(settings["delivery"])
    settings["rules"] = Rules(settings["rules"])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 0})
    consumer = MarshalConsumer(KafkaLog(brokers), KafkaTopics(brokers, group_id, settings["topics"]), **settings)
    signal.signal(signal.SIGTERM, lambda number, frame: consumer.stop())
    with consumer:
        for record in consumer:
            handed_ms = consumer._host.polled_at  # the clock's reading with which it was handed out
            row = (settings["client_id"], record.token, record.partition, record.offset, handed_ms)
            producer.produce(output, value=json.dumps(row), partition=0)
            producer.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
