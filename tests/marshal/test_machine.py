"""The world state, step by step, next to the recorded one of the Go library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.marshal.machine import Claim, Entry, Place, Rules, WorldState
from kcoord_wire.messages import ClaimingPartition, Heartbeat, ReleaseGroup, ReleasingPartition
from tests.support.marshal_golden import check_world

GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "marshal"


@pytest.mark.parametrize("name", ["world_state.jsonl.gz", "replay_divergence.jsonl"])
def test_each_step_has_the_state_of_the_go_library(name: str) -> None:
    right, wrong = check_world(GOLDEN / name)
    assert wrong == []
    assert right > 0


def _played(*messages: Any) -> Claim:
    """The claim of partition 0 after these messages, one a second, by the rules of the document."""
    world = WorldState(Rules.DOCUMENT)
    for offset, message in enumerate(messages):
        message.time, message.client_id, message.group_id = offset + 1, message.instance_id, "g"
        world.apply(Entry(0, offset, offset * 1000, True, message), 0)
    return world.claims[Place("g", "t", 0)]


def _held(to: int) -> list[Any]:
    return [ClaimingPartition(instance_id="a", topic="t"), Heartbeat(instance_id="a", topic="t", current_offset=to)]


def test_position_does_not_go_back_by_late_appends_of_the_holder() -> None:
    late_heartbeat = Heartbeat(instance_id="a", topic="t", current_offset=4)
    late_release = ReleasingPartition(instance_id="a", topic="t", current_offset=5)
    assert _played(*_held(9), late_heartbeat).current_offset == 9
    assert _played(*_held(9), late_heartbeat, late_release).current_offset == 9


def test_position_goes_back_by_who_claims_in_a_pause() -> None:
    pause = ReleaseGroup(instance_id="admin", msg_expire_time=1000)
    released = ReleasingPartition(instance_id="a", topic="t", current_offset=9)
    back = ReleasingPartition(instance_id="admin", topic="t", current_offset=2)
    reset = [ClaimingPartition(instance_id="admin", topic="t"), back]
    assert _played(*_held(9), pause, released, *reset).current_offset == 2
    assert _played(*_held(9), released, *reset).current_offset == 9
    late = ReleasingPartition(instance_id="a", topic="t", current_offset=5)
    assert _played(*_held(9), pause, late).current_offset == 9  # its claim is older than the pause
    resumed = ReleaseGroup(instance_id="admin")
    assert _played(*_held(9), pause, released, resumed, *reset).current_offset == 9
