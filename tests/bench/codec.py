"""Measures the codecs next to each other: every library in its own processes, taking turns, in one run.

How: pytest-benchmark's clock is the thread's own processor time, so that other programs' turns on the core do not
count; the garbage collector is on; everything stays on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .libraries import LIBRARIES
from .report import RESULTS, markdown, merge, summary
from .runner import ROOT, Bench, Made, pin

FOLDER = Path(__file__).parent
TURNS = 3  # processes of each library; their samples are pooled
ROUND, CELL = 0.01, 0.25  # seconds of a sample, and of a cell in one process
OPTIONS = {"libraries": {"nargs": "+", "choices": LIBRARIES}}


def run(library: str, options: list[str], quick: bool) -> dict[str, Any]:
    """One process of one library: pytest-benchmark's JSON. CalledProcessError, its reason on stderr, where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "benchmark.json")
        command = [
            *(sys.executable, "-m", "pytest", str(FOLDER / "bench_codec.py"), f"--confcutdir={FOLDER}", "--quiet"),
            *(f"--library={library}", *options, *(["--quick"] if quick else [])),
            *(f"--benchmark-json={written}", "--benchmark-quiet", "--benchmark-timer=time.thread_time"),
            *("--benchmark-min-rounds=3", f"--benchmark-min-time={0 if quick else ROUND}"),
            f"--benchmark-max-time={0 if quick else CELL}",
        ]
        backend = library if library in ("native", "python") else "auto"
        environment = os.environ | {"KCOORD_WIRE_BACKEND": backend}
        subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=True)
        result: dict[str, Any] = json.loads(written.read_text("utf-8"))
        return result


def measure(options: argparse.Namespace, known: Iterable[str] = LIBRARIES, *more: str) -> Made:
    """Each library's own share of `known`, in turns.

    :param more: options of bench_codec.py
    """
    pin()
    runs: dict[str, list[dict[str, Any]]] = {library: [] for library in options.libraries or known}
    for turn in range(1 if options.quick else TURNS):
        for library, done in runs.items():
            print(f"turn {turn + 1}: {library}", file=sys.stderr, flush=True)
            done.append(run(library, list(more), options.quick))
    return merge(runs)


BENCH = Bench(
    about="encoding and decoding next to other libraries.",
    results=RESULTS,
    measure=measure,
    markdown=markdown,
    options=OPTIONS,
    quick=True,
    title="The codec",
    command="make bench",
    summary=summary,
)
