"""A list is reduced to the items that make it fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.kernel.virtual.shrink import shrink


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
