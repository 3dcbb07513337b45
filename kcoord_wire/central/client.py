"""Consumers on asyncio: the host of `draft.consumer.DraftConsumer` and of `rewrite.member.RewriteMember`.

    async with CentralConsumer(settings) as consumer:  # of the draft; RewriteConsumer of the rewrite
        async for record in consumer:
            print(record.partition, record.offset, record.value)

Laws:

* A record is processed, and its position moves, when the application asks for the next one (`run`: when its function
  has returned). A record that is in hand when the fetchers stop is delivered again to the partition's next owner.
* The coordinator is answered whatever the application does, as long as the event loop runs: blocking code belongs in
  the function that `run` calls in a thread. Between two records the loop is served at least every `YIELD_SECONDS`.
* Bytes of a coordinator that do not decode close that connection, with a log line; the machine finds the next one.
  A connection holds at most a frame of `LARGEST_MESSAGE` bytes.
* After ``async with`` no task, timer or connection is left. It ends in the order of its design (the draft's section 11,
  handlePingRequest, step 1; in the rewrite with a commit), or without it when the coordinator has not let it go for two
  session timeouts.

Sources: "the 0.8 consumer-coordinator draft", sections 7, 8, 10 and 11; "Kafka 0.9 Consumer Rewrite Design".
"""

from __future__ import annotations

import asyncio
import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.central.dialects import DraftConsumerDialect, MemberDialect, draft_frame
from kcoord_wire.central.draft import events
from kcoord_wire.central.draft.consumer import DraftConsumer
from kcoord_wire.central.draft.events import CentralError, Partition
from kcoord_wire.central.fetcher import (
    BrokerFetcher,
    Fetcher,
    Inbox,
    LeaderFetcher,
    PartitionState,
    Record,
)
from kcoord_wire.central.peer import CentralPeer, Dialect, Limits
from kcoord_wire.central.rewrite import events as rewrite
from kcoord_wire.central.rewrite.events import MemberSettings
from kcoord_wire.central.rewrite.member import RewriteMember
from kcoord_wire.central.server import LOG
from kcoord_wire.errors import EncodeError
from kcoord_wire.kernel import machines
from kcoord_wire.kernel.driver import Driver, log_event
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.kernel.net import LogLimiter, address_text
from kcoord_wire.kernel.peers import PeerCounters

YIELD_SECONDS: Final = 0.005
MachineT = TypeVar("MachineT", bound="DraftConsumer | RewriteMember")
_FLUSH_MS: Final = 2_000  # for the bytes still to be written to a coordinator that does not read


class _Link:
    """A connection of the machine: first the attempt, then the connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.opening: asyncio.Task[None] | None = None
        self.connection: CentralPeer | None = None


class RegistrationRefusedError(ValueError):
    """The coordinator does not accept this group, consumer id, subscription or session timeout.

    :ivar error: what it has answered; its number, if that is unknown
    """

    def __init__(self, error: enum.IntEnum | int) -> None:
        super().__init__(f"the coordinator refuses the registration: {getattr(error, 'name', error)}")
        self.error = error


class HostedConsumer(ABC, Generic[MachineT]):
    """One member of a group. One task at a time iterates over it, on one event loop. Each design has its own.

    :param machine: the design's part
    :param dialect: its frames
    :param fetcher: reads the partitions
    :param on_assigned: called in the event loop after each change, with the partitions that it owns now; it must return
        soon
    :ivar machine: as given
    """

    effects: ClassVar[Mapping[type, Callable[[Any, Any], None]]]
    """What the machine wants of its fetchers, each with a method."""

    def __init__(
        self,
        machine: MachineT,
        dialect: Dialect,
        fetcher: Fetcher,
        on_assigned: Callable[[frozenset[Partition]], None] | None,
    ) -> None:
        self.machine = machine
        self.limits = Limits(unread_ms=_FLUSH_MS)
        self.counters = PeerCounters()
        self._dialect = dialect
        self._fetcher = fetcher
        self._on_assigned = on_assigned
        self._loop: asyncio.AbstractEventLoop
        self._driver: Driver | None = None  # before it is entered
        self._moved: dict[Partition, int] = {}  # not yet passed to the machine
        self._links: dict[int, _Link] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._closing: set[CentralPeer] = set()
        self._inbox: Inbox | None = None
        self._in_hand: tuple[Inbox, Record] | None = None
        self._news = asyncio.Event()
        self._yielded_at = 0.0
        self._is_shutting_down = False
        self._has_ended = False
        self._failure: Exception | None = None
        self._warnings = LogLimiter()
        self._effects = {**_EFFECTS, **self.effects}

    # ---- the application's side

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._driver = Driver(self.machine, execute=self._execute, failed=self._fail)
        if not self._has_ended:
            self._deliver(Tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record; the one before is processed.

        :raises StopAsyncIteration: the consumer has ended, after `shutdown`
        :raises RegistrationRefusedError: it has ended, because it would be refused again
        """
        self._settle()
        if self._loop.time() - self._yielded_at >= YIELD_SECONDS:
            await asyncio.sleep(0)  # the loop sees what has arrived ...
            await asyncio.sleep(0)  # ... and handles it before this task goes on
            self._yielded_at = self._loop.time()
        while not self._has_ended:
            record = None if self._inbox is None or self._is_shutting_down else self._inbox.next_record()
            if record is not None:
                assert self._inbox is not None
                self._in_hand = self._inbox, record
                return record
            self._news.clear()
            await self._news.wait()
            self._yielded_at = self._loop.time()
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    async def run(self, process: Callable[[Record], None]) -> None:
        """Call a function with each record, in a thread, until `shutdown`. It may block: the coordinator is answered
        meanwhile. Its error ends this call, and the record counts as not processed."""
        async for record in self:
            try:
                await asyncio.to_thread(process, record)
            except BaseException:
                self._in_hand = None
                raise

    def shutdown(self) -> None:
        """Begin the design's shutdown: no more records are handed over, and the iteration ends when the coordinator has
        the positions. A second call ends it without waiting for the coordinator."""
        self._is_shutting_down = True
        if self._driver is None:
            self._has_ended = True
        else:
            self._deliver(machines.Shutdown())

    async def close(self) -> None:
        """Shut down, wait at most two session timeouts for it, and close everything. A second call does nothing."""
        self._in_hand = None
        if not self._is_shutting_down:
            self.shutdown()
        try:
            async with asyncio.timeout(2 * self.machine.settings.session_timeout_ms / 1000):
                await self._wait_for_end()
        except TimeoutError:
            pass
        finally:
            if not self._has_ended:
                self.shutdown()
            await self._fetcher.close()
            await self._close_connections()

    @property
    def partitions(self) -> Mapping[Partition, PartitionState]:
        """What it owns, with the figures of each partition since its assignment. To be read in the event loop."""
        return {} if self._inbox is None else self._inbox.partitions

    async def _wait_for_end(self) -> None:
        while not self._has_ended:
            self._news.clear()
            await self._news.wait()

    def _settle(self) -> None:
        """The record in hand, if any, is processed."""
        if self._in_hand is not None:
            inbox, record = self._in_hand
            self._in_hand = None
            inbox.processed(record)

    # ---- the machine

    def _deliver(self, event: Any) -> None:
        """Pass an event to the machine, after the positions that have moved."""
        assert self._driver is not None
        if self._moved:
            moved, self._moved = self._moved, {}
            self._driver.deliver(self._progress(moved))
        self._driver.deliver(event)

    def _progress(self, moved: Mapping[Partition, int]) -> Any:
        """Return the machine's event for positions that have moved."""
        return events.Progress(moved)

    def _execute(self, _machine: Any, effect: Any, _cause: None) -> None:
        self._effects[type(effect)](self, effect)

    def _fail(self, error: Exception, _cause: None) -> None:
        """A fault of the machine, or of a function of the application: the application gets it."""
        self._failure = error
        self._end()

    # ---- effects

    def _connect(self, effect: machines.Connect) -> None:
        link = _Link(address_text(effect.broker.host, effect.broker.port))
        self._links[effect.connection] = link
        link.opening = self._loop.create_task(self._open(effect, link))
        self._opening.add(link.opening)
        link.opening.add_done_callback(self._opening.discard)

    async def _open(self, effect: machines.Connect, link: _Link) -> None:
        number, broker = effect.connection, effect.broker
        try:
            await self._loop.create_connection(
                partial(CentralPeer, self, events.LARGEST_MESSAGE, number), broker.host, broker.port
            )
        except (OSError, ValueError, OverflowError):  # the latter of a host or port that cannot be one
            if self._links.pop(number, None) is not None:
                self._deliver(machines.Disconnected(number))

    def _send(self, effect: machines.Send) -> None:
        link = self._links.get(effect.connection)
        if link is None or link.connection is None:
            return
        try:
            link.connection.write(self._dialect.frame(link.connection, effect.message))
        except EncodeError as error:
            self.refuse(link.connection, f"what it has to be sent does not fit into a message: {error}")

    def _close(self, effect: machines.Close) -> None:
        link = self._links.pop(effect.connection, None)
        if link is None:
            return
        if link.connection is None:
            assert link.opening is not None
            link.opening.cancel()
        else:
            self._finish(link.connection)

    def _finish(self, connection: CentralPeer) -> None:
        """Close a connection when its peer has what was sent, at once after `_FLUSH_MS`."""
        self._closing.add(connection)
        connection.close()

    def _begin_fetching(self, start: events.StartFetchers) -> None:
        self._inbox = Inbox(start, self._note_position, self._note_failure, self._news.set)
        self._fetcher.start(start, self._inbox)

    def _end_fetching(self) -> dict[Partition, int]:
        """Stop the fetchers; return the positions that are known."""
        positions = {} if self._inbox is None else self._inbox.close()
        self._inbox = None
        self._fetcher.stop()
        return positions

    def _assign(self, partitions: frozenset[Partition]) -> None:
        if self._on_assigned is not None:
            self._on_assigned(partitions)

    def _note(self, effect: machines.LogEvent) -> None:
        if effect.level < logging.WARNING or self._warnings.allows_line():
            log_event(LOG, effect)

    def _ended(self, _effect: machines.Ended) -> None:
        if self.machine.refusal is not None:
            self._failure = RegistrationRefusedError(self.machine.refusal)
        self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._fetcher.stop()
        if self._driver is not None:
            self._driver.stop()
        self._news.set()

    def _note_position(self, partition: Partition, offset: int) -> None:
        self._moved[partition] = offset

    @abstractmethod
    def _note_failure(self, partition: Partition, error: CentralError) -> None:
        """The fetcher of a partition has stopped by itself."""

    # ---- connections: `PeerOwner`

    def opened(self, connection: CentralPeer) -> None:
        """The connection is there, if the machine still wants it."""
        link = self._links.get(connection.number)
        if link is None:
            connection.abort()
        else:
            link.connection = connection
            self._deliver(machines.Connected(connection.number))

    def lost(self, connection: CentralPeer) -> None:
        """The connection has ended."""
        if connection in self._closing:
            self._closing.remove(connection)
            self._news.set()
        if self._links.pop(connection.number, None) is not None:
            self._deliver(machines.Disconnected(connection.number))

    def receive(self, connection: CentralPeer, data: bytes, start: int) -> None:
        """Decode a frame, and pass it to the machine. Errors as `PeerOwner.receive`."""
        link = self._links.get(connection.number)
        if link is not None:
            message = self._dialect.read(connection, data[start:])
            self._deliver(machines.Received(connection.number, message))

    def blame(self, connection: CentralPeer, error: Exception) -> None:
        """A fault of the machine, or of a function of the application."""
        self._fail(error, None)

    def hold(self, connection: CentralPeer, held: int, waiting: int) -> None:
        """Nothing: there are as few connections as the machine wants."""

    def refuse(self, connection: CentralPeer, error: object) -> None:
        """Close a connection whose peer has sent bytes that do not decode."""
        link = self._links.get(connection.number)
        facts = {"peer": link.address if link is not None else connection.host, "reason": error}
        self._note(machines.LogEvent(logging.ERROR, "connection closed", facts))
        connection.abort()

    async def _close_connections(self) -> None:
        """Close what is left: what was sent is delivered first, if the peers read it."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            if link.connection is not None:
                self._finish(link.connection)
            elif link.opening is not None:
                link.opening.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        while self._closing:
            self._news.clear()
            await self._news.wait()


_EFFECTS: Final[dict[type, Callable[[Any, Any], None]]] = {
    machines.Connect: HostedConsumer._connect,
    machines.Send: HostedConsumer._send,
    machines.Close: HostedConsumer._close,
    machines.LogEvent: HostedConsumer._note,
    machines.Ended: HostedConsumer._ended,
}


class CentralConsumer(HostedConsumer[DraftConsumer]):
    """A consumer of the draft.

    :param settings: of the machine
    :param fetcher: `BrokerFetcher` if not given
    :param on_assigned: see `HostedConsumer`
    :raises ValueError: the settings do not fit into a RegisterConsumerRequest
    """

    def __init__(
        self,
        settings: events.ConsumerSettings,
        *,
        fetcher: Fetcher | None = None,
        on_assigned: Callable[[frozenset[Partition]], None] | None = None,
    ) -> None:
        machine = DraftConsumer(settings)
        draft_frame(machine.registration())
        fetcher = fetcher or BrokerFetcher(settings.group_id, settings.consumer_id)
        super().__init__(machine, DraftConsumerDialect(), fetcher, on_assigned)

    def _start_fetchers(self, effect: events.StartFetchers) -> None:
        self._begin_fetching(effect)

    def _stop_fetchers(self, _effect: events.StopFetchers) -> None:
        self._deliver(events.FetchersStopped(self._end_fetching()))

    def _assigned(self, effect: events.Assigned) -> None:
        self._assign(effect.partitions)

    def _note_failure(self, partition: Partition, error: CentralError) -> None:
        self._deliver(events.FetcherFailed(partition, error))

    effects: ClassVar = {
        events.StartFetchers: _start_fetchers,
        events.StopFetchers: _stop_fetchers,
        events.Assigned: _assigned,
    }


class RewriteConsumer(HostedConsumer[RewriteMember]):
    """A consumer of the rewrite. Its partitions have the number in their topic as name, and records no thread.

    :param settings: of the machine
    :param auto_offset_reset: ``smallest`` or ``largest``: where to begin without a committed offset, or with one that
        the partition does not have
    :param fetcher: `LeaderFetcher` if not given
    :param on_assigned: see `HostedConsumer`
    """

    def __init__(
        self,
        settings: MemberSettings,
        *,
        auto_offset_reset: str = "smallest",
        fetcher: Fetcher | None = None,
        on_assigned: Callable[[frozenset[Partition]], None] | None = None,
    ) -> None:
        self._reset = events.RESET_OFFSETS[auto_offset_reset]
        fetcher = fetcher or LeaderFetcher(self._reset)
        super().__init__(RewriteMember(settings), MemberDialect(), fetcher, on_assigned)

    def _progress(self, moved: Mapping[Partition, int]) -> rewrite.Progress:
        return rewrite.Progress(_numbered(moved))

    def _start(self, effect: rewrite.StartFetching) -> None:
        begins = {
            Partition(topic, str(number)): offset if offset >= 0 else self._reset
            for (topic, number), offset in effect.positions.items()
        }
        self._assign(frozenset(begins))
        self._begin_fetching(events.StartFetchers({"": begins}, self.machine.settings.bootstrap))

    def _stop(self, _effect: rewrite.StopFetching) -> None:
        positions = self._end_fetching()
        self._assign(frozenset())
        self._deliver(rewrite.FetchingStopped(_numbered(positions)))

    def _note_failure(self, partition: Partition, error: CentralError) -> None:
        """`LeaderFetcher` begins anew, by itself."""

    effects: ClassVar = {rewrite.StartFetching: _start, rewrite.StopFetching: _stop}


def _numbered(positions: Mapping[Partition, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, int(name)): offset for (topic, name), offset in positions.items()}
