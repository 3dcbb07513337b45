"""How much clients may set for brokers and groups: the number and the size are bounded, and freed again."""

from __future__ import annotations

import pytest

from kcoord_wire.coordinator.partitions.batch_header import Refused
from kcoord_wire.coordinator.topics.configuration import MOST_CHARACTERS, MOST_OWNERS, ConfigQuota
from kcoord_wire.protocol.error_codes import ErrorCode

GROUP = 32
OWN = {"consumer.session.timeout.ms": "50000"}


def test_the_number_of_groups_with_configs_is_bounded() -> None:
    room = ConfigQuota({(GROUP, f"g{number}"): OWN for number in range(MOST_OWNERS - 1)})
    room.take((GROUP, "last"), OWN)
    with pytest.raises(Refused, match="no room for more") as refused:
        room.take((GROUP, "more"), OWN)
    assert refused.value.error == ErrorCode.POLICY_VIOLATION
    room.take((GROUP, "last"), {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "5000"})
    room.take((GROUP, "g0"), {})
    room.take((GROUP, "more"), OWN)


def test_the_size_of_configs_is_bounded() -> None:
    room = ConfigQuota({})
    room.take((4, ""), {"large": "x" * (MOST_CHARACTERS - 100)})
    with pytest.raises(Refused, match="characters together"):
        room.take((GROUP, "g"), {"large": "x" * 100})
    room.take((4, ""), {"large": "x"})
    room.take((GROUP, "g"), {"large": "x" * 100})


def test_nothing_to_remove_takes_no_room() -> None:
    room = ConfigQuota({})
    for number in range(MOST_OWNERS + 1):
        room.take((GROUP, f"g{number}"), {})
    room.take((GROUP, "g"), OWN)
