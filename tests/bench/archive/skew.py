"""Measures archives in which one connection, or one group, has nine tenths of the frames, next to an even one."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyspark

from ..runner import Bench, Made, Targets, conditions, digits, results_page, section_text, shown, table
from ..spark.measure import watched
from .captures import write_hours
from .measure import VARIANTS

RESULTS: Final = Path(__file__).parent / "results" / "skew"
FRAMES: Final = 600_000
FILES: Final = 8
CASES: Final = {
    "even": "ten groups of five members, even",
    "connection": "one connection has 90 % of the frames",
    "group": "one group has 90 % of the frames",
}
MOST_TIMES_EVEN: Final = 1.5
NOTES: Final = f"""\
Eight captures of as many hours, {FRAMES:,} frames together, of the same groups, with a core for each task.
Each variant runs in its own process, once on one file and then, measured, on all. Times even: seconds of a frame, by
those of the even archive.
"""


def measure(options: argparse.Namespace) -> Iterator[Made]:
    made: Made = {"spark": pyspark.__version__, "cases": {}}
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="kcoord-archive-") as name:
            folder = Path(name)
            size = write_hours(folder / "captures", FRAMES // (100 if options.quick else 1), FILES, case)
            found: dict[str, Any] = {"bytes": size}
            for variant in ("match", "spark"):
                found[variant] = watched(variant, folder / "captures", folder, module="tests.bench.archive.measure")
                print(f"{case}, {variant}: {found[variant]['seconds']:.1f} s", flush=True)
        made["cases"][case] = found
    yield made


def times_even(made: Made, case: str, variant: str) -> float:
    """Seconds a frame, by those of the even archive: the sizes are nearly the same."""
    each = [made["cases"][name][variant]["seconds"] / made["cases"][name][variant]["frames"] for name in (case, "even")]
    return float(each[0] / each[1])


def rows(made: Made) -> Iterator[list[str]]:
    for case, what in CASES.items():
        for variant in ("match", "spark"):
            run = made["cases"][case][variant]
            spent = " / ".join(digits(run["spent"][kind]) for kind in ("driver", "jvm", "workers"))
            figures = [f"{run['frames']:,}", digits(run["seconds"]), spent, f"{times_even(made, case, variant):.2f}"]
            yield [what, VARIANTS[variant], *figures]


def targets(made: Made) -> Targets:
    """Each target, whether it is met, and the figures."""
    for case, what in CASES.items():
        if case != "even":
            times = times_even(made, case, "spark")
            text = f"{what}: the whole analysis within {MOST_TIMES_EVEN}x the even archive's time"
            yield text, times <= MOST_TIMES_EVEN, f"{shown(times, MOST_TIMES_EVEN)}x"


def report(made: Made) -> Iterator[str]:
    yield conditions(made, f"Spark {made['spark']}") + "."
    yield ""
    heads = ["archive", "what", "frames", "s", "driver / JVM / workers, processor s", "times even"]
    yield from table(heads, rows(made), left=2)


def markdown(made: Made) -> str:
    return results_page("Skew", NOTES, report(made), targets(made))


def summary(made: Made) -> str:
    """The section of docs/benchmarks.md."""
    return section_text(report(made), targets(made), RESULTS)


BENCH = Bench(
    about="archives in which one connection or one group has nine tenths of the frames, next to an even one.",
    results=RESULTS,
    measure=measure,
    markdown=markdown,
    quick=True,
    title="Skewed archives on Spark",
    command="make bench-size",
    summary=summary,
)
