"""Connections as sightings: opened, closed, broken off, refused."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.exchanges.links import LINK_EVENTS, link_sighting
from kcoord_wire.forensics.model import Frame
from tests.support.wire_samples import batch, match_all


@pytest.mark.parametrize("kind", LINK_EVENTS)
def test_what_happens_to_a_connection_is_a_sighting(kind: str) -> None:
    name = "10.0.0.1:4000-10.0.9.9:9092#1"
    frame = {"time_ns": 5, "source": "a.pcap", "connection": name, "direction": kind, "by": "broker", "error": None}
    seen = link_sighting(frame, "billing-1")
    assert (seen.kind, seen.connection, seen.client_id, seen.by, seen.text) == (kind, name, "billing-1", "broker", None)


def test_a_refused_connection_is_seen() -> None:
    name = "10.0.0.1:4000-10.0.9.9:9092#1"
    frame = Frame("a.kcrec", 0, 0, 7, name, "refused", b"", "Connection refused")
    exchanges, seen, matcher = match_all([batch([frame])])
    assert (exchanges, matcher.losses) == ([], [])
    assert [(row["kind"], row["connection"], row["time_ns"], row["text"]) for row in seen] == [
        ("refused", name, 7, "Connection refused")
    ]
