"""Marshal: consumers that coordinate through a topic of Kafka, without a coordinator.

    with MarshalConsumer(log, data, group_id="billing", client_id="b-1", topics=["orders"]) as consumer:
        for record in consumer:
            print(record.topic, record.partition, record.offset, record.value, record.token)

Sources: Marshal PROTOCOL.md, and the measured behaviour of the Go library where the document is silent or differs.

Names are imported when they are first used: the machines need Python alone, `KafkaLog` and `KafkaTopics` the extra
``kafka``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcoord_wire.marshal.client import MarshalConsumer
    from kcoord_wire.marshal.events import Balance, Delivery, Tenure, Why
    from kcoord_wire.marshal.kafka_log import KafkaLog
    from kcoord_wire.marshal.kafka_topics import KafkaTopics
    from kcoord_wire.marshal.log import LogError
    from kcoord_wire.marshal.machine import Rules
    from kcoord_wire.marshal.memory_broker import MemoryBroker
    from kcoord_wire.marshal.memory_log import MemoryLog
    from kcoord_wire.marshal.memory_topics import MemoryTopics
    from kcoord_wire.marshal.topics import DataRecord, TopicsError

__all__ = [
    "Balance",
    "DataRecord",
    "Delivery",
    "KafkaLog",
    "KafkaTopics",
    "LogError",
    "MarshalConsumer",
    "MemoryBroker",
    "MemoryLog",
    "MemoryTopics",
    "Rules",
    "Tenure",
    "TopicsError",
    "Why",
]

_HOME = {
    "Balance": "events",
    "DataRecord": "topics",
    "Delivery": "events",
    "KafkaLog": "kafka_log",
    "KafkaTopics": "kafka_topics",
    "LogError": "log",
    "MarshalConsumer": "client",
    "MemoryBroker": "memory_broker",
    "MemoryLog": "memory_log",
    "MemoryTopics": "memory_topics",
    "Rules": "machine",
    "Tenure": "events",
    "TopicsError": "topics",
    "Why": "events",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
