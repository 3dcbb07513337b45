"""Random scripts: every action occurs, they print as source, and a failure prints a short one that fails again."""

from __future__ import annotations

import pytest

from kcoord_wire.kernel.virtual.script import Action, SimulationFailure, run_script
from kcoord_wire.worlds.group import acts, members, script
from kcoord_wire.worlds.group.script import random_script
from tests.support.planted_bugs import two_leaders


def test_a_script_prints_as_itself() -> None:
    kinds = set()
    for seed in range(40):
        drawn = random_script(seed)
        assert eval(repr(drawn), vars(acts) | vars(members) | vars(script)) == drawn
        kinds |= {type(action).__name__ for action in drawn.actions}
    actions = {name for name, kind in vars(acts).items() if isinstance(kind, type) and issubclass(kind, Action)}
    assert kinds == actions - {"Action", "MemberAction"}, "every action occurs"


def test_a_failure_prints_a_small_script_that_fails_again(monkeypatch: pytest.MonkeyPatch) -> None:
    two_leaders(monkeypatch)
    seed = next(seed for seed in range(60) if len(random_script(seed).actions) > 30)
    with pytest.raises(SimulationFailure) as caught:
        run_script(random_script(seed))
    failure = caught.value
    assert failure.seed == seed
    assert 2 <= len(failure.script.actions) <= 4, "two members make two leaders; a latency may ask for another action"
    pasted = "\n".join(line for line in str(failure).splitlines()[1:] if not line.startswith("#"))
    with pytest.raises(SimulationFailure) as again:
        exec(pasted, {})
    assert again.value.law == "one leader"
    monkeypatch.undo()
    run_script(failure.script)
