"""Runs the scale benchmark of the draft: `python -m tests.bench.central`. One coordinator, more and more consumers.

For each number of consumers a fresh ZooKeeper, a fresh `kcoord central serve`, and that many connections from this
process.
Writes latest.json and latest.md into tests/bench/central/results or `--out`. Each consumer takes a file descriptor here
and one in the coordinator; numbers that the hard limit of open files does not allow are lowered to it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import time
from pathlib import Path
from typing import Any

import uvloop

from ..report import write_results
from ..scale.__main__ import machine
from . import report
from .measure import Plan, measure

SPARE_FILES = 100


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.central", description="The draft with thousands of consumers.")
    parser.add_argument("--consumers", nargs="+", type=int, default=[500, 1_000, 2_000, 5_000, 20_000])
    parser.add_argument("--group-size", type=int, default=0, help="consumers of each group; 0 for one group of all")
    parser.add_argument("--session-ms", type=int, default=30_000)
    parser.add_argument("--seconds", type=float, default=40.0, help="of pings, each time")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="the folder of latest.md and latest.json")
    options = parser.parse_args(arguments)
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    numbers = [min(number, files - SPARE_FILES) for number in options.consumers]
    made: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "load": round(os.getloadavg()[0], 2),
        "files": files,
        "session_ms": options.session_ms,
        "seconds": options.seconds,
        "rows": [],
    }
    for number in numbers:
        plan = Plan(number, options.group_size or number, options.session_ms, options.seconds)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            made["rows"].append(runner.run(measure(plan)))
        write_results(options.out, made, report.markdown(made))


if __name__ == "__main__":
    main()
