"""Mutants of the pure machines, and what notices each: the laws of the simulation, else the machine's own tests.

    python -m tests.mutants --mutants 200 --seed 1 --only marshal draft

Each machine of `MACHINES` has an equal part of the sample. No file is changed: a forked child of this process gives the
functions of the module the mutant's code, plays a fixed number of seeds, and runs the tests if no law is broken. Its
processor time and memory are bounded. Verdicts are kept in ``build/mutants.jsonl``: ``laws`` until the module changes,
the others until its room, its worlds or its tests do; so a run that was stopped goes on. The status is 1 if a
mutant survives that docs/simulation.md does not name.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import os
import re
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from kcoord_wire.kernel.virtual.scripts import SimulationFailure, run_script
from tests.mutants.machines import MACHINES
from tests.mutants.operators import changes, plant

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = ROOT / "build/mutants.jsonl"
REASONS: Final = ROOT / "docs/simulation.md"
NONE: Final = -1  # the right code, which must survive
CPU_S: Final = 45  # seeds and tests of the right code take a third of it
MEMORY: Final = 6 << 30
# A call that no longer fits its function is found wherever it is executed: it says nothing of what is checked.
UNFIT: Final = re.compile(r"missing (\d+|a) required|expected (at least )?\d+ arg|takes (exactly|at least)|free vars")


class Mutant(NamedTuple):
    """The `number`-th change of a module."""

    machine: str
    module: str
    number: int
    name: str

    def judge(self) -> str:
        """Return what notices it: ``laws`` or ``tests`` and how, ``unfit``, or ``survives``. Called in a child."""
        machine = MACHINES[self.machine]
        try:
            if self.number != NONE:
                plant(import_module(f"kcoord_wire.{self.module}"), self.number)
            for seed in range(max(count for _, count in machine.scripts)):
                for make in (make for make, count in machine.scripts if seed < count):
                    run_script(make(seed), shrink=False)
        except SimulationFailure as failure:
            return _noticed("laws", f"{failure.law}, seed {seed}: {failure.violation}")
        except Exception as error:
            return _noticed("laws", repr(error))
        watch = _Failure()
        failed = pytest.main([*_TEST_OPTIONS, *(str(ROOT / "tests" / each) for each in machine.tests)], [watch])
        return _noticed("tests", watch.text) if failed else "survives"


class _Failure:
    """A plugin of pytest that keeps how the first test failed."""

    text = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.text:
            self.text = f"{report.nodeid}: {report.longreprtext[-300:]}"


# Plain asserts: the package is imported before pytest could rewrite what belongs to its plugin, which is a warning.
_TEST_OPTIONS: Final = ("-q", "-x", "-n0", "-p", "no:cacheprovider", "--tb=line", "--assert=plain")


def _noticed(by: str, how: str) -> str:
    return "unfit" if UNFIT.search(how) else f"{by}: {how}"


def draw(machine: str, seed: int) -> list[Mutant]:
    """Return all mutants of a machine in the order in which a seed takes them: by digests, so that a change of the code
    changes few of the first ones."""
    found = [
        Mutant(machine, module, number, f"{module} {change.where}: {change.what}")
        for module in MACHINES[machine].modules
        for number, change in enumerate(changes(ast.parse(_source(module))))
    ]
    found.sort(key=lambda each: _digest(f"{seed}/{each.name}".encode()))
    return [Mutant(machine, MACHINES[machine].modules[0], NONE, f"{machine}: nothing"), *found]


def _source(module: str) -> bytes:
    return Path(str(import_module(f"kcoord_wire.{module}").__file__)).read_bytes()


def _state(name: str) -> str:
    """Return a digest of all that judges a machine."""
    machine = MACHINES[name]
    makers = [getattr(make, "func", make) for make, _ in machine.scripts]
    worlds = {Path(inspect.getfile(make)).parent for make in makers}
    rooms = {ROOT / "kcoord_wire" / Path(*module.split(".")[:-1]) for module in machine.modules}
    tests = [ROOT / "tests" / each for each in machine.tests]
    files = {file for each in (*worlds, *rooms, *tests) for file in ([each] if each.is_file() else each.rglob("*.py"))}
    return _digest(*(each.read_bytes() for each in sorted(files)))


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _run(mutant: Mutant, out: int) -> None:
    """Judge a mutant in this process, which ends with that."""

    def ended(*_: object) -> None:
        os.write(out, json.dumps("laws: takes too long").encode())
        os._exit(0)

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGXCPU, ended)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(nowhere, each)
    os.write(out, json.dumps(mutant.judge()[:600]).encode())
    os._exit(0)


def judged(mutants: list[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Judge mutants, `jobs` at a time, each in a child of this process."""
    waiting, running = list(reversed(mutants)), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            got, out = os.pipe()
            if not (pid := os.fork()):
                _run(mutant, out)
            os.close(out)
            running[pid] = (mutant, got)
        pid, status = os.wait()
        mutant, got = running.pop(pid)
        with os.fdopen(got, "rb") as answer:
            yield mutant, json.loads(answer.read() or json.dumps(f"laws: ended with status {status}"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--mutants", type=int, default=200, help="how many, an equal part of each machine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=MACHINES, default=list(MACHINES), metavar="MACHINE")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    sample = [each for name in given.only for each in draw(name, given.seed)[: 1 + given.mutants // len(given.only)]]
    states = {name: _state(name) for name in given.only}
    keys = {each: _digest(str(each).encode(), _source(each.module)) for each in sample}
    KEPT.parent.mkdir(exist_ok=True)
    known: dict[str, Any] = {}
    for line in KEPT.read_text().splitlines() if KEPT.exists() else ():
        key, of, is_right, verdict = json.loads(line)
        if of in states.values() or (verdict.startswith(("laws: ", "unfit")) and not is_right):
            known[key] = verdict
    missing = [each for each in sample if keys[each] not in known]
    tests = sorted({str(ROOT / "tests" / test) for name in given.only for test in MACHINES[name].tests})
    if missing and pytest.main([*_TEST_OPTIONS, "--collect-only", "-qqq", *tests]):
        return 1  # they are imported now, and each child finds them so
    with KEPT.open("a") as kept:
        for mutant, verdict in judged(missing, given.jobs):
            known[keys[mutant]] = verdict
            line = json.dumps((keys[mutant], states[mutant.machine], mutant.number == NONE, verdict))
            print(line, file=kept, flush=True)
            print(f"{mutant.machine:13} {mutant.name}\n{'':14}{verdict[:200]}", flush=True)
    return report({each: known[keys[each]].split(":")[0] for each in sample})


def report(verdicts: dict[Mutant, str]) -> int:
    """Print what was noticed of each machine, and the survivors; return 1 if one has no reason in `REASONS`."""
    reasons = REASONS.read_text("utf-8")
    mutants = [each for each in verdicts if each.number != NONE]
    print(f"\n{'':13} mutants  by laws  by tests  survive  (unfit)")
    for name in (*dict.fromkeys(each.machine for each in mutants), "all"):
        found = Counter(verdicts[each] for each in mutants if name in (each.machine, "all"))
        count = found["laws"] + found["tests"] + found["survives"]
        shares = "".join(f"{found[by] / max(count, 1):9.0%}" for by in ("laws", "tests", "survives"))
        print(f"{name:13} {count:7}{shares}  {found['unfit']:7}")
    survivors = [each.name for each in mutants if verdicts[each] == "survives"]
    bad = [f"NO REASON {name}" for name in survivors if f"`{name}`" not in reasons]
    bad += [f"FAILS {each.name}" for each in verdicts if each.number == NONE and verdicts[each] != "survives"]
    print(*survivors, *bad, sep="\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
