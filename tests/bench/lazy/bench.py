"""Measures lazy decoding: processor time of the thread; the ways take turns on the same bytes; medians of all
samples."""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import kcoord_wire as kw

from ..rows import ROWS, Row
from ..runner import Bench, Made, conditions, digits, require_native, samples, shown, table

ARRAYS = {
    "join-100": "members",
    "join-5000": "members",
    "sync-5000": "assignments",
    "metadata": "topics",
    "offset-fetch": "topics",
}
LARGE = [key for key in ARRAYS if key != "join-100"]
TURNS, SECONDS = 5, 0.1  # of each way, in each row
TENTH_OF_DECODE, ALL_OF_DECODE = 0.3, 1.15  # the targets
WHY = """\
An element is made with all that it holds: a topic with its 30 partitions. To touch them all takes longer than decoding,
for the bytes are walked twice: `decode` without `lazy` is the way to a message that is read entirely."""


def ways(row: Row, quick: bool) -> tuple[bytes, dict[str, Callable[[], Any]]]:
    """The row's bytes, and by the name of what is measured a call that does it."""
    message = row.message(quick)
    cls, data, array, version = type(message), kw.encode(message, row.version), ARRAYS[row.key], row.version
    field = "name" if array == "topics" else "member_id"

    def read(every: int, lazy: bool) -> None:
        for element in getattr(kw.decode(cls, data, version, lazy=lazy), array)[::every]:
            getattr(element, field)

    def read_all(lazy: bool) -> None:
        for element in getattr(kw.decode(cls, data, version, lazy=lazy), array):
            getattr(element, field)

    return data, {
        "decode": lambda: kw.decode(cls, data, version),
        "none": lambda: kw.decode(cls, data, version, lazy=True),
        "tenth": lambda: read(10, True),
        "all": lambda: read_all(True),
        "decode_all": lambda: read_all(False),
    }


def memory(call: Callable[[], Any]) -> int:
    """Bytes that stay allocated for what `call` returns."""
    call()
    tracemalloc.start()
    kept = call()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return taken


def measure(row: Row, quick: bool) -> dict[str, Any]:
    data, calls = ways(row, quick)
    found: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(1 if quick else TURNS):
        for way, call in calls.items():
            found[way] += samples(call, 0 if quick else SECONDS)
    return {
        "bytes": len(data),
        "us": {way: 1e6 * median(each) for way, each in found.items()},
        "memory": {way: memory(calls[way]) for way in ("decode", "none")},
    }


def measure_all(options: argparse.Namespace) -> Made:
    require_native()
    return {"rows": {row.key: measure(row, options.quick) for row in ROWS if row.key in ARRAYS}}


def markdown(made: dict[str, Any]) -> str:
    """The whole report, which is the section of docs/benchmarks.md."""
    titles = {row.key: f"{row.title} (v{row.version})" for row in ROWS}
    head = ["", "bytes", "decode", "lazy, none", "a tenth", "of decode", "all", "decode, all", "memory: lazy / message"]
    rows = []
    for key, cell in made["rows"].items():
        us = cell["us"]
        cells = [titles[key], f"{cell['bytes']:,}", digits(us["decode"]), digits(us["none"]), digits(us["tenth"])]
        cells += [f"{us['tenth'] / us['decode']:.2f}", digits(us["all"]), digits(us["decode_all"])]
        rows.append([*cells, f"{cell['memory']['none']:,} / {cell['memory']['decode']:,}"])
    large = [made["rows"][key]["us"] for key in LARGE]
    tenth = max(us["tenth"] / us["decode"] for us in large)
    every = max(us["all"] / us["decode_all"] for us in large)
    targets = [
        ("a tenth of the elements of large messages in less than 0.3 of decode", tenth, TENTH_OF_DECODE),
        ("all elements of large messages in less than 1.15 of decoding and reading them", every, ALL_OF_DECODE),
    ]
    verdicts = [
        f"- {'Met' if found < bound else 'Missed'}: {text} ({shown(found, bound)})." for text, found, bound in targets
    ]
    about = (
        "Microseconds of processor time, medians: decoding; decoding lazily (which checks all bytes) and reading one",
        "field of none of the elements, every tenth, all; decoding and reading one field of all. Memory in bytes.",
        f"{conditions(made)}.",
    )
    return "\n".join([*about, "", *table(head, rows), "", *verdicts, "", WHY, ""])


BENCH = Bench(
    about="messages whose elements are made when they are asked for, next to decoding them.",
    results=Path(__file__).parent / "results",
    measure=measure_all,
    markdown=markdown,
    quick=True,
    title="Lazy messages",
    command="make bench",
    summary=markdown,
)
