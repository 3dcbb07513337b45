"""`kcoord simulate transactions`: applications with transactions and random faults, their laws checked all the time.

Law: a broken law is a failure, as for `kcoord simulate`.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from kcoord_wire.cli import seeds
from kcoord_wire.cli.arguments import add_command

EXAMPLES: Final = """\
examples:
  kcoord simulate transactions --seeds 0:1000
      applications crash, pause, are fenced and come back as zombies; the brokers are killed, their disks fail
  kcoord simulate transactions --seeds 77 --jobs 1
      one seed again
"""


def add_parser(scenarios: argparse._SubParsersAction[Any]) -> None:
    """Add the scenario to those of `kcoord simulate`."""
    about = "run consume-transform-produce applications with random faults, and check that all is exactly once"
    command = add_command(scenarios, "transactions", about, _run, examples=EXAMPLES)
    seeds.add_arguments(command)


def _run(args: argparse.Namespace) -> None:
    from kcoord_wire.worlds.transactions.script import random_script

    seeds.run_seeds(args, random_script, counted="transactions")
