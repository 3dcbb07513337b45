"""Apache Kafka 4.4 and our coordinator say the same, field by field, to everything that AdminClients ask of topics.

topic_differences.toml lists what differs, with the reason; a line that no exchange needs fails as well.
"""

from __future__ import annotations

import pytest

from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges import SCRIPTS, Script
from tests.interop.exchanges.comparison import TOPICS, recorded, unexplained, unneeded
from tests.interop.exchanges.played import Played

ABOUT_TOPICS = [script for script in SCRIPTS if script.settings == "topics"]

APIS = {
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "DescribeTopicPartitions",
    "DescribeConfigs",
    "IncrementalAlterConfigs",
    "AlterConfigs",
    "DescribeCluster",
    "DescribeAcls",
    "ListPartitionReassignments",
}
CODES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.TOPIC_ALREADY_EXISTS,
    ErrorCode.INVALID_PARTITIONS,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.INVALID_CONFIG,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.SECURITY_DISABLED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.MISMATCHED_ENDPOINT_TYPE,
    ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
}
"""What AdminClients can cause without security."""


@pytest.mark.parametrize("script", ABOUT_TOPICS, ids=lambda script: script.name)
def test_same_answers(script: Script, played: Played) -> None:
    found = unexplained(script, played, TOPICS)
    assert not found, "\n".join(map(str, found))


def test_every_difference_is_needed(played: Played) -> None:
    assert unneeded(ABOUT_TOPICS, played, TOPICS) == []


def test_every_api_and_error_code_is_exchanged(played: Played) -> None:
    exchanges = [exchange for s in ABOUT_TOPICS for exchange in recorded("Kafka", played.kafka[s.name])]
    codes = {value for e in exchanges for field, value in e.fields.items() if field.endswith("ErrorCode")}
    assert {exchange.api for exchange in exchanges} >= APIS
    assert codes - {ErrorCode.NONE} == CODES
