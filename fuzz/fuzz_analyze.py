"""Whatever a capture, recording or log segment holds, analyzing it ends well, and reports every byte that was lost."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from fuzz.checksums import mended_recording, mended_segment
from fuzz.traffic import read_script
from kcoord_wire.forensics.analysis import Analysis, analyze, tables_of
from kcoord_wire.forensics.sources.files import SourceError, kind_of
from kcoord_wire.forensics.sources.frames import read_frames, read_log
from kcoord_wire.records.segment import PREFIX_SIZE, batch_size
from kcoord_wire.report import write_json

FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-")
FILE = Path(FOLDER.name, "fuzz")


def check(data: bytes) -> None:
    """`data`: a file of any kind, with right checksums where its kind has some; else a script of packets."""
    FILE.write_bytes(data)
    try:
        kind = kind_of(FILE)
    except SourceError:
        kind = "pcap"
        FILE.write_bytes(read_script(data).pcap)
    if kind == "log":
        FILE.write_bytes(mended_segment(data))
    elif kind == "recording":
        FILE.write_bytes(mended_recording(data))
    try:
        analysis = analyze([FILE])
    except SourceError:
        return
    if kind == "log":
        every_batch_is_read_or_lost(analysis)
    else:
        every_loss_is_told(analysis)
    for table in tables_of(analysis.histories, analysis.losses).values():
        table.validate(full=True)
    write_json(analysis.histories, analysis.losses, io.StringIO())


def every_batch_is_read_or_lost(analysis: Analysis) -> None:
    """Control batches, empty ones and those of an aborted transaction have neither a row nor a loss."""
    data = FILE.read_bytes()
    rows = [row for batch in read_log(FILE) for row in batch.to_pylist()]
    lost = [(row["position"], row["lost"]) for row in rows if row["error"]]
    spans = {(at, at + size) for at, size in lost if size}
    read = {row["position"] for row in rows if row["error"] is None}
    spans |= {(at, at + batch_size(data[at : at + PREFIX_SIZE], at)) for at in read}
    end = 0
    for start, stop in sorted(spans):
        assert end <= start < stop <= len(data), "no byte is in two of them"
        end = stop
    assert sorted((loss.position, loss.bytes) for loss in analysis.losses) == sorted(lost)


def every_loss_is_told(analysis: Analysis) -> None:
    rows = [row for batch in read_frames(FILE) for row in batch.to_pylist()]
    assert analysis.counts["frames"] == len(rows)
    lost = {(row["position"], row["error"]) for row in rows if row["error"] and row["direction"] != "refused"}
    assert lost <= {(loss.position, loss.what) for loss in analysis.losses}
    assert sum(row["lost"] for row in rows) <= sum(loss.bytes for loss in analysis.losses)
