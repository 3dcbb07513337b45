"""The laws hold in random runs, and a planted bug is found by the law that it breaks."""

from __future__ import annotations

import os

import pytest

from kcoord_wire.central.rewrite.layout import GroupMetadata, metadata_path, shard_path
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.script import SimulationFailure, run_script
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.rewrite.invariants import Invariants
from kcoord_wire.worlds.rewrite.script import random_script
from kcoord_wire.zookeeper.layout import offset_path
from kcoord_wire.zookeeper.model import Check, Create, SetData
from tests.support.planted_rewrite_bugs import PLANTED, Planted

STEPS = int(os.environ.get("KCOORD_WIRE_STEPS", "20000"))  # `make proof` runs fifty times as many
LOOKED_FOR = 400  # seeds within which a planted bug shows


@pytest.mark.parametrize("stops_with_session", [False, True], ids=["as written", "stops with session"])
def test_random_runs_break_no_law(stops_with_session: bool) -> None:
    steps = rebalances = seed = 0
    while steps < STEPS:
        script = random_script(seed, stops_with_session=stops_with_session)
        report = run_script(script)
        steps += report.steps
        rebalances += report.rebalances
        seed += 1
    assert rebalances > steps // 1_000, "too few rebalances for the runs to prove anything"


def run_seeds(bug: Planted) -> None:
    stops_with_session = bug.law == "no overlap"
    for seed in range(LOOKED_FOR):
        run_script(random_script(seed, stops_with_session=stops_with_session, odds=bug.odds), shrink=False)


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.plant.__name__)
def test_a_planted_bug_is_caught_by_its_law(bug: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    with pytest.raises(SimulationFailure) as caught:
        run_seeds(bug)
    assert caught.value.law == bug.law, caught.value


def test_one_coordinator_a_write_after_another_takeover_is_found() -> None:
    """ZooKeeper refuses such a write, and a broker without a lease does not try: here neither is in the way."""
    law = Invariants(VirtualClock(), "readers", 4, allows_overlaps=True)
    shard, offset = shard_path(0), offset_path("readers", "t", "0")
    law.written([SetData(shard, b"1")], session_id=1)
    law.written([Create(metadata_path(0, "readers"), GroupMetadata(1).to_bytes()), Check(shard, 1)], session_id=1)
    law.written([Create(offset, b"0")], session_id=1)
    law.written([SetData(shard, b"2")], session_id=2)
    for late in (SetData(offset, b"0"), SetData(metadata_path(0, "readers"), GroupMetadata(2).to_bytes())):
        with pytest.raises(ViolationError, match="one coordinator"):
            law.written([late], session_id=1)
    law.written([SetData(offset, b"0")], session_id=2)
