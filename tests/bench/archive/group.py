"""Measures what a worker's process takes for each exchange of one group: the slope between two sizes of it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyspark

from kcoord_wire.forensics.model import Sighting, arrow_schema
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.spark.histories import _histories_of
from kcoord_wire.spark.matching import EXCHANGES, match_packed
from kcoord_wire.spark.packing import packed_values
from kcoord_wire.spark.sessions import BLOCKS, spark_conf
from kcoord_wire.spark.sightings import Overview

from ..runner import ROOT, Bench, Made, Targets, conditions, results_page, section_text, shown, table
from .captures import write_captures

RESULTS: Final = Path(__file__).parent / "results" / "group"
MEMBERS: Final = 50
FRAMES: Final = (1_200_000, 2_400_000)
WARM_FRAMES: Final = 6_000
MOST_BYTES: Final = 150
DAY_EXCHANGES: Final = 5_000 * 86_400 * 3 // (3 * 2)
"""A day of 5,000 members that heartbeat each 3 s and commit each 6 s."""
DAY_BYTES: Final = 4 << 30
NOTES: Final = f"""\
One group of {MEMBERS} members that heartbeat each 3 s and commit each 6 s: its exchanges, packed as the tasks that
match frames do it, through `_histories_of` in a process with the environment of a worker. Bytes are those that were
resident at most, above what was after a small group, of both sizes; their difference is that of further exchanges.
"""


def measure(options: argparse.Namespace) -> Made:
    found = []
    with tempfile.TemporaryDirectory(prefix="kcoord-group-") as name:
        warm = _packed(Path(name), WARM_FRAMES // (10 if options.quick else 1))
        for frames in FRAMES:
            path = _packed(Path(name), frames // (100 if options.quick else 1))
            command = [sys.executable, "-m", "tests.bench.archive.group", str(warm), str(path)]
            env = os.environ | {BLOCKS: spark_conf()[f"spark.executorEnv.{BLOCKS}"]}
            run = subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE)
            found.append(json.loads(run.stdout))
            print(f"{found[-1]['exchanges']:,} exchanges: {found[-1]['bytes'] / 2**20:,.0f} MiB", flush=True)
    return {"spark": pyspark.__version__, "sizes": found}


def _packed(folder: Path, frames: int) -> Path:
    """Write the exchanges of a group as rows of `PACKED`."""
    write_captures(folder / f"captures-{frames}", frames, 1, 1, MEMBERS)
    [capture] = (folder / f"captures-{frames}").iterdir()
    packed = [row for row in match_packed(read_frames(capture)) if row["kind"][0].as_py() == EXCHANGES]
    path = folder / f"packed-{frames}"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, packed[0].schema) as stream:
        for row in packed:
            stream.write_batch(row)
    return path


def main() -> None:
    """Print what the history of a group takes, after that of a small one."""
    warm, large = sys.argv[1:]
    _history(warm)
    Path("/proc/self/clear_refs").write_text("5")  # the most that was resident is counted from now
    base = _resident("VmRSS")
    exchanges = _history(large)
    print(json.dumps({"exchanges": exchanges, "bytes": _resident("VmHWM") - base}))


def _history(path: str) -> int:
    """Build the history of the one group, and return how many exchanges it has."""
    overview = Overview(pa.Table.from_batches([], arrow_schema(Sighting)), [], has_errors=False)
    with pa.OSFile(path) as file, pa.ipc.open_stream(file) as rows:
        counts: list[int] = []

        def counted() -> Iterator[pa.RecordBatch]:
            for row in rows:
                counts.extend(row["rows"].to_pylist())
                yield row

        [_] = packed_values(_histories_of(overview, None, 1 << 40, counted()))
    return sum(counts)


def _resident(what: str) -> int:
    [line] = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) << 10


def slope(made: Made) -> float:
    """Bytes for each further exchange."""
    small, large = made["sizes"]
    return float((large["bytes"] - small["bytes"]) / (large["exchanges"] - small["exchanges"]))


def targets(made: Made) -> Targets:
    """Each target, whether it is met, and the figures."""
    each = slope(made)
    yield f"at most {MOST_BYTES} bytes for each further exchange", each <= MOST_BYTES, f"{shown(each, MOST_BYTES)} B"
    day = each * DAY_EXCHANGES
    text = f"a day of 5,000 members, {DAY_EXCHANGES:,} exchanges, in 4 GiB (calculated)"
    yield text, day <= DAY_BYTES, f"{day / 2**30:.1f} GiB, where {DAY_BYTES / DAY_EXCHANGES:.0f} B an exchange would be"


def report(made: Made) -> Iterator[str]:
    yield conditions(made, f"Spark {made['spark']}") + "."
    yield ""
    rows = [[f"{size['exchanges']:,}", f"{size['bytes'] / 2**20:,.0f}"] for size in made["sizes"]]
    yield from table(["exchanges", "MiB at the peak"], rows, left=0)
    yield ""
    yield f"{slope(made):.0f} bytes for each further exchange."


def markdown(made: Made) -> str:
    return results_page("One group in a worker", NOTES, report(made), targets(made))


def summary(made: Made) -> str:
    """The section of docs/benchmarks.md."""
    return section_text(report(made), targets(made), RESULTS)


BENCH = Bench(
    about="the memory of a worker for each exchange of one group.",
    results=RESULTS,
    measure=measure,
    markdown=markdown,
    quick=True,
    title="One group in a worker of Spark",
    command="make bench-size",
    summary=summary,
)

if __name__ == "__main__":
    main()
