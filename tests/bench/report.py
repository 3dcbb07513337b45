"""One report from pytest-benchmark's files, and Markdown of it: `markdown` all, `summary` for docs/benchmarks.md.

`line`, `shown` and `write_results` serve the reports of the other benchmarks as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from .libraries import LIBRARIES
from .rows import ROWS

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
    run = next(iter(runs.values()))[0]
    info = run["machine_info"]
    machine = {
        "processor": info["cpu"].get("brand_raw") or info["machine"],
        "cores": info["cpu"]["count"],
        "system": f"{info['system']} {info['machine']}",
        "python": f"{info['python_implementation']} {info['python_version']}",
    }
    libraries = {
        library: {"installed": LIBRARIES[library].installed(), "cells": merge_cells(done)}
        for library, done in runs.items()
    }
    return {"date": run["datetime"][:10], "machine": machine, "libraries": libraries}


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


def digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


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
        yield line([*head, *(LIBRARIES[library].title for library in rest)])
        yield line(["---", *["---:"] * (len(head) + len(rest) - 1)])
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
            yield line([*cells, *(self.shown(library, row, operation) for library in rest)])

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


def write_results(folder: Path, report: dict[str, Any], text: str | None) -> None:
    """Write latest.json, what was measured, and latest.md, what `markdown` made of it; print the latter.

    :param text: None: not everything was measured that `markdown` shows
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "latest.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    if text is not None:
        (folder / "latest.md").write_text(text, "utf-8")
        print(text)


def shown(value: float, bound: float) -> str:
    """The value with as many decimals as it takes to see on which side of the bound it lies: 5.98 of 6, not 6.0."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    while (round(value, decimals) < bound) != (value < bound) or (round(value, decimals) > bound) != (value > bound):
        decimals += 1
    return f"{value:,.{decimals}f}"


def line(cells: list[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def conditions(report: dict[str, Any]) -> str:
    machine = report["machine"]
    return (
        f"{report['date']}, {machine['processor']}, {machine['cores']} cores, {machine['system']}, "
        f"{machine['python']}; load {report['load']} at the start"
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
        *(["**A smoke test on tiny messages: these times mean nothing.**", ""] if report["quick"] else []),
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
    yield line(head)
    yield line(["---", *["---:"] * (len(head) - 1)])
    for row in made.rows:
        cells = [TITLES[row], f"{made.cell('native', row)['bytes']:,}"]
        cells.append(digits(made.time("native", row, operation) / 1e3))
        for key in others:
            version = made.cell(key, row)["version"]
            shown = f"{digits(made.ratio(key, row, operation))}x"
            cells.append(shown if version == VERSIONS[row] else f"{shown} (v{version})")
        yield line(cells)


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
