"""The host of a member machine on an event loop: its requests go out, responses and time come in.

Laws:

* The machine is given events one at a time, never while it handles one, with times that never decrease.
* The machine takes its coordinator for known once a connection to it is open and the versions of its requests are
  agreed. Requests leave in the order in which the machine sends them: an offset commit before the JoinGroup after it.
* A connection that ends is reported once, whatever waits on it.
* LeaveGroup overtakes a JoinGroup or SyncGroup that the coordinator has parked: it goes on a connection of its own,
  because brokers read nothing behind a parked request.
* A leader assigns with the metadata of all topics of the group, and sends only what `requests.assign_checked` lets
  through. An assignor that is not this package's, or has much to do, runs in a thread: heartbeats go on.
* An error that no retry removes ends the membership: what the member holds is lost, because nothing keeps it alive.
* Time is the event loop's.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.assignors import ASSIGNORS, TopicPartition
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.consumer import member_events as events
from kcoord_wire.consumer import requests
from kcoord_wire.consumer.brokers import Brokers, MetadataKeeper
from kcoord_wire.consumer.classic_member import MemberMachine
from kcoord_wire.consumer.connection import BrokerConnection
from kcoord_wire.consumer.errors import (
    AssignmentError,
    BrokerError,
    CommitFailedError,
    ConsumerError,
    GroupError,
    PollIntervalExceededError,
    UnsupportedVersionError,
)
from kcoord_wire.consumer.group_client import GroupClient
from kcoord_wire.consumer.kip848_client import ServerAssignedMember
from kcoord_wire.consumer.requests import Kind, assign_checked
from kcoord_wire.consumer.settings import ConsumerSettings
from kcoord_wire.errors import EncodeError
from kcoord_wire.kernel.driver import Driver
from kcoord_wire.kernel.machines import Close, Disconnected
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

_LOG: Final = logging.getLogger(__name__)
_NEWEST: Final = events.Versions()
_API_KEYS: Final = events.Versions(
    find_coordinator=ApiKey.FIND_COORDINATOR,
    join=ApiKey.JOIN_GROUP,
    sync=ApiKey.SYNC_GROUP,
    heartbeat=ApiKey.HEARTBEAT,
    leave=ApiKey.LEAVE_GROUP,
    commit=ApiKey.OFFSET_COMMIT,
    fetch=ApiKey.OFFSET_FETCH,
    metadata=ApiKey.METADATA,
    consumer_heartbeat=ApiKey.CONSUMER_GROUP_HEARTBEAT,
)
_LARGEST_PORT: Final = 0xFFFF
_QUICK: Final = 10_000
"""Partitions that this package's assignors assign in some hundredths of a second, without a thread."""
_SPARE_MS: Final = 10_000
"""By how much a connection waits longer for a response than the machine does: the machine decides what to do."""


def machine_of(settings: ConsumerSettings, *, is_member: bool) -> GroupClient:
    """Return the machine of a consumer.

    :param is_member: whether its group assigns; otherwise the application does
    """
    of_member = settings.of_member(_NEWEST)
    if not is_member:
        return GroupClient(of_member)
    if settings.group_protocol == "consumer":
        return ServerAssignedMember(of_member, str(uuid.uuid4()), settings.group_remote_assignor)
    return MemberMachine(of_member, settings.assignors, ConsumerProtocol(), host_assigns=True)


class Membership:
    """One client of the group, from the subscription or the assignment to its end.

    :param machine: see `machine_of`
    :param metadata: kept up to date
    :param notify: called with every effect that is not about the network
    :param report: called with errors for the application that leave the member able to rejoin
    :ivar machine: as given
    :ivar failure: the error that has ended the membership; None if there is none
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        machine: GroupClient,
        brokers: Brokers,
        metadata: MetadataKeeper,
        notify: Callable[[events.MemberEffect], None],
        report: Callable[[ConsumerError], None],
    ) -> None:
        self.machine = machine
        self.failure: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._brokers = brokers
        self._metadata = metadata
        self._notify = notify
        self._report = report
        self._timeout_ms = max(settings.request_timeout_ms, settings.max_poll_interval_ms) + _SPARE_MS
        self._driver = Driver(
            self.machine, execute=self._carry_out, failed=self._fail, clock=lambda: int(self._loop.time() * 1000)
        )
        self._coordinator: BrokerConnection | None = None
        self._address = ("", 0)  # the coordinator's
        self._parked: asyncio.Future[Any] | None = None
        self._finding: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._commits: dict[int, _Pending] = {}
        self._questions: dict[int, asyncio.Future[events.CommittedKnown | None]] = {}
        self._last_number = 0  # of a commit or question
        self._has_expired = False  # for want of a poll

    # ---- events and effects

    def deliver(self, event: events.MemberEvent) -> None:
        """Give the machine an event and carry out the effects."""
        if isinstance(event, events.Polled):
            self._has_expired = False
        self._driver.deliver(event)

    def _carry_out(self, _machine: Any, effect: events.MemberEffect, _cause: None) -> None:
        match effect:
            case events.SendRequest():
                self._send(effect)
            case Close():
                self._drop_connection()
            case events.Assigning():
                self._spawn(self._lead(effect))
            case events.Committed():
                self._settle(effect.number, effect.offsets, None)
            case events.NotCommitted():
                self._settle(effect.number, effect.offsets, effect.error)
            case events.CommittedKnown():
                self._answer(effect.number, effect)
            case events.MetadataWanted():
                self._metadata.request()
            case _:
                self._take_news(effect)

    def _take_news(self, effect: events.MemberEffect) -> None:
        """Take in what is not about the network, and pass on what the application may want to know."""
        match effect:
            case events.PollExpired():
                self._has_expired = True
                interval_ms = self._settings.max_poll_interval_ms
                _LOG.warning("no poll for max_poll_interval_ms, %d ms: the member leaves the group", interval_ms)
            case events.Unreadable():
                self._report(AssignmentError(effect.protocol, effect.detail))
            case events.Failed():
                self._fail(GroupError(effect.error))
            case _:
                if isinstance(effect, events.Assigned) and not self.machine.is_leader:
                    self._metadata.group_topics = frozenset()
                self._notify(effect)

    def _fail(self, error: Exception, _cause: None = None) -> None:
        """End the membership for this reason; of the machine's errors that is an `AssignorHookError`, or a fault."""
        self.failure = error
        self._driver.stop()
        if self.machine.owned:
            self._notify(events.Lost(self.machine.owned))
        self._drop_connection()
        self._give_up_commits()
        self._notify(events.Failed(error.error if isinstance(error, GroupError) else ErrorCode.UNKNOWN_SERVER_ERROR))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- requests

    def _send(self, effect: events.SendRequest) -> None:
        if isinstance(effect.message, m.FindCoordinatorRequest):
            self._finding = self._spawn(self._find(effect))
            return
        is_parked = self._parked is not None and not self._parked.done()
        if isinstance(effect.message, m.LeaveGroupRequest) and is_parked:
            leaving = self._spawn(self._leave_beside(effect))
            self._waiting.add(leaving)
            leaving.add_done_callback(self._waiting.discard)
            return
        connection = self._coordinator
        assert connection is not None  # the machine sends nothing else while it knows no coordinator
        try:
            future = connection.request(effect.message, effect.version, timeout_ms=self._timeout_ms)
        except BrokerError:
            self._loop.call_soon(self._lost, connection)
            return
        except EncodeError as error:  # a value of the broker's or the application's that does not fit
            self._loop.call_soon(self._fail, error)
            return
        if isinstance(effect.message, m.JoinGroupRequest | m.SyncGroupRequest):
            self._parked = future
        self._waiting.add(future)
        future.add_done_callback(partial(self._answered, connection, effect.request_id))

    def _answered(self, connection: BrokerConnection, request_id: int, future: asyncio.Future[Any]) -> None:
        self._waiting.discard(future)
        if future.cancelled():
            return
        if future.exception() is not None:
            self._lost(connection)
        elif connection is self._coordinator:
            self.deliver(events.Arrived(request_id, future.result()))

    async def _leave_beside(self, effect: events.SendRequest) -> None:
        with suppress(BrokerError):  # then the session has to end
            connection = await self._brokers.open(*self._address)
            try:
                await connection.request(effect.message, effect.version)
            finally:
                await connection.close()

    async def _find(self, effect: events.SendRequest) -> None:
        """Ask any broker for the coordinator, and connect to it."""
        try:
            response = await self._search(effect)
        except BrokerError as error:
            response = None
            if not error.retriable:
                self._fail(error)
        self._finding = None
        if response is None:
            self.deliver(Disconnected())
        else:
            self.deliver(events.Arrived(effect.request_id, response))

    async def _search(self, effect: events.SendRequest) -> Any | None:
        """Return the response once the coordinator that it names is connected; None to ask again."""
        settings = self.machine.settings
        broker = await self._brokers.any()
        version = broker.highest_version(ApiKey.FIND_COORDINATOR, _NEWEST.find_coordinator)
        if version != effect.version:
            self.machine.settings = replace(settings, versions=settings.versions._replace(find_coordinator=version))
            return None
        response = await broker.request(effect.message, version)
        found = requests.found_coordinator(settings, response)
        if not found.error_code:
            if not 0 < found.port <= _LARGEST_PORT:
                return None
            self._address = found.host, found.port
            connection = await self._brokers.open(*self._address)
            try:
                self._take_coordinator(connection)
            except BrokerError:
                await connection.close()
                raise
        return response

    def _take_coordinator(self, connection: BrokerConnection) -> None:
        """Agree on versions.

        :raises UnsupportedVersionError: there is an API without a common one
        """
        settings = self.machine.settings
        agreed = {
            kind.value: connection.highest_version(getattr(_API_KEYS, kind.value), getattr(_NEWEST, kind.value))
            for kind in self.machine.kinds
        }
        if agreed.get(Kind.BEAT.value, _NEWEST.consumer_heartbeat) < _NEWEST.consumer_heartbeat:
            detail = "group_protocol 'consumer' needs ConsumerGroupHeartbeat 1, of Kafka 4.0"
            raise UnsupportedVersionError(connection.address, detail)
        self.machine.settings = replace(settings, versions=settings.versions._replace(**agreed))
        self._coordinator = connection
        connection.lost.add_done_callback(lambda _: self._lost(connection))

    def _lost(self, connection: BrokerConnection) -> None:
        if connection is self._coordinator:
            self._coordinator = None
            self.deliver(Disconnected())

    def _drop_connection(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
            self._finding = None
        connection, self._coordinator = self._coordinator, None
        if connection is not None:
            self._spawn(connection.close())

    # ---- leading

    async def _lead(self, task: events.Assigning) -> None:
        """Compute the group's assignment, with topics that only other members subscribe to."""
        topics = frozenset(topic for subscription in task.subscriptions.values() for topic in subscription.topics)
        self._metadata.group_topics = topics
        metadata = self._brokers.metadata
        if topics - metadata.counts.keys():
            with suppress(BrokerError):  # `poll` raises it
                await self._metadata.answer(self._loop.time() + self._settings.request_timeout_ms / 1000)
        task = replace(task, partitions=metadata.counts_of(topics), racks=metadata.racks_of(topics))
        assignments = None
        try:
            is_own = ASSIGNORS.get(task.assignor.name) is task.assignor
            if is_own and sum(task.partitions.values()) <= _QUICK:
                assignments = assign_checked(task)
            else:
                assignments = await asyncio.to_thread(assign_checked, task)
        except AssignmentError as error:
            self._report(error)
        self.deliver(events.Distribute(task.generation_id, task.partitions, assignments))

    # ---- commits

    def commit(self, offsets: events.Offsets) -> asyncio.Future[None]:
        """Commit offsets; the future raises `CommitFailedError`."""
        self._last_number += 1
        pending = _Pending(dict(offsets), self._loop.create_future())
        self._commits[self._last_number] = pending
        if self.failure is not None:
            self._settle(self._last_number, offsets, ErrorCode.UNKNOWN_MEMBER_ID)
        self.deliver(events.Commit(dict(offsets), self._last_number))
        return pending.future

    def committed(self, partitions: frozenset[TopicPartition]) -> asyncio.Future[events.CommittedKnown | None]:
        """Ask what is committed for these partitions; the future has None if the connection is given up."""
        self._last_number += 1
        future = self._questions[self._last_number] = self._loop.create_future()
        if self.failure is not None:
            self._answer(self._last_number, None)
        self.deliver(events.AskCommitted(partitions, self._last_number))
        return future

    def _answer(self, number: int, known: events.CommittedKnown | None) -> None:
        question = self._questions.pop(number, None)
        if question is not None and not question.done():
            question.set_result(known)

    def _settle(self, number: int, offsets: events.Offsets, error: ErrorCode | None) -> None:
        pending = self._commits.get(number)
        if pending is None:
            return
        if error is None:
            for partition in offsets:
                pending.left.pop(partition, None)
            if pending.left:
                return
        del self._commits[number]
        if pending.future.done():
            return
        if error is None:
            pending.future.set_result(None)
        else:
            kind = PollIntervalExceededError if self._has_expired else CommitFailedError
            pending.future.set_exception(kind(offsets, error))

    # ---- the end

    async def leave(self, reason: str, deadline: float) -> None:
        """Leave the group, and wait until what was sent is answered.

        :param deadline: of the loop's clock, in seconds
        """
        self.deliver(events.Leave(reason))
        # A member of KIP-848 says farewell when its last heartbeat is answered.
        while (left := self._waiting - {self._parked}) and (seconds := deadline - self._loop.time()) > 0:
            await asyncio.wait(left, timeout=seconds)

    async def close(self) -> None:
        """Close the connection and end everything."""
        self._driver.stop()
        leading = list(self._tasks)
        self._drop_connection()
        self._give_up_commits()
        for task in leading:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _give_up_commits(self) -> None:
        for number in list(self._commits):
            self._settle(number, self._commits[number].left, ErrorCode.NETWORK_EXCEPTION)
        for number in list(self._questions):
            self._answer(number, None)


class _Pending:
    """A commit that waits for its answer."""

    __slots__ = ("future", "left")

    def __init__(self, left: dict[TopicPartition, Any], future: asyncio.Future[None]) -> None:
        self.left = left
        self.future = future
