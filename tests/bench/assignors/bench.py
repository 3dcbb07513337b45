"""Measures the assignors; each measurement has a process of its own. The curves go into docs/ (`--plots`).

Needs Java, Maven and Go, as `make interop` does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.go_programs import build_go_programs
from tests.support.java_assignors import CLIENT_SIDE, JavaAssignors

from ..runner import ROOT, Bench, Made
from . import report
from .cases import PROGRAMS, Measurement, measurements

SECONDS = {"ours": 1.0, "franz-go": 1.0}  # of processor time in calls; three calls at least
JAVA_SECONDS = 3.0  # it takes calls until the compilers have done their work
MOST_CALLS = 200


class Programs:
    """What answers the questions.

    :param folder: for what is compiled
    """

    def __init__(self, names: list[str], folder: Path) -> None:
        self.commands: dict[str, list[str]] = {}
        for name in names:
            if name == "ours":
                self.commands[name] = [sys.executable, "-m", "tests.bench.assignors.ours"]
            elif name == "franz-go":
                self.commands[name] = [str(build_go_programs() / "balance")]
            else:
                (folder / name).mkdir()
                # As an application's: Java's own choice of heap, collector and compilers.
                self.commands[name] = JavaAssignors(folder / name, name.rpartition(" ")[2], options=("-Xmx4g",)).command

    def ask(self, program: str, question: dict[str, Any]) -> dict[str, Any]:
        """One measurement in a process of its own. CalledProcessError where it fails; its reason is on stderr."""
        assignor = question["assignor"]
        if program.startswith("kafka-clients"):
            question = question | {"assignor": CLIENT_SIDE[assignor]}
        line = json.dumps(question) + "\n"
        command = self.commands[program]
        done = subprocess.run(command, input=line, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def figures(answer: dict[str, Any]) -> dict[str, Any]:
    """The first call, and the median of the second half of all calls: whatever warms up has done so by then."""
    made: dict[str, Any] = {"calls": len(answer["cpu"])}
    for kind in ("cpu", "thread_cpu"):
        if kind in answer:
            times = answer[kind]
            made[kind] = {"first": times[0], "warm": median(times[len(times) // 2 :])}
    return made | ({"peak": answer["peak"]} if "peak" in answer else {})


def measure(options: argparse.Namespace) -> Made:
    load = os.getloadavg()[0]
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        running = Programs(options.programs, Path(folder))
        for each in measurements(quick=options.quick):
            for program in options.programs:
                seconds = 0.0 if options.quick else SECONDS.get(program, JAVA_SECONDS)
                answer = figures(running.ask(program, each.question() | {"seconds": seconds, "calls": MOST_CALLS}))
                measured.append({"program": program, "measurement": list(each), **answer})
                print(program, Measurement(*each), answer, flush=True)
    loads = [round(load, 1), round(os.getloadavg()[0], 1)]
    made = {"load": loads, "programs": options.programs, "measured": measured}
    report.write_plots(made, options.plots)
    return made


BENCH = Bench(
    about="next to kafka-clients on the JVM and to franz-go.",
    results=report.RESULTS,
    measure=measure,
    markdown=report.markdown,
    options={
        "programs": {"nargs": "+", "choices": PROGRAMS, "default": list(PROGRAMS)},
        "plots": {"type": Path, "default": ROOT / "docs", "help": "the folder of the curves"},
    },
    quick=True,
    title="The assignors",
    command="make bench-assignors",
    summary=report.summary,
)
