"""Runs the benchmark of the assignors: `python -m tests.bench.assignors`. Each measurement has a process of its own.

Writes latest.json (what was measured) and latest.md (what `report` makes of it) into tests/bench/assignors/results or
`--out`, and the curves into docs/ (`--plots`). `--programs` chooses, `--quick` measures tiny groups, to see that
everything runs. Needs Java, Maven and Go, as `make interop` does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.go_programs import build_go_programs
from tests.support.java_assignors import CLIENT_SIDE, JavaAssignors

from ..report import write_results
from ..scale.__main__ import machine
from . import report
from .cases import PROGRAMS, Measurement, measurements

ROOT = Path(__file__).parents[3]
SECONDS = {"ours": 1.0, "franz-go": 1.0}  # of processor time in calls; three calls at least
JAVA_SECONDS = 3.0  # it takes calls until the compilers have done their work
MOST_CALLS = 200
PLOTS = ROOT / "docs"


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


@contextmanager
def programs(names: list[str]) -> Iterator[Programs]:
    with tempfile.TemporaryDirectory() as folder:
        yield Programs(names, Path(folder))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.assignors", description="Assignors next to Java's and Go's.")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--quick", action="store_true", help="tiny groups")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="the folder of latest.md and latest.json")
    parser.add_argument("--plots", type=Path, default=PLOTS, help="the folder of the curves")
    options = parser.parse_args(arguments)
    loads = [os.getloadavg()[0]]
    measured: list[dict[str, Any]] = []
    with programs(options.programs) as running:
        for each in measurements(quick=options.quick):
            for program in options.programs:
                seconds = 0.0 if options.quick else SECONDS.get(program, JAVA_SECONDS)
                answer = figures(running.ask(program, each.question() | {"seconds": seconds, "calls": MOST_CALLS}))
                measured.append({"program": program, "measurement": list(each), **answer})
                print(program, Measurement(*each), answer, flush=True)
    loads.append(os.getloadavg()[0])
    made = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine() | {"python": sys.version.split()[0]},
        "load": [round(load, 1) for load in loads],
        "programs": options.programs,
        "measured": measured,
    }
    write_results(options.out, made, report.markdown(made))
    report.write_plots(made, options.plots)


if __name__ == "__main__":
    main()
