"""Measures the codec's rows on other versions of CPython, and without a GIL; with `--old PATH` both checkouts.

The modules are built with each Python's own flags, under build/bench/pythons; `tests.support.pythons` says where a
Python comes from. Those it fetches are built in different ways, so that only the two checkouts on one of them compare.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, Final

from ..checkouts import OPTION, Side, checkouts, commit, ratio, side
from ..compiled.bench import question
from ..rows import ROWS
from ..runner import Bench, Made, Targets, conditions, digits, require_native, shown, table, verdicts
from .builds import modules

THIS: Final = platform.python_version().rpartition(".")[0]
PYTHONS: Final = [THIS, *(name for name in ("3.11", "3.12", "3.13", "3.14", "3.13t") if name != THIS)]
TURNS, WARM, SECONDS = 5, 0.05, 0.1  # processes of each row; of each operation in it
WAYS = ("decode", "encode")
SLOWER = 1.05  # of the old time is what a run tells from none
WORKER = "tests.bench.compiled.ours"


def found(old: Path | None, names: list[str], folder: Path) -> dict[str, dict[str, Side]]:
    """The sides by Python; what is not built yet is, two at a time."""

    def make(name: str, which: str) -> Side:
        checkout = checkouts(old)[which]
        place = folder / name / which
        return side(checkout, place) if name == THIS else side(checkout, place, *modules(checkout, name))

    with ThreadPoolExecutor(2) as pool:
        made = {name: {which: pool.submit(make, name, which) for which in checkouts(old)} for name in names}
        return {name: {which: each.result() for which, each in both.items()} for name, both in made.items()}


def measure(options: argparse.Namespace) -> Made:
    require_native()
    made: dict[str, Any] = {}
    rows = ROWS[:1] if options.quick else ROWS
    names = options.pythons or ([THIS] if options.quick else PYTHONS)
    with tempfile.TemporaryDirectory() as folder:
        for name, both in found(options.old, names, Path(folder)).items():
            cells: dict[str, Any] = {}
            for row in rows:
                asked = question(row, options.quick) | {"operations": WAYS, "warm": 0, "seconds": 0}
                asked |= {} if options.quick else {"warm": WARM, "seconds": SECONDS}
                cell: dict[str, dict[str, list[float]]] = {way: {which: [] for which in both} for way in WAYS}
                for number in range(1 if options.quick else options.turns):
                    # Neither side is always the first.
                    for which in [*both][:: 1 if number % 2 else -1]:
                        answer = both[which].ask(WORKER, asked)
                        for way in WAYS:
                            cell[way][which].append(median(answer[way]) / 1e3)
                cells[row.key] = cell
            made[name] = cells
            print(name, cells, file=sys.stderr, flush=True)
    return {"old": options.old and commit(options.old), "pythons": made}


def targets(made: Made) -> Targets:
    """No row slower than in the old checkout, on any Python."""
    for name, cells in made["pythons"].items() if made["old"] is not None else ():
        ratios = {(way, row): ratio(**cell[way]) for row, cell in cells.items() for way in WAYS}
        slower = {each: value for each, value in ratios.items() if value > SLOWER}
        listed = slower or {max(ratios, key=lambda each: ratios[each]): max(ratios.values())}
        figures = "; ".join(f"{way} {row}: {shown(value, SLOWER)}" for (way, row), value in listed.items())
        yield f"{name}: no row at more than {SLOWER} of the old time", not slower, figures


def rows(made: Made, way: str) -> Iterator[list[str]]:
    for name, cells in made["pythons"].items():
        row = [name]
        of_old = []
        for cell in cells.values():
            text = digits(median(cell[way]["now"]))
            if made["old"] is not None:
                of_old.append(ratio(**cell[way]))
                text += f" ({of_old[-1]:.2f})"
            row.append(text)
        yield [*row, f"{geometric_mean(of_old):.2f}"] if of_old else row


def markdown(made: Made) -> str:
    """The whole report, which is the section of docs/benchmarks.md."""
    how = "Microseconds of the thread's processor time"
    how += ".\n" if made["old"] is None else f", and in brackets which part that is of {made['old']}'s, beside it.\n"
    parts = [f"{how}{conditions(made)}.", ""]
    keys = [*next(iter(made["pythons"].values()))]
    for way in WAYS:
        heads = [way, *keys, *(["all, of old"] if made["old"] is not None else [])]
        parts += [*table(heads, rows(made, way)), ""]
    return "\n".join([*parts, *(verdicts(targets(made)) if made["old"] is not None else ()), ""])


BENCH = Bench(
    about="the codec's rows on other versions of CPython, and without a GIL.",
    results=Path(__file__).parent / "results",
    measure=measure,
    markdown=markdown,
    options={
        "old": OPTION,
        "pythons": {"nargs": "+", "metavar": "NAME", "help": f"instead of {', '.join(PYTHONS)}"},
        "turns": {"type": int, "default": TURNS, "help": "processes of each checkout, Python and row"},
    },
    quick=True,
    title="Other Pythons",
    command="make bench-old OLD=PATH",
    summary=markdown,
)
