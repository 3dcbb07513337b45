"""Bugs planted in the draft's machines: each breaks its law within a few seeds. And where two owners can be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcoord_wire.kernel.virtual.script import Do, SimulationFailure, run_script
from kcoord_wire.worlds.central.script import CentralScript, random_script
from tests.support.planted_central_bugs import PLANTED, fence_not_compared

LOOKED_FOR = 30  # seeds within which a planted bug shows


def first_broken_law() -> str:
    for seed in range(LOOKED_FOR):
        try:
            run_script(random_script(seed), shrink=False)
        except SimulationFailure as failure:
            return failure.law
    return f"none in {LOOKED_FOR} seeds"


@pytest.mark.parametrize(("plant", "law"), PLANTED.items(), ids=lambda item: getattr(item, "__name__", None))
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert first_broken_law() == law


def late_messages(*, is_fenced: bool) -> CentralScript:
    """What goes between a consumer and its coordinator takes 1.5 s; the consumer fetches from another broker."""
    return CentralScript(
        seed=1,
        topics={"t1": 1},
        brokers=2,
        is_fenced=is_fenced,
        actions=[
            Do(at=0, call="consumer", arguments=("c1", "g", None, True, 3_000)),
            Do(at=0, call="consumer", arguments=("c2", "g", None, True, 3_000)),
            Do(at=6_000, call="delay", arguments=("c2", 1, 8_000, True, True, 1_500)),
            Do(at=14_000, call="crash", arguments=("nobody",)),
        ],
    )


def test_without_epochs_late_messages_make_two_owners() -> None:
    with pytest.raises(SimulationFailure, match="one owner: t1-2-0 of 'g' is fetched by c2 after it was fetched by c1"):
        run_script(late_messages(is_fenced=False), shrink=False)


def test_with_epochs_the_first_owner_is_refused() -> None:
    assert run_script(late_messages(is_fenced=True)).rebalances >= 3


def test_fences_that_are_not_compared_make_two_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    fence_not_compared(monkeypatch)
    with pytest.raises(SimulationFailure, match="one owner"):
        run_script(late_messages(is_fenced=True), shrink=False)
