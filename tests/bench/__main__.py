"""Runs the benchmark: `python -m tests.bench`. Every library in its own processes, taking turns, in one run.

How: pytest-benchmark's clock is the thread's own processor time, so that other programs' turns on the core do not
count; the garbage collector is on; everything stays on one core.

Writes latest.json (what was measured) and latest.md (what `report` makes of it) into tests/bench/results or `--out`.
`--frames` measures whole frames instead of bodies, into frames/ below that. `--libraries` chooses, `--quick` runs
everything a few times on tiny messages, which measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import frames
from .libraries import LIBRARIES
from .report import RESULTS, markdown, merge, write_results

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
TURNS = 3  # processes of each library; their samples are pooled
ROUND, CELL = 0.01, 0.25  # seconds of a sample, and of a cell in one process


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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tests.bench", description="The codecs, measured against each other.")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES)
    parser.add_argument("--frames", action="store_true", help="whole frames, instead of bodies")
    parser.add_argument("--quick", action="store_true", help="tiny messages, no time spent")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of latest.md and latest.json")
    options = parser.parse_args(arguments)
    libraries = options.libraries or list(frames.FRAMED if options.frames else LIBRARIES)
    load = round(os.getloadavg()[0], 2)
    if hasattr(os, "sched_setaffinity"):
        # The last core that this process may use, and its children: the first one is where most interrupts go.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    runs: dict[str, list[dict[str, Any]]] = {library: [] for library in libraries}
    for turn in range(1 if options.quick else TURNS):
        for library in libraries:
            print(f"turn {turn + 1}: {library}", file=sys.stderr, flush=True)
            runs[library].append(run(library, ["--frames"] * options.frames, options.quick))
    report = merge(runs) | {"load": load, "quick": options.quick}
    if options.frames:
        write_results(options.out / "frames", report, frames.markdown(report))
    else:
        write_results(options.out, report, markdown(report))


if __name__ == "__main__":
    main()
