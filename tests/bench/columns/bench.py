"""Measures the column decoder.

How: processor time of the thread; one core; the ways take turns, so that what slows the machine slows them all; medians
of all samples. Beside them a memcpy of the same bytes in the same process. The pure decoder runs in a process of its
own, with the pure codec. A batch is given back before the next is made, as in a stream.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

import kcoord_wire as kw

from ..runner import ROOT, Bench, Made, pin, require_native, samples
from . import report
from .cases import CASES, WAYS, Case, decoding

TURNS, SECONDS = 5, 0.25  # of each way, in each case


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
    command = [sys.executable, "-m", "tests.bench", "columns", "--pure", *(["--quick"] if quick else [])]
    environment = os.environ | {"KCOORD_WIRE_BACKEND": "python"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure_all(options: argparse.Namespace) -> Made:
    pin()
    if options.pure:
        print(json.dumps({case.key: measure(case, options.quick, True) for case in CASES}))
        sys.exit()
    require_native()
    cases = {case.key: measure(case, options.quick, False) for case in CASES}
    for key, pure in pure_process(options.quick).items():
        cases[key]["seconds"] |= pure["seconds"]
    return {"versions": {"pyarrow": pa.__version__, "kcoord_wire": kw.__version__}, "cases": cases}


BENCH = Bench(
    about="`ColumnDecoder` next to decoding into objects and to copying bytes.",
    results=report.RESULTS,
    measure=measure_all,
    markdown=report.markdown,
    options={"pure": {"action": "store_true", "help": argparse.SUPPRESS}},
    quick=True,
    title="Frames to Arrow columns",
    command="make bench",
    summary=report.summary,
)
