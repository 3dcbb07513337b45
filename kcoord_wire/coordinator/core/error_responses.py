"""Error responses: for every api that is served, the response in which the whole request has failed.

Laws:

* The shape follows the request and its version: an api that answers by group, topic or partition has the error on each
  of them, and at the top where the version has a field for it.
* Ids by which a client matches the answer (member, group, topic, partition) are those of its request; every other field
  has the value that Kafka sets beside an error.

Source: the ``getErrorResponse`` methods in kafka/clients `org.apache.kafka.common.requests`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import versions
from kcoord_wire.protocol.error_codes import ErrorCode

_LONGEST_TEXT = 1_000  # characters of an error's text


def refusal(request: Any, version: int, error: ErrorCode) -> Any:
    """Return the response to `request` in which everything has failed with `error`.

    :param version: the request's
    :raises TypeError: requests of this class are not served
    """
    try:
        build = _BUILDERS[type(request)]
    except KeyError:
        raise TypeError(f"{type(request).__name__} is not served") from None
    return build(request, version, int(error))


def bounded(text: str) -> str:
    """Return an error's text, cut where it is too long: it quotes names that are as long as a text may be."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def can_refuse(request: Any) -> bool:
    """Return whether `refusal` has a response to this request."""
    return type(request) in _BUILDERS


def _join_group(request: m.JoinGroupRequest, version: int, error: int) -> m.JoinGroupResponse:
    return m.JoinGroupResponse(
        error_code=error,
        protocol_name=None if version >= versions.NULLABLE_PROTOCOL_FROM else "",
        member_id=request.member_id,
    )


def _offset_commit(request: m.OffsetCommitRequest, version: int, error: int) -> m.OffsetCommitResponse:
    return m.OffsetCommitResponse(
        topics=[
            m.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    m.OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(request: m.OffsetFetchRequest, version: int, error: int) -> m.OffsetFetchResponse:
    if version >= versions.BATCH_FETCH_FROM:
        groups = [m.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error) for group in request.groups]
        return m.OffsetFetchResponse(groups=groups)
    if version >= versions.FETCH_ERROR_FROM:
        return m.OffsetFetchResponse(error_code=error)
    return m.OffsetFetchResponse(
        topics=[
            m.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    m.OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, metadata="", error_code=error
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


def _find_coordinator(request: m.FindCoordinatorRequest, version: int, error: int) -> m.FindCoordinatorResponse:
    text = ErrorCode(error).meaning
    if version < versions.BATCH_FIND_FROM:
        return m.FindCoordinatorResponse(error_code=error, error_message=text, node_id=-1, host="", port=-1)
    return m.FindCoordinatorResponse(
        coordinators=[
            m.FindCoordinatorResponseCoordinator(
                key=key, node_id=-1, host="", port=-1, error_code=error, error_message=text
            )
            for key in request.coordinator_keys
        ]
    )


def _describe_groups(request: m.DescribeGroupsRequest, version: int, error: int) -> m.DescribeGroupsResponse:
    return m.DescribeGroupsResponse(
        groups=[m.DescribeGroupsResponseDescribedGroup(group_id=group, error_code=error) for group in request.groups]
    )


def _consumer_group_heartbeat(
    request: m.ConsumerGroupHeartbeatRequest, version: int, error: int
) -> m.ConsumerGroupHeartbeatResponse:
    return m.ConsumerGroupHeartbeatResponse(error_code=error, error_message=ErrorCode(error).meaning)


def _consumer_group_describe(
    request: m.ConsumerGroupDescribeRequest, version: int, error: int
) -> m.ConsumerGroupDescribeResponse:
    return m.ConsumerGroupDescribeResponse(
        groups=[
            m.ConsumerGroupDescribeResponseDescribedGroup(group_id=group, error_code=error)
            for group in request.group_ids
        ]
    )


def _delete_groups(request: m.DeleteGroupsRequest, version: int, error: int) -> m.DeleteGroupsResponse:
    return m.DeleteGroupsResponse(
        results=[
            m.DeleteGroupsResponseDeletableGroupResult(group_id=group, error_code=error)
            for group in request.groups_names
        ]
    )


def _metadata(request: m.MetadataRequest, version: int, error: int) -> m.MetadataResponse:
    return m.MetadataResponse(
        error_code=error,
        topics=[
            m.MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or ()
        ],
    )


def _produce(request: m.ProduceRequest, version: int, error: int) -> m.ProduceResponse:
    return m.ProduceResponse(
        responses=[
            m.ProduceResponseTopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    m.ProduceResponsePartitionProduceResponse(index=partition.index, error_code=error, base_offset=-1)
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(request: m.FetchRequest, version: int, error: int) -> m.FetchResponse:
    if version >= versions.FETCH_SESSION_FROM:
        return m.FetchResponse(error_code=error)
    return m.FetchResponse(
        responses=[
            m.FetchResponseFetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    m.FetchResponsePartitionData(
                        partition_index=partition.partition, error_code=error, high_watermark=-1, records=b""
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offsets(request: m.ListOffsetsRequest, version: int, error: int) -> m.ListOffsetsResponse:
    return m.ListOffsetsResponse(
        topics=[
            m.ListOffsetsResponseListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    m.ListOffsetsResponseListOffsetsPartitionResponse(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _leader_epoch(request: m.OffsetForLeaderEpochRequest, version: int, error: int) -> m.OffsetForLeaderEpochResponse:
    return m.OffsetForLeaderEpochResponse(
        topics=[
            m.OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    m.OffsetForLeaderEpochResponseEpochEndOffset(partition=partition.partition, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _create_topics(request: m.CreateTopicsRequest, version: int, error: int) -> m.CreateTopicsResponse:
    answer = m.CreateTopicsResponseCreatableTopicResult
    return m.CreateTopicsResponse(
        topics=[answer(name=topic.name, error_code=error, error_message=None) for topic in request.topics]
    )


def _delete_topics(request: m.DeleteTopicsRequest, version: int, error: int) -> m.DeleteTopicsResponse:
    answer = m.DeleteTopicsResponseDeletableTopicResult
    answers = [answer(name=topic.name, topic_id=topic.topic_id, error_code=error) for topic in request.topics]
    answers += [answer(name=name, error_code=error) for name in request.topic_names]
    return m.DeleteTopicsResponse(responses=answers)


def _create_partitions(request: m.CreatePartitionsRequest, version: int, error: int) -> m.CreatePartitionsResponse:
    answer = m.CreatePartitionsResponseCreatePartitionsTopicResult
    return m.CreatePartitionsResponse(results=[answer(name=topic.name, error_code=error) for topic in request.topics])


def _describe_partitions(
    request: m.DescribeTopicPartitionsRequest, version: int, error: int
) -> m.DescribeTopicPartitionsResponse:
    answer = m.DescribeTopicPartitionsResponseTopic
    return m.DescribeTopicPartitionsResponse(
        topics=[answer(name=topic.name, error_code=error) for topic in request.topics]
    )


def _delete_records(request: m.DeleteRecordsRequest, version: int, error: int) -> m.DeleteRecordsResponse:
    answer = m.DeleteRecordsResponseDeleteRecordsPartitionResult
    return m.DeleteRecordsResponse(
        topics=[
            m.DeleteRecordsResponseDeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    answer(partition_index=each.partition_index, low_watermark=-1, error_code=error)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _describe_producers(request: m.DescribeProducersRequest, version: int, error: int) -> m.DescribeProducersResponse:
    answer = m.DescribeProducersResponsePartitionResponse
    return m.DescribeProducersResponse(
        topics=[
            m.DescribeProducersResponseTopicResponse(
                name=topic.name,
                partitions=[answer(partition_index=index, error_code=error) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _create_acls(request: m.CreateAclsRequest, version: int, error: int) -> m.CreateAclsResponse:
    text = ErrorCode(error).meaning
    return m.CreateAclsResponse(
        results=[m.CreateAclsResponseAclCreationResult(error_code=error, error_message=text) for _ in request.creations]
    )


def _delete_acls(request: m.DeleteAclsRequest, version: int, error: int) -> m.DeleteAclsResponse:
    answer, text = m.DeleteAclsResponseDeleteAclsFilterResult, ErrorCode(error).meaning
    return m.DeleteAclsResponse(filter_results=[answer(error_code=error, error_message=text) for _ in request.filters])


def _describe_configs(request: m.DescribeConfigsRequest, version: int, error: int) -> m.DescribeConfigsResponse:
    return m.DescribeConfigsResponse(
        results=_refused_resources(request, error, m.DescribeConfigsResponseDescribeConfigsResult)
    )


def _alter_configs(request: m.AlterConfigsRequest, version: int, error: int) -> m.AlterConfigsResponse:
    return m.AlterConfigsResponse(
        responses=_refused_resources(request, error, m.AlterConfigsResponseAlterConfigsResourceResponse)
    )


def _alter_incrementally(
    request: m.IncrementalAlterConfigsRequest, version: int, error: int
) -> m.IncrementalAlterConfigsResponse:
    answer = m.IncrementalAlterConfigsResponseAlterConfigsResourceResponse
    return m.IncrementalAlterConfigsResponse(responses=_refused_resources(request, error, answer))


def _refused_resources(request: Any, error: int, answer: Callable[..., Any]) -> list[Any]:
    return [
        answer(
            error_code=error,
            error_message=ErrorCode(error).meaning,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in request.resources
    ]


def _sasl_authenticate(request: m.SaslAuthenticateRequest, version: int, error: int) -> m.SaslAuthenticateResponse:
    return m.SaslAuthenticateResponse(error_code=error, error_message=ErrorCode(error).meaning)


def _add_partitions(request: m.AddPartitionsToTxnRequest, version: int, error: int) -> m.AddPartitionsToTxnResponse:
    if version >= versions.BATCH_ADD_FROM:
        return m.AddPartitionsToTxnResponse(error_code=error)
    return m.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            m.AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    m.AddPartitionsToTxnResponseAddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=error
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


def _txn_offset_commit(request: m.TxnOffsetCommitRequest, version: int, error: int) -> m.TxnOffsetCommitResponse:
    return m.TxnOffsetCommitResponse(
        topics=[
            m.TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    m.TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _write_markers(request: m.WriteTxnMarkersRequest, version: int, error: int) -> m.WriteTxnMarkersResponse:
    return m.WriteTxnMarkersResponse(
        markers=[
            m.WriteTxnMarkersResponseWritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    m.WriteTxnMarkersResponseWritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            m.WriteTxnMarkersResponseWritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=error
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _describe_transactions(
    request: m.DescribeTransactionsRequest, version: int, error: int
) -> m.DescribeTransactionsResponse:
    return m.DescribeTransactionsResponse(
        transaction_states=[
            m.DescribeTransactionsResponseTransactionState(transactional_id=name, error_code=error)
            for name in request.transactional_ids
        ]
    )


_BUILDERS: dict[type, Callable[[Any, int, int], Any]] = {
    m.ProduceRequest: _produce,
    m.FetchRequest: _fetch,
    m.ListOffsetsRequest: _list_offsets,
    m.MetadataRequest: _metadata,
    m.OffsetCommitRequest: _offset_commit,
    m.OffsetFetchRequest: _offset_fetch,
    m.FindCoordinatorRequest: _find_coordinator,
    m.JoinGroupRequest: _join_group,
    m.HeartbeatRequest: lambda request, version, error: m.HeartbeatResponse(error_code=error),
    m.LeaveGroupRequest: lambda request, version, error: m.LeaveGroupResponse(error_code=error),
    m.SyncGroupRequest: lambda request, version, error: m.SyncGroupResponse(error_code=error),
    m.DescribeGroupsRequest: _describe_groups,
    m.ListGroupsRequest: lambda request, version, error: m.ListGroupsResponse(error_code=error),
    m.SaslHandshakeRequest: lambda request, version, error: m.SaslHandshakeResponse(error_code=error),
    m.ApiVersionsRequest: lambda request, version, error: m.ApiVersionsResponse(error_code=error),
    m.InitProducerIdRequest: lambda request, version, error: m.InitProducerIdResponse(
        error_code=error, producer_id=-1, producer_epoch=-1
    ),
    m.OffsetForLeaderEpochRequest: _leader_epoch,
    m.SaslAuthenticateRequest: _sasl_authenticate,
    m.CreateTopicsRequest: _create_topics,
    m.DeleteTopicsRequest: _delete_topics,
    m.CreatePartitionsRequest: _create_partitions,
    m.DescribeClusterRequest: lambda request, version, error: m.DescribeClusterResponse(
        error_code=error, error_message=ErrorCode(error).meaning
    ),
    m.DescribeTopicPartitionsRequest: _describe_partitions,
    m.DeleteRecordsRequest: _delete_records,
    m.DescribeProducersRequest: _describe_producers,
    m.DescribeLogDirsRequest: lambda request, version, error: m.DescribeLogDirsResponse(error_code=error),
    m.ListPartitionReassignmentsRequest: lambda request, version, error: m.ListPartitionReassignmentsResponse(
        error_code=error, error_message=ErrorCode(error).meaning
    ),
    m.DescribeAclsRequest: lambda request, version, error: m.DescribeAclsResponse(
        error_code=error, error_message=ErrorCode(error).meaning
    ),
    m.CreateAclsRequest: _create_acls,
    m.DeleteAclsRequest: _delete_acls,
    m.DescribeConfigsRequest: _describe_configs,
    m.AlterConfigsRequest: _alter_configs,
    m.IncrementalAlterConfigsRequest: _alter_incrementally,
    m.ListConfigResourcesRequest: lambda request, version, error: m.ListConfigResourcesResponse(error_code=error),
    m.DeleteGroupsRequest: _delete_groups,
    m.ConsumerGroupHeartbeatRequest: _consumer_group_heartbeat,
    m.ConsumerGroupDescribeRequest: _consumer_group_describe,
    m.OffsetDeleteRequest: lambda request, version, error: m.OffsetDeleteResponse(error_code=error),
    m.AddPartitionsToTxnRequest: _add_partitions,
    m.AddOffsetsToTxnRequest: lambda request, version, error: m.AddOffsetsToTxnResponse(error_code=error),
    m.EndTxnRequest: lambda request, version, error: m.EndTxnResponse(error_code=error),
    m.TxnOffsetCommitRequest: _txn_offset_commit,
    m.WriteTxnMarkersRequest: _write_markers,
    m.DescribeTransactionsRequest: _describe_transactions,
    m.ListTransactionsRequest: lambda request, version, error: m.ListTransactionsResponse(error_code=error),
}
