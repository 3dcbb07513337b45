"""The topics that exist, by name and by id, with their partitions.

Laws:

* The brokers' own topics are found like others and are not among those that `Catalog` iterates over: clients cannot
  create, delete or change them.
* A topic that is deleted and created anew has another id (KIP-516): ids are made of the cluster id, the name and the
  number of topics created before.
* A change is in the journal on the disk before it is made. After a restart on the same disk all topics are there with
  their ids, partitions, configs and records, and the leader epoch of each partition is greater by one.
* A topic does not take over files that are there: the folders of its partitions are new.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import EEXIST
from typing import Final

from kcoord_wire.coordinator.core.brokers import OFFSETS_TOPIC, Brokers, Leaders
from kcoord_wire.coordinator.log.segments import CorruptLogError
from kcoord_wire.coordinator.topics.batch_header import Refused
from kcoord_wire.coordinator.topics.journal import KnownTopic
from kcoord_wire.coordinator.topics.partition_log import PartitionLog
from kcoord_wire.coordinator.topics.producer_ids import ProducerIds
from kcoord_wire.coordinator.topics.storage import Storage
from kcoord_wire.disk import MemoryDisk
from kcoord_wire.error_codes import ErrorCode

__all__ = ["MOST_PARTITIONS", "NO_ID", "Catalog", "Topic", "check_partition_count", "disk_work", "is_topic_name"]

NO_ID: Final = uuid.UUID(int=0)
"""The id in requests and responses that name no topic by id."""

MOST_PARTITIONS: Final = 100_000
"""Partitions of one topic; Metadata describes them all in one answer."""

_log = logging.getLogger("kcoord_wire.coordinator")
_TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")


class Topic:
    """A topic.

    :ivar name: at most 249 characters
    :ivar id: as Metadata returns it
    :ivar logs: its partitions
    :ivar leaders: who leads them
    :ivar configs: settings that differ from their defaults, by Kafka's names; `Catalog.configure` changes them
    :ivar is_internal: whether it is the brokers' own
    """

    __slots__ = ("configs", "id", "is_internal", "leaders", "logs", "name")

    def __init__(
        self,
        name: str,
        topic_id: uuid.UUID,
        logs: list[PartitionLog],
        leaders: Leaders,
        configs: Mapping[str, str],
        *,
        is_internal: bool = False,
    ) -> None:
        self.name = name
        self.id = topic_id
        self.leaders = leaders
        self.logs = logs
        self.configs = dict(configs)
        self.is_internal = is_internal


class Catalog:
    """The topics of a cluster. Until `open` they are in memory.

    :param cluster_id: ids of topics are made of it
    :param brokers: among which the leaders of partitions are chosen
    :ivar offsets: ``__consumer_offsets``
    :ivar changes: how often a topic was created, deleted or given more partitions
    :ivar storage: the disk of all partitions
    :ivar producer_ids: ids for producers
    """

    def __init__(self, cluster_id: str, brokers: Brokers) -> None:
        self.cluster_id = cluster_id
        self.brokers = brokers
        self.changes = 0
        own_logs = [PartitionLog(Storage(MemoryDisk()), f"{OFFSETS_TOPIC}-{n}") for n in range(len(brokers.groups.of))]
        own = Topic(
            OFFSETS_TOPIC,
            uuid.uuid5(uuid.NAMESPACE_OID, f"{cluster_id}/{OFFSETS_TOPIC}"),
            own_logs,
            brokers.groups,
            {"cleanup.policy": "compact"},
            is_internal=True,
        )
        self._internal: dict[str | uuid.UUID, Topic] = {own.name: own, own.id: own}
        self.offsets = own
        self.open(Storage(MemoryDisk()))

    def open(self, storage: Storage) -> None:
        """Replace all topics by those on a disk.

        :raises CorruptLogError: they are damaged in a way that a crash does not explain; no file was touched
        :raises OSError: the disk fails
        """
        known = storage.journal.load()
        _check_names(known.topics)
        folders = set(storage.disk.folders())
        topics = []
        for name, topic in known.topics.items():
            topic.epochs = [epoch + 1 for epoch in topic.epochs]
            logs = [PartitionLog(storage, f"{name}-{n}", epoch) for n, epoch in enumerate(topic.epochs)]
            topics.append(Topic(name, topic.id, logs, self.brokers.place(name, len(logs)), topic.configs))
        logs = [log for topic in topics for log in topic.logs if log.name in folders]
        for log in logs:
            log.recover(known.starts.get(log.name, 0))

        # All of it is understood; files are changed only from here on.
        for log in logs:
            log.repair()
        deleted = {name for name in folders if _topic_of(name) in known.deleted}
        for name in deleted:
            storage.disk.remove_folder(name)
        known.deleted.clear()
        storage.journal.begin(known)
        storage.adopt(logs)
        self.storage = storage
        self.producer_ids = ProducerIds(storage.journal, known.producer_ids)
        self._created = known.created
        self._by_name = {topic.name: topic for topic in topics}
        self._by_id = {topic.id: topic for topic in topics}
        self._foreign = folders - deleted - {log.name for log in logs}
        self.changes += 1

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    @property
    def partitions(self) -> int:
        """Number of partitions of all topics together."""
        return sum(len(topic.logs) for topic in self)

    def named(self, name: str) -> Topic | None:
        """Return the topic of this name; None if it does not exist."""
        return self._by_name.get(name) or self._internal.get(name)

    def with_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return the topic with this id; None if it does not exist."""
        return self._by_id.get(topic_id) or self._internal.get(topic_id)

    def create(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> Topic:
        """Create a topic.

        :raises ValueError: the name is not allowed or taken, or the number of partitions is not from 1 to 100,000
        :raises TypeError: the number of partitions is not an int
        :raises OSError: the disk fails, and there is no such topic
        """
        if not is_topic_name(name):
            raise ValueError(f"{name!r} is not a topic name")
        if self.named(name) is not None:
            raise ValueError(f"topic {name!r} exists already")
        check_partition_count(f"topic {name!r}", partitions)
        topic_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.cluster_id}/{name}/{self._created}")
        logs = self._new_logs(name, range(partitions))
        topic = Topic(name, topic_id, logs, self.brokers.place(name, partitions), configs or {})
        self._keep(topic, topic.configs, topic.logs, self._created + 1)
        self._created += 1
        self._by_name[name] = self._by_id[topic.id] = topic
        self.changes += 1
        return topic

    def _new_logs(self, topic: str, numbers: range) -> list[PartitionLog]:
        names = [f"{topic}-{number}" for number in numbers]
        if taken := self._foreign.intersection(names):
            raise OSError(EEXIST, "the folder of another partition is in the way", min(taken))
        return [PartitionLog(self.storage, name) for name in names]

    def _keep(self, topic: Topic, configs: dict[str, str], logs: Sequence[PartitionLog], created: int) -> None:
        known = KnownTopic(topic.id, configs, [log.leader_epoch for log in logs])
        self.storage.journal.topic_changed(topic.name, known, created)

    def delete(self, name: str) -> Topic:
        """Delete a topic with its records, and return what it was.

        :raises KeyError: the topic does not exist
        :raises OSError: the disk fails, and the topic is there
        """
        topic = self._by_name[name]
        self.storage.journal.topic_deleted(name)
        del self._by_name[name], self._by_id[topic.id]
        self.changes += 1
        for log in topic.logs:
            try:
                log.remove()
            except OSError as error:
                self._foreign.add(log.name)
                _log.error("files of the deleted topic %s cannot be removed before the next start: %s", name, error)
        return topic

    def raise_epochs(self, leaders: Leaders, partitions: Iterable[int]) -> None:
        """Begin a new leader epoch of partitions that have another leader now."""
        for topic in self:
            if topic.leaders is leaders:
                for index in partitions:
                    self._raise_epoch(topic, index)

    def _raise_epoch(self, topic: Topic, index: int) -> None:
        log = topic.logs[index]
        epoch = log.leader_epoch + 1
        try:
            self.storage.journal.epoch_raised(topic.name, index, epoch)
        except OSError as error:
            _log.error("the leader epoch %d of %s cannot be kept: %s", epoch, log.name, error)
        log.begin_epoch(epoch)

    def add_partitions(self, name: str, count: int) -> int:
        """Give a topic `count` more partitions, and return how many it has then.

        :raises KeyError: the topic does not exist
        :raises ValueError: `count` is less than one, or the topic would have more than 100,000
        :raises OSError: the disk fails, and the topic is as before
        """
        topic = self._by_name[name]
        if type(count) is int and count < 1:
            raise ValueError(f"{count} partitions cannot be added")
        there = len(topic.logs)
        check_partition_count(f"topic {name!r}", there + count)
        grown = topic.logs + self._new_logs(name, range(there, there + count))
        self._keep(topic, topic.configs, grown, self._created)
        topic.logs[:] = grown
        topic.leaders.grow(count)
        self.changes += 1
        return len(topic.logs)

    def configure(self, name: str, configs: Mapping[str, str]) -> None:
        """Give a topic these configs in place of those that it had.

        :raises KeyError: the topic does not exist
        :raises OSError: the disk fails, and the configs are as before
        """
        topic = self._by_name[name]
        self._keep(topic, dict(configs), topic.logs, self._created)
        topic.configs = dict(configs)

    # ---- what requests name

    def find(self, name: str, topic_id: uuid.UUID, by_id: bool) -> Topic | ErrorCode:
        """Return the topic that a request names, or the error of each of its partitions."""
        if by_id:
            return self.with_id(topic_id) or ErrorCode.UNKNOWN_TOPIC_ID
        return self.named(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

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
        log = topic.logs[index]
        if topic.leaders.of[index] != broker:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader_epoch not in (-1, log.leader_epoch):
            newer = leader_epoch > log.leader_epoch
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH if newer else ErrorCode.FENCED_LEADER_EPOCH)
        return log


def _check_names(names: Iterable[str]) -> None:
    """Check names that the journal has, since they become those of folders."""
    for name in names:
        if not is_topic_name(name):
            raise CorruptLogError("topics.journal", 0, f"{name!r} is not the name of a topic")


def _topic_of(folder: str) -> str | None:
    """Return the topic of a partition's folder; None if it is another folder."""
    topic, _, number = folder.rpartition("-")
    return topic if number.isdecimal() else None


@contextmanager
def disk_work() -> Iterator[None]:
    """Refuse a request where the disk fails: an `OSError` becomes KAFKA_STORAGE_ERROR (56), and is logged."""
    try:
        yield
    except OSError as error:
        _log.error("a change of topics cannot be written: %s; it is answered KAFKA_STORAGE_ERROR", error)
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk has failed: {error.strerror}") from error


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
