"""Apache Kafka 4.4 and our coordinator answer the same, field by field, to producers with transactional ids.

transaction_differences.toml lists what differs, with the reason; a line that no exchange needs fails as well.
"""

from __future__ import annotations

import pytest

from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges import SCRIPTS, Script
from tests.interop.exchanges.comparison import TRANSACTIONS, recorded, unexplained, unneeded
from tests.interop.exchanges.played import Played

OF_TRANSACTIONS = [script for script in SCRIPTS if script.settings == "transactions"]


VERSIONS = {
    "InitProducerId": range(6),
    "AddPartitionsToTxn": range(6),
    "AddOffsetsToTxn": range(5),
    "TxnOffsetCommit": range(6),
    "EndTxn": range(4, 6),
    "Produce": range(8, 14),
    "WriteTxnMarkers": range(1, 3),
    "DescribeTransactions": range(1),
    "ListTransactions": range(3),
    "DescribeProducers": range(1),
}
"""What these scripts are to ask."""

CODES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_REGULAR_EXPRESSION,
}
"""What a producer with a transactional id can cause, and a reader of offsets."""


@pytest.mark.parametrize("script", OF_TRANSACTIONS, ids=lambda script: script.name)
def test_same_answers(script: Script, played: Played) -> None:
    found = unexplained(script, played, TRANSACTIONS)
    assert not found, "\n".join(map(str, found))


def test_every_difference_is_needed(played: Played) -> None:
    assert unneeded(OF_TRANSACTIONS, played, TRANSACTIONS) == []


def test_every_version_and_error_code_is_exchanged(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    exchanges = [exchange for s in OF_TRANSACTIONS for exchange in recorded("Kafka", played.kafka[s.name])]
    asked = {(exchange.api, exchange.version) for exchange in exchanges}
    codes = {value for e in exchanges for field, value in e.fields.items() if field.endswith("ErrorCode")}
    with capsys.disabled():
        print(f"\n{len(exchanges)} exchanges with Kafka 4.4 in {len(OF_TRANSACTIONS)} scripts")
    assert {(api, version) for api, versions in VERSIONS.items() for version in versions} <= asked
    assert codes - {ErrorCode.NONE} == CODES
