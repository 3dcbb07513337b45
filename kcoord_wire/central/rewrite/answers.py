"""The responses of the rewrite's coordinator, and how each request is refused.

With an error, a response has what the constructors of kafka-clients 0.8.2 give it: generation -1 and an empty consumer
id, node -1, offset -1.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from kcoord_wire import messages as m
from kcoord_wire.assignors import Partitions
from kcoord_wire.central.rewrite.events import RewriteError

Request: TypeAlias = (
    m.rewrite.RewriteJoinGroupRequest
    | m.HeartbeatRequest
    | m.FindCoordinatorRequest
    | m.OffsetCommitRequest
    | m.OffsetFetchRequest
    | m.MetadataRequest
)
SERVED: Final = {
    m.MetadataRequest: 0,
    m.OffsetCommitRequest: 1,
    m.OffsetFetchRequest: 1,
    m.FindCoordinatorRequest: 0,
    m.rewrite.RewriteJoinGroupRequest: 0,
    m.HeartbeatRequest: 0,
}
"""The requests that a broker answers, each with its version."""


def group_of(request: Request) -> str:
    """Return the group that a request is about; empty for none."""
    if isinstance(request, m.FindCoordinatorRequest):
        return request.key
    return "" if isinstance(request, m.MetadataRequest) else request.group_id


def joined(generation: int, consumer_id: str, partitions: Partitions) -> m.rewrite.RewriteJoinGroupResponse:
    """Return a member's place in a generation."""
    return m.rewrite.RewriteJoinGroupResponse(
        generation_id=generation,
        consumer_id=consumer_id,
        assigned_partitions=[
            m.rewrite.RewriteJoinGroupResponseAssignedTopic(topic=topic, partitions=list(partitions[topic]))
            for topic in sorted(partitions)
        ],
    )


def committed(request: m.OffsetCommitRequest, error: RewriteError) -> m.OffsetCommitResponse:
    """Return one outcome for every partition of a commit."""
    return m.OffsetCommitResponse(
        topics=[
            m.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    m.OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refusal(
    request: Request, error: RewriteError
) -> (
    m.rewrite.RewriteJoinGroupResponse
    | m.HeartbeatResponse
    | m.FindCoordinatorResponse
    | m.OffsetCommitResponse
    | m.OffsetFetchResponse
    | m.MetadataResponse
):
    """Return the response to a request that is refused."""
    match request:
        case m.rewrite.RewriteJoinGroupRequest():
            return m.rewrite.RewriteJoinGroupResponse(error_code=error, generation_id=-1)
        case m.HeartbeatRequest():
            return m.HeartbeatResponse(error_code=error)
        case m.FindCoordinatorRequest():
            return m.FindCoordinatorResponse(error_code=error, node_id=-1, port=-1)
        case m.OffsetCommitRequest():
            return committed(request, error)
        case m.OffsetFetchRequest():
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
        case m.MetadataRequest():
            return m.MetadataResponse(
                topics=[m.MetadataResponseTopic(name=topic.name, error_code=error) for topic in request.topics or ()]
            )
