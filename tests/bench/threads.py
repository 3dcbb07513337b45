"""The codec in several threads of one process: `python -m tests.bench.threads`, on a free-threaded Python.

Each thread decodes and encodes messages of its own. Printed for each number of threads: calls a second, and how much
processor time a call takes next to one thread alone: above 1, threads take it from each other, on a busy machine too.
"""

from __future__ import annotations

import sys
import threading
import time

import kcoord_wire as kw

from .rows import ROWS

CALLS = 20_000


def measure(threads: int, key: str) -> tuple[float, float]:
    """Seconds from the first thread's start to the last one's end, and of processor time, for CALLS in each."""
    row = next(row for row in ROWS if row.key == key)
    start = threading.Barrier(threads + 1)

    def work() -> None:
        message = row.message()
        cls, data = type(message), kw.encode(message, row.version)
        start.wait()
        for _ in range(CALLS):
            kw.encode(kw.decode(cls, data, row.version), row.version)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    time.sleep(0.5)  # all of them have their messages
    cpu, began = time.process_time(), time.perf_counter()
    start.wait()
    for thread in running:
        thread.join()
    return time.perf_counter() - began, time.process_time() - cpu


def main() -> None:
    print("GIL", getattr(sys, "_is_gil_enabled", lambda: True)(), kw.backend)
    for key in ("join-request", "join-1", "heartbeat"):
        alone = 0.0
        for threads in (1, 2, 4):
            seconds, cpu = min(measure(threads, key) for _ in range(5))
            alone = alone or cpu / CALLS
            calls = threads * CALLS
            print(f"{key}: {threads} threads: {calls / seconds:,.0f}/s, {cpu / calls / alone:.2f} of one's time a call")


if __name__ == "__main__":
    main()
