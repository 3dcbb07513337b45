"""A worker of Kafka Connect in distributed mode, as a process that a test stops and kills."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.kafka_broker import class_path, java, log_file

__all__ = ["ConnectWorker"]

_STOP_SECONDS = 30


class ConnectWorker:
    """One worker without connectors, which is a member of its group all the same.

    :param name: its client id
    :param folder: for its settings
    """

    def __init__(self, name: str, bootstrap: str, group: str, folder: Path, *, session_ms: int = 10_000) -> None:
        converter = "org.apache.kafka.connect.storage.StringConverter"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "key.converter": converter,
            "value.converter": converter,
            "listeners": "http://127.0.0.1:0",
            "session.timeout.ms": str(session_ms),
            "heartbeat.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": "1000",
        }
        for kind in "config", "offset", "status":
            settings[f"{kind}.storage.topic"] = f"{group}-{kind}"
            settings[f"{kind}.storage.replication.factor"] = "1"
        path = folder / f"{group}-{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        with log_file(f"{group}-{name}").open("wb") as log:
            command = java(class_path("connect-runtime"), main, str(path))
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def leave(self) -> None:
        """Stop it as an operator does; it leaves its group."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_STOP_SECONDS)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()
