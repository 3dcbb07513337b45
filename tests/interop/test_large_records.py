"""franz-go produces more than a request may have: what fits is taken, in several requests; the rest it gives up."""

from __future__ import annotations

import json
import subprocess

import pytest

from kcoord_wire.coordinator import Coordinator
from kcoord_wire.coordinator.connection import PeerLimits
from tests.support.go_programs import build_go_programs


@pytest.mark.parametrize("most", [16 << 20, 2_500_000], ids=["at once", "a part at a time"])
def test_franz_go_sends_what_fits_and_gives_the_rest_up(most: int) -> None:
    program = build_go_programs() / "large"
    with Coordinator(topics={"orders": 6}, limits=PeerLimits(max_batch_bytes=most)) as coordinator:
        done = subprocess.run(
            [program, coordinator.address, "orders"], capture_output=True, text=True, timeout=150, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    outcomes = json.loads(done.stdout)
    assert [outcome for outcome in outcomes if outcome != "<nil>"] == [outcomes[6]]
    assert outcomes[6].startswith("MESSAGE_TOO_LARGE")
