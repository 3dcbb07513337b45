"""The topics that exist, by name and by id, with their partitions.

Laws:

* A topic that is deleted and created anew has another id (KIP-516): ids are made of the cluster id, the name and the
  number of topics created before.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Final

from kcoord_wire.coordinator.core.brokers import Brokers, Leaders
from kcoord_wire.coordinator.topics.batch_header import Refused
from kcoord_wire.coordinator.topics.partition_log import LEADER_EPOCH, PartitionLog
from kcoord_wire.error_codes import ErrorCode

__all__ = ["MOST_PARTITIONS", "NO_ID", "Catalog", "Topic", "check_partition_count", "is_topic_name"]

NO_ID: Final = uuid.UUID(int=0)
"""The id in requests and responses that name no topic by id."""

MOST_PARTITIONS: Final = 100_000
"""Partitions of one topic; Metadata describes them all in one answer."""

_TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")


class Topic:
    """A topic.

    :ivar name: at most 249 characters
    :ivar id: as Metadata returns it
    :ivar logs: its partitions
    :ivar leaders: who leads them
    :ivar configs: settings that differ from their defaults, by Kafka's names
    """

    __slots__ = ("configs", "id", "leaders", "logs", "name")

    def __init__(self, name: str, topic_id: uuid.UUID, leaders: Leaders, configs: Mapping[str, str]) -> None:
        self.name = name
        self.id = topic_id
        self.leaders = leaders
        self.logs = [PartitionLog() for _ in leaders.of]
        self.configs = dict(configs)


class Catalog:
    """The topics of a cluster.

    :param cluster_id: ids of topics are made of it
    :param brokers: among which the leaders of partitions are chosen
    :ivar changes: how often a topic was created, deleted or given more partitions
    """

    def __init__(self, cluster_id: str, brokers: Brokers) -> None:
        self.cluster_id = cluster_id
        self.brokers = brokers
        self.changes = 0
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._created = 0

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    @property
    def partitions(self) -> int:
        """Number of partitions of all topics together."""
        return sum(len(topic.logs) for topic in self)

    def named(self, name: str) -> Topic | None:
        """Return the topic of this name; None if it does not exist."""
        return self._by_name.get(name)

    def with_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return the topic with this id; None if it does not exist."""
        return self._by_id.get(topic_id)

    def create(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> Topic:
        """Create a topic.

        :raises ValueError: the name is not allowed or taken, or the number of partitions is not from 1 to 100,000
        :raises TypeError: the number of partitions is not an int
        """
        if not is_topic_name(name):
            raise ValueError(f"{name!r} is not a topic name")
        if name in self._by_name:
            raise ValueError(f"topic {name!r} exists already")
        check_partition_count(f"topic {name!r}", partitions)
        topic_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.cluster_id}/{name}/{self._created}")
        self._created += 1
        topic = Topic(name, topic_id, self.brokers.place(name, partitions), configs or {})
        self._by_name[name] = self._by_id[topic.id] = topic
        self.changes += 1
        return topic

    def delete(self, name: str) -> Topic:
        """Delete a topic, and return what it was.

        :raises KeyError: the topic does not exist
        """
        topic = self._by_name.pop(name)
        del self._by_id[topic.id]
        self.changes += 1
        return topic

    def add_partitions(self, name: str, count: int) -> int:
        """Give a topic `count` more partitions, and return how many it has then.

        :raises KeyError: the topic does not exist
        :raises ValueError: `count` is less than one, or the topic would have more than 100,000
        """
        topic = self._by_name[name]
        if type(count) is int and count < 1:
            raise ValueError(f"{count} partitions cannot be added")
        check_partition_count(f"topic {name!r}", len(topic.logs) + count)
        topic.logs += [PartitionLog() for _ in range(count)]
        topic.leaders.grow(count)
        self.changes += 1
        return len(topic.logs)

    def configure(self, name: str, configs: Mapping[str, str]) -> None:
        """Give a topic these configs in place of those that it had.

        :raises KeyError: the topic does not exist
        """
        self._by_name[name].configs = dict(configs)

    # ---- what requests name

    def find(self, name: str, topic_id: uuid.UUID, by_id: bool) -> Topic | ErrorCode:
        """Return the topic that a request names, or the error of each of its partitions."""
        if by_id:
            return self._by_id.get(topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        return self._by_name.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    @staticmethod
    def log(topic: Topic | ErrorCode, index: int, broker: int, leader_epoch: int = -1) -> PartitionLog:
        """Return a partition of what `find` has returned.

        :param broker: the one that is asked
        :param leader_epoch: that the client knows (KIP-320); -1 if it says none
        :raises Refused: the partition does not exist, has another leader, or another leader epoch
        """
        if isinstance(topic, ErrorCode):
            raise Refused(topic)
        if not 0 <= index < len(topic.logs):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.leaders.of[index] != broker:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader_epoch not in (-1, LEADER_EPOCH):
            newer = leader_epoch > LEADER_EPOCH
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH if newer else ErrorCode.FENCED_LEADER_EPOCH)
        return topic.logs[index]


def is_topic_name(name: str) -> bool:
    """Return whether Kafka allows a topic of this name (``Topic.java``)."""
    return _TOPIC_NAME.match(name) is not None


def check_partition_count(whose: str, partitions: int) -> None:
    """Raise ValueError or TypeError if a topic cannot have so many partitions.

    :param whose: who has them, for the error's text
    """
    if type(partitions) is not int:
        raise TypeError(f"{whose} needs a whole number of partitions, not {partitions!r}")
    if partitions < 1:
        raise ValueError(f"{whose} needs one partition or more, not {partitions}")
    if partitions > MOST_PARTITIONS:
        raise ValueError(f"{whose} may have {MOST_PARTITIONS:,} partitions, not {partitions:,}")
