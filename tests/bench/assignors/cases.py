"""What is measured: groups of several sizes, in every state that costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

PROGRAMS = ("ours", "kafka-clients 3.9.2", "kafka-clients 4.4.0", "franz-go")
SIZES = ((10_000, 100, 1_000), (2_000, 500, 2_000))  # members, topics, partitions of each topic
CURVE = tuple((members, 100, members // 10) for members in (100, 300, 1_000, 10_000))  # ten partitions a member
TINY = ((20, 5, 8),)
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")


class Measurement(NamedTuple):
    """A group and an assignor.

    :ivar size: members, topics, partitions of each topic
    :ivar state: "equal": equal subscriptions, nothing assigned yet; "odd": one of the members subscribes to a topic
        less; "join", "leave": equal subscriptions, all is assigned, then one has joined or left
    """

    assignor: str
    size: tuple[int, int, int]
    state: str

    def question(self) -> dict[str, Any]:
        """As tests/support/java/Assign.java has it."""
        change = self.state if self.state in ("join", "leave") else "none"
        return {"assignor": self.assignor, "size": self.size, "odd": self.state == "odd", "change": change}


def measurements(*, quick: bool) -> Iterator[Measurement]:
    """The table, size by size, then the curve."""
    seen = set()
    for size in TINY if quick else SIZES:
        for state in ("equal", "odd", "join", "leave"):
            for assignor in ASSIGNORS if state in ("equal", "odd") else ASSIGNORS[2:]:
                seen.add(measurement := Measurement(assignor, size, state))
                yield measurement
    for size in TINY if quick else CURVE:
        for assignor in ("range", "cooperative-sticky"):
            if (measurement := Measurement(assignor, size, "equal")) not in seen:
                yield measurement
