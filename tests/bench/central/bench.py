"""Measures the scale of the draft: one coordinator, more and more consumers.

For each number of consumers a fresh ZooKeeper, a fresh `kcoord central serve`, and that many connections from this
process. Each consumer takes a file descriptor here and one in the coordinator; numbers that the hard limit of open
files does not allow are lowered to it.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
from collections.abc import Iterator
from typing import Any

import uvloop

from ..runner import Bench, Made
from . import report
from .measure import Plan, measure

SPARE_FILES = 100


def measure_all(options: argparse.Namespace) -> Iterator[Made]:
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    rows: list[dict[str, Any]] = []
    for wanted in options.consumers:
        number = min(wanted, files - SPARE_FILES)
        plan = Plan(number, options.group_size or number, options.session_ms, options.seconds)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rows.append(runner.run(measure(plan)))
        yield {"files": files, "session_ms": options.session_ms, "seconds": options.seconds, "rows": rows}


BENCH = Bench(
    about="the draft with thousands of consumers.",
    results=report.RESULTS,
    measure=measure_all,
    markdown=report.markdown,
    options={
        "consumers": {"nargs": "+", "type": int, "default": [500, 1_000, 2_000, 5_000, 20_000]},
        "group-size": {"type": int, "default": 0, "help": "consumers of each group; 0 for one group of all"},
        "session-ms": {"type": int, "default": 30_000},
        "seconds": {"type": float, "default": 40.0, "help": "of pings, each time"},
    },
)
