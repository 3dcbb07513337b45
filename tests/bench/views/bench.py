"""Measures views: processor time of the thread; decoding, checking and reading take turns on the same bytes; medians of
all samples."""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

import kcoord_wire as kw

from ..rows import ROWS, Row
from ..runner import Bench, Made, conditions, digits, require_native, samples, shown, table

ARRAYS = {"join-100": "members", "join-5000": "members", "metadata": "topics", "offset-fetch": "topics"}
TURNS, SECONDS = 5, 0.1  # of each way, in each row
ONES = 1000  # times that one field is read in a sample
MOST_OF_DECODE, MOST_US = 0.2, 1.0  # the targets: of 5,000 members
WHY = """\
An index walks the element that it makes a view of: a topic with 30 partitions takes more than a member. Reading every
field by views takes longer than decoding, which is the way to a message that is read entirely."""


def reader(view: Any) -> Callable[[Any], None]:
    """A function that reads each field of a view, and of every view in it."""
    struct, array = type(view), type(getattr(view, next(name for name in dir(view) if name in ARRAYS.values())))
    getters: dict[type, attrgetter[Any]] = {}

    def read(value: Any) -> None:
        if type(value) is array:
            for element in value:
                read(element)
        elif type(value) is struct:
            cls = value.__class__
            if cls not in getters:
                getters[cls] = attrgetter(*dir(value))
            for field in getters[cls](value):
                if type(field) is array or type(field) is struct:
                    read(field)

    return read


def ways(row: Row, quick: bool) -> tuple[bytes, dict[str, tuple[Callable[[], Any], int]]]:
    """The row's bytes, and by the name of what is measured a call and how many times it does that."""
    message = row.message(quick)
    cls, data, array = type(message), kw.encode(message, row.version), ARRAYS[row.key]
    view = kw.view(cls, data, row.version)
    middle = len(getattr(view, array)) // 2
    first = "member_id" if array == "members" else "name"
    read = reader(view)

    def one() -> None:
        for _ in range(ONES):
            getattr(getattr(view, array)[middle], first)

    def each() -> None:
        for element in getattr(kw.view(cls, data, row.version), array):
            getattr(element, first)

    return data, {
        "decode": (lambda: kw.decode(cls, data, row.version), 1),
        "view": (lambda: kw.view(cls, data, row.version), 1),
        "one": (one, ONES),
        "each": (each, 1),
        "all": (lambda: read(kw.view(cls, data, row.version)), 1),
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
        for way, (call, times) in calls.items():
            found[way] += [each / times for each in samples(call, 0 if quick else SECONDS)]
    return {
        "bytes": len(data),
        "us": {way: 1e6 * median(each) for way, each in found.items()},
        "memory": {way: memory(calls[way][0]) for way in ("decode", "view")},
    }


def measure_all(options: argparse.Namespace) -> Made:
    require_native()
    return {"rows": {row.key: measure(row, options.quick) for row in ROWS if row.key in ARRAYS}}


def markdown(made: dict[str, Any]) -> str:
    """The whole report, which is the section of docs/benchmarks.md."""
    titles = {row.key: f"{row.title} (v{row.version})" for row in ROWS}
    head = ["", "bytes", "decode", "view", "of decode", "one field", "one field of each element", "every field"]
    rows = []
    for key, cell in made["rows"].items():
        us = cell["us"]
        share = f"{us['view'] / us['decode']:.2f}"
        cells = [titles[key], f"{cell['bytes']:,}", digits(us["decode"]), digits(us["view"]), share, digits(us["one"])]
        cells += [digits(us["each"]), digits(us["all"]), f"{cell['memory']['view']:,} / {cell['memory']['decode']:,}"]
        rows.append(cells)
    large = made["rows"]["join-5000"]["us"]
    targets = [
        ("a view of 5,000 members in less than a fifth of decode", large["view"] / large["decode"], MOST_OF_DECODE),
        ("one field of one of 5,000 members below 1 µs", large["one"], MOST_US),
    ]
    verdicts = [
        f"- {'Met' if found < bound else 'Missed'}: {text} ({shown(found, bound)})." for text, found, bound in targets
    ]
    about = (
        "Microseconds of processor time, medians: decoding, making a view (which checks all bytes), reading one field",
        "of an element in the middle of the array by its index, and, with a new view each, one field of each element",
        f"and every field of the message. Memory in bytes. {conditions(made)}.",
    )
    return "\n".join([*about, "", *table([*head, "memory: view / message"], rows), "", *verdicts, "", WHY, ""])


BENCH = Bench(
    about="messages whose fields are read when they are asked for, next to decoding them.",
    results=Path(__file__).parent / "results",
    measure=measure_all,
    markdown=markdown,
    quick=True,
    title="Views",
    command="make bench",
    summary=markdown,
)
