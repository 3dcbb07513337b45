"""Measures decoding where messages are not dropped one by one: workloads in new processes and in old ones.

With `--old PATH` another checkout takes turns with this one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from ..checkouts import OPTION, commit, ratio, sides, spread
from ..runner import Bench, Made, Targets, conditions, digits, require_native, shown, table, verdicts
from .workloads import KEPT, LIFE, WORKLOADS

TURNS, WARM, SECONDS = 7, 0.2, 0.4
MIXES = ("turns", "drawn")
MIX, LIVED, SPREAD = 0.5, 1.1, 1.2  # at most, of the old time; and between processes
HOW = """\
Processor time of a pass, in microseconds; page faults of a pass; the most memory that the process had. Each figure is
the median of {turns} processes. Each has other objects, 8 MB and a share of 3 MB more, so that its messages begin at
another place of the allocator's arenas; "spread": the slowest process's median by the fastest one's. A process with a
long history has decoded {messages:,} messages of all sizes, kept up to {kept:,} of them at a time, and dropped all but
2 %."""
HOW_OLD = """ "of old": the median of the ratios to the process of {old} that ran beside it, of its
passes' medians and of its fastest passes."""


def key(workload: str, lived: bool) -> str:
    return f"{workload}, lived" if lived else workload


def measure(options: argparse.Namespace) -> Made:
    require_native()
    made: dict[str, dict[str, dict[str, list[float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        found = sides(options.old, Path(folder))
        for workload in options.workloads or WORKLOADS:
            for lived in (False, True):
                cell: dict[str, dict[str, list[float]]]
                cell = {name: {"us": [], "least": [], "faults": [], "megabytes": []} for name in found}
                processes = 1 if options.quick else options.turns
                for number in range(processes):
                    question = {"workload": workload, "lived": lived, "number": number, "of": processes}
                    question |= {"quick": options.quick, "warm": 0, "seconds": 0}
                    times = {} if options.quick else {"warm": WARM, "seconds": SECONDS}
                    # Neither side is always the first.
                    for name in [*found][:: 1 if number % 2 else -1]:
                        answer = found[name].ask("tests.bench.mix.worker", question | times)
                        cell[name]["us"].append(median(answer["ns"]) / 1e3)
                        cell[name]["least"].append(min(answer["ns"]) / 1e3)
                        cell[name]["faults"].append(answer["faults"])
                        cell[name]["megabytes"].append(answer["kilobytes"] / 1024)
                made[key(workload, lived)] = cell
                print(key(workload, lived), cell, file=sys.stderr, flush=True)
    return {"old": options.old and commit(options.old), "turns": len(cell["now"]["us"]), "workloads": made}


def targets(made: Made) -> Targets:
    """Every target with whether it is met, and the row that is worst against it."""
    cells = made["workloads"]

    def worst(text: str, bound: float, found: dict[str, float]) -> tuple[str, bool, str]:
        row = max(found, key=lambda each: found[each])
        return text, found[row] <= bound, f"{shown(found[row], bound)}: {title(row)}"

    if made["old"] is not None:
        times = {row: of_old(cell) for row, cell in cells.items()}
        mixes = {row: each for row, each in times.items() if row in MIXES}
        history = {row: each for row, each in times.items() if row not in WORKLOADS or row == "together"}
        if mixes:
            yield worst(f"the last {KEPT} kept: at most {MIX} of the old time", MIX, mixes)
        if history:
            yield worst(f"long history, or dropped together: at most {LIVED} of the old time", LIVED, history)
    spreads = {row: spread(cell["now"]["us"]) for row, cell in cells.items()}
    yield worst(f"spread between processes at most {SPREAD}", SPREAD, spreads)


def of_old(cell: dict[str, dict[str, list[float]]], statistic: str = "us") -> float:
    """How many times the old time the new one is."""
    return ratio(now=cell["now"][statistic], old=cell["old"][statistic])


def title(row: str) -> str:
    workload, _, lived = row.partition(", ")
    return WORKLOADS[workload].title + (", after a long history" if lived else "")


def rows(made: Made) -> Iterator[list[str]]:
    for row, cell in made["workloads"].items():
        both = [name for name in ("old", "now") if name in cell]
        yield [
            title(row),
            *(digits(median(cell[name]["us"])) for name in both),
            *([" / ".join(f"{of_old(cell, each):.2f}" for each in ("us", "least"))] if len(both) == 2 else []),
            " / ".join(f"{spread(cell[name]['us']):.2f}" for name in both),
            " / ".join(f"{median(cell[name]['faults']):,.0f}" for name in both),
            " / ".join(f"{median(cell[name]['megabytes']):.0f}" for name in both),
        ]


def markdown(made: Made) -> str:
    """The whole report, which is the section of docs/benchmarks.md."""
    how = HOW.format(turns=made["turns"], messages=LIFE[0], kept=LIFE[1])
    how += HOW_OLD.format(old=made["old"]) if made["old"] is not None else ""
    times = ["now, µs"] if made["old"] is None else [f"{made['old']}, µs", "now, µs", "of old"]
    head = ["decoding", *times, "spread", "page faults", "MB"]
    return "\n".join([how, f"{conditions(made)}.", "", *table(head, rows(made)), "", *verdicts(targets(made)), ""])


BENCH = Bench(
    about="many kinds and sizes of messages in one process, kept and dropped, and how far processes lie apart.",
    results=Path(__file__).parent / "results",
    measure=measure,
    markdown=markdown,
    options={
        "old": OPTION,
        "workloads": {"nargs": "+", "choices": list(WORKLOADS), "help": "those alone"},
        "turns": {"type": int, "default": TURNS, "help": "processes of each"},
    },
    quick=True,
    title="A server's mix",
    command="make bench-old OLD=PATH",
    summary=markdown,
)
