"""Scripts of a world that knows no protocol: played in order, reduced to what breaks the law, printed as source."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.kernel.virtual.scripts import (
    Do,
    Draw,
    Script,
    SimulationFailure,
    ViolationError,
    between,
    choose,
    draw_actions,
    draw_times,
    losses,
    minimize,
    one_of,
    process_name,
    row,
    run_script,
    shrink,
    with_odds,
)
from kcoord_wire.kernel.virtual.world import World


class Till(World[Process]):
    """A world with one law: a till never goes below zero."""

    settle_ms = 0
    settles = "paid"

    def __init__(self, seed: int = 0, *, price: int = 0) -> None:
        super().__init__(seed)
        self.coins = 0
        self.price = price

    def pay(self, coins: int = 1) -> None:
        self.coins += coins
        self._clock.record("till", "has", self.coins)
        if self.coins < 0:
            raise ViolationError("solvent", f"{self.coins} coins")

    def is_settled(self) -> bool:
        return self.coins >= self.price

    def unsettled(self) -> str:
        return f"{self.coins} of {self.price}"

    def counts(self) -> dict[str, int]:
        return {"coins": self.coins}


def pay(at: int, coins: int = 1) -> Do:
    return Do(at, "pay", coins)


def test_actions_are_played_by_time() -> None:
    report = run_script(Script(Till, 1, actions=[pay(5, -3), pay(0, 4)]))
    assert report.counts == {"coins": 1}
    assert (report.virtual_ms, report.settled_ms) == (5, 0)


def test_a_failure_is_reduced_to_the_law_it_broke_first() -> None:
    actions = [pay(number, -9 if number == 20 else 0) for number in range(40)]
    with pytest.raises(SimulationFailure) as caught:
        run_script(Script(Till, 7, {"price": 1}, actions))
    failure = caught.value
    assert (failure.law, failure.seed) == ("solvent", 7)
    assert failure.script.actions == [pay(20, -9)]
    assert str(failure) == (
        "solvent: -9 coins\n"
        "#        20 till         has        -9\n"
        "# seed 7; to replay:\n"
        "from kcoord_wire.kernel.virtual.scripts import Do, Script, run_script\n"
        f"from {__name__} import Till\n\n"
        "run_script(Script(Till, 7, {'price': 1}, [\n    Do(20, 'pay', -9),\n]))"
    )


def test_a_law_that_is_broken_at_the_end_fails_too() -> None:
    with pytest.raises(SimulationFailure) as caught:
        run_script(Script(Till, 1, {"price": 2}, [pay(0)]), shrink=False)
    assert caught.value.law == "paid"
    assert caught.value.script.actions == [pay(0)]
    assert minimize(caught.value).script.actions == []


def test_random_actions_are_drawn_by_their_rows() -> None:
    rows = [row(60, "pause", process_name, between(1, 3)), row(40, "lose", one_of(5), losses)]
    draw = Draw(Random(1), ["a", "b"])
    drawn = draw_actions(draw, rows, 200, 100)
    pauses = [action.arguments for action in drawn if action.call == "pause"]
    assert {name for name, _ in pauses} == {"a", "b"}
    assert {ms for _, ms in pauses} == {1, 2, 3}
    lossy = [action.arguments for action in drawn if action.call == "lose"]
    assert all(len(arguments) == 3 and arguments[0] == 5 for arguments in lossy)
    assert 0.4 < len(pauses) / len(drawn) < 0.8
    assert {each.call for each in draw_actions(draw, with_odds(rows, lose=100), 20, 100)} == {"lose"}


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


# ---- shrinking


@given(st.sets(st.integers(0, 39), max_size=6))
def test_what_is_left_is_what_the_failure_needs(needed: set[int]) -> None:
    assert shrink(range(40), needed.issubset, 10_000) == sorted(needed)


@pytest.mark.parametrize("tries", [0, 1, 5])
def test_it_gives_up_after_its_tries(tries: int) -> None:
    calls: list[list[int]] = []

    def fails(items: list[int]) -> bool:
        calls.append(items)
        return 7 in items

    assert 7 in shrink(range(40), fails, tries)
    assert len(calls) == tries
