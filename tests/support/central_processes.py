"""Brokers and consumers of the draft as processes, as users start them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["BrokerProcess", "Process"]

SECONDS = 60.0


def heed_interrupts() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, and their children with them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Process:
    """A `kcoord` command; its stdout and stderr go to files, so that it is never held up.

    :param arguments: after ``kcoord``
    :ivar pid: of the process
    """

    def __init__(self, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._out, self._log = (Path(self._folder.name) / name for name in ("out", "log"))
        command = [sys.executable, "-m", "kcoord_wire", *arguments]
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, preexec_fn=heed_interrupts
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self._folder.cleanup()

    @property
    def out(self) -> str:
        """What it has printed on stdout."""
        return self._out.read_text(errors="replace")

    @property
    def log(self) -> str:
        """What it has printed on stderr."""
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

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

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal, wait until it has ended, and return its status."""
        self.send(number)
        return self._process.wait(SECONDS)

    def kill(self) -> None:
        """End it at once; a second call does nothing."""
        self._process.kill()
        self._process.wait()


class BrokerProcess(Process):
    """``kcoord central serve`` on a free port, unless the options say another, once it is registered.

    :ivar address: from its line
    :ivar zookeeper: likewise
    """

    def __init__(self, zookeeper: str, broker_id: int, *options: str) -> None:
        port = () if "--port" in options else ("--port", "0")
        super().__init__("central", "serve", "--zookeeper", zookeeper, "--broker-id", str(broker_id), *port, *options)
        try:
            ready = self.wait_for(r"kcoord central serves on (\S+), ZooKeeper at (\S+)\n")
        except BaseException:
            self.kill()
            raise
        self.address, self.zookeeper = ready[1], ready[2]
