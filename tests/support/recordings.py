"""Recordings made of captures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcoord_wire.forensics.model import NS_PER_MS
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.recorder.recording import RecordingWriter


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
