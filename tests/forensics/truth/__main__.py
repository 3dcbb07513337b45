"""Plays scenarios whose rebalances are known, explains them, and says how often that was right.

    python -m tests.forensics.truth                      # 330 scenarios, from the wire
    python -m tests.forensics.truth --from log
    python -m tests.forensics.truth --only SESSION_EXPIRED --show-worst 3
    python -m tests.forensics.truth --show overlap-12    # what was and what was inferred, side by side

`--readme` writes the README's part between ``<!-- causes -->`` and ``<!-- /causes -->``, from both sources.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial

from kcoord_wire.forensics.model import Cause
from tests.forensics.truth.pipeline import Origin, run
from tests.forensics.truth.report import markdown, readme, side_by_side, write_readme
from tests.forensics.truth.scenarios import Scenario, scenarios
from tests.forensics.truth.scorer import Score, Verdict

SCENARIOS = 330


def verdicts_of(scenario: Scenario, origin: Origin) -> tuple[str, list[Verdict], int, int, str | None]:
    """Name, verdicts, rebalances without a record, rows, and the traceback if it failed."""
    try:
        outcome = run(scenario, origin)
    except Exception:
        return scenario.name, [], 0, 0, traceback.format_exc()
    return scenario.name, outcome.verdicts, outcome.hidden, outcome.rows, None


def measure(chosen: Sequence[Scenario], origin: Origin, jobs: int) -> tuple[Score, int, int, list[tuple[str, str]]]:
    """The score, rebalances without a record, rows, and the scenarios that failed with their tracebacks."""
    score, hidden, rows = Score(), 0, 0
    failed = []
    work = partial(verdicts_of, origin=origin)
    with multiprocessing.get_context("spawn").Pool(jobs) if jobs > 1 else _Alone() as pool:
        for done, (name, verdicts, unseen, count, error) in enumerate(pool.imap(work, chosen, 4), 1):
            score.add(verdicts)
            hidden += unseen
            rows += count
            if error is not None:
                failed.append((name, error))
            if sys.stderr.isatty():
                print(f"\r{done} of {len(chosen)}, {score.agreement:.2%}", end="", file=sys.stderr, flush=True)
    return score, hidden, rows, failed


class _Alone:
    """A pool without processes."""

    def __enter__(self) -> _Alone:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def imap(self, work: object, items: Sequence[Scenario], _chunk: int) -> map[object]:
        return map(work, items)  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.forensics.truth", description="Do the causes agree with the truth?")
    parser.add_argument("--scenarios", type=int, default=SCENARIOS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=str.upper, choices=[cause.name for cause in Cause], help="made for this cause")
    parser.add_argument("--from", dest="origin", choices=["wire", "log"], default="wire")
    parser.add_argument("--show", metavar="NAME", help="one scenario in full")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--readme", action="store_true", help="write the README's part")
    given = parser.parse_args(arguments)
    chosen = scenarios(given.scenarios, given.seed)
    if given.show:
        named = [scenario for scenario in chosen if scenario.name == given.show]
        if not named:
            parser.error(f"no scenario is called {given.show!r} among {len(chosen)} of seed {given.seed}")
        print(side_by_side(run(named[0], given.origin)))
        return 0
    if given.only:
        chosen = [scenario for scenario in chosen if Cause[given.only] in scenario.aims]
    start = time.monotonic()
    score, hidden, rows, failed = measure(chosen, given.origin, given.jobs)
    took = time.monotonic() - start
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(markdown(score, given.origin, hidden))
    print(f"\n{rows:,} {'frames' if given.origin == 'wire' else 'records'}, {took:.0f} s")
    for name, error in failed[:5]:
        print(f"\nFAILED {name}\n{error}")
    if failed:
        print(f"{len(failed)} scenarios failed: {', '.join(name for name, _ in failed)}")
    if given.readme:
        other, other_hidden, _, _ = measure(chosen, "log", given.jobs)
        write_readme(readme(score, other, other_hidden))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
