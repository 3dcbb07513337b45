"""What a client of one connection says to join a group, to commit, and to wait; shared by tests of a real socket."""

from __future__ import annotations

from typing import Any

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.wire import Wire

SUBSCRIPTION = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=["orders"]), 1)


VERSIONS = kw.ApiVersionsRequest(client_software_name="test", client_software_version="1")


SOON = 60.0  # seconds: far more than anything here takes, also on a busy machine


def join_request(group: str, member_id: str = "", **fields: Any) -> kw.JoinGroupRequest:
    return kw.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[kw.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
        **fields,
    )


def join(wire: Wire, group: str) -> kw.JoinGroupResponse:
    """Be the first member of a group, with the id that it gives."""
    first = wire.call(join_request(group), 9)
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined: kw.JoinGroupResponse = wire.call(join_request(group, first.member_id), 9)
    assert joined.error_code == 0
    return joined


def become_stable(wire: Wire, group: str) -> kw.HeartbeatRequest:
    """Be the only member of a group, and have an assignment. The heartbeat to send from then on."""
    joined = join(wire, group)
    mine = kw.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    asked = kw.SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[mine],
    )
    synced = wire.call(asked, 5)
    assert (synced.error_code, synced.assignment) == (0, b"all")
    return kw.HeartbeatRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)


def commit_request(group: str, offset: int) -> kw.OffsetCommitRequest:
    partition = kw.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return kw.OffsetCommitRequest(
        group_id=group, topics=[kw.OffsetCommitRequestTopic(name="orders", partitions=[partition])]
    )


def commit(wire: Wire, group: str, offset: int) -> int:
    """Commit an offset as a group without members does. The error code."""
    code: int = wire.call(commit_request(group, offset), 8).topics[0].partitions[0].error_code
    return code


def committed(wire: Wire, group: str) -> int:
    topic = kw.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
    answer = wire.call(kw.OffsetFetchRequest(group_id=group, topics=[topic]), 7)
    assert answer.error_code == 0
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def request_bytes(request: Any, version: int, correlation_id: int, client_id: str | None = "x") -> bytes:
    return kw.frame(kw.encode_request(request, version, correlation_id=correlation_id, client_id=client_id))
