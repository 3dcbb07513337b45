"""The benchmark of mixes runs with either checkout's package; its report says what was missed. No time is asserted."""

from __future__ import annotations

import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw

from ..checkouts import Side, ratio, side, spread
from ..runner import ROOT, RunBench
from . import workloads
from .bench import markdown, targets


def test_a_quick_run_reports_both_sides(bench: RunBench) -> None:
    made, text = bench("mix", "--quick", "--old", str(ROOT), "--workloads", "turns", "fetch")
    for key in ("turns", "fetch"):
        title = workloads.WORKLOADS[key].title
        assert text.count(f"| {title} |") == text.count(f"| {title}, after a long history |") == 1
    assert len(made["workloads"]) == 4
    for cell in made["workloads"].values():
        assert set(cell) == {"old", "now"}
        assert all(each > 0 for name in cell for each in cell[name]["us"] + cell[name]["megabytes"])


@pytest.mark.parametrize("work", workloads.WORKLOADS.values(), ids=workloads.WORKLOADS)
def test_a_pass_decodes_all_of_its_messages(work: workloads.Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    decode = kw.decode
    monkeypatch.setattr(kw, "decode", lambda *body: made.append(decode(*body)))
    call = work.make(True)
    call()
    many = len(made)
    assert many == {"turns": 7 * 30, "drawn": 40, "together": 40}.get(work.key, 1)
    call()
    assert made[:many] == made[many:]


def test_a_process_has_the_package_of_its_side(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    (other / "kcoord_wire").mkdir(parents=True)
    (other / "_speedups").mkdir()
    (other / "kcoord_wire" / "__init__.py").write_text("raise ImportError('the other package')")
    question = {"workload": "turns", "lived": False, "number": 0, "of": 1, "quick": True, "warm": 0, "seconds": 0}
    with pytest.raises(subprocess.CalledProcessError):
        side(other, tmp_path / "links").ask("tests.bench.mix.worker", question)
    assert "the other package" in capfd.readouterr().err
    with pytest.raises(subprocess.CalledProcessError):
        Side(tmp_path / "nothing", sys.executable).ask("tests.bench.mix.worker", question)
    assert "AssertionError" in capfd.readouterr().err


def test_messages_of_a_stream_differ() -> None:
    stream = workloads.drawn(quick=True)
    assert stream == workloads.drawn(quick=True)
    assert len({data for _, data, _ in stream}) > 35
    assert len({cls for cls, _, _ in workloads.drawn()}) == len(workloads.KINDS)
    for cls, data, version in stream:
        assert kw.encode(kw.decode(cls, data, version), version) == data


def test_the_last_messages_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Kept]] = []

    def decode(cls: type, data: bytes, version: int) -> Kept:
        message = Kept()
        made.append(weakref.ref(message))
        return message

    monkeypatch.setattr(kw, "decode", decode)
    call = workloads.keep(workloads.drawn(quick=True))
    for _ in range(3):
        call()
    assert [each() is not None for each in made] == [False] * 70 + [True] * 50
    del call
    workloads.keep_all(workloads.drawn(quick=True))()
    assert not any(each() for each in made)


class Kept:
    """Can be referred to weakly, as a message cannot."""


def cells(now: list[float], old: list[float]) -> dict[str, Any]:
    both = {"now": now, "old": old}
    return {name: {"us": us, "least": us, "faults": [0.0], "megabytes": [30.0]} for name, us in both.items()}


def test_targets_name_the_row_that_is_worst() -> None:
    made = {
        "date": "2026-11-23",
        "machine": {"processor": "p"},
        "old": "abc1234",
        "turns": 3,
        "workloads": {
            "turns": cells([4.0, 4.0, 4.4], [10.0, 10.0, 10.0]),
            "drawn": cells([6.0, 6.0, 6.0], [10.0, 10.0, 10.0]),
            "turns, lived": cells([10.0, 13.0, 11.0], [10.0, 10.0, 10.0]),
        },
    }
    assert [(met, figures) for _, met, figures in targets(made)] == [
        (False, f"0.60: {workloads.WORKLOADS['drawn'].title}"),
        (True, f"1.10: {workloads.WORKLOADS['turns'].title}, after a long history"),
        (False, f"1.30: {workloads.WORKLOADS['turns'].title}, after a long history"),
    ]
    assert "| abc1234, µs | now, µs | of old |" in markdown(made)
    # Alone there is nothing to compare with, only the spread.
    for cell in made["workloads"].values():
        del cell["old"]
    assert len([*targets(made | {"old": None})]) == 1
    assert "| now, µs | spread |" in markdown(made | {"old": None})


def test_a_ratio_is_of_neighbours_and_a_spread_of_extremes() -> None:
    assert ratio(now=[1.0, 4.0, 9.0], old=[1.0, 2.0, 3.0]) == 2.0
    assert spread([2.0, 1.0, 1.5]) == 2.0
