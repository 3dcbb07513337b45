"""A single fault in a file is reported as that, and changes nothing else that is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.sources.frames import read_log
from kcoord_wire.records import Record, encode_batch
from tests.support.packets import Line, capture, talk
from tests.support.record_bomb import repeated_record

CAPTURES = Path(__file__).parents[1] / "data" / "captures"


@pytest.mark.parametrize("name", ["cooperative", "eager_range"])
def test_one_lost_packet_is_not_a_finding(name: str, tmp_path: Path) -> None:
    """Nor "the coordinator lost its log", for a Heartbeat that is behind the hole seems to come long afterwards."""
    whole = (CAPTURES / f"{name}.pcap").read_bytes()
    packets, at = [], 24
    while at < len(whole):
        end = at + 16 + int.from_bytes(whole[at + 8 : at + 12], "little")
        packets.append(whole[at:end])
        at = end
    wanted = findings(CAPTURES / f"{name}.pcap")
    file = tmp_path / "lossy.pcap"
    for lost in range(5, len(packets), 23):
        file.write_bytes(whole[:24] + b"".join(packets[:lost] + packets[lost + 1 :]))
        assert findings(file) <= wanted, lost


def findings(file: Path) -> set[tuple[str, str]]:
    analysis = analyze([file])
    return {(found.detector, found.severity) for history in analysis.histories for found in history.findings}


def test_a_client_left_out_is_a_loss(tmp_path: Path) -> None:
    other = Line(broker=("10.0.0.2", 443), client=("10.0.0.1", 40000)).open().send(0, b"\x16\x03\x01" + bytes(200))
    file = tmp_path / "made.pcap"
    file.write_bytes(capture(talk(Line().open(), [1]).packets + other.packets).read())
    (loss,) = [loss for loss in analyze([file]).losses if "left out" in loss.what]
    assert (loss.position, loss.bytes, loss.count) == (9, 203, 1)
    assert "left out: 10.0.0.1:40000-10.0.0.2:443, which looks like TLS" in loss.what


def test_a_batch_with_too_many_records_is_a_loss(tmp_path: Path) -> None:
    """The rest of the file is read."""
    sound = encode_batch([Record(b"key", b"value", 1, 7)])
    bomb = repeated_record(9_586_000)
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(sound + bomb + sound)
    found = [row for batch in read_log(file) for row in batch.to_pylist()]
    assert [(row["offset"], row["position"], row["lost"]) for row in found] == [
        (7, 0, 0), (-1, len(sound), len(bomb)), (7, len(sound) + len(bomb), 0),
    ]  # fmt: skip
    assert f"a count of 9586000, above the limit of {16 * len(bomb)}" in found[1]["error"]
