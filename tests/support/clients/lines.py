"""The line protocol between a test and a client program, and the program's side of it.

A client program is one process with one consumer and one producer of one client library. It is started with one
argument, a JSON object (`Settings`); it reads commands from standard input and writes events to standard output, each a
JSON object per line. What it writes to standard error is for people.

Commands, and the event that answers each (`event` is the command's name):

* ``{"do": "join"}``: start the consumer and poll until ``leave``. Answered at once.
* ``{"do": "produce", "records": [[partition, value], ...]}``: produce with all acknowledgements; answered with the same
  list as ``records: [[partition, offset, value], ...]`` when all have been acknowledged.
* ``{"do": "commit"}``: commit synchronously after the last record that was reported; answered with
  ``offsets: [[partition, offset], ...]``, only of partitions with a record reported since they were assigned. With
  ``offsets`` it commits just those, whatever the member owns.
* ``{"do": "subscribe", "topics": [...]}``: subscribe to these instead, or to none; partitions are reported without
  their topic then.
* ``{"do": "stall", "ms": n}``: do not poll for so long; answered when that is over. KafkaJS blocks its event loop with
  ``"blocks": true``; else its next message takes so long, and it answers at once.
* ``{"do": "pause", "partitions": [...]}``: fetch no more of these partitions; it polls on, and stays in the group.
* ``{"do": "poison", "partition": p, "offset": n}``: fail at this record: seek back to it whenever it comes.
* ``{"do": "pace", "ms": n}``: take so long for each record from now on.
* ``{"do": "linger", "ms": n}``: take so long to give partitions up from now on.
* ``{"do": "rebalance", "reason": ...}``: ask for a rebalance, where the library can do that.
* ``{"do": "leave"}``: close the consumer as the library closes it; answered when that is done.
* end of input: the program ends, closing nothing first.

Events at any time:

* ``{"event": "owns", "partitions": [...]}``: all partitions now owned, after every change that the library reports.
* ``{"event": "records", "records": [[partition, offset, value], ...]}``: polled, in order.
* ``{"event": "log", "level": "warning" | "error", "text": ...}``: what the library logged at that level or above, and
  the errors it passed to callbacks.

A command that fails is answered with ``{"event": "failed", "do": ..., "text": ...}``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

_writing = threading.Lock()
_RETRY_SECONDS = 0.3
"""After which an application tries again to process a record at which it failed."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a client program is started with.

    :ivar bootstrap: ``host:port``
    :ivar topic: its name; for confluent and Java also a pattern, which begins with ``^``
    :ivar assignor: ``range``, ``roundrobin``, ``sticky``, ``cooperative-sticky`` or the library's own name of one
    :ivar instance_id: makes the member a static one
    :ivar options: of the consumer, by the names that its library gives them, over all others; None takes one away
    """

    bootstrap: str
    topic: str
    group: str
    client_id: str
    assignor: str
    instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    rebalance_timeout_ms: int
    options: dict[str, Any] = field(default_factory=dict)

    def common(self, assignors: list[Any], **others: Any) -> dict[str, Any]:
        """The options that the libraries written in Python call alike."""
        return self.over(
            {
                "bootstrap_servers": self.bootstrap,
                "client_id": self.client_id,
                "group_id": self.group,
                "group_instance_id": self.instance_id,
                "partition_assignment_strategy": assignors,
                "session_timeout_ms": self.session_timeout_ms,
                "heartbeat_interval_ms": self.heartbeat_interval_ms,
                "auto_offset_reset": "earliest",
                "enable_auto_commit": False,
                **others,
            }
        )

    def over(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a consumer with those of the test over them."""
        return {name: value for name, value in {**options, **self.options}.items() if value is not None}


def emit(event: str, **fields: Any) -> None:
    """Write an event."""
    line = json.dumps({"event": event, **fields}) + "\n"
    with _writing:
        sys.stdout.write(line)
        sys.stdout.flush()


def complain(text: str) -> None:
    """Report an error that did not come through logging."""
    emit("log", level="error", text=text)


class Member(ABC):
    """A client library's consumer and producer behind the commands: made when the program starts."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.owned: set[int] = set()
        self._next: dict[int, int] = {}
        self._changing = threading.Lock()  # a library may call back in another thread
        self._poison: tuple[int, int] | None = None
        self._pace = 0.0
        self._linger = 0.0

    def own(self, partitions: set[int]) -> None:
        """Report that the partitions owned are now these."""
        with self._changing:
            self._next = {partition: offset for partition, offset in self._next.items() if partition in partitions}
            self.owned = partitions
            emit("owns", partitions=sorted(partitions))

    def gain(self, partitions: Iterable[Any]) -> None:
        """Report that it owns these as well; each has its number as `partition`."""
        self.own(self.owned | {each.partition for each in partitions})

    def lose(self, partitions: Iterable[Any]) -> None:
        """Report that it does not own these any more."""
        time.sleep(self._linger)
        self.own(self.owned - {each.partition for each in partitions})

    @abstractmethod
    def join(self) -> None:
        """Start the consumer."""

    @abstractmethod
    def poll(self) -> list[tuple[int, int, str]]:
        """What has come within some hundredths of a second: partition, offset and value of each record."""

    @abstractmethod
    def commit(self, positions: list[tuple[int, int]]) -> None:
        """Commit these offsets, each with its partition before it."""

    @abstractmethod
    def leave(self) -> None:
        """Close the consumer."""

    @abstractmethod
    def produce(self, records: list[tuple[int, str]]) -> list[int]:
        """Produce values, each with its partition before it; give their offsets."""

    @abstractmethod
    def subscribe(self, topics: list[str]) -> None:
        """Subscribe to these topics instead; to none at all where there are none."""

    def stall(self, seconds: float) -> None:
        """Do not poll for so long; what the library does by itself goes on."""
        time.sleep(seconds)

    def pause(self, partitions: list[int]) -> None:
        """Fetch no more of these partitions of its topic."""
        raise NotImplementedError("no test pauses a member of this library")

    def seek(self, partition: int, offset: int) -> None:
        """Read a partition from this offset on."""
        raise NotImplementedError("no test has a member of this library seek")

    def rebalance(self, reason: str) -> None:
        """Ask for a rebalance."""
        raise NotImplementedError("this library cannot be asked for a rebalance")

    def answer(self, do: str, command: dict[str, Any]) -> dict[str, Any]:
        """Do what a command says and give the fields of its answer."""
        match do:
            case "join":
                self.join()
            case "leave":
                self.leave()
            case "commit":
                chosen = [(partition, offset) for partition, offset in command.get("offsets", ())]
                positions = chosen or sorted(self._next.items())
                if positions:
                    self.commit(positions)
                return {"offsets": positions}
            case "subscribe":
                self.subscribe(command["topics"])
            case "stall":
                self.stall(command["ms"] / 1000)
            case "pause":
                self.pause(command["partitions"])
            case "poison":
                self._poison = command["partition"], command["offset"]
            case "pace":
                self._pace = command["ms"] / 1000
            case "linger":
                self._linger = command["ms"] / 1000
            case "rebalance":
                self.rebalance(command["reason"])
            case "produce":
                offsets = self.produce(command["records"])
                pairs = zip(command["records"], offsets, strict=True)
                return {"records": [(partition, offset, value) for (partition, value), offset in pairs]}
        return {}

    def look(self) -> None:
        """Poll, and report what has come."""
        polled = self._process(self.poll())
        if polled:
            with self._changing:
                following = {partition: offset + 1 for partition, offset, _ in polled}
                self._next.update({partition: following[partition] for partition in following.keys() & self.owned})
                emit("records", records=polled)

    def _process(self, polled: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
        """The records that the application has dealt with, after the time that it takes for them."""
        if self._pace and polled:
            self.stall(self._pace * len(polled))
        if self._poison is None:
            return polled
        partition, offset = self._poison
        if any(record[0] == partition and record[1] >= offset for record in polled):
            self.stall(_RETRY_SECONDS)
            self.seek(partition, offset)
        return [record for record in polled if record[0] != partition or record[1] < offset]


class AsyncMember(Member):
    """A member on an event loop, which runs while a command is served and while it polls; it polls all the time."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.runner = asyncio.Runner()

    def join(self) -> None:
        self.runner.run(self.start())

    @abstractmethod
    async def start(self) -> None:
        """Start the consumer."""

    def stall(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))


def slow(assignor: Any) -> Any:
    """The assignor, asking another service first, which takes its time."""

    def assign(cls: Any, *arguments: Any) -> Any:
        time.sleep(5)
        return assignor.assign(*arguments)

    return type("Slow", (assignor,), {"assign": classmethod(assign)})


def serve(make: Callable[[Settings], Member]) -> None:
    """Serve the commands until the end of input."""

    class Teller(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            level = "warning" if record.levelno < logging.ERROR else "error"
            emit("log", level=level, text=f"{record.name}: {record.getMessage()}")

    logging.basicConfig(level=logging.WARNING, handlers=[Teller()])
    waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            waiting.put(json.loads(line))
        waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    member = make(Settings(**json.loads(sys.argv[1])))
    joined = False
    while True:
        try:
            command = waiting.get(block=not joined)
        except queue.Empty:
            member.look()
            continue
        if command is None:
            os._exit(0)
        do = command["do"]
        try:
            answer = member.answer(do, command)
        except Exception as error:
            emit("failed", do=do, text=repr(error))
        else:
            joined = (joined or do == "join") and do != "leave"
            emit(do, **answer)
