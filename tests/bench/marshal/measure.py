"""Processor time of each step from the text of a coordination log to its world state, and the memory of a claim."""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import Any

from kcoord_wire.codec.backend import backend
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import Rules, WorldState

from .load import COORDINATION_PARTITIONS, MEMBERS, PLACES, chunks


def measure(messages: int) -> dict[str, Any]:
    """Seconds of processor time for so many messages by step, and bytes of memory by claim."""
    states = {rules: WorldState(rules, partitions=COORDINATION_PARTITIONS) for rules in Rules}
    seconds = dict.fromkeys(["split", "decode", *Rules], 0.0)
    size = 0
    for raw in chunks(messages):
        size += sum(len(each.value or b"") for each in raw)
        started = time.process_time()
        for each in raw:
            (each.value or b"").split(b"/")
        split = time.process_time()
        entries = [read_entry(each) for each in raw]
        decoded = time.process_time()
        seconds["split"] += split - started
        seconds["decode"] += decoded - split
        for rules, state in states.items():
            started = time.process_time()
            for entry in entries:
                state.apply(entry, entry.time_ms // 1_000)
            seconds[rules] += time.process_time() - started
    for state in states.values():
        assert len(state.claims) == min(messages, PLACES)
    return {
        "messages": messages,
        "members": MEMBERS,
        "places": PLACES,
        "bytes": size,
        "backend": backend,
        "seconds": {str(key): value for key, value in seconds.items()},
        "bytes_per_claim": memory_of_claims() / PLACES,
    }


def memory_of_claims() -> int:
    """Bytes of a state in which every place is held and has beaten once, its members included."""
    tracemalloc.start()
    try:
        state = WorldState(Rules.DOCUMENT, partitions=COORDINATION_PARTITIONS)
        for raw in chunks(2 * PLACES, 1_000):
            for each in raw:
                state.apply(read_entry(each), 0)
        del raw, each
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
