"""A consumer of a group, for testing and study, not production.

    async with Consumer(ConsumerSettings(bootstrap_servers="localhost:9092", group_id="billing")) as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            print(record.offset, record.value)

The member's part is `classic_member.MemberMachine`, the same that the worlds of `worlds.group` run; this package adds
sockets (`connection`), metadata, fetching and the application's side.

Laws:

* The application's task does what Java's ``poll`` does: the listener runs in `poll`, joining waits for `poll`, and
  without a `poll` for ``max_poll_interval_ms`` the member leaves, until the next one. Everything else goes on in the
  background: heartbeats, fetching, the search for a coordinator.
* The listener's methods run one after another, in the order of the events; in a cooperative rebalance what is given up
  comes before what is new, as in Java. A partition is announced by `on_assigned` once, and ends by one `on_revoked` or
  one `on_lost`; by both if it is lost while `on_revoked` runs. Partitions that are lost before they are announced are
  never mentioned. An `on_assigned` that is cancelled is called again before records of its partitions are returned.
* Whatever the listener does, partitions that were to be given up are given up when its method ends: the group never
  waits for an application that has failed.
* A record is returned only for a partition that this member holds and that the listener knows of.
* A position is committed automatically only after `poll` has returned the records before it, and was called again. At
  the end it is committed without that, unless an exception ends the ``async with`` block: then the application has not
  finished the records of the last poll, and they are read again.
* After `close`, or the end of ``async with``, no task, timer or connection is left, whatever went wrong.
* Time is the event loop's, so that a loop with virtual time can run it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import member_events as events
from kcoord_wire.consumer.brokers import Brokers, MetadataKeeper, Signal, backoff_seconds
from kcoord_wire.consumer.errors import (
    CommitFailedError,
    ConcurrentPollError,
    ConsumerClosedError,
    ConsumerError,
    ConsumerTimeoutError,
    ListenerError,
    TopicError,
)
from kcoord_wire.consumer.fetching import Fetcher, OffsetAndTimestamp
from kcoord_wire.consumer.member_events import Assigned, Lost, OffsetAndMetadata, Revoking
from kcoord_wire.consumer.membership import Membership, machine_of
from kcoord_wire.consumer.positions import EARLIEST, LATEST, ConsumerRecord, Positions
from kcoord_wire.consumer.settings import ConsumerSettings

Partitions = frozenset[TopicPartition]
_T = TypeVar("_T")

_NONE: Final[Partitions] = frozenset()


class RebalanceListener:
    """What happens to an application's partitions. Each method may be a coroutine function.

    The methods run within `Consumer.poll` (and `close`, `unsubscribe`), in the task that polls. Heartbeats go on
    meanwhile, but the group waits: after the rebalance timeout (``max_poll_interval_ms``) the coordinator removes the
    member. An error is raised by that poll as `ListenerError`; the rebalance goes on as if the method had returned.

    Source: kafka/clients `ConsumerRebalanceListener.java`; KIP-429.
    """

    def on_revoked(self, partitions: Partitions) -> Awaitable[None] | None:
        """Give up partitions that this consumer still owns: finish work, commit. Never called with none."""

    def on_assigned(self, partitions: Partitions) -> Awaitable[None] | None:
        """A rebalance has ended, and these partitions are new; none are if the assignment has not grown. They are in
        `Consumer.assignment`, and can be sought and paused."""

    def on_lost(self, partitions: Partitions) -> Awaitable[None] | None:
        """Partitions are lost: another member may own them already, and commits for them fail. Never called with none.

        Calls `on_revoked` unless overridden, as in Java.
        """
        return self.on_revoked(partitions)


class Callbacks:
    """Keeps events about partitions until the application polls.

    :param revoking: called before `on_revoked`, with the partitions
    :param released: called when the partitions of a `Revoking` are given up, with its ticket
    """

    def __init__(
        self, positions: Positions, revoking: Callable[[Partitions], None], released: Callable[[int], None]
    ) -> None:
        self.listener = RebalanceListener()
        self._positions = positions
        self._revoking = revoking
        self._released = released
        self._queue: deque[Assigned | Revoking | Lost] = deque()
        self._announcing = _NONE

    @property
    def are_waiting(self) -> bool:
        """Whether there is anything to call the listener for."""
        return bool(self._queue)

    @property
    def held(self) -> Partitions:
        """The partitions that the listener knows of, or is being called for."""
        return self._positions.announced | self._announcing

    def add(self, event: Assigned | Revoking | Lost) -> None:
        """Take in what the member reports."""
        if isinstance(event, Assigned):
            self._positions.assign(event.partitions)
        elif isinstance(event, Lost):
            self._forget_what_is_over()
            known = event.partitions & self.held
            self._announcing -= event.partitions
            self._positions.drop(event.partitions)
            if not known:
                return
            event = Lost(known)
        self._queue.append(event)

    async def run(self) -> None:
        """Call the listener for everything that has happened.

        :raises ListenerError: a method has failed; the events after it wait for the next call
        """
        while self._queue:
            event = self._queue.popleft()
            match event:
                case Assigned():
                    await self._assigned(event)
                case Revoking():
                    self._revoking(event.partitions)
                    try:
                        await self._revoke(event.partitions)
                    finally:
                        self._released(event.ticket)
                case Lost():
                    await self._call("on_lost", event.partitions)

    async def _assigned(self, event: Assigned) -> None:
        """Announce partitions; again with the next poll if the listener is cancelled, which has not finished then."""
        self._announcing = event.partitions
        try:
            await self._call("on_assigned", event.partitions)
        except asyncio.CancelledError:
            if self._announcing or not event.partitions:  # else all of them are lost
                self._queue.appendleft(replace(event, partitions=self._announcing))
            raise
        except ListenerError:
            self._announced()
            raise
        self._announced()

    def _announced(self) -> None:
        self._positions.announce(self._announcing)
        self._announcing = _NONE

    async def revoke_all(self) -> None:
        """Let the listener give up everything, because the member leaves.

        :raises ListenerError: it has failed
        """
        self._forget_what_is_over()
        try:
            await self.run()
        finally:
            await self._revoke(frozenset(state.partition for state in self._positions))

    def _forget_what_is_over(self) -> None:
        """Drop what was still to be announced or given up; what is lost remains so."""
        self._queue = deque(each for each in self._queue if isinstance(each, Lost))

    async def _revoke(self, partitions: Partitions) -> None:
        try:
            known = partitions & self.held
            self._announcing -= partitions
            if known:
                await self._call("on_revoked", known)
        finally:
            self._positions.drop(partitions)

    async def _call(self, method: str, partitions: Partitions) -> None:
        try:
            result = getattr(self.listener, method)(partitions)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            raise ListenerError(method, partitions) from error


_LOG: Final = logging.getLogger(__name__)
_NO_OFFSET: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """Who commits, for a producer that commits offsets in a transaction (KIP-447): the coordinator refuses them if the
    group has moved on.

    :ivar generation_id: the member's epoch, in a group of KIP-848; -1 outside of a generation
    :ivar member_id: empty for none
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


class Consumer:
    """A member of a consumer group, or a reader of partitions that it assigns itself.

    One task at a time may use it, on one event loop; other threads may not.

    :param settings: see there

    Source: kafka/clients `KafkaConsumer.java`, `AsyncKafkaConsumer.java`; KIP-79 (offsets by
    time), 447 (group metadata), 695 (`current_lag`).
    """

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        self._positions = Positions(settings.auto_offset_reset)
        self._callbacks = Callbacks(self._positions, self._before_revocation, self._released)
        self._signal = Signal()
        self._topics: frozenset[str] = frozenset()
        self._asked: Counter[str] = Counter()  # topics that the application asks about
        self._is_manual = False  # the application assigns
        self._pattern: re.Pattern[str] | None = None
        self._brokers = Brokers(settings)
        self._metadata = MetadataKeeper(settings, self._brokers, self._wanted_topics, self._metadata_updated)
        self._fetcher = Fetcher(settings, self._brokers, self._positions, self._metadata.request, self._signal.set)
        self._membership: Membership | None = None
        self._failure: Exception | None = None
        self._poller: asyncio.Task[Any] | None = None
        self._in_hand: dict[TopicPartition, int] = {}  # the first offsets that the last poll has returned
        self._is_closed = False
        self._next_commit = 0.0
        self._polled_at: float | None = None
        self._rebalancing_since: float | None = None

    # ---- life

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close(30_000, is_finished=error is None)

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Commit if ``enable_auto_commit`` is set, let the listener give up the partitions, leave the group, and end.

        Static members do not leave: they come back, or their session ends (KIP-345). A poll of another task ends first,
        when its listener has returned. A second call does nothing.

        :param timeout_ms: for the coordinator's answers
        :raises ListenerError: the listener has failed; the consumer is closed all the same
        :raises ConcurrentPollError: it is called within the listener
        """
        await self._close(timeout_ms, is_finished=True)

    async def _close(self, timeout_ms: float, *, is_finished: bool) -> None:
        if self._is_closed:
            return
        if self._poller is not None and self._poller is asyncio.current_task():
            raise ConcurrentPollError("a listener cannot close its consumer")
        self._is_closed = True
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._brokers.close)
            stack.push_async_callback(self._metadata.close)
            stack.push_async_callback(self._fetcher.close)
            stack.push_async_callback(self._drop_membership)  # if it is cancelled before the member has left
            self._signal.set()
            while self._poller is not None:
                await self._signal.wait()
            await self._leave("the consumer is being closed", timeout_ms, is_finished=is_finished)

    async def _drop_membership(self) -> None:
        membership, self._membership = self._membership, None
        if membership is not None:
            await membership.close()

    async def _leave(self, reason: str, timeout_ms: float, *, is_finished: bool = True) -> None:
        """Give up the partitions and end the membership.

        :param is_finished: whether the application has finished what the last poll has returned
        """
        membership = self._membership
        if membership is None:
            self._forget_assignment()
            return
        deadline = _now() + timeout_ms / 1000
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._drop_membership)
            stack.push_async_callback(membership.leave, reason, deadline)
            if self.settings.enable_auto_commit:
                await self._commit_at_the_end(deadline, is_finished=is_finished)
            if self._is_manual:
                self._forget_assignment()
            else:
                await self._callbacks.revoke_all()

    def _forget_assignment(self) -> None:
        """Drop what the application has assigned itself; it needs no call of its listener."""
        if self._is_manual:
            self._is_manual = False
            self._topics = frozenset()
            self._positions.drop(self._positions.announced)

    async def _commit_at_the_end(self, deadline: float, *, is_finished: bool) -> None:
        offsets = self._positions.consumed()
        if not is_finished:
            offsets |= {each: min(offsets[each], first) for each, first in self._in_hand.items() if each in offsets}
        try:
            async with asyncio.timeout_at(deadline):
                await self.commit(offsets)
        except (ConsumerError, TimeoutError) as error:
            _LOG.info("offsets were not committed at the end: %s", error)

    # ---- subscription

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener | None = None) -> None:
        """Subscribe to these topics, and to no others from now on. The group is joined by the next `poll`.

        :param topics: names; or a pattern for whole names, which is matched again whenever the metadata is refreshed
        :param listener: is called about partitions; the one before stays if there is none
        :raises TypeError: `topics` is a single string, or has something else in it
        :raises ValueError: there are no topics
        :raises ConsumerClosedError: it is closed
        :raises ConsumerError: there is no ``group_id``, or the application assigns partitions itself
        """
        self._check_open()
        if self._is_manual:
            raise ConsumerError("the application assigns partitions itself; `unsubscribe` ends that")
        names = frozenset([topics.pattern] if isinstance(topics, re.Pattern) else topics)
        if isinstance(topics, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"topics are a list of names or a compiled pattern, not {topics!r}")
        if not names:
            raise ValueError("a subscription needs a topic; `unsubscribe` ends one")
        self._begin_membership(is_member=True)
        if isinstance(topics, re.Pattern):
            self._pattern, self._topics = topics, frozenset()
        else:
            self._pattern, self._topics = None, names
        if listener is not None:
            self._callbacks.listener = listener
        self._metadata.request()

    def _begin_membership(self, *, is_member: bool) -> None:
        if self._membership is None:
            machine = machine_of(self.settings, is_member=is_member)
            self._membership = Membership(
                self.settings, machine, self._brokers, self._metadata, self._notified, self._reported
            )
            self._membership.deliver(events.Stalled())
            self._rebalancing_since = _now()
            self._next_commit = _now() + self.settings.auto_commit_interval_ms / 1000

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, and no others from now on, without being a member of a group. No listener is called.

        With a ``group_id`` the positions begin at the group's committed offsets, and can be committed; the coordinator
        refuses commits while the group has members. A partition that stays keeps its position.

        :raises ValueError: there are no partitions
        :raises ConsumerClosedError: it is closed
        :raises ConsumerError: there is a subscription
        """
        self._check_open()
        wanted = frozenset(partitions)
        if not wanted:
            raise ValueError("an assignment needs a partition; `unsubscribe` ends one")
        if self._membership is not None and not self._is_manual:
            raise ConsumerError("there is a subscription; `unsubscribe` ends it")
        if self.settings.group_id is not None:
            self._begin_membership(is_member=False)
        self._is_manual = True
        new = wanted - self._positions.announced
        self._positions.drop(self._positions.announced - wanted)
        self._positions.assign(new)
        self._positions.announce(new)
        self._topics = frozenset(partition.topic for partition in wanted)
        if self._membership is None:
            self._positions.start(dict.fromkeys(new, -1))
        self._tell(events.Assign(wanted))
        self._metadata.request()

    async def unsubscribe(self) -> None:
        """Give up the partitions, as `close` does, and leave the group. Subscribing again joins as a new member.

        Also ends what `assign` has begun.

        :raises ListenerError: the listener has failed; the group is left all the same
        """
        self._check_open()
        self._pattern, self._topics = None, frozenset()
        self._failure = None
        await self._leave("the consumer unsubscribed from all topics", self.settings.default_api_timeout_ms)

    @property
    def subscription(self) -> frozenset[str]:
        """The topics; of a pattern, those that match at present. There are none beside `assign`."""
        return frozenset() if self._is_manual else self._topics

    def _wanted_topics(self) -> Collection[str] | None:
        return None if self._pattern is not None else self._topics | self._asked.keys()

    def _metadata_updated(self, failures: list[TopicError]) -> None:
        """Take in new metadata: subscribe to what the pattern matches, and let the leader compare the topics."""
        metadata = self._brokers.metadata
        failure = self._metadata.failure
        if failure is not None and not failure.retriable:
            self._failure = failure
        for each in failures:
            if each.topic in self._topics:
                self._positions.fail(each)
        if self._pattern is not None:
            matching = metadata.matching(self._pattern, exclude_internal=self.settings.exclude_internal_topics)
            self._topics = frozenset(matching)
        if self._membership is not None and metadata.addresses:
            known = events.TopicsKnown(
                dict(metadata.counts), metadata.racks_of(metadata.counts), dict(metadata.topic_ids)
            )
            self._membership.deliver(known)
            if not self._is_manual:
                self._membership.deliver(events.Subscribe(tuple(sorted(self._topics))))
        self._fetcher.start()
        self._signal.set()

    # ---- what the member reports

    def _notified(self, effect: events.MemberEffect) -> None:
        match effect:
            case events.Assigned() | events.Revoking() | events.Lost():
                self._note_rebalance(effect)
                self._callbacks.add(effect)
            case events.Fetched():
                self._positions.start(effect.offsets)
                self._fetcher.start()
            case events.NotFetched():
                self._positions.refuse(effect.errors)
            case events.Failed():
                self._failure = self._member().failure
            case _:
                pass
        self._signal.set()

    def _note_rebalance(self, effect: Assigned | Revoking | Lost) -> None:
        """Count a rebalance, from the first partition that is given up to the assignment."""
        metrics = self._brokers.metrics
        if isinstance(effect, Lost):
            metrics.count("lost_partitions_total", len(effect.partitions))
        if not isinstance(effect, Assigned):
            self._rebalancing_since = self._rebalancing_since or _now()
            return
        since, self._rebalancing_since = self._rebalancing_since, None
        metrics.took("rebalance", 0 if since is None else _now() - since)

    def _reported(self, error: ConsumerError) -> None:
        self._positions.fail(error)
        self._signal.set()

    def _before_revocation(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit what is to be given up, without a wait: JoinGroup follows on the same connection."""
        if self.settings.enable_auto_commit:
            self._commit_in_the_background(self._positions.consumed(partitions))

    def _released(self, ticket: int) -> None:
        if self._membership is not None:
            self._membership.deliver(events.Released(ticket, {}))

    # ---- records

    async def poll(self, timeout_ms: float | None = 0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return records as soon as there are some; none if there are none within the timeout.

        Runs the listener and lets the member join; the timeout does not end a listener that takes longer. The records
        of one partition come in order.

        :param timeout_ms: None for no timeout
        :param max_records: at most so many, 1 or more, and not more than ``max_poll_records``
        :raises ListenerError: the listener has failed
        :raises GroupError: the coordinator refuses this member for good
        :raises BrokerError: the brokers refuse this client for good (`consumer.errors`)
        :raises NoOffsetError, OffsetOutOfRangeError: with ``auto_offset_reset`` ``none``; the first by each poll until
            the application seeks
        :raises CorruptRecordsError, TopicError: a partition cannot be read
        :raises AssignmentError: an assignor has failed
        :raises ConcurrentPollError: another task polls
        :raises ConsumerClosedError: it is closed
        :raises ValueError: `max_records` is below 1
        """
        self._check_open()
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records must be 1 or more, not {max_records}")
        if self._poller is not None:
            raise ConcurrentPollError("another task is polling")
        if self._membership is None and not self._is_manual:
            raise ConsumerError("there is no subscription")
        most = min(max_records or self.settings.max_poll_records, self.settings.max_poll_records)
        deadline = None if timeout_ms is None else _now() + timeout_ms / 1000
        self._poller = asyncio.current_task()
        if self._polled_at is not None:
            self._brokers.metrics.took("poll", _now() - self._polled_at)
        try:
            await asyncio.sleep(0)  # for the background, if the application polls without ever waiting
            self._commit_at_intervals()
            return await self._poll(most, deadline)
        finally:
            self._poller = None
            self._polled_at = _now()
            self._tell(events.Stalled())
            self._signal.set()

    async def _poll(self, most: int, deadline: float | None) -> list[ConsumerRecord]:
        while True:
            await self._run_callbacks()
            self._check_open()
            self._raise_failure()  # before `Polled`: a member that has left for one of them rejoins with the next poll
            self._tell(events.Polled())
            if self._callbacks.are_waiting:  # a rebalance that waited for this poll
                continue
            self._positions.check_offsets()  # after `Polled`: the member rejoins whatever its partitions lack
            records = self._positions.next_records(most)
            self._in_hand = {}
            for record in records:
                self._in_hand.setdefault(TopicPartition(record.topic, record.partition), record.offset)
            self._fetcher.start()
            if records:
                self._brokers.metrics.count("records_consumed_total", len(records))
                return records
            if not self._positions.failures and not await self._signal.wait(deadline):
                return []

    async def _run_callbacks(self) -> None:
        if self._callbacks.are_waiting:
            self._tell(events.Stalled())  # the listener takes the application's time
            await self._callbacks.run()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._positions.failures:
            raise self._positions.failures.pop(0)

    def _tell(self, event: events.MemberEvent) -> None:
        if self._membership is not None:
            self._membership.deliver(event)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        [record] = await self.poll(None, 1)
        return record

    # ---- commits

    async def commit(self, offsets: events.Offsets | None = None) -> None:
        """Commit offsets, and wait for the coordinator. What may succeed later is tried again.

        :param offsets: numbers, or `OffsetAndMetadata`; by default the positions: the offsets after the last records
            that `poll` has returned
        :raises CommitFailedError: they were refused; `PollIntervalExceededError` if for want of a poll
        :raises ValueError: an offset is negative, or does not fit into 64 bits
        :raises TypeError: an offset is no int
        :raises ConsumerTimeoutError: there was no answer within ``default_api_timeout_ms``
        """
        left = self._offsets(offsets)
        failures = 0
        try:
            async with asyncio.timeout(self.settings.default_api_timeout_ms / 1000):
                while left:
                    try:
                        return await self._committing(left)
                    except CommitFailedError as error:
                        if not error.error.retriable:
                            raise
                        left = error.offsets
                    failures += 1
                    await asyncio.sleep(backoff_seconds(self.settings, failures))
        except TimeoutError:
            detail = f"{len(left)} offsets were not committed in {self.settings.default_api_timeout_ms} ms"
            raise ConsumerTimeoutError(detail) from None

    def commit_async(self, offsets: events.Offsets | None = None) -> asyncio.Future[None]:
        """Commit offsets without waiting; the future raises `CommitFailedError`. Nothing is tried again.

        :param offsets: as in `commit`
        """
        future = self._committing(self._offsets(offsets))
        future.add_done_callback(_retrieve)
        return future

    def _committing(self, offsets: events.Offsets) -> asyncio.Future[None]:
        began = _now()

        def note(future: asyncio.Future[None]) -> None:
            if not future.cancelled():
                self._brokers.metrics.took("commit", _now() - began)
                self._brokers.metrics.count("failed_commits_total", future.exception() is not None)

        future = self._member().commit(offsets)
        future.add_done_callback(note)
        return future

    def _offsets(self, given: events.Offsets | None) -> events.Offsets:
        if given is None:
            return self._positions.consumed()
        for partition, each in given.items():
            offset = each.offset if isinstance(each, OffsetAndMetadata) else each
            if not isinstance(offset, int):
                raise TypeError(f"{partition} cannot be at offset {offset!r}: an offset is an int")
            if not 0 <= offset < _NO_OFFSET:
                raise ValueError(f"{partition} cannot be at offset {offset}")
        return given

    def _commit_at_intervals(self) -> None:
        if self.settings.enable_auto_commit and self._membership is not None and _now() >= self._next_commit:
            self._next_commit = _now() + self.settings.auto_commit_interval_ms / 1000
            self._commit_in_the_background(self._positions.consumed())

    def _commit_in_the_background(self, offsets: Mapping[TopicPartition, int]) -> None:
        if offsets:
            self._committing(offsets).add_done_callback(_note_result)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what the group has committed for these partitions, its own or others; None where that is nothing.

        :raises TopicError: a topic may not be read, or is not known
        :raises GroupError: the group may not be read
        :raises ConsumerError: there is neither a subscription nor an assignment, or no ``group_id``
        :raises ConsumerTimeoutError: there was no answer within ``default_api_timeout_ms``
        """
        wanted = frozenset(partitions)
        return await self._within_timeout("the committed offsets are not known", self._committed(wanted))

    async def _committed(self, wanted: frozenset[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        failures = 0
        while left := wanted - found.keys():
            known = await self._member().committed(left)
            if known is not None:
                found |= {each: offset if offset.offset >= 0 else None for each, offset in known.offsets.items()}
                for partition, error in known.errors.items():
                    if error and not error.retriable:
                        raise TopicError(partition.topic, error)
            if self._failure is not None:
                raise self._failure
            if wanted - found.keys():
                failures += 1
                await asyncio.sleep(backoff_seconds(self.settings, failures))
        return found

    async def _within_timeout(self, what: str, doing: Coroutine[Any, Any, _T]) -> _T:
        limit = self.settings.default_api_timeout_ms
        try:
            async with asyncio.timeout(limit / 1000):
                return await doing
        except TimeoutError:
            raise ConsumerTimeoutError(f"{what} within {limit} ms") from None

    def _member(self) -> Membership:
        if self._membership is None:
            raise ConsumerError("there is no group_id" if self._is_manual else "there is no subscription")
        return self._membership

    # ---- positions

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member holds and that the listener knows of, or is being called for."""
        return self._callbacks.held

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that `poll` will return; wait until it is known.

        :raises NotAssignedError: the partition is not assigned
        :raises ConsumerTimeoutError: it is not known within ``default_api_timeout_ms``
        """
        deadline = _now() + self.settings.default_api_timeout_ms / 1000
        while (offset := self._positions.state(partition).offset) is None:
            if not await self._signal.wait(deadline):
                raise ConsumerTimeoutError(f"the position in {partition.topic}-{partition.partition} is not known")
        return offset

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at this offset.

        :raises NotAssignedError: the partition is not assigned
        :raises ValueError: the offset is negative, or does not fit into 64 bits
        """
        self._offsets({partition: offset})
        self._positions.state(partition).move(offset)
        self._fetcher.start()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on at the first record that the brokers have, of all assigned partitions by default."""
        self._look_up(EARLIEST, partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on after the last record, of all assigned partitions by default."""
        self._look_up(LATEST, partitions)

    def _look_up(self, timestamp: int, partitions: Iterable[TopicPartition] | None) -> None:
        for partition in self.assignment if partitions is None else partitions:
            self._positions.state(partition).look_up(timestamp)
        self._fetcher.start()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; what is buffered stays. A revocation ends the pause.

        :raises NotAssignedError: one of them is not assigned
        """
        for partition in partitions:
            self._positions.state(partition).is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End a pause.

        :raises NotAssignedError: one of them is not assigned
        """
        for partition in partitions:
            self._positions.state(partition).is_paused = False
        self._fetcher.start()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(state.partition for state in self._positions if state.is_paused)

    # ---- what the brokers have

    async def partitions_for(self, topic: str) -> frozenset[TopicPartition]:
        """Return the partitions of a topic, of any.

        :raises TopicError: it may not be read, or its name is not valid
        :raises ConsumerTimeoutError: it is not known within ``default_api_timeout_ms``
        """
        metadata = self._brokers.metadata

        async def wait() -> frozenset[TopicPartition]:
            while topic not in metadata.counts:
                if topic in metadata.refused:
                    raise metadata.refused[topic]
                await self._metadata.answer(None)
            return frozenset(TopicPartition(topic, index) for index in range(metadata.counts[topic]))

        return await self._asking([topic], f"the topic {topic!r} is not known", wait())

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offsets that the brokers have, of any partitions.

        :raises TopicError: a topic may not be read, or its name is not valid
        :raises ConsumerTimeoutError: they are not known within ``default_api_timeout_ms``
        """
        return await self._ends(EARLIEST, partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets after the last records, of any partitions; with ``read_committed`` the last stable ones.

        :raises TopicError, ConsumerTimeoutError: as of `beginning_offsets`
        """
        return await self._ends(LATEST, partitions)

    async def _ends(self, timestamp: int, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = await self._look_for(dict.fromkeys(partitions, timestamp))
        return {partition: place.offset for partition, place in found.items() if place is not None}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first records from these times on, of any partitions; None where there is none.

        :param timestamps: ms since 1970 UTC
        :raises ValueError: a time is negative
        :raises TopicError, ConsumerTimeoutError: as of `beginning_offsets`
        """
        for partition, timestamp in timestamps.items():
            if timestamp < 0:
                raise ValueError(f"{partition} cannot be looked up at time {timestamp}")
        return await self._look_for(timestamps)

    async def _look_for(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        async def look() -> dict[TopicPartition, OffsetAndTimestamp | None]:
            if any(self._brokers.metadata.leader(partition) is None for partition in timestamps):
                await self._metadata.answer(None)
            return await self._fetcher.look_up(timestamps)

        topics = {partition.topic for partition in timestamps}
        return await self._asking(topics, f"{len(timestamps)} offsets are not known", look())

    async def _asking(self, topics: Collection[str], what: str, doing: Coroutine[Any, Any, _T]) -> _T:
        """Do something for which the metadata of these topics is needed."""
        self._asked.update(topics)
        try:
            return await self._within_timeout(what, doing)
        finally:
            self._asked -= Counter(topics)

    def current_lag(self, partition: TopicPartition) -> int | None:
        """Return how many records of a partition are still to come, by what the last fetch of it said; None before the
        first one, and while the position is not known. With ``read_committed`` only what is stable counts.

        :raises NotAssignedError: the partition is not assigned
        """
        return self._positions.state(partition).lag

    def metrics(self) -> dict[str, float]:
        """Return what this consumer has done: counts, and milliseconds of what takes time.

        The time of a poll is that between two of them, of a rebalance that from the subscription, or the first
        partition that is given up, to the assignment. At present: ``assigned_partitions``, and ``records_lag_max``, the
        largest `current_lag`.
        """
        lags = [state.lag for state in self._positions if state.lag is not None]
        now: dict[str, float] = {"assigned_partitions": len(self.assignment), "records_lag_max": max(lags, default=0)}
        return self._brokers.metrics.values() | now

    # ---- the group

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return what a producer passes on to commit offsets in a transaction.

        :raises ConsumerError: there is no ``group_id``
        """
        settings = self.settings
        if settings.group_id is None:
            raise ConsumerError("there is no group_id")
        return ConsumerGroupMetadata(settings.group_id, self.generation_id, self.member_id, settings.group_instance_id)

    def enforce_rebalance(self, reason: str | None = None) -> None:
        """Rejoin with the next `poll`, so that the group rebalances (KIP-568). Nothing happens during a rebalance, nor,
        as in Java, in a group of KIP-848.

        :raises ConsumerError: there is no subscription
        """
        if self._is_manual:
            raise ConsumerError("there is no subscription")
        self._member().deliver(events.Rejoin(reason))

    @property
    def member_id(self) -> str:
        """As the coordinator gave it, or, in a group of KIP-848, as this member chose it; empty outside the group."""
        return self._membership.machine.member_id if self._membership is not None else ""

    @property
    def generation_id(self) -> int:
        """Of the group; in one of KIP-848 the member's epoch; -1 outside of one."""
        return self._membership.machine.generation_id if self._membership is not None else -1

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConsumerClosedError("the consumer is closed")


def _now() -> float:
    return asyncio.get_running_loop().time()


def _retrieve(future: asyncio.Future[None]) -> None:
    """Take note of the exception, which asyncio would log otherwise if the application does not want it."""
    if not future.cancelled():
        future.exception()


def _note_result(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _LOG.info("an automatic commit has failed: %s", error)
