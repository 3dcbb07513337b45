"""Measures one large capture in shares: what each task of several would take, and two tasks on Spark."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark

from kcoord_wire.spark.matching import FRAMES, match_packed
from kcoord_wire.spark.partitions import FilePartition, Packing, plan_partitions, read_partition
from kcoord_wire.spark.places import find_places

from ..runner import Bench, Made, Targets, conditions, digits, results_page, section_text, shown, table
from ..spark.measure import watched
from .captures import write_captures

RESULTS: Final = Path(__file__).parent / "results" / "flows"
GROUPS, MEMBERS = 100, 20
SHARES: Final = (1, 2, 4, 8)
LEAST: Final = 0.8
"""Of the number of tasks, by which they are faster than one."""
NOTES: Final = f"""\
One capture of the archives on Spark, of {GROUPS} groups of {MEMBERS} members, each with a connection. A share is read
and matched as a task does it (`read_partition`, `match_packed`), one after the other in one process; the processor time
of the longest share is what so many cores would take. On Spark, `match_files` with maxPartitionBytes of the whole
capture, and of half of it, on two cores: seconds of the whole job.
"""


def measure(options: argparse.Namespace) -> Made:
    with tempfile.TemporaryDirectory(prefix="kcoord-flows-") as name:
        folder = Path(name)
        frames = options.frames // (100 if options.quick else 1)
        size = write_captures(folder / "captures", frames, 1, GROUPS, MEMBERS)
        places = find_places([str(folder / "captures")])
        made: Made = {"spark": pyspark.__version__, "bytes": size, "shares": {}, "tasks": {}}
        for count in SHARES:
            partitions = plan_partitions(places, Packing(-(-size // count), 1))
            if len(partitions) != count:
                sys.exit(f"{len(partitions)} partitions, not {count}")
            taken = [_taken(partition) for partition in partitions]
            found = sum(frames for _, frames in taken)
            if found != made.setdefault("frames", found):
                sys.exit(f"{count} shares have {found} frames, not {made['frames']}")
            made["shares"][str(count)] = [seconds for seconds, _ in taken]
            print(f"{count} shares: {max(made['shares'][str(count)]):.2f} s", flush=True)
        for count in (1, 2):
            where = folder / f"spark-{count}"
            where.mkdir()
            limit = f"match@{-(-size // count)}"
            run = watched(limit, folder / "captures", where, module="tests.bench.archive.measure")
            if run["frames"] != made["frames"]:
                sys.exit(f"Spark has {run['frames']} frames, not {made['frames']}")
            made["tasks"][str(count)] = {"seconds": run["seconds"], "spent": run["spent"]}
            print(f"{count} tasks on Spark: {run['seconds']:.2f} s", flush=True)
    return made


def _taken(partition: FilePartition) -> tuple[float, int]:
    """Seconds of processor time that a task takes, and how many frames it has read."""
    before = time.process_time()
    packed = list(match_packed(batch for _, batch in read_partition(partition)))
    took = time.process_time() - before
    return took, sum(row["rows"] for batch in packed for row in batch.to_pylist() if row["kind"] == FRAMES)


def faster(made: Made, count: int) -> float:
    """By how much so many tasks are faster than one, if each has a core."""
    return float(made["shares"]["1"][0] / max(made["shares"][str(count)]))


def on_spark(made: Made) -> float:
    """By how much two tasks of Spark are faster than one."""
    return float(made["tasks"]["1"]["seconds"] / made["tasks"]["2"]["seconds"])


def rows(made: Made) -> Iterator[list[str]]:
    for count, taken in made["shares"].items():
        times = f"{faster(made, int(count)):.2f}"
        yield [f"{count}, one after the other", digits(max(taken)), digits(sum(taken)), times]
    for count, run in made["tasks"].items():
        spent = digits(run["spent"]["workers"])
        times = f"{made['tasks']['1']['seconds'] / run['seconds']:.2f}"
        yield [f"{count}, tasks of Spark", f"{digits(run['seconds'])} of the job", f"{spent} of the workers", times]


def targets(made: Made) -> Targets:
    """Each target, whether it is met, and the figures."""
    for count in SHARES[1:]:
        times, least = faster(made, count), LEAST * count
        yield f"{count} shares, each on a core: {least:.1f} times as fast as one", times >= least, shown(times, least)
    times, least = on_spark(made), LEAST * 2
    yield f"two tasks of Spark on two cores: {least:.1f} times as fast as one", times >= least, shown(times, least)


def report(made: Made) -> Iterator[str]:
    yield conditions(made, f"Spark {made['spark']}") + "."
    yield ""
    yield f"{made['frames']:,} frames in {made['bytes'] / 1e6:,.0f} MB."
    yield ""
    heads = ["shares", "longest, processor s", "all, processor s", "times as fast as one"]
    yield from table(heads, rows(made))


def markdown(made: Made) -> str:
    return results_page("One large capture", NOTES, report(made), targets(made))


def summary(made: Made) -> str:
    """The section of docs/benchmarks.md."""
    return section_text(report(made), targets(made), RESULTS)


BENCH = Bench(
    about="one large capture, read and matched in shares of its connections, as several tasks of Spark do it.",
    results=RESULTS,
    measure=measure,
    markdown=markdown,
    options={"frames": {"type": int, "default": 400_000, "help": "of the capture, about"}},
    quick=True,
    title="One large capture on Spark",
    command="make bench-size",
    summary=summary,
)
