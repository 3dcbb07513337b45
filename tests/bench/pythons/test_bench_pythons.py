"""The benchmark of other Pythons runs on this one, and its report says what is slower. No time is asserted.

`make pythons` shows that the modules can be built for others.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from ..checkouts import side
from ..rows import ROWS
from ..runner import ROOT, RunBench
from .bench import THIS, WAYS, markdown, targets


def test_a_quick_run_reports_this_python(bench: RunBench) -> None:
    made, text = bench("pythons", "--quick", "--old", str(ROOT))
    assert list(made["pythons"]) == [THIS]
    assert text.count(f"| {THIS} |") == len(WAYS)
    for both in made["pythons"][THIS][ROWS[0].key].values():
        assert len(both["old"]) == len(both["now"]) == 1


def test_another_pythons_modules_replace_the_checkouts(tmp_path: Path) -> None:
    other = tmp_path / "_native.other.so"
    other.touch()
    own = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    assert (ROOT / "kcoord_wire" / own).exists()
    mine = side(ROOT, tmp_path / "mine").folder / "kcoord_wire"
    theirs = side(ROOT, tmp_path / "theirs", Path(sys.executable), [other]).folder / "kcoord_wire"
    assert (mine / own).exists()
    assert [each.name for each in theirs.glob("*.so")] == [other.name]
    assert (theirs / "messages" / "__init__.py").exists()


def made_up(slow: float) -> dict[str, Any]:
    same = {way: {"now": [10.0, 10.0], "old": [10.0, 10.0]} for way in WAYS}
    slower = same | {"decode": {"now": [10.0 * slow, 10.0 * slow], "old": [10.0, 10.0]}}
    return {
        "date": "2026-11-23",
        "machine": {"processor": "p"},
        "old": "abc1234",
        "pythons": {"3.11": {"heartbeat": same, "join-1": same}, "3.13t": {"heartbeat": same, "join-1": slower}},
    }


@pytest.mark.parametrize(("slow", "met"), [(1.05, True), (1.06, False)])
def test_a_row_that_is_slower_is_named(slow: float, met: bool) -> None:
    made = made_up(slow)
    (_, fine, _), (text, meets, figures) = targets(made)
    assert (fine, meets) == (True, met)
    assert (text.partition(":")[0], figures) == ("3.13t", f"decode join-1: {slow}")
    assert f"| 3.13t | 10.0 (1.00) | {10 * slow:.1f} ({slow:.2f}) | 1.0" in markdown(made)
    alone = markdown(made | {"old": None})
    assert "| 3.11 | 10.0 | 10.0 |" in alone
    assert "target" not in alone
