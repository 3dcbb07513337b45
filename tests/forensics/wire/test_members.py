"""Members as rows, and the client libraries behind them."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.wire.members import library_of


@pytest.mark.parametrize(
    ("versions", "reasons", "library"),
    [
        ({"JoinGroup": 9, "SyncGroup": 5, "Heartbeat": 4, "OffsetCommit": 9}, ["rebalance failed due to x"], "Java"),
        ({"JoinGroup": 9, "SyncGroup": 5, "Heartbeat": 4, "OffsetCommit": 9}, [], None),
        ({"JoinGroup": 9, "OffsetCommit": 10}, [], "franz-go"),
        ({"JoinGroup": 7, "SyncGroup": 5, "Heartbeat": 4, "LeaveGroup": 5}, [], "kafka-python"),
        ({"JoinGroup": 7, "SyncGroup": 5, "Heartbeat": 4, "LeaveGroup": 4}, [], None),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 1}, [], "aiokafka"),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "OffsetCommit": 9}, [], "librdkafka"),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "OffsetCommit": 5}, [], "kafkajs"),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "OffsetCommit": 7}, [], None),
        ({}, [], None),
    ],
)
def test_a_library_is_named_only_where_it_is_certain(
    versions: dict[str, int], reasons: list[str], library: str | None
) -> None:
    assert library_of(versions, reasons) == library
