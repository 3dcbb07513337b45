"""Signals, the limit of open files, and the log of commands that run until a signal."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcoord_wire.central.broker import CentralBroker, RewriteBroker
from kcoord_wire.cli.process import JsonLines, allow_many_connections, log_to_stderr, until_terminated
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.recorder.proxy import Recorder


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
from kcoord_wire.central.broker import CentralBroker, RewriteBroker
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("server", "words"),
    [
        (Coordinator, ["serve", "--port", "0"]),
        (CentralBroker, ["central", "serve", "--zookeeper", "127.0.0.1:1", "--port", "0", "--broker-id", "1"]),
        (RewriteBroker, ["central", "serve", "--zookeeper", "127.0.0.1:1", "--design", "rewrite", "--broker-id", "1"]),
        (Recorder, ["record", "--upstream", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--out", "{tmp_path}"]),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_server_that_fails_ends_with_an_error(
    kcoord: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    server: type,
    words: list[str],
) -> None:
    async def fail(self: object, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        ready()
        raise KeyError("broken")

    monkeypatch.setattr(server, "_serve", fail)
    status, _, errors = kcoord(*(word.format(tmp_path=tmp_path / "out") for word in words))
    assert status == 1
    assert re.search(r"^kcoord: the \w+ has failed: KeyError\('broken'\)$", errors, re.MULTILINE)
