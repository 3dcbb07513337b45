"""Live rebalances of what grows, with driver and workers killed: each once, and those of the batch."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kcoord_wire.forensics.analysis import analyze_records
from tests.support.live_readers import plain_rows
from tests.support.offsets_topic import offsets_topic, write_in_pieces
from tests.support.recordings import grow, growing_recorders
from tests.support.spark_job import Job, committed

PIECES = 30
AHEAD = 3  # pieces that wait for the query, so that it always has something to do
DRIVERS = 3
WORKERS = 3

Found = list[dict[str, Any]]
Growing = Callable[[Path], tuple[Found, Callable[[int], None]]]

QUERY = """
import os, sys, time
from kcoord_wire.forensics.model import LogRow
from kcoord_wire.spark import explain_rebalances, register, session
from kcoord_wire.spark.rows import spark_schema

folder, of = sys.argv[1:]
spark = session("local[2, 4]", **{  # a task of a killed worker is tried again, as on a cluster
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.local.dir": folder + "/local",
})
register(spark)
if of == "records":
    rows = spark.readStream.schema(spark_schema(LogRow)).option("maxFilesPerTrigger", 1).parquet(folder + "/source")
else:
    rows = spark.readStream.format("kcoord").option("maxBytesPerTrigger", "4k").load(folder + "/source/*/frames")
written = explain_rebalances(rows).writeStream.format("parquet")
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
    """Lets the source of the query grow piece by piece, as long as the block lasts; then by the rest.

    :param arrive: called with the number of each piece, from 1
    """

    def __init__(self, folder: Path, arrive: Callable[[int], None]) -> None:
        self._folder, self._arrive_one = folder, arrive
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._arrive)

    def __enter__(self) -> Arriving:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Let what is left come at once."""
        self._over.set()
        self._thread.join()

    def _arrive(self) -> None:
        for arrived in range(PIECES):
            while arrived >= committed(self._folder) + AHEAD and not self._over.wait(0.02):
                pass
            self._arrive_one(arrived + 1)


def growing_topic(folder: Path) -> tuple[Found, Callable[[int], None]]:
    """What the batch finds in the records of a topic, and how they arrive."""
    rows = offsets_topic()
    write_in_pieces(rows, folder / "prepared", PIECES)
    (folder / "source").mkdir()
    files = sorted((folder / "prepared").iterdir())

    def arrive(number: int) -> None:
        files[number - 1].rename(folder / "source" / files[number - 1].name)

    return plain_rows(analyze_records(rows.to_batches()).histories), arrive


def growing_recordings(folder: Path) -> tuple[Found, Callable[[int], None]]:
    """What the batch finds in the frames of recorders, and how they arrive."""
    source, prepared = folder / "source", folder / "prepared"
    whole = plain_rows(growing_recorders(source))
    source.rename(prepared)

    def arrive(number: int) -> None:
        for recorder in prepared.iterdir():
            grow(recorder / "frames", source / recorder.name / "frames", number / PIECES)

    return whole, arrive


def kill_driver(folder: Path, of: str, seconds: float | None) -> Job:
    """Start the query and kill its driver, so long after the first batch, or in the middle of the next one."""
    with Job(QUERY, folder, str(folder), of) as job:
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


@pytest.mark.parametrize(("of", "growing"), [("records", growing_topic), ("frames", growing_recordings)])
def test_each_rebalance_comes_once(tmp_path: Path, of: str, growing: Growing) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}: of the moments at which something is killed")
    chosen = random.Random(seed)
    whole, arrive = growing(tmp_path)
    unfinished = 0
    with Arriving(tmp_path, arrive) as arriving:
        for number in range(DRIVERS):
            job = kill_driver(tmp_path, of, None if number == 0 else chosen.uniform(0, 1))
            unfinished += job.planned() > job.committed()
        assert job.committed() < PIECES
        with Job(QUERY, tmp_path, str(tmp_path), of) as job:
            for _ in range(WORKERS):
                kill_workers(job)
                time.sleep(chosen.uniform(0, 0.3))
            arriving.finish()
            (tmp_path / "stop").touch()
            job.process.wait(300)
    assert job.process.returncode == 0, job.written()
    assert unfinished
    assert job.committed() >= PIECES
    found = sorted(pq.read_table(tmp_path / "found").to_pylist(), key=lambda row: (row["group_id"], row["number"]))
    assert found == whole
    assert len(found) > 10
    assert any(row["findings"] for row in found)
