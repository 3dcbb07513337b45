"""Apache Kafka 4.4 and our coordinator say the same, field by field, to everything that the scripts of consumer groups
(KIP-848) and of migration ask.

consumer_group_differences.toml lists what differs, with the reason; a line that no exchange needs fails as well.
"""

from __future__ import annotations

import pytest

from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges import SCRIPTS, Script
from tests.interop.exchanges.comparison import CONSUMER_GROUPS, recorded, unexplained, unneeded
from tests.interop.exchanges.played import Played

NEW = [script for script in SCRIPTS if script.settings.startswith("consumer")]

VERSIONS = {"ConsumerGroupHeartbeat": range(2), "ConsumerGroupDescribe": range(2), "OffsetCommit": range(9, 11)}
"""What these scripts are to ask besides what those of the classic protocol do."""

CODES = {
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.UNSUPPORTED_ASSIGNOR,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.INVALID_REGULAR_EXPRESSION,
    ErrorCode.NON_EMPTY_GROUP,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
}
"""What a member of the newer protocol can cause, and an operator of its group."""


@pytest.mark.parametrize("script", NEW, ids=lambda script: script.name)
def test_same_answers(script: Script, played: Played) -> None:
    found = unexplained(script, played, CONSUMER_GROUPS)
    assert not found, "\n".join(map(str, found))


def test_every_difference_is_needed(played: Played) -> None:
    assert unneeded(NEW, played, CONSUMER_GROUPS) == []


def test_every_version_and_error_code_is_exchanged(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    exchanges = [exchange for s in NEW for exchange in recorded("Kafka", played.kafka[s.name])]
    asked = {(exchange.api, exchange.version) for exchange in exchanges}
    codes = {value for e in exchanges for field, value in e.fields.items() if field.endswith("ErrorCode")}
    with capsys.disabled():
        print(f"\n{len(exchanges)} exchanges with Kafka 4.4 in {len(NEW)} scripts")
    assert {(api, version) for api, versions in VERSIONS.items() for version in versions} <= asked
    assert codes >= CODES
