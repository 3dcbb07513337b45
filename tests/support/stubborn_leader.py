"""A process that is elected and then writes all the time, as guarded at its election, whatever becomes of its term.

    python -m tests.support.stubborn_leader HOST:PORT/CHROOT BROKER SESSION_TIMEOUT_MS PATH

It prints ``elected EPOCH`` and then, for each write, the outcome. It stands for a leader that was stopped between its
check of the lease and its write.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from typing import Any

from kcoord_wire.kernel.machines import Tick
from kcoord_wire.zookeeper.layout import COORDINATOR, COORDINATOR_EPOCH
from kcoord_wire.zookeeper.leadership import Leadership
from kcoord_wire.zookeeper.registry import ZooKeeperRegistry
from kcoord_wire.zookeeper.requests import Ask, Multi, Replied, SetData

STEP_SECONDS = 0.02


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def lead(address: str, broker_id: int, session_timeout_ms: int, path: str) -> None:
    tokens = itertools.count(1)
    written: set[int] = set()
    guarded: list[Multi] = []

    def deliver(event: Any) -> None:
        if isinstance(event, Replied) and event.token in written:
            print(event.outcome.value, flush=True)
        leadership.handle(event, monotonic_ms())

    def elected(epoch: int) -> None:
        if not guarded:
            print("elected", epoch, flush=True)
            guarded.append(leadership.guarded(SetData(path, b"the old leader's")))

    registry = ZooKeeperRegistry(address, deliver, session_timeout_ms=session_timeout_ms)
    leadership = Leadership(
        broker_id, COORDINATOR, COORDINATOR_EPOCH, registry.ask, tokens, elected, lambda reason: None, print
    )
    await registry.start()
    while True:
        leadership.handle(Tick(), monotonic_ms())
        for write in guarded:
            token = next(tokens)
            written.add(token)
            registry.ask(Ask(token, write))
        await asyncio.sleep(STEP_SECONDS)


if __name__ == "__main__":
    asyncio.run(lead(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
