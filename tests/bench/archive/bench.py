"""Measures archives of captures through the analysis on Spark, next to the plain one and to counting their frames."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyspark

from kcoord_wire.spark.partitions import MAX_BYTES

from ..runner import Bench, Made, Targets, conditions, digits, missed, shown, table, verdicts
from ..spark.measure import watched
from .captures import write_captures
from .measure import VARIANTS

RESULTS: Final = Path(__file__).parent / "results"
CASES: Final[dict[str, tuple[int, int, int, int]]] = {
    "1 million frames, 8 captures": (1_000_000, 8, 8, 10),
    "5 million frames, 20 captures": (5_000_000, 20, 16, 10),
    "1 million frames, 200 captures": (1_000_000, 200, 2, 5),
    "1.2 million frames of one group": (1_200_000, 1, 1, 50),
}
"""Frames, files, groups of a file, members of a group."""
FILE_FRAMES: Final = 250_000  # of the archives of --frames
MOST_TIMES_PLAIN: Final = 1.3
PAPER_BYTES: Final = 100 * 10**12
NOTES: Final = """\
Captures of groups whose members join, are assigned, heartbeat each 3 s, commit each 6 s and rejoin each 10 min. Each
variant runs in its own process, once on one file and then, measured, on all. Processor seconds of the driver, the JVM,
and the Python workers; times plain: their sum, by that of the plain analysis in one process. Memory: the most that was
resident, shared pages counted once; the JVM's heap is limited to 2 GiB.
"""


def measure(options: argparse.Namespace) -> Iterator[Made]:
    made: Made = {"spark": pyspark.__version__, "cases": {}}
    sized = dict(map(archive_of, options.frames or ()))
    for case, (frames, files, groups, members) in (sized or {name: CASES[name] for name in options.cases}).items():
        with tempfile.TemporaryDirectory(prefix="kcoord-archive-", dir=options.dir) as name:
            folder = Path(name)
            size = write_captures(folder / "captures", frames // (100 if options.quick else 1), files, groups, members)
            print(f"{case}: {size / 1e6:.0f} MB", flush=True)
            found: dict[str, Any] = {"bytes": size, "variants": {}}
            for variant in VARIANTS:
                run = watched(variant, folder / "captures", folder, module="tests.bench.archive.measure")
                found["variants"][variant] = run
                if run["frames"] != found["variants"]["floor"]["frames"]:
                    sys.exit(f"{variant} has {run['frames']} frames, not {found['variants']['floor']['frames']}")
                print(f"  {variant}: {run['seconds']:.1f} s", flush=True)
        made["cases"][case] = found
        yield made


def archive_of(frames: int) -> tuple[str, tuple[int, int, int, int]]:
    """An archive of any size, as `CASES` has them."""
    files = max(1, frames // FILE_FRAMES)
    return f"{frames / 1e6:g} million frames, {files} captures", (frames, files, 16, 10)


class Report:
    """What latest.json holds."""

    def __init__(self, made: Made) -> None:
        self.made = made
        self.cases: dict[str, Any] = made["cases"]

    def times_plain(self, case: str, variant: str) -> float:
        variants = self.cases[case]["variants"]
        spent = [sum(variants[name]["spent"].values()) for name in (variant, "plain")]
        return float(spent[0] / spent[1])

    def table(self) -> Iterator[str]:
        heads = ["archive", "what", "s", "driver / JVM / workers, processor s", "times plain", "MiB of the same three"]
        return table(heads, self.rows(), left=2)

    def rows(self) -> Iterator[list[str]]:
        for case, found in self.cases.items():
            for variant, what in VARIANTS.items():
                run = found["variants"][variant]
                spent = " / ".join(digits(run["spent"][kind]) for kind in ("driver", "jvm", "workers"))
                held = " / ".join(f"{run['memory'][kind] / 2**20:,.0f}" for kind in ("driver", "jvm", "workers"))
                times = f"{self.times_plain(case, variant):.2f}"
                yield [case, what, digits(run["seconds"]), spent, times, held]

    def starts(self) -> Iterator[str]:
        """What is not in the figures, as a paragraph: the start of a session, and its first file."""
        took = [
            f"{case} {' / '.join(digits(start[kind]) for kind in ('driver', 'jvm', 'workers'))}"
            for case, found in self.cases.items()
            if (start := found["variants"]["spark"].get("start"))
        ]
        if took:
            text = "Not in these figures: the start with the analysis of one file, driver / JVM / workers, processor s"
            yield from (f"{text}: {'; '.join(took)}.", "")

    def targets(self) -> Targets:
        """Each target, whether it is met, and the figures."""
        for case in self.cases:
            times = self.times_plain(case, "spark")
            text = f"{case}: the whole analysis in at most {MOST_TIMES_PLAIN}x the processor time of the plain one"
            yield text, times <= MOST_TIMES_PLAIN, f"{shown(times, MOST_TIMES_PLAIN)}x"
            spent = self.cases[case]["variants"]["spark"]["spent"]
            figures = f"{digits(spent['jvm'])} and {digits(spent['workers'])} s"
            yield f"{case}: the JVM takes no more than the workers", spent["jvm"] <= spent["workers"], figures

    def on_paper(self) -> str:
        """What 100 TB would take, from the costs of the largest archive."""
        largest = max(self.cases.values(), key=lambda case: int(case["bytes"]))
        spark, matched = largest["variants"]["spark"], largest["variants"]["match"]
        spent = sum(spark["spent"].values()) / largest["bytes"]
        shuffled = matched["packed"] / largest["bytes"]
        tasks, hours = PAPER_BYTES / MAX_BYTES, PAPER_BYTES * spent / 100 / 3600
        return (
            f"100 TB of such captures, on paper: {tasks:,.0f} tasks of {MAX_BYTES >> 20} MiB read and match them; "
            f"{PAPER_BYTES * shuffled / 1e12:.1f} TB of packed rows are shuffled, by group; {hours:.0f} hours on 100 "
            "such cores, disks and network not counted (calculated from the largest archive, not measured). The driver "
            "receives three sightings, a row for each topic id, and the histories that are collected. A capture is "
            "64 tasks at most."
        )

    def conditions(self) -> str:
        return conditions(self.made, f"Spark {self.made['spark']}")


def markdown(made: Made) -> str | None:
    if made["cases"].keys() < CASES.keys():
        return None
    report = Report(made)
    parts = [
        "# Archives",
        "",
        f"{report.conditions()}.",
        "",
        NOTES,
        *report.table(),
        "",
        *report.starts(),
        report.on_paper(),
        "",
        "## Targets",
        "",
    ]
    return "\n".join([*parts, *verdicts(report.targets()), ""])


def summary(made: Made) -> str:
    """The section of docs/benchmarks.md."""
    report = Report(made)
    parts = [f"{report.conditions()}.", "", *report.table(), "", *report.starts(), report.on_paper(), ""]
    parts += [*missed(report.targets()), ""]
    return "\n".join([*parts, "[How, and all targets](../tests/bench/archive/results/latest.md)."])


BENCH = Bench(
    about="archives of captures through the whole analysis on Spark, next to the plain one.",
    results=RESULTS,
    measure=measure,
    markdown=markdown,
    options={
        "cases": {"nargs": "+", "choices": list(CASES), "default": list(CASES), "help": "which archives"},
        "frames": {"type": int, "nargs": "+", "help": "archives of so many frames instead, for another --out"},
        "dir": {"type": Path, "default": Path(tempfile.gettempdir()), "help": "where there is 1 GB for 5 million"},
    },
    quick=True,
    title="Archives on Spark",
    command="make bench-size",
    summary=summary,
)
