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


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"host": 1, "port": 2}', b'{"host": "h", "port": "2"}', b"\xff"])
def test_other_data_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011, the standard library's texts
        layout.parse_broker(data)
