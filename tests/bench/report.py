"""One report from pytest-benchmark's files, and Markdown of it: `markdown` all, `summary` for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from .libraries import LIBRARIES
from .rows import ROWS
from .runner import conditions, digits, line, shown, table

RESULTS = Path(__file__).parent / "results"
VERSIONS = {row.key: row.version for row in ROWS}
TITLES = {row.key: f"{row.title} (v{row.version})" for row in ROWS}
LARGE = 10_000  # bytes: from here on a message counts as large
DIRECTIONS = ("decode", "encode")
NOTES = """\
Times are medians of one call, in microseconds of processor time; MB/s counts the bytes on the wire. `x` is how many
times our native codec's time the other one takes: above 1, ours is faster. Ours is called as
`kw.decode(cls, data, version)` and `kw.encode(message, version)`. The garbage collector is on, and walks the objects
of the row alone. Every library but msgspec is checked to write the same bytes as ours.

* **floor**: allocating, filling and freeing the same objects without any parsing (tests/bench/floor.c), measured in the
  native codec's process.
* **pure Python**: ours without the native module.
* **construct**: the grammar that `kcoord_wire.schema.construct_model` makes, run by construct.
* **msgspec**: no peer; the same values as msgspec Structs in MessagePack, to show what a codec in C can do. Its MB/s
  are MessagePack's bytes.
* **v1**, **v3**, **v5** behind a time: the newest version of that message that the library has, measured on that one.
"""
WHY = """\
The floor makes and frees the same objects without reading a byte; what lies between it and us goes into parsing."""


def merge(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What latest.json holds: of each library's runs the median and the quartiles of all samples, cell by cell."""
    libraries = {
        library: {"installed": LIBRARIES[library].installed(), "cells": merge_cells(done)}
        for library, done in runs.items()
    }
    return {"libraries": libraries}


def merge_cells(runs: list[dict[str, Any]]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    samples: dict[tuple[str, str], list[float]] = {}
    for measured in (each for run in runs for each in run["benchmarks"]):
        about = measured["extra_info"]
        cells.setdefault(about["row"], {"version": about["version"], "bytes": about["bytes"]})
        pooled = samples.setdefault((about["row"], about["operation"]), [])
        pooled += [seconds / about["calls"] for seconds in measured["stats"]["data"]]
    for (row, operation), pooled in samples.items():
        low, median, high = (1e9 * each for each in quantiles(pooled, n=4, method="inclusive"))
        cells[row][operation] = {"ns": median, "quartiles": [low, high], "samples": len(pooled)}
    return cells


@dataclass
class Target:
    """A bound on a ratio, and that ratio in each row it is for.

    :ivar floors: what the floor in our codec's place would reach, for decoding against another library
    """

    text: str
    bound: float
    ratios: dict[str, float]
    floors: dict[str, float] = field(default_factory=dict)
    at_most: bool = False

    def missed(self) -> list[str]:
        sign = -1 if self.at_most else 1
        return [row for row, ratio in self.ratios.items() if sign * ratio < sign * self.bound]

    def worst(self) -> str:
        return (max if self.at_most else min)(self.ratios, key=lambda row: self.ratios[row])

    def shown(self, row: str) -> str:
        floor = f" (the floor itself: {digits(self.floors[row])}x)" if self.floors else ""
        return f"{TITLES[row]}: {shown(self.ratios[row], self.bound)}x{floor}"


class Report:
    """What was measured, by library, row and direction."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.report = report
        self.rows = list(TITLES)
        self.libraries: list[str] = [key for key in LIBRARIES if key in report["libraries"]]
        self.peers = [key for key in self.libraries if LIBRARIES[key].peer]

    def cell(self, library: str, row: str) -> dict[str, Any]:
        cell: dict[str, Any] = self.report["libraries"][library]["cells"][row]
        return cell

    def time(self, library: str, row: str, operation: str) -> float:
        """Nanoseconds of one call."""
        time: float = self.cell(library, row)[operation]["ns"]
        return time

    def ratio(self, library: str, row: str, operation: str, to: str = "native") -> float:
        return self.time(library, row, operation) / self.time(to, row, operation)

    def fastest_peer(self, row: str, operation: str) -> str:
        """Among the peers that have the row's own version."""
        same = [peer for peer in self.peers if self.cell(peer, row)["version"] == VERSIONS[row]]
        return min(same, key=lambda peer: self.time(peer, row, operation))

    def shown(self, library: str, row: str, operation: str) -> str:
        cell = self.cell(library, row)
        nanoseconds = self.time(library, row, operation)
        text = f"{digits(nanoseconds / 1e3)} ({digits(cell['bytes'] * 1e3 / nanoseconds)} MB/s)"
        if library != "native":
            text += f" {digits(self.ratio(library, row, operation))}x"
        return text if cell["version"] == VERSIONS[row] else f"{text} v{cell['version']}"

    def table(self, operation: str) -> Iterator[str]:
        floor = operation == "decode"
        head = ["message", "bytes", "native", *(["floor: native / floor"] if floor else []), "fastest peer / native"]
        rest = [library for library in self.libraries if library != "native"]
        rows = []
        for row in self.rows:
            cells = [TITLES[row], f"{self.cell('native', row)['bytes']:,}", self.shown("native", row, operation)]
            if floor:
                time = self.time("native", row, "floor")
                cells.append(f"{digits(time / 1e3)}: {self.time('native', row, 'decode') / time:.2f}")
            if self.peers:
                peer = self.fastest_peer(row, operation)
                cells.append(f"{digits(self.ratio(peer, row, operation))}x ({LIBRARIES[peer].title})")
            else:
                cells.append("-")
            rows.append([*cells, *(self.shown(library, row, operation) for library in rest)])
        return table([*head, *(LIBRARIES[library].title for library in rest)], rows)

    def targets(self) -> Iterator[Target]:
        large = [row for row in self.rows if self.cell("native", row)["bytes"] >= LARGE]
        wanted = [
            ("decode at least 2x kio", "kio", "native", "decode", 2.0, self.rows),
            ("encode at least 50x kafka-python, large messages", "kafka-python", "native", "encode", 50.0, large),
            ("encode at least 70x kio, large messages", "kio", "native", "encode", 70.0, large),
            ("pure Python decodes no slower than kafka-python", "kafka-python", "python", "decode", 1.0, self.rows),
            ("pure Python encodes no slower than kafka-python", "kafka-python", "python", "encode", 1.0, self.rows),
        ]
        floor = {row: self.time("native", row, "floor") for row in self.rows}
        for text, library, to, operation, bound, rows in wanted:
            if library in self.libraries and to in self.libraries and rows:
                ratios = {row: self.ratio(library, row, operation, to) for row in rows}
                floored = operation == "decode" and to == "native"
                floors = {row: self.time(library, row, operation) / floor[row] for row in rows} if floored else {}
                yield Target(text, bound, ratios, floors)
        over = {row: self.time("native", row, "decode") / floor[row] for row in self.rows}
        yield Target("decode within 1.4x of the floor", 1.4, over, at_most=True)

    def verdicts(self) -> Iterator[str]:
        """Each target with the row that is worst against it."""
        yield line(["target", "met", "rows that meet it", "worst row"])
        yield line(["---", "---", "---", "---"])
        for target in self.targets():
            missed, rows = len(target.missed()), len(target.ratios)
            yield line(
                [target.text, "no" if missed else "yes", f"{rows - missed} of {rows}", target.shown(target.worst())]
            )

    def spread(self) -> str:
        """How far the samples of one cell lie apart."""
        measured = [
            cell[operation]
            for library in self.libraries
            for cell in self.report["libraries"][library]["cells"].values()
            for operation in (*DIRECTIONS, "floor")
            if operation in cell
        ]
        spans = sorted((each["quartiles"][1] - each["quartiles"][0]) / each["ns"] for each in measured)
        return (
            f"The middle half of a cell's samples spans {spans[len(spans) // 2]:.0%} of their median "
            f"in the typical cell, {spans[-1]:.0%} in the worst."
        )


def markdown(report: dict[str, Any]) -> str:
    """The whole report."""
    made = Report(report)
    versions = ", ".join(
        f"{LIBRARIES[key].package} {report['libraries'][key]['installed']}" for key in made.libraries if key != "python"
    )
    parts = [
        "# Benchmark",
        "",
        f"{conditions(report)}. {versions}.",
        "",
        NOTES,
        made.spread(),
        "",
    ]
    for operation in DIRECTIONS:
        parts += [f"## {operation.capitalize()}", "", *made.table(operation), ""]
    parts += ["## Targets", "", *made.verdicts(), ""]
    return "\n".join(parts)


def ratios(made: Report, operation: str) -> Iterator[str]:
    """Native microseconds, and how many times as long the others take."""
    others = [key for key in made.libraries if key not in ("native", "msgspec")]
    head = [operation, "bytes", "native, µs", *(LIBRARIES[key].title for key in others)]
    rows = []
    for row in made.rows:
        cells = [TITLES[row], f"{made.cell('native', row)['bytes']:,}"]
        cells.append(digits(made.time("native", row, operation) / 1e3))
        for key in others:
            version = made.cell(key, row)["version"]
            shown = f"{digits(made.ratio(key, row, operation))}x"
            cells.append(shown if version == VERSIONS[row] else f"{shown} (v{version})")
        rows.append(cells)
    return table(head, rows)


def summary(report: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    made = Report(report)
    parts = [
        "Processor time of one `kw.decode` and one `kw.encode` with the native codec, and how many times as long the",
        "others take for the same message (in brackets: their version, where older). Medians.",
        f"{conditions(report)}.",
        "",
    ]
    for operation in DIRECTIONS:
        parts += [*ratios(made, operation), ""]
    missed = [target for target in made.targets() if target.missed()]
    for target in missed:
        parts.append(f"- Missed: {target.text}, in {'; '.join(target.shown(row) for row in target.missed())}.")
    if any(target.floors for target in missed):
        parts += ["", WHY]
    parts += ["", "[All times and targets](../tests/bench/results/latest.md)."]
    return "\n".join(parts)
