"""Which addresses clients see: only hosts and ports of a response change, or nothing does."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire.recorder.addresses import AddressError, rewrite_addresses
from tests.support.metadata import metadata


@pytest.mark.parametrize("version", range(14))
def test_metadata_with_other_addresses(version: int) -> None:
    body = metadata(version, correlation_id=77)
    new = rewrite_addresses(body, 3, version, lambda host, port: (f"proxy-of-{host}", port + 1))
    assert new is not None
    before, after = (kw.decode_response(each, 3, version) for each in (body, new))
    assert after[0].correlation_id == 77
    assert [(b.host, b.port) for b in after[1].brokers] == [("proxy-of-kafka-1", 9093), ("proxy-of-kafka-2", 9093)]
    for broker, old in zip(after[1].brokers, before[1].brokers, strict=True):
        broker.host, broker.port = old.host, old.port
    assert after == before
    assert rewrite_addresses(body, 3, version, lambda host, port: None) is None
    assert rewrite_addresses(body, 3, version, lambda host, port: (host, port)) is None


@pytest.mark.parametrize("version", range(7))
def test_coordinators_with_other_addresses(version: int) -> None:
    places: list[tuple[str, int]] = []

    def replacement(host: str, port: int) -> tuple[str, int]:
        places.append((host, port))
        return "proxy", 1

    if version < 4:
        message = kw.FindCoordinatorResponse(node_id=3, host="kafka-3", port=9092, error_message=None)
    else:
        found = kw.FindCoordinatorResponseCoordinator(key="g", node_id=3, host="kafka-3", port=9092)
        lost = kw.FindCoordinatorResponseCoordinator(key="h", node_id=-1, host="", port=-1, error_code=15)
        message = kw.FindCoordinatorResponse(coordinators=[found, lost])
    new = rewrite_addresses(kw.encode_response(message, version), 10, version, replacement)
    assert new is not None
    decoded = kw.decode_response(new, 10, version)[1]
    seen = [(c.host, c.port) for c in decoded.coordinators] if version >= 4 else [(decoded.host, decoded.port)]
    assert seen == [("proxy", 1), ("", -1)][: len(seen)]
    assert places == [("kafka-3", 9092)]


@pytest.mark.parametrize("version", range(3))
def test_a_cluster_with_other_addresses(version: int) -> None:
    brokers = [
        kw.DescribeClusterResponseDescribeClusterBroker(broker_id=n, host=f"kafka-{n}", port=9092) for n in (1, 2)
    ]
    body = kw.encode_response(kw.DescribeClusterResponse(cluster_id="c", brokers=brokers), version)
    new = rewrite_addresses(body, 60, version, lambda host, port: (f"proxy-of-{host}", port + 1))
    assert new is not None
    after = kw.decode_response(new, 60, version)[1]
    assert [(b.host, b.port) for b in after.brokers] == [("proxy-of-kafka-1", 9093), ("proxy-of-kafka-2", 9093)]


def test_unknown_tagged_fields_stay() -> None:
    body = metadata(12)
    tags = b"\x01\x63\x03new"  # one field, number 99
    assert body[4] == body[-1] == 0
    body = body[:4] + tags + body[5:-1] + tags
    new = rewrite_addresses(body, 3, 12, lambda host, port: ("a-host-of-mine", port))
    assert new is not None
    assert new[4:10] == tags
    assert new.endswith(tags)


def test_a_response_is_rewritten_wholly_or_refused() -> None:
    body = metadata(12)
    for size in range(len(body)):
        with pytest.raises(AddressError):
            rewrite_addresses(body[:size], 3, 12, lambda host, port: ("x", 1))
    with pytest.raises(AddressError, match="version 14 is not known"):
        rewrite_addresses(body, 3, 14, lambda host, port: ("x", 1))
    with pytest.raises(AddressError):
        rewrite_addresses(body, 3, 12, lambda host, port: ("x" * 70_000, 2**40))
