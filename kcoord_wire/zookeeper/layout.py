"""The nodes of the old consumers in ZooKeeper: the paths, and what is in them.

Sources: "the 0.8 consumer-coordinator draft", section 4 "Paths Stored in ZooKeeper", and the layout of Kafka 0.7, which
it keeps: a broker's partitions of a topic are a node with their number, and a partition is named ``BROKER-NUMBER``.

    /brokers/ids/[broker]                             host and port, ephemeral
    /brokers/topics/[topic]/[broker]                  number of the topic's partitions at that broker
    /consumers/coordinator                            the coordinator's broker id, ephemeral
    /consumers/coordinator_epoch                      number of elections; every write checks its version
    /consumers/[group]                                JSON of this project: what a new coordinator has to know (below)
    /consumers/[group]/owners/[topic]/[partition]     the consumer thread that owns it, persistent
    /consumers/[group]/offsets/[topic]/[partition]    the committed offset
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

BROKER_IDS: Final = "/brokers/ids"
BROKER_TOPICS: Final = "/brokers/topics"
CONSUMERS: Final = "/consumers"
COORDINATOR: Final = "/consumers/coordinator"
COORDINATOR_EPOCH: Final = "/consumers/coordinator_epoch"
LONGEST_NAME: Final = 255
ROOTS: Final = ("/brokers", BROKER_IDS, BROKER_TOPICS, CONSUMERS)
"""The nodes that have to exist before anything else, parents first; COORDINATOR_EPOCH is created with ``0``."""


def broker_path(broker_id: int) -> str:
    """Return the path of a broker's registration."""
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    """Return the path of a topic; its children are the brokers that have partitions of it."""
    return f"{BROKER_TOPICS}/{topic}"


def group_path(group: str) -> str:
    """Return the path of a group."""
    return f"{CONSUMERS}/{group}"


def owner_path(group: str, topic: str, partition: str) -> str:
    """Return the path of a partition's owner."""
    return f"{CONSUMERS}/{group}/owners/{topic}/{partition}"


def offset_path(group: str, topic: str, partition: str) -> str:
    """Return the path of a partition's committed offset."""
    return f"{CONSUMERS}/{group}/offsets/{topic}/{partition}"


def is_node_name(name: str) -> bool:
    """Whether a group or a consumer can have this name in ZooKeeper: no path, no control character, not too long, and
    not the name of another node of this layout.

    Source: "ZooKeeper Programmer's Guide", section "The ZooKeeper Data Model".
    """
    if not 0 < len(name) <= LONGEST_NAME or name in (".", "..", "zookeeper", "coordinator", "coordinator_epoch"):
        return False
    return all(character.isprintable() and character != "/" for character in name)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """What the draft's layout does not have, but a coordinator that takes over needs; the data of the group's node.

    :ivar session_timeout_ms: the longest of the consumers that may have partitions: so long they may fetch without
        hearing from a coordinator
    :ivar is_starting: consumers may have been started with partitions that are not yet in ``owners``
    """

    session_timeout_ms: int = 0
    is_starting: bool = False


def format_group(record: GroupRecord) -> bytes:
    """Return the data of a group's node."""
    return json.dumps({"session_timeout_ms": record.session_timeout_ms, "is_starting": record.is_starting}).encode()


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object in a node's data.

    :param what: it should be, for the error
    :raises ValueError: there is something else
    """
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"not {what}: {data[:200]!r}")
    return value


def parse_group(data: bytes) -> GroupRecord:
    """Return the record in a group's node; the default for a group of 0.7, which has none.

    :raises ValueError: there is something else
    """
    if not data:
        return GroupRecord()
    value = parse_object(data, "a group's record")
    if not isinstance(value.get("session_timeout_ms"), int):
        raise ValueError(f"not a group's record: {data!r}")
    return GroupRecord(value["session_timeout_ms"], bool(value.get("is_starting")))


def broker_record(host: str, port: int) -> bytes:
    """Return a broker's registration, in the form of Kafka 0.8: JSON with ``host`` and ``port``."""
    return json.dumps({"version": 1, "host": host, "port": port}).encode()


def parse_broker(data: bytes) -> tuple[str, int]:
    """Return host and port of a broker's registration.

    :raises ValueError: it is not one
    """
    value = parse_object(data, "a broker's registration")
    if not isinstance(value.get("host"), str) or not isinstance(value.get("port"), int):
        raise ValueError(f"not a broker's registration: {data!r}")
    return value["host"], value["port"]
