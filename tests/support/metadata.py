"""Metadata responses that name brokers."""

from __future__ import annotations

import kcoord_wire as kw


def metadata(version: int, hosts: tuple[str, ...] = ("kafka-1", "kafka-2"), correlation_id: int = 0) -> bytes:
    """A response body with a broker for each host, numbered from 0, at port 9092."""
    brokers = [kw.MetadataResponseBroker(node_id=n, host=host, port=9092, rack="r") for n, host in enumerate(hosts)]
    message = kw.MetadataResponse(brokers=brokers, controller_id=1, topics=[])
    return kw.encode_response(message, version, correlation_id=correlation_id)
