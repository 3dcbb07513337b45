"""What a broker says of itself, its cluster and the topics: ApiVersions, Metadata, and what AdminClients ask.

Laws:

* DescribeCluster and DescribeTopicPartitions say what Metadata says: their answers are made of Metadata's.
* A topic that is created because its metadata is asked for by name is answered UNKNOWN_TOPIC_OR_PARTITION (3) this
  once, as by Kafka, whose controller creates it meanwhile. No other request creates a topic, nor does one by id.
* No reassignment is in progress: each is complete at once. There are no ACLs, as on a broker without an authorizer:
  they are refused with SECURITY_DISABLED (54).

Source: kafka `KafkaApis.scala`, `ApiVersionsResponse.java`, `DescribeTopicPartitionsRequestHandler.java`,
`AclApis.scala`; KIP-430, KIP-455, KIP-511, KIP-516, KIP-700, KIP-966, KIP-1242.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import (
    BUMPED_FROM,
    FEATURES_FROM_0_FROM,
    NULLABLE_TOPIC_NAME_FROM,
    SERVED,
    SOFTWARE_NAMED_FROM,
    Refused,
    filled,
)
from kcoord_wire.coordinator.core.brokers import NO_LEADER, Brokers, is_topic_name
from kcoord_wire.coordinator.core.config import MAX_NODE_ID
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.topics.catalog import (
    COLLIDING,
    NO_ID,
    Catalog,
    Topic,
    TopicLimits,
    check_partition_count,
    disk_work,
)
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")
_MISSING: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
# Bit sets of AclOperation codes: a broker without ACLs answers all that exist for the resource.
_TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
_CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))

_FEATURES: Final = {
    "group.version": (1, ApiKey.CONSUMER_GROUP_HEARTBEAT, 0),
    "share.version": (1, ApiKey.SHARE_GROUP_HEARTBEAT, 1),
    "streams.version": (1, ApiKey.STREAMS_GROUP_HEARTBEAT, 0),
    "transaction.version": (2, ApiKey.END_TXN, BUMPED_FROM),
}
"""Feature levels of the cluster, each with the api and version that it needs: 1 of ``group.version`` is KIP-848, 1 of
``share.version`` is KIP-932 (2, dead letter queues, is not served), 1 of ``streams.version`` is KIP-1071, 2 of
``transaction.version`` is KIP-890."""

_MOST_DESCRIBED: Final = 2_000  # partitions in one answer (``max.request.partition.size.limit``)
_BROKERS, _CONTROLLERS = 1, 2  # whose endpoints DescribeCluster asks for


class ClusterMetadata:
    """Answers ApiVersions, Metadata and what is made of that; raises `Refused` where the whole request is refused.

    :param brokers: those that run are listed, the first is the controller
    :param catalog: the topics
    :param sasl: whether ApiVersions offers SASL
    :param auto_create_partitions: partitions of a topic that a Metadata request creates; None creates none
    :param served: api key to the versions that are answered
    :ivar served: likewise
    """

    def __init__(
        self,
        brokers: Brokers,
        catalog: Catalog,
        *,
        sasl: bool,
        auto_create_partitions: int | None,
        limits: TopicLimits,
        served: Mapping[int, range] = SERVED,
    ) -> None:
        if auto_create_partitions is not None:
            check_partition_count("a topic that is created", auto_create_partitions)
        self.brokers = brokers
        self.catalog = catalog
        self._auto_create = auto_create_partitions
        self._limits = limits
        self.served = served
        self._features = {
            name: level for name, (level, key, version) in _FEATURES.items() if version in served.get(key, ())
        }
        # From 4.0 on, brokers name versions of Produce that they do not serve: librdkafka looks for 0 (KAFKA-18659).
        oldest = {ApiKey.PRODUCE: 0} if ApiKey.CONSUMER_GROUP_HEARTBEAT in served else {}
        self._api_keys = [
            m.ApiVersionsResponseApiVersion(
                api_key=key, min_version=oldest.get(ApiKey(key), versions[0]), max_version=versions[-1]
            )
            for key, versions in served.items()
            if sasl or key not in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
        ]

    @property
    def node_ids(self) -> list[int]:
        """The ids of the brokers."""
        return [endpoint.node_id for endpoint in self.brokers.endpoints]

    def api_versions_fallback(self) -> m.ApiVersionsResponse:
        """Return the answer, in version 0, to an ApiVersions request of a version that is not served (KIP-511)."""
        own = [entry for entry in self._api_keys if entry.api_key == ApiKey.API_VERSIONS]
        return m.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)

    def api_versions(self, request: Request) -> m.ApiVersionsResponse:
        """Answer ApiVersions."""
        asked: m.ApiVersionsRequest = request.message
        error = self._wrong_api_versions(asked, request)
        if error:
            return m.ApiVersionsResponse(error_code=error)
        response = m.ApiVersionsResponse(api_keys=[*self._api_keys])
        if request.version >= SOFTWARE_NAMED_FROM:
            response.finalized_features_epoch = 0
            response.finalized_features = [
                m.ApiVersionsResponseFinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in self._features.items()
            ]
        if request.version >= FEATURES_FROM_0_FROM:
            response.supported_features = [
                m.ApiVersionsResponseSupportedFeatureKey(name=name, min_version=0, max_version=level)
                for name, level in self._features.items()
            ]
        return response

    def _wrong_api_versions(self, asked: m.ApiVersionsRequest, request: Request) -> ErrorCode:
        named = _SOFTWARE.match(asked.client_software_name) and _SOFTWARE.match(asked.client_software_version)
        nameless = request.version >= SOFTWARE_NAMED_FROM and not named
        if nameless or (asked.cluster_id is None) != (asked.node_id == -1):
            return ErrorCode.INVALID_REQUEST
        if asked.cluster_id is None:
            return ErrorCode.NONE
        # Java consumers give the connection to their coordinator an id of its own, counted down from the greatest.
        node_id = self.brokers.endpoints[request.broker].node_id
        ours = (node_id, MAX_NODE_ID - node_id)
        is_ours = asked.cluster_id == self.catalog.cluster_id and asked.node_id in ours
        return ErrorCode.NONE if is_ours else ErrorCode.REBOOTSTRAP_REQUIRED

    def metadata(self, request: Request) -> m.MetadataResponse:
        """Answer Metadata."""
        asked: m.MetadataRequest = request.message
        found = self._find(asked, request.version)
        if asked.include_topic_authorized_operations:
            for topic in found:
                if topic.name is not None:
                    topic.topic_authorized_operations = _TOPIC_OPERATIONS
        endpoints, running = self.brokers.endpoints, self.brokers.running
        response = m.MetadataResponse(
            brokers=[m.MetadataResponseBroker(**endpoints[broker]._asdict()) for broker in running],
            cluster_id=self.catalog.cluster_id,
            controller_id=endpoints[running[0]].node_id,
            topics=found,
        )
        if asked.include_cluster_authorized_operations:
            response.cluster_authorized_operations = _CLUSTER_OPERATIONS
        return response

    def _find(self, asked: m.MetadataRequest, version: int) -> list[m.MetadataResponseTopic]:
        """Describe the topics that are asked for.

        :raises Refused: INVALID_REQUEST, the version has no such request
        """
        if asked.topics is None or (version == 0 and not asked.topics):
            return [self._describe(topic) for topic in (*self.catalog, *self.catalog.internal())]
        ids = dict.fromkeys(topic.topic_id for topic in asked.topics if topic.topic_id != NO_ID)
        names = dict.fromkeys(topic.name for topic in asked.topics)
        if version < NULLABLE_TOPIC_NAME_FROM and (ids or None in names):
            raise Refused(ErrorCode.INVALID_REQUEST)
        if ids:  # names beside them are ignored, as by Kafka
            return [self._describe_id(topic_id) for topic_id in ids]
        found = [self._describe_name(name) for name in names]
        if asked.allow_auto_topic_creation:
            self._create_missing(found)
        return found

    def _create_missing(self, found: Iterable[m.MetadataResponseTopic]) -> None:
        """Create the topics that are described as missing, if any are; where that fails, the descriptions say why."""
        count = self._auto_create
        if count is None:
            return
        missing = [topic for topic in found if topic.error_code == _MISSING]
        if missing and (refused := self._create((topic.name or "" for topic in missing), count)):
            for topic in missing:
                topic.error_code = refused

    def _create(self, names: Iterable[str], count: int) -> ErrorCode:
        """Create topics, as far as there is room for them and their names do not collide; return why it cannot be."""
        taken = {topic.name.translate(COLLIDING) for topic in self.catalog}
        missing = []
        for name in names:
            if (known_as := name.translate(COLLIDING)) not in taken:
                taken.add(known_as)
                missing.append(name)
        room = max(self._limits.max_partitions - self.catalog.partitions, 0) // count
        try:
            with disk_work():
                self.catalog.add([self.catalog.plan(name, count, ahead=at) for at, name in enumerate(missing[:room])])
        except Refused as refused:
            return refused.error
        return ErrorCode.NONE

    def _describe(self, topic: Topic) -> m.MetadataResponseTopic:
        ids = self.node_ids
        partitions = []
        for index, leader in enumerate(topic.leaders.of):
            replicas = topic.leaders.replicas(index)
            described = m.MetadataResponsePartition(
                partition_index=index,
                leader_id=NO_LEADER,
                leader_epoch=topic.logs[index].leader_epoch,
                replica_nodes=[ids[broker] for broker in replicas],
                isr_nodes=[ids[broker] for broker in replicas if self.brokers.runs(broker)],
                offline_replicas=[ids[broker] for broker in replicas if not self.brokers.runs(broker)],
            )
            if leader == NO_LEADER:
                described.error_code = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                described.leader_id = ids[leader]
            partitions.append(described)
        return m.MetadataResponseTopic(
            name=topic.name, topic_id=topic.id, is_internal=topic.is_internal, partitions=partitions
        )

    def _describe_id(self, topic_id: uuid.UUID) -> m.MetadataResponseTopic:
        topic = self.catalog.with_id(topic_id)
        if topic is None:
            return m.MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
        return self._describe(topic)

    def _describe_name(self, name: str | None) -> m.MetadataResponseTopic:
        topic = self.catalog.named(name or "")
        if topic is not None:
            return self._describe(topic)
        if not name or not is_topic_name(name):
            return m.MetadataResponseTopic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=name or "")
        return m.MetadataResponseTopic(error_code=_MISSING, name=name)

    def _whole_metadata(self, request: Request, topics: Sequence[str]) -> m.MetadataResponse:
        """Return what Metadata is answered to the client of `request`, with what it may do."""
        asked = m.MetadataRequest(
            topics=[m.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        return self.metadata(replace(request, message=asked, version=NULLABLE_TOPIC_NAME_FROM))

    # ---- DescribeCluster

    def describe_cluster(self, request: Request) -> m.DescribeClusterResponse:
        """Answer DescribeCluster."""
        asked: m.DescribeClusterRequest = request.message
        if asked.endpoint_type != _BROKERS:
            is_known = asked.endpoint_type == _CONTROLLERS
            raise Refused(ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)
        known = self._whole_metadata(request, [])
        response = m.DescribeClusterResponse(
            error_message=None,
            cluster_id=known.cluster_id or "",
            controller_id=known.controller_id,
            brokers=[
                m.DescribeClusterResponseDescribeClusterBroker(broker_id=each.node_id, host=each.host, port=each.port)
                for each in known.brokers
            ],
        )
        if asked.include_cluster_authorized_operations:
            response.cluster_authorized_operations = known.cluster_authorized_operations
        return response

    # ---- DescribeTopicPartitions

    def describe_partitions(self, request: Request) -> m.DescribeTopicPartitionsResponse:
        """Answer DescribeTopicPartitions: topics by name, up to a number of partitions, and where to go on."""
        asked: m.DescribeTopicPartitionsRequest = request.message
        cursor, wanted = asked.cursor, {topic.name for topic in asked.topics}
        if cursor is not None and (cursor.partition_index < 0 or (wanted and cursor.topic_name not in wanted)):
            raise Refused(ErrorCode.INVALID_REQUEST)
        left = max(1, min(asked.response_partition_limit, _MOST_DESCRIBED))
        response = m.DescribeTopicPartitionsResponse()
        begin, first = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
        for name in sorted(name for name in wanted or {topic.name for topic in self.catalog} if name >= begin):
            if left <= 0:
                response.next_cursor = m.DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=0)
                break
            topic, end = self._describe_part(request, name, first if name == begin else 0, left)
            response.topics.append(topic)
            left -= len(topic.partitions)
            if end is not None:
                response.next_cursor = m.DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=end)
                break
        return response

    def _describe_part(
        self, request: Request, name: str, first: int, most: int
    ) -> tuple[m.DescribeTopicPartitionsResponseTopic, int | None]:
        """Describe a topic from the partition `first` on; and the partition to go on with, None if it was the last."""
        (known,) = self._whole_metadata(request, [name]).topics
        partitions = [
            filled(m.DescribeTopicPartitionsResponsePartition, each, eligible_leader_replicas=[], last_known_elr=[])
            for each in known.partitions[first : first + most]
        ]
        topic = filled(m.DescribeTopicPartitionsResponseTopic, known, name=name, partitions=partitions)
        return topic, first + most if first + most < len(known.partitions) else None
