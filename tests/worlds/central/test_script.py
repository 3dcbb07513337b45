"""Random runs by seed break no law of the draft's cluster."""

from __future__ import annotations

import os

from kcoord_wire.kernel.virtual.script import Do, SimulationFailure, run_script
from kcoord_wire.worlds.central.script import CentralScript, random_script

STEPS = int(os.environ.get("KCOORD_WIRE_STEPS", "100000")) // 5  # `make proof` runs ten times as many


def test_random_runs_break_no_law() -> None:
    seed = steps = 0
    while steps < STEPS:
        steps += run_script(random_script(seed)).steps
        seed += 1


def test_rebalances_by_sockets_break_no_law_but_one_owner() -> None:
    """RegisterConsumerResponse has no place for an epoch."""
    seed = steps = 0
    while steps < STEPS:
        try:
            steps += run_script(random_script(seed, rebalance_by="sockets"), shrink=False).steps
        except SimulationFailure as failure:
            if failure.law != "one owner":
                raise
        seed += 1


def test_a_script_is_its_own_source() -> None:
    script = random_script(3)
    assert eval(repr(script), {"Do": Do, "CentralScript": CentralScript}) == script
