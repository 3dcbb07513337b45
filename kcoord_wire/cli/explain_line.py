"""`kcoord explain-line`: what a line of a broker's or client's log means.

Laws:

* A line of a known kind is explained by `kcoord_wire.forensics.lines.meanings`; of any other, nothing is said but that
  it is not known.
* Status 0 if any line was known, 1 if none was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, Final

from kcoord_wire.cli.arguments import add_command
from kcoord_wire.cli.output import print_json
from kcoord_wire.codec.fields import printable
from kcoord_wire.forensics.lines.meanings import Explained, explain_line
from kcoord_wire.forensics.lines.wrapping import MAX_LINE

EXAMPLES: Final = """\
examples:
  kcoord explain-line 'Attempt to heartbeat failed since group is rebalancing'
      what the line means, whether it is an error, and what to look at
  kubectl logs app-0 | kcoord explain-line --format json
      each known line of standard input as one JSON object
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    about = "explain lines that brokers and clients log about consumer groups"
    command = add_command(commands, "explain-line", about, _run, examples=EXAMPLES)
    command.add_argument("line", nargs="*", help="a line, as it was logged; standard input if left out")
    command.add_argument("--format", choices=("text", "json"), default="text")


def _run(args: argparse.Namespace) -> None:
    known = 0
    for line in args.line or _lines_of_stdin():
        explained = explain_line(line)
        known += explained is not None
        if args.format == "json" and explained is not None:
            print_json(_as_json(line, explained))
        elif args.format == "text" and (explained is not None or args.line):
            print("\n".join(_as_text(line, explained)))
    if not known:
        raise ValueError("no line of a known kind: see the sources that docs/analyze.md names")


def _lines_of_stdin() -> Iterator[str]:
    """Yield the lines, each as far as it is read."""
    while line := sys.stdin.buffer.readline(MAX_LINE):
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def _as_text(line: str, explained: Explained | None) -> Iterator[str]:
    yield printable(line.strip())
    if explained is None:
        yield "  not known"
        return
    stated = ", ".join(f"{name} {value}" for name, value in explained.stated.items() if value is not None)
    yield f"  what:     {explained.meaning.says} ({explained.program})"
    if stated:
        yield f"  it names: {printable(stated)}"
    yield f"  an error: {explained.meaning.is_error}"
    yield f"  look at:  {explained.meaning.look}"


def _as_json(line: str, explained: Explained) -> dict[str, Any]:
    meaning = explained.meaning
    return {
        "line": line,
        "kind": explained.kind,
        "program": explained.program,
        "says": meaning.says,
        "is_error": meaning.is_error,
        "look": meaning.look,
        **explained.stated,
    }
