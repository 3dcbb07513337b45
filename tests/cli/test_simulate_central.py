"""`kcoord simulate central`: random faults on the draft's cluster; without epochs, a script with two owners."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcoord_wire.worlds.central import script
from tests.support.planted_central_bugs import offsets_not_committed_before_start

Run = Callable[..., tuple[int, str, str]]


def test_seeds_break_no_law(kcoord: Run) -> None:
    status, out, err = kcoord("simulate", "central", "--seeds", "0:2", "--jobs", "1")
    assert (status, err) == (0, "")
    assert "2 of 2 seeds" in out
    assert "0 failures" in out


def test_a_broken_law_is_a_failure(kcoord: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets_not_committed_before_start(monkeypatch)
    status, _, err = kcoord("simulate", "central", "--seeds", "0", "--jobs", "1")
    assert status == 1
    assert "run_script(CentralScript(seed=0" in err


def test_two_owners_without_epochs_are_printed(kcoord: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random script has 20 actions or more, and takes long to shrink."""

    def late_messages(seed: int, *, rebalance_by: str, is_fenced: bool) -> script.CentralScript:
        consumers = [
            script.Do(at=0, call="consumer", arguments=(name, "g", None, True, 3_000)) for name in ("c1", "c2")
        ]
        late = script.Do(at=6_000, call="delay", arguments=("c2", 1, 12_000, True, True, 1_500))
        last = script.Do(at=14_000, call="crash", arguments=("nobody",))
        return script.CentralScript(
            seed=seed,
            topics={"t1": 1},
            brokers=2,
            rebalance_by=rebalance_by,
            is_fenced=is_fenced,
            actions=[*consumers, late, last],
        )

    monkeypatch.setattr(script, "random_script", late_messages)
    status, out, err = kcoord("simulate", "central", "--no-epoch", "--seeds", "1", "--jobs", "1")
    assert (status, err) == (0, "")
    assert "1 of 1 runs: two owners of a partition; the shortest script:\none owner: " in out
    assert "is_fenced=False" in out
