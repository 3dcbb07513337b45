"""Makes incidents on real Kafka brokers, and judges what the report says first of those that are stored.

python -m tests.incidents                       # judge what is stored, a table
python -m tests.incidents --show NAME           # what the report says of one run, and what was done
python -m tests.incidents --make [HALL ...]     # make incidents anew: brokers, clients, faults, captures
python -m tests.incidents --draw 60 --seed 7 --into DRAWN     # make 60 that a seed draws, a third into DRAWN/aside
python -m tests.incidents --drawn DRAWN         # judge these, and those aside by themselves; with --show not those
python -m tests.incidents --write               # judge, and write docs/incidents.md
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.incidents import report
from tests.incidents.draw import draw, is_aside
from tests.incidents.hall import Hall, make
from tests.incidents.labels import DATA, read_incidents, write_list
from tests.incidents.lossy import judge_lossy
from tests.incidents.programme import clients, halls, libraries_of

DRAWN_BY: Final = "drawn-by.txt"
"""The file beside drawn incidents that has the arguments by which they were drawn."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if an incident could not be made."""
    parser = argparse.ArgumentParser(prog="tests.incidents", description="What does the report say first?")
    parser.add_argument("--make", nargs="*", metavar="HALL", help="make these incidents, or all")
    parser.add_argument("--show", metavar="NAME", help="one run in full")
    parser.add_argument("--write", action="store_true", help="write docs/incidents.md")
    parser.add_argument("--list", action="store_true", help="the incidents that can be made")
    parser.add_argument("--draw", type=int, metavar="COUNT", help="make so many incidents that a seed draws")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", metavar="HALL", help="of those that are drawn")
    parser.add_argument("--drawn", type=Path, metavar="FOLDER", help="judge these, which were drawn, too")
    parser.add_argument("--sealed", action="store_true", help="of drawn incidents kept aside say numbers only")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where drawn incidents are kept")
    given = parser.parse_args(arguments)
    if given.draw is not None:
        if given.into is None:
            parser.error("--draw needs --into")
        return _draw(given.draw, given.seed, given.into, given.only)
    if given.list:
        print("\n".join(f"{hall.name}: {', '.join(plan.name for plan in hall.plans)}" for hall in halls()))
        return 0
    if given.make is not None:
        return _make(given.make)
    drawn = None
    if given.drawn is not None:
        judged = report.judge_all(read_incidents(given.drawn), given.drawn)
        if given.show is None:
            aside = given.drawn / "aside"
            drawn_by = (given.drawn / DRAWN_BY).read_text(encoding="utf-8")
            judged_aside = report.judge_all(read_incidents(aside), aside)
            drawn = report.drawn_markdown(drawn_by, judged, judged_aside, given.sealed)
            drawn = drawn.replace(f"{aside}/", "").replace(f"{given.drawn}/", "")  # findings about sources name them
            if not given.write:
                print(drawn)
                return 0
    if given.drawn is None or given.write:
        judged = report.judge_all(read_incidents())
        judged.verdicts += judge_lossy()
    if given.show is not None:
        print(report.in_full([one for one in judged.verdicts if given.show in one.run.group]))
        return 0
    text = report.markdown(judged)
    print(text)
    if given.write:
        report.write(judged, drawn)
    return 0


def _make(names: Sequence[str]) -> int:
    known = {hall.name: hall for hall in halls()}
    made = [_made(known[name], DATA) for name in names or known]
    return 0 if all(made) else 1


def _draw(count: int, seed: int, into: Path, only: Sequence[str] | None) -> int:
    """Make what is drawn, with a list of the truth in each folder; those that are there are not made again."""
    into.mkdir(parents=True, exist_ok=True)
    (into / DRAWN_BY).write_text(f"--draw {count} --seed {seed}", encoding="utf-8")
    for hall in draw(count, seed):
        folder = into / "aside" if is_aside(hall.name, seed) else into
        if (folder / f"{hall.name}.json").exists() or (only and hall.name not in only):
            continue
        _made(hall, folder)
        write_list(folder)
    return 0


def _made(hall: Hall, into: Path) -> bool:
    """Make one incident; says what came of it, and whether anything did."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="incident-") as scratch:
        try:
            incident = make(hall, Path(scratch), clients(Path(scratch) / "classes", libraries_of(hall)), into)
        except Exception as error:
            print(f"{hall.name} failed: {error}", file=sys.stderr)
            for one in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
                print(f"  {type(one).__name__}: {one} {getattr(one, '__notes__', '')}", file=sys.stderr)
            return False
    size = sum(path.stat().st_size for path in incident.captures_in(into))
    print(f"{hall.name}: {len(incident.runs)} runs, {size:,} bytes, {time.monotonic() - start:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
