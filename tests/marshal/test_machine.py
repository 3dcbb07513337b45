"""The world state, step by step, next to the recorded one of the Go library."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.marshal_golden import check_world

GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "marshal"


@pytest.mark.parametrize("name", ["world_state.jsonl.gz", "replay_divergence.jsonl"])
def test_each_step_has_the_state_of_the_go_library(name: str) -> None:
    right, wrong = check_world(GOLDEN / name)
    assert wrong == []
    assert right > 0
