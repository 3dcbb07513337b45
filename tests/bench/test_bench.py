"""The benchmark runs: every row with either codec, the floor builds and is fair, the report says what was measured.

No time is asserted.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw

from . import frames
from .floor import load_floor
from .page import PAGE, page
from .report import Report, markdown, summary
from .rows import ROWS, Row
from .runner import RunBench, shown

floor = load_floor()


def decoded(row: Row) -> tuple[Any, Any]:
    message = row.message(quick=True)
    data = kw.encode(message, row.version)
    return kw.decode(type(message), data, row.version), kw.decode(type(message), data, row.version)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_the_floor_builds_an_equal_message_of_new_objects(row: Row) -> None:
    message, twin = decoded(row)
    built = floor.Recipe(message, twin).build()
    assert built == message
    assert type(built) is type(message)
    for attr in message.__slots__:
        ours, other, made = getattr(message, attr), getattr(twin, attr), getattr(built, attr)
        assert type(made) is type(ours)
        assert (made is ours) == (ours is other)
        assert gc.is_tracked(made) == gc.is_tracked(ours)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_the_floor_keeps_nothing(row: Row) -> None:
    recipe = floor.Recipe(*decoded(row))
    recipe.build()
    kw.trim()
    before = sys.getallocatedblocks()
    for _ in range(50):
        recipe.build()
    kw.trim()  # the pools of the codec keep what the recipe dropped
    assert sys.getallocatedblocks() - before < 25


@pytest.mark.parametrize(
    ("message", "twin", "error"),
    [
        (kw.HeartbeatRequest(), kw.JoinGroupRequest(), ValueError),
        ([1], [1, 2], ValueError),
        (object(), object(), AttributeError),
        (1 << 70, 1 << 70, OverflowError),
        (Path("a"), Path("b"), TypeError),
    ],
    ids=["other class", "other length", "no slots", "too large", "more than slots"],
)
def test_the_floor_refuses_what_it_cannot_build(message: object, twin: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        floor.Recipe(message, twin)


@pytest.fixture(scope="module")
def report(bench: RunBench) -> dict[str, Any]:
    """What a quick run of our two codecs wrote."""
    return bench("codec", "--quick", "--libraries", "native", "python")[0]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_quick_run_measures_every_row(report: dict[str, Any], row: Row) -> None:
    made = Report(report)
    message = row.message(quick=True)
    for library in ("native", "python"):
        assert made.cell(library, row.key)["version"] == row.version
        assert made.cell(library, row.key)["bytes"] == len(kw.encode(message, row.version))
        for operation in ("decode", "encode"):
            assert made.time(library, row.key, operation) > 0
    assert made.time("native", row.key, "floor") > 0
    assert row.title in markdown(report)
    assert row.title in summary(report)


def test_a_quick_run_measures_whole_frames(bench: RunBench) -> None:
    written, text = bench("frames", "--quick", "--libraries", "native", "python")
    for row in frames.FRAMES:
        assert text.count(f"| {row.title} (v{row.version}) | ") == 2
        assert all(Report(written).time("python", row.key, operation) > 0 for operation in ("decode", "encode"))
    # A row that is slower than its target is named.
    written["libraries"]["kio"] = written["libraries"]["native"]
    assert "Missed: decode at least 3x kio, in Heartbeat request: 1x;" in frames.summary(written)


def test_a_target_names_its_worst_row(report: dict[str, Any]) -> None:
    cells = report["libraries"]["native"]["cells"]
    for key, cell in cells.items():
        cell["decode"]["ns"], cell["floor"]["ns"] = (150.0 if key == "join-100" else 130.0), 100.0
    worst = "JoinGroupResponse, 100 members (v7): 1.50x"
    assert f"| decode within 1.4x of the floor | no | 8 of 9 | {worst} |" in [*Report(report).verdicts()]
    assert f"Missed: decode within 1.4x of the floor, in {worst}." in summary(report)


@pytest.mark.parametrize(
    ("value", "bound", "text"),
    [
        (5.98, 6, "5.98"),
        (5.9996, 6, "5.9996"),
        (6.0, 6, "6.00"),
        (4.003, 4, "4.003"),
        (49.97, 50, "49.97"),
        (123.4, 50, "123"),
    ],
)
def test_a_missed_target_shows_by_how_much(value: float, bound: float, text: str) -> None:
    assert shown(value, bound) == text


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python -m tests.bench.page"
