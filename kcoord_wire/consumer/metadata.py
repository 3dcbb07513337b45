"""What the brokers say about the cluster: addresses, topics, leaders.

Laws:

* No IO: `Metadata.update` takes in responses, one after another.
* A leader epoch never goes back: an older response does not replace a newer leader (KIP-320).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.assignors import Racks, TopicPartition
from kcoord_wire.consumer.failures import TopicError
from kcoord_wire.protocol.error_codes import ErrorCode

_FATAL: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION)
_UNKNOWN: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_LARGEST_PORT: Final = 0xFFFF
NO_ID: Final = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class Leader:
    """The broker that leads a partition.

    :ivar node_id: -1 while there is none
    :ivar epoch: -1 if it is unknown
    """

    node_id: int
    epoch: int


@dataclass(slots=True)
class Metadata:
    """What is known of the cluster.

    :ivar addresses: node id to host and port
    :ivar counts: topic to its number of partitions; internal topics are in `internal`, too
    :ivar topic_ids: topic to its id; topics without one have no entry
    :ivar internal: the brokers' own topics
    """

    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    topic_ids: dict[str, uuid.UUID] = field(default_factory=dict)
    internal: set[str] = field(default_factory=set)
    _racks: dict[int, str] = field(default_factory=dict)
    _replicas: dict[str, list[list[int]]] = field(default_factory=dict)
    _leaders: dict[TopicPartition, Leader] = field(default_factory=dict)

    def update(self, response: m.MetadataResponse, *, is_all: bool) -> tuple[bool, list[TopicError]]:
        """Take in a response.

        :param is_all: whether it names every topic, so that the others do not exist
        :returns: whether it is complete, so that it need not be asked for again soon; and what will not go away
        """
        if response.brokers:
            self._take_brokers(response.brokers)
        complete = bool(response.brokers) and not response.error_code
        if is_all and complete:
            for name in self.counts.keys() - {topic.name for topic in response.topics}:
                self._forget(name)
        failures: list[TopicError] = []
        for topic in response.topics:
            error = topic.error_code
            if topic.name is None:
                continue
            if error in _FATAL:
                failures.append(TopicError(topic.name, ErrorCode(error)))
            elif error in _UNKNOWN:
                self._forget(topic.name)
            elif not error:
                complete &= self._take(topic.name, topic)
            complete &= not error or error in _FATAL
        return complete, failures

    def _take_brokers(self, brokers: Iterable[m.MetadataResponseBroker]) -> None:
        usable = [broker for broker in brokers if 0 < broker.port <= _LARGEST_PORT]
        self.addresses = {broker.node_id: (broker.host, broker.port) for broker in usable}
        self._racks = {broker.node_id: broker.rack for broker in usable if broker.rack is not None}

    def _take(self, name: str, topic: m.MetadataResponseTopic) -> bool:
        if topic.topic_id != NO_ID:
            if self.topic_ids.get(name, topic.topic_id) != topic.topic_id:
                self._forget(name)  # deleted and created again: leader epochs begin anew
            self.topic_ids[name] = topic.topic_id
        if topic.is_internal:
            self.internal.add(name)
        self.counts[name] = len(topic.partitions)
        parts = sorted(topic.partitions, key=lambda partition: partition.partition_index)
        self._replicas[name] = [partition.replica_nodes for partition in parts]
        has_leaders = True
        for partition in topic.partitions:
            key = TopicPartition(name, partition.partition_index)
            known = self._leaders.get(key)
            if known is None or partition.leader_epoch < 0 or partition.leader_epoch >= known.epoch:
                self._leaders[key] = Leader(partition.leader_id, partition.leader_epoch)
            has_leaders &= self._leaders[key].node_id in self.addresses
        return has_leaders

    def _forget(self, name: str) -> None:
        self.counts.pop(name, None)
        self.topic_ids.pop(name, None)
        self._replicas.pop(name, None)
        self.internal.discard(name)
        for key in [key for key in self._leaders if key.topic == name]:
            del self._leaders[key]

    def leader(self, partition: TopicPartition) -> Leader | None:
        """Return the leader of a partition; None if none is known whose address is."""
        leader = self._leaders.get(partition)
        return leader if leader is not None and leader.node_id in self.addresses else None

    def matching(self, pattern: re.Pattern[str], *, exclude_internal: bool) -> list[str]:
        """Return the topics whose whole name matches, in order; as Kafka, the brokers' own only if it is asked for."""
        return sorted(
            name for name in self.counts if pattern.fullmatch(name) and not (exclude_internal and name in self.internal)
        )

    def counts_of(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Return the number of partitions of those of the topics that are known."""
        return {topic: self.counts[topic] for topic in topics if topic in self.counts}

    def racks_of(self, topics: Iterable[str]) -> Racks:
        """Return the racks of the replicas of those of the topics that are known; none if brokers have none."""
        if not self._racks:
            return {}
        return {
            topic: [frozenset(self._racks[node] for node in nodes if node in self._racks) for nodes in replicas]
            for topic in topics
            if (replicas := self._replicas.get(topic)) is not None
        }


def metadata_request(topics: Iterable[str] | None, *, may_create: bool) -> m.MetadataRequest:
    """Return the request about these topics; about all for None.

    :param may_create: let the broker create those that do not exist, if it is set up to do so
    """
    if topics is None:
        return m.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    names = [m.MetadataRequestTopic(name=name) for name in sorted(topics)]
    return m.MetadataRequest(topics=names, allow_auto_topic_creation=may_create)
