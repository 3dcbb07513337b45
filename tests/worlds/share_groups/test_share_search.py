"""All runs of a share partition break no law, and the search finds each planted bug."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kcoord_wire.worlds.breadth_first import Step
from kcoord_wire.worlds.share_groups.share_search import Account, Bounds, ShareWorld, search
from tests.support.planted_share_bugs import BY_SEARCH

IS_PROOF = "KCOORD_WIRE_STEPS" in os.environ  # `make proof`


def test_all_runs_of_a_share_partition_break_no_law() -> None:
    found = search(Bounds() if IS_PROOF else Bounds(batches=(2,)))
    assert found.violation is None, (found.violation, found.run)
    assert found.is_whole
    assert found.states > 400


@pytest.mark.parametrize(("plant", "law"), BY_SEARCH)
def test_a_planted_bug_of_share_partitions_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = search(Bounds(batches=(2,), depth=6))
    assert found.violation is not None
    assert found.violation.law == law, (found.violation, found.run)


def test_a_record_is_delivered_twice_and_not_a_third_time() -> None:
    world = ShareWorld(Bounds(batches=(1,)))
    state = world.start()
    accounts = []
    for step in [Step("fetches", 0), Step("tick"), Step("tick"), Step("fetches", 1), Step("tick"), Step("tick")]:
        state = world.after(state, step)
        accounts.append(state.accounts[0])
    assert accounts[0] == Account(deliveries=1, holder=0, ticks=2)
    assert accounts[2] == Account(deliveries=1)
    assert accounts[3:] == [Account(False, 2, 1, 2), Account(False, 2, 1, 1), Account(True, 2)]


def test_a_restart_alone_takes_a_delivery_back() -> None:
    world = ShareWorld(Bounds(batches=(1,)))
    fetched = world.after(world.start(), Step("fetches", 0))
    assert world.after(fetched, Step("session ends", 0)).accounts == (Account(deliveries=1),)
    assert world.after(fetched, Step("broker restarts")).accounts == (Account(),)
