"""Command lines as dataclasses: a command is a class, its fields are its options, and their types read the values.

    @dataclass(frozen=True, kw_only=True)
    class Count(Command):
        '''Count the heartbeats of a capture.

        examples:
          kcoord count trace.pcap --group billing --format json
        '''

        file: Annotated[Path, Argument("FILE")]
        group: Annotated[tuple[str, ...], Option("only this group; may be repeated", "ID")] = ()
        most: Annotated[Positive | None, Option("stop after so many")] = None
        format: Format = "text"

        def run(self) -> None: ...

Laws:

* A field without a default is required. A ``bool`` is a switch, a ``Literal`` has choices, a tuple may be repeated, a
  function in the annotation reads the text. A number has one, so it has bounds.
* Bad usage is a `UsageError` with one sentence: what a reader raises ValueError for, an unknown option, for which a
  similar one is suggested, and what ``__post_init__`` finds that does not go together.
* The first paragraph of the docstring is the help's description and the rest follows the options as it is. The help
  shows each default that its text does not speak of.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from kcoord_wire.kernel.net import parse_address, parse_port
from kcoord_wire.kernel.settings import suggestion


class UsageError(Exception):
    """The arguments do not go together: one line for the user, status 2."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command with the values of its options."""

    def run(self) -> None:
        """Do it."""
        raise NotImplementedError

    @classmethod
    def notes(cls) -> str:
        """Return what the help has at its end, beside the docstring."""
        return ""


class Option(NamedTuple):
    """How an option is shown.

    :ivar help: what it is for
    :ivar metavar: what its value is called; None derives it from the type or the name
    :ivar one_of: options of the same word exclude each other
    :ivar required: one of these has to be given
    :ivar section: heading of the help under which it stands
    :ivar formerly: an older name, which still works and is not shown
    """

    help: str
    metavar: str | None = None
    one_of: str = ""
    required: bool = False
    section: str = ""
    formerly: str = ""


class Argument(NamedTuple):
    """How a positional argument is shown."""

    metavar: str
    help: str = ""


C = TypeVar("C", bound=Command)
Reader: TypeAlias = Callable[[str], Any]


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises `UsageError` instead of ending the process."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog or None, formatter_class=_Help)

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the values; an option that does not exist goes before any other error."""
        known = self._option_string_actions
        for word in words:
            name = word.partition("=")[0]
            if word == "--":
                break
            if word.startswith("--") and " " not in word and not any(each.startswith(name) for each in known):
                options = [
                    each for each, action in known.items() if action.help != argparse.SUPPRESS and each[:2] == "--"
                ]
                self.error(f"there is no option {name}; {suggestion(name, options)}")
        return self.parse_args(words)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Wraps the description, and leaves the examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def parser_of(command: type[Command], prog: str, more: str = "") -> Parser:
    """Return the parser of a command's options.

    :param prog: the words before the options
    :param more: text for the end of the help
    """
    description, _, examples = inspect.cleandoc(command.__doc__ or "").partition("\n\n")
    epilog = "\n\n".join(filter(None, (examples, command.notes(), more)))
    parser = Parser(prog, " ".join(description.split()), epilog)
    hints = get_type_hints(command, include_extras=True)
    places: dict[str, Any] = {}
    for each in fields(command):
        _add(parser, places, each, hints[each.name])
    return parser


def read_command(command: type[C], prog: str, words: Sequence[str], more: str = "") -> C:
    """Return the command with the values of a command line. ``--help`` ends the process.

    :param prog, more: as in `parser_of`
    :raises UsageError: the words are not a command line of it
    """
    read = vars(parser_of(command, prog, more).read(words))
    given = {name: value for name, value in read.items() if value is not None}
    return command(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _add(parser: Parser, places: dict[str, Any], field: Field[Any], hint: Any) -> None:
    base, *marks = get_args(hint)
    (shown,) = (mark for mark in marks if isinstance(mark, Option | Argument))
    readers = [mark for mark in marks if mark is not shown]
    kind = _kind(Annotated[base, readers[0]] if readers else base)
    default = None if field.default is MISSING else field.default
    is_required = field.default is MISSING
    given = {"default": default, "help": _help(shown.help, default), "metavar": shown.metavar, **kind}
    if isinstance(shown, Argument):
        is_repeated = given.pop("action", "") == "append"
        number: dict[str, Any] = {} if is_required else {"nargs": "*" if is_repeated else "?"}
        parser.add_argument(field.name, **given, **number)
        return
    if shown.metavar is None:
        del given["metavar"]
    if given.get("action") == "append":
        given["default"] = None  # what is appended would join a tuple's default
    option = f"--{field.name.rstrip('_').replace('_', '-')}"
    _place(parser, places, shown).add_argument(option, dest=field.name, required=is_required, **given)
    if shown.formerly:
        parser.add_argument(shown.formerly, dest=field.name, **{**given, "help": argparse.SUPPRESS})


def _place(parser: Parser, places: dict[str, Any], shown: Option) -> Any:
    """Return the parser, or the group of options that exclude each other, or the section of the help."""
    name = shown.one_of or shown.section
    if name and name not in places:
        if shown.one_of:
            places[name] = parser.add_mutually_exclusive_group(required=shown.required)
        else:
            places[name] = parser.add_argument_group(name)
    return places.get(name, parser)


def _help(text: str, default: Any) -> str:
    is_plain = default is None or default is False or default in ((), "") or "default" in text
    return (text if is_plain else f"{text} (default: {default})".lstrip()).replace("%", "%%")


def _kind(hint: Any) -> dict[str, Any]:
    """Return what argparse is told of a type.

    :raises TypeError: it is a number without bounds, or of a kind that options do not have
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {"type": _argument(parts[1])}
    if origin in (Union, UnionType):
        (inner,) = (part for part in parts if part is not NoneType)
        return _kind(inner)
    if origin is tuple:
        return {"action": "append", **_kind(parts[0])}
    if origin is Literal:
        return {"choices": parts}
    if hint is bool:
        return {"action": "store_true"}
    if hint in (str, Path):
        return {"type": hint}
    raise TypeError(f"{hint} has no reader")


def _argument(read: Reader) -> Reader:
    """Return a reader whose ValueError becomes an error of usage with the same sentence."""

    def checked(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


# ---- readers


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a reader of whole numbers with bounds."""
    extent = f"from {least} up" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        if not text.isdecimal() or len(text) > 20 or not least <= int(text) <= (int(text) if most is None else most):
            raise ValueError(f"{text!r} is not a whole number {extent}")
        return int(text)

    return read


def decimal(what: str, allows: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a reader of numbers.

    :param what: those that are allowed, for the error
    """

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not allows(number):
            raise ValueError(f"{text!r} is not {what}")
        return number

    return read


def parse_setting(text: str) -> tuple[str, str]:
    """Name and value of ``NAME=VALUE``. ValueError: not of that form."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"{text!r} is not of the form NAME=VALUE")
    return name.strip(), value.strip()


def parse_endpoint(text: str) -> tuple[str, int]:
    """Host and port that clients connect to. ValueError: not of the form HOST:PORT, or port 0."""
    host, port = parse_address(text)
    if not host:
        raise ValueError(f"{text!r} is not of the form HOST:PORT")
    if port == 0:
        raise ValueError("clients cannot connect to port 0")
    return host, port


def parse_plot_path(text: str) -> Path:
    """A file for a plot. ValueError: its suffix is neither .svg nor .png."""
    path = Path(text)
    if path.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"{text!r} ends neither in .svg nor in .png")
    return path


def parse_size(text: str) -> int:
    """A number of bytes above 0, also with K, M or G (powers of 1024). ValueError: not one."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdecimal() or unit not in ("", "K", "M", "G") or not int(digits):
        raise ValueError(f"{text!r} is not a size such as 500000, 64K, 16M or 1G")
    return int(digits) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def parse_topics(text: str) -> list[tuple[str, int]]:
    """Names and numbers of ``NAME:PARTITIONS,...``. ValueError: not of that form, or without a partition."""
    topics = []
    for part in text.split(","):
        name, colon, count = part.strip().rpartition(":")
        if not colon or not name or not count.isdecimal():
            raise ValueError(f"{part!r} is not of the form NAME:PARTITIONS")
        if not int(count):
            raise ValueError(f"topic {name!r} needs one partition or more, not 0")
        topics.append((name, int(count)))
    return topics


def topics_of(given: Iterable[list[tuple[str, int]]]) -> dict[str, int]:
    """Return the topics of an option that may be repeated.

    :raises UsageError: one is given twice
    """
    topics: dict[str, int] = {}
    for name, count in (topic for each in given for topic in each):
        if name in topics:
            raise UsageError(f"--topics: {name!r} is given twice")
        topics[name] = count
    return topics


Positive: TypeAlias = Annotated[int, whole(1)]
Port: TypeAlias = Annotated[int, parse_port]
BrokerPort: TypeAlias = Annotated[int, whole(1, 0xFFFF)]
Seconds: TypeAlias = Annotated[float, decimal("a number of seconds above 0", lambda seconds: 0 < seconds < 1e9)]
Size: TypeAlias = Annotated[int, parse_size]
Topics: TypeAlias = Annotated[list[tuple[str, int]], parse_topics]
Endpoint: TypeAlias = Annotated[tuple[str, int], parse_endpoint]
PlotPath: TypeAlias = Annotated[Path, parse_plot_path]
Setting: TypeAlias = Annotated[tuple[str, str], parse_setting]
LONGEST_INTERVAL_S: Final = 86_400
Interval: TypeAlias = Annotated[int, whole(1, LONGEST_INTERVAL_S)]

Format: TypeAlias = Annotated[
    Literal["text", "json"], Option("text for people, or JSON for programs: an object a line")
]
CapturedPorts: TypeAlias = Annotated[
    tuple[BrokerPort, ...],
    Option("only this port of a broker, in captures; may be repeated; found in the bytes if not given"),
]
Groups: TypeAlias = Annotated[tuple[str, ...], Option("only this group; may be repeated", "ID")]
LogFormat: TypeAlias = Annotated[
    Literal["text", "json"],
    Option("of the log on stderr: text for people, or JSON for programs, an object a line", formerly="--log-format"),
]
Plots: TypeAlias = Annotated[tuple[PlotPath, ...], Option("write a plot as .svg or .png; may be repeated", "FILE")]
KafkaConfig: TypeAlias = Annotated[
    tuple[Setting, ...], Option("a setting of librdkafka, as in sasl.username=me; may be repeated", "NAME=VALUE")
]
