"""What AdminClients ask of a cluster: DescribeCluster, DescribeTopicPartitions, ListPartitionReassignments, ACLs.

Laws:

* DescribeCluster and DescribeTopicPartitions say what Metadata says: their answers are made of Metadata's.
* There are no reassignments. There are no ACLs, as on a broker without an authorizer: they are refused with
  SECURITY_DISABLED (54).

Source: kafka `KafkaApis.scala`, `DescribeTopicPartitionsRequestHandler.java`, `AclApis.scala`; KIP-455, KIP-700,
KIP-966.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import NULLABLE_TOPIC_NAME_FROM, refusal
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.coordinator.topics.metadata import ClusterMetadata
from kcoord_wire.protocol.error_codes import ErrorCode

_MOST_DESCRIBED: Final = 2_000  # partitions in one answer (``max.request.partition.size.limit``)
_BROKERS, _CONTROLLERS = 1, 2  # whose endpoints DescribeCluster asks for


class ClusterAdministration:
    """Answers what is asked of the cluster as a whole.

    :param catalog: the topics
    :param cluster: the brokers
    """

    def __init__(self, catalog: Catalog, cluster: ClusterMetadata) -> None:
        self._catalog = catalog
        self._cluster = cluster

    def _metadata(self, request: Request, topics: Sequence[str]) -> m.MetadataResponse:
        """Return what Metadata is answered to the client of `request`, with what it may do."""
        asked = m.MetadataRequest(
            topics=[m.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        return self._cluster.metadata(replace(request, message=asked, version=NULLABLE_TOPIC_NAME_FROM))

    # ---- DescribeCluster

    def describe_cluster(self, request: Request) -> m.DescribeClusterResponse:
        """Answer DescribeCluster."""
        asked: m.DescribeClusterRequest = request.message
        if asked.endpoint_type != _BROKERS:
            is_known = asked.endpoint_type == _CONTROLLERS
            error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            refused: m.DescribeClusterResponse = refusal(asked, request.version, error)
            return refused
        known = self._metadata(request, [])
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
            refused: m.DescribeTopicPartitionsResponse = refusal(asked, request.version, ErrorCode.INVALID_REQUEST)
            return refused
        left = max(1, min(asked.response_partition_limit, _MOST_DESCRIBED))
        response = m.DescribeTopicPartitionsResponse()
        begin, first = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
        for name in sorted(name for name in wanted or {topic.name for topic in self._catalog} if name >= begin):
            if left <= 0:
                response.next_cursor = m.DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=0)
                break
            topic, end = self._describe(request, name, first if name == begin else 0, left)
            response.topics.append(topic)
            left -= len(topic.partitions)
            if end is not None:
                response.next_cursor = m.DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=end)
                break
        return response

    def _describe(
        self, request: Request, name: str, first: int, most: int
    ) -> tuple[m.DescribeTopicPartitionsResponseTopic, int | None]:
        """Describe a topic from the partition `first` on; and the partition to go on with, None if it was the last."""
        (known,) = self._metadata(request, [name]).topics
        partitions = [
            m.DescribeTopicPartitionsResponsePartition(
                error_code=each.error_code,
                partition_index=each.partition_index,
                leader_id=each.leader_id,
                leader_epoch=each.leader_epoch,
                replica_nodes=each.replica_nodes,
                isr_nodes=each.isr_nodes,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=each.offline_replicas,
            )
            for each in known.partitions[first : first + most]
        ]
        topic = m.DescribeTopicPartitionsResponseTopic(
            error_code=known.error_code,
            name=name,
            topic_id=known.topic_id,
            is_internal=known.is_internal,
            partitions=partitions,
            topic_authorized_operations=known.topic_authorized_operations,
        )
        return topic, first + most if first + most < len(known.partitions) else None
