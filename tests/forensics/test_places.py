"""Evidence names the packet that Wireshark shows, or the byte of a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.capture.pcap import read_packets
from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import Evidence
from kcoord_wire.recorder.recording import Recorded, read_recording, recording_files
from tests.support.recordings import record_capture

CAPTURES = Path(__file__).parents[1] / "data" / "captures"


def facts_of(path: Path) -> list[Evidence]:
    (history,) = analyze([path]).histories
    found = [fact for row in [*history.rebalances, *history.findings] for fact in row.evidence]
    assert len(found) > 5
    return found


@pytest.mark.parametrize("name", ["eager_range", "aiokafka"])
def test_a_fact_of_a_capture_has_the_number_of_its_packet(name: str) -> None:
    """The packet of that number, counted from 1, was captured when the frame was complete."""
    path = CAPTURES / f"{name}.pcap"
    with path.open("rb") as file:
        times = [packet.time_ns for packet in read_packets(file, lambda damage: None)]
    facts = facts_of(path)
    placed = [fact for fact in facts if fact.position is not None]
    assert len(placed) > len(facts) // 2
    assert all(times[fact.position - 1] == fact.time_ns for fact in placed if fact.position is not None)
    assert {fact.position is None for fact in facts if fact.seq < 0} <= {True}


def test_a_fact_of_a_recording_has_the_byte_of_its_record(tmp_path: Path) -> None:
    record_capture(tmp_path, CAPTURES / "eager_range.pcap")
    (path,) = recording_files(tmp_path)
    records = {found.position: found for found in read_recording(path) if isinstance(found, Recorded)}
    placed = [fact for fact in facts_of(path) if fact.position is not None]
    assert placed
    assert all(records[fact.position].time_ns == fact.time_ns for fact in placed if fact.position is not None)
