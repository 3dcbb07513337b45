"""A program that writes a line of JSON for each event, as a process that a test reads, stops and kills."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.processes import Process

PATIENCE = 90.0  # seconds: far more than anything takes, for a machine that is busy with other things


class Heard(Process):
    """One process. As a context manager it is killed at the end of the block, if it still runs.

    :param news: told of each event, and of the end; several processes may share one
    :param log: for its stderr, added at the end
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        news: threading.Condition | None = None,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(command, log=log, environment=environment)
        self._news = news or threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def heed(self, event: Any) -> None:
        """Take note of what it wrote; the lock of `news` is held."""
        raise NotImplementedError

    def heed_end(self) -> None:
        """Take note that it writes no more; the lock of `news` is held."""

    def terminate(self, seconds: float) -> None:
        """Terminate it, as an operator does, and wait until it has ended."""
        self.process.terminate()
        self.process.wait(seconds)

    def kill(self) -> None:
        """End it by SIGKILL and reap it: nothing of it is sent to anyone."""
        self.process.kill()
        self._reader.join(PATIENCE)
        super().kill()

    def _read(self) -> None:
        for line in self.process.stdout:
            event = json.loads(line)
            with self._news:
                self.heed(event)
                self._news.notify_all()
        with self._news:
            self.heed_end()
            self._news.notify_all()
