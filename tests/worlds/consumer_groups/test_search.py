"""All runs of a few members break no law, and a search finds a shortest run of each planted bug."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kcoord_wire.worlds.breadth_first import Step
from kcoord_wire.worlds.consumer_groups.search import Bounds, World, search
from tests.support.planted_consumer_group_bugs import BY_SEARCH, BY_SEARCH_OF_CLASSIC, kafka_16147

IS_PROOF = "KCOORD_WIRE_STEPS" in os.environ  # `make proof`


def test_all_runs_with_one_perturbation_break_no_law() -> None:
    found = search(Bounds(perturbations=1, ticks=1 if IS_PROOF else 0))
    assert found.violation is None, (found.violation, found.run)
    assert found.is_whole
    assert found.states > 4_000


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(members=3, perturbations=0, topics=(("t", 3),), depth=None if IS_PROOF else 6),
        Bounds(perturbations=1, is_static=True, kinds=("leave",), ticks=1 if IS_PROOF else 0),
        Bounds(classic=1, perturbations=1) if IS_PROOF else Bounds(classic=1, kinds=("restart coordinator",)),
        Bounds(classic=2, perturbations=1) if IS_PROOF else Bounds(classic=2, kinds=("subscribe",)),
    ],
    ids=["three members", "static members", "one classic member", "classic members"],
)
def test_other_bounds_break_no_law(bounds: Bounds) -> None:
    found = search(bounds)
    assert found.violation is None, (found.violation, found.run)
    assert found.is_whole or bounds.depth is not None
    assert found.states > 200


@pytest.mark.parametrize(("plant", "law"), BY_SEARCH)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ("crash",) if law == "EventuallyConverges" else ("leave",)
    plant(monkeypatch)
    found = search(Bounds(perturbations=1, kinds=kinds))
    assert found.violation is not None
    assert found.violation.law in law.split("|"), found.violation


@pytest.mark.parametrize(("plant", "law", "classic"), BY_SEARCH_OF_CLASSIC)
def test_a_planted_bug_of_groups_with_classic_members_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], law: str, classic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = search(Bounds(classic=classic, kinds=("leave",)))
    assert found.violation is not None
    assert found.violation.law == law, found.violation


def test_a_group_is_upgraded_and_downgraded() -> None:
    """The classic member joins first; that of KIP-848 joins, and leaves again."""
    world = World(Bounds(classic=1, kinds=("leave",)))
    state, kinds = world.start(), []
    beats = [Step(what, member) for member in (1, 0, 1, 0) for what in ("arrives", "answered", "released", "beats")]
    for step in [*beats * 2, Step("leave", 0), *beats * 2]:
        if step in world.steps(state):
            state = world.after(state, step)
            group = world.group(state)
            kinds.append(group and group.kind)
    assert [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before] == [
        "classic",
        "consumer",
        "classic",
    ]


def test_what_is_parked_for_a_dead_member_is_answered_to_nobody() -> None:
    world = World(Bounds(classic=2, kinds=("crash",)))
    state = world.start()
    for what, member in [
        ("arrives", 0),
        ("answered", 0),
        ("arrives", 1),
        ("answered", 1),
        ("arrives", 0),
        ("arrives", 1),
    ]:
        state = world.after(state, Step(what, member))
    assert {step.what for step in world.steps(state) if step.member == 1} == {"crash"}, "its JoinGroup is parked"
    state = world.after(state, Step("crash", 1))
    for what in ("answered", "arrives", "answered", "arrives"):  # JoinGroup, SyncGroup, and JoinGroup again
        state = world.after(state, Step(what, 0))
    assert set(world.steps(state)) == {Step("answered", 0), Step("joins", 1)}


def test_the_run_that_breaks_a_law_is_a_shortest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two members join, the second leaves, and the first is given back what it was to give up."""
    kafka_16147(monkeypatch)
    found = search(Bounds(perturbations=1, kinds=("leave",)))
    shorter = search(Bounds(perturbations=1, depth=len(found.run) - 1, kinds=("leave",)))
    assert [str(step) for step in found.run[:2]] == ["m1 arrives", "m1 answered"]
    assert any(step.what == "leave" for step in found.run)
    assert len(shorter.run) >= len(found.run), "it is met on the way to convergence alone"


def test_a_search_that_is_cut_short_is_not_whole() -> None:
    found = search(Bounds(perturbations=0, depth=3))
    assert not found.is_whole
    assert found.depth == 3


TO_BEAT = [Step("arrives", 0), Step("answered", 0), Step("arrives", 0), Step("answered", 0), Step("beats", 0)]
"""The first member joins, takes its partitions, reports them, and sends a heartbeat."""


def test_all_members_have_sent_that_they_join() -> None:
    world = World(Bounds(perturbations=0))
    assert set(world.steps(world.start())) == {Step("arrives", 0), Step("arrives", 1)}


def test_perturbations_are_counted() -> None:
    world = World(Bounds(perturbations=1, kinds=("crash",)))
    state = world.after(world.start(), Step("crash", 1))
    assert set(world.steps(state)) == {Step("arrives", 0), Step("joins", 1)}


@pytest.mark.parametrize("perturbations", [0, 1])
def test_a_heartbeat_arrives_at_once_if_nothing_can_happen_to_it(perturbations: int) -> None:
    world = World(Bounds(perturbations=perturbations))
    state = world.start()
    for step in TO_BEAT:
        state = world.after(state, step)
    delivered = world.delivered(state, TO_BEAT[-1])
    assert (delivered == state) is (perturbations > 0)
    assert delivered in (state, world.after(state, Step("arrives", 0)))


def test_the_coordinator_meets_the_same_states_without_that(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = Bounds(perturbations=0, topics=(("t", 3),))
    reduced = search(bounds)
    monkeypatch.setattr(World, "delivered", lambda self, state, step: state)
    whole = search(bounds)
    assert reduced.machines == whole.machines
    assert reduced.states < whole.states
