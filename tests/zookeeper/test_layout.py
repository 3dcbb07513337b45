"""The old consumer layout: paths as "the 0.8 consumer-coordinator draft" names them, section 4."""

from __future__ import annotations

import pytest

from kcoord_wire.zookeeper import layout


def test_paths_are_those_of_the_draft() -> None:
    assert layout.COORDINATOR == "/consumers/coordinator"
    assert layout.broker_path(3) == "/brokers/ids/3"
    assert layout.topic_path("orders") == "/brokers/topics/orders"
    assert layout.owner_path("g", "orders", "3-0") == "/consumers/g/owners/orders/3-0"
    assert layout.offset_path("g", "orders", "3-0") == "/consumers/g/offsets/orders/3-0"


def test_a_brokers_registration_is_read_back() -> None:
    assert layout.parse_broker(layout.broker_record("h", 9092)) == ("h", 9092)


JUNK = [b"x", b"[]", b"{}", b'{"host": 1, "port": 2}', b'{"host": "h", "port": "2"}', b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("data", JUNK)
def test_other_data_is_refused_with_what_it_should_be(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not a broker's registration: "):
        layout.parse_broker(data)
    with pytest.raises(ValueError, match=r"^not a group's record: "):
        layout.parse_group(data)
