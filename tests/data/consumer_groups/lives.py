"""Real consumers (confluent-kafka, that is librdkafka) as processes that can be told, awaited and killed.

    python -m tests.data.consumer_groups.lives '{"bootstrap.servers": ...}'    # a consumer, told by its input

Every wait has a bound; every process is killed at the end of its block.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0  # seconds, for a machine that is busy with other things

Owned = set[tuple[str, int]]


class Consumer:
    """One consumer process, killed at the end of its block.

    :param options: of librdkafka
    :ivar owned: topic and partition of what it holds, as its last rebalance callback told
    """

    def __init__(self, topics: Sequence[str], **options: Any) -> None:
        self.name = options["client_id"]
        self.owned: Owned = set()
        self._news = threading.Condition()
        named = {key.replace("_", "."): value for key, value in options.items()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.data.consumer_groups.lives", json.dumps(named)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.subscribe(topics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to other topics."""
        self._tell({"subscribe": list(topics)})

    def leave(self) -> None:
        """Close the consumer in good order and wait for the end of its process."""
        self._tell({"leave": True})
        self._process.wait(PATIENCE)

    def kill(self) -> None:
        """SIGKILL: nothing of it is sent to anyone."""
        self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE)
        for pipe in self._process.stdin, self._process.stdout:
            assert pipe is not None
            pipe.close()

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds; it is looked at each time this consumer's partitions change, and each second."""
        end = time.monotonic() + PATIENCE
        with self._news:
            while not holds():
                assert time.monotonic() < end, f"{self.name}, who owns {sorted(self.owned)}, has waited for: {what}"
                self._news.wait(0.1)

    def _tell(self, command: dict[str, Any]) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.owned = {(topic, partition) for topic, partition in json.loads(line)}
                self._news.notify_all()


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
