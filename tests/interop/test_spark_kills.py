"""Live rebalances of what grows, with driver and workers killed: each once, and those of the batch.

One driver runs two queries, of a topic's records and of recorders' frames. What they read comes in pieces, so many for
each step of the test: none of its steps depends on how fast a query is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kcoord_wire.forensics.analysis import analyze_records
from kcoord_wire.spark.sessions import SHORT_JVM
from tests.support.live_readers import plain_rows
from tests.support.offsets_topic import offsets_topic, write_in_pieces
from tests.support.recordings import grow, growing_recorders
from tests.support.spark_job import Job

HELD_DRIVERS = 2  # killed in the middle of a batch of both queries
DRIVERS = HELD_DRIVERS + 1  # and one at any moment
WORKERS = 3  # times that all workers are killed
AT_A_START = 4  # pieces, of which a query that begins anew completes batches
AFTER_A_KILL = 2  # pieces, one of which may be in the batch that was in hand
PIECES = DRIVERS * (AT_A_START + 1) + WORKERS * (1 + AFTER_A_KILL) + AT_A_START
QUERIES = "records", "frames"

Found = list[dict[str, Any]]
Arrive = Callable[[int], None]
"""Called with the number of each piece, from 1."""

QUERY = """
import os, sys, time
from kcoord_wire.forensics.model import LogRow
from kcoord_wire.spark import explain_rebalances, register, session
from kcoord_wire.spark.rows import spark_schema

[folder] = sys.argv[1:]
spark = session("local[2, 4]", **{  # a task of a killed worker is tried again, as on a cluster
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "JVM",
    "spark.sql.shuffle.partitions": "2",
    "spark.local.dir": folder + "/local",
})
register(spark)
records = spark.readStream.schema(spark_schema(LogRow)).option("maxFilesPerTrigger", 1)
frames = spark.readStream.format("kcoord").option("maxBytesPerTrigger", "16k")
loaders = {
    "records": lambda: records.parquet(folder + "/records/source"),
    "frames": lambda: frames.load(folder + "/frames/source/*/frames"),
}


def start(name):
    written = explain_rebalances(loaders[name]()).writeStream.format("parquet")
    return written.option("checkpointLocation", f"{folder}/{name}/checkpoint").start(f"{folder}/{name}/rows")


queries = {name: start(name) for name in loaders}
while not os.path.exists(folder + "/stop"):
    for name, query in queries.items():
        if not query.isActive:  # to plan with Python, Spark starts one and waits for ten seconds, on a busy machine too
            assert "failed to connect back" in str(query.exception()), query.exception()
            queries[name] = start(name)
    time.sleep(0.05)
for name, query in queries.items():
    query.processAllAvailable()
    query.stop()
    rows = spark.read.parquet(f"{folder}/{name}/rows")  # those that the sink has committed
    rows.coalesce(1).write.parquet(f"{folder}/{name}/found")
spark.stop()
""".replace("JVM", SHORT_JVM)


def growing_topic(folder: Path) -> tuple[Found, Arrive]:
    """What the batch finds in the records of a topic, and how they arrive."""
    rows = offsets_topic()
    (folder / "source").mkdir(parents=True)
    write_in_pieces(rows, folder / "prepared", PIECES)
    files = sorted((folder / "prepared").iterdir())

    def arrive(number: int) -> None:
        files[number - 1].rename(folder / "source" / files[number - 1].name)

    return plain_rows(analyze_records(rows.to_batches()).histories), arrive


def growing_recordings(folder: Path) -> tuple[Found, Arrive]:
    """What the batch finds in the frames of recorders, and how they arrive."""
    source, prepared = folder / "source", folder / "prepared"
    whole = plain_rows(growing_recorders(source))
    source.rename(prepared)

    def arrive(number: int) -> None:
        for recorder in prepared.iterdir():
            grow(recorder / "frames", source / recorder.name / "frames", number / PIECES)

    return whole, arrive


class Arriving:
    """Lets the sources of both queries grow."""

    def __init__(self, *sources: Arrive) -> None:
        self._sources = sources
        self._arrived = 0

    def come(self, count: int) -> None:
        """So many pieces of each."""
        for number in range(self._arrived + 1, self._arrived + count + 1):
            for arrive in self._sources:
                arrive(number)
        self._arrived += count


def commits(job: Job, count: int) -> Callable[[], bool]:
    """Whether each query has completed so many batches more than now."""
    began = {query: job.committed(query) for query in QUERIES}
    return lambda: all(job.committed(query) >= began[query] + count for query in QUERIES)


def hold(job: Job, arriving: Arriving) -> None:
    """Have a batch of each query in hand that cannot be completed."""
    job.hold()
    arriving.come(1)
    job.until(lambda: all(job.planned(query) > job.committed(query) for query in QUERIES))


def kill_driver(folder: Path, arriving: Arriving, seconds: float | None) -> Job:
    """Start the queries and kill their driver so long after a batch of each, or in the middle of one of each."""
    with Job(QUERY, folder, str(folder)) as job:
        committed = commits(job, 1)
        arriving.come(AT_A_START)
        job.until(committed)
        if seconds is None:
            hold(job, arriving)
        else:
            arriving.come(1)
            time.sleep(seconds)
    return job


def kill_workers(job: Job, arriving: Arriving) -> None:
    """Kill the Python workers in the middle of a batch of each query; others take over in the same driver."""
    hold(job, arriving)
    killed, committed = job.workers(), commits(job, 2)
    assert killed
    job.kill_workers()
    arriving.come(AFTER_A_KILL)
    job.until(committed)
    assert job.workers() - killed


def test_each_rebalance_comes_once(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}: of the moments at which something is killed")
    chosen = random.Random(seed)
    whole = {}
    whole["records"], records = growing_topic(tmp_path / "records")
    whole["frames"], frames = growing_recordings(tmp_path / "frames")
    arriving = Arriving(records, frames)
    for _ in range(HELD_DRIVERS):
        job = kill_driver(tmp_path, arriving, None)
        assert all(job.planned(query) > job.committed(query) for query in QUERIES)
    kill_driver(tmp_path, arriving, chosen.uniform(0, 1))
    with Job(QUERY, tmp_path, str(tmp_path)) as job:
        committed = commits(job, 1)
        arriving.come(AT_A_START)
        job.until(committed)
        for _ in range(WORKERS):
            kill_workers(job, arriving)
            time.sleep(chosen.uniform(0, 0.3))
        (tmp_path / "stop").touch()
        job.process.wait(300)
    assert job.process.returncode == 0, job.written()
    # A driver may die when Spark has listed the file of a batch and not planned it: the next batch has that one and its
    # own. It dies at most once in that state for each start.
    assert job.committed("records") >= PIECES - DRIVERS
    for query in QUERIES:
        found = pq.read_table(tmp_path / query / "found").to_pylist()
        assert sorted(found, key=lambda row: (row["group_id"], row["number"])) == whole[query]
        assert len(found) > 10
        assert any(row["findings"] for row in found)
