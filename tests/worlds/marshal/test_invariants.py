"""The laws hold in random runs, and a planted bug is found by the law that it breaks."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from kcoord_wire.kernel.virtual.script import SimulationFailure, run_script
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.marshal.log import RawEntry
from kcoord_wire.marshal.state import Rules
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.worlds.marshal.anomalies import Anomaly
from kcoord_wire.worlds.marshal.cluster import MarshalCluster
from kcoord_wire.worlds.marshal.script import random_script
from tests.support.planted_marshal_bugs import PLANTED, Planted, grants_claims_at_two_intervals

STEPS = int(os.environ.get("KCOORD_WIRE_STEPS", "20000"))  # `make proof` runs fifty times as many
LOOKED_FOR = 60  # seeds within which a planted bug shows


def test_random_runs_break_no_law() -> None:
    steps = tenures = seed = 0
    while steps < STEPS:
        report = run_script(random_script(seed))
        steps += report.steps
        tenures += report.tenures
        assert report.anomalies == Counter()
        seed += 1
    assert tenures > steps // 1_000, "too few tenures for the runs to prove anything"


def test_the_librarys_rules_show_each_anomaly() -> None:
    found: Counter[Anomaly] = Counter()
    for seed in range(12):
        found += run_script(random_script(seed, rules=Rules.LIBRARY)).anomalies
    assert set(found) == set(Anomaly)


def run_seeds(bug: Planted) -> None:
    for seed in range(LOOKED_FOR):
        run_script(random_script(seed, delivery=bug.delivery, odds=bug.odds), shrink=False)


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.plant.__name__)
def test_a_planted_bug_is_caught_by_its_law(bug: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    with pytest.raises(SimulationFailure) as caught:
        run_seeds(bug)
    assert caught.value.law in bug.laws, caught.value


def claim_twice(apart_ms: int) -> str:
    """Return whose claim the log has after two claims so far apart."""
    texts = (b"ClaimingPartition/1/1/a1/a/readers/t1/0", b"ClaimingPartition/1/1/b1/b/readers/t1/0")
    with MarshalCluster(topics={"t1": 1}, interval_ms=1_000) as sim:
        for number, text in enumerate(texts):
            entry = read_entry(RawEntry(AT, number, 50_000 + number * apart_ms, True, text))
            sim.invariants.appended(entry, *sim.truth.apply(entry))
        [claim] = sim.truth.world.claims.values()
        return claim.client_id


AT = 1  # the coordination partition of t1, of three


def test_a_claim_is_stale_two_intervals_later_to_the_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [claim_twice(2_000), claim_twice(2_001)] == ["a", "b"]
    grants_claims_at_two_intervals(monkeypatch)
    with pytest.raises(ViolationError, match=r"holder: .* 2000 ms after"):
        claim_twice(2_000)
