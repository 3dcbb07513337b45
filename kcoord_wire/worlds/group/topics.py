"""The topics of a virtual cluster."""

from __future__ import annotations

import uuid
from collections.abc import Mapping


class VirtualTopics:
    """The topics as the coordinator's machine looks them up.

    :ivar counts: name to number of partitions
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        for topic, count in counts.items():
            if type(count) is not int or count < 1:
                raise ValueError(f"topic {topic!r} needs one partition or more, not {count!r}")
        self.counts = dict(counts)

    @property
    def changes(self) -> int:
        """Number of partitions of all topics: they are only ever added."""
        return sum(self.counts.values())

    def names(self) -> list[str]:
        """Return the names of all topics."""
        return list(self.counts)

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions; None if there is no such topic."""
        return self.counts.get(name)

    def id_of(self, name: str) -> uuid.UUID | None:
        """Return the id of a topic; None if there is no such topic."""
        return uuid.uuid5(uuid.NAMESPACE_OID, name) if name in self.counts else None

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of a topic; None if there is no such topic."""
        return next((name for name in self.counts if self.id_of(name) == topic_id), None)
