"""`kcoord simulate rewrite`: random faults on a virtual cluster of the rewrite, with its laws checked all the time.

Laws:

* A broken law is a failure, as for `kcoord simulate`.
* With ``--find-overlap`` two members that fetch a partition at once are looked for; the shortest script found is
  printed, and it is no failure.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from kcoord_wire.cli import seeds
from kcoord_wire.cli.arguments import add_command

EXAMPLES: Final = """\
examples:
  kcoord simulate rewrite --seeds 0:1000
      brokers crash, pause and lose ZooKeeper, members are paused and cut off
  kcoord simulate rewrite --seeds 0:200 --find-overlap
      how two members come to fetch a partition at once, as a script
  kcoord simulate rewrite --stops-with-session
      members that stop fetching with their session: then no two do
"""


def add_parser(scenarios: argparse._SubParsersAction[Any]) -> None:
    """Add the scenario to those of `kcoord simulate`."""
    about = "run brokers, ZooKeeper and members of the consumer rewrite design with random faults, and check their laws"
    command = add_command(scenarios, "rewrite", about, _run, examples=EXAMPLES)
    seeds.add_arguments(command)
    mode = command.add_mutually_exclusive_group()
    mode.add_argument("--find-overlap", action="store_true", help="look for two members that fetch a partition at once")
    mode.add_argument(
        "--stops-with-session", action="store_true", help="members fetch only while they cannot have been declared dead"
    )


def _run(args: argparse.Namespace) -> None:
    from kcoord_wire.worlds.rewrite.script import random_script

    make_script = partial(
        random_script, stops_with_session=args.stops_with_session, allows_overlaps=not args.find_overlap
    )
    totals = seeds.run_seeds(args, make_script, "no overlap" if args.find_overlap else "")
    if totals.found:
        shortest = min(totals.found, key=lambda outcome: (outcome.actions, outcome.seed))
        print(f"in {len(totals.found)} of {totals.done} runs two members fetch a partition; the shortest script:")
        print(shortest.failure)
