"""A worker of Kafka Connect in distributed mode, as a process that a test stops and kills."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kcoord_wire.zookeeper.ensemble import free_ports
from tests.support.clients.heard import PATIENCE, Heard
from tests.support.kafka_broker import class_path, java, log_file

_STOP_SECONDS = 30
_RESUBMIT_AFTER: Final = 0.5  # seconds; a worker refuses connectors while its group rebalances


@dataclass(frozen=True)
class TaskEvent:
    """A task of SequenceSource.java has started or stopped.

    :ivar at: by the monotonic clock, seconds
    :ivar does: ``starts`` or ``stops``
    :ivar next: the number that it would write next
    """

    at: float
    task: int
    does: str
    next: int


class ConnectWorker(Heard):
    """One worker, which is a member of its group with and without connectors.

    :param name: its client id
    :param folder: for its settings
    :param delay_ms: for how long the tasks of a worker that is lost wait for it
    :param connectors: the folder with the classes of connectors, if there are any
    :ivar events: of its tasks, in order
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        group: str,
        folder: Path,
        *,
        session_ms: int = 10_000,
        delay_ms: int = 1_000,
        connectors: Path | None = None,
    ) -> None:
        converter = "org.apache.kafka.connect.storage.StringConverter"
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "key.converter": converter,
            "value.converter": converter,
            "listeners": self._url,
            "session.timeout.ms": str(session_ms),
            "heartbeat.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": str(delay_ms),
            "offset.flush.interval.ms": "500",
        }
        for kind in "config", "offset", "status":
            settings[f"{kind}.storage.topic"] = f"{group}-{kind}"
            settings[f"{kind}.storage.replication.factor"] = "1"
        path = folder / f"{group}-{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        classes = [str(connectors)] if connectors else []
        command = java(os.pathsep.join([*classes, class_path("connect-runtime")]), main, str(path))
        self.events: list[TaskEvent] = []
        super().__init__(command, log=log_file(f"{group}-{name}"))

    @property
    def running(self) -> list[int]:
        """The tasks that it runs."""
        last = {event.task: event.does for event in list(self.events)}
        return sorted(task for task, does in last.items() if does == "starts")

    def submit(self, connector: str, settings: Mapping[str, str]) -> None:
        """Give the workers a connector, as soon as this one takes it."""
        url, body = f"{self._url}/connectors/{connector}/config", json.dumps(settings).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE):
                    return
            except OSError as error:  # refused, or an answer that is an error
                refusal = error.read().decode() if isinstance(error, urllib.error.HTTPError) else str(error)
                assert time.monotonic() < end, refusal
                time.sleep(_RESUBMIT_AFTER)

    def leave(self) -> None:
        """Stop it as an operator does; it leaves its group."""
        self.terminate(_STOP_SECONDS)

    def heed(self, event: dict[str, Any]) -> None:
        self.events.append(TaskEvent(at=time.monotonic(), **event))
