"""Runs the benchmark of the column decoder: `python -m tests.bench.columns`.

How: processor time of the thread; one core; the ways take turns, so that what slows the machine slows them all; medians
of all samples. Beside them a memcpy of the same bytes in the same process. The pure decoder runs in a process of its
own, with the pure codec. A batch is given back before the next is made, as in a stream.

Writes latest.json and latest.md into tests/bench/columns/results or `--out`. `--quick` runs everything once on a few
frames, which measures nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import kcoord_wire as kw

from ..report import write_results
from . import report
from .cases import CASES, WAYS, Case, decoding

ROOT = Path(__file__).resolve().parents[3]
TURNS, SECONDS = 5, 0.25  # of each way, in each case


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def samples(call: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of processor time of each call, until they are that many together; a first one is not counted."""
    call()
    found: list[float] = []
    while len(found) < 1 or sum(found) < seconds:
        before = time.thread_time()
        call()
        found.append(time.thread_time() - before)
    return found


def copying(frames: pa.Array) -> Callable[[], Any]:
    data = frames.buffers()[2]
    size = sum(len(body) for body in frames.to_pylist())
    target = ctypes.create_string_buffer(size)
    return lambda: ctypes.memmove(target, data.address, size)


def measure(case: Case, quick: bool, pure: bool) -> dict[str, Any]:
    frames = case.frames(quick)
    ways = {"pure": decoding()} if pure else WAYS
    calls: dict[str, Callable[[], Any]] = {name: partial(way(case), frames) for name, way in ways.items()}
    if not pure:
        calls["memcpy"] = copying(frames)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(1 if quick or pure else TURNS):
        for name, call in calls.items():
            found[name] += samples(call, 0 if quick else SECONDS)
    return {"rows": len(frames), "bytes": sum(len(body) for body in frames.to_pylist()), "seconds": found}


def pure_process(quick: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.columns", "--pure", *(["--quick"] if quick else [])]
    environment = os.environ | {"KCOORD_WIRE_BACKEND": "python"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.columns", description="Frames to Arrow columns, measured.")
    parser.add_argument("--quick", action="store_true", help="a few frames, no time spent")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="the folder of latest.md and latest.json")
    parser.add_argument("--pure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    load = round(os.getloadavg()[0], 2)
    if hasattr(os, "sched_setaffinity"):
        # The last core that this process may use: the first one is where most interrupts go.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if options.pure:
        print(json.dumps({case.key: measure(case, options.quick, True) for case in CASES}))
        return
    if kw.backend != "native":
        parser.error("the native decoder is not built: make native")
    cases = {case.key: measure(case, options.quick, False) for case in CASES}
    for key, pure in pure_process(options.quick).items():
        cases[key]["seconds"] |= pure["seconds"]
    made = {
        "date": time.strftime("%Y-%m-%d"),
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version(), "pyarrow": pa.__version__, "kcoord_wire": kw.__version__},
        "load": load,
        "quick": options.quick,
        "cases": cases,
    }
    write_results(options.out, made, report.markdown(made))


if __name__ == "__main__":
    main()
