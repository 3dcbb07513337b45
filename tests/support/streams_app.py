"""Instances of a Kafka Streams application that counts words, and the verdict on its counts.

The program is tests/support/java/StreamsCount.java.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.clients.heard import PATIENCE, Heard
from tests.support.kafka_broker import KAFKA, class_path, compile_java, java, log_file

SESSION_MS: Final = 10_000
_SOURCE: Final = Path(__file__).with_name("java") / "StreamsCount.java"
_STOP_SECONDS: Final = 60


class Application:
    """The program with its settings, for as many instances as are started.

    :param classes: a folder for its classes
    :param folder: for the state of the instances
    :param guarantee: of ``processing.guarantee``
    :param partitions: of the topic of words
    :param name: its application.id; made of the guarantee if left out
    :param topics: of words and of counts; named after it if left out
    :param version: of Kafka Streams
    :param streams_protocol: whether its instances are members of a streams group (KIP-1071), whose settings are the
        broker's
    """

    def __init__(
        self,
        classes: Path,
        folder: Path,
        bootstrap: str,
        guarantee: str,
        partitions: int,
        *,
        name: str = "",
        topics: tuple[str, str] | None = None,
        session_ms: int = SESSION_MS,
        version: str = KAFKA,
        streams_protocol: bool = False,
    ) -> None:
        classes.mkdir()
        self._path = compile_java(_SOURCE, classes, class_path("kafka-streams", version))
        self._folder = folder
        self.name = name or f"counting-{guarantee.replace('_', '-')}"
        self.words, self.counts = topics or (f"{self.name}-words", f"{self.name}-counts")
        self.tasks = sorted(f"{topology}_{number}" for topology in (0, 1) for number in range(partitions))
        self._settings = {
            "application.id": self.name,
            "bootstrap.servers": bootstrap,
            "processing.guarantee": guarantee,
            "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
            "default.value.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
            "replication.factor": "1",
            "statestore.cache.max.bytes": "0",  # every count is written, so that a repeated one is seen
            "commit.interval.ms": "200",
            "auto.offset.reset": "earliest",
        }
        if streams_protocol:
            self._settings["group.protocol"] = "streams"
        else:
            classic = {"session.timeout.ms": str(session_ms), "heartbeat.interval.ms": "1000"}
            self._settings |= {"num.standby.replicas": "1", **classic}
        self._said = threading.Condition()

    def start(self, client: str, **more: str) -> Instance:
        """Start an instance; with a name that was there before it finds the state of that one.

        :param more: settings of this one
        """
        own = {"client.id": client, "state.dir": str(self._folder / self.name / client)}
        settings = {**self._settings, **own, **more}
        options = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "StreamsCount", self.words, self.counts]
        command = java(self._path, *options, *(f"{name}={value}" for name, value in settings.items()))
        return Instance(command, f"{self.name}-{client}", self._said)

    def settle(self, instances: Sequence[Instance]) -> None:
        """Wait until each task is active once, and the tasks with a store have a standby in another instance."""
        with self._said:
            settled = self._said.wait_for(lambda: self._is_settled(instances), 2 * PATIENCE)
        assert settled, "\n".join(f"{each.name}: {each.said}" for each in instances)

    def _is_settled(self, instances: Sequence[Instance]) -> bool:
        active = [task for each in instances for task in each.active]
        standby = [task for each in instances for task in each.standby if task not in each.active]
        stored = [task for task in self.tasks if task.startswith("1_")]
        return sorted(active) == self.tasks and set(standby) >= set(stored)


class Instance(Heard):
    """One process of the application.

    :ivar said: its state and tasks, as it wrote them last
    """

    def __init__(self, command: Sequence[str], name: str, news: threading.Condition) -> None:
        self.name = name
        self.said: dict[str, Any] = {}
        self.active: list[str] = []
        self.standby: list[str] = []
        super().__init__(command, news=news, log=log_file(name))

    def close(self) -> None:
        """Terminate it and wait until it has closed."""
        self.terminate(_STOP_SECONDS)

    def heed(self, event: dict[str, Any]) -> None:
        self.said, self.active, self.standby = event, event["active"], event["standby"]

    def heed_end(self) -> None:
        self.said, self.active, self.standby = {"ended": self.process.wait()}, [], []


# ---- the verdict

Counts = Mapping[str, Sequence[int]]
"""Word -> its counts, in the order in which they were written."""


def judge_exactly_once(produced: Counter[str], counts: Counts) -> list[str]:
    """What is wrong: each word has to be counted 1, 2, 3 and so on up to the number produced, and never twice."""
    return _judge(produced, counts, lambda word: list(counts.get(word, ())) == list(range(1, produced[word] + 1)))


def judge_at_least_once(produced: Counter[str], counts: Counts) -> list[str]:
    """What is wrong: no word may be lost; a crash may count some again."""
    return _judge(produced, counts, lambda word: max(counts.get(word, (0,))) >= produced[word])


def _judge(produced: Iterable[str], counts: Counts, is_right: Callable[[str], bool]) -> list[str]:
    problems = [f"{word} was never produced" for word in counts if word not in set(produced)]
    return problems + [f"{word}: {list(counts.get(word, ()))}" for word in produced if not is_right(word)]
