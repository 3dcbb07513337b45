"""Wireshark's Kafka dissector and we see the same frames in the same captures.

The dissector finds the frames, their sizes and correlation ids, and the api key and version of requests. It names a
response only where it could dissect the request to its end, which fails for versions newer than itself, so a response
is named here by the request of its stream that has its correlation id.

Run as a program, this file writes the counts that tests/capture/test_captures.py compares with:

    python tests/interop/test_dissector.py tests/data/captures/*.counts.json
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
FIELDS = (
    "tcp.stream",
    "tcp.dstport",
    "kafka.len",
    "kafka.correlation_id",
    "kafka.request_key",
    "kafka.request.version",
    "kafka.response_key",
)


@dataclass(frozen=True)
class Seen:
    """One frame: `size` without its four bytes of size, `stream` the number of the connection's first packet."""

    stream: int
    direction: str
    correlation_id: int
    api_key: int
    api_version: int
    size: int


def fields(capture: Path, names: Sequence[str], *options: str) -> list[list[str]]:
    """What tshark says of these fields, of each packet."""
    tshark = shutil.which("tshark")
    if tshark is None:
        raise FileNotFoundError("tshark is missing: apt-get install -y tshark (or `make interop`, which does it)")
    command = [tshark, "-r", str(capture), *options, "-T", "fields", *(word for name in names for word in ("-e", name))]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line.split("\t") for line in output.splitlines()]


def dissect(capture: Path, port: int) -> list[Seen]:
    """Every Kafka frame that tshark finds, in order."""
    first: dict[str, int] = {}
    for stream_text, number in fields(capture, ["tcp.stream", "frame.number"]):
        first.setdefault(stream_text, int(number))
    seen = []
    asked: dict[tuple[int, int], tuple[int, int]] = {}
    for stream_text, destination, *lists in fields(capture, FIELDS, "-d", f"tcp.port=={port},kafka", "-Y", "kafka"):
        sizes, ids, keys, versions, named = ([int(number) for number in text.split(",") if number] for text in lists)
        stream = first[stream_text]
        if int(destination) == port:
            frames = list(zip(ids, keys, versions, sizes, strict=True))
            asked |= {(stream, id_): (key, version) for id_, key, version, _ in frames}
            seen += [Seen(stream, "request", *frame) for frame in frames]
        else:
            frames = [(id_, *asked[stream, id_], size) for id_, size in zip(ids, sizes, strict=True)]
            assert set(named) <= {key for _, key, _, _ in frames}, "tshark takes a response for that of another api"
            seen += [Seen(stream, "response", *frame) for frame in frames]
    return seen


def count(seen: list[Seen]) -> list[dict[str, object]]:
    """Frames and their bytes by direction, api key and version, in this order."""
    frames: Counter[tuple[str, int, int]] = Counter()
    sizes: Counter[tuple[str, int, int]] = Counter()
    for frame in seen:
        key = (frame.direction, frame.api_key, frame.api_version)
        frames[key] += 1
        sizes[key] += frame.size
    return [
        {"direction": key[0], "api_key": key[1], "api_version": key[2], "frames": frames[key], "bytes": sizes[key]}
        for key in sorted(frames)
    ]


@pytest.mark.parametrize("file", sorted(CAPTURES.glob("*.counts.json")), ids=lambda file: file.name.split(".")[0])
class TestAgainstTshark:
    def test_every_frame_is_seen_by_both(self, file: Path) -> None:
        from kcoord_wire.capture import read_capture

        capture = file.with_name(file.name.replace(".counts.json", ".pcap"))
        port = json.loads(file.read_text())["port"]
        theirs = Counter(dissect(capture, port))
        ours = Counter(
            Seen(
                int(frame.connection.rpartition("#")[2]),
                frame.direction,
                frame.correlation_id,
                frame.api_key,
                frame.api_version,
                frame.size,
            )
            for frame in read_capture(capture, ports=[port])
        )
        assert theirs.total() > 200
        assert ours - theirs == Counter()
        assert theirs - ours == Counter()

    def test_the_stored_counts_are_what_tshark_says(self, file: Path) -> None:
        stored = json.loads(file.read_text())
        capture = file.with_name(file.name.replace(".counts.json", ".pcap"))
        assert stored["counts"] == count(dissect(capture, stored["port"]))


def main(files: list[str]) -> None:
    for file in map(Path, files):
        stored = json.loads(file.read_text())
        seen = dissect(file.with_name(file.name.replace(".counts.json", ".pcap")), stored["port"])
        rows = ",\n".join("    " + json.dumps(row) for row in count(seen))
        head = f'{{\n  "port": {stored["port"]},\n  "frames": {len(seen)},\n  "counts": [\n'
        file.write_text(head + rows + "\n  ]\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
