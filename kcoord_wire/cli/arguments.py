"""What the commands share on the way in: a command's parser, and the types of arguments.

Laws:

* A parser of an argument raises ValueError with one sentence; `argument` shows that sentence in argparse's form, with
  status 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from kcoord_wire.kernel.net import parse_address

T = TypeVar("T")


class UsageError(Exception):
    """The arguments do not go together: one line for the user, status 2."""


def add_command(
    commands: argparse._SubParsersAction[Any],
    name: str,
    about: str,
    run: Callable[[argparse.Namespace], None],
    *,
    examples: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command to those of `kcoord` and return its parser, for its arguments.

    :param about: what it does, as a sentence without a capital letter and a full stop
    :param run: called with the parsed arguments
    :param examples: printed below the help as it is
    """
    form = argparse.HelpFormatter if examples is None else argparse.RawDescriptionHelpFormatter
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=examples, formatter_class=form
    )
    command.set_defaults(run=run)
    return command


def add_settings_argument(command: argparse.ArgumentParser, option: str, about: str) -> None:
    """Add an option for settings of librdkafka; its value is a list of `parse_setting`.

    :param about: what they are for, after "a setting of librdkafka"
    """
    command.add_argument(
        option,
        action="append",
        default=[],
        type=argument(parse_setting),
        metavar="NAME=VALUE",
        help=f"a setting of librdkafka, {about}; may be repeated",
    )


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The type of an argument that `parse` reads: its ValueError becomes an error of usage."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


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


def parse_positive(text: str) -> int:
    """A whole number, at least 1. ValueError: not one."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def parse_size(text: str) -> int:
    """A number of bytes above 0, also with K, M or G (powers of 1024). ValueError: not one."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdecimal() or unit not in ("", "K", "M", "G") or not int(digits):
        raise ValueError(f"{text!r} is not a size such as 500000, 64K, 16M or 1G")
    return int(digits) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def parse_seconds(text: str) -> float:
    """Seconds above 0. ValueError: not a number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"{text!r} is not a number of seconds above 0")
    return seconds


def parse_topics(text: str) -> list[tuple[str, int]]:
    """Names and numbers of ``NAME:PARTITIONS,...``. ValueError: not of that form."""
    topics = []
    for part in text.split(","):
        name, colon, count = part.strip().rpartition(":")
        if not colon or not name or not count.isdecimal():
            raise ValueError(f"{part!r} is not of the form NAME:PARTITIONS")
        topics.append((name, int(count)))
    return topics


def topics_of(given: Iterable[list[tuple[str, int]]]) -> dict[str, int]:
    """The topics of an option that may be repeated. ValueError: one is given twice."""
    topics: dict[str, int] = {}
    for name, count in (topic for each in given for topic in each):
        if name in topics:
            raise ValueError(f"--topics: {name!r} is given twice")
        topics[name] = count
    return topics
