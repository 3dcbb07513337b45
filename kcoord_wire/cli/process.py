"""What the commands share that run until a signal: signals, the limit of open files, garbage, certificates, a log on
stderr.

Laws:

* SIGTERM ends the block of `until_terminated` in the same order as Ctrl-C; from then on either signal kills at once.
* An interrupt (Ctrl-C) of a block of `saying_what_is_kept` says where to find what the command has written.
* After `stop_on_signals` the first of both signals stops, and the second kills at once.
"""

from __future__ import annotations

import gc
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from kcoord_wire.cli.output import complain

if TYPE_CHECKING:
    import ssl

COLLECTED_AFTER = (200_000, 5, 1)  # new objects, young collections, and collections before a full one


class _Terminated(BaseException):
    """SIGTERM was received."""


@contextmanager
def until_terminated() -> Iterator[None]:
    """Run a block that SIGTERM ends without an error."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except _Terminated:
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def saying_what_is_kept(what: Callable[[], str]) -> Iterator[None]:
    """Say on stderr what an interrupt of the block has left on disk.

    :param what: returns the sentence; empty for nothing
    """
    try:
        yield
    except KeyboardInterrupt:
        if sentence := what():
            complain(sentence)
        raise


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated


def stop_on_signals(stop: Callable[[], object], meanwhile: str) -> list[int]:
    """Let the first signal stop and the second kill; return the list to which the first one is added.

    :param meanwhile: what happens before the process ends, for stderr
    """
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        stop()
        with suppress(OSError):  # stderr may be a pipe that is closed
            print(f"{meanwhile}; a second signal kills", file=sys.stderr, flush=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return received


def allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one.

    A connection is one open file, through a proxy two, and the soft limit is 1024 on many systems.
    """
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def relax_gc() -> None:
    """Let Python's garbage collector walk all objects after two million new ones.

    It does so when there are a quarter more, by default: twice while a group of 20,000 members joins, 100 ms each time,
    for which every client waits. Few objects need it, because connections and timers leave no cycles behind. What is
    new is looked at every 200,000 objects: requests that wait for a rebalance are answered before, and walking them
    took a twelfth of a rebalance of 4,000 members.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)


@contextmanager
def named_host(option: str) -> Iterator[None]:
    """Name the option whose host is unknown.

    :raises ValueError: the block has met such a host
    """
    import socket

    try:
        yield
    except socket.gaierror as error:
        raise ValueError(f"{option}: {error.strerror}") from error


def require_files(*paths: Path | None) -> None:
    """Raise OSError for a file that cannot be read, with its name, which the errors of ssl do not have."""
    for path in filter(None, paths):
        path.open("rb").close()


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Load a certificate chain and its key, which is in the same file if it has none of its own.

    :raises ValueError: they are not PEM, or do not belong together
    """
    import ssl

    try:
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise ValueError(f"{certificate}: not a certificate with its key: {error}") from None


def log_to_stderr(form: logging.Formatter | None = None) -> None:
    """Write the package's log to stderr, by default as lines for people."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(form or logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("kcoord_wire")
    log.addHandler(handler)
    log.setLevel(logging.INFO)


class JsonLines(logging.Formatter):
    """A log line as a JSON object: its time in milliseconds, its level, and `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        what = {"time": round(record.created * 1000), "level": record.levelname.lower()}
        return json.dumps(what | self.fields(record), default=str)

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """The event and the facts of a line that has them, else its text."""
        facts = getattr(record, "facts", None)
        if facts is None:
            return {"event": "log", "text": super().format(record)}
        return {"event": getattr(record, "what", record.getMessage()), **facts}
