"""Kafka's own assignors, client-side and server-side, in one JVM that answers one group after the other."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.assignors.histories import Case, Given
from tests.support.kafka_broker import class_path, compile_java, java
from tests.support.processes import Process

_FOLDER: Final = Path(__file__).with_name("java")
CLIENT_SIDE: Final = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
SERVER_SIDE: Final = {"uniform": "ServerSide$Uniform", "range": "ServerSide$Range", "simple": "ServerSide$Simple"}


class RaisedInJava(Exception):
    """An exception of an assignor."""


class JavaAssignors:
    """The program tests/support/java/Assign.java on one version of Kafka, as a context manager.

    :param classes: an empty folder for what is compiled
    :param artifact: kafka-clients, or kafka-group-coordinator (4.0 and later), which has the server-side ones as well
    :param options: of the JVM, instead of those for a small one
    """

    def __init__(
        self, classes: Path, version: str, artifact: str = "kafka-clients", options: tuple[str, ...] = ()
    ) -> None:
        path = compile_java(_FOLDER / "Assign.java", classes, class_path(artifact, version))
        if artifact == "kafka-group-coordinator":
            path = compile_java(_FOLDER / "ServerSide.java", classes, path)
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        self.command = ["java", *options, "-cp", path, quiet, "Assign"] if options else java(path, quiet, "Assign")
        self._embedded = ConsumerProtocol()

    def __enter__(self) -> Self:
        self._process = Process(self.command)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.finish()

    def ask(self, question: dict[str, Any]) -> Any:
        """Send a line and return the answer; an AssertionError has the end of the JVM's log."""
        return json.loads(self._process.ask(json.dumps(question)))

    def assign(self, assignor: str, case: Case) -> Given:
        """Return what the class makes of a group: topic to numbers, ascending, by member.

        :raises RaisedInJava: it raises
        """
        answer = self.ask(
            {
                "assignor": assignor,
                "topics": {
                    topic: (case.racks.get(topic) or [[]] * count)[:count]
                    for topic, count in case.partitions_per_topic.items()
                },
                "members": {
                    member_id: {
                        "subscription": base64.b64encode(self._embedded.encode_subscription(member)).decode(),
                        "instance": member.instance_id,
                    }
                    for member_id, member in case.members.items()
                },
            }
        )
        if "raised" in answer:
            raise RaisedInJava(answer["raised"])
        return {m: {topic: sorted(numbers) for topic, numbers in has.items()} for m, has in answer.items()}
