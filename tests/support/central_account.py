"""Consumers of a group as processes, and what they have printed: assignments, and how often each record has come."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from tests.support.central_processes import Process


class ConsumerProcess(Process):
    """``kcoord central consume`` with ``--format json``.

    :param bootstrap: brokers, with commas
    :param options: further ones; what it consumes among them
    """

    def __init__(self, bootstrap: str, group: str, session_ms: int, *options: str) -> None:
        common = ["--kafka", bootstrap, "--group", group, "--session-timeout-ms", str(session_ms), "--format", "json"]
        super().__init__("central", "consume", *common, *options)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return what it has printed: ``record`` or ``assigned``."""
        lines = self.out.split("\n")[:-1]  # of the last one a part may be there
        return [event for event in map(json.loads, lines) if event["type"] == kind]

    @property
    def assignments(self) -> list[list[str]]:
        """Each assignment, as TOPIC/PARTITION."""
        return [event["partitions"] for event in self.events("assigned")]

    @property
    def owned(self) -> list[str]:
        """The last assignment."""
        return (self.assignments or [[]])[-1]


class Account:
    """The consumers of one group.

    :ivar consumers: as they were started
    """

    def __init__(self) -> None:
        self.consumers: list[ConsumerProcess] = []

    def delivered(self) -> Counter[tuple[str, int]]:
        """TOPIC/PARTITION and offset of each record, and how often it has come."""
        return Counter(
            (f"{record['topic']}/{record['partition']}", record["offset"])
            for consumer in self.consumers
            for record in consumer.events("record")
        )

    def ends(self) -> dict[str, int]:
        """The offset after the last record that has come, by partition."""
        return _ends(self.delivered())

    def missing(self) -> list[tuple[str, int]]:
        """Records before the last one of their partition that have not come."""
        delivered = self.delivered()
        every = ((name, offset) for name, end in _ends(delivered).items() for offset in range(end))
        return sorted(record for record in every if record not in delivered)


def _ends(delivered: Iterable[tuple[str, int]]) -> dict[str, int]:
    ends: dict[str, int] = defaultdict(int)
    for name, offset in delivered:
        ends[name] = max(ends[name], offset + 1)
    return ends
