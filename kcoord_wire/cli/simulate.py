"""`kcoord simulate`: random runs of a virtual group, with the laws checked after every event.

Its scenarios are in `cli.rolling_bounce`, `cli.simulate_bug`, `cli.simulate_central`, `cli.simulate_consumer_groups`,
`cli.simulate_marshal`, `cli.simulate_rewrite`, `cli.simulate_transactions` and `cli.variants`.

Law: besides those of `cli.seeds`, the status is 1 if a law was broken, and 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from kcoord_wire.cli import (
    rolling_bounce,
    seeds,
    simulate_bug,
    simulate_central,
    simulate_consumer_groups,
    simulate_marshal,
    simulate_rewrite,
    simulate_transactions,
    variants,
)
from kcoord_wire.cli.arguments import add_command

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
  kcoord simulate central --seeds 0:100
      the 0.8 draft: brokers, ZooKeeper and consumers (see kcoord simulate central --help)
  kcoord simulate consumer-groups --seeds 0:100
      groups of KIP-848, or all runs of a few members (see kcoord simulate consumer-groups --help)
  kcoord simulate marshal --seeds 0:100
      Marshal: a coordination log, its members and readers (see kcoord simulate marshal --help)
  kcoord simulate rewrite --seeds 0:100
      the consumer rewrite design (see kcoord simulate rewrite --help)
  kcoord simulate transactions --seeds 0:100
      transactions: producers, zombies, brokers and disks that fail (see kcoord simulate transactions --help)
  kcoord simulate variants --members 10,100
      what a rebalance moves, released and as proposed (see kcoord simulate variants --help)
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    about = "run a group with random faults on a virtual clock, and check its laws"
    command = add_command(commands, "simulate", about, _run, examples=EXAMPLES)
    seeds.add_arguments(command)
    scenarios = command.add_subparsers(metavar="SCENARIO")
    rolling_bounce.add_parser(scenarios)
    simulate_bug.add_parser(scenarios)
    simulate_central.add_parser(scenarios)
    simulate_consumer_groups.add_parser(scenarios)
    simulate_marshal.add_parser(scenarios)
    simulate_rewrite.add_parser(scenarios)
    simulate_transactions.add_parser(scenarios)
    variants.add_parser(scenarios)


def _run(args: argparse.Namespace) -> None:
    from kcoord_wire.worlds.group.script import random_script

    seeds.run_seeds(args, random_script)
