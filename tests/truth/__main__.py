"""Plays scenarios whose rebalances are known, explains them, and reports how often the explanation is right.

    python -m tests.truth                      # 330 scenarios, from the wire
    python -m tests.truth --from log
    python -m tests.truth --only SESSION_EXPIRED --show-worst 3
    python -m tests.truth --show overlap-12    # what happened and what was inferred, side by side

`--write` writes the result to docs/causes.md, from both sources.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from kcoord_wire.forensics.causes import Cause
from tests.truth import causes
from tests.truth.measure import measure
from tests.truth.pipeline import run
from tests.truth.report import accuracy, markdown, side_by_side
from tests.truth.scenarios import Scenario, scenarios

SCENARIOS = 330


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a scenario failed."""
    parser = argparse.ArgumentParser(prog="tests.truth", description="Do the causes agree with the truth?")
    parser.add_argument("--scenarios", type=int, default=SCENARIOS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=str.upper, choices=[cause.name for cause in Cause], help="made for this cause")
    parser.add_argument("--from", dest="origin", choices=["wire", "log"], default="wire")
    parser.add_argument("--show", metavar="NAME", help="one scenario in full")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the result to docs/causes.md")
    given = parser.parse_args(arguments)
    if given.show:
        among = scenarios(max(given.scenarios, 3_000), given.seed)
        named = [scenario for scenario in among if scenario.name == given.show]
        if not named:
            parser.error(f"no scenario is called {given.show!r} among {len(among)} of seed {given.seed}")
        print(side_by_side(run(named[0], given.origin)))
        return 0
    chosen = scenarios(given.scenarios, given.seed)
    if given.only:
        chosen = [scenario for scenario in chosen if Cause[given.only] in scenario.aims]
    failed = _measure(chosen, given)
    for name, error in failed[:5]:
        print(f"\nFAILED {name}\n{error}")
    if failed:
        print(f"{len(failed)} scenarios failed: {', '.join(name for name, _ in failed)}")
    return 1 if failed else 0


def _measure(chosen: Sequence[Scenario], given: argparse.Namespace) -> list[tuple[str, str]]:
    """Measure, report, and return the scenarios that failed, with their tracebacks."""
    start = time.monotonic()
    score, hidden, rows, failed = measure(chosen, given.origin, given.jobs)
    took = time.monotonic() - start
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(markdown(score, given.origin, hidden))
    if score.wrong:
        print(f"\nTo see one: python -m tests.truth --from {given.origin} --seed {given.seed} --show NAME")
    print(f"\n{rows:,} {'frames' if given.origin == 'wire' else 'records'}, {took:.0f} s")
    if given.write and given.origin == "wire":
        other, other_hidden, _, other_failed = measure(chosen, "log", given.jobs)
        failed += other_failed
        if not failed:  # no figure includes a scenario that failed
            causes.write(accuracy(score, hidden, other, other_hidden))
    return failed


if __name__ == "__main__":
    sys.exit(main())
