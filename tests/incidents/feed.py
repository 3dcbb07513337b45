"""Records that come evenly while groups live, from a producer that no capture sees."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Producer

from tests.support.stage import PARTITIONS

_TICK: Final = 0.1
"""Seconds between two batches."""


class Feed:
    """Produces to a topic while the block is entered.

    :param rate: records a second, over all the partitions
    :param size: of a record, in bytes
    """

    def __init__(
        self, bootstrap: str, topic: str, rate: float, partitions: Sequence[int] = range(PARTITIONS), size: int = 40
    ) -> None:
        self._topic, self._rate, self._partitions = topic, rate, partitions
        self._value = b"." * size
        self._ended = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "client.id": "feed", "linger.ms": 5, "log_level": 0}
        self._producer = Producer(settings)  # of a broker that is away it says nothing
        self._thread = threading.Thread(target=self._produce)
        self.count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush(10)

    def _produce(self) -> None:
        due = 0.0
        while not self._ended.wait(_TICK):
            due += self._rate * _TICK
            while self.count < due:
                partition = self._partitions[self.count % len(self._partitions)]
                self._producer.produce(self._topic, self._value, partition=partition)
                self.count += 1
            self._producer.poll(0)
