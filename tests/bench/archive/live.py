"""Measures live rebalances of a growing recording: what a MiB of new frames costs, and how large the state is."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyspark

from tests.support.recordings import record_capture

from ..runner import Bench, Made, Targets, conditions, digits, results_page, section_text, table
from ..spark.measure import watched
from .captures import write_captures
from .live_measure import BATCHES, LARGE, SMALL, VARIANTS

RESULTS: Final = Path(__file__).parent / "results" / "live"
FRAMES: Final = 300_000
GROUPS, MEMBERS = 8, 10
MOST_PLANNING: Final = 0.02  # processor seconds
_MIB: Final = 1 << 20
NOTES: Final = f"""\
A recording of {GROUPS} groups of {MEMBERS} members at work, as in the archives, explained in {BATCHES} batches.
Each variant runs in its own process, once on a small recording and then, measured, on the large one. Processor
milliseconds of the driver, the JVM and the Python workers for each MiB of the large one, which has some {FRAMES:,}
frames. The source plans one batch of all its bytes, from the sizes of its files.
"""


def measure(options: argparse.Namespace) -> Made:
    frames = FRAMES // (100 if options.quick else 1)
    with tempfile.TemporaryDirectory(prefix="kcoord-live-") as name:
        folder = Path(name)
        for recorder, count in ((SMALL, frames // 20), (LARGE, frames)):
            write_captures(folder / f"captures-{recorder}", count, 1, GROUPS, MEMBERS)
            [capture] = (folder / f"captures-{recorder}").iterdir()
            record_capture(folder / "recorders" / recorder, capture)
        size = sum(path.stat().st_size for path in (folder / "recorders" / LARGE).iterdir())
        found = {}
        for variant in VARIANTS:
            found[variant] = watched(variant, folder / "recorders", folder, module="tests.bench.archive.live_measure")
            print(f"{variant}: {found[variant]['seconds']:.1f} s", flush=True)
    return {"spark": pyspark.__version__, "bytes": size, "variants": found}


def rows(made: Made) -> Iterator[list[str]]:
    mib = made["bytes"] / _MIB
    for variant, what in VARIANTS.items():
        run: dict[str, Any] = made["variants"][variant]
        spent = run["spent"] if variant != "source" else {"driver": run["planned"], "jvm": 0.0, "workers": 0.0}
        each = " / ".join(f"{1000 * spent[kind] / mib:.3g}" for kind in ("driver", "jvm", "workers"))
        yield [what, each, str(run.get("rebalances", "-")), f"{run['state'] / 1000:,.0f}" if "state" in run else "-"]


def targets(made: Made) -> Targets:
    """Each target, whether it is met, and the figures."""
    seconds = float(made["variants"]["source"]["planned"])
    text = f"planning a batch of {digits(made['bytes'] / _MIB)} MiB in at most {MOST_PLANNING} s of the driver"
    yield text, seconds <= MOST_PLANNING, f"{seconds:.4f} s"


def report(made: Made) -> Iterator[str]:
    yield conditions(made, f"Spark {made['spark']}") + f". {digits(made['bytes'] / _MIB)} MiB in {BATCHES} batches."
    yield ""
    yield from table(["what", "ms a MiB of driver / JVM / workers", "rebalances", "kB of state"], rows(made))


def markdown(made: Made) -> str:
    return results_page("Live rebalances", NOTES, report(made), targets(made))


def summary(made: Made) -> str:
    """The section of docs/benchmarks.md."""
    return section_text(report(made), targets(made), RESULTS)


BENCH = Bench(
    about="live rebalances of a growing recording on Spark, next to its parts and to the batch.",
    results=RESULTS,
    measure=measure,
    markdown=markdown,
    quick=True,
    title="Live rebalances on Spark",
    command="make bench-size",
    summary=summary,
)
