"""Random scripts of every world: each has one run, prints as itself, draws every row, and breaks no law."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

from kcoord_wire.kernel.virtual.scripts import Row, Script, SimulationFailure, ViolationError, run_script
from kcoord_wire.worlds import WORLDS, script_maker
from kcoord_wire.worlds.central import draft_world, rewrite_world
from kcoord_wire.worlds.consumer_groups import consumer_group_world
from kcoord_wire.worlds.group import world as group_world
from kcoord_wire.worlds.marshal import marshal_world
from kcoord_wire.worlds.marshal.marshal_laws import Anomaly
from kcoord_wire.worlds.proposal import proposal_world
from kcoord_wire.worlds.transactions import world as transaction_world
from tests.support.planted_bugs import two_leaders
from tests.support.planted_consumer_group_bugs import gives_what_others_hold
from tests.support.planted_transaction_bugs import kafka_14402
from tests.support.proposals import VARIANTS

IS_PROOF = "KCOORD_WIRE_STEPS" in os.environ  # `make proof`, which runs a million steps of each kind
STEPS = int(os.environ.get("KCOORD_WIRE_STEPS", "100000"))


class Drawn(NamedTuple):
    """Random scripts of one kind.

    :ivar script: of a seed
    :ivar rows: from which they are drawn
    :ivar share: of the steps that `make test` runs
    :ivar counted: what some of each thousand steps must bring, so that the runs prove something
    :ivar allowed: a law that these runs may break
    """

    script: Callable[[int], Script[Any]]
    rows: Sequence[Row]
    share: float = 0.2
    counted: str = ""
    allowed: str = ""


DRAWN = {
    "group": Drawn(group_world.random_script, group_world.ROWS, 1, "rebalances"),
    "consumer groups": Drawn(consumer_group_world.random_script, consumer_group_world.ROWS, 0.1, "rebalances"),
    "transactions": Drawn(transaction_world.random_script, transaction_world.ROWS, 0.3, "transactions"),
    "draft": Drawn(draft_world.random_script, draft_world.ROWS),
    "draft with several coordinators": Drawn(
        partial(draft_world.random_script, coordinators=3), draft_world.ROWS_OF_SEVERAL
    ),
    "draft by sockets": Drawn(  # RegisterConsumerResponse has no place for an epoch
        partial(draft_world.random_script, rebalance_by="sockets"), draft_world.ROWS, allowed="one owner"
    ),
    "draft without epochs": Drawn(
        partial(draft_world.random_script, is_fenced=False), draft_world.ROWS_OF_DELAYS, 0.05, allowed="one owner"
    ),
    "rewrite": Drawn(rewrite_world.random_script, rewrite_world.ROWS, counted="rebalances"),
    "rewrite that stops with the session": Drawn(
        partial(rewrite_world.random_script, stops_with_session=True), rewrite_world.ROWS, counted="rebalances"
    ),
    "marshal": Drawn(marshal_world.random_script, marshal_world.ROWS, counted="tenures"),
    "marshal ranges": Drawn(
        partial(marshal_world.random_script, ranges=True), marshal_world.RANGE_ROWS, 0.1, counted="tenures"
    ),
    "marshal without members": Drawn(
        partial(marshal_world.random_script, rows=marshal_world.WRITERS), marshal_world.WRITERS, 0.05
    ),
    **{name: Drawn(partial(proposal_world.random_script, name), proposal_world.ROWS, 0.15) for name in VARIANTS},
}


@pytest.fixture(params=DRAWN)
def drawn(request: pytest.FixtureRequest) -> Drawn:
    return DRAWN[request.param]


def test_random_runs_break_no_law(drawn: Drawn) -> None:
    steps = counted = seed = 0
    while steps < STEPS * (1 if IS_PROOF else drawn.share):
        try:
            report = run_script(drawn.script(seed), shrink=not drawn.allowed)
        except SimulationFailure as failure:
            if failure.law != drawn.allowed:
                raise
        else:
            steps += report.steps
            counted += report.counts.get(drawn.counted, 0)
            assert [kind for kind in report.counts if isinstance(kind, Anomaly)] == [], "by the document there is none"
        seed += 1
    if drawn.counted:
        assert counted > steps // 1_000, f"too few {drawn.counted} for the runs to prove anything"


def test_a_script_is_its_own_source(drawn: Drawn) -> None:
    for seed in range(3):
        script = drawn.script(seed)
        pasted = str(SimulationFailure(script, ViolationError("none", "nothing")))
        names: dict[str, Any] = {}
        exec("\n".join(line for line in pasted.splitlines() if line.startswith("from ")), names)
        assert eval(repr(script), names) == script


def test_every_row_is_a_method_of_the_world_and_is_drawn(drawn: Drawn) -> None:
    scripts = [drawn.script(seed) for seed in range(40)]
    drawn_calls = {action.call for script in scripts for action in script.actions}
    assert drawn_calls >= {row.call for row in drawn.rows if row.odds}
    assert all(callable(getattr(scripts[0].world, call)) for call in drawn_calls)
    assert sum(row.odds for row in drawn.rows) == 100


def test_a_seed_has_one_run() -> None:
    """Whatever the hashes of text are."""
    program = """
import hashlib
from tests.worlds.test_scripts import DRAWN
for kind, drawn in DRAWN.items():
    if drawn.allowed:
        continue
    script = drawn.script(11)
    with script.open() as world:
        script.play(world)
        world.heal()
        world.run(5_000)
        lines = [str(line) for line in world.trace]
    assert len(lines) > 15, kind
    print(kind, len(lines), hashlib.sha256(repr(lines).encode()).hexdigest())
"""
    runs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(runs) == 1


def test_a_registered_world_makes_scripts_by_name() -> None:
    assert script_maker("group") is group_world.random_script
    assert all(callable(script_maker(name)) for name in WORLDS)


@pytest.mark.parametrize(
    ("plant", "law", "script", "most"),
    [
        (two_leaders, "one leader", group_world.random_script, 4),
        (gives_what_others_hold, "ValidPartitionEpoch", consumer_group_world.random_script, 20),
        (kafka_14402, "no hanging", partial(transaction_world.random_script, actions=8), 8),
    ],
)
def test_a_failure_prints_a_small_script_that_fails_again(
    plant: Callable[[pytest.MonkeyPatch], None],
    law: str,
    script: Callable[[int], Script[Any]],
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    seed = 0
    while True:
        try:
            run_script(script(seed))
        except SimulationFailure as found:
            failure = found
            if failure.law == law:
                break
        seed += 1
    assert failure.seed == seed
    assert len(failure.script.actions) <= min(most, len(script(seed).actions) - 1)
    pasted = "\n".join(line for line in str(failure).splitlines()[1:] if not line.startswith("#"))
    with pytest.raises(SimulationFailure) as again:
        exec(pasted, {})
    assert again.value.law == law
    monkeypatch.undo()
    run_script(failure.script)
