"""A KIP-848 group in which a member has partitions to give up."""

from __future__ import annotations

from kcoord_wire.forensics.model import GroupHistory
from tests.support.exchange_script import Script

ALL, HALF, REST = {"orders": [0, 1, 2, 3]}, {"orders": [0, 1]}, {"orders": [2, 3]}
TIMEOUT_MS = 8_000


def revoked(*, timeout_ms: int | None = TIMEOUT_MS, beat_ms: int = 1_500, joins_at: int = 10_000) -> tuple[Script, int]:
    """A group of c1 that c2 joins, and when c1 learns that it has to give up half of its partitions."""
    script = Script()
    script.consumer("c1", 0, 0, 1, ALL, topics=["orders"], owned={}, rebalance_timeout_ms=timeout_ms)
    script.consumer("c1", 100, 1, 1, owned=ALL)
    for ms in range(100 + beat_ms, joins_at, beat_ms):
        script.consumer("c1", ms, 1, 1)
    script.consumer("c2", joins_at, 0, 2, {}, topics=["orders"], owned={}, rebalance_timeout_ms=timeout_ms)
    script.consumer("c1", joins_at + beat_ms, 1, 1, HALF)
    return script, joins_at + beat_ms


def given_up(script: Script, told: int, took_ms: int, beat_ms: int = 1_500) -> GroupHistory:
    for ms in range(told + beat_ms, told + took_ms, beat_ms):
        script.consumer("c1", ms, 1, 1)
        script.consumer("c2", ms + 5, 2, 2, {}, owned={})
    script.consumer("c1", told + took_ms, 1, 2, owned=HALF)
    script.consumer("c2", told + took_ms + 50, 2, 2, REST)
    script.consumer("c2", told + took_ms + 60, 2, 2, owned=REST)
    return script.history()
