"""Recordings made of captures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.recorder.recording import RecordingWriter

__all__ = ["record_capture"]


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
            elif row["direction"] == "closed":
                writer.closed(numbers[name], row["time_ns"])
            else:
                writer.frame(numbers[name], row["direction"], row["frame"], row["time_ns"])
