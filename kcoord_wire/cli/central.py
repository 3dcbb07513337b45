"""`kcoord central`: the 0.8 consumer-coordinator draft, and brokers of the rewrite, on a real ZooKeeper.

Its commands are modules of their own: `central_serve`, `central_consume` and `central_status`.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from kcoord_wire.cli import central_consume, central_serve, central_status

COMMANDS: Final = (central_serve, central_consume, central_status)


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    about = (
        "the 0.8 consumer-coordinator draft on ZooKeeper: brokers, consumers, and their state; brokers of the rewrite"
    )
    command = commands.add_parser("central", help=about, description=f"{about[0].upper()}{about[1:]}.")
    parts = command.add_subparsers(required=True, metavar="COMMAND")
    for each in COMMANDS:
        each.add_parser(parts)
