"""Fetchers: the interface that a consumer's host starts and stops, the one that reads brokers, and its inbox.

Laws:

* One connection to each broker that has an assigned partition, with one request in flight: what a broker can make this
  process hold is an answer for each partition, within the bounds of `Inbox`.
* A broker that fails, has no known address, or sends a response that does not decode is tried again after a pause, with
  a log line; the partitions of other brokers go on. Its address is read again, because a broker may return at another
  one.
* Each fetch carries the fence of its assignment, if there is one. ``STALE_EPOCH`` and ``OFFSET_OUT_OF_RANGE`` end the
  partition's fetcher; the machine decides what follows.
* An inbox belongs to one `StartFetchers`. It is closed when the fetchers stop, and what comes later is dropped: nothing
  of an earlier assignment is handed over, and no position of it moves.
* A position moves only past records that were handed over and are processed: each record is delivered at least once.
* `Inbox.wants` bounds what is held: one answer of each partition, and none above `LARGEST_INBOX` bytes of values.

Source: "the 0.8 consumer-coordinator draft", sections 2 and 11; the fetchers of Kafka 0.7, one connection a broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import kcoord_wire as kw
from kcoord_wire.central.dialects import draft_frame
from kcoord_wire.central.draft.events import CentralError, Fence, Partition, StartFetchers
from kcoord_wire.codec.fields import printable
from kcoord_wire.codec.framing import SIZE_BYTES
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.kernel.net import LogLimiter, address_text
from kcoord_wire.messages import central as m

LARGEST_INBOX: Final = 4 << 20


class Record(NamedTuple):
    """A record for the application.

    :ivar thread: the consumer thread (stream) that owns the partition
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


class BrokerFetcher:
    """Fetches by CentralFetchRequest.

    :param group_id: for the fences
    :param consumer_id: for the fences
    """

    def __init__(self, group_id: str, consumer_id: str, settings: FetchSettings | None = None) -> None:
        self._group_id = group_id
        self._consumer_id = consumer_id
        self._settings = settings or FetchSettings()
        self._addresses: dict[int, BrokerAddress] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._warnings = LogLimiter()

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
            serve = self._serve(broker_id, by_broker[broker_id], inbox, start.fence)
            task = asyncio.get_running_loop().create_task(serve, name=f"fetcher of broker {broker_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """See `Fetcher`."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """See `Fetcher`."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _warn(self, whose: str, error: object) -> None:
        if self._warnings.allows_line():
            _LOG.warning("fetching: %s: %s", printable(whose), printable(str(error) or type(error).__name__))

    # ---- one broker

    async def _serve(self, broker_id: int, partitions: Sequence[Partition], inbox: Inbox, fence: Fence | None) -> None:
        while True:
            try:
                if broker_id not in self._addresses:
                    raise BadAnswerError("its address is not known")
                async with self._open(self._addresses[broker_id]) as link:
                    while True:
                        await self._round(link, partitions, inbox, fence)
            except (OSError, EOFError, ValueError, OverflowError, BadAnswerError, kw.WireError) as error:
                self._warn(f"broker {broker_id}", error)
            await asyncio.sleep(self._settings.backoff_ms / 1000)
            await self._ask_for_addresses(broker_id)

    async def _round(
        self, link: BrokerLink, partitions: Sequence[Partition], inbox: Inbox, fence: Fence | None
    ) -> None:
        """Fetch each partition that wants records; pause if there are none."""
        wanted = [partition for partition in partitions if inbox.wants(partition)]
        if not wanted:
            await inbox.wait_for_room()
            return
        has_records = False
        for partition in wanted:
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
            except (OSError, EOFError, ValueError, OverflowError, BadAnswerError, kw.WireError):
                continue
            for each in answer.brokers_info:
                if each.id == broker_id or each.id in self._addresses:
                    self._addresses[each.id] = BrokerAddress(each.id, each.host, each.port)
            return

    def _open(self, address: BrokerAddress) -> AbstractAsyncContextManager[BrokerLink]:
        return open_link(address, self._settings.timeout_ms / 1000, self._settings.max_size + _BEFORE_RECORDS)


@asynccontextmanager
async def open_link(address: BrokerAddress, timeout: float, largest: int) -> AsyncIterator[BrokerLink]:
    """A connection with a broker, until the end of the block.

    :param timeout: seconds that connecting, and then each answer, may take
    :param largest: bytes of an answer
    :raises OSError: it cannot be reached, TimeoutError included
    :raises BadAnswerError: it has not answered in time
    """
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield BrokerLink(reader, writer, timeout, largest)
    except TimeoutError:
        raise BadAnswerError(f"no answer of {address_text(address.host, address.port)} in time") from None
    finally:
        writer.transport.abort()


class BrokerLink:
    """One connection with one request in flight."""

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
            self._writer.write(draft_frame(request))
            await self._writer.drain()
            size = int.from_bytes(await self._reader.readexactly(SIZE_BYTES), "big", signed=True)
            if not 0 <= size <= self._largest:
                raise BadAnswerError(f"an answer of {size} bytes, at most {self._largest} may be")
            return kw.decode(answer, await self._reader.readexactly(size), 0)


def _check(records: Sequence[tuple[int, bytes]], next_offset: int) -> None:
    """Offsets may have gaps, but must not go back: a record would be delivered as another one.

    :raises BadAnswerError: they do
    """
    for offset, _ in records:
        if offset < next_offset:
            raise BadAnswerError(f"offset {offset} where {next_offset} was next")
        next_offset = offset + 1
