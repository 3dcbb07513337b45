"""Fetchers: the interface that a consumer's host starts and stops, those that read brokers, and their inbox.

Laws:

* One connection to each broker that has an assigned partition, with one request in flight: what a broker can make this
  process hold is an answer for each partition, within the bounds of `Inbox`. In the rewrite, partitions of two brokers
  whose leader becomes the same one keep their two connections, until the next assignment.
* A broker that fails, has no known address, or sends a response that does not decode is tried again after a pause, with
  a log line; the partitions of other brokers go on. Its address is read again, because a broker may return at another
  one.
* Each fetch of the draft carries the fence of its assignment, if there is one. ``STALE_EPOCH`` and
  ``OFFSET_OUT_OF_RANGE`` end the partition's fetcher; the machine decides what follows. The rewrite says nothing about
  either: a partition whose offset is out of range begins again where its consumer wants, with a log line.
* An inbox belongs to one `StartFetchers`. It is closed when the fetchers stop, and what comes later is dropped: nothing
  of an earlier assignment is handed over, and no position of it moves.
* A position moves only past records that were handed over and are processed: each record is delivered at least once.
* `Inbox.wants` bounds what is held: one answer of each partition, and none above `LARGEST_INBOX` bytes of values.

Sources: "the 0.8 consumer-coordinator draft", sections 2 and 11; the fetchers of Kafka 0.7, one connection a broker;
for the rewrite, which only says that a consumer fetches, Metadata 0, ListOffsets 0 and Fetch 0 of Kafka 0.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import kcoord_wire as kw
from kcoord_wire import messages as kafka
from kcoord_wire.assignors import TopicPartition, group_partitions
from kcoord_wire.central.dialects import decode_to_member, draft_frame, kafka_request
from kcoord_wire.central.draft.events import CentralError, Fence, Partition, StartFetchers
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.codec.fields import printable
from kcoord_wire.codec.framing import SIZE_BYTES
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.kernel.net import LogLimiter, address_text
from kcoord_wire.messages import central as m
from kcoord_wire.records import read_records

LARGEST_INBOX: Final = 4 << 20


class Record(NamedTuple):
    """A record for the application.

    :ivar thread: the consumer thread (stream) that owns the partition; empty in the rewrite, which has none
    """

    partition: Partition
    offset: int
    value: bytes
    thread: str


@dataclass(slots=True)
class PartitionState:
    """One partition of an assignment.

    :ivar position: the next offset to process; negative while it is not known
    :ivar next_fetch: the next offset to fetch; -2 for the first, -1 for the end of the partition
    :ivar end_offset: of the partition at the last answer; -1 before it
    :ivar processed: number of records since the assignment
    :ivar waiting: records that wait for the application
    :ivar error: why its fetcher has stopped; NONE if it has not
    """

    thread: str
    position: int
    next_fetch: int
    end_offset: int = -1
    processed: int = 0
    waiting: int = 0
    error: CentralError = CentralError.NONE

    @property
    def lag(self) -> int | None:
        """Records that are not processed; None while not known."""
        return None if self.position < 0 or self.end_offset < 0 else max(0, self.end_offset - self.position)


class Inbox:
    """The records of one assignment between the fetcher and the application, and how far each partition is.

    :param moved: called when the position of a partition has moved, with the new one
    :param failed: called when the fetcher of a partition has stopped by itself
    :param arrived: called when there are records for the application
    :ivar partitions: those of the assignment
    """

    def __init__(
        self,
        start: StartFetchers,
        moved: Callable[[Partition, int], None],
        failed: Callable[[Partition, CentralError], None],
        arrived: Callable[[], None],
    ) -> None:
        self.partitions = {
            partition: PartitionState(thread, offset, offset)
            for thread, offsets in start.threads.items()
            for partition, offset in offsets.items()
        }
        self.is_closed = False
        self._moved = moved
        self._failed = failed
        self._arrived = arrived
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._room = asyncio.Event()

    # ---- the fetcher's side

    def wants(self, partition: Partition) -> bool:
        """Whether to fetch it now."""
        state = self.partitions[partition]
        return not state.error and not state.waiting and self._bytes < LARGEST_INBOX

    async def wait_for_room(self) -> None:
        """Return once the application has taken a record."""
        self._room.clear()
        await self._room.wait()

    def resolve(self, partition: Partition, offset: int) -> None:
        """A partition without a committed offset begins here."""
        if not self.is_closed:
            state = self.partitions[partition]
            state.position = state.next_fetch = offset
            self._moved(partition, offset)

    def put(self, partition: Partition, records: Sequence[tuple[int, bytes]], end_offset: int) -> None:
        """Add what was fetched: offsets, which increase, with their values."""
        if self.is_closed:
            return
        state = self.partitions[partition]
        state.end_offset = end_offset
        for offset, value in records:
            self._records.append(Record(partition, offset, value, state.thread))
            self._bytes += len(value)
            state.next_fetch = offset + 1
        state.waiting += len(records)
        if records:
            self._arrived()

    def fail(self, partition: Partition, error: CentralError) -> None:
        """The fetcher of a partition has stopped; what it has fetched is still handed over."""
        if not self.is_closed:
            self.partitions[partition].error = error
            self._failed(partition, error)

    # ---- the application's side

    def next_record(self) -> Record | None:
        """Hand over the next record; None if none waits."""
        if not self._records:
            return None
        record = self._records.popleft()
        self._bytes -= len(record.value)
        self.partitions[record.partition].waiting -= 1
        self._room.set()
        return record

    def processed(self, record: Record) -> None:
        """The application is done with a record that `take` has returned."""
        if self.is_closed:
            return
        state = self.partitions[record.partition]
        state.position = record.offset + 1
        state.processed += 1
        self._moved(record.partition, state.position)

    def close(self) -> dict[Partition, int]:
        """Drop what waits, and return the positions that are known."""
        self.is_closed = True
        self._records.clear()
        return {partition: state.position for partition, state in self.partitions.items() if state.position >= 0}


_LOG: Final = logging.getLogger("kcoord_wire.central")
_MOST_BROKERS: Final = 1_000  # of one assignment: each is a connection and a task
_BEFORE_RECORDS: Final = 20  # bytes of an answer
_LATEST: Final = -1


class Fetcher(Protocol):
    """Reads the partitions of one assignment after another."""

    def start(self, start: StartFetchers, inbox: Inbox) -> None:
        """Fetch these partitions into the inbox. None is being fetched."""

    def stop(self) -> None:
        """Stop at once; without fetchers nothing happens. The inbox is closed already."""

    async def close(self) -> None:
        """Stop, and return when no task and no connection is left."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Sizes in bytes, times in ms.

    :ivar max_size: of the records of one fetch, with the 12 bytes before each value
    :ivar poll_ms: between two fetches that bring nothing
    :ivar backoff_ms: after a failure
    :ivar timeout_ms: of a connection and of an answer
    """

    max_size: int = 64 << 10
    poll_ms: int = 100
    backoff_ms: int = 1_000
    timeout_ms: int = 5_000


class BadAnswerError(Exception):
    """A broker's answer cannot be one to the request."""


def parse_partition(name: str) -> tuple[int, int]:
    """Return broker id and number of ``BROKER-NUMBER``.

    :raises ValueError: it is not of that form
    """
    broker, dash, number = name.partition("-")
    if not dash or not broker.isdecimal() or not number.isdecimal():
        raise ValueError(f"{name!r} is not of the form BROKER-NUMBER")
    return int(broker), int(number)


class FetcherTasks:
    """Fetchers as tasks."""

    def __init__(self, settings: FetchSettings | None) -> None:
        self._settings = settings or FetchSettings()
        self._tasks: set[asyncio.Task[None]] = set()
        self._warnings = LogLimiter()

    def stop(self) -> None:
        """See `Fetcher`."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """See `Fetcher`."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, serve: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(serve, name="fetcher")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _warn(self, whose: str, error: object) -> None:
        if self._warnings.allows_line():
            _LOG.warning("fetching: %s: %s", printable(whose), printable(str(error) or type(error).__name__))

    async def _back_off(self) -> None:
        await asyncio.sleep(self._settings.backoff_ms / 1000)

    async def _wanted(self, partitions: Sequence[Partition], inbox: Inbox) -> list[Partition]:
        """Return the partitions to fetch now; wait until there is one."""
        while not (wanted := [partition for partition in partitions if inbox.wants(partition)]):
            await inbox.wait_for_room()
        return wanted


_FAILURES: Final = (OSError, EOFError, ValueError, OverflowError, BadAnswerError, kw.WireError)
"""Of a broker: after them it is tried again."""


class BrokerFetcher(FetcherTasks):
    """Fetches by CentralFetchRequest.

    :param group_id: for the fences
    :param consumer_id: for the fences
    """

    def __init__(self, group_id: str, consumer_id: str, settings: FetchSettings | None = None) -> None:
        super().__init__(settings)
        self._group_id = group_id
        self._consumer_id = consumer_id
        self._addresses: dict[int, BrokerAddress] = {}

    def start(self, start: StartFetchers, inbox: Inbox) -> None:
        """See `Fetcher`."""
        by_broker: dict[int, list[Partition]] = {}
        for partition in inbox.partitions:
            try:
                by_broker.setdefault(parse_partition(partition.name)[0], []).append(partition)
            except ValueError as error:
                self._warn(f"partition of {partition.topic}", error)
        self._addresses = {number: known for number, known in self._addresses.items() if number in by_broker}
        self._addresses |= {broker.broker_id: broker for broker in start.brokers}
        if len(by_broker) > _MOST_BROKERS:
            self._warn("assignment", f"{len(by_broker)} brokers, of which {_MOST_BROKERS} are fetched from")
        for broker_id in list(by_broker)[:_MOST_BROKERS]:
            self._spawn(self._serve(broker_id, by_broker[broker_id], inbox, start.fence))

    # ---- one broker

    async def _serve(self, broker_id: int, partitions: Sequence[Partition], inbox: Inbox, fence: Fence | None) -> None:
        while True:
            try:
                if broker_id not in self._addresses:
                    raise BadAnswerError("its address is not known")
                async with self._open(self._addresses[broker_id]) as link:
                    while True:
                        await self._round(link, partitions, inbox, fence)
            except _FAILURES as error:
                self._warn(f"broker {broker_id}", error)
            await self._back_off()
            await self._ask_for_addresses(broker_id)

    async def _round(
        self, link: BrokerLink, partitions: Sequence[Partition], inbox: Inbox, fence: Fence | None
    ) -> None:
        """Fetch each partition that wants records; pause if there are none."""
        has_records = False
        for partition in await self._wanted(partitions, inbox):
            has_records |= await self._fetch(link, partition, inbox, fence)
        if not has_records:
            await asyncio.sleep(self._settings.poll_ms / 1000)

    async def _fetch(self, link: BrokerLink, partition: Partition, inbox: Inbox, fence: Fence | None) -> bool:
        """Send one fetch and take its answer; return whether it had records."""
        state = inbox.partitions[partition]
        request = m.CentralFetchRequest(
            topic=partition.topic,
            partition=parse_partition(partition.name)[1],
            offset=state.next_fetch,
            max_size=self._settings.max_size,
            fence=self._fences(fence),
        )
        answer: m.CentralFetchResponse = await link.ask(request, m.CentralFetchResponse)
        if answer.error_code == CentralError.NONE:
            records = [(record.offset, record.payload) for record in answer.records]
            _check(records, state.next_fetch)
            inbox.put(partition, records, answer.end_offset)
            return bool(records)
        if answer.error_code == CentralError.OFFSET_OUT_OF_RANGE and state.next_fetch < 0:
            offset = answer.end_offset if state.next_fetch == _LATEST else answer.first_offset
            if offset < 0:
                raise BadAnswerError(f"offsets {answer.first_offset} to {answer.end_offset}")
            inbox.resolve(partition, offset)
            return True
        if answer.error_code in (CentralError.OFFSET_OUT_OF_RANGE, CentralError.STALE_EPOCH):
            inbox.fail(partition, CentralError(answer.error_code))
        else:
            self._warn(f"{partition.topic}/{partition.name}", f"error {answer.error_code}")
        return False

    def _fences(self, fence: Fence | None) -> list[m.CentralFetchRequestFence] | None:
        if fence is None:
            return None
        return [
            m.CentralFetchRequestFence(
                group_id=self._group_id,
                consumer_id=self._consumer_id,
                epoch=fence.epoch,
                generation=fence.generation,
            )
        ]

    # ---- addresses

    async def _ask_for_addresses(self, broker_id: int) -> None:
        """Learn the brokers from the first other one that answers: nothing in the draft announces one that returns."""
        for address in list(self._addresses.values()):
            if address.broker_id == broker_id:
                continue
            try:
                async with self._open(address) as link:
                    answer = await link.ask(m.ClusterMetadataRequest(), m.ClusterMetadataResponse)
            except _FAILURES:
                continue
            for each in answer.brokers_info:
                if each.id == broker_id or each.id in self._addresses:
                    self._addresses[each.id] = BrokerAddress(each.id, each.host, each.port)
            return

    def _open(self, address: BrokerAddress) -> AbstractAsyncContextManager[BrokerLink]:
        return open_link(address, self._settings.timeout_ms / 1000, self._settings.max_size + _BEFORE_RECORDS)


_ELSEWHERE: Final = (
    RewriteError.UNKNOWN_TOPIC_OR_PARTITION,
    RewriteError.LEADER_NOT_AVAILABLE,
    6,  # NOT_LEADER_OR_FOLLOWER
)
_MOST_METADATA: Final = 16 << 20


class LeaderFetcher(FetcherTasks):
    """Fetches from the leaders of partitions, as clients of Kafka 0.8 do.

    Each task has the partitions of one leader. After a failure it asks for the leaders anew, beginning with another
    broker, and leaves partitions of other leaders to other tasks.

    :param reset: where a partition begins again whose offset is out of range, one of `RESET_OFFSETS`
    """

    def __init__(self, reset: int, settings: FetchSettings | None = None) -> None:
        super().__init__(settings)
        self._reset = reset
        self._brokers: list[BrokerAddress] = []

    def start(self, start: StartFetchers, inbox: Inbox) -> None:
        """See `Fetcher`."""
        self._brokers = [*start.brokers]
        if inbox.partitions:
            self._spawn(self._follow([*inbox.partitions], inbox))

    async def _follow(self, partitions: Sequence[Partition], inbox: Inbox) -> None:
        while True:
            try:
                (leader, partitions), *others = (await self._leaders(partitions)).items()
                for _, rest in others:
                    self._spawn(self._follow(rest, inbox))
                if leader is None:
                    raise BadAnswerError(f"{len(partitions)} partitions have no leader")
                async with self._open(leader, len(partitions)) as link:
                    while True:
                        await self._round(link, await self._wanted(partitions, inbox), inbox)
            except _FAILURES as error:
                self._warn("leader", error)
            await self._back_off()

    def _open(self, broker: BrokerAddress, partitions: int = 0) -> AbstractAsyncContextManager[BrokerLink]:
        largest = _MOST_METADATA + partitions * self._settings.max_size
        return open_link(broker, self._settings.timeout_ms / 1000, largest, KafkaLink)

    async def _leaders(self, partitions: Sequence[Partition]) -> dict[BrokerAddress | None, list[Partition]]:
        """Return the partitions by their leader, which may be unknown, from the first broker that answers."""
        topics = [kafka.MetadataRequestTopic(name=topic) for topic in sorted({each.topic for each in partitions})]
        for _ in range(len(self._brokers)):
            broker = self._brokers[0]
            try:
                async with self._open(broker) as link:
                    answer = await link.ask(kafka.MetadataRequest(topics=topics), kafka.MetadataResponse)
            except _FAILURES as error:
                self._warn(address_text(broker.host, broker.port), error)
                self._brokers.append(self._brokers.pop(0))
                continue
            return _by_leader(partitions, answer)
        raise BadAnswerError("no broker says who leads the partitions")

    async def _round(self, link: BrokerLink, wanted: Sequence[Partition], inbox: Inbox) -> None:
        """Fetch these partitions in one request; pause if there are no records."""
        begins = [partition for partition in wanted if inbox.partitions[partition].next_fetch < 0]
        for partition in begins:
            offset = await self._offset_at(link, partition, inbox.partitions[partition].next_fetch)
            inbox.resolve(partition, offset)
        request = kafka.FetchRequest(max_wait_ms=0, min_bytes=0)
        for topic, numbers in group_partitions(TopicPartition(each.topic, int(each.name)) for each in wanted).items():
            request.topics.append(
                kafka.FetchRequestFetchTopic(
                    topic=topic,
                    partitions=[
                        kafka.FetchRequestFetchPartition(
                            partition=number,
                            fetch_offset=inbox.partitions[Partition(topic, str(number))].next_fetch,
                            partition_max_bytes=self._settings.max_size,
                        )
                        for number in numbers
                    ],
                )
            )
        answer: kafka.FetchResponse = await link.ask(request, kafka.FetchResponse)
        has_records = False
        for each in answer.responses:
            for data in each.partitions:
                partition = Partition(each.topic, str(data.partition_index))
                if partition not in wanted:
                    raise BadAnswerError(f"{partition} was not asked for")
                has_records |= await self._take(link, partition, data, inbox)
        if not has_records:
            await asyncio.sleep(self._settings.poll_ms / 1000)

    async def _take(
        self, link: BrokerLink, partition: Partition, data: kafka.FetchResponsePartitionData, inbox: Inbox
    ) -> bool:
        """Take what was fetched of a partition; return whether there were records."""
        state, where = inbox.partitions[partition], f"{partition.topic}/{partition.name}"
        if data.error_code == RewriteError.NONE:
            batches = read_records(data.records or b"", allow_partial=True)
            found = [(record.offset, record.value or b"") for batch in batches for record in batch.records]
            records = [each for each in found if each[0] >= state.next_fetch]  # a compressed set begins below
            _check(records, state.next_fetch)
            inbox.put(partition, records, data.high_watermark)
            return bool(records)
        if data.error_code == RewriteError.OFFSET_OUT_OF_RANGE:
            offset = await self._offset_at(link, partition, self._reset)
            self._warn(where, f"offset {state.next_fetch} is out of range, it begins again at {offset}")
            inbox.resolve(partition, offset)
            return True
        if data.error_code in _ELSEWHERE:
            raise BadAnswerError(f"{where}: error {data.error_code}")
        self._warn(where, f"error {data.error_code}")
        return False

    async def _offset_at(self, link: BrokerLink, partition: Partition, at: int) -> int:
        """Return the first offset of a partition, or its end."""
        asked = kafka.ListOffsetsRequestListOffsetsPartition(partition_index=int(partition.name), timestamp=at)
        topic = kafka.ListOffsetsRequestListOffsetsTopic(name=partition.topic, partitions=[asked])
        request = kafka.ListOffsetsRequest(replica_id=-1, topics=[topic])
        answer: kafka.ListOffsetsResponse = await link.ask(request, kafka.ListOffsetsResponse)
        for found in (each for topic in answer.topics for each in topic.partitions):
            if not found.error_code and found.old_style_offsets and found.old_style_offsets[0] >= 0:
                return found.old_style_offsets[0]
        raise BadAnswerError(f"no offset of {partition.topic}/{partition.name}")


def _by_leader(
    partitions: Sequence[Partition], answer: kafka.MetadataResponse
) -> dict[BrokerAddress | None, list[Partition]]:
    brokers = {each.node_id: BrokerAddress(each.node_id, each.host, each.port) for each in answer.brokers}
    leaders = {
        (topic.name, str(each.partition_index)): brokers.get(each.leader_id)
        for topic in answer.topics
        for each in topic.partitions
    }
    by_leader: dict[BrokerAddress | None, list[Partition]] = {}
    for partition in partitions:
        by_leader.setdefault(leaders.get(partition), []).append(partition)
    return by_leader


@asynccontextmanager
async def open_link(
    address: BrokerAddress, timeout: float, largest: int, kind: type[BrokerLink] | None = None
) -> AsyncIterator[BrokerLink]:
    """A connection with a broker, until the end of the block.

    :param timeout: seconds that connecting, and then each answer, may take
    :param largest: bytes of an answer
    :param kind: `BrokerLink` if not given
    :raises OSError: it cannot be reached, TimeoutError included
    :raises BadAnswerError: it has not answered in time
    """
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield (kind or BrokerLink)(reader, writer, timeout, largest)
    except TimeoutError:
        raise BadAnswerError(f"no answer of {address_text(address.host, address.port)} in time") from None
    finally:
        writer.transport.abort()


class BrokerLink:
    """One connection with one request in flight, of the draft."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout: float, largest: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._timeout = timeout
        self._largest = largest

    async def ask(self, request: Any, answer: type) -> Any:
        """Send a request and return its answer.

        :raises BadAnswerError: it is too large
        :raises DecodeError: it is not of that class
        :raises TimeoutError: it has not come in time
        :raises EOFError: the broker has closed the connection
        """
        async with asyncio.timeout(self._timeout):
            self._writer.write(self._frame(request))
            await self._writer.drain()
            size = int.from_bytes(await self._reader.readexactly(SIZE_BYTES), "big", signed=True)
            if not 0 <= size <= self._largest:
                raise BadAnswerError(f"an answer of {size} bytes, at most {self._largest} may be")
            return self._decode(request, answer, await self._reader.readexactly(size))

    def _frame(self, request: Any) -> bytes:
        return draft_frame(request)

    def _decode(self, request: Any, answer: type, body: bytes) -> Any:
        return kw.decode(answer, body, 0)


class KafkaLink(BrokerLink):
    """The same with Kafka's frames."""

    _asked = 0

    def _frame(self, request: Any) -> bytes:
        self._asked += 1
        return kafka_request(request, self._asked)

    def _decode(self, request: Any, answer: type, body: bytes) -> Any:
        return decode_to_member(body, type(request), self._asked)


def _check(records: Sequence[tuple[int, bytes]], next_offset: int) -> None:
    """Offsets may have gaps, but must not go back: a record would be delivered as another one.

    :raises BadAnswerError: they do
    """
    for offset, _ in records:
        if offset < next_offset:
            raise BadAnswerError(f"offset {offset} where {next_offset} was next")
        next_offset = offset + 1
