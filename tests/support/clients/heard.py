"""A program that writes a line of JSON for each event, as a process that a test reads, stops and kills."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).parents[3]
PATIENCE = 90.0  # seconds: far more than anything takes, for a machine that is busy with other things


class Heard:
    """One process. As a context manager it is killed at the end of the block, if it still runs.

    :param news: told of each event, and of the end; several processes may share one
    :param stdin: as of `subprocess.Popen`
    :param log: for its stderr, added at the end; that of this process if left out
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        news: threading.Condition | None = None,
        stdin: int = subprocess.DEVNULL,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._news = news or threading.Condition()
        stderr: IO[bytes] | None = log.open("ab") if log else None
        self._process = subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT, env=environment
        )
        if stderr:
            stderr.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def heed(self, event: dict[str, Any]) -> None:
        """Take note of what it wrote; the lock of `news` is held."""
        raise NotImplementedError

    def heed_end(self) -> None:
        """Take note that it writes no more; the lock of `news` is held."""

    def stop(self) -> None:
        """Stop the process by SIGSTOP, as a virtual machine does that is moved, or a debugger."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        self._process.send_signal(signal.SIGCONT)

    def end(self, seconds: float) -> None:
        """Terminate it, as an operator does, and wait until it has ended."""
        self._process.terminate()
        self._process.wait(seconds)

    def kill(self) -> None:
        """End the process by SIGKILL and reap it: nothing of it is sent to anyone."""
        self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE)
        for pipe in self._process.stdin, self._process.stdout:
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self._news:
                self.heed(event)
                self._news.notify_all()
        with self._news:
            self.heed_end()
            self._news.notify_all()
