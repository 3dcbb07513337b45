"""The checks of RegisterConsumer (section 7): error codes, and connections that stay open."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.central.draft.events import CentralError, CoordinatorSettings
from kcoord_wire.central.draft.groups import RegistrationError, check_registration
from kcoord_wire.messages import central as m
from tests.support.draft_cluster import DraftCluster


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, CentralError.INVALID_GROUP_ID),
        ({"group": "a/b"}, CentralError.INVALID_GROUP_ID),
        ({"group": "."}, CentralError.INVALID_GROUP_ID),
        ({"group": ".."}, CentralError.INVALID_GROUP_ID),
        ({"group": "a\0b"}, CentralError.INVALID_GROUP_ID),
        ({"group": "x" * 256}, CentralError.INVALID_GROUP_ID),
        ({"group": "coordinator"}, CentralError.INVALID_GROUP_ID),
        ({"group": "coordinator_epoch"}, CentralError.INVALID_GROUP_ID),
        ({"session_timeout_ms": 999}, CentralError.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": -1}, CentralError.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 300_001}, CentralError.INVALID_SESSION_TIMEOUT),
        ({"topics": "orders"}, CentralError.INVALID_TOPIC_COUNT),
        ({"topics": "*1*("}, CentralError.INVALID_TOPIC_COUNT),
        ({"auto_offset_rest": "none"}, CentralError.INVALID_OFFSET_RESET),
    ],
)
def test_what_is_wrong_is_refused_with_its_code(fields: dict[str, Any], error: CentralError) -> None:
    cluster = DraftCluster()
    consumer = cluster.consumer("a", **fields)
    assert consumer.inbox == [m.RegisterConsumerResponse(error_code=error)]
    assert consumer.is_open
    (noted,) = cluster.brokers[1].noted("registration refused")
    assert (noted["error"], noted["consumer"]) == (error.name, "a")
    assert cluster.brokers[1].machine.describe().groups == ()


@pytest.mark.parametrize("consumer_id", ["", "a/b", "\0", "..", "x" * 256, "a\nb", "\x7f", "\ud800"])
def test_ids_of_consumers_are_names_of_nodes(consumer_id: str) -> None:
    request = m.RegisterConsumerRequest(group_id="g", consumer_id=consumer_id)
    with pytest.raises(RegistrationError) as refused:
        check_registration(request, {}, CoordinatorSettings())
    assert refused.value.error is CentralError.INVALID_CONSUMER_ID


def test_the_same_id_in_another_group_is_no_duplicate() -> None:
    cluster = DraftCluster()
    cluster.consumer("a")
    assert cluster.consumer("a", group="h").inbox[0] == m.RegisterConsumerResponse()
    assert cluster.consumer("a").inbox == [m.RegisterConsumerResponse(error_code=CentralError.DUPLICATE_CONSUMER_ID)]


def test_the_least_session_timeout_is_a_setting() -> None:
    cluster = DraftCluster(min_session_timeout_ms=5_000)
    refused = m.RegisterConsumerResponse(error_code=CentralError.INVALID_SESSION_TIMEOUT)
    assert cluster.consumer("a", session_timeout_ms=4_999).inbox == [refused]
    assert cluster.consumer("a", session_timeout_ms=5_000).inbox == [m.RegisterConsumerResponse()]
