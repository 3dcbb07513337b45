"""A log that clients of the Go library wrote, and the requests that they sent."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.registry import decode_request, encode_request
from kcoord_wire.marshal.log import RawEntry, coordination_partition
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import Entry, Outcome, Place, Rules, WorldState

LOG = Path(__file__).parent.parent / "data" / "golden" / "marshal" / "live_log.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in LOG.read_text("utf-8").splitlines()]
ENTRIES = [row for row in ROWS if "marshal_partition" in row]
FRAMES = [row for row in ROWS if "hex" in row]
PARTITIONS = 4


def entry_of(row: dict[str, Any]) -> Entry:
    return read_entry(RawEntry(row["marshal_partition"], row["offset"], -1, False, row["value"].encode()))


def test_each_value_is_read_and_written_back_to_the_byte() -> None:
    assert len(ENTRIES) == 7
    for row in ENTRIES:
        entry = entry_of(row)
        assert row["key_is_nil"]
        assert kw.encode(entry.message, 0) == row["value"].encode()
        assert coordination_partition(entry.message.topic, PARTITIONS) == entry.partition


@pytest.mark.parametrize("rules", list(Rules))
def test_the_state_is_what_the_clients_were_answered(rules: Rules) -> None:
    """The notes: m1 claims, m2 is refused, m1 beats at 5, releases at 6, m2 claims. What was refused was not sent."""
    answers = {row["note"]: row["value"] for row in ROWS if "note" in row}
    assert answers["m1.Claim test2/0"] is answers["m2.Claim test2/0 after release"] is True
    assert answers["m2.Claim test2/0"] is False
    state, place = WorldState(rules, partitions=PARTITIONS), Place("gr.live", "test2", 0)
    seen = []
    for entry in map(entry_of, ENTRIES):
        outcome = state.apply(entry, entry.message.time)
        if entry.message.topic == "test2":
            claim = state.claims[place]
            now = entry.message.time if rules is Rules.LIBRARY else state.log_time_ms(entry.partition)
            seen.append((outcome, claim.client_id if state.is_claimed(claim, now) else "", claim.current_offset))
    assert seen == [
        (Outcome.CLAIMED, "cl-one", 0),
        (Outcome.RENEWED, "cl-one", 5),
        (Outcome.RELEASED, "", 6),
        (Outcome.CLAIMED, "cl-two", 6),
    ]


def test_frames_of_go_clients_are_read_and_written_back() -> None:
    found: dict[str, int] = {}
    for row in FRAMES:
        frame = bytes.fromhex(row["hex"])
        assert len(frame) == 4 + int.from_bytes(frame[:4], "big")
        header, message = decode_request(frame[4:])
        assert header.request_api_key == row["request_kind"]
        version, sent_by = header.request_api_version, header.client_id
        assert encode_request(message, version, correlation_id=header.correlation_id, client_id=sent_by) == frame[4:]
        name = f"{type(message).__name__} {header.request_api_version}"
        found[name] = found.get(name, 0) + 1
    assert found == {
        "MetadataRequest 0": 2,
        "ListOffsetsRequest 0": 2,
        "ProduceRequest 0": 2,
        "FetchRequest 0": 2,
        "FindCoordinatorRequest 0": 2,
        "OffsetCommitRequest 1": 2,
        "OffsetFetchRequest 1": 1,
    }


def test_go_clients_produce_one_message_with_a_null_key() -> None:
    values = [row["value"].encode() for row in ENTRIES]
    for row in FRAMES:
        if row["request_kind"] != 0:
            continue
        _, request = decode_request(bytes.fromhex(row["hex"])[4:])
        assert (request.acks, request.timeout_ms) == (-1, 5_000)
        [topic] = request.topic_data
        [partition] = topic.partition_data
        _, size, crc, magic, attributes, key, length = struct.unpack_from(">qiIbbii", partition.records)
        value = partition.records[-length:]
        assert (topic.name, magic, attributes, key, size) == ("__marshal", 0, 0, -1, len(partition.records) - 12)
        assert zlib.crc32(partition.records[16:]) == crc
        assert entry_of(ENTRIES[values.index(value)]).partition == partition.index
