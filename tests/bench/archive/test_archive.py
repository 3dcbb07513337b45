"""The archive's captures are sound, and what a run takes is measured."""

from __future__ import annotations

import os
from pathlib import Path

from kcoord_wire.forensics.analysis import analyze

from ..spark.measure import watched
from .captures import REJOINS, write_captures
from .measure import processor_time


def test_captures_show_what_was_written(tmp_path: Path) -> None:
    rounds, groups, members = REJOINS + 3, 2, 3
    each = 2 * (1 + 1 / 2 + 2 / REJOINS)
    size = write_captures(tmp_path / "captures", round(2 * groups * members * rounds * each), 2, groups, members)
    assert size == sum(path.stat().st_size for path in (tmp_path / "captures").iterdir())
    found = analyze([tmp_path / "captures"])
    assert found.losses == []
    assert len(found.histories) == 2 * groups
    for history in found.histories:
        assert len(history.members) == members
        assert [rebalance.generation_id for rebalance in history.rebalances] == [1, 2]
        assert len(history.commits) > rounds


def test_processor_time_is_that_of_this_process() -> None:
    before = processor_time(os.getpid())
    sum(range(10_000_000))
    after = processor_time(os.getpid())
    assert after["driver"] > before["driver"]
    assert after["jvm"] >= 0


def test_what_the_driver_receives_is_counted(tmp_path: Path) -> None:
    write_captures(tmp_path / "captures", 2_000, 2, 1, 2)
    found = watched("written", tmp_path / "captures", tmp_path, module="tests.bench.archive.measure")
    assert found["frames"] == analyze([tmp_path / "captures"]).counts["frames"]
    assert found["tasks"] > 2
    assert found["received"] > 100 * found["tasks"]
