"""`kcoord`: its commands, its exit statuses and its errors.

To add a command: a class in a module here (`cli.options`), then a row of `COMMANDS`.

Laws:

* Results go to stdout, everything else to stderr. Bad input ends with status 1 and bad usage with 2, each with one line
  that starts with ``kcoord:``; an interrupt ends with 130, a closed stdout with 141.
* No input ends it with a traceback.
* The program without a command, or a group of commands without one, shows its help on stdout, with status 0: a
  question, not a mistake.
* A command's module is imported when it is called, and an optional library on first use.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

import kcoord_wire as kw
from kcoord_wire.cli.options import Command, Parser, UsageError, parser_of, read_command
from kcoord_wire.cli.output import complain
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.kernel.settings import suggestion

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "decode": ("messages.Decode", "show the fields of a message"),
    "explain": ("messages.Explain", "show which bytes of a message hold which field"),
    "schemas": ("messages.Schemas", "list the messages, or show one"),
    "docs": ("docs.Docs", "open the documentation in the browser, from its files"),
    "capture": ("capture.Capture", "read the Kafka frames of a capture file (pcap or pcapng)"),
    "analyze": ("analyze.Analyze", "explain why consumer groups rebalanced, from captures or logs"),
    "explain-line": ("analyze.ExplainLine", "explain lines that brokers and clients log about consumer groups"),
    "watch": ("watch.Watch", "follow the groups of a live cluster; joins no group, changes nothing"),
    "demo": ("demo.Demo", "watch two groups of real clients rebalance, and read why"),
    "record": ("record.Record", "record the frames between Kafka clients and brokers, as a proxy"),
    "serve": ("serve.Serve", "run a group coordinator that any Kafka client can join"),
    "control": ("control.Control", "ask a coordinator that runs with --control, or have it do something"),
    "simulate": ("simulate.Simulate", "run a group with random faults on a virtual clock, and check its laws"),
    "simulate rolling-bounce": ("rolling_bounce.RollingBounce", "compute what a rolling restart would cost a group"),
    "simulate bug": ("simulate.Bug", "play a known bug of a client library, and the same group without it"),
    "simulate central": ("simulate.Central", "the 0.8 draft: brokers, ZooKeeper and consumers"),
    "simulate consumer-groups": ("simulate.ConsumerGroups", "groups of KIP-848, or all runs of a few members"),
    "simulate marshal": ("simulate.Marshal", "a coordination log of Marshal, its members and readers"),
    "simulate rewrite": ("simulate.Rewrite", "brokers, ZooKeeper and members of the consumer rewrite design"),
    "simulate share-partition": ("simulate.SharePartition", "all runs of a few members of a share group (KIP-932)"),
    "simulate transactions": ("simulate.Transactions", "producers, zombies, brokers and disks that fail"),
    "simulate variants": ("variants.Variants", "measure what a rebalance moves, released and as proposed"),
    "central": ("", "the 0.8 consumer-coordinator draft on ZooKeeper; brokers of the rewrite"),
    "central serve": ("central.Serve", "run a broker of the draft or of the rewrite"),
    "central consume": ("central.Consume", "consume topics as a member of a group"),
    "central rebalancing": ("central.Rebalancing", "switch the rebalancing of topics off, or on again"),
    "central status": ("central.Status", "the coordinator, the groups, their consumers, owners and offsets"),
    "marshal": ("", "groups that coordinate through a topic, as those of the Go library Marshal do"),
    "marshal status": ("marshal.Status", "who holds which partition, since when, how far behind, and why"),
    "marshal watch": ("marshal.Watch", "the status, again and again until Ctrl-C"),
    "marshal consume": ("marshal.Consume", "consume topics as a member of a group"),
    "marshal pause": ("marshal_admin.Pause", "pause a whole group, or end its pause"),
    "marshal set-position": ("marshal_admin.SetPosition", "set where a group goes on"),
    "marshal export-offsets": ("marshal_admin.ExportOffsets", "write a group's positions as committed offsets"),
    "doctor": ("doctor.Doctor", "show what is installed and missing, and whether the codecs work"),
    "completion": ("shell.Completion", "print what completes command lines in bash, zsh or fish"),
    "man": ("shell.Man", "print the manual page, for man -l -"),
}
"""Name to module and class, and a line of help; a group of commands has no class."""


def parse(words: Sequence[str]) -> Command:
    """Return the command of a command line. ``--help`` and ``--version`` end the process; so does a group of commands
    alone, which shows its help.

    :raises UsageError: it is none
    """
    name, rest = "", list(words)
    while rest and (longer := f"{name} {rest[0]}".strip()) in COMMANDS:
        name = longer
        rest.pop(0)
    program = f"kcoord {name}".strip()
    parts = _parts(name)
    place = COMMANDS.get(name, ("", ""))[0]
    if parts and rest and not rest[0].startswith("-"):
        wrong = f"{name} {rest[0]}".strip()
        raise UsageError(f"there is no command {wrong}; {suggestion(rest[0], parts)} (see {program} --help)")
    if late := next(filter(parts.__contains__, rest), ""):
        raise UsageError(f"{program} {late}: the command goes before the options (see {program} --help)")
    if place:
        return read_command(_class_of(place), program, rest, _listing(parts) if parts else "")
    make_parser(name).read(rest or ["--help"])
    raise AssertionError("a word that is no option was refused above")


def make_parser(name: str) -> Parser:
    """Return the parser of a command, or of a group of commands; that of the program for an empty name."""
    place, about = COMMANDS.get(name, ("", "Kafka's consumer-group protocols, byte by byte"))
    program, parts = f"kcoord {name}".strip(), _parts(name)
    if place:
        return parser_of(_class_of(place), program, _listing(parts) if parts else "")
    parser = Parser(program, f"{about[0].upper()}{about[1:]}.", _listing(parts))
    if not name:
        parser.add_argument("--version", action="version", version=f"kcoord {kw.__version__} ({kw.backend} codec)")
    parser.add_argument("command", metavar="COMMAND", help="one of those below; each has --help")
    return parser


def _class_of(place: str) -> type[Command]:
    module, _, kind = place.partition(".")
    found: type[Command] = getattr(import_module(f"kcoord_wire.cli.{module}"), kind)
    return found


def _parts(name: str) -> dict[str, str]:
    """The commands of a group, with their lines of help."""
    return {each.rpartition(" ")[2]: about for each, (_, about) in COMMANDS.items() if _parent(each) == name}


def _listing(parts: Mapping[str, str]) -> str:
    width = max(map(len, parts), default=0)
    return "\n".join(["commands:", *(f"  {part:<{width}}  {about}" for part, about in parts.items())])


def _parent(name: str) -> str:
    return name.rpartition(" ")[0]


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
        parse(sys.argv[1:] if argv is None else argv).run()
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
    except (OSError, MissingLibraryError, ValueError, ArithmeticError, MemoryError, RuntimeError) as error:
        complain(_sentence(error))
        return 1
    return 0


def _sentence(error: Exception) -> str:
    """What the user reads of an error. Those that readers do not raise on purpose are shown with their type."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    is_own = type(error).__module__.startswith(f"{kw.__name__}.")
    if is_own or isinstance(error, OSError | ValueError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}"
