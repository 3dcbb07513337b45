"""The topics that exist, by name and by id, with their partitions.

Laws:

* The brokers' own topics are found like others and are not among those that `Catalog` iterates over: clients cannot
  create, delete or configure them, and may say where they are.
* A topic that is deleted and created anew has another id (KIP-516): ids are made of the cluster id, the name and the
  number of topics created before.
* A change is in the journal on the disk before it is made; all that a request changes is written and fsynced once.
  After a restart on the same disk all topics are there with their ids, partitions, configs and records, what was set
  for brokers and groups, too, and the leader epoch of each partition is greater by one.
* A topic does not take over files that are there: the folders of its partitions are new.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from errno import EEXIST
from types import MappingProxyType
from typing import Any, Final

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.brokers import (
    EVERYWHERE,
    NO_LEADER,
    OFFSETS_TOPIC,
    SHARES_TOPIC,
    TRANSACTIONS_TOPIC,
    Brokers,
    Leaders,
    Placement,
    is_topic_name,
)
from kcoord_wire.coordinator.partitions.journal import Compacted, KnownTopic, KnownTopics, Owner
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog, Storage
from kcoord_wire.coordinator.partitions.producers import ProducerIds
from kcoord_wire.coordinator.topics.configs import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    Resource,
    check_configs,
)
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.log.tail import CorruptLogError
from kcoord_wire.protocol.error_codes import ErrorCode


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


COLLIDING: Final = str.maketrans(".", "_")
"""For `str.translate`: names that differ in these only would have one name among metrics, so there is one of them."""

NO_ID: Final = uuid.UUID(int=0)
"""The id in requests and responses that name no topic by id."""

MOST_PARTITIONS: Final = 100_000
"""Partitions of one topic; Metadata describes them all in one answer."""

_REPLICAS: Final = "replicas"  # what is kept of the brokers of internal topics: TOPIC-PARTITION to a list of them
_log = logging.getLogger("kcoord_wire.coordinator")


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
    :ivar transactions: ``__transaction_state``
    :ivar shares: ``__share_group_state``
    :ivar changes: how often a topic was created, deleted or given more partitions
    :ivar configured: how often configs were changed of topics with a segment that may be compacted
    :ivar storage: the disk of all partitions
    :ivar producer_ids: ids for producers
    :ivar configs: what was set for brokers and groups; `configure` changes it
    """

    def __init__(self, cluster_id: str, brokers: Brokers) -> None:
        self.cluster_id = cluster_id
        self.brokers = brokers
        self.changes = self.configured = 0
        self.offsets = _internal(cluster_id, OFFSETS_TOPIC, brokers.groups)
        self.transactions = _internal(cluster_id, TRANSACTIONS_TOPIC, brokers.transactions)
        self.shares = _internal(cluster_id, SHARES_TOPIC, brokers.shares)
        self._internal: dict[str | uuid.UUID, Topic] = {}
        for own in (self.offsets, self.transactions, self.shares):
            self._internal[own.name] = self._internal[own.id] = own
        self.open(Storage(MemoryDisk()))

    def open(self, storage: Storage) -> None:
        """Replace all topics by those on a disk.

        :raises CorruptLogError: they are damaged in a way that a crash does not explain; no file was touched
        :raises OSError: the disk fails
        """
        known = storage.journal.load()
        _check_known(known)
        folders = set(storage.disk.folders())
        topics = []
        for name, topic in known.topics.items():
            topic.epochs = [epoch + 1 for epoch in topic.epochs]
            logs = [PartitionLog(storage, f"{name}-{n}", epoch) for n, epoch in enumerate(topic.epochs)]
            leaders = self.brokers.place(name, len(logs), topic.placement)
            topics.append(Topic(name, topic.id, logs, leaders, topic.configs))
        logs = [log for topic in topics for log in topic.logs if log.name in folders]
        _recover(logs, known)

        # All of it is understood; files are changed only from here on.
        for log in logs:
            log.repair()
        deleted = {name for name in folders if _topic_of(name) in known.deleted}
        for name in deleted:
            storage.disk.remove_folder(name)
        if deleted:  # before the journal forgets that they are of deleted topics
            storage.disk.sync_names()
        known.deleted.clear()
        storage.journal.begin(known)
        storage.adopt(logs)
        self.storage = storage
        self.producer_ids = ProducerIds(storage.journal, known.producer_ids)
        self.configs = known.configs
        self._known = known
        self._created = known.created
        self._by_name = {topic.name: topic for topic in topics}
        self._by_id = {topic.id: topic for topic in topics}
        self._foreign = folders - deleted - {log.name for log in logs}
        self.changes += 1
        self._place_internal()

    def _place_internal(self) -> None:
        kept = self.kept(_REPLICAS)
        for own in (self.offsets, self.transactions, self.shares):
            own.leaders.reassign(
                {at: kept[name] for at in range(len(own.logs)) if (name := f"{own.name}-{at}") in kept}
            )
            own.leaders.elect()

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def internal(self) -> list[Topic]:
        """Return the brokers' own topics, as far as Kafka would have created them by now."""
        shown = (
            (self.brokers.has_groups, self.offsets),
            (self.brokers.has_transactions, self.transactions),
            (self.brokers.has_shares, self.shares),
        )
        return [topic for is_shown, topic in shown if is_shown]

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
        """Create a topic. Errors as `plan` and `add`."""
        topic = self.plan(name, partitions, configs)
        self.add([topic])
        return topic

    def plan(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        ahead: int = 0,
        placement: Placement = EVERYWHERE,
    ) -> Topic:
        """Return a topic that `add` creates.

        :param ahead: how many topics are added before it together with it
        :param placement: which brokers have it
        :raises ValueError: the name is not allowed or taken, or the number of partitions is not from 1 to 100,000
        :raises TypeError: the number of partitions is not an int
        :raises OSError: files of another partition are in the way
        """
        if not is_topic_name(name):
            raise ValueError(f"{name!r} is not a topic name")
        if self.named(name) is not None:
            raise ValueError(f"topic {name!r} exists already")
        check_partition_count(f"topic {name!r}", partitions)
        topic_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.cluster_id}/{name}/{self._created + ahead}")
        logs = self._new_logs(name, range(partitions))
        return Topic(name, topic_id, logs, self.brokers.place(name, partitions, placement), configs or {})

    def add(self, planned: Sequence[Topic]) -> None:
        """Create topics that were planned one after the other.

        :raises OSError: the disk fails, and there is none of them
        """
        created = self._created + len(planned)
        self.storage.journal.changed({topic.name: _known(topic) for topic in planned}, created)
        self._created = created
        for topic in planned:
            self._by_name[topic.name] = self._by_id[topic.id] = topic
            self.changes += 1

    def _new_logs(self, topic: str, numbers: range) -> list[PartitionLog]:
        names = [f"{topic}-{number}" for number in numbers]
        if taken := self._foreign.intersection(names):
            raise OSError(EEXIST, "the folder of another partition is in the way", min(taken))
        return [PartitionLog(self.storage, name) for name in names]

    def delete(self, *names: str) -> list[Topic]:
        """Delete topics with their records, and return what they were.

        :raises KeyError: one does not exist, and none is deleted
        :raises OSError: the disk fails, and they are there
        """
        topics = [self._by_name[name] for name in names]
        self.storage.journal.deleted(names)
        for topic in topics:
            del self._by_name[topic.name], self._by_id[topic.id]
            self.changes += 1
        self._remove([log for topic in topics for log in topic.logs])
        return topics

    def _remove(self, logs: Iterable[PartitionLog]) -> None:
        """Remove records, durably: a loss of power must not bring them back to a topic that gets the name."""
        removed: list[PartitionLog] = []
        for log in logs:
            with self._kept_on_error([log]):
                if log.remove():
                    removed.append(log)
        if removed:
            with self._kept_on_error(removed):
                self.storage.disk.sync_names()

    @contextmanager
    def _kept_on_error(self, logs: Sequence[PartitionLog]) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._foreign.update(log.name for log in logs)
            for topic in sorted({log.topic for log in logs}):
                _log.error("files of the deleted topic %s cannot be removed before the next start: %s", topic, error)

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
        logs = self.plan_growth(name, count)
        self.grow({name: logs})
        return len(self._by_name[name].logs)

    def plan_growth(self, name: str, count: int) -> list[PartitionLog]:
        """Return partitions that `grow` gives to a topic. Errors as `add_partitions`."""
        topic = self._by_name[name]
        if type(count) is int and count < 1:
            raise ValueError(f"{count} partitions cannot be added")
        there = len(topic.logs)
        check_partition_count(f"topic {name!r}", there + count)
        return self._new_logs(name, range(there, there + count))

    def grow(
        self,
        planned: Mapping[str, list[PartitionLog]],
        assigned: Mapping[str, Sequence[Sequence[int]]] = MappingProxyType({}),
    ) -> None:
        """Give topics the partitions that were planned for them, by name.

        :param assigned: the brokers of these partitions, of topics for which they were named
        :raises OSError: the disk fails, and the topics are as before
        """
        topics = {name: self._by_name[name] for name in planned}
        placements = {name: _grown(topic, assigned.get(name, ())) for name, topic in topics.items()}
        known = {
            name: _known(topic, logs=topic.logs + planned[name], placement=placements[name])
            for name, topic in topics.items()
        }
        self.storage.journal.changed(known, self._created)
        for name, topic in topics.items():
            topic.logs += planned[name]
            topic.leaders.grow(len(planned[name]), placements[name])
            self.changes += 1

    def configure(
        self, topics: Mapping[str, dict[str, str]], others: Mapping[Owner, dict[str, str]] = MappingProxyType({})
    ) -> None:
        """Give topics, brokers and groups these configs in place of those that they had.

        :param topics: by name
        :raises KeyError: a topic does not exist
        :raises OSError: the disk fails, and the configs are as before
        """
        known = {name: _known(self._by_name[name], configs=own) for name, own in topics.items()}
        self.storage.journal.changed(known, self._created, others)
        for name, own in topics.items():
            self._by_name[name].configs = dict(own)
        for owner, own in others.items():
            self.configs.pop(owner, None)
            if own:
                self.configs[owner] = dict(own)
        logs = [log for topic in (self if others else map(self._by_name.__getitem__, topics)) for log in topic.logs]
        for log in logs:
            log.rolling = None
        self.configured += any(len(log.segments) > 1 for log in logs)

    def reassign(self, wanted: Mapping[str, Mapping[int, Sequence[int]]]) -> list[Leaders]:
        """Put partitions on other brokers, and return the leaders of the topics, which are to be elected anew.

        :param wanted: topic to partition to its brokers, the preferred leader first
        :raises OSError: the disk fails, and all are where they were
        """
        topics = {name: topic for name in wanted if (topic := self.named(name)) is not None}
        known = {
            name: _known(topic, placement=topic.leaders.placed(wanted[name]))
            for name, topic in topics.items()
            if not topic.is_internal
        }
        own = {name: wanted[name] for name, topic in topics.items() if topic.is_internal}
        kept = {f"{name}-{at}": [*brokers] for name, parts in own.items() for at, brokers in parts.items()}
        self.storage.journal.changed(known, self._created, kept={_REPLICAS: kept})
        self._known.keep(_REPLICAS, kept)
        for name, topic in topics.items():
            self.raise_epochs(topic.leaders, topic.leaders.reassign(wanted[name]))
        return [topic.leaders for topic in topics.values()]

    def kept(self, kind: str) -> Mapping[str, Any]:
        """Return what `keep` has kept of a kind: key to value."""
        return self._known.kept.get(kind, {})

    def keep(self, kind: str, values: Mapping[str, Any]) -> None:
        """Keep what clients set about access.

        :param values: key to value, as JSON has it; None for what is removed
        :raises Refused: KAFKA_STORAGE_ERROR (56), and nothing has changed
        """
        if values:
            with disk_work():
                self.storage.journal.kept(kind, values)
            self._known.keep(kind, values)

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


def _internal(cluster_id: str, name: str, leaders: Leaders) -> Topic:
    """Return a topic of the brokers' own, whose partitions are in memory."""
    logs = [PartitionLog(Storage(MemoryDisk()), f"{name}-{number}") for number in range(len(leaders.of))]
    topic_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{cluster_id}/{name}")
    return Topic(name, topic_id, logs, leaders, {"cleanup.policy": "compact"}, is_internal=True)


def _known(
    topic: Topic,
    *,
    configs: dict[str, str] | None = None,
    logs: Sequence[PartitionLog] | None = None,
    placement: Placement | None = None,
) -> KnownTopic:
    """Return what the journal says of a topic, with the configs and partitions that it is to have."""
    own = topic.configs if configs is None else configs
    epochs = [log.leader_epoch for log in (topic.logs if logs is None else logs)]
    return KnownTopic(topic.id, own, epochs, placement or topic.leaders.placement)


def _grown(topic: Topic, assigned: Sequence[Sequence[int]]) -> Placement:
    """Return where a topic is when it has more partitions, whose brokers a client may have named."""
    known = topic.leaders.placement
    if not assigned:
        return known
    return replace(known, assigned={**known.assigned, **dict(enumerate(assigned, len(topic.logs)))})


def _check_known(known: KnownTopics) -> None:
    """Check what the journal says as clients' requests are checked: names become those of folders, configs are read."""
    for name in known.topics:
        if not is_topic_name(name):
            raise CorruptLogError("topics.journal", 0, f"{name!r} is not the name of a topic")
    for name, brokers in known.kept.get(_REPLICAS, {}).items():
        if min(brokers, default=NO_LEADER) <= NO_LEADER:
            raise CorruptLogError("topics.journal", 0, f"{name} is a partition without a broker")
    try:
        for topic in known.topics.values():
            check_configs(TOPIC_CONFIGS, "topic", topic.configs)
        for (kind, _), own in known.configs.items():
            table = GROUP_CONFIGS if kind == Resource.GROUP else BROKER_CONFIGS
            check_configs(table, "group", {name: text for name, text in own.items() if name in table})
    except Refused as refused:
        raise CorruptLogError("topics.journal", 0, refused.detail) from None


def _topic_of(folder: str) -> str | None:
    """Return the topic of a partition's folder; None if it is another folder."""
    topic, _, number = folder.rpartition("-")
    return topic if number.isdecimal() else None


def _recover(logs: Iterable[PartitionLog], known: KnownTopics) -> None:
    for log in logs:
        log.recover(known.starts.get(log.name, 0), known.compacted.get(log.name, Compacted()))
        if log.name in known.starts:  # not beyond what is left of the log, or its next records would be dropped
            known.starts[log.name] = log.start_offset
        if log.name in known.compacted:
            known.compacted[log.name] = log.compacted


@contextmanager
def disk_work() -> Iterator[None]:
    """Refuse a request where the disk fails: an `OSError` becomes KAFKA_STORAGE_ERROR (56), and is logged."""
    try:
        yield
    except OSError as error:
        _log.error("a change of topics cannot be written: %s; it is answered KAFKA_STORAGE_ERROR", error)
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk has failed: {error.strerror}") from error


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
