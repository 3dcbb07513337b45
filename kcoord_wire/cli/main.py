"""`kcoord`: its commands, its exit statuses and its errors.

A command is a module here with `add_parser`, and a name in `COMMANDS`.

Laws:

* Results go to stdout, everything else to stderr. Bad input ends with status 1 and bad usage with 2, each with one line
  that starts with ``kcoord:``; an interrupt ends with 130, a closed stdout with 141.
* No input ends it with a traceback.
* An optional library is needed only by the command that uses it, on first use.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import kcoord_wire as kw
from kcoord_wire.cli import (
    analyze,
    capture,
    central,
    control,
    decode,
    explain_line,
    marshal,
    record,
    schemas,
    serve,
    simulate,
    watch,
)
from kcoord_wire.cli.arguments import UsageError
from kcoord_wire.cli.output import complain
from kcoord_wire.extras import MissingLibraryError

COMMANDS: Final = (
    decode,
    schemas,
    capture,
    analyze,
    explain_line,
    watch,
    record,
    serve,
    control,
    simulate,
    central,
    marshal,
)
"""The modules of the commands, in the order in which the help lists them."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def build_parser() -> argparse.ArgumentParser:
    """The parser of `kcoord`. It raises `UsageError` instead of ending the process."""
    parser = _Parser(prog="kcoord", description="Kafka's consumer-group protocols, byte by byte.")
    parser.add_argument("--version", action="version", version=f"kcoord {kw.__version__} ({kw.backend} codec)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    :param argv: the arguments after the program's name; those of the process by default
    """
    # A shell may start the process with closed streams, for which Python has None.
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdin is None or sys.stdout is None:
        complain(f"standard {'input' if sys.stdin is None else 'output'} is closed")
        return 1
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        args = build_parser().parse_args(argv)
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # Redirect the buffered rest, else the interpreter writes it into the closed pipe on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except UsageError as error:
        complain(str(error))
        return 2
    except (OSError, MissingLibraryError, ValueError, ArithmeticError, MemoryError, RecursionError) as error:
        complain(_sentence(error))
        return 1
    return 0


def _sentence(error: Exception) -> str:
    """What the user reads of an error. Those that readers do not raise on purpose are shown with their type."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError | MissingLibraryError | ValueError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}"
