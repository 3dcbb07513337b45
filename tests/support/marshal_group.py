"""A group of consumer processes on a real broker, its input and its faults: what the judged tests run."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer

from kcoord_wire.marshal.member_events import Delivery
from tests.support.central_processes import Program
from tests.support.marshal_judge import ClaimRules, Output, Processed

SECONDS = 90.0
_RELEASED = re.compile(r"tenure ended .* partition=(\d+) token=(\d+) why=released")


class ConsumerGroup:
    """Processes that consume one topic.

    :param folder: for their logs
    :param output: topic with one partition
    :param settings: of every consumer, as JSON has them
    """

    def __init__(
        self,
        brokers: str,
        folder: Path,
        *,
        topic: str,
        output: str,
        delivery: Delivery,
        partitions: int,
        **settings: Any,
    ) -> None:
        self.brokers = brokers
        self.topic = topic
        self.output = output
        self.delivery = delivery
        self.partitions = partitions
        self.members: dict[str, Program] = {}
        self._folder = folder
        self._output = Output(brokers, output)
        self._settings = {"greedy": True, "pass_ms": 300, "rules": "document", "drain_ms": 1_000} | settings
        self._interval_ms = int(self._settings["heartbeat_interval_ms"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for member in self.members.values():
            if member.is_running:
                member.kill()
        self._output.close()

    def start(self, client: str) -> Program:
        """Start a consumer, or start it again."""
        settings = self._settings | {
            "brokers": self.brokers,
            "output": self.output,
            "group_id": f"{self.topic}.group",
            "client_id": client,
            "topics": [self.topic],
            "delivery": self.delivery,
        }
        paths = [self._folder / f"{self.topic}-{client}.{kind}" for kind in ("out", "log")]
        self.members[client] = Program(["tests.support.marshal_consumer", json.dumps(settings)], *paths)
        self.members[client].start()
        return self.members[client]

    @contextmanager
    def stopped(self, client: str) -> Iterator[None]:
        """Stop a process (SIGSTOP) during the block."""
        self.members[client].send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.members[client].send(signal.SIGCONT)

    def end_in_order(self, clients: set[str]) -> tuple[str, set[tuple[int, int]]]:
        """End the one of these consumers that has processed last by SIGTERM; return it, with partition and token of the
        tenures that it released then.

        If a machine that stood still has ended all its tenures before, start it again, and end another one.
        """
        until = time.monotonic() + SECONDS
        while True:
            client = next(row.client for row in reversed(self.rows()) if row.client in clients)
            begun = len(self.members[client].log)
            assert self.members[client].end(signal.SIGTERM) == 0, self.members[client].log
            released = _RELEASED.findall(self.members[client].log, begun)
            if released:
                return client, {(int(partition), int(token)) for partition, token in released}
            assert time.monotonic() < until, f"{client} released nothing\n{self.logs()}"
            self.start(client)

    def rows(self) -> list[Processed]:
        """Return the output so far."""
        return self._output.read()

    def wait_until_all_are_held(self, clients: set[str]) -> list[str]:
        """Wait until these consumers have processed records of all partitions since now, and no others did; return
        those that have."""
        seen = len(self._output.read())
        until = time.monotonic() + SECONDS
        while True:
            held = {row.partition: row.client for row in self._output.read()[seen:]}
            if len(held) == self.partitions and set(held.values()) <= clients:
                return sorted(set(held.values()))
            assert time.monotonic() < until, f"{len(held)} partitions of {self.topic} are consumed\n{self.logs()}"
            self._check()
            time.sleep(0.05)

    def verdict(self) -> ClaimRules:
        """Wait until the last record of every partition is processed, and judge."""
        ends = self._output.ends(self.topic, self.partitions)
        until = time.monotonic() + SECONDS
        while True:
            judge = ClaimRules(self._output.read(), ends)
            if all(judge.times[partition, end - 1] for partition, end in enumerate(ends)):
                return judge
            assert time.monotonic() < until, f"{judge.summary()}\n{self.logs()}"
            self._check()
            time.sleep(0.2)

    def check(self, judge: ClaimRules) -> None:
        """Fail if a law is broken."""
        unlawful = judge.unlawful(self._interval_ms, at_most_once=self.delivery is Delivery.AT_MOST_ONCE)
        assert not unlawful, "\n".join([*unlawful[:20], judge.summary(), self.logs()])

    def logs(self) -> str:
        """Return the ends of the consumers' logs."""
        return "\n".join(f"--- {client}\n{member.log[-3000:]}" for client, member in self.members.items())

    def _check(self) -> None:
        died = [client for client, member in self.members.items() if member.has_died]
        assert not died, f"{died} have died\n{self.logs()}"


@contextmanager
def feeding(brokers: str, topic: str, partitions: int, rate: int) -> Iterator[None]:
    """Append records to all partitions in turn during the block, so many a second in all."""
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 5})
    ended = threading.Event()

    def feed() -> None:
        began, sent = time.monotonic(), 0
        while not ended.wait(0.02):
            while sent < (time.monotonic() - began) * rate:
                producer.produce(topic, value=str(sent), partition=sent % partitions)
                sent += 1
            producer.poll(0)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for partition in range(partitions):  # the last record of each, behind all faults
            producer.produce(topic, value="last", partition=partition)
        assert producer.flush(SECONDS) == 0
