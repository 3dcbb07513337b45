"""The error codes of the rewrite."""

from __future__ import annotations

from kcoord_wire.central.draft.events import CentralError
from kcoord_wire.central.rewrite.events import RewriteError
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
