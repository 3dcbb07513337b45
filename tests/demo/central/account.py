"""What the consumers of the demonstration have printed: which records have come, how often, and which have not."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

from tests.support.central_processes import Process


class ConsumerProcess(Process):
    """``kcoord central consume``."""

    def __init__(self, name: str, bootstrap: str, topic: str, *, session_ms: int) -> None:
        options = ["--kafka", bootstrap, "--group", Account.GROUP, "--consumer-id", name, "--topics", topic]
        options += ["--session-timeout-ms", str(session_ms), "--format", "json"]
        super().__init__("central", "consume", *options)
        self.name = name


class Account:
    """The consumers of one group.

    :ivar consumers: as they were started
    """

    GROUP = "demo"

    def __init__(self) -> None:
        self.consumers: list[ConsumerProcess] = []

    def add(self, consumer: ConsumerProcess) -> None:
        self.consumers.append(consumer)

    def delivered(self) -> Counter[tuple[str, int]]:
        """Partition and offset of each record, and how often it has come."""
        found: Counter[tuple[str, int]] = Counter()
        for consumer in self.consumers:
            for line in consumer.out.splitlines(keepends=True):
                if line.endswith("\n") and (record := json.loads(line))["type"] == "record":
                    found[record["partition"], record["offset"]] += 1
        return found

    def ends(self) -> dict[str, int]:
        """The offset after the last record that has come, by partition."""
        ends: dict[str, int] = defaultdict(int)
        for name, offset in self.delivered():
            ends[name] = max(ends[name], offset + 1)
        return ends

    def missing(self) -> list[tuple[str, int]]:
        """Records before the last one of their partition that have not come."""
        delivered = self.delivered()
        every = ((name, offset) for name, end in self.ends().items() for offset in range(end))
        return sorted(record for record in every if record not in delivered)
