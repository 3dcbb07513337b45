"""The draft's events: the numbers of its errors."""

from __future__ import annotations

from kcoord_wire.central.draft.events import CentralError
from kcoord_wire.protocol.error_codes import ErrorCode


def test_errors_that_kafka_has_too_have_its_numbers() -> None:
    shared = {error.name: error.value for error in CentralError if error.name in ErrorCode.__members__}
    assert shared == {name: ErrorCode[name].value for name in shared}
    assert set(shared) == {
        "NONE",
        "OFFSET_OUT_OF_RANGE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "NOT_COORDINATOR",
        "INVALID_GROUP_ID",
        "INVALID_SESSION_TIMEOUT",
    }


def test_other_errors_have_numbers_of_their_own() -> None:
    own = [error for error in CentralError if error.name not in ErrorCode.__members__]
    assert [error.value for error in own] == [100, 101, 102, 103, 104, 105]
