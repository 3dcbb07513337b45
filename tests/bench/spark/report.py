"""Markdown of what was measured: `markdown` all, `summary` for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..runner import conditions, missed, shown, table, verdicts
from .measure import COLUMNS, VARIANTS

RESULTS: Final = Path(__file__).parent / "results"
MOST_TIMES_THE_FLOOR: Final = 2.5
STEADY: Final = 0.75  # of the rate at the smallest size, at the largest: what is called linear here
NOTES: Final = f"""\
Frames of the group apis, mixed as coordinators get them, in uncompressed Parquet files of a million. Each variant runs
in its own process, once on one file and then, measured, on all. The floor reads the same files with the same
settings. Flat columns:
{", ".join(f"`{name}`" for name in COLUMNS)},
and the errors (mode PERMISSIVE). Memory: the most that was resident, sampled ten times a second, shared pages counted
once; the JVM's heap is limited to 2 GiB. The plain path is pyarrow and `ColumnDecoder`, one thread for each core.
"""


class Report:
    """What latest.json holds."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.report = report
        self.sizes: list[dict[str, Any]] = report["sizes"]
        self.largest = self.sizes[-1]

    def rate(self, size: dict[str, Any], variant: str) -> float:
        """Rows a second."""
        return float(size["rows"] / size["variants"][variant]["seconds"])

    def times(self, size: dict[str, Any], variant: str) -> float:
        """How many times as long as the floor."""
        return float(size["variants"][variant]["seconds"] / size["variants"]["floor"]["seconds"])

    def rows(self) -> Iterator[list[str]]:
        """A variant each: rows a second at each size, times the floor at the largest, memory there."""
        for variant, what in VARIANTS.items():
            if variant not in self.largest["variants"]:
                continue
            rates = [f"{self.rate(size, variant) / 1e6:.2f}" for size in self.sizes]
            memory = self.largest["variants"][variant]["memory"]
            held = " / ".join(f"{memory[kind] / 2**20:,.0f}" for kind in ("driver", "jvm", "workers"))
            yield [what, *rates, f"{self.times(self.largest, variant):.2f}", held]

    def table(self) -> Iterator[str]:
        sizes = [f"{size['rows'] / 1e6:,g} million" for size in self.sizes]
        heads = ["million rows a second of", *sizes, "times the floor", "MiB of driver / JVM / workers"]
        return table(heads, self.rows())

    def targets(self) -> Iterator[tuple[str, bool, str]]:
        """Each target, whether it is met, and the figures."""
        written = ", written to Parquet,"
        for variant, what in (
            ("flat-nowhere", ""),
            ("flat", written),
            ("files", f" by `decode_parquet`{written}"),
            ("converted", f" by `convert_parquet`{written}"),
        ):
            times = self.times(self.largest, variant)
            text = f"flat decoding{what} in at most {MOST_TIMES_THE_FLOOR:g}x the floor"
            yield text, times <= MOST_TIMES_THE_FLOOR, f"{shown(times, MOST_TIMES_THE_FLOOR)}x"
        for variant in ("flat", "plain"):
            rates = [self.rate(size, variant) for size in (self.sizes[0], self.largest)]
            figures = " and ".join(f"{rate / 1e6:.2f} million rows/s" for rate in rates)
            yield f"linear: {VARIANTS[variant]}", rates[1] >= STEADY * rates[0], figures

    def cluster(self) -> str:
        """What ten and a hundred such machines would do."""
        rate, mean = self.rate(self.largest, "flat"), self.largest["bytes"] / self.largest["rows"]
        written = self.largest["variants"]["flat"]["written"] / self.largest["rows"]

        def figures(machines: int) -> str:
            read = machines * rate * mean / 1e9
            return f"{machines * rate / 1e6:,.1f} million rows/s, reading {read:,.2f} GB/s"

        flow = rate * (mean + written) / 1e6
        return (
            f"On a cluster: decoding needs no shuffle, so workers like this one ({self.report['machine']['cores']} "
            f"cores) add up as long as the storage does: ten of them {figures(10)}, a hundred {figures(100)} "
            "(calculated, not measured). One worker moves "
            f"{flow:,.0f} MB/s in and out, far below its network; the storage of a hundred is what would be felt "
            "first. It stops scaling where there are fewer files than cores (a capture, recording or segment is one "
            "task), and, for histories, where one connection's frames or one group's exchanges are more than one "
            "task's share: these are shuffled once each, and each goes to one worker."
        )

    def conditions(self) -> str:
        large = self.largest
        sizes = f"{large['bytes'] / large['rows']:.0f} bytes a frame, {large['bytes'] / 1e9:.1f} GB at the largest size"
        return conditions(self.report, f"Spark {self.report['spark']}", sizes)


def markdown(report: dict[str, Any]) -> str:
    """The whole report."""
    made = Report(report)
    parts = ["# Size", "", f"{made.conditions()}.", "", NOTES, *made.table(), "", made.cluster(), "", "## Targets", ""]
    return "\n".join([*parts, *verdicts(made.targets()), ""])


def summary(report: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    made = Report(report)
    parts = [f"{made.conditions()}.", "", *made.table(), "", made.cluster(), ""]
    return "\n".join(
        [*parts, *missed(made.targets()), "", "[How, and all targets](../tests/bench/spark/results/latest.md)."]
    )
