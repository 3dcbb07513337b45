"""Real consumers (confluent-kafka, that is librdkafka) as processes that can be told, awaited and killed.

    python -m tests.data.consumer_groups.lives '{"bootstrap.servers": ...}'    # a consumer, told by its input

Every wait has a bound; every process is killed at the end of its block.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.clients.heard import PATIENCE, Heard
from tests.support.processes import ROOT

Owned = set[tuple[str, int]]


class Consumer(Heard):
    """One consumer process, killed at the end of its block.

    :param options: of librdkafka
    :ivar owned: topic and partition of what it holds, as its last rebalance callback told
    """

    def __init__(self, topics: Sequence[str], **options: Any) -> None:
        self.name = options["client_id"]
        self.owned: Owned = set()
        named = {key.replace("_", "."): value for key, value in options.items()}
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.data.consumer_groups.lives", json.dumps(named)]
        super().__init__(command, environment=environment)
        self.subscribe(topics)

    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to other topics."""
        self.tell(json.dumps({"subscribe": list(topics)}))

    def leave(self) -> None:
        """Close the consumer in good order and wait for the end of its process."""
        self.tell(json.dumps({"leave": True}))
        self.process.wait(PATIENCE)

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds; it is looked at each time this consumer's partitions change, and each second."""
        end = time.monotonic() + PATIENCE
        with self._news:
            while not holds():
                assert time.monotonic() < end, f"{self.name}, who owns {sorted(self.owned)}, has waited for: {what}"
                self._news.wait(0.1)

    def heed(self, event: Any) -> None:
        self.owned = {(topic, partition) for topic, partition in event}


def all_owned(consumers: Sequence[Consumer], partitions: int) -> None:
    """Wait until these hold so many partitions together, each of them some, and none of them twice."""

    def holds() -> bool:
        held = [item for consumer in consumers for item in consumer.owned]
        return len(held) == len(set(held)) == partitions and all(consumer.owned for consumer in consumers)

    consumers[0].wait(holds, f"{len(consumers)} consumers to share {partitions} partitions")


def main(options: dict[str, Any]) -> None:
    """Be a consumer until told to leave, or until the standard input ends."""
    import confluent_kafka

    owned: Owned = set()

    def tell() -> None:
        print(json.dumps(sorted(owned)), flush=True)

    def assigned(consumer: Any, partitions: Sequence[Any]) -> None:
        owned.update((item.topic, item.partition) for item in partitions)
        tell()

    def revoked(consumer: Any, partitions: Sequence[Any]) -> None:
        owned.difference_update((item.topic, item.partition) for item in partitions)
        tell()

    commands: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            commands.put(json.loads(line))
        commands.put(None)

    threading.Thread(target=read, daemon=True).start()
    consumer = confluent_kafka.Consumer(options)
    while True:
        consumer.consume(100, 0.1)
        if commands.empty():
            continue
        command = commands.get()
        if command is None:
            os._exit(1)
        if "leave" in command:
            break
        consumer.subscribe(command["subscribe"], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    consumer.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
