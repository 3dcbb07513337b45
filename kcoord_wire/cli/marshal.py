"""`kcoord marshal`: groups that coordinate through a topic. Its commands are modules of their own."""

from __future__ import annotations

import argparse
from typing import Any, Final

from kcoord_wire.cli import marshal_consume, marshal_export, marshal_pause, marshal_set_position, marshal_status

COMMANDS: Final = (marshal_status, marshal_consume, marshal_pause, marshal_set_position, marshal_export)


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    about = "groups that coordinate through a topic, as those of the Go library Marshal do: their state and positions"
    command = commands.add_parser("marshal", help=about, description=f"{about[0].upper()}{about[1:]}.")
    parts = command.add_subparsers(required=True, metavar="COMMAND")
    for each in COMMANDS:
        each.add_parser(parts)
