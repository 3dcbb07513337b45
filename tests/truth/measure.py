"""Many scenarios, in several processes, added up."""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from collections.abc import Iterable, Sequence
from functools import partial

from tests.truth.pipeline import Origin, run
from tests.truth.scenarios import Scenario
from tests.truth.scorer import Comparison, Score


def comparisons_of(scenario: Scenario, origin: Origin) -> tuple[str, list[Comparison], int, int, str | None]:
    """Name, comparisons, rebalances without a record, rows, and the traceback if it failed."""
    try:
        outcome = run(scenario, origin)
    except Exception:
        return scenario.name, [], 0, 0, traceback.format_exc()
    return scenario.name, outcome.comparisons, outcome.hidden, outcome.rows, None


def measure(chosen: Sequence[Scenario], origin: Origin, jobs: int) -> tuple[Score, int, int, list[tuple[str, str]]]:
    """The score, rebalances without a record, rows, and the scenarios that failed with their tracebacks."""
    score, hidden, rows = Score(), 0, 0
    failed = []
    work = partial(comparisons_of, origin=origin)

    def take(results: Iterable[tuple[str, list[Comparison], int, int, str | None]]) -> None:
        nonlocal hidden, rows
        for done, (name, comparisons, unseen, count, error) in enumerate(results, 1):
            score.add(comparisons)
            hidden += unseen
            rows += count
            if error is not None:
                failed.append((name, error))
            if sys.stderr.isatty():
                print(f"\r{done} of {len(chosen)}, {score.agreement:.2%}", end="", file=sys.stderr, flush=True)

    if jobs == 1:
        take(map(work, chosen))
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            take(pool.imap(work, chosen, 4))
    return score, hidden, rows, failed
