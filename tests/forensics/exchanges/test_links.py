"""Connections as sightings: opened, closed, broken off, refused."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from kcoord_wire.forensics.exchanges.links import LINK_EVENTS, link_sighting
from kcoord_wire.forensics.model import Frame
from tests.support.wire_samples import batch, match_all


@pytest.mark.parametrize("kind", LINK_EVENTS)
def test_what_happens_to_a_connection_is_a_sighting(kind: str) -> None:
    name = "10.0.0.1:4000-10.0.9.9:9092#1"
    frame = Frame("a.pcap", 0, 0, 5, name, kind, b"", by="broker")
    seen = link_sighting(asdict(frame), "billing-1")
    assert (seen.kind, seen.connection, seen.client_id, seen.by, seen.text) == (kind, name, "billing-1", "broker", None)


def test_a_refused_connection_is_seen() -> None:
    name = "10.0.0.1:4000-10.0.9.9:9092#1"
    frame = Frame("a.kcrec", 0, 0, 7, name, "refused", b"", "Connection refused")
    exchanges, seen, matcher = match_all([batch([frame])])
    assert (exchanges, matcher.losses) == ([], [])
    assert [(row["kind"], row["connection"], row["time_ns"], row["text"]) for row in seen] == [
        ("refused", name, 7, "Connection refused")
    ]


def test_missing_bytes_are_seen_unless_they_hide_nothing() -> None:
    name = "10.0.0.1:4000-10.0.9.9:9092#1"
    hole = Frame("a.pcap", 1, 9, 7, name, "damage", b"", "request: bytes were not captured", 50, "client", 3)
    harmless = Frame("a.pcap", 2, 9, 8, name, "damage", b"", "response: bytes of the data", 5000, "broker")
    _, seen, matcher = match_all([batch([hole, harmless])])
    assert [loss.bytes for loss in matcher.losses] == [50, 5000]
    assert [(row["kind"], row["connection"], row["since_ns"], row["time_ns"], row["by"]) for row in seen] == [
        ("hole", name, 3, 7, "client")
    ]
