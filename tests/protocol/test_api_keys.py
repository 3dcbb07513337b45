"""The api key table: no gaps, no doubles, and the keys that everyone relies on."""

from __future__ import annotations

import pytest

from kcoord_wire.protocol.api_keys import API_NAMES, api_name


def test_keys_run_from_0_to_94_with_a_name_each() -> None:
    assert sorted(API_NAMES) == list(range(95))
    assert len(set(API_NAMES.values())) == 95


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (0, "Produce"),
        (1, "Fetch"),
        (2, "ListOffsets"),
        (3, "Metadata"),
        (7, "ControlledShutdown"),
        (8, "OffsetCommit"),
        (9, "OffsetFetch"),
        (10, "FindCoordinator"),
        (11, "JoinGroup"),
        (12, "Heartbeat"),
        (13, "LeaveGroup"),
        (14, "SyncGroup"),
        (15, "DescribeGroups"),
        (16, "ListGroups"),
        (17, "SaslHandshake"),
        (18, "ApiVersions"),
        (22, "InitProducerId"),
        (23, "OffsetForLeaderEpoch"),
        (28, "TxnOffsetCommit"),
        (36, "SaslAuthenticate"),
        (42, "DeleteGroups"),
        (47, "OffsetDelete"),
        (59, "FetchSnapshot"),
        (68, "ConsumerGroupHeartbeat"),
        (69, "ConsumerGroupDescribe"),
        (71, "GetTelemetrySubscriptions"),
        (76, "ShareGroupHeartbeat"),
        (77, "ShareGroupDescribe"),
        (78, "ShareFetch"),
        (79, "ShareAcknowledge"),
        (88, "StreamsGroupHeartbeat"),
        (89, "StreamsGroupDescribe"),
        (90, "DescribeShareGroupOffsets"),
        (92, "DeleteShareGroupOffsets"),
        (93, "StreamsGroupTopologyDescriptionUpdate"),
        (94, "UnregisterController"),
    ],
)
def test_keys_have_their_names(key: int, name: str) -> None:
    assert API_NAMES[key] == api_name(key) == name


@pytest.mark.parametrize("key", [-1, 95, 123, 32767])
def test_a_key_without_a_name_gets_one(key: int) -> None:
    assert api_name(key) == f"UnknownApi{key}"
