"""Makes incidents on real Kafka brokers, and judges what the report says first of those that are stored.

python -m tests.incidents                       # judge what is stored, a table
python -m tests.incidents --show NAME           # what the report says of one run, and what was done
python -m tests.incidents --make [HALL ...]     # make incidents anew: brokers, clients, faults, captures
python -m tests.incidents --write               # judge, and write docs/incidents.md
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.incidents import report
from tests.incidents.hall import make
from tests.incidents.labels import DATA, read_incidents
from tests.incidents.lossy import judge_lossy
from tests.incidents.programme import clients, halls, libraries_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if an incident could not be made."""
    parser = argparse.ArgumentParser(prog="tests.incidents", description="What does the report say first?")
    parser.add_argument("--make", nargs="*", metavar="HALL", help="make these incidents, or all")
    parser.add_argument("--show", metavar="NAME", help="one run in full")
    parser.add_argument("--write", action="store_true", help="write docs/incidents.md")
    parser.add_argument("--list", action="store_true", help="the incidents that can be made")
    given = parser.parse_args(arguments)
    if given.list:
        print("\n".join(f"{hall.name}: {', '.join(plan.name for plan in hall.plans)}" for hall in halls()))
        return 0
    if given.make is not None:
        return _make(given.make)
    judged = report.judge_all(read_incidents())
    judged.verdicts += judge_lossy()
    if given.show is not None:
        print(report.in_full([one for one in judged.verdicts if given.show in one.run.group]))
        return 0
    text = report.markdown(judged)
    print(text)
    if given.write:
        report.write(judged)
    return 0


def _make(names: Sequence[str]) -> int:
    failed = 0
    known = {hall.name: hall for hall in halls()}
    for name in names or known:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="incident-") as scratch:
            try:
                incident = make(
                    known[name], Path(scratch), clients(Path(scratch) / "classes", libraries_of(known[name])), DATA
                )
            except BaseExceptionGroup as error:
                failed += 1
                print(f"{name} failed: {error}", file=sys.stderr)
                for one in error.exceptions:
                    print(f"  {type(one).__name__}: {one} {getattr(one, '__notes__', '')}", file=sys.stderr)
                continue
        size = incident.capture_in(DATA).stat().st_size
        print(f"{name}: {len(incident.runs)} runs, {size:,} bytes, {time.monotonic() - start:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
