"""Random runs by seed, and machines with planted bugs that the laws have to catch."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kcoord_wire.kernel.virtual.script import Do, SimulationFailure, run_script
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal import all_members, coordinator, member, subscription_hash
from kcoord_wire.worlds.proposal.script import ProposalScript, random_script
from tests.support.proposals import VARIANTS

SEEDS = int(os.environ.get("KCOORD_WIRE_SEEDS", "40"))  # `make proof` runs a hundred times as many
LOOKED_FOR = 300  # seeds within which a planted bug shows


@pytest.mark.parametrize("variant", VARIANTS)
def test_random_runs_break_no_law(variant: str) -> None:
    for seed in range(SEEDS):
        run_script(random_script(variant, seed))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_seed_has_one_run(variant: str) -> None:
    traces = []
    for _ in range(2):
        script = random_script(variant, 7)
        with script.world() as world:
            for action in script.actions:
                world.run(max(action.at - world.now, 0))
                action.play(world)
            script.finish(world)
            traces.append([str(line) for line in world.trace])
    assert traces[0] == traces[1]
    assert len(traces[0]) > 20


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_does_not_depend_on_hashes(variant: str) -> None:
    program = f"""
import hashlib
from kcoord_wire.worlds.proposal.script import random_script
script = random_script({variant!r}, 11)
with script.world() as world:
    for action in script.actions:
        world.run(max(action.at - world.now, 0))
        action.play(world)
    script.finish(world)
    print(len(world.trace), hashlib.sha256(repr(world.trace).encode()).hexdigest())
"""
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(traces) == 1


def test_a_script_is_its_own_source() -> None:
    script = random_script("single_assignor", 3)
    assert eval(repr(script), {"Do": Do, "ProposalScript": ProposalScript}) == script


# ---- planted bugs


def _keeps_its_partitions(patch: pytest.MonkeyPatch) -> None:
    """A member joins without giving up what it has."""

    def join(self: member.Member) -> None:
        owned = self.owned
        correct(self)
        self.owned = owned

    correct = member.Member._join
    patch.setattr(member.Member, "_join", join)


def _ignores_hashes(patch: pytest.MonkeyPatch) -> None:
    """Members do not compare what they see."""
    correct = all_members.AllMembersMember.agreed

    def agreed(self: all_members.AllMembersMember, response: Any, **_: Any) -> Any:
        return correct(self, response, needs_agreement=False)

    patch.setattr(all_members.AllMembersMember, "agreed", agreed)


def _chooses_another_sub_group(patch: pytest.MonkeyPatch) -> None:
    """Members do not choose the same sub-group."""
    turns = itertools.cycle([min, max])
    patch.setattr(subscription_hash, "largest", lambda hashes: next(turns)(hashes))


def _does_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A generation begins although members of the last one have not joined."""
    patch.setattr(
        coordinator.Coordinator, "_all_wait", lambda self: any(each.waiting for each in self.members.values())
    )


def _keeps_errors(patch: pytest.MonkeyPatch) -> None:
    """A member takes a refused heartbeat for an accepted one."""
    correct = member.Member._heard

    def heard(self: member.Member, error: int, sent_at: int) -> None:
        correct(self, ErrorCode.NONE if error == ErrorCode.REBALANCE_IN_PROGRESS else error, sent_at)

    patch.setattr(member.Member, "_heard", heard)


PLANTED: Mapping[str, tuple[str, str, Callable[[pytest.MonkeyPatch], None]]] = {
    "keeps its partitions": ("single_assignor", "one owner", _keeps_its_partitions),
    "ignores hashes": ("all_members", "one owner", _ignores_hashes),
    "chooses another sub-group": ("subscription_hash", "one owner", _chooses_another_sub_group),
    "does not wait": ("all_members", "one owner", _does_not_wait),
    "keeps errors": ("all_members", "settles", _keeps_errors),
}


def _first_broken_law(variant: str) -> str:
    for seed in range(LOOKED_FOR):
        try:
            run_script(random_script(variant, seed), shrink=False)
        except SimulationFailure as failure:
            return failure.law
    return f"none in {LOOKED_FOR} seeds"


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variant, law, plant = PLANTED[bug]
    plant(monkeypatch)
    assert _first_broken_law(variant) == law
