"""`kcoord serve` as a process, for scripts to play on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.clients.heard import ROOT
from tests.support.clients.life_cycle import Place


class Served:
    """A coordinator in another process, with these topics; its log has to end without a warning or an error.

    :param topics: name -> partitions
    :param data_dir: where it keeps groups and offsets
    :param port: 0 takes a free one
    :param allowed: a regular expression of what it may warn of
    :ivar log: the lines of its log so far
    """

    def __init__(self, topics: dict[str, int], data_dir: Path, port: int = 0, *, allowed: str = r"\A\Z") -> None:
        command = [str(Path(sys.executable).with_name("kcoord")), "serve", "--port", str(port)]
        command += ["--data-dir", str(data_dir)]
        command += ["--topics", ",".join(f"{name}:{partitions}" for name, partitions in topics.items())]
        command += ["--log-format", "json"]
        for setting in "group.min.session.timeout.ms=1000", "group.initial.rebalance.delay.ms=200":
            command += ["--config", setting]
        self.topics = topics
        self._allowed = allowed
        self.log: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._process.stdout is not None
        serves = self._process.stdout.readline()  # the empty string if it ends before
        if not serves.startswith("kcoord serves on "):
            self.kill()
            raise AssertionError(f"kcoord does not serve: {serves} {self.log}")
        self.address = serves.removeprefix("kcoord serves on ").split(",")[0].strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._close()
        if error is None:
            assert self._process.returncode == 0
            complaints = [line for line in self.log if line["level"] not in ("info", "debug")]
            unexpected = [line for line in complaints if not re.search(self._allowed, line.get("text", ""))]
            assert not unexpected, unexpected

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def kill(self) -> None:
        """End the process by SIGKILL and reap it."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join(30)
        for pipe in self._process.stdout, self._process.stderr:
            assert pipe is not None
            pipe.close()

    def place(self, topic: str) -> Place:
        return Place(self.address, topic, group=f"{topic}-readers", partitions=self.topics[topic])

    def triggers(self, place: Place) -> list[str]:
        """What set off the rebalances of the place's group that have ended, by the log."""
        return [
            line["trigger"]
            for line in list(self.log)
            if line.get("event") == "rebalance" and line["phase"] == "ended" and line["group"] == place.group
        ]

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            try:
                self.log.append(json.loads(line))
            except ValueError:  # a traceback, say
                self.log.append({"level": "error", "text": line})
