"""The error table: numbers that are on the wire for ever, names that people know."""

from __future__ import annotations

import pytest

from kcoord_wire.protocol.error_codes import EARLY_NAMES, ErrorCode, describe_error
from tests.support.each import each

# The codes that coordinators send. The numbers are those of Kafka's Errors.java.
GROUP_CODES = {
    "UNKNOWN_SERVER_ERROR": -1,
    "NONE": 0,
    "OFFSET_OUT_OF_RANGE": 1,
    "UNKNOWN_TOPIC_OR_PARTITION": 3,
    "LEADER_NOT_AVAILABLE": 5,
    "NOT_LEADER_OR_FOLLOWER": 6,
    "REQUEST_TIMED_OUT": 7,
    "OFFSET_METADATA_TOO_LARGE": 12,
    "COORDINATOR_LOAD_IN_PROGRESS": 14,
    "COORDINATOR_NOT_AVAILABLE": 15,
    "NOT_COORDINATOR": 16,
    "ILLEGAL_GENERATION": 22,
    "INCONSISTENT_GROUP_PROTOCOL": 23,
    "INVALID_GROUP_ID": 24,
    "UNKNOWN_MEMBER_ID": 25,
    "INVALID_SESSION_TIMEOUT": 26,
    "REBALANCE_IN_PROGRESS": 27,
    "INVALID_COMMIT_OFFSET_SIZE": 28,
    "TOPIC_AUTHORIZATION_FAILED": 29,
    "GROUP_AUTHORIZATION_FAILED": 30,
    "CLUSTER_AUTHORIZATION_FAILED": 31,
    "UNSUPPORTED_SASL_MECHANISM": 33,
    "ILLEGAL_SASL_STATE": 34,
    "UNSUPPORTED_VERSION": 35,
    "INVALID_REQUEST": 42,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": 53,
    "SASL_AUTHENTICATION_FAILED": 58,
    "NON_EMPTY_GROUP": 68,
    "GROUP_ID_NOT_FOUND": 69,
    "FETCH_SESSION_ID_NOT_FOUND": 70,
    "INVALID_FETCH_SESSION_EPOCH": 71,
    "FENCED_LEADER_EPOCH": 74,
    "UNKNOWN_LEADER_EPOCH": 75,
    "MEMBER_ID_REQUIRED": 79,
    "GROUP_MAX_SIZE_REACHED": 81,
    "FENCED_INSTANCE_ID": 82,
    "GROUP_SUBSCRIBED_TO_TOPIC": 86,
    "UNSTABLE_OFFSET_COMMIT": 88,
    "PRODUCER_FENCED": 90,
    "UNKNOWN_TOPIC_ID": 100,
    "FENCED_MEMBER_EPOCH": 110,
    "UNRELEASED_INSTANCE_ID": 111,
    "UNSUPPORTED_ASSIGNOR": 112,
    "STALE_MEMBER_EPOCH": 113,
    "TRANSACTION_ABORTABLE": 120,
    "INVALID_REGULAR_EXPRESSION": 128,
    "REBOOTSTRAP_REQUIRED": 129,
    "STREAMS_INVALID_TOPOLOGY": 130,
    "STREAMS_INVALID_TOPOLOGY_EPOCH": 131,
    "STREAMS_TOPOLOGY_FENCED": 132,
    "GROUP_DELETION_FAILED": 134,
    "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED": 135,
}

# Those whose exception class is a RetriableException in Kafka's clients.
RETRIABLE = {
    *(2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89),
    *(100, 103, 106, 122, 123, 133),
}


def test_every_number_stands_exactly_once() -> None:
    # __members__ holds aliases too: two names with one number would make it longer than the enum.
    assert [int(code) for code in ErrorCode] == list(range(-1, 137))
    assert len(ErrorCode.__members__) == 138


@each("name, number", GROUP_CODES.items())
def test_group_codes_have_their_numbers(name: str, number: int) -> None:
    assert ErrorCode[name] == number


def test_retriable_is_what_kafkas_clients_retry() -> None:
    assert {int(code) for code in ErrorCode if code.retriable} == RETRIABLE


def test_each_meaning_is_one_sentence_of_its_own() -> None:
    meanings = [code.meaning for code in ErrorCode]
    assert len(set(meanings)) == len(meanings)
    for meaning in meanings:
        assert meaning.endswith(".")
        assert "\n" not in meaning


@each("code", ErrorCode)
def test_a_number_leads_back_to_its_code(code: ErrorCode) -> None:
    assert ErrorCode(int(code)) is code
    assert describe_error(int(code)) == f"{int(code)} {code.name}"


@pytest.mark.parametrize("number", [-32768, -2, 137, 999, 32767])
def test_an_unknown_number_is_described_too(number: int) -> None:
    assert describe_error(number) == f"{number} (unknown error code)"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("CoordinatorStartupNotComplete", 14),
        ("NotCoordinatorForGroup", 16),
        ("IllegalGeneration", 22),
        ("UnknownConsumer", 25),
        ("OffsetsLoadInProgress", 14),
        ("UNKNOWN_PARTITION_ASSIGNMENT_STRATEGY", 24),
        ("COMMITTING_PARTITIONS_NOT_ASSIGNED", 27),
        ("AUTHORIZATION_FAILED", 29),
        ("GROUP_LOAD_IN_PROGRESS", 14),
        ("NOT_COORDINATOR_FOR_GROUP", 16),
        ("MEMBER_ID_MISMATCH", 82),
    ],
)
def test_early_names_have_the_numbers_they_stood_for(name: str, number: int) -> None:
    assert EARLY_NAMES[name] == number


def test_early_names_are_early_and_their_numbers_known() -> None:
    assert not set(EARLY_NAMES) & set(ErrorCode.__members__)
    assert set(EARLY_NAMES.values()) <= set(map(int, ErrorCode))
