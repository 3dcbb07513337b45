"""The command `kcoord`, run in this process."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator

import pytest

from kcoord_wire.cli.main import main


@pytest.fixture(autouse=True)
def log_handlers() -> Iterator[None]:
    """Remove the handlers that the command has added in this process."""
    log = logging.getLogger("kcoord_wire")
    before, level = list(log.handlers), log.level
    yield
    log.handlers[:] = before
    log.setLevel(level)


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Restore the handlers that the command has replaced in this process."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture
def kcoord(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command and return its status, stdout and stderr."""

    def run(*argv: str) -> tuple[int, str, str]:
        status = main(argv)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
