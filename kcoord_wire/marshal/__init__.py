"""Marshal: consumers that coordinate through a topic of Kafka, without a coordinator.

    with MarshalConsumer(log, data, group_id="billing", client_id="b-1", topics=["orders"]) as consumer:
        for record in consumer:
            print(record.topic, record.partition, record.offset, record.value, record.token)

To change what the log means: `world_state`, and `ranges` for claims of offsets; check with tests.marshal.check_world.
To change how a member claims and hands over: `claiming` (the eleven steps); holds, commits and releases: `holding`;
both for ranges: `range_claiming`; what arrives: `member`. Its application's side: `client`, `inbox`. How a group is
paused or set: `admin`. What `kcoord marshal status` says: `status`, `observer`. Another log or other data topics:
`log.Log`, `inbox.DataTopics`, which have a contract each in tests/marshal. A law of members: `worlds.marshal`.

Sources: Marshal PROTOCOL.md, and the measured behaviour of the Go library where the document is silent or differs.

Names are imported when they are first used: the machines need Python alone, `KafkaLog` and `KafkaTopics` the extra
``kafka``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcoord_wire.lazy_names import lazy_names

if TYPE_CHECKING:
    from kcoord_wire.marshal.client import MarshalConsumer
    from kcoord_wire.marshal.inbox import DataRecord, TopicsError
    from kcoord_wire.marshal.kafka_log import KafkaLog
    from kcoord_wire.marshal.kafka_topics import KafkaTopics
    from kcoord_wire.marshal.log import LogError
    from kcoord_wire.marshal.member_events import Balance, Delivery, LossReason, RangeClaims, Reset, Tenure
    from kcoord_wire.marshal.memory import MemoryBroker, MemoryLog, MemoryTopics
    from kcoord_wire.marshal.world_state import Rules

__all__ = [
    "Balance",
    "DataRecord",
    "Delivery",
    "KafkaLog",
    "KafkaTopics",
    "LogError",
    "LossReason",
    "MarshalConsumer",
    "MemoryBroker",
    "MemoryLog",
    "MemoryTopics",
    "RangeClaims",
    "Reset",
    "Rules",
    "Tenure",
    "TopicsError",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "client": ("MarshalConsumer",),
        "member_events": ("Balance", "Delivery", "LossReason", "RangeClaims", "Reset", "Tenure"),
        "inbox": ("DataRecord", "TopicsError"),
        "kafka_log": ("KafkaLog",),
        "kafka_topics": ("KafkaTopics",),
        "log": ("LogError",),
        "memory": ("MemoryBroker", "MemoryLog", "MemoryTopics"),
        "world_state": ("Rules",),
    },
)
