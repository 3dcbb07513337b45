"""The clocks and the randomness of the standard library, replaced while a virtual world runs.

Programs read clocks besides the loop's: aiokafka takes ``time.monotonic`` for its heartbeats and ``time.time`` for its
metadata. In the thread of the loop these are replaced:

    time: time, time_ns, monotonic, monotonic_ns, perf_counter, perf_counter_ns, clock_gettime_ns, sleep
    random: the functions of the module, seeded; os.urandom, and with it uuid.uuid4, secrets and random.SystemRandom

Laws:

* Other threads get the real ones, and after the run, however it ends, all threads do.
* What the loop cannot see stays real: ``from time import monotonic`` executed before the run, ``datetime.now()``, C
  code (the randomness of TLS).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kcoord_wire.kernel.virtual.loop.loop import VirtualLoop

NS: Final = 1_000_000_000


@contextmanager
def virtual_stdlib(loop: VirtualLoop, wall: Callable[[], float], seed: int) -> Iterator[None]:
    """Replace the clocks and the randomness of the standard library, for the calling thread.

    :param wall: seconds since the Unix epoch
    """
    source = random.Random(f"{seed}/urandom")
    here = threading.get_ident()
    state = random.getstate()
    replaced: list[tuple[Any, str, Any]] = []

    def replace(module: Any, name: str, virtual: Callable[..., Any]) -> None:
        real = getattr(module, name)
        replaced.append((module, name, real))

        def call(*args: Any) -> Any:
            return (virtual if threading.get_ident() == here else real)(*args)

        setattr(module, name, call)

    try:
        replace(time, "time", wall)
        replace(time, "time_ns", lambda: int(wall() * NS))
        for name in ("monotonic", "perf_counter"):
            replace(time, name, loop.time)
            replace(time, f"{name}_ns", lambda: int(loop.time() * NS))
        replace(time, "clock_gettime_ns", lambda at: int((wall() if at == time.CLOCK_REALTIME else loop.time()) * NS))
        replace(time, "sleep", loop.block)
        replace(os, "urandom", source.randbytes)
        replace(random, "_urandom", source.randbytes)
        random.seed(f"{seed}/random")
        yield
    finally:
        for module, name, real in reversed(replaced):
            setattr(module, name, real)
        random.setstate(state)
