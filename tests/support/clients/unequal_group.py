"""Eleven librdkafka consumers of four topics in one process, each of one topic, with cooperative-sticky.

    python tests/support/clients/unequal_group.py BOOTSTRAP GROUP SECONDS

Prints librdkafka's version. The subscriptions are unequal, and three topics have as many members as partitions.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from confluent_kafka import Consumer, libversion

MEMBERS = {"orders": 2, "invoices": 3, "payments": 3, "refunds": 3}


def consume(bootstrap: str, group: str, topic: str) -> None:
    settings = {"partition.assignment.strategy": "cooperative-sticky", "client.id": f"of-{topic}"}
    timeouts = {"session.timeout.ms": 11_000, "heartbeat.interval.ms": 1_000}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **settings, **timeouts})
    consumer.subscribe([topic])
    while True:
        consumer.poll(0.2)


if __name__ == "__main__":
    for topic, count in MEMBERS.items():
        for _ in range(count):
            threading.Thread(target=consume, args=(*sys.argv[1:3], topic), daemon=True).start()
    time.sleep(float(sys.argv[3]))
    print(libversion()[0], flush=True)
    os._exit(0)  # a librdkafka that hangs cannot be closed
