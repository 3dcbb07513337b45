"""Random runs of Marshal: one run for each seed, and scripts that are their own source."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kcoord_wire.kernel.virtual.script import Do
from kcoord_wire.marshal.events import Delivery
from kcoord_wire.marshal.state import Rules
from kcoord_wire.worlds.marshal.anomalies import Anomaly
from kcoord_wire.worlds.marshal.script import ODDS, WRITERS, MarshalScript, random_script

NAMES = {"Anomaly": Anomaly, "Delivery": Delivery, "Do": Do, "MarshalScript": MarshalScript, "Rules": Rules}


def test_a_seed_has_one_run() -> None:
    program = """
import hashlib
from kcoord_wire.worlds.marshal.script import random_script
script = random_script(11)
with script.world() as world:
    for action in script.actions:
        world.run(max(action.at - world.now, 0))
        action.play(world)
    script.finish(world)
    print(len(world.trace), hashlib.sha256(repr([str(line) for line in world.trace]).encode()).hexdigest())
"""
    runs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hashed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hashed in ("0", "1")
    }
    assert len(runs) == 1


@pytest.mark.parametrize("rules", list(Rules))
def test_a_script_is_its_own_source(rules: Rules) -> None:
    script = random_script(3, rules=rules)
    assert eval(repr(script), NAMES) == script


@pytest.mark.parametrize("odds", [ODDS, WRITERS], ids=["members", "writers"])
def test_every_action_is_drawn(odds: tuple[tuple[int, str], ...]) -> None:
    scripts = [random_script(seed, odds=odds) for seed in range(40)]
    calls = {action.call for script in scripts for action in script.actions if isinstance(action, Do)}
    assert calls >= {call for _, call in odds} - {"reuse", "misplace"}


def test_clocks_differ_by_the_skew_with_create_time() -> None:
    for seed in range(20):
        script = random_script(seed, is_append_time=False, skew=1.5)
        ahead = {action.arguments[1] for action in script.actions if getattr(action, "call", "") == "member"}
        assert ahead <= {0, int(1.5 * script.interval_ms)}
