"""What AdminClients ask of partitions: DeleteRecords, DescribeProducers and DescribeLogDirs.

Source: kafka `KafkaApis.scala`, `ReplicaManager.scala`; KIP-107, KIP-113, KIP-664.
"""

from __future__ import annotations

from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.partitions.batch_header import Refused
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.topics.catalog import NO_ID, Catalog
from kcoord_wire.coordinator.topics.configuration import Configuration
from kcoord_wire.protocol.error_codes import ErrorCode

_LOG_DIR: Final = "/kcoord"  # whatever the disk is, a client cannot look at it
_TO_THE_END: Final = -1  # the offset with which DeleteRecords asks for all records to go


class PartitionAdministration:
    """Answers what is asked of single partitions.

    :param catalog: the topics
    :param configuration: their configs
    """

    def __init__(self, catalog: Catalog, configuration: Configuration) -> None:
        self._catalog = catalog
        self._configuration = configuration

    def _find(self, request: Request, name: str, partition: int) -> PartitionLog:
        """Return a partition that the broker which was asked leads.

        :raises Refused: it does not exist, or is led by another
        """
        return self._catalog.log(self._catalog.find(name, NO_ID, False), partition, request.broker)

    # ---- DeleteRecords

    def delete_records(self, request: Request) -> m.DeleteRecordsResponse:
        """Answer DeleteRecords: drop the records before an offset."""
        asked: m.DeleteRecordsRequest = request.message
        response = m.DeleteRecordsResponse()
        for part in asked.topics:
            answers = []
            for wanted in part.partitions:
                answer = m.DeleteRecordsResponseDeleteRecordsPartitionResult(
                    partition_index=wanted.partition_index, low_watermark=-1
                )
                answers.append(answer)
                try:
                    log = self._find(request, part.name, wanted.partition_index)
                    self._check_policy(part.name)
                    log.truncate_before(log.end_offset if wanted.offset == _TO_THE_END else wanted.offset)
                except Refused as refused:
                    answer.error_code = refused.error
                else:
                    answer.low_watermark = log.start_offset
            response.topics.append(m.DeleteRecordsResponseDeleteRecordsTopicResult(name=part.name, partitions=answers))
        return response

    def _check_policy(self, name: str) -> None:
        topic = self._catalog.named(name)
        if topic is not None and "delete" not in self._configuration.value(topic, "cleanup.policy"):
            raise Refused(ErrorCode.POLICY_VIOLATION)

    # ---- DescribeProducers

    def describe_producers(self, request: Request) -> m.DescribeProducersResponse:
        """Answer DescribeProducers: the idempotent producers that partitions remember. A partition that is named twice
        is described once: otherwise a short request could ask for an answer larger than memory."""
        asked: m.DescribeProducersRequest = request.message
        response = m.DescribeProducersResponse()
        wanted: dict[str, dict[int, None]] = {}
        for part in asked.topics:
            wanted.setdefault(part.name, {}).update(dict.fromkeys(part.partition_indexes))
        for name, indexes in wanted.items():
            answers = []
            for index in indexes:
                answer = m.DescribeProducersResponsePartitionResponse(partition_index=index, error_message=None)
                answers.append(answer)
                try:
                    log = self._find(request, name, index)
                except Refused as refused:
                    answer.error_code, answer.error_message = refused.error, refused.detail
                else:
                    answer.active_producers = [
                        m.DescribeProducersResponseProducerState(**producer._asdict()) for producer in log.producers()
                    ]
            response.topics.append(m.DescribeProducersResponseTopicResponse(name=name, partitions=answers))
        return response

    # ---- DescribeLogDirs

    def describe_log_dirs(self, request: Request) -> m.DescribeLogDirsResponse:
        """Answer DescribeLogDirs: one directory, with the sizes of the partitions that the broker has."""
        asked: m.DescribeLogDirsRequest = request.message
        wanted = None if asked.topics is None else {part.topic: set(part.partitions) for part in asked.topics}
        topics = []
        for topic in self._catalog:
            numbers = range(len(topic.logs)) if wanted is None else wanted.get(topic.name, ())
            partitions = [
                m.DescribeLogDirsResponseDescribeLogDirsPartition(partition_index=index, partition_size=log.size)
                for index, log in enumerate(topic.logs)
                if index in numbers and request.broker in topic.leaders.replicas(index)
            ]
            if partitions:
                topics.append(m.DescribeLogDirsResponseDescribeLogDirsTopic(name=topic.name, partitions=partitions))
        return m.DescribeLogDirsResponse(
            results=[m.DescribeLogDirsResponseDescribeLogDirsResult(log_dir=_LOG_DIR, topics=topics)]
        )
