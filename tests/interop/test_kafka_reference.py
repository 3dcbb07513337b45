"""Apache Kafka and our coordinator say the same, field by field, to everything that the scripts of `exchanges` ask.

differences.toml lists what differs, with the reason; a line that no exchange needs fails as well.
"""

from __future__ import annotations

from collections import Counter

import pytest

from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges import SCRIPTS, VERSION_OF, Script
from tests.interop.exchanges.comparison import CLASSIC, recorded, unexplained, unneeded
from tests.interop.exchanges.played import Played

VERSIONS = {
    "OffsetCommit": range(10),
    "OffsetFetch": range(10),
    "FindCoordinator": range(7),
    "JoinGroup": range(10),
    "Heartbeat": range(5),
    "LeaveGroup": range(6),
    "SyncGroup": range(6),
    "DescribeGroups": range(6),
    "ListGroups": range(6),
    "ApiVersions": range(5),
    "DeleteGroups": range(3),
    "OffsetDelete": range(1),
}
"""Every version of Kafka 3.9."""

CODES = {
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.INVALID_SESSION_TIMEOUT,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NON_EMPTY_GROUP,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
}
"""What a client can cause on a broker that is up, without security and without transactions."""


CLASSIC_SCRIPTS = [script for script in SCRIPTS if script.settings not in VERSION_OF]


@pytest.mark.parametrize("script", CLASSIC_SCRIPTS, ids=lambda script: script.name)
def test_same_answers(script: Script, played: Played) -> None:
    found = unexplained(script, played, CLASSIC)
    assert not found, "\n".join(map(str, found))


def test_every_difference_is_needed(played: Played) -> None:
    assert unneeded(CLASSIC_SCRIPTS, played, CLASSIC) == []


def test_every_version_and_error_code_is_exchanged(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    exchanges = [exchange for s in CLASSIC_SCRIPTS for exchange in recorded("Kafka", played.kafka[s.name])]
    counts = Counter((exchange.api, exchange.version) for exchange in exchanges if "outcome" not in exchange.fields)
    codes = Counter(value for e in exchanges for field, value in e.fields.items() if field.endswith("ErrorCode"))
    with capsys.disabled():
        print(f"\n{len(exchanges)} exchanges with Kafka in {len(CLASSIC_SCRIPTS)} scripts; answers by version:")
        for api, versions in VERSIONS.items():
            print(f"  {api:16}", *(f"v{version}:{counts[api, version]}" for version in versions))
        print("  fields with an error code:", *(f"{ErrorCode(c).name}:{n}" for c, n in sorted(codes.items()) if c))
    missing = [(api, version) for api, versions in VERSIONS.items() for version in versions if not counts[api, version]]
    assert not missing
    assert set(codes) - {ErrorCode.NONE} == CODES
    assert len(exchanges) >= 2000
