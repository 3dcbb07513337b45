"""Markdown of what was measured: `markdown` all, `summary` for docs/benchmarks.md."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from ..runner import conditions, shown, verdicts
from ..runner import table as lines
from .cases import CASES

RESULTS = Path(__file__).parent / "results"
TITLES = {"copies": "all columns, copied", "views": "all columns, views", "two": "two columns"}
NOTES = """\
* A batch is 8,192 to 16,384 frames (300 of the responses), header and message all decoded and validated, UTF-8
  included; **two columns** decodes two fields of the message and checks the rest. **views**: string_view and
  binary_view on the input's bytes.
* **memcpy**: the frames' bytes copied to memory that is already there, in the same process.
* **objects**: `decode_request` (`decode_response`) with the native codec, then an array of each attribute's values; all
  columns, copied. **pure**: the pure-Python decoder with the pure-Python codec, in another process.
* Processor time of the thread, medians; the ways take turns on one core. A batch is given back before the next is made:
  the decoder keeps up to 32 MB of large buffers for that.
"""


def seconds(case: dict[str, Any], way: str) -> float:
    return median(case["seconds"][way])


def rate(case: dict[str, Any], way: str) -> float:
    """GB of frames a second."""
    return float(case["bytes"]) / seconds(case, way) / 1e9


def times(case: dict[str, Any], way: str, other: str) -> float:
    return seconds(case, other) / seconds(case, way)


def targets(made: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """What was aimed at on 500-byte JoinGroup requests, whether it was met, and by which figures."""
    join = made["cases"]["join"]
    return [
        *(
            (
                f"{TITLES[way]}: at least {least} GB/s",
                rate(join, way) >= least,
                f"{shown(rate(join, way), least)} of {least} GB/s",
            )
            for way, least in (("copies", 4), ("views", 6))
        ),
        *(
            (
                f"{TITLES[way]}: at least {least} times the path through objects",
                times(join, way, "objects") >= least,
                f"{shown(times(join, way, 'objects'), least)} of {least} times",
            )
            for way, least in (("copies", 12), ("views", 30))
        ),
    ]


def about(made: dict[str, Any]) -> str:
    return conditions(made, f"pyarrow {made['versions']['pyarrow']}") + "."


def table(made: dict[str, Any]) -> str:
    heads = ["one core", "frames/s", "GB/s", "memcpy, GB/s", "against objects", "against pure Python"]
    rows = []
    for case in CASES:
        of_case = made["cases"][case.key]
        for way, title in TITLES.items():
            cells = [
                f"{case.title}: {title}",
                f"{of_case['rows'] / seconds(of_case, way):,.0f}",
                f"{rate(of_case, way):.2f}",
                f"{rate(of_case, 'memcpy'):.1f}",
                f"{times(of_case, way, 'objects'):.0f} times",
                f"{times(of_case, way, 'pure'):.0f} times",
            ]
            rows.append(cells)
    return "\n".join(lines(heads, rows))


def verdict(made: dict[str, Any]) -> str:
    missed = [f"{what} ({figure})" for what, met, figure in targets(made) if not met]
    if not missed:
        return "All targets are met."
    return "Missed: " + "; ".join(missed) + "."


def markdown(made: dict[str, Any]) -> str:
    """The whole report."""
    others = []
    for case in CASES:
        of_case = made["cases"][case.key]
        for way in ("objects", "pure"):
            cells = [
                f"{case.title}: {way}",
                f"{of_case['rows'] / seconds(of_case, way):,.0f}",
                f"{rate(of_case, way):.3f}",
            ]
            others.append(cells)
    parts = [
        "# Frames to Arrow columns",
        about(made),
        table(made),
        "Targets, on JoinGroup requests of 500 bytes:",
        "\n".join(verdicts(targets(made))),
        "\n".join(lines(["through objects, or in pure Python", "frames/s", "GB/s"], others)),
        NOTES.strip(),
    ]
    return "\n\n".join(parts) + "\n"


def summary(made: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    link = "[How, and all targets](../tests/bench/columns/results/latest.md)."
    return f"{about(made)}\n\n{table(made)}\n\n{verdict(made)}\n\n{link}"
