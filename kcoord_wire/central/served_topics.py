"""The topics that a broker serves: announced in ZooKeeper, with generated records, and the fences of who fetches them.

Every broker generates its own partitions from two numbers, a rate and an instant, so none keeps data and a restart
changes nothing.

Laws:

* `/brokers/topics/[topic]/[broker]` has the number of partitions of each topic at this broker. It grows and never
  shrinks ("It is currently not possible to reduce the number of partitions for a topic", section 2).
* What a broker has announced once it serves, also when it starts again without the topic: its partitions are assigned.
* In the rewrite, `/brokers/topics/[topic]` has the replicas of each partition, as Kafka 0.8 writes it. Every broker
  that is given a topic adds itself to the replicas of its partitions; partitions are added, and never removed.
* The records of all brokers are the same: their rate, and the instant since which they grow, are those of the first
  broker that came, kept in `/brokers/records`.
* What could not be written because the connection was lost is tried again.
* Record n of a partition is the text ``TOPIC-BROKER-NUMBER@n``, in the rewrite ``TOPIC-PARTITION@n``, for every request
  at any time; there any replica serves the same.
* The end of a partition grows with time; in the draft it never goes back, also if the clock does.
* A fetch of the draft with a fence is refused, ``STALE_EPOCH``, once a fetch with a higher one (epoch, then generation)
  has come for the same group and partition, or with an equal one of another consumer. Fetches without a fence are
  always served, as in 0.7: of them, two owners are possible.
* A fetch is answered at once, by at most `LARGEST_FETCH` or `LARGEST_REWRITE_FETCH` bytes of records, whatever was
  asked for.

Source: "the 0.8 consumer-coordinator draft", sections 2 and 6; the layout and the fetch request of Kafka 0.7.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as kafka
from kcoord_wire.central.draft.context import MOST_PARTITIONS
from kcoord_wire.central.draft.events import CentralError, Fence
from kcoord_wire.central.draft.subscription import LONGEST_TOPIC, is_topic_name
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.layout import parse_topic, topic_record
from kcoord_wire.kernel.machines import LogEvent
from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.messages import central as m
from kcoord_wire.records import Record, encode_message_set
from kcoord_wire.zookeeper.layout import BROKER_TOPICS, ROOTS, parse_object, topic_path
from kcoord_wire.zookeeper.requests import (
    RETRY_MS,
    Create,
    Node,
    Outcome,
    Read,
    ReadChildren,
    RegistryError,
    Replied,
    SessionChanged,
    SessionState,
    SetData,
    ZooKeeperProcedures,
    create_missing,
)

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
                for topic in (yield ReadChildren(BROKER_TOPICS)) or ():
                    if topic not in self._topics and (partitions := (yield from self._announced(topic))):
                        self.announced[topic] = partitions
                return
            except (RegistryError, ValueError) as error:
                self._effects.append(LogEvent(logging.WARNING, "topics not announced", {"reason": str(error)}))
            yield Sleep(RETRY_MS)

    def _announced(self, topic: str) -> Generator[Any, Any, int]:
        """Return the number of partitions that this broker has announced of a topic; 0 if it has not."""
        node: Node | None = yield Read(f"{topic_path(topic)}/{self._broker_id}")
        return int(node.data) if node is not None and node.data.isdigit() else 0

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
                self._effects.append(LogEvent(logging.WARNING, "partitions cannot be removed", facts))
                partitions = before
        self.announced[topic] = partitions


def _read(path: str) -> Generator[Any, Any, Node]:
    """A part of a procedure: return a node that was there a moment ago. ValueError: it is not any more."""
    node: Node | None = yield Read(path)
    if node is None:
        raise ValueError(f"{path} was deleted")
    return node


LARGEST_FETCH: Final = 1 << 16
"""Bytes of records in one answer: 4 ms of work, for which the other connections wait."""
_RECORD_OVERHEAD: Final = 12  # offset and length
_MOST_FENCES: Final = 100_000
_SEGMENTS: Final = 10
_MS: Final = 1000


class _Owner(NamedTuple):
    fence: Fence
    consumer_id: str


def _generate(name: str, offsets: range, most: int, overhead: int) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a partition with their offsets, as long as they have at most so many bytes.

    :param overhead: bytes besides the value of each
    """
    for offset in offsets:
        value = f"{name}@{offset}".encode()
        most -= len(value) + overhead
        if most < 0:
            return
        yield offset, value


class GeneratedTopics:
    """The partitions of one broker.

    :param partitions: number of partitions of each topic; it may grow
    :param since_ms: when the first record came, in ms since 1970
    :param rate: records a second, of each partition
    :param kept: of the newest records; older ones go in segments of a tenth of it, so that a consumer can fall out of
        range. None for all
    """

    def __init__(
        self, broker_id: int, partitions: Mapping[str, int], since_ms: int, rate: float, *, kept: int | None = None
    ) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._since_ms = since_ms
        self._rate = rate
        self._kept = kept
        self._newest_ms = since_ms
        self._owners: dict[tuple[str, str, int], _Owner] = {}

    def fetch(self, request: m.CentralFetchRequest, now_ms: int) -> m.CentralFetchResponse:
        """Answer a fetch.

        :param now_ms: since 1970
        :returns: with the first and the end offset also where the offset is out of range. ``STALE_EPOCH`` and
            ``UNKNOWN_TOPIC_OR_PARTITION`` come without.
        """
        if not 0 <= request.partition < self._partitions.get(request.topic, 0):
            return m.CentralFetchResponse(error_code=CentralError.UNKNOWN_TOPIC_OR_PARTITION)
        if request.fence and not self._is_owner(request, request.fence[0]):
            return m.CentralFetchResponse(error_code=CentralError.STALE_EPOCH)
        end = self._end(now_ms)
        first = 0 if self._kept is None else max(0, end - self._kept)
        first -= first % max(1, (self._kept or 0) // _SEGMENTS)
        response = m.CentralFetchResponse(first_offset=first, end_offset=end)
        if first <= request.offset <= end:
            response.records = self._records(request, end)
        else:
            response.error_code = CentralError.OFFSET_OUT_OF_RANGE
        return response

    def _end(self, now_ms: int) -> int:
        self._newest_ms = max(self._newest_ms, now_ms)
        return int((self._newest_ms - self._since_ms) * self._rate / _MS)

    def _records(self, request: m.CentralFetchRequest, end: int) -> list[m.CentralFetchResponseRecord]:
        name = f"{request.topic}-{self._broker_id}-{request.partition}"
        most = min(request.max_size, LARGEST_FETCH)
        values = _generate(name, range(request.offset, end), most, _RECORD_OVERHEAD)
        return [m.CentralFetchResponseRecord(offset=offset, payload=value) for offset, value in values]

    def _is_owner(self, request: m.CentralFetchRequest, sent: m.CentralFetchRequestFence) -> bool:
        """Whether no later assignment has shown itself; this one is remembered then."""
        key = sent.group_id, request.topic, request.partition
        owner = _Owner(Fence(sent.epoch, sent.generation), sent.consumer_id)
        known = self._owners.get(key)
        if known is not None and known.fence >= owner.fence and known != owner:
            return False
        if known is None and len(self._owners) >= _MOST_FENCES:  # of groups that are gone, or invented
            del self._owners[next(iter(self._owners))]
        self._owners.pop(key, None)  # the least recently used comes first
        self._owners[key] = owner
        return True


LARGEST_REWRITE_FETCH: Final = 1 << 19
_LATEST_TIME: Final = -1
_EARLIEST_TIME: Final = -2
_OVERHEAD: Final = 26  # of a message of magic 0: offset, size, CRC, magic, attributes, two lengths
_RACED: Final = (Outcome.NODE_EXISTS, Outcome.NO_NODE, Outcome.BAD_VERSION)


class RewriteTopics(OwnTopics):
    """A machine beside the coordinator's, which announces topics at each new connection, and serves their records."""

    def fetch(self, request: kafka.FetchRequest, now_ms: int) -> kafka.FetchResponse:
        """Answer Fetch 0.

        :param now_ms: since 1970
        """
        left = LARGEST_REWRITE_FETCH
        response = kafka.FetchResponse()
        for topic in request.topics:
            answers = []
            for partition in topic.partitions:
                answer = self._fetch(topic.topic, partition, min(partition.partition_max_bytes, left), now_ms)
                left -= len(answer.records or b"")
                answers.append(answer)
            response.responses.append(kafka.FetchResponseFetchableTopicResponse(topic=topic.topic, partitions=answers))
        return response

    def list_offsets(self, request: kafka.ListOffsetsRequest, now_ms: int) -> kafka.ListOffsetsResponse:
        """Answer ListOffsets 0: of ``-2`` the first offset, of ``-1`` the end and the first one.

        No record has a time, so any other finds none.

        :param now_ms: since 1970
        """
        response = kafka.ListOffsetsResponse()
        for topic in request.topics:
            answers = [self._offsets(topic.name, wanted, now_ms) for wanted in topic.partitions]
            response.topics.append(
                kafka.ListOffsetsResponseListOffsetsTopicResponse(name=topic.name, partitions=answers)
            )
        return response

    def _offsets(
        self, topic: str, wanted: kafka.ListOffsetsRequestListOffsetsPartition, now_ms: int
    ) -> kafka.ListOffsetsResponseListOffsetsPartitionResponse:
        answer = kafka.ListOffsetsResponseListOffsetsPartitionResponse(partition_index=wanted.partition_index)
        end = self._end(topic, wanted.partition_index, now_ms)
        if end is None:
            answer.error_code = RewriteError.UNKNOWN_TOPIC_OR_PARTITION
        else:
            found = [0] if wanted.timestamp == _EARLIEST_TIME else [end, 0] if wanted.timestamp == _LATEST_TIME else []
            answer.old_style_offsets = found[: max(0, wanted.max_num_offsets)]
        return answer

    def _end(self, topic: str, partition: int, now_ms: int) -> int | None:
        """Return the end of a partition; None if it is not served."""
        clock = self.clock
        if clock is None or not 0 <= partition < self.announced.get(topic, 0):
            return None
        return max(0, int((now_ms - clock.since_ms) * clock.rate / _MS))

    def _fetch(
        self, topic: str, wanted: kafka.FetchRequestFetchPartition, most: int, now_ms: int
    ) -> kafka.FetchResponsePartitionData:
        answer = kafka.FetchResponsePartitionData(partition_index=wanted.partition, high_watermark=-1, records=b"")
        end = self._end(topic, wanted.partition, now_ms)
        if end is None:
            answer.error_code = RewriteError.UNKNOWN_TOPIC_OR_PARTITION
            return answer
        answer.high_watermark = end
        if not 0 <= wanted.fetch_offset <= end:
            answer.error_code = RewriteError.OFFSET_OUT_OF_RANGE
            return answer
        values = _generate(f"{topic}-{wanted.partition}", range(wanted.fetch_offset, end), most, _OVERHEAD)
        answer.records = encode_message_set([Record(None, value, offset=offset) for offset, value in values], magic=0)
        return answer

    def _announced(self, topic: str) -> Generator[Any, Any, int]:
        node: Node | None = yield Read(topic_path(topic))
        replicas: list[list[int]] = []
        with suppress(ValueError):  # a topic of others
            replicas = [] if node is None else parse_topic(node.data)
        return len(replicas) if any(self._broker_id in brokers for brokers in replicas) else 0

    def _announce_topic(self, topic: str, partitions: int) -> Procedure:
        path = topic_path(topic)
        while topic not in self.announced:
            node: Node | None = yield Read(path)
            before = [] if node is None else parse_topic(node.data)
            after = _with_replica(before, partitions, self._broker_id)
            try:
                if node is None:
                    yield Create(path, topic_record(after))
                elif after != before:
                    yield SetData(path, topic_record(after), node.version)
            except RegistryError as error:
                if error.outcome not in _RACED:
                    raise
                continue  # another broker was faster
            if len(after) > partitions:
                facts: dict[str, Any] = {"topic": topic, "partitions": len(after), "asked": partitions}
                self._effects.append(LogEvent(logging.INFO, "topic has more partitions", facts))
            self.announced[topic] = len(after)


def _with_replica(replicas: list[list[int]], partitions: int, broker_id: int) -> list[list[int]]:
    """Return the replicas of at least so many partitions, with a broker at each."""
    grown = [*replicas, *([] for _ in range(partitions - len(replicas)))]
    return [brokers if broker_id in brokers else [*brokers, broker_id] for brokers in grown]
