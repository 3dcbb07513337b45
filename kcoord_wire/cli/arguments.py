"""What programs share that serve until a signal comes: addresses as arguments, signals, open files, a log on stderr.

Laws:

* SIGTERM ends `until_terminated`'s block as Ctrl-C does any; from then on either signal ends the process at once.
* What is wrong with an argument is said in argparse's form, with status 2.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, TypeVar

from kcoord_wire.net import parse_address, parse_port

__all__ = [
    "allow_many_connections",
    "argument",
    "log_to_stderr",
    "parse_address",
    "parse_port",
    "until_terminated",
]

T = TypeVar("T")


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """As the type of an argument: what `parse` says in its ValueError is told to the user."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


class _Terminated(BaseException):
    """SIGTERM has come."""


@contextmanager
def until_terminated() -> Iterator[None]:
    """A block that SIGTERM ends quietly."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except _Terminated:
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated


def allow_many_connections() -> None:
    """A connection is an open file, through a proxy two; and the soft limit of these is 1024 on many systems."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def log_to_stderr(form: logging.Formatter | None = None) -> None:
    """Have the package's log on stderr, by default as lines for people."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(form or logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("kcoord_wire")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
