"""Apache Kafka and our coordinator say the same, field by field, to everything that the scripts of `exchanges` ask.

differences.toml lists what differs, with the reason; a line that no exchange needs fails as well.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.error_codes import ErrorCode
from tests.interop.exchanges import SCRIPTS, Exchange, Script
from tests.interop.exchanges.played import Outcome, Played

TABLE = Path(__file__).with_name("differences.toml")
ABSENT = "(absent)"

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


@dataclass(frozen=True)
class Difference:
    """A line of the table: where it applies (regular expressions that fit to the end), both sides, and why."""

    id: str
    script: str
    api: str
    field: str
    reason: str
    kafka: str = ".*"
    ours: str = ".*"

    def covers(self, found: Found) -> bool:
        return (
            re.fullmatch(self.script, found.script) is not None
            and re.fullmatch(self.api, found.api) is not None
            and re.fullmatch(self.field, found.field) is not None
            and re.fullmatch(self.kafka, str(found.kafka), re.DOTALL) is not None
            and re.fullmatch(self.ours, str(found.ours), re.DOTALL) is not None
        )


@dataclass(frozen=True)
class Found:
    """One field in which the two answers to one request differ."""

    script: str
    step: int
    api: str
    version: int
    field: str
    kafka: Any
    ours: Any

    def __str__(self) -> str:
        return f"[{self.step}] {self.api} v{self.version} {self.field}: Kafka {self.kafka!r}, ours {self.ours!r}"


@cache
def table() -> list[Difference]:
    return [Difference(**line) for line in tomllib.loads(TABLE.read_text("utf-8"))["difference"]]


def compare(script: Script, kafka: Sequence[Exchange], ours: Sequence[Exchange]) -> Iterator[Found]:
    """Every field that differs."""
    for step, (theirs, mine) in enumerate(zip(kafka, ours, strict=True)):
        assert (theirs.who, theirs.api, theirs.version) == (mine.who, mine.api, mine.version)
        for field in sorted({*theirs.fields, *mine.fields}):
            pair = theirs.fields.get(field, ABSENT), mine.fields.get(field, ABSENT)
            if pair[0] != pair[1]:
                yield Found(script.name, step, theirs.api, theirs.version, field, *pair)


def record(side: str, outcome: Outcome) -> list[Exchange]:
    if isinstance(outcome, Exception):
        raise AssertionError(f"the script does not come to its end on {side}") from outcome
    return outcome


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_same_answers(script: Script, played: Played) -> None:
    kafka, ours = record("Kafka", played.kafka[script.name]), record("ours", played.ours[script.name])
    unexplained = [found for found in compare(script, kafka, ours) if not any(d.covers(found) for d in table())]
    assert not unexplained, "\n".join(map(str, unexplained))


def test_every_difference_is_needed(played: Played) -> None:
    found = [
        f
        for s in SCRIPTS
        for f in compare(s, record("Kafka", played.kafka[s.name]), record("ours", played.ours[s.name]))
    ]
    unused = [difference.id for difference in table() if not any(difference.covers(f) for f in found)]
    assert not unused
    assert all(difference.reason for difference in table())
    assert len({difference.id for difference in table()}) == len(table())


def test_every_version_and_error_code_is_exchanged(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    exchanges = [exchange for s in SCRIPTS for exchange in record("Kafka", played.kafka[s.name])]
    counts = Counter((exchange.api, exchange.version) for exchange in exchanges if "outcome" not in exchange.fields)
    codes = Counter(value for e in exchanges for field, value in e.fields.items() if field.endswith("ErrorCode"))
    with capsys.disabled():
        print(f"\n{len(exchanges)} exchanges with Kafka in {len(SCRIPTS)} scripts; answers by version:")
        for api, versions in VERSIONS.items():
            print(f"  {api:16}", *(f"v{version}:{counts[api, version]}" for version in versions))
        print("  fields with an error code:", *(f"{ErrorCode(c).name}:{n}" for c, n in sorted(codes.items()) if c))
    missing = [(api, version) for api, versions in VERSIONS.items() for version in versions if not counts[api, version]]
    assert not missing
    assert set(codes) - {ErrorCode.NONE} == CODES
    assert len(exchanges) >= 2000
