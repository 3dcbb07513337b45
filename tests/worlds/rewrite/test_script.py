"""Random runs of the rewrite: one run for each seed, and the shortest in which a partition has two readers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from kcoord_wire.kernel.virtual.script import Do, SimulationFailure, run_script
from kcoord_wire.worlds.rewrite.script import ODDS, RewriteScript, random_script

# "The consumer does not stop fetching data during the co-ordinator failover and re-discovery process": m1 is cut off
# from the brokers that could coordinate its group, not from those that it fetches from. It is declared dead after the
# session timeout of 6 s, m2 gets its partition, and m1 goes on until a response shows it that.
OVERLAP = RewriteScript(
    seed=1,
    topics={"t1": 1},
    actions=[
        Do(at=0, call="member", arguments=("m1",)),
        Do(at=5_000, call="cut", arguments=("m1", None, 20_000)),
        Do(at=12_000, call="member", arguments=("m2",)),
        Do(at=20_000, call="heal"),
    ],
)


def test_the_shortest_script_with_two_readers() -> None:
    assert run_script(OVERLAP).overlaps == 1


def test_an_overlap_is_a_broken_law_on_request() -> None:
    with pytest.raises(SimulationFailure) as caught:
        run_script(replace(OVERLAP, allows_overlaps=False))
    assert caught.value.law == "no overlap"
    assert len(caught.value.script.actions) == 3, "without the healing, which ends every run"


@pytest.mark.parametrize("left_out", range(3))
def test_it_needs_all_its_actions(left_out: int) -> None:
    actions = [action for number, action in enumerate(OVERLAP.actions) if number != left_out]
    assert run_script(replace(OVERLAP, actions=actions)).overlaps == 0


def test_a_member_that_stops_with_its_session_does_not_overlap() -> None:
    assert run_script(replace(OVERLAP, stops_with_session=True)).overlaps == 0


def test_a_seed_has_one_run() -> None:
    program = """
import hashlib
from kcoord_wire.worlds.rewrite.script import random_script
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


def test_a_script_is_its_own_source() -> None:
    script = random_script(3)
    assert eval(repr(script), {"Do": Do, "RewriteScript": RewriteScript}) == script


def test_every_action_is_drawn() -> None:
    calls = {action.call for seed in range(40) for action in random_script(seed).actions if isinstance(action, Do)}
    assert calls == {call for _, call in ODDS}
