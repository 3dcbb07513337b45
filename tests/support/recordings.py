"""Recordings made of captures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import NS_PER_MS, GroupHistory
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.recorder.recording import RecordingWriter, read_recording, recording_files

_DATA: Final = Path(__file__).parents[1] / "data"
_RECORDED: Final = (
    _DATA / "captures" / "cooperative.pcap",
    *(_DATA / "recordings" / f"{name}.kcrec" for name in ("librdkafka-4783", "modern-java", "static-java")),
)
"""Each of another group."""


def record_capture(folder: Path, capture: Path, **options: Any) -> None:
    """Write the frames of a capture into a recording.

    :param options: of `RecordingWriter`
    """
    numbers: dict[str, int] = {}
    with RecordingWriter(folder, **options) as writer:
        for row in (row for batch in read_frames(capture) for row in batch.to_pylist()):
            name = row["connection"]
            if row["direction"] == "opened":
                numbers[name] = len(numbers)
                writer.opened(numbers[name], name, row["time_ns"])
            elif row["direction"] in ("closed", "reset"):
                writer.closed(numbers[name], row["time_ns"], by=row["by"], reset=row["direction"] == "reset")
            elif row["direction"] == "refused":
                writer.refused(numbers.setdefault(name, len(numbers)), name, row["error"] or "", row["time_ns"])
            else:
                writer.frame(numbers[name], row["direction"], row["frame"], row["time_ns"])


def growing_recorders(folder: Path) -> list[GroupHistory]:
    """Write the folders of four recorders, each with some files, and a frame twelve minutes after its last.

    :return: what the plain analysis finds in each
    """
    histories = []
    for path in _RECORDED:
        frames = folder / path.stem / "frames"
        record_capture(frames, path, max_file_bytes=10_000)
        times = [each.time_ns for file in recording_files(frames) for each in read_recording(file)]
        with RecordingWriter(frames) as writer:
            writer.opened(0, "10.9.9.9:1-10.9.9.9:9092#0", max(times) + 12 * 60_000 * NS_PER_MS)
        histories += analyze([frames]).histories
    return histories


def grow(source: Path, target: Path, share: float) -> None:
    """Let the folder of a recorder grow until it has the first `share` of its bytes; a deleted file does not come back.

    :param source: with the whole files
    """
    target.mkdir(parents=True, exist_ok=True)
    files, newest = recording_files(source), max((path.name for path in recording_files(target)), default="")
    left = round(sum(path.stat().st_size for path in files) * share)
    for path in files:
        if left > 0 and path.name >= newest:
            with (target / path.name).open("ab") as file:
                file.write(path.read_bytes()[file.tell() : left])
        left -= path.stat().st_size


def recording_tap(writer: RecordingWriter) -> Callable[[int, str, str, bytes], None]:
    """Return the tap of a virtual cluster that writes what it sees into a recording."""
    numbers: dict[str, int] = {}

    def tap(time_ms: int, connection: str, direction: str, frame: bytes) -> None:
        time_ns = time_ms * NS_PER_MS
        if direction == "opened":
            numbers[connection] = len(numbers)
            writer.opened(numbers[connection], connection, time_ns)
        elif direction == "closed":
            writer.closed(numbers[connection], time_ns)
        else:
            writer.frame(numbers[connection], direction, frame, time_ns)

    return tap
