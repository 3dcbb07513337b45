"""Settings of virtual clusters, and the trace of a random script as one number."""

from __future__ import annotations

import hashlib
from typing import Final

from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.worlds.group.world import random_script

QUICK: Final = GroupConfig(initial_rebalance_delay_ms=0)
SHORT: Final = {"session_timeout_ms": 6_000, "rebalance_timeout_ms": 20_000, "heartbeat_interval_ms": 1_000}


def digest(seed: int) -> str:
    """Return a hash of everything that members sent and received, and of every start and crash."""
    script = random_script(seed).with_options(segment_bytes=2_000)
    with script.open() as sim:
        script.play(sim)
        text = "\n".join(str(line) for line in sim.trace if line.what in ("sends", "gets", "crashes", "starts"))
    return hashlib.sha256(text.encode()).hexdigest()
