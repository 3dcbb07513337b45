"""Scripts of a world that knows no protocol: played in order, reduced to what breaks the law, printed as source."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Self

import pytest

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.script import (
    Action,
    Script,
    SimulationFailure,
    choose,
    draw_times,
    minimize,
    run_script,
)
from kcoord_wire.kernel.virtual.violation import ViolationError


class Till:
    """A world with one law: a till never goes below zero."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.coins = 0
        self.run = self.clock.run
        self.trace = self.clock.trace

    @property
    def now(self) -> int:
        return self.clock.now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.clock.clear()


@dataclass(frozen=True, kw_only=True, repr=False)
class Pay(Action[Till]):
    coins: int = 1

    def play(self, world: Till) -> None:
        world.coins += self.coins
        world.clock.record("till", "has", world.coins)
        if world.coins < 0:
            raise ViolationError("solvent", f"{world.coins} coins")


@dataclass(frozen=True, kw_only=True, repr=False)
class TillScript(Script[Till, int]):
    price: int = 0

    def world(self) -> Till:
        return Till()

    def finish(self, world: Till) -> int:
        if world.coins < self.price:
            raise ViolationError("paid", f"{world.coins} of {self.price}")
        return world.coins


def test_actions_are_played_by_time() -> None:
    assert run_script(TillScript(seed=1, actions=[Pay(at=5, coins=-3), Pay(at=0, coins=4)])) == 1


def test_a_failure_is_reduced_to_the_law_it_broke_first() -> None:
    actions = [Pay(at=number, coins=-9 if number == 20 else 0) for number in range(40)]
    with pytest.raises(SimulationFailure) as caught:
        run_script(TillScript(seed=7, actions=actions, price=1))
    failure = caught.value
    assert (failure.law, failure.seed) == ("solvent", 7)
    assert failure.script.actions == [Pay(at=20, coins=-9)]
    assert str(failure) == (
        "solvent: -9 coins\n"
        "#        20 till         has        -9\n"
        "# seed 7; to replay:\n"
        "from kcoord_wire.kernel.virtual.script import run_script\n"
        f"from {__name__} import Pay, TillScript\n\n"
        "run_script(TillScript(seed=7, price=1, actions=[\n    Pay(at=20, coins=-9),\n]))"
    )


def test_a_law_that_is_broken_at_the_end_fails_too() -> None:
    with pytest.raises(SimulationFailure) as caught:
        run_script(TillScript(seed=1, actions=[Pay(at=0)], price=2), shrink=False)
    assert caught.value.law == "paid"
    assert caught.value.script.actions == [Pay(at=0)]
    assert minimize(caught.value).script.actions == []


def test_entries_are_chosen_by_their_weights() -> None:
    random = Random(1)
    drawn = [choose(random, [(90, "often"), (10, "seldom")]) for _ in range(1_000)]
    assert 850 < drawn.count("often") < 950
    with pytest.raises(ValueError, match="add up to 0"):
        choose(random, [(0, "never")])


def test_times_ascend_from_the_start_in_bounded_number() -> None:
    for seed in range(50):
        times = list(draw_times(Random(seed), 20, 100, start=5_000))
        assert 10 <= len(times) <= 20
        assert times == sorted(times)
        assert times[0] >= 5_000
    assert list(draw_times(Random(1), 20, 100)) == list(draw_times(Random(1), 20, 100))
