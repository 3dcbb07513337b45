"""Delta and Iceberg, with the Spark for which they exist: the blocks of docs/spark.md, and a stream into Delta.

The jars are fetched with Maven, the Spark with pip (`tests.support.sparks`).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.forensics.analysis import analyze, analyze_records
from kcoord_wire.spark.sessions import SHORT_JVM
from tests.support.maven import jars
from tests.support.offsets_topic import offsets_topic, write_in_pieces
from tests.support.sparks import interpreter

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "data" / "captures"
SPARK = "4.1"
DELTA = [
    *(("io.delta", name, "4.4.0") for name in ("delta-spark_4.1_2.13", "delta-storage")),
    *(("io.delta", f"delta-kernel-{name}", "4.4.0") for name in ("api", "defaults", "unitycatalog")),
    *(("io.unitycatalog", f"unitycatalog-{name}", "0.6.0") for name in ("client", "hadoop")),
]
ICEBERG = [("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0")]
FILES = 12  # a batch for each: Delta writes a checkpoint of its log with the tenth

PROGRAM = """
import json, sys
from pathlib import Path
from kcoord_wire.forensics.model import LogRow
from kcoord_wire.spark import explain_rebalances, group_histories, match_files, register, session
from kcoord_wire.spark.rows import spark_schema

folder, jars, *archives = sys.argv[1:]
spark = session("local[2]", **{
    "spark.jars": jars, "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "JVM",
    "spark.databricks.delta.snapshotPartitions": "2",  # 50 tasks for the state of a table, with each commit
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.warehouse": folder + "/warehouse",
    "spark.local.dir": folder + "/local",
    "spark.sql.warehouse.dir": folder + "/spark-warehouse",
})
register(spark)
steps = []
for archive in archives:
    by_day = group_histories(match_files(spark, archive)).by_day
    for block in json.loads(Path(folder, "blocks.json").read_text()):
        exec(block)
    found = spark.read.format("delta").load(folder + "/delta/rebalances"), spark.table("lake.groups.rebalances")
    columns = "day", "group_id", "number", "cause", "detail"
    steps.append([sorted([str(row[0]), *row[1:]] for row in rows.select(*columns).collect()) for rows in found])
parts = sorted(str(path.relative_to(folder)) for path in Path(folder).glob("delta/rebalances/day=*/group_id=*"))

records = spark.readStream.schema(spark_schema(LogRow)).option("maxFilesPerTrigger", 1).parquet(folder + "/source")
written = explain_rebalances(records).writeStream.format("delta").option("checkpointLocation", folder + "/checkpoint")
written.trigger(availableNow=True).start(folder + "/rows").awaitTermination()
rows = spark.read.format("delta").load(folder + "/rows").toArrow().to_pylist()
Path(folder, "found.json").write_text(json.dumps({"steps": steps, "parts": parts, "rows": rows}))
spark.stop()
""".replace("JVM", SHORT_JVM)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what the program reads: two archives, the blocks of docs/spark.md, and a topic."""
    folder = tmp_path_factory.mktemp("tables")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "spark.md").read_text("utf-8"), re.DOTALL)
    chosen = [block for block in blocks if 'format("delta")' in block or "writeTo(" in block]
    assert len(chosen) == 2
    in_folder = [block.replace('"delta/rebalances"', f'"{folder}/delta/rebalances"') for block in chosen]
    assert in_folder != chosen
    (folder / "blocks.json").write_text(json.dumps(in_folder))
    for name, capture in (("half", "incidents/part2-br.pcap.gz"), ("whole", "incidents/moves.pcap.gz")):
        (folder / name).mkdir()
        for each in ("cooperative.pcap", capture):
            shutil.copy(CAPTURES / each, folder / name)
    capture = (folder / "half" / "cooperative.pcap").read_bytes()
    (folder / "half" / "cooperative.pcap").write_bytes(capture[: len(capture) // 2])
    write_in_pieces(offsets_topic(), folder / "source", FILES)
    return folder


def run(folder: Path, *archives: Path) -> dict[str, Any]:
    """Run the program with the Spark and the jars: what the tables have after each archive, and after the stream."""
    python, paths = interpreter(SPARK), ",".join([jars("delta-4.4.0", DELTA), jars("iceberg-1.12.0", ICEBERG)])
    (folder / "job.py").write_text(PROGRAM)
    command = [python, "job.py", str(folder), paths, *map(str, archives)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What one driver has made of all of it; a start costs more than either test."""
    half = folder / "half"
    return run(folder, half, half, folder / "whole")


def expected(*paths: Path) -> list[list[Any]]:
    """The rebalances without Spark, with the days on which they began."""
    rows = [row for history in analyze(paths).histories for row in history.rebalances]
    days = [datetime.fromtimestamp(row.started_ns // 10**9, UTC).date() for row in rows]
    found = [[str(day), row.group_id, row.number, row.cause, row.detail] for day, row in zip(days, rows, strict=True)]
    return sorted(found)


def test_an_archive_that_is_analysed_again(found: dict[str, Any], folder: Path) -> None:
    """A day and group is replaced by what is found of it; other days and groups stay."""
    first, again, last = found["steps"]
    of_half = expected(folder / "half")
    assert first == again == [of_half, of_half]
    kept = [row for row in of_half if row[1] == "partition2"]
    now = sorted([*kept, *expected(folder / "whole")])
    assert last == [now, now]
    assert len(kept) > 3
    assert len({row[0] for row in now}) == 2
    assert len(now) > len(of_half)
    assert found["parts"] == sorted({f"delta/rebalances/day={row[0]}/group_id={row[1]}" for row in now})


def test_a_stream_into_delta(found: dict[str, Any], folder: Path) -> None:
    """A driver that dies between the sink's commit and its own repeats the batch; Delta knows that it has it."""
    expected = in_order(
        {**asdict(row), "findings": [asdict(each) for each in history.findings if row.number in each.rebalances]}
        for history in analyze_records(offsets_topic().to_batches()).histories
        for row in history.rebalances
    )
    assert in_order(found["rows"]) == expected
    assert any(row["findings"] for row in expected)
    commits = folder / "checkpoint" / "commits"
    [commit] = commits.glob(f"{FILES - 1}")  # of the batch that ends all windows
    for path in (commit, commits / f".{commit.name}.crc"):
        path.unlink()
    assert in_order(run(folder)["rows"]) == expected
    assert commit.exists()


def in_order(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["group_id"], row["number"]))
