"""Measures what the driver receives of an archive, and of one ten times as large: figures that no load changes."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyspark

from kcoord_wire.spark.partitions import MAX_BYTES

from ..runner import Bench, Made, Targets, conditions, results_page, section_text, table
from ..spark.measure import watched
from .bench import PAPER_BYTES
from .captures import write_captures

RESULTS: Final = Path(__file__).parent / "results" / "driver"
CASES: Final = {"100 thousand frames": 100_000, "1 million frames": 1_000_000}
"""The second is ten times as large as the first."""
VARIANTS: Final = {
    "match": "matching the frames, `match_files`",
    "written": "every rebalance to Parquet, `explain_rebalances`",
    "spark": "the whole analysis, `analyze_on_spark`, which collects the histories",
}
COLLECTING: Final = "spark"
MOST_BYTES: Final = 10 * 10**6
MOST_GROWTH: Final = 1.1
NOTES: Final = """\
The captures of the archives on Spark, in eight files of eight groups. Bytes are the results of all tasks in serialized
form (Spark's metric resultSize, in its event log): of a task that collects nothing, its metrics and where its rows are.
"""


def measure(options: argparse.Namespace) -> Iterator[Made]:
    made: Made = {"spark": pyspark.__version__, "cases": {}}
    for case, frames in CASES.items():
        with tempfile.TemporaryDirectory(prefix="kcoord-archive-") as name:
            folder = Path(name)
            size = write_captures(folder / "captures", frames // (100 if options.quick else 1), 8, 8, 10)
            found: dict[str, Any] = {"bytes": size, "variants": {}}
            for variant in VARIANTS:
                run = watched(variant, folder / "captures", folder, module="tests.bench.archive.measure")
                if run["frames"] != found.setdefault("frames", run["frames"]):
                    sys.exit(f"{variant} has {run['frames']} frames, not {found['frames']}")
                found["variants"][variant] = {name: run[name] for name in ("tasks", "received")}
                print(f"{case}, {variant}: {run['received']:,} B", flush=True)
        made["cases"][case] = found
    yield made


def of_task(run: dict[str, int]) -> float:
    """The bytes that each task sends to the driver."""
    return run["received"] / run["tasks"]


def rows(made: Made) -> Iterator[list[str]]:
    for case, found in made["cases"].items():
        for variant, what in VARIANTS.items():
            run = found["variants"][variant]
            yield [case, what, str(run["tasks"]), f"{run['received'] / 1000:,.0f}", f"{of_task(run):,.0f}"]


def targets(made: Made) -> Targets:
    """Each target, whether it is met, and the figures."""
    small, large = (made["cases"][case]["variants"] for case in CASES)
    for variant in VARIANTS:
        if variant == COLLECTING:  # its result is what was asked for
            continue
        few, many = small[variant], large[variant]
        text = f"{VARIANTS[variant]}: at most {MOST_BYTES / 1e6:.0f} MB in all"
        yield text, many["received"] <= MOST_BYTES, f"{many['received'] / 1e6:.2f} MB"
        text = f"{VARIANTS[variant]}: no more of a task, of ten times the frames"
        yield text, of_task(many) <= MOST_GROWTH * of_task(few), f"{of_task(few):,.0f} and {of_task(many):,.0f} B"


def on_paper(made: Made) -> str:
    """What the driver would receive of 100 TB, from what each task of the larger archive sends it."""
    tasks = PAPER_BYTES / MAX_BYTES
    sent = of_task(made["cases"][list(CASES)[-1]]["variants"]["match"])
    return (
        f"100 TB, on paper: the {tasks:,.0f} tasks of {MAX_BYTES >> 20} MiB that read and match them send the driver "
        f"{tasks * sent / 1e9:.1f} GB while they run, {sent:,.0f} B each (calculated, not measured). In the analysis "
        "these are map tasks, which spark.driver.maxResultSize does not limit; the driver keeps where their rows are."
    )


def report(made: Made) -> Iterator[str]:
    yield conditions(made, f"Spark {made['spark']}") + "."
    yield ""
    yield from table(["archive", "what", "tasks", "kB to the driver", "B of a task"], rows(made), left=2)
    yield ""
    yield on_paper(made)


def markdown(made: Made) -> str:
    return results_page("The driver", NOTES, report(made), targets(made))


def summary(made: Made) -> str:
    """The section of docs/benchmarks.md."""
    return section_text(report(made), targets(made), RESULTS)


BENCH = Bench(
    about="what the driver receives of an archive of captures, and of one ten times as large.",
    results=RESULTS,
    measure=measure,
    markdown=markdown,
    quick=True,
    title="The driver of archives on Spark",
    command="make bench-size",
    summary=summary,
)
