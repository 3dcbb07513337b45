"""The states of the search: which steps there are, and which of them make one."""

from __future__ import annotations

import pytest

from kcoord_wire.worlds.consumer_groups.search import Bounds, Step, World, search

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
    assert reduced.coordinators == whole.coordinators
    assert reduced.states < whole.states
