"""Brokers and consumers of the draft as processes, as users start them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

SECONDS = 90.0


def heed_interrupts() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, and their children with them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Program:
    """A module that runs as a process; it can be started again when it has ended.

    :param command: the module and its arguments
    :param out: file for its stdout; what it prints is added
    :param log: likewise, for its stderr
    """

    def __init__(self, command: Sequence[str], out: Path, log: Path) -> None:
        self.log_path = log
        self._command = [sys.executable, "-m", *command]
        self._out = out
        self._process: subprocess.Popen[bytes] | None = None
        self._is_wanted = False

    def start(self) -> None:
        self._is_wanted = True
        with self._out.open("ab") as out, self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, preexec_fn=heed_interrupts
            )

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_died(self) -> bool:
        """Whether it has ended without `end` or `kill`."""
        return self._is_wanted and not self.is_running

    @property
    def out(self) -> str:
        """What it has printed on stdout."""
        return self._out.read_text(errors="replace")

    @property
    def log(self) -> str:
        """What it has printed on stderr."""
        return self.log_path.read_text(errors="replace")

    def send(self, number: int) -> None:
        """Send it a signal; after SIGSTOP, which must find it running, wait until every thread of it has stopped."""
        self._started.send_signal(number)
        if number == signal.SIGSTOP:  # until its first thread has taken the signal, the others go on
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait(self) -> int:
        """Wait until it has ended, and return its status."""
        return self._started.wait(SECONDS)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal, wait until it has ended, and return its status."""
        self._is_wanted = False
        self.send(number)
        return self.wait()

    def kill(self) -> None:
        """End it at once; a second call does nothing."""
        self._is_wanted = False
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Process(Program):
    """A `kcoord` command that runs while it is entered; its stdout and stderr go to files, so that it is never held up.

    :param arguments: after ``kcoord``
    """

    def __init__(self, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        out, log = (Path(self._folder.name) / name for name in ("out", "log"))
        super().__init__(["kcoord_wire", *arguments], out, log)
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self._folder.cleanup()

    def wait_for(self, pattern: str, seconds: float = SECONDS) -> re.Match[str]:
        """Wait until its output, stdout or stderr, has what the pattern finds.

        :raises TimeoutError: it has not in time, or has ended without it
        """
        until = time.monotonic() + seconds
        while True:
            is_running = self.is_running
            found = re.search(pattern, self.out) or re.search(pattern, self.log)
            if found is not None:
                return found
            if not is_running or time.monotonic() > until:
                raise TimeoutError(f"no {pattern!r} in {self.out!r} and {self.log!r}")
            time.sleep(0.02)


class BrokerProcess(Process):
    """``kcoord central serve`` on a free port, unless the options say another, once it is registered.

    :ivar address: from its line
    :ivar zookeeper: likewise
    """

    def __init__(self, zookeeper: str, broker_id: int, *options: str) -> None:
        self._is_embedded = zookeeper == "embedded"
        port = () if "--port" in options else ("--port", "0")
        super().__init__("central", "serve", "--zookeeper", zookeeper, "--broker-id", str(broker_id), *port, *options)
        try:
            ready = self.wait_for(r"kcoord central serves on (\S+), ZooKeeper at (\S+)\n")
        except BaseException:
            self.kill()
            raise
        self.address, self.zookeeper = ready[1], ready[2]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._is_embedded and self.is_running:  # killed, it would leave its ZooKeeper behind
                self.end()
        finally:
            super().__exit__(kind, error, at)
