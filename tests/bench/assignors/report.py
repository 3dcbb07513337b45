"""Markdown and curves of what was measured: `markdown` all, `summary` for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kcoord_wire.report.page.charts import LinePlot, Series, write_plot

from ..runner import conditions, missed, verdicts
from ..runner import table as lines
from .cases import CURVE, SIZES

RESULTS = Path(__file__).parent / "results"
JAVA = "kafka-clients"
MOST_BYTES = 100_000_000
STATES = {
    "equal": "equal subscriptions, afresh",
    "odd": "one odd subscriber, afresh",
    "join": "one joins",
    "leave": "one leaves",
}
NOTES = """\
Each measurement has a process of its own, which calls the assignor for 3 s of processor time (Java) or 1 s (others),
three times at least, 200 times at most.

* **ms** is processor time (user and system) of one call, not time on the clock, so that other programs' turns on the
  cores count less. Subscriptions are decoded before it and assignments encoded after it, in every program; the user
  data of the eager sticky assignor is read within it, in every program.
* **first / warm**: the first call of the process, and the median of the second half of its calls, when whatever warms
  up has done so.
* **Ours, franz-go**: processor time of the whole process. **kafka-clients**: of the calling thread alone; compilers and
  garbage collector work beside it and are left out, in its favour. Their share is in latest.json (`cpu`). Java's own
  choice of collector and compilers, 4 GB of heap.
* **x** is how many times our time the other one takes: above 1, ours is faster.
* **memory**: by how much the first call made our process grow at most, its result included.
* **one odd subscriber**: one member subscribes to one topic less than the others.
* **one joins, one leaves**: what was assigned before is owned, in the form in which a leader decodes it. The process
  has computed that assignment, so its first call is not cold.
"""


def milliseconds(seconds: float) -> str:
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


class Report:
    """What latest.json holds."""

    def __init__(self, made: dict[str, Any]) -> None:
        self.made = made
        self.programs: list[str] = made["programs"]
        self.of = {
            (each["program"], each["measurement"][0], tuple(each["measurement"][1]), each["measurement"][2]): each
            for each in made["measured"]
        }

    def times(self, program: str, assignor: str, size: tuple[int, ...], state: str) -> dict[str, float] | None:
        """The first and the warm call, in seconds; None where it was not measured."""
        found = self.of.get((program, assignor, size, state))
        if found is None:
            return None
        times: dict[str, float] = found.get("thread_cpu", found["cpu"])
        return times

    def sizes(self) -> list[tuple[int, ...]]:
        sizes = [size for size in SIZES if any(key[2] == size for key in self.of)]
        return [*sizes] or sorted({key[2] for key in self.of})

    def rows(self, size: tuple[int, ...]) -> Iterator[list[str]]:
        for assignor, state in dict.fromkeys((key[1], key[3]) for key in self.of if key[2] == size):
            cells = [assignor, STATES[state]]
            ours = self.times("ours", assignor, size, state)
            for program in self.programs:
                times = self.times(program, assignor, size, state)
                assert times is not None
                text = f"{milliseconds(times['first'])} / {milliseconds(times['warm'])}"
                ratio = "" if ours is None or program == "ours" else f" ({times['warm'] / ours['warm']:.2f}x)"
                cells.append(text + ratio)
            peak = self.of["ours", assignor, size, state]["peak"] if ours else None
            yield [*cells, "" if peak is None else f"{peak / 1e6:.0f}"]

    def table(self, size: tuple[int, ...]) -> Iterator[str]:
        members, topics, partitions = size
        total = f"{topics} topics of {partitions:,} partitions ({topics * partitions:,})"
        yield f"{members:,} members, {total}; first / warm, ms:"
        yield ""
        heads = ["assignor", "group", *self.programs, "memory of ours, MB"]
        yield from lines(heads, self.rows(size), left=2)
        yield ""

    def targets(self) -> Iterator[tuple[str, bool, str]]:
        """Each target, whether it is met, and the figures; the faster kafka-clients counts."""
        java = [each for each in self.programs if each.startswith(JAVA)]
        if "ours" not in self.programs or not java:
            return
        for _, assignor, size, state in [key for key in self.of if key[0] == "ours" and key[2] in self.sizes()]:
            where = f"{assignor}, {STATES[state]}, {size[0]:,} members x {size[1] * size[2]:,} partitions"
            mine = self.warm("ours", assignor, size, state)
            theirs = min(self.warm(each, assignor, size, state) for each in java)
            if (assignor, state) in BOUNDS:
                bound = BOUNDS[assignor, state]
                figures = f"{milliseconds(mine)} ms against {milliseconds(theirs)} ms: {mine / theirs:.2f}x"
                yield f"{where}: within {bound:g}x of the JVM", mine <= bound * theirs, figures
            if state in ("join", "leave"):
                afresh = self.warm("ours", assignor, size, "equal")
                figures = f"{milliseconds(mine)} ms against {milliseconds(afresh)} ms"
                yield f"{where}: no dearer than afresh", mine <= afresh, figures
            peak = self.of["ours", assignor, size, state]["peak"]
            yield f"{where}: below 100 MB", peak < MOST_BYTES, f"{peak / 1e6:.0f} MB"

    def warm(self, program: str, assignor: str, size: tuple[int, ...], state: str) -> float:
        times = self.times(program, assignor, size, state)
        assert times is not None
        return times["warm"]


BOUNDS = {
    ("range", "equal"): 1.0,
    ("sticky", "equal"): 3.0,
    ("cooperative-sticky", "equal"): 3.0,
    ("sticky", "odd"): 1.0,
    ("cooperative-sticky", "odd"): 1.0,
}


def markdown(made: dict[str, Any]) -> str:
    """The whole report."""
    report = Report(made)
    parts = ["# Assignors", "", f"{conditions(made)}.", "", NOTES]
    for size in report.sizes():
        parts += report.table(size)
    return "\n".join([*parts, "## Targets", "", *verdicts(report.targets()), ""])


def summary(made: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    report = Report(made)
    parts = [
        "Processor time of one call, the first and a warm one, and how many times our warm one the others take;",
        "kafka-clients: the calling thread alone, without its compilers and garbage collector.",
        f"{conditions(made)}.",
        "",
    ]
    for size in report.sizes():
        parts += report.table(size)
    return "\n".join(
        [*parts, *missed(report.targets()), "", "[How, and all targets](../tests/bench/assignors/results/latest.md)."]
    )


def plots(made: dict[str, Any]) -> Iterator[tuple[str, LinePlot]]:
    """The name and the plot of each curve."""
    report = Report(made)
    sizes = sorted({key[2] for key in report.of if key[2] in CURVE or key[2] not in SIZES})
    for assignor in ("range", "cooperative-sticky"):
        series = [
            Series(program, [(size[0], 1e3 * report.warm(program, assignor, size, "equal")) for size in sizes])
            for program in report.programs
        ]
        plot = LinePlot(
            title=f"{assignor}, afresh, equal subscriptions: 100 topics, 10 partitions a member",
            x_title="members",
            y_title="processor time of one warm call (ms)",
            series=series,
            log_x=True,
            log_y=True,
            marks=True,
        )
        yield f"assignors-{assignor}", plot


def write_plots(made: dict[str, Any], folder: Path) -> None:
    """Write each curve as SVG and as PNG."""
    for name, plot in plots(made):
        for suffix in ("svg", "png"):
            write_plot(plot, folder / f"{name}.{suffix}")
