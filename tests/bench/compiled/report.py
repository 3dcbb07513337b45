"""Markdown of what `python -m tests.bench compiled` measured: `markdown` alone, `summary` for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..report import DIRECTIONS, TITLES
from ..runner import conditions, digits, shown
from ..runner import table as lines

RESULTS = Path(__file__).parent / "results"
PEERS = ("kafka-clients", "franz-go")
HOW = """\
Processor time of one call, and how many times our time the others take: above 1, ours is faster. Each gets the same
body and writes the same bytes again. Every row has a process of its own, which runs it unmeasured first; the programs
take turns, and the medians are of all turns. kafka-clients: the calling thread alone, without the JVM's compilers and
garbage collector. franz-go (kmsg): the whole process, collector included; its byte slices point into the input, its
strings are copies. Ours: the thread, with Python's collector on."""


def ratio(made: dict[str, Any], peer: str, row: str, direction: str) -> float:
    """How many times our time a peer takes."""
    value: float = made["cells"][peer][row][direction] / made["cells"]["ours"][row][direction]
    return value


def table(made: dict[str, Any], direction: str) -> Iterator[str]:
    rows = []
    for row, cell in made["cells"]["ours"].items():
        others = [
            f"{digits(made['cells'][peer][row][direction] / 1e3)} ({digits(ratio(made, peer, row, direction))}x)"
            for peer in PEERS
        ]
        rows.append([TITLES[row], f"{cell['bytes']:,}", digits(cell[direction] / 1e3), *others])
    return lines([direction, "bytes", "ours, µs", *(made["programs"][peer] for peer in PEERS)], rows)


def missed(made: dict[str, Any]) -> Iterator[str]:
    """The target: encode ahead of both, decode level with them."""
    for direction, text in (("encode", "encode ahead of"), ("decode", "decode level with")):
        for peer in PEERS:
            behind = {row: ratio(made, peer, row, direction) for row in made["cells"]["ours"]}
            behind = {row: value for row, value in behind.items() if value < 1}
            if behind:
                rows = "; ".join(f"{TITLES[row]}: {shown(value, 1)}x" for row, value in behind.items())
                yield f"- Missed: {text} {peer}, in {rows}."


def summary(made: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    parts = [HOW, f"{conditions(made)}.", ""]
    for direction in DIRECTIONS:
        parts += [*table(made, direction), ""]
    return "\n".join([*parts, *missed(made)])


def markdown(made: dict[str, Any]) -> str:
    """The whole report."""
    return f"# Compiled peers\n\n{summary(made)}\n"
