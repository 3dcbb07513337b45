"""What topics may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """What topics may cost, in bytes.

    :ivar max_message_bytes: of one batch (``max.message.bytes``)
    :ivar retention_bytes: of all partitions together, with what is needed in memory for each batch. None: 256 MiB where
        records are in memory, and no bound where they are on a disk
    :ivar max_fetch_bytes: of one answer (``fetch.max.bytes``), apart from a first batch. Less than Kafka's 55 MiB,
        because a client that does not read its answers can hold that much
    :ivar max_partitions: of all topics together, where clients create topics
    """

    max_message_bytes: int = 1_048_588
    retention_bytes: int | None = None
    max_fetch_bytes: int = 4 << 20
    max_partitions: int = 100_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not (value is None and name == "retention_bytes") and (type(value) is not int or value < 1):
                raise ValueError(f"{name} is a whole number from 1 up, not {value!r}")
