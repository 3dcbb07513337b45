"""`kcoord serve` as a process, for scripts to play on."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.clients.life_cycle import Place
from tests.support.processes import Process


class Served(Process):
    """A coordinator in another process, with these topics; its log has to end without a warning or an error.

    :param topics: name -> partitions
    :param data_dir: where it keeps groups and offsets
    :param port: 0 takes a free one
    :param allowed: a regular expression of what it may warn of
    :param settings: of the groups, as NAME=VALUE, besides those for fast tests
    """

    def __init__(
        self,
        topics: dict[str, int],
        data_dir: Path,
        port: int = 0,
        *,
        allowed: str = r"\A\Z",
        settings: Sequence[str] = (),
    ) -> None:
        command = [str(Path(sys.executable).with_name("kcoord")), "serve", "--port", str(port)]
        command += ["--data-dir", str(data_dir)]
        command += ["--topics", ",".join(f"{name}:{partitions}" for name, partitions in topics.items())]
        command += ["--format", "json"]
        for setting in ("group.min.session.timeout.ms=1000", "group.initial.rebalance.delay.ms=200", *settings):
            command += ["--config", setting]
        self.topics = topics
        self._allowed = allowed
        super().__init__(command, ready=r"^kcoord serves on ([^,\s]+)")
        self.address = self.ready[1]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.returncode is not None:
            return
        try:
            status, _, _ = self.end()
        finally:
            self.kill()
        if error is None:
            assert status == 0
            complaints = [line for line in self.log if line["level"] not in ("info", "debug")]
            unexpected = [line for line in complaints if not re.search(self._allowed, line.get("text", ""))]
            assert not unexpected, unexpected

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of its log so far."""
        return [_parsed(line) for line in self.errors.splitlines(keepends=True) if line.endswith("\n")]

    def place(self, topic: str) -> Place:
        return Place(self.address, topic, group=f"{topic}-readers", partitions=self.topics[topic])

    def triggers(self, place: Place) -> list[str]:
        """What set off the rebalances of the place's group that have ended, by the log."""
        return [
            line["trigger"]
            for line in self.log
            if line.get("event") == "rebalance" and line["phase"] == "ended" and line["group"] == place.group
        ]


def _parsed(line: str) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = json.loads(line)
    except ValueError:  # a traceback, say
        return {"level": "error", "text": line}
    return parsed
