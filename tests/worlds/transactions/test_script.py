"""Random scripts of transactions: every action occurs, they print as source, and failures are reduced."""

from __future__ import annotations

import pytest

from kcoord_wire.kernel.virtual.script import SimulationFailure, run_script
from kcoord_wire.worlds.transactions import script
from kcoord_wire.worlds.transactions.script import random_script
from tests.support.planted_transaction_bugs import kafka_14402

SEED = 0  # a request arrives late
ACTIONS = 8


def test_a_script_prints_as_itself() -> None:
    calls = set()
    for seed in range(40):
        drawn = random_script(seed)
        assert eval(repr(drawn), vars(script)) == drawn
        calls |= {action.call for action in drawn.actions}  # type: ignore[attr-defined] # all of them are `Do`
    assert calls == {call for _, call in script._ODDS}, "every action occurs"


def test_a_seed_gives_the_same_run() -> None:
    assert run_script(random_script(3)) == run_script(random_script(3))


def test_a_failure_prints_a_small_script_that_fails_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka_14402(monkeypatch)
    with pytest.raises(SimulationFailure) as caught:
        run_script(random_script(SEED, ACTIONS))
    pasted = "\n".join(line for line in str(caught.value).splitlines()[1:] if not line.startswith("#"))
    with pytest.raises(SimulationFailure) as again:
        exec(pasted, {})
    assert again.value.law == caught.value.law == "no hanging"
    assert len(caught.value.script.actions) < len(random_script(SEED, ACTIONS).actions)
    monkeypatch.undo()
    run_script(caught.value.script)
