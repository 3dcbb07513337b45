"""The snippets of docs/spark.md run in order, on a capture, a recording and a Parquet file; and the notebook."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.sources.frames import read_frames
from tests.support.marshal_rows import generated_log, write_segments
from tests.support.recordings import growing_recorders, record_capture
from tests.support.sparks import SPARK, once_connected

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "tests" / "data" / "captures" / "cooperative.pcap"
OFFSETS = ROOT / "tests" / "data" / "consumer_groups" / "kafka-4.0.0" / "__consumer_offsets-0"
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "spark.md").read_text("utf-8"), re.DOTALL)
BETWEEN = "\n# the next block\n"
STREAM = 'readStream.format("kcoord")'
LAKES = ('format("delta")', "writeTo(")  # tests/interop/test_spark_tables.py has these
PATHS = (
    "captures/",
    "kafka-logs/",
    "exported/",
    "claims-checkpoint/",
    "claims/",
    "offsets-log/",
    "offsets/",
    "rebalances-checkpoint/",
    "rebalances/",
    "recorders/*/frames",
    "recorders-checkpoint/",
    "shown/",
    "recording/",
    "checkpoint/",
    "rows/",
    "frames.parquet",
    "joins/",
    "kcoord_wire.zip",
)


def test_the_snippets_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "captures").mkdir()
    (tmp_path / "captures" / CAPTURE.name).write_bytes(CAPTURE.read_bytes())
    write_segments(tmp_path / "kafka-logs", generated_log(2))
    record_capture(tmp_path / "recording", CAPTURE)
    growing_recorders(tmp_path / "recorders")
    shutil.copytree(OFFSETS, tmp_path / "offsets-log" / OFFSETS.name)
    rows = [row for batch in read_frames(CAPTURE) for row in batch.to_pylist()]
    frames = [row["frame"] for row in rows if row["direction"] == "request"]
    pq.write_table(pa.table({"frame": pa.array(frames, pa.binary())}), tmp_path / "frames.parquet")
    own = [block for block in BLOCKS if not any(lake in block for lake in LAKES)]
    blocks = [block for block in own if SPARK >= (4, 2) or STREAM not in block]
    program = BETWEEN.join(blocks)
    for path in PATHS:
        program, count = re.subn(rf"(['\"]){re.escape(path)}\1", rf"\g<1>{tmp_path / path}\1", program)
        assert count or len(blocks) < len(own), f"{path} is not in docs/spark.md"
    program = program.replace('"lake/', f'"{tmp_path}/lake/')
    names: dict[str, object] = {}
    for block in program.split(BETWEEN):
        once_connected(partial(exec, compile(block, "docs/spark.md", "exec"), names))
    assert names["spark"] is spark
    assert names["written"] == sum(frame.startswith(b"\0\x0b") for frame in frames) > 3
    live = names["live"]
    assert isinstance(live, DataFrame)
    assert live.count() > 10
    assert "shown" not in names or spark.read.parquet(str(tmp_path / "shown")).count() > 10
    out = capsys.readouterr().out
    assert "second round of a cooperative rebalance" in out
    assert "spark.archives" in out
    assert "had no claim, although others of the topic were claimed" in out


def test_the_cells_of_the_notebook_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no outputs, and names the groups and causes that the plain analysis finds."""
    path = ROOT / "docs" / "examples" / "rebalances.ipynb"
    every = json.loads(path.read_text("utf-8"))["cells"]
    links = re.findall(r"\]\(([^)]+)\)", "".join(line for cell in every for line in cell["source"]))
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []
    cells = [cell for cell in every if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in cells] == [[]] * len(cells)
    captures = ROOT / "tests" / "data" / "captures"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {}
    for cell in cells:
        # Spark has not been started in the notebook's folder, as it is by Jupyter.
        source = "".join(cell["source"]).replace('"../../tests/data/captures"', repr(str(captures)))
        exec(compile(source, f"{path.name}: {cell['id']}", "exec"), names)
    assert names["archive"] == str(captures)
    costs: dict[str, Counter[str]] = {}
    for history in analyze([captures]).histories:
        for row in history.rebalances:
            if row.paused_ms:
                costs.setdefault(row.group_id, Counter())[row.cause] += row.paused_ms / 60_000
    dearest = sorted(costs, key=lambda group: -costs[group].total())
    found = names["ranked"].collect()
    assert [(row.group_id, row.main_cause) for row in found] == [
        (group, costs[group].most_common(1)[0][0]) for group in dearest
    ]
    assert [row.partition_minutes for row in found] == [round(costs[group].total(), 2) for group in dearest]
    assert {row.group_id for row in found} > {"crashloop", "kip", "partition2"}
    [drawn] = names["chart"].to_dict()["datasets"].values()
    assert {(row["group_id"], row["cause"]) for row in drawn} == {
        (group, cause) for group, causes in costs.items() for cause in causes
    }
    assert "s of partition time: " in capsys.readouterr().out
