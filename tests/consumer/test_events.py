"""The versions of client libraries."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire.consumer.member_events import CLIENT_VERSIONS
from kcoord_wire.protocol.api_keys import ApiKey

APIS = {
    "find_coordinator": ApiKey.FIND_COORDINATOR,
    "join": ApiKey.JOIN_GROUP,
    "sync": ApiKey.SYNC_GROUP,
    "heartbeat": ApiKey.HEARTBEAT,
    "leave": ApiKey.LEAVE_GROUP,
    "commit": ApiKey.OFFSET_COMMIT,
    "fetch": ApiKey.OFFSET_FETCH,
    "metadata": ApiKey.METADATA,
    "consumer_heartbeat": ApiKey.CONSUMER_GROUP_HEARTBEAT,
}


@pytest.mark.parametrize("client", CLIENT_VERSIONS)
def test_every_version_of_a_client_exists(client: str) -> None:
    versions = CLIENT_VERSIONS[client]
    assert set(versions._fields) == set(APIS)
    for name, api in APIS.items():
        assert getattr(versions, name) in kw.registry.request(api).valid_versions
