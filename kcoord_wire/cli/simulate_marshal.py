"""`kcoord simulate marshal`: random faults on a virtual coordination log and its members, with their laws checked.

Laws:

* With ``--rules document`` a broken law is a failure, as for `kcoord simulate`.
* With ``--rules library`` what the Go library's rules allow to go wrong is counted by kind, and a short script of each
  kind is printed; it is no failure. With ``--create-time`` the same holds for two holders of a partition.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.cli import seeds
from kcoord_wire.cli.arguments import add_command

if TYPE_CHECKING:
    from kcoord_wire.worlds.marshal.anomalies import Anomaly
    from kcoord_wire.worlds.marshal.script import MarshalScript

RULES: Final = ("document", "library")
EXAMPLES: Final = """\
examples:
  kcoord simulate marshal --seeds 0:1000
      members pause, crash and reuse client ids, appends fail, land late or twice, brokers' clocks differ
  kcoord simulate marshal --seeds 0:100 --rules library
      the rules of the Go library: what goes wrong, with the shortest script of each kind
  kcoord simulate marshal --seeds 0:300 --create-time --skew 1.5
      the document's rules on a topic without LogAppendTime, with clocks that differ by 1.5 heartbeat intervals
"""


def add_parser(scenarios: argparse._SubParsersAction[Any]) -> None:
    """Add the scenario to those of `kcoord simulate`."""
    about = "run members of a Marshal group on a log with random faults, and check their laws"
    command = add_command(scenarios, "marshal", about, _run, examples=EXAMPLES)
    seeds.add_arguments(command)
    command.add_argument("--rules", choices=RULES, default=RULES[0], help="who judges the log (default: document)")
    command.add_argument("--create-time", action="store_true", help="times of entries by the members' own clocks")
    command.add_argument(
        "--skew",
        type=float,
        default=0.0,
        metavar="INTERVALS",
        help="with --create-time: by how much the clocks of two members differ, in heartbeat intervals (default: 0)",
    )


def _run(args: argparse.Namespace) -> None:
    from kcoord_wire.marshal.state import Rules
    from kcoord_wire.worlds.marshal.script import random_script

    make_script = partial(random_script, rules=Rules(args.rules), is_append_time=not args.create_time, skew=args.skew)
    anomalies = _Anomalies()
    seeds.run_seeds(args, make_script, counted="tenures", each=anomalies.add)
    for kind, count in sorted(anomalies.found.items()):
        print(f"\n{kind}: {count:,} in {len(anomalies.seeds[kind])} runs; the shortest script of the first of them:")
        print(_shortest(make_script(min(anomalies.seeds[kind])), kind))


class _Anomalies:
    """What the runs have shown, by kind, and the seeds that did."""

    def __init__(self) -> None:
        self.found: Counter[Anomaly] = Counter()
        self.seeds: dict[Anomaly, list[int]] = {}

    def add(self, outcome: seeds.Outcome) -> None:
        """Take in a run."""
        for kind, count in getattr(outcome.report, "anomalies", {}).items():
            self.found[kind] += count
            self.seeds.setdefault(kind, []).append(outcome.seed)


def _shortest(script: MarshalScript, kind: Anomaly) -> str:
    """Return a short script that shows an anomaly, as Python."""
    from kcoord_wire.kernel.virtual.script import SimulationFailure, run_script

    try:
        run_script(replace(script, looks_for=kind))
    except SimulationFailure as failure:
        return str(failure)
    raise AssertionError(f"seed {script.seed} has shown {kind} and does not any more")
