"""The detector cooperative_loop on a group with the problem, and on groups that only look like it."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import (
    Cause,
)
from tests.support.detector_groups import group, of, rebalance


@pytest.mark.parametrize(("rounds", "found"), [(1, 0), (2, 0), (3, 1), (30, 1)])
def test_cooperative_loop_is_more_than_two_rounds(rounds: int, found: int) -> None:
    causes = [Cause.NEW_MEMBER] + [Cause.COOPERATIVE_FOLLOW_UP] * rounds
    loop = group(rebalances=[rebalance(n, n, cause) for n, cause in enumerate(causes, 1)])
    assert len(of("cooperative_loop", loop)) == found
