"""Signals, the limit of open files, and the log of commands that run until a signal."""

from __future__ import annotations

import json
import logging
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcoord_wire.cli.process import JsonLines, allow_many_connections, log_to_stderr, until_terminated


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the handlers of both signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_sigterm_ends_the_block_quietly() -> None:
    steps = []
    with until_terminated():
        steps.append("before")
        signal.raise_signal(signal.SIGTERM)
        steps.append("after")
    assert steps == ["before"]
    assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGINT) == signal.SIG_DFL


def test_a_hundred_thousand_new_objects_are_not_walked() -> None:
    """In a process of its own, because the setting is for a process."""
    script = """
import gc
from kcoord_wire.cli.process import relax_gc
def full_collections(): return gc.get_stats()[2]["collections"]
before = full_collections()
kept = [[] for _ in range(100_000)]
with_defaults = full_collections() - before
relax_gc()
before = full_collections()
kept += [[] for _ in range(300_000)]
print(with_defaults > 0, full_collections() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "True 0\n"


def test_other_exceptions_leave_the_block() -> None:
    with pytest.raises(KeyboardInterrupt), until_terminated():
        raise KeyboardInterrupt


def test_the_limit_of_open_files_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        allow_many_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_log_is_written_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("kcoord_wire")
    before = log.level
    log_to_stderr(logging.Formatter("%(levelname)s %(message)s"))
    try:
        logging.getLogger("kcoord_wire.part").info("ready")
    finally:
        log.removeHandler(log.handlers[-1])
        log.setLevel(before)
    assert capsys.readouterr() == ("", "INFO ready\n")


def test_json_lines_have_the_facts_of_a_note_or_the_text() -> None:
    record = logging.makeLogRecord(
        {"levelno": 20, "levelname": "INFO", "created": 1.5, "msg": "elected epoch=%d", "args": (3,)}
    )
    line = {"time": 1500, "level": "info"}
    assert json.loads(JsonLines().format(record)) == line | {"event": "log", "text": "elected epoch=3"}
    record.what, record.facts = "elected", {"epoch": 3, "path": Path("x")}
    assert json.loads(JsonLines().format(record)) == line | {"event": "elected", "epoch": 3, "path": "x"}
