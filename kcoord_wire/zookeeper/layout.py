"""The nodes of the old consumers in ZooKeeper: the paths, and what is in them.

Sources: "the 0.8 consumer-coordinator draft", section 4 "Paths Stored in ZooKeeper", and the layout of Kafka 0.7, which
it keeps: a broker's partitions of a topic are a node with their number, and a partition is named ``BROKER-NUMBER``.

    /brokers/ids/[broker]                             host and port, ephemeral
    /brokers/topics/[topic]/[broker]                  number of the topic's partitions at that broker
    /consumers/coordinator                            the coordinator's broker id, ephemeral
    /consumers/coordinator_epoch                      number of elections; every write checks its version
    /consumers/[group]/owners/[topic]/[partition]     the consumer thread that owns it, persistent
    /consumers/[group]/offsets/[topic]/[partition]    the committed offset
"""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = [
    "BROKER_IDS",
    "BROKER_TOPICS",
    "CONSUMERS",
    "COORDINATOR",
    "COORDINATOR_EPOCH",
    "ROOTS",
    "broker_path",
    "broker_record",
    "offset_path",
    "owner_path",
    "parse_broker",
    "topic_path",
]

BROKER_IDS: Final = "/brokers/ids"
BROKER_TOPICS: Final = "/brokers/topics"
CONSUMERS: Final = "/consumers"
COORDINATOR: Final = "/consumers/coordinator"
COORDINATOR_EPOCH: Final = "/consumers/coordinator_epoch"
ROOTS: Final = ("/brokers", BROKER_IDS, BROKER_TOPICS, CONSUMERS)
"""The nodes that have to exist before anything else, parents first; COORDINATOR_EPOCH is created with ``0``."""


def broker_path(broker_id: int) -> str:
    """Return the path of a broker's registration."""
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    """Return the path of a topic; its children are the brokers that have partitions of it."""
    return f"{BROKER_TOPICS}/{topic}"


def owner_path(group: str, topic: str, partition: str) -> str:
    """Return the path of a partition's owner."""
    return f"{CONSUMERS}/{group}/owners/{topic}/{partition}"


def offset_path(group: str, topic: str, partition: str) -> str:
    """Return the path of a partition's committed offset."""
    return f"{CONSUMERS}/{group}/offsets/{topic}/{partition}"


def broker_record(host: str, port: int) -> bytes:
    """Return a broker's registration, in the form of Kafka 0.8: JSON with ``host`` and ``port``."""
    return json.dumps({"version": 1, "host": host, "port": port}).encode()


def parse_broker(data: bytes) -> tuple[str, int]:
    """Return host and port of a broker's registration.

    :raises ValueError: it is not one
    """
    value: Any = json.loads(data)
    if not isinstance(value, dict) or not isinstance(value.get("host"), str) or not isinstance(value.get("port"), int):
        raise ValueError(f"not a broker's registration: {data!r}")
    return value["host"], value["port"]
