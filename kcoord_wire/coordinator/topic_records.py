"""Records of topics, read and written beside the clients: what a test looks at after a client has produced, and what it
gives one to consume.

Laws:

* A reader sees what a consumer sees: no markers and, where it reads what is committed, nothing of a transaction that is
  open or aborted.
* What is written goes the way of a Produce to the partition's leader, so that a client that waits has it, and what a
  client would be refused is an error. Faults and permissions are for clients, and so not for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.brokers import NO_LEADER
from kcoord_wire.coordinator.core.events import Reply, Request
from kcoord_wire.coordinator.host import Host
from kcoord_wire.coordinator.partitions.producers import AbortedTransaction
from kcoord_wire.coordinator.topics.catalog import Topic
from kcoord_wire.kernel.settings import SettingsError, suggestion
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import HiddenBatches, Record, RecordHeader, encode_batch, read_records

Isolation = Literal["read_uncommitted", "read_committed"]

_PRODUCE_VERSION: Final = 11  # topics by name
_ACKS_ALL: Final = -1
_NO_TOKEN: Final = 0  # the answer is taken at once


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record of a topic.

    :ivar topic: its topic
    :ivar partition: the partition's number
    :ivar offset: in the partition
    :ivar timestamp: ms since the epoch; -1 where there is none
    :ivar key: bytes or None
    :ivar value: bytes or None
    :ivar headers: name to value, in the order in which the producer gave them
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class _Chunk(NamedTuple):
    """Bytes of a partition, from an offset on."""

    partition: int
    offset: int
    data: bytes
    aborted: Sequence[AbortedTransaction] | None


class TopicReader:
    """Reads a topic's partitions from their beginning, and from then on what is new.

    :param topic: its name
    :param partition: this one alone; None for all
    :param isolation: as the consumer's setting of this name
    :raises SettingsError: there is no such isolation
    """

    def __init__(self, topic: str, partition: int | None, isolation: Isolation) -> None:
        if isolation not in get_args(Isolation):
            raise SettingsError("isolation", f"{isolation!r} is unknown; {suggestion(isolation, get_args(Isolation))}")
        self._topic, self._partition = topic, partition
        self._committed = isolation == "read_committed"
        self._next: dict[int, int] = {}

    def gather(self, host: Host) -> list[_Chunk]:
        """Return what is new, in the thread of the host.

        :raises KeyError: there is no such topic or partition
        """
        topic = found_topic(host, self._topic)
        chunks = []
        for number in _numbers(topic, self._partition):
            log = topic.logs[number]
            begin = max(self._next.get(number, 0), log.start_offset)
            end = log.stable_offset if self._committed else log.end_offset
            if begin < end:
                aborted = log.aborted_between(begin, end) if self._committed else None
                chunks.append(_Chunk(number, begin, log.read(begin, sys.maxsize, True, end), aborted))
                self._next[number] = end
        return chunks

    def records(self, chunks: Sequence[_Chunk]) -> Iterator[TopicRecord]:
        """Yield the records in what was gathered, in any thread."""
        for chunk in chunks:
            hidden = HiddenBatches(chunk.aborted)
            for batch in read_records(chunk.data, strict=False):
                if not hidden.has(batch):
                    yield from (self._record(chunk, each) for each in batch.records if each.offset >= chunk.offset)

    def _record(self, chunk: _Chunk, record: Record) -> TopicRecord:
        headers = tuple((each.key, each.value) for each in record.headers)
        return TopicRecord(
            self._topic, chunk.partition, record.offset, record.timestamp, record.key, record.value, headers
        )


def found_topic(host: Host, name: str) -> Topic:
    """Return a topic. KeyError: there is none of this name."""
    topic = host.topics.catalog.named(name)
    if topic is None:
        raise KeyError(f"no topic {name!r}")
    return topic


def _numbers(topic: Topic, partition: int | None) -> Sequence[int]:
    if partition is None:
        return range(len(topic.logs))
    if not 0 <= partition < len(topic.logs):
        raise KeyError(f"topic {topic.name!r} has no partition {partition}")
    return [partition]


def produce(
    host: Host,
    topic: str,
    partition: int,
    key: bytes | str | None,
    value: bytes | str | None,
    headers: Mapping[str, bytes | str | None],
    timestamp: int | None,
    now: int,
) -> int:
    """Append a record to a partition, in the thread of the host, and return its offset.

    :param timestamp: ms since the epoch; None for now
    :raises KeyError: there is no such topic or partition
    :raises ValueError: it is refused, as a Produce would be
    """
    found = found_topic(host, topic)
    _numbers(found, partition)
    leader = found.leaders.of[partition]
    if leader == NO_LEADER:
        raise ValueError(f"no broker leads {topic}-{partition}")
    named = tuple(RecordHeader(name, _bytes(each)) for name, each in headers.items())
    record = Record(_bytes(key), _bytes(value), now if timestamp is None else timestamp, headers=named)
    data = m.ProduceRequestPartitionProduceData(index=partition, records=encode_batch([record]))
    part = m.ProduceRequestTopicProduceData(name=topic, partition_data=[data])
    message = m.ProduceRequest(acks=_ACKS_ALL, topic_data=[part])
    reply, *others = host.topics.handle(Request(_NO_TOKEN, message, _PRODUCE_VERSION, broker=leader), now)
    host.execute(others)
    assert isinstance(reply, Reply), "a Produce is answered first"
    response: Any = reply.message
    (answer,) = response.responses[0].partition_responses
    if answer.error_code:
        error = ErrorCode(answer.error_code)
        raise ValueError(f"{topic}-{partition}: {error.name}: {answer.error_message or error.meaning}")
    offset: int = answer.base_offset
    return offset


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
