"""`kcoord simulate`: random runs of a virtual group, with the laws checked after every event.

Its scenarios are in `cli.rolling_bounce`, `cli.simulate_bug` and `cli.variants`.

Laws:

* A seed has the same run on every machine and in every process.
* The summary goes to stdout; failures go to stderr as they are found, each with a short script that replays it. The
  status is 1 if a law was broken, and 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire.cli import rolling_bounce, simulate_bug, variants
from kcoord_wire.cli.arguments import add_command, argument, parse_positive

if TYPE_CHECKING:
    from kcoord_wire.simulation.group.script import Report

__all__ = ["add_parser"]

EXAMPLES: Final = """\
examples:
  kcoord simulate --seeds 0:1000
      a thousand runs, on all cores
  kcoord simulate --seeds 77 --jobs 1
      one seed again
  kcoord simulate rolling-bounce --members 10 --partitions 200
      what a deploy would cost (see kcoord simulate rolling-bounce --help)
  kcoord simulate bug --list
      known bugs of client libraries, played (see kcoord simulate bug --help)
  kcoord simulate variants --members 10,100
      what a rebalance moves, released and as proposed (see kcoord simulate variants --help)
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    about = "run a group with random faults on a virtual clock, and check its laws"
    command = add_command(commands, "simulate", about, _run, examples=EXAMPLES)
    command.add_argument(
        "--seeds",
        type=argument(_seeds),
        default=range(100),
        metavar="FIRST:END",
        help="END is not included; one number is one seed (default: 0:100)",
    )
    command.add_argument(
        "--steps", type=argument(parse_positive), metavar="COUNT", help="stop after so many delivered events"
    )
    command.add_argument(
        "--jobs", type=argument(parse_positive), default=os.cpu_count() or 1, help="processes (default: one per core)"
    )
    scenarios = command.add_subparsers(metavar="SCENARIO")
    rolling_bounce.add_parser(scenarios)
    simulate_bug.add_parser(scenarios)
    variants.add_parser(scenarios)


def _seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    try:
        seeds = range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        raise ValueError(f"{text!r} is neither a seed nor FIRST:END") from None
    if not seeds:
        raise ValueError(f"{text!r} has no seeds: END is not included")
    return seeds


class _Outcome(NamedTuple):
    seed: int
    report: Report | None
    failure: str | None


@dataclass
class _Totals:
    """What the runs so far add up to."""

    seeds: int
    started: float = field(default_factory=time.monotonic)
    done: int = 0
    steps: int = 0
    rebalances: int = 0
    slowest_ms: int = 0
    failed: list[int] = field(default_factory=list)

    def add(self, outcome: _Outcome) -> None:
        self.done += 1
        if outcome.report is None:
            self.failed.append(outcome.seed)
        else:
            self.steps += outcome.report.steps
            self.rebalances += outcome.report.rebalances
            self.slowest_ms = max(self.slowest_ms, outcome.report.settled_ms)

    def __str__(self) -> str:
        speed = self.steps / max(time.monotonic() - self.started, 1e-9)
        return (
            f"{self.done:,} of {self.seeds:,} seeds, {self.steps:,} steps, {speed:,.0f} steps/s, "
            f"{len(self.failed)} failures"
        )


def _run(args: argparse.Namespace) -> None:
    totals = _Totals(len(args.seeds))
    try:
        _run_seeds(args, totals)
    finally:
        print(totals)
        settled = f"settled at most {totals.slowest_ms:,} virtual ms after the last fault"
        print(f"{totals.rebalances:,} rebalances; {settled}")
    if totals.failed:
        raise ValueError(f"seeds that break a law: {' '.join(map(str, sorted(totals.failed)))}")


def _run_seeds(args: argparse.Namespace, totals: _Totals) -> None:
    shown = totals.started
    for outcome in _outcomes(args.seeds, args.jobs):
        totals.add(outcome)
        if outcome.failure is not None:
            print(f"\nseed {outcome.seed} fails:\n{outcome.failure}\n", file=sys.stderr, flush=True)
        if time.monotonic() - shown >= 1 and sys.stderr.isatty():
            shown = time.monotonic()
            print(f"\r{totals}", end="", file=sys.stderr, flush=True)
        if args.steps is not None and totals.steps >= args.steps:
            return


def _outcomes(seeds: range, jobs: int) -> Iterator[_Outcome]:
    if jobs == 1:
        yield from map(_try_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _start_worker) as pool:
        yield from pool.imap_unordered(_try_seed, seeds, chunksize=1)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent ends the workers


def _try_seed(seed: int) -> _Outcome:
    from kcoord_wire.simulation.group.script import random_script
    from kcoord_wire.simulation.script import SimulationFailure, run_script

    try:
        return _Outcome(seed, run_script(random_script(seed)), None)
    except SimulationFailure as failure:
        return _Outcome(seed, None, str(failure))
