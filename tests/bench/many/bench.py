"""Measures coordinators beside each other in one process, as parallel tests have them: each with 12 partitions.

They are started one after the other; then a member joins the same group id at each, and all of them stop. Memory is the
resident set of the process and files are its descriptors, by ``/proc``; threads are those of Python, since the kernel
shows a thread for a moment longer. Each is less what the process had after a first coordinator that was stopped again.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from kcoord_wire.coordinator import Coordinator, GroupConfig
from tests.support.group_client import become_stable
from tests.support.wire import Wire

from ..runner import Bench, Made, conditions, digits, table

COUNT, IDLE_SECONDS = 200, 5.0
QUICK_COUNT, QUICK_IDLE_SECONDS = 3, 0.01
GROUP: Final = "billing"
CONFIG: Final = GroupConfig(initial_rebalance_delay_ms=0)


class Held(NamedTuple):
    """What this process holds."""

    kilobytes: float
    threads: int
    files: int

    @classmethod
    def now(cls) -> Held:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        kilobytes = pages * os.sysconf("SC_PAGE_SIZE") / 1024
        return cls(kilobytes, threading.active_count(), len(os.listdir("/proc/self/fd")))

    def since(self, before: Held, count: int = 1) -> dict[str, float]:
        """What has been added, divided."""
        return {name: (now - then) / count for name, now, then in zip(self._fields, self, before, strict=True)}


def started() -> Coordinator:
    return Coordinator({"orders": 12}, config=CONFIG)


def measure(count: int, idle_seconds: float) -> dict[str, Any]:
    with started():
        pass
    before = Held.now()
    with ExitStack() as stack:
        took, used = [], time.process_time()
        coordinators = []
        for _ in range(count):
            began = time.perf_counter()
            coordinators.append(stack.enter_context(started()))
            took.append((time.perf_counter() - began) * 1e3)
        figures: dict[str, Any] = {
            "count": count,
            "start_ms": {"median": median(took), "longest": max(took)},
            "start_processor_ms": (time.process_time() - used) / count * 1e3,
            "started": Held.now().since(before, count),
        }
        used = time.process_time()
        time.sleep(idle_seconds)
        figures["idle_percent"] = (time.process_time() - used) / idle_seconds * 100
        for each in coordinators:
            with Wire(each.address) as wire:
                become_stable(wire, GROUP)
        figures["joined"] = Held.now().since(before, count)
        figures["groups"] = [len(each.groups()) for each in coordinators]
        began = time.perf_counter()
    figures["stop_ms"] = (time.perf_counter() - began) / count * 1e3
    figures["left"] = Held.now().since(before)
    return figures


def run(options: argparse.Namespace) -> Made:
    return measure(QUICK_COUNT, QUICK_IDLE_SECONDS) if options.quick else measure(COUNT, IDLE_SECONDS)


def rows(made: Made) -> list[list[str]]:
    each = made["started"]
    return [
        ["start, median", f"{digits(made['start_ms']['median'])} ms"],
        ["start, longest", f"{digits(made['start_ms']['longest'])} ms"],
        ["start, processor time", f"{digits(made['start_processor_ms'])} ms"],
        ["stop", f"{digits(made['stop_ms'])} ms"],
        ["memory", f"{digits(each['kilobytes'])} KB"],
        ["memory, with a group of one member", f"{digits(made['joined']['kilobytes'])} KB"],
        ["threads", f"{each['threads']:g}"],
        ["open files", f"{each['files']:g}"],
        ["all of them idle, processor time", f"{digits(made['idle_percent'])}% of a core"],
        ["threads and files left after all have stopped", f"{made['left']['threads']:g}, {made['left']['files']:g}"],
    ]


def summary(made: Made) -> str:
    about = f"{made['count']} coordinators in one process, each with a topic of 12 partitions; per coordinator."
    return "\n".join([about, conditions(made), "", *table(["", ""], rows(made))])


def markdown(made: Made) -> str:
    return f"# Coordinators beside each other\n\n{summary(made)}\n"


BENCH = Bench(
    about="what one of 200 coordinators in one process costs, as parallel tests have them.",
    results=Path(__file__).parent / "results",
    measure=run,
    markdown=markdown,
    quick=True,
    title="Many coordinators in one process",
    command="python -m tests.bench many",
    summary=summary,
)
