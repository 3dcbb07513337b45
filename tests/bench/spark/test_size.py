"""The size benchmark's frames are what they claim, its memory is measured, and its report says what was measured."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kcoord_wire.codec.columns import ColumnDecoder
from kcoord_wire.spark.decode import GROUP_APIS

from ..runner import run
from .bench import markdown as page
from .frames import MEAN_BYTES, write_frames
from .measure import VARIANTS, _memory, _processor_seconds
from .report import markdown, summary


def test_frames_are_sound_and_mixed(tmp_path: Path) -> None:
    rows = 20_000
    size = write_frames(tmp_path / "frames", rows)
    [file] = (tmp_path / "frames").iterdir()
    frames = pq.read_table(file)["frame"].combine_chunks()
    assert len(frames) == rows
    assert pc.sum(pc.binary_length(frames)).as_py() == size
    assert size / rows == pytest.approx(MEAN_BYTES, rel=0.05)
    decoder = ColumnDecoder([f"{api}Request" for api in GROUP_APIS], columns=["group_id", "member_id"])
    decoded = decoder.decode(frames)
    assert decoded["error"].null_count == rows
    assert set(decoded["api_key"].to_pylist()) == {8, 9, 10, 11, 12, 13, 14, 68}
    beats = decoded["HeartbeatRequest"].drop_null()
    assert len(pc.unique(pc.struct_field(beats, "member_id"))) > 0.99 * len(beats)
    assert len(pc.unique(pc.struct_field(beats, "group_id"))) > 1000


def test_memory_is_that_of_the_processes(tmp_path: Path) -> None:
    held = pa.array(b"x" * (32 << 20) for _ in range(1))
    assert _memory(os.getpid())["driver"] > held.nbytes


def test_processor_time_is_that_of_the_processes() -> None:
    before, began = _processor_seconds(os.getpid()), time.process_time()
    while time.process_time() - began < 0.1:
        pass
    after = _processor_seconds(os.getpid())
    assert after["driver"] - before["driver"] >= 0.05


def made_up() -> dict[str, Any]:
    """A report in which flat decoding misses its target at the largest size."""
    sizes = []
    for rows in (10**6, 5 * 10**7):
        rates = {"floor": 4e6, "flat-nowhere": 2e6, "flat": 0.8e6, "files": 1.6e6, "nested": 0.3e6}
        rates |= {"converted": 2e6, "plain": 2e6}
        seconds = {name: rows / rates[name] for name in VARIANTS}
        memory = {"driver": 80 << 20, "jvm": 900 << 20, "workers": 300 << 20}
        figures = {
            name: {"seconds": seconds[name], "counted": 0, "written": rows * 50, "rows": rows, "memory": memory}
            for name in VARIANTS
        }
        sizes.append({"rows": rows, "bytes": rows * 156, "variants": figures})
    machine = {"processor": "P", "cores": 2, "system": "Linux"}
    return {"date": "2026-01-01", "machine": machine, "spark": "4.3.0", "load": 0.1, "sizes": sizes}


def test_the_report_says_what_was_measured() -> None:
    text = markdown(made_up())
    assert "| flat columns to Parquet | 0.80 | 0.80 | 5.00 | 80 / 900 / 300 |" in text
    assert "| 1 million | 50 million |" in text
    assert "| flat decoding, written to Parquet, in at most 2.5x the floor | no | 5.00x |" in text
    assert "| flat decoding by `decode_parquet`, written to Parquet, in at most 2.5x the floor | yes | 2.50x |" in text
    assert "| flat decoding in at most 2.5x the floor | yes | 2.00x |" in text
    assert "ten of them 8.0 million rows/s, reading 1.25 GB/s" in text
    assert "Missed: flat decoding, written to Parquet, in at most 2.5x the floor: 5.00x." in summary(made_up())


def test_no_page_has_figures_of_other_settings() -> None:
    assert page(made_up() | {"conf": []}) is not None
    assert page(made_up() | {"conf": ["spark.sql.codegen.wholeStage=false"]}) is None


def test_a_disk_without_room_is_told_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="GB are needed: name another --dir"):
        run("spark", ["--rows", str(10**13), "--dir", str(tmp_path), "--out", str(tmp_path / "out")])
    assert list(tmp_path.iterdir()) == []
