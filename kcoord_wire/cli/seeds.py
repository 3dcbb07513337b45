"""Random scripts by seed, as the scenarios of `kcoord simulate` run them: on several processes, with a summary.

Laws:

* A seed has the same run on every machine and in every process.
* The summary goes to stdout; failures go to stderr as they are found, each with a short script that replays it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kcoord_wire.cli.arguments import argument, parse_positive

if TYPE_CHECKING:
    from kcoord_wire.kernel.virtual.script import Script


class Report(Protocol):
    """What a script that broke no law returns; besides these, what `Totals.counted` names."""

    @property
    def steps(self) -> int:
        """Number of events delivered."""

    @property
    def settled_ms(self) -> int:
        """How long after the last fault everything had settled."""


class Outcome(NamedTuple):
    """A seed's run.

    :ivar report: None if a law was broken
    :ivar law: that was broken; empty for none
    :ivar failure: the law, the last lines of the trace, and the script that replays it
    :ivar actions: number of actions of that script
    """

    seed: int
    report: Report | None
    law: str = ""
    failure: str = ""
    actions: int = 0


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options that say which seeds are run."""
    command.add_argument(
        "--seeds",
        type=argument(_parse_seeds),
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


def _parse_seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    try:
        seeds = range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        raise ValueError(f"{text!r} is neither a seed nor FIRST:END") from None
    if not seeds:
        raise ValueError(f"{text!r} has no seeds: END is not included")
    return seeds


@dataclass
class Totals:
    """What the runs so far add up to.

    :ivar expected: the law that may be broken; empty for none
    :ivar counted: field of the reports that is summed up
    :ivar found: the runs that broke it
    :ivar failed: seeds of those that broke another
    """

    seeds: int
    expected: str = ""
    counted: str = "rebalances"
    started: float = field(default_factory=time.monotonic)
    done: int = 0
    steps: int = 0
    count: int = 0
    slowest_ms: int = 0
    failed: list[int] = field(default_factory=list)
    found: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count a run."""
        self.done += 1
        if outcome.report is not None:
            self.steps += outcome.report.steps
            self.count += getattr(outcome.report, self.counted)
            self.slowest_ms = max(self.slowest_ms, outcome.report.settled_ms)
        elif outcome.law == self.expected:
            self.found.append(outcome)
        else:
            self.failed.append(outcome.seed)
            print(f"\nseed {outcome.seed} fails:\n{outcome.failure}\n", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        speed = self.steps / max(time.monotonic() - self.started, 1e-9)
        return (
            f"{self.done:,} of {self.seeds:,} seeds, {self.steps:,} steps, {speed:,.0f} steps/s, "
            f"{len(self.failed)} failures"
        )


def run_seeds(
    args: argparse.Namespace,
    make_script: Callable[[int], Script[Any, Any]],
    expected: str = "",
    *,
    counted: str = "rebalances",
    each: Callable[[Outcome], None] | None = None,
) -> Totals:
    """Run the seeds of `add_arguments` and print the summary.

    :param make_script: of a seed; it is sent to other processes
    :param expected: a law that the runs may break
    :param counted: field of the scripts' reports that the summary has
    :param each: is called with each run's outcome
    :raises ValueError: another law was broken
    """
    totals = Totals(len(args.seeds), expected, counted)
    try:
        _run(args, partial(_try_seed, make_script), totals, each)
    finally:
        print(totals)
        settled = f"settled at most {totals.slowest_ms:,} virtual ms after the last fault"
        print(f"{totals.count:,} {counted}; {settled}")
    if totals.failed:
        raise ValueError(f"seeds that break a law: {' '.join(map(str, sorted(totals.failed)))}")
    return totals


def _run(
    args: argparse.Namespace,
    try_seed: Callable[[int], Outcome],
    totals: Totals,
    each: Callable[[Outcome], None] | None,
) -> None:
    shown = totals.started
    for outcome in _outcomes(try_seed, args.seeds, args.jobs):
        totals.add(outcome)
        if each is not None:
            each(outcome)
        if time.monotonic() - shown >= 1 and sys.stderr.isatty():
            shown = time.monotonic()
            print(f"\r{totals}", end="", file=sys.stderr, flush=True)
        if args.steps is not None and totals.steps >= args.steps:
            return


def _outcomes(try_seed: Callable[[int], Outcome], seeds: range, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(try_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _start_worker) as pool:
        yield from pool.imap_unordered(try_seed, seeds, chunksize=1)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent ends the workers


def _try_seed(make_script: Callable[[int], Script[Any, Any]], seed: int) -> Outcome:
    from kcoord_wire.kernel.virtual.script import SimulationFailure, run_script

    try:
        return Outcome(seed, run_script(make_script(seed)))
    except SimulationFailure as failure:
        return Outcome(seed, None, failure.law, str(failure), len(failure.script.actions))
