"""Makes Markdown of what was measured: `markdown` all of it, `readme_table` the short table of the README.

`python -m tests.bench.report` prints the README's table from tests/bench/results/latest.json, or from the file named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .libraries import LIBRARIES
from .rows import ROWS

LARGE = 10_000  # bytes: from here on a message counts as large
DIRECTIONS = ("decode", "encode")
NOTES = """\
Times are medians of one call, in microseconds of processor time; MB/s counts the bytes on the wire. `x` is how many
times our native codec's time the other one takes: above 1, ours is faster. Ours is called as
`kw.decode(cls, data, version)` and `kw.encode(message, version)`. The garbage collector is on. Every library but
msgspec is checked to write the same bytes as ours.

* **floor**: allocating, filling and freeing the same objects without any parsing (tests/bench/floor.c), measured in the
  native codec's process.
* **pure Python**: ours without the native module.
* **construct**: the grammar that `kcoord_wire.schema.construct_model` makes, run by construct.
* **msgspec**: no peer; the same values as msgspec Structs in MessagePack, to show what a codec in C can do. Its MB/s
  are MessagePack's bytes.
* **v1**, **v3**, **v5** behind a time: the newest version of that message that the library has, measured on that one.
"""


def title_of(key: str) -> str:
    return next(f"{row.title} (v{row.version})" for row in ROWS if row.key == key)


def version_of(key: str) -> int:
    return next(row.version for row in ROWS if row.key == key)


def digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


class Report:
    """What was measured, by library, row and direction."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.report = report
        self.rows: list[str] = report["rows"]
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
        same = [peer for peer in self.peers if self.cell(peer, row)["version"] == version_of(row)]
        return min(same, key=lambda peer: self.time(peer, row, operation))

    def shown(self, library: str, row: str, operation: str) -> str:
        cell = self.cell(library, row)
        nanoseconds = self.time(library, row, operation)
        text = f"{digits(nanoseconds / 1e3)} ({digits(cell['bytes'] * 1e3 / nanoseconds)} MB/s)"
        if library != "native":
            text += f" {digits(self.ratio(library, row, operation))}x"
        return text if cell["version"] == version_of(row) else f"{text} v{cell['version']}"

    def table(self, operation: str) -> Iterator[str]:
        floor = operation == "decode"
        head = ["message", "bytes", "native", *(["floor: native / floor"] if floor else []), "fastest peer / native"]
        rest = [library for library in self.libraries if library != "native"]
        yield line([*head, *(LIBRARIES[library].title for library in rest)])
        yield line(["---", *["---:"] * (len(head) + len(rest) - 1)])
        for row in self.rows:
            cells = [title_of(row), f"{self.cell('native', row)['bytes']:,}", self.shown("native", row, operation)]
            if floor:
                time = self.time("native", row, "floor")
                cells.append(f"{digits(time / 1e3)}: {self.time('native', row, 'decode') / time:.2f}")
            if self.peers:
                peer = self.fastest_peer(row, operation)
                cells.append(f"{digits(self.ratio(peer, row, operation))}x ({LIBRARIES[peer].title})")
            else:
                cells.append("-")
            yield line([*cells, *(self.shown(library, row, operation) for library in rest)])

    def targets(self) -> Iterator[str]:
        """Each target with the row that is worst against it."""
        large = [row for row in self.rows if self.cell("native", row)["bytes"] >= LARGE]
        wanted = [
            ("decode at least 2x kio", "kio", "native", "decode", 2.0, self.rows),
            ("encode at least 50x kafka-python, large messages", "kafka-python", "native", "encode", 50.0, large),
            ("encode at least 70x kio, large messages", "kio", "native", "encode", 70.0, large),
            ("pure Python decodes no slower than kafka-python", "kafka-python", "python", "decode", 1.0, self.rows),
            ("pure Python encodes no slower than kafka-python", "kafka-python", "python", "encode", 1.0, self.rows),
        ]
        yield line(["target", "met", "rows that meet it", "worst row"])
        yield line(["---", "---", "---", "---"])
        for text, library, to, operation, least, rows in wanted:
            if library in self.libraries and to in self.libraries and rows:
                ratios = {row: self.ratio(library, row, operation, to) for row in rows}
                worst = min(ratios, key=lambda row: ratios[row])
                met = sum(ratio >= least for ratio in ratios.values())
                shown = f"{title_of(worst)}: {digits(ratios[worst])}x"
                if operation == "decode" and to == "native":
                    allowed = self.time(library, worst, "decode") / self.time("native", worst, "floor")
                    shown += f"; the floor itself: {digits(allowed)}x"
                yield verdict(text, met, len(rows), shown)
        over = {row: self.time("native", row, "decode") / self.time("native", row, "floor") for row in self.rows}
        worst = max(over, key=lambda row: over[row])
        met = sum(ratio <= 1.4 for ratio in over.values())
        yield verdict("decode within 1.4x of the floor", met, len(over), f"{title_of(worst)}: {over[worst]:.2f}")

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


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def verdict(text: str, met: int, of: int, worst: str) -> str:
    return line([text, "yes" if met == of else "no", f"{met} of {of}", worst])


def markdown(report: dict[str, Any]) -> str:
    """The whole report."""
    made = Report(report)
    machine = report["machine"]
    versions = ", ".join(
        f"{LIBRARIES[key].package} {report['libraries'][key]['installed']}" for key in made.libraries if key != "python"
    )
    parts = [
        "# Benchmark",
        "",
        f"{report['date']}, {machine['processor']}, {machine['cores']} cores, {machine['system']}, "
        f"{machine['python']}; load {machine['load']} at the start. {versions}.",
        "",
        *(["**A smoke test on tiny messages: these times mean nothing.**", ""] if report["quick"] else []),
        NOTES,
        made.spread(),
        "",
    ]
    for operation in DIRECTIONS:
        parts += [f"## {operation.capitalize()}", "", *made.table(operation), ""]
    parts += ["## Targets", "", *made.targets(), ""]
    return "\n".join(parts)


def readme_table(report: dict[str, Any]) -> str:
    """Native times, and how many times longer the others take, decode / encode."""
    made = Report(report)
    others = [key for key in made.libraries if key not in ("native", "msgspec")]
    head = ["message", "bytes", "native, us", *(LIBRARIES[key].title for key in others)]
    lines = [line(head), line(["---", *["---:"] * (len(head) - 1)])]
    for row in made.rows:
        cells = [title_of(row), f"{made.cell('native', row)['bytes']:,}"]
        cells.append(" / ".join(digits(made.time("native", row, operation) / 1e3) for operation in DIRECTIONS))
        for key in others:
            ratios = " / ".join(f"{digits(made.ratio(key, row, operation))}x" for operation in DIRECTIONS)
            version = made.cell(key, row)["version"]
            cells.append(ratios if version == version_of(row) else f"{ratios} (v{version})")
        lines.append(line(cells))
    return "\n".join(lines)


if __name__ == "__main__":
    named = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results" / "latest.json"
    print(readme_table(json.loads(named.read_text("utf-8"))))
