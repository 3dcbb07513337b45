"""The clocks and the randomness of the standard library, during a run and after it."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import threading
import time
import uuid

import pytest

from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.kernel.virtual.loop import VirtualWorld

CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
REPLACED = (*CLOCKS, "clock_gettime_ns", "sleep")


def test_every_clock_is_virtual() -> None:
    async def main() -> list[float]:
        def read() -> list[float]:
            named = [getattr(time, name)() / (1e9 if name.endswith("ns") else 1) for name in CLOCKS]
            return named + [time.clock_gettime_ns(at) / 1e9 for at in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC)]

        before = read()
        await asyncio.sleep(1_000)
        assert time.time() == pytest.approx(EPOCH_MS / 1000 + 1_000, abs=0.001)
        return [after - first for first, after in zip(before, read(), strict=True)]

    assert VirtualWorld().run(main()) == pytest.approx([1_000] * 8, abs=0.001)


def test_what_programs_draw_comes_from_the_seed() -> None:
    async def main() -> list[object]:
        return [random.random(), random.choice(range(1000)), uuid.uuid4(), os.urandom(8), secrets.token_hex(8)]

    first, again, other = (VirtualWorld(seed).run(main()) for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)


def test_everything_is_restored_whatever_the_end() -> None:
    before = [getattr(time, name) for name in REPLACED], os.urandom, random.getstate()

    async def fail() -> None:
        random.random()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        VirtualWorld().run(fail())
    assert ([getattr(time, name) for name in REPLACED], os.urandom, random.getstate()) == before


def test_other_threads_have_the_real_time() -> None:
    real = time.time()

    async def main() -> list[float]:
        found: list[float] = []
        thread = threading.Thread(target=lambda: found.append(time.time()))
        thread.start()
        thread.join()
        return found

    (there,) = VirtualWorld().run(main())
    assert abs(there - real) < 3_600
