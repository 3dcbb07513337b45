"""The nodes of the rewrite in ZooKeeper: the paths, and what is in them.

    /controller                         the controller, ephemeral (`zookeeper.leadership`)
    /controller_epoch                   number of elections; every write of the controller checks its version
    /coordination/shards                JSON: the broker that coordinates each shard, null for none
    /coordination/shards/[n]            number of takeovers; every write for a group of the shard checks its version
    /coordination/shards/[n]/[group]    JSON: the group's metadata, a `GroupMetadata`
    /coordination/brokers/[broker]      a coordinating broker, ephemeral; /coordination/terms/[broker] is its epoch
    /brokers/topics/[topic]             JSON: replicas by partition, as Kafka 0.8 writes it
    /consumers/[group]/offsets/...      the committed offsets, where the old consumers have them (`zookeeper.layout`)

"Kafka 0.9 Consumer Rewrite Design" says what is kept in ZooKeeper, not where. A shard is what the document calls a
subset of the groups, or a partition of the offsets topic.

Laws:

* What `parse_` reads is checked: anything else than what is written here is a ValueError.
* A name that is accepted (`is_legal_name`) is one node of a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcoord_wire.zookeeper.layout import parse_json

CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
COORDINATION: Final = "/coordination"
SHARDS: Final = f"{COORDINATION}/shards"
BROKER_PRESENCE: Final = f"{COORDINATION}/brokers"
BROKER_TERMS: Final = f"{COORDINATION}/terms"
LARGEST_GROUP: Final = 800_000
"""Bytes of a group's metadata: ZooKeeper closes the connection of a client that sends 1 MB (jute.maxbuffer)."""
STRATEGIES: Final = ("range", "roundrobin")
"""By which a coordinator can assign."""

_LEGAL: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
_INT32: Final = 1 << 32
_CONSUMER_BYTES: Final = 64  # quotes, braces, names of fields, the timeout
_TOPIC_BYTES: Final = 20  # quotes, commas, the count


def is_legal_name(name: str) -> bool:
    """Whether Kafka 0.8 allows it as a group id or topic name: up to 249 of ``A-Z a-z 0-9 . _ -``, not ``.`` or ``..``.

    Source: kafka.common.Topic, and kafka.consumer.ConsumerConfig.validateGroupId, which has the same characters.
    """
    return _LEGAL.fullmatch(name) is not None


def shard_path(shard: int) -> str:
    """Return the path of a shard's epoch; its children are the groups."""
    return f"{SHARDS}/{shard}"


def metadata_path(shard: int, group: str) -> str:
    """Return the path of a group's metadata."""
    return f"{SHARDS}/{shard}/{group}"


def parse_owners(data: bytes) -> list[int | None]:
    """Return the coordinating broker of each shard.

    :raises ValueError: it is no such list
    """
    owners = parse_json(data)
    if not isinstance(owners, list) or not owners or not all(owner is None or _is_count(owner) for owner in owners):
        raise ValueError(f"not the coordinators of shards: {data[:200]!r}")
    return owners


def topic_record(replicas: Sequence[Sequence[int]]) -> bytes:
    """Return a topic's node: the brokers of each partition, the preferred leader first."""
    partitions = {str(number): list(brokers) for number, brokers in enumerate(replicas)}
    return json.dumps({"version": 1, "partitions": partitions}).encode()


def parse_topic(data: bytes) -> list[list[int]]:
    """Return the brokers of each partition of a topic.

    :raises ValueError: it is no topic, or a number is missing between its partitions
    """
    value = parse_json(data)
    partitions = value.get("partitions") if isinstance(value, dict) else None
    if not isinstance(partitions, dict) or set(partitions) != {str(number) for number in range(len(partitions))}:
        raise ValueError(f"not a topic: {data[:200]!r}")
    replicas = [partitions[str(number)] for number in range(len(partitions))]
    if not all(isinstance(brokers, list) and all(map(_is_count, brokers)) for brokers in replicas):
        raise ValueError(f"not a topic's replicas: {data[:200]!r}")
    return replicas


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A consumer of a group, as ZooKeeper has it."""

    session_timeout_ms: int
    topics: tuple[str, ...]

    def size(self, consumer_id: str) -> int:
        """Return at least the bytes that it adds to the group's metadata: names are ASCII, and each topic is in the
        partition counts once more."""
        return _CONSUMER_BYTES + len(consumer_id) + sum(2 * len(topic) + _TOPIC_BYTES for topic in self.topics)


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group's metadata: "the group's consumer ids, the generation id and the subscribed list of topics".

    :ivar strategy: by which partitions are assigned; empty for a group without consumers
    :ivar partitions: number of partitions of each topic that the generation's assignment was computed from, so that a
        coordinator that takes over finds changes it did not see, and can compute the assignment again
    """

    generation: int
    strategy: str = ""
    consumers: Mapping[str, ConsumerRecord] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the data of its node."""
        consumers = {
            consumer_id: {"session_timeout_ms": consumer.session_timeout_ms, "topics": list(consumer.topics)}
            for consumer_id, consumer in self.consumers.items()
        }
        value = {"version": 1, "generation": self.generation, "strategy": self.strategy, "consumers": consumers}
        return json.dumps(value | {"partitions": dict(self.partitions)}).encode()


def parse_metadata(data: bytes) -> GroupMetadata:
    """Return a group's metadata.

    :raises ValueError: it is none
    """
    try:
        value = parse_json(data)
        record = GroupMetadata(
            value["generation"],
            value["strategy"],
            {
                consumer_id: ConsumerRecord(consumer["session_timeout_ms"], tuple(consumer["topics"]))
                for consumer_id, consumer in value["consumers"].items()
            },
            dict(value["partitions"]),
        )
        topics = [topic for consumer in record.consumers.values() for topic in consumer.topics]
        are_legal = all(map(is_legal_name, topics))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a group's metadata: {data[:200]!r}") from error
    numbers = [record.generation, *(consumer.session_timeout_ms for consumer in record.consumers.values())]
    are_counts = all(map(_is_count, [*numbers, *record.partitions.values()]))
    if not (are_legal and are_counts and (record.strategy in STRATEGIES or not record.consumers)):
        raise ValueError(f"not a group's metadata: {data[:200]!r}")
    return record


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _INT32 // 2
