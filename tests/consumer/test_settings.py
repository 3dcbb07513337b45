"""The consumer's settings: what is rejected, and what the member machine gets."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.assignors import ASSIGNORS, Assignor, RebalanceProtocol
from kcoord_wire.consumer.events import CLIENT_VERSIONS
from kcoord_wire.consumer.settings import ConsumerSettings


def made(**changes: Any) -> ConsumerSettings:
    return ConsumerSettings(**{"bootstrap_servers": "one:9092, [::1]:9093", "group_id": "billing", **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"group_id": ""}, "group_id"),
        ({"bootstrap_servers": []}, "names no server"),
        ({"bootstrap_servers": "nowhere"}, "HOST:PORT"),
        ({"session_timeout_ms": 0}, "session_timeout_ms"),
        ({"max_poll_records": 1 << 31}, "max_poll_records"),
        ({"heartbeat_interval_ms": 45_000}, "less than session_timeout_ms"),
        ({"fetch_max_wait_ms": 30_000}, "less than request_timeout_ms"),
        ({"auto_offset_reset": "smallest"}, "smallest"),
        ({"isolation_level": "dirty"}, "dirty"),
        ({"partition_assignment_strategy": []}, "no assignor"),
        ({"partition_assignment_strategy": ["fair"]}, "fair"),
    ],
)
def test_settings_that_cannot_work_are_rejected(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        made(**changes)


def test_a_strategy_is_a_list() -> None:
    with pytest.raises(TypeError, match="a list"):
        made(partition_assignment_strategy="range")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"group_id": None}, "group_id must be of type str, not None"),
        ({"session_timeout_ms": "5000"}, "session_timeout_ms must be of type int, not '5000'"),
        ({"fetch_max_wait_ms": 0.5}, "fetch_max_wait_ms must be of type int"),
        ({"enable_auto_commit": "false"}, "enable_auto_commit must be of type bool, not 'false'"),
        ({"group_instance_id": 7}, "group_instance_id must be of type str or None"),
        ({"tls": True}, "tls must be of type SSLContext or None"),
        ({"sasl": ("PLAIN", "alice", "secret")}, "sasl must be of type Sasl or None"),
        ({"partition_assignment_strategy": [3]}, "neither a name nor an Assignor"),
    ],
)
def test_values_of_another_type_are_rejected(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        made(**changes)


def test_an_empty_instance_id_is_rejected() -> None:
    with pytest.raises(ValueError, match="group_instance_id must not be empty"):
        made(group_instance_id="")


def test_addresses_and_assignors() -> None:
    assert made().addresses == [("one", 9092), ("::1", 9093)]
    own = Assignor("own", RebalanceProtocol.EAGER, ASSIGNORS["range"].assign)
    assert made(partition_assignment_strategy=[own, "range"]).assignors == [own, ASSIGNORS["range"]]


def test_the_member_has_the_settings_of_the_group() -> None:
    versions = CLIENT_VERSIONS["oldest"]
    member = made(max_poll_interval_ms=9_000, group_instance_id="i", client_rack="r").of_member(versions)
    assert (member.group_id, member.rebalance_timeout_ms, member.group_instance_id) == ("billing", 9_000, "i")
    assert (member.rack, member.versions, member.session_timeout_ms) == ("r", versions, 45_000)
