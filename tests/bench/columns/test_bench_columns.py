"""The benchmark of the column decoder runs, and its report says what was measured. No time is asserted."""

from __future__ import annotations

import pytest

from ..runner import RunBench
from .cases import CASES, SIZE, WAYS
from .report import summary, targets


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_every_way_gives_the_same_columns(case) -> None:  # type: ignore[no-untyped-def]
    frames = case.frames(True)
    batch = WAYS["copies"](case)(frames)
    assert batch.column("error").null_count == len(frames)
    headers, structs = WAYS["objects"](case)(frames)
    assert [column.to_pylist() for column in batch.columns[:-2]] == [one.to_pylist() for one in (*headers, *structs)]
    views = WAYS["views"](case)(frames)
    assert views.to_pylist() == batch.to_pylist()
    two = WAYS["two"](case)(frames)
    assert two.column("error").null_count == len(frames)


def test_the_joins_have_their_size() -> None:
    sizes = [len(body) for body in CASES[0].make(50)]
    assert max(abs(size - SIZE) for size in sizes) <= 2


@pytest.mark.slow
def test_a_quick_run(bench: RunBench) -> None:
    made, _ = bench("columns", "--quick")
    assert "A quick run, which measures nothing." in summary(made)
    assert len(targets(made)) == 4


@pytest.mark.parametrize(
    ("factor", "said"), [(1.0, "All targets are met."), (0.5, "Missed: all columns, copied: at least 4")]
)
def test_what_is_missed_is_said(factor: float, said: str) -> None:
    def case(size: int) -> dict[str, object]:
        base = size / 6e9 / factor
        ways = {"copies": base, "views": base, "two": base, "memcpy": base, "objects": 40 * base, "pure": 99 * base}
        return {"rows": 10, "bytes": size, "seconds": {way: [value] for way, value in ways.items()}}

    made = {"date": "d", "machine": {"processor": "p"}, "versions": {"pyarrow": "1"}, "load": 0, "quick": False}
    made["cases"] = {one.key: case(5000) for one in CASES}  # type: ignore[assignment]
    assert said in summary(made)
