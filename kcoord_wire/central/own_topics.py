"""The topics that a broker serves, as it announces them in ZooKeeper, and the clock of their records.

Laws:

* `/brokers/topics/[topic]/[broker]` has the number of partitions of each topic at this broker. It grows and never
  shrinks ("It is currently not possible to reduce the number of partitions for a topic", section 2).
* The records of all brokers are the same: their rate, and the instant since which they grow, are those of the first
  broker that came, kept in `/brokers/records`.
* What could not be written because the connection was lost is tried again.

Source: "the 0.8 consumer-coordinator draft", sections 2 and 6; the layout of Kafka 0.7.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from kcoord_wire.central.draft.topic_count import LONGEST_TOPIC, is_topic_name
from kcoord_wire.central.draft.watches import MOST_PARTITIONS
from kcoord_wire.kernel.machines import Noted
from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.zookeeper.layout import ROOTS, parse_object, topic_path
from kcoord_wire.zookeeper.model import Create, Node, Outcome, Read, Replied, SessionChanged, SessionState, SetData
from kcoord_wire.zookeeper.procedures import RETRY_MS, RegistryError, ZooKeeperProcedures, create_missing

RECORDS: Final = "/brokers/records"
_MOST_ID: Final = (1 << 31) - 1  # int32 in messages


@dataclass(frozen=True, slots=True)
class RecordClock:
    """How the generated records grow.

    :ivar since_ms: of the epoch: the instant of the first record
    :ivar rate: records a second of each partition
    """

    since_ms: int
    rate: float

    def encode(self) -> bytes:
        """Return it as the data of its node."""
        return json.dumps({"since_ms": self.since_ms, "rate": self.rate}).encode()


def parse_record_clock(data: bytes) -> RecordClock:
    """Return the clock in a node's data.

    :raises ValueError: it is none
    """
    value = parse_object(data, "a clock of records")
    if not isinstance(value.get("since_ms"), int):
        raise ValueError(f"not a clock of records: {data!r}")
    rate = value.get("rate")
    if not isinstance(rate, int | float) or isinstance(rate, bool) or rate < 0:
        raise ValueError(f"not a clock of records: {data!r}")
    return RecordClock(value["since_ms"], rate)


def check_broker(broker_id: int, topics: Mapping[str, int]) -> None:
    """Check what a broker would register itself and its topics with.

    :raises ValueError: other brokers and consumers could not use it
    """
    if not 0 <= broker_id <= _MOST_ID:
        raise ValueError(f"a broker id is 0 to {_MOST_ID}, not {broker_id}")
    for topic, partitions in topics.items():
        if not is_topic_name(topic):
            raise ValueError(f"not a topic: {topic[:LONGEST_TOPIC]!r}")
        if not 0 < partitions <= MOST_PARTITIONS:
            raise ValueError(f"{topic!r} has 1 to {MOST_PARTITIONS} partitions at a broker, not {partitions}")


class OwnTopics:
    """Announces topics at each new connection; a machine of its own beside the coordinator's.

    :param topics: name to number of partitions
    :param clock: of the records, if no other broker has set one
    :ivar clock: that of ZooKeeper; None until it was read
    :ivar announced: number of partitions of each topic, as ZooKeeper has it
    """

    def __init__(self, broker_id: int, topics: Mapping[str, int], clock: RecordClock) -> None:
        self.clock: RecordClock | None = None
        self.announced: dict[str, int] = {}
        self._broker_id = broker_id
        self._topics = dict(topics)
        self._own_clock = clock
        self._effects: list[Any] = []
        self._procedures = ZooKeeperProcedures(self._effects.append, count(1))

    @property
    def deadline(self) -> int | None:
        """When `handle` has something to do, in ms; None for never."""
        return self._procedures.deadline

    def handle(self, event: object, now: int) -> Sequence[Any]:
        """Take in an event of ZooKeeper, or a `Tick`."""
        if isinstance(event, Replied):
            self._procedures.replied(event, now)
        elif isinstance(event, SessionChanged):
            self._procedures.cancel_all()
            if event.state is SessionState.CONNECTED:
                self._procedures.start(self._announce(), now)
        self._procedures.advance(now)
        effects, self._effects[:] = list(self._effects), []
        return effects

    def _announce(self) -> Procedure:
        while True:
            try:
                yield from create_missing(*ROOTS)
                yield from create_missing(RECORDS, data=self._own_clock.encode())
                self.clock = parse_record_clock((yield from _read(RECORDS)).data)
                for topic, partitions in self._topics.items():
                    yield from self._announce_topic(topic, partitions)
                return
            except (RegistryError, ValueError) as error:
                self._effects.append(Noted(logging.WARNING, "topics not announced", {"reason": str(error)}))
            yield Sleep(RETRY_MS)

    def _announce_topic(self, topic: str, partitions: int) -> Procedure:
        path = f"{topic_path(topic)}/{self._broker_id}"
        yield from create_missing(topic_path(topic))
        try:
            yield Create(path, b"%d" % partitions)
        except RegistryError as error:
            if error.outcome is not Outcome.NODE_EXISTS:
                raise
            node = yield from _read(path)
            if not node.data.isdigit():
                raise ValueError(f"{path} has no number of partitions: {node.data[:40]!r}") from None
            before = int(node.data)
            if partitions > before:
                yield SetData(path, b"%d" % partitions, node.version)
            elif partitions < before:
                facts = {"topic": topic, "partitions": before, "asked": partitions}
                self._effects.append(Noted(logging.WARNING, "partitions cannot be removed", facts))
                partitions = before
        self.announced[topic] = partitions


def _read(path: str) -> Generator[Any, Any, Node]:
    """A part of a procedure: return a node that was there a moment ago. ValueError: it is not any more."""
    node: Node | None = yield Read(path)
    if node is None:
        raise ValueError(f"{path} was deleted")
    return node
