"""Live rebalances of a growing topic, whose driver and workers are killed: each once, and those of the batch."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kcoord_wire.forensics.analysis import analyze_records
from tests.support.offsets_topic import offsets_topic, write_in_pieces
from tests.support.spark_job import Job, committed

FILES = 30
AHEAD = 3  # files that wait for the query, so that it always has something to do
DRIVERS = 3
WORKERS = 3

QUERY = """
import os, sys, time
from kcoord_wire.forensics.model import LogRow
from kcoord_wire.spark import explain_rebalances, session
from kcoord_wire.spark.rows import spark_schema

folder = sys.argv[1]
spark = session("local[2, 4]", **{  # a task of a killed worker is tried again, as on a cluster
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.local.dir": folder + "/local",
})
records = spark.readStream.schema(spark_schema(LogRow)).option("maxFilesPerTrigger", 1).parquet(folder + "/source")
written = explain_rebalances(records).writeStream.format("parquet")
query = written.option("checkpointLocation", folder + "/checkpoint").start(folder + "/rows")
while not os.path.exists(folder + "/stop"):
    assert query.isActive, query.exception()
    time.sleep(0.05)
query.processAllAvailable()
query.stop()
spark.read.parquet(folder + "/rows").coalesce(1).write.parquet(folder + "/found")  # those that the sink has committed
spark.stop()
"""


class Arriving:
    """Moves files into the folder that the query reads, as long as the block lasts; then the rest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "source").mkdir()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._arrive)

    def __enter__(self) -> Arriving:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Move what is left at once."""
        self._over.set()
        self._thread.join()

    def _arrive(self) -> None:
        for moved, path in enumerate(sorted((self._folder / "prepared").iterdir())):
            while moved >= committed(self._folder) + AHEAD and not self._over.wait(0.02):
                pass
            path.rename(self._folder / "source" / path.name)


def expected(rows: pa.Table) -> list[dict[str, Any]]:
    """What the batch finds without Spark."""
    histories = analyze_records(rows.to_batches()).histories
    return in_order(
        {**asdict(row), "findings": [asdict(each) for each in history.findings if row.number in each.rebalances]}
        for history in histories
        for row in history.rebalances
    )


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["group_id"], row["number"]))


def kill_driver(folder: Path, seconds: float | None) -> Job:
    """Start the query and kill its driver, so long after the first batch, or in the middle of the next one."""
    with Job(QUERY, folder, str(folder)) as job:
        began = job.committed()
        job.until(lambda: job.committed() > began)
        if seconds is None:
            job.until(lambda: job.planned() > job.committed())
        else:
            time.sleep(seconds)
    return job


def kill_workers(job: Job) -> None:
    """Kill the Python workers in the middle of a batch; others take over in the same driver."""
    job.until(lambda: job.planned() > job.committed() and job.workers())
    killed = job.workers()
    for pid in killed:
        with suppress(ProcessLookupError):  # a worker may have ended by itself
            os.kill(pid, signal.SIGKILL)
    done = job.committed()
    job.until(lambda: job.committed() > done + 1 and job.workers() - killed)


def test_each_rebalance_comes_once(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}: of the moments at which something is killed")
    chosen = random.Random(seed)
    rows = offsets_topic()
    write_in_pieces(rows, tmp_path / "prepared", FILES)
    unfinished = 0
    with Arriving(tmp_path) as arriving:
        for number in range(DRIVERS):
            job = kill_driver(tmp_path, None if number == 0 else chosen.uniform(0, 1))
            unfinished += job.planned() > job.committed()
        assert job.committed() < FILES
        with Job(QUERY, tmp_path, str(tmp_path)) as job:
            for _ in range(WORKERS):
                kill_workers(job)
                time.sleep(chosen.uniform(0, 0.3))
            arriving.finish()
            (tmp_path / "stop").touch()
            job.process.wait(300)
    assert job.process.returncode == 0, job.written()
    assert unfinished
    assert job.committed() >= FILES
    found = in_order(pq.read_table(tmp_path / "found").to_pylist())
    assert found == expected(rows)
    assert len(found) > 10
    assert any(row["findings"] for row in found)
