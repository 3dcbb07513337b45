"""Measures one library in this process and prints JSON: `python -m tests.bench.measure native --rows heartbeat`.

How: the clock is the thread's own processor time, so that other programs' turns on the core do not count; the garbage
collector runs as it does in a program; the process stays on one core; a sample is as many calls as take SAMPLE seconds,
at least one; the operations of a row take turns, so that they meet the same disturbances.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from time import thread_time_ns
from typing import Any

from .libraries import LIBRARIES, Case, Loop
from .rows import ROWS

SAMPLE = 0.01  # seconds
FEWEST = 3  # samples of an operation in one process, however slow it is


def stay_on_one_core() -> None:
    """The last core that this process may use: the first one is where most interrupts go."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def time_of(loop: Loop, count: int) -> int:
    start = thread_time_ns()
    loop(count)
    return thread_time_ns() - start


def calls_per_sample(loop: Loop, sample: float) -> int:
    count = 1
    while (taken := time_of(loop, count)) < sample * 1e9:
        count = max(count + 1, min(10 * count, int(1.1 * count * sample * 1e9 / max(taken, 1))))
    return count


def measure(case: Case, seconds: float, sample: float) -> dict[str, list[float]]:
    """Nanoseconds of one call, sample by sample, for each operation of the case; `seconds` for each operation."""
    loops = {operation: case.loop(operation) for operation in case.statements}
    counts = {operation: calls_per_sample(loop, sample) for operation, loop in loops.items()}
    samples: dict[str, list[float]] = {operation: [] for operation in loops}
    spent = dict.fromkeys(loops, 0)
    gc.collect()
    while unfinished := [o for o in loops if len(samples[o]) < FEWEST or spent[o] < seconds * 1e9]:
        for operation in unfinished:
            taken = time_of(loops[operation], counts[operation])
            spent[operation] += taken
            samples[operation].append(taken / counts[operation])
    return samples


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.measure")
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--rows", nargs="+", choices=[row.key for row in ROWS], default=[row.key for row in ROWS])
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    stay_on_one_core()
    library = LIBRARIES[options.library]
    cells: dict[str, Any] = {}
    for row in ROWS:
        if row.key in options.rows:
            case = library.case(row, row.message(options.quick))
            case.check()
            samples = measure(case, *((0.0, 0.0) if options.quick else (options.seconds, SAMPLE)))
            cells[row.key] = {"version": case.version, "bytes": len(case.data), "samples": samples}
    json.dump({"installed": library.installed(), "cells": cells}, sys.stdout)


if __name__ == "__main__":
    main()
