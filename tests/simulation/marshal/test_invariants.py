"""The laws hold in random runs, and a planted bug is found by the law that it breaks."""

from __future__ import annotations

import os
from collections import Counter

from kcoord_wire.marshal.machine import Rules
from kcoord_wire.simulation.marshal.anomalies import Anomaly
from kcoord_wire.simulation.marshal.script import random_script
from kcoord_wire.simulation.script import run_script

STEPS = int(os.environ.get("KCOORD_WIRE_STEPS", "20000"))  # `make proof` runs fifty times as many


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
