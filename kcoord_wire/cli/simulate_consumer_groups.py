"""`kcoord simulate consumer-groups`: members of KIP-848 with random faults, or all runs of a few of them.

Law: a broken law is a failure, as for `kcoord simulate`; a search prints a shortest run that breaks it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from kcoord_wire.cli import seeds
from kcoord_wire.cli.arguments import add_command, argument, parse_positive

EXAMPLES: Final = """\
examples:
  kcoord simulate consumer-groups --seeds 0:1000
      members crash, pause, are cut off, change their subscription; the coordinator and its disk fail
  kcoord simulate consumer-groups --search
      all runs of two members with one perturbation
  kcoord simulate consumer-groups --search --members 3
      all runs of three with one perturbation: 367,799 states
"""


def add_parser(scenarios: argparse._SubParsersAction[Any]) -> None:
    """Add the scenario to those of `kcoord simulate`."""
    about = "run groups of KIP-848 with random faults, or search all runs of a few members, and check their laws"
    command = add_command(scenarios, "consumer-groups", about, _run, examples=EXAMPLES)
    seeds.add_arguments(command)
    options = command.add_argument_group("search")
    options.add_argument("--search", action="store_true", help="search all runs breadth first instead of random ones")
    positive, count = argument(parse_positive), argument(_parse_count)
    options.add_argument("--members", type=positive, default=2, metavar="COUNT", help="(default: 2)")
    options.add_argument("--partitions", type=positive, default=2, metavar="COUNT", help="of a topic (default: 2)")
    options.add_argument("--topics", type=positive, default=1, metavar="COUNT", help="(default: 1)")
    options.add_argument(
        "--perturbations",
        type=count,
        default=1,
        metavar="COUNT",
        help="losses, departures, crashes, changes and restarts in one run (default: 1)",
    )
    options.add_argument(
        "--ticks", type=count, default=0, metavar="COUNT", help="how often half a session may pass (default: 0)"
    )
    options.add_argument("--depth", type=positive, metavar="STEPS", help="longest run (default: until nothing is new)")
    options.add_argument("--static", action="store_true", help="static members, which leave for a while and return")


def _parse_count(text: str) -> int:
    count = int(text) if text.isdigit() else -1
    if count < 0:
        raise ValueError(f"{text!r} is not a whole number of 0 or more")
    return count


def _run(args: argparse.Namespace) -> None:
    if not args.search:
        from kcoord_wire.worlds.consumer_groups.script import random_script

        seeds.run_seeds(args, random_script)
        return
    from kcoord_wire.worlds.consumer_groups.search import search
    from kcoord_wire.worlds.consumer_groups.states import Bounds

    bounds = Bounds(
        members=args.members,
        topics=tuple((f"t{number}", args.partitions) for number in range(1, args.topics + 1)),
        perturbations=args.perturbations,
        ticks=args.ticks,
        depth=args.depth,
        is_static=args.static,
    )
    found = search(bounds, _show if sys.stderr.isatty() else None)
    extent = "all there are within these bounds" if found.is_whole else f"those within {found.depth} steps"
    print(f"{found.states:,} states, {extent}; {found.steps:,} steps between them, the deepest after {found.depth}")
    print(f"{found.coordinators:,} states of the coordinator; {found.cpu_s:.1f} s of the processor")
    if found.violation is not None:
        print("a shortest run that breaks a law:")
        for step in found.run:
            print(f"  {step}")
        raise ValueError(str(found.violation))


def _show(depth: int, states: int) -> None:
    print(f"\r{states:,} states after {depth} steps", end="", file=sys.stderr, flush=True)
