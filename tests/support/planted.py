"""All planted bugs of the simulated worlds, and the seed whose random script catches each.

`make test` plays the seed of `SEEDS` first, and other seeds only if that does not catch the bug any more; `make proof`
looks at the seeds in their order (``KCOORD_WIRE_SEARCH=1``). After a change of the worlds

    python -m tests.support.planted

looks for all seeds anew and writes them down.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from kcoord_wire.kernel.virtual.scripts import Script, SimulationFailure, run_script
from kcoord_wire.worlds import script_maker
from tests.support import (
    planted_bugs,
    planted_central_bugs,
    planted_consumer_group_bugs,
    planted_marshal_bugs,
    planted_proposal_bugs,
    planted_rewrite_bugs,
    planted_transaction_bugs,
)

SEEDS: Final = Path(__file__).parent / "planted_seeds.json"
LOOKED_FOR: Final = 400  # seeds within which a planted bug shows

Patch = pytest.MonkeyPatch


class Planted(NamedTuple):
    """A bug that is planted in the code that a world runs.

    :ivar world: a key of `kcoord_wire.worlds.WORLDS`, with what else runs in it
    :ivar name: of the bug
    :ivar plant: plants it
    :ivar laws: it breaks one of these
    :ivar script: makes the random script of a seed
    """

    world: str
    name: str
    plant: Callable[[Patch], None]
    laws: frozenset[str]
    script: Callable[[int], Script[Any]]

    def __str__(self) -> str:
        return f"{self.world}-{self.name}"

    def catch(self, *, anew: bool = False) -> SimulationFailure:
        """Return the first failure of a run by one of the bug's laws; the bug has been planted.

        :param anew: forget the seed that has caught it before
        """
        others = []
        for seed in self._seeds(anew):
            try:
                run_script(self.script(seed), shrink=False)
            except SimulationFailure as failure:
                if failure.law in self.laws:
                    return failure
                others.append((seed, failure.law))
        raise AssertionError(f"no seed below {LOOKED_FOR} catches {self}; other laws were broken: {others}")

    def _seeds(self, anew: bool) -> Iterator[int]:
        known = None if anew or "KCOORD_WIRE_SEARCH" in os.environ else _known().get(str(self))
        if known is not None:
            yield known
        yield from range(LOOKED_FOR)


def _known() -> Mapping[str, int]:
    known: Mapping[str, int] = json.loads(SEEDS.read_text("utf-8")) if SEEDS.exists() else {}
    return known


def _planted(world: str, plant: Any, laws: str, *given: Any, name: str = "", **options: Any) -> Planted:
    maker = script_maker(world)
    script = partial(maker, *given, **options)
    return Planted(world, name or plant.__name__, plant, frozenset(laws.split("|")), script)


def _of(world: str, table: Any, found: Mapping[str, Callable[[int], Script[Any]]] | None = None) -> Iterator[Planted]:
    """Yield the bugs of a table of bug and laws; those without a name are `pytest.param` with an id.

    :param found: scripts of bugs that random ones seldom bring out
    """
    for entry in table:
        values, name = (entry.values, entry.id) if hasattr(entry, "values") else (entry, "")
        bug = _planted(world, values[0], values[1], name=name)
        yield bug._replace(script=(found or {}).get(bug.name, bug.script))


BUGS: Final = (
    *_of("group", planted_bugs.PLANTED, planted_bugs.FOUND),
    *_of("consumer-groups", planted_consumer_group_bugs.BY_SEEDS),
    *_of("transactions", planted_transaction_bugs.PLANTED, planted_transaction_bugs.FOUND),
    *_of("central", planted_central_bugs.PLANTED.items()),
    *(_planted("central", plant, laws, coordinators=3) for plant, laws in planted_central_bugs.OF_SEVERAL.items()),
    *(
        _planted("rewrite", bug.plant, bug.law, stops_with_session=bug.law == "no overlap", rows=bug.rows)
        for bug in planted_rewrite_bugs.PLANTED
    ),
    *(
        _planted("marshal", bug.plant, "|".join(bug.laws), delivery=bug.delivery, rows=bug.rows)
        for bug in planted_marshal_bugs.PLANTED
    ),
    *(
        _planted("marshal", bug.plant, "|".join(bug.laws), ranges=True)._replace(world="marshal ranges")
        for bug in planted_marshal_bugs.RANGES
    ),
    *(_planted("proposal", plant, law, variant) for plant, law, variant in planted_proposal_bugs.PLANTED),
)


def main() -> None:
    """Look for the seeds of all bugs, or of those that are named, and write them down."""
    found = dict(_known())
    for bug in BUGS:
        if sys.argv[1:] and str(bug) not in sys.argv[1:]:
            continue
        with pytest.MonkeyPatch.context() as patch:
            bug.plant(patch)
            try:
                failure = bug.catch(anew=True)
            except AssertionError as error:
                print(f"{error}", flush=True)
                continue
        found[str(bug)] = failure.seed
        print(f"{bug}: seed {failure.seed} breaks {failure.law!r}", flush=True)
    known = {str(bug): found[str(bug)] for bug in BUGS if str(bug) in found}
    SEEDS.write_text(json.dumps(known, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
