"""`kcoord simulate central`: random faults on a virtual cluster of the 0.8 draft, with its laws checked all the time.

Laws:

* With epochs a broken law is a failure, as for `kcoord simulate`.
* With ``--no-epoch``, and with ``--rebalance-by sockets``, whose RegisterConsumerResponse has no epoch, two owners are
  possible; the shortest script found is printed, and it is no failure.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from kcoord_wire.cli import seeds
from kcoord_wire.cli.arguments import add_command

REBALANCE_BY: Final = ("fetchers", "sockets")
EXAMPLES: Final = """\
examples:
  kcoord simulate central --seeds 0:1000
      brokers crash, pause and lose ZooKeeper, consumers and their messages are late
  kcoord simulate central --seeds 0:100 --no-epoch
      the draft's bytes: how a partition gets two owners, as a script
  kcoord simulate central --rebalance-by sockets
      the draft's older passage, which closes connections in place of StopFetcher
"""


def add_parser(scenarios: argparse._SubParsersAction[Any]) -> None:
    """Add the scenario to those of `kcoord simulate`."""
    about = "run brokers, ZooKeeper and consumers of the 0.8 draft with random faults, and check their laws"
    command = add_command(scenarios, "central", about, _run, examples=EXAMPLES)
    seeds.add_arguments(command)
    command.add_argument("--no-epoch", action="store_true", help="the draft's bytes, without the extension")
    command.add_argument(
        "--rebalance-by",
        choices=REBALANCE_BY,
        default=REBALANCE_BY[0],
        help="fetchers, as in sections 9 and 11; sockets, as in section 2 (default: fetchers)",
    )


def _run(args: argparse.Namespace) -> None:
    from kcoord_wire.worlds.central.script import random_script

    make_script = partial(random_script, rebalance_by=args.rebalance_by, is_fenced=not args.no_epoch)
    has_epochs = not args.no_epoch and args.rebalance_by == REBALANCE_BY[0]
    totals = seeds.run_seeds(args, make_script, "" if has_epochs else "one owner")
    if totals.found:
        shortest = min(totals.found, key=lambda outcome: (outcome.actions, outcome.seed))
        print(f"{len(totals.found)} of {totals.done} runs have two owners of a partition; the shortest script:")
        print(shortest.failure)
