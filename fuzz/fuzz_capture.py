"""Whatever a capture holds, its bytes are in packets or losses, and those of its connections in frames or losses."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fuzz.traffic import BROKER_PORT, Script, read_script
from kcoord_wire.capture import CaptureError, read_raw_frames
from kcoord_wire.capture.pcap import PCAP_MAGIC, SECTION_MAGIC, salvage_packets
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.sources.frames import read_frames

FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-")
FILE = Path(FOLDER.name, "fuzz.pcap")
FILE_HEADER, SIZE_BYTES = 24, 4
PAYLOAD = ("request", "response", "damage")


def check(data: bytes) -> None:
    """`data`: a pcap or pcapng file, by its first four bytes; else a script of packets (`read_script`)."""
    script = None if data[:4] in {*PCAP_MAGIC, SECTION_MAGIC} else read_script(data)
    file = data if script is None else bytes(script.pcap)
    FILE.write_bytes(file)
    every_byte_is_in_a_packet_or_lost(file)
    every_frame_is_matched_or_lost()
    if script is not None:
        every_byte_of_a_connection_is_accounted_for(script)


def every_byte_is_in_a_packet_or_lost(data: bytes) -> None:
    damage: list[tuple[int, int]] = []
    try:
        packets = list(salvage_packets(data, lambda position, size, _: damage.append((position, size))))
    except CaptureError:
        return
    at = 0
    for position, size in damage:
        assert at <= position < position + size <= len(data), (position, size)
        at = position + size
    if data[:4] in PCAP_MAGIC:
        header = PCAP_MAGIC[data[:4]][2]
        read = sum(header + len(packet.data) for packet in packets)
        assert FILE_HEADER + read + sum(size for _, size in damage) == len(data)


def every_frame_is_matched_or_lost() -> None:
    matcher = Matcher()
    rows = []
    for batch in read_frames(FILE):
        rows += batch.to_pylist()
        matcher.feed(batch)
    matcher.finish()
    assert matcher.counts["frames"] == len(rows)
    # What says why a connection was refused is no loss.
    lost = {(row["position"], row["error"]) for row in rows if row["error"] and row["direction"] != "refused"}
    assert lost <= {(loss.position, loss.what) for loss in matcher.losses}
    assert sum(row["lost"] for row in rows) <= sum(loss.bytes for loss in matcher.losses)


def every_byte_of_a_connection_is_accounted_for(script: Script) -> None:
    """With the broker's port known, no connection is passed over."""
    found = [row for row in read_raw_frames(FILE, ports=[BROKER_PORT]) if row.kind in PAYLOAD]
    accounted = sum(row.lost if row.error else SIZE_BYTES + len(row.body) for row in found)
    assert accounted <= script.sent, (accounted, script.sent)
    assert accounted >= script.captured or not script.plain, (accounted, script.captured)
