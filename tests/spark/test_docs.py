"""The snippets of docs/spark.md run in order, on a capture, a recording and a Parquet file."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from kcoord_wire.forensics.sources.frames import read_frames
from tests.support.marshal_rows import generated_log, write_segments
from tests.support.recordings import record_capture
from tests.support.sparks import SPARK

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "tests" / "data" / "captures" / "cooperative.pcap"
OFFSETS = ROOT / "tests" / "data" / "consumer_groups" / "kafka-4.0.0" / "__consumer_offsets-0"
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "spark.md").read_text("utf-8"), re.DOTALL)
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
    shutil.copytree(OFFSETS, tmp_path / "offsets-log" / OFFSETS.name)
    rows = [row for batch in read_frames(CAPTURE) for row in batch.to_pylist()]
    frames = [row["frame"] for row in rows if row["direction"] == "request"]
    pq.write_table(pa.table({"frame": pa.array(frames, pa.binary())}), tmp_path / "frames.parquet")
    own = [block for block in BLOCKS if not any(lake in block for lake in LAKES)]
    blocks = [block for block in own if SPARK >= (4, 2) or STREAM not in block]
    program = "\n".join(blocks)
    for path in PATHS:
        program, count = re.subn(rf"(['\"]){re.escape(path)}\1", rf"\g<1>{tmp_path / path}\1", program)
        assert count or len(blocks) < len(own), f"{path} is not in docs/spark.md"
    program = program.replace('"lake/', f'"{tmp_path}/lake/').replace('f"lake/', f'f"{tmp_path}/lake/')
    names: dict[str, object] = {}
    exec(compile(program, "docs/spark.md", "exec"), names)
    assert names["spark"] is spark
    assert names["written"] == sum(frame.startswith(b"\0\x0b") for frame in frames) > 3
    live = names["live"]
    assert isinstance(live, DataFrame)
    assert live.count() > 10
    out = capsys.readouterr().out
    assert "second round of a cooperative rebalance" in out
    assert "spark.archives" in out
    assert "had no claim, although others of the topic were claimed" in out
