"""The error codes of the rewrite, and its responses: as bytes of clients 0.8.2 and as refusals."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.central.draft.events import CentralError
from kcoord_wire.central.rewrite.events import SERVED, RewriteError, committed, group_of, joined, refusal
from kcoord_wire.protocol.error_codes import ErrorCode

KEPT = {
    RewriteError.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    RewriteError.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    RewriteError.NOT_COORDINATOR_FOR_GROUP: ErrorCode.NOT_COORDINATOR,
    RewriteError.ILLEGAL_GENERATION: ErrorCode.ILLEGAL_GENERATION,
    RewriteError.INCONSISTENT_STRATEGY: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    RewriteError.UNKNOWN_CONSUMER_ID: ErrorCode.UNKNOWN_MEMBER_ID,
    RewriteError.INVALID_SESSION_TIMEOUT: ErrorCode.INVALID_SESSION_TIMEOUT,
    RewriteError.INVALID_REQUEST: ErrorCode.INVALID_REQUEST,
}


def test_errors_that_kafka_kept_have_its_numbers() -> None:
    assert [(ours, kafkas) for ours, kafkas in KEPT.items() if ours != kafkas] == []


def test_errors_of_this_project_are_not_the_drafts() -> None:
    ours = {RewriteError.ILLEGAL_PROTOCOL_STATE, RewriteError.REBALANCE_FAILED}
    assert ours.isdisjoint(set(CentralError))


COMMIT = m.OffsetCommitRequest(
    group_id="g",
    topics=[m.OffsetCommitRequestTopic(name="t", partitions=[m.OffsetCommitRequestPartition(partition_index=3)])],
)
FETCH = m.OffsetFetchRequest(group_id="g", topics=[m.OffsetFetchRequestTopic(name="t", partition_indexes=[3])])
REQUESTS = (
    COMMIT,
    FETCH,
    m.HeartbeatRequest(group_id="g"),
    m.FindCoordinatorRequest(key="g"),
    m.rewrite.RewriteJoinGroupRequest(group_id="g"),
    m.MetadataRequest(topics=[m.MetadataRequestTopic(name="t")]),
)


def test_a_place_in_a_generation_has_the_bytes_of_clients_0_8_2() -> None:
    """The bytes are of kafka-clients 0.8.2.2, as in tests/codec/test_rewrite.py."""
    response = joined(1, "c-1", {"orders": [0, 2]})
    assert kw.encode(response, 0).hex() == "0000000000010003632d310000000100066f7264657273000000020000000000000002"


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_every_request_is_refused_by_its_own_response(request_: object) -> None:
    response = refusal(request_, RewriteError.NOT_COORDINATOR_FOR_GROUP)  # type: ignore[arg-type]  # one of `Request`
    version = SERVED[type(request_)]  # type: ignore[index]  # likewise
    again = kw.decode(type(response), kw.encode(response, version), version)
    assert type(again).__name__ == type(request_).__name__.replace("Request", "Response")
    assert "error_code=16" in str(again)


def test_all_that_is_served_has_a_refusal() -> None:
    assert {type(request) for request in REQUESTS} == set(SERVED)


def test_commits_have_one_error_for_all_partitions() -> None:
    (topic,) = committed(COMMIT, RewriteError.ILLEGAL_GENERATION).topics
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(3, 22)]


def test_the_group_of_a_request_is_known() -> None:
    assert [group_of(request) for request in REQUESTS] == ["g", "g", "g", "g", "g", ""]
