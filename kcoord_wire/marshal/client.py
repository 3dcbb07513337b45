"""A consumer of a group that coordinates through a log, and the thread that runs its member.

    with MarshalConsumer(log, data, group_id="billing", client_id="b-1", topics=["orders"]) as consumer:
        for record in consumer:
            print(record.topic, record.partition, record.offset, record.value, record.token)

Laws:

* A thread of its own runs the machine, so heartbeats and fences do not depend on what the application does.
* A record is handed out only while its tenure is valid by the clock at that moment: a process that was stopped for
  longer than a heartbeat interval hands out nothing of before.
* Positions move only past processed records. With `acknowledges` (the default) a record is processed when the
  application asks for the next one; else, or before that, by `MarshalConsumer.processed`, in any order, from any
  thread. A record in hand when the consumer is closed, or its tenure ends, is delivered again, to the next holder.
* An application that asks for nothing for `max_poll_interval_ms` is taken for hanging: its member releases everything,
  as Kafka's consumers leave their group, and a new one, with another instance id, begins when it asks again.
* What goes wrong with the log for good is raised to the application, as `LogError`. `close` returns within
  `CLOSE_SECONDS`, whether the log answers or not, and leaves no thread behind.
* What the application shares with the thread is guarded by `MemberHost.changed`. The machine handles an event, and what
  follows from it for the inbox happens, under this lock and after it has heard of every record that was handed out: a
  tenure ends with what the application has at that moment, and not with one record more.
* Until `MemberHost.valid_until` all tenures are valid. An application that takes records looks at the clock, and from
  then on waits for the thread; so a thread that is late hands out no record late.
* While `inbox.MOST_WAITING` records wait for the application nothing more is fetched.

Sources: Marshal PROTOCOL.md; the Go library's consumer, whose `Terminate(false)` is ``close(keep_claims=True)``.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from kcoord_wire.kernel.driver import monotonic_ms
from kcoord_wire.kernel.machines import LogEvent, Shutdown, Tick
from kcoord_wire.marshal import member_events as events
from kcoord_wire.marshal.hosting import LogHost
from kcoord_wire.marshal.inbox import Covered, DataRecord, DataTopics, Gained, Inbox, Lost
from kcoord_wire.marshal.log import Log, coordination_partition
from kcoord_wire.marshal.member import MarshalMember
from kcoord_wire.marshal.range_topics import RangeTopics
from kcoord_wire.marshal.values import check_id

WAIT_SECONDS: Final = 0.05
"""Longest wait of one step: what the application wants waits as long."""
_REPORT_MS: Final = 100  # from one report of what was processed to the next, where nothing else happens


def new_instance_id() -> str:
    """Return the id of a new instance, of the form that the Go library's has."""
    return uuid.uuid4().hex[:8]


class MemberHost:
    """The member of one application; after that hung, the next one.

    :param settings: of the first member; each one that follows has another instance id
    :param max_poll_interval_ms: after so long without the application the member ends
    :ivar changed: guards everything that is public
    :ivar asked: events of the application
    :ivar is_polling: whether the application waits for a record; else `polled_at` says until when it did, in ms
    :ivar valid_until: ms; 0 if nothing is held
    :ivar failure: what has ended it
    """

    def __init__(
        self,
        log: Log,
        data: DataTopics,
        settings: events.MemberSettings,
        batch_records: int,
        max_poll_interval_ms: int,
    ) -> None:
        self.changed = threading.Condition()
        self.inbox = Inbox(settings.delivery, batch_records)
        self.asked: deque[Any] = deque()
        self.is_polling = False
        self.polled_at = monotonic_ms()
        self.valid_until = 0
        self.has_ended = False
        self.failure: Exception | None = None
        self._log = log
        self._data = data if settings.ranges is None else RangeTopics(data)
        self._max_poll_interval_ms = max_poll_interval_ms
        self._reported_at = 0
        self._is_abandoned = self._is_leaving = False
        self._is_hanging = False
        self._counts: events.TopicPartitions | None = None
        self._member = MarshalMember(settings)
        self._log_host = LogHost(self, log, lambda effect: None)

    def run(self) -> None:
        """Run until the application has ended it, or it fails."""
        try:
            self._start()
            while not (self._is_abandoned or (self._log_host.has_ended and self._is_leaving)):
                if self._log_host.has_ended:
                    self._rest()
                else:
                    self._step()
        except Exception as error:  # LogError, or a fault: the application gets it
            self.failure = error
        finally:
            self._close()

    def abandon(self) -> None:
        """End the thread soon, whatever the machine waits for; from any thread."""
        self._is_abandoned = True

    def is_held(self, tenure: events.Tenure) -> bool:
        """Return whether a tenure is valid at this moment."""
        return self._member.is_held(tenure, monotonic_ms())

    # ---- the life of members

    def _start(self) -> None:
        settings = self._member.settings
        self._log_host.start({coordination_partition(topic, settings.partitions) for topic in settings.topics})
        if self._counts is not None:
            self._log_host.handle(self._counts)

    def _rest(self) -> None:
        """Wait, after an application that hung, until it asks for records again: a new member begins."""
        with self.changed:
            self._take_wishes()
            if not self.is_polling:
                self.changed.wait(WAIT_SECONDS)
        if self.is_polling and not self._is_leaving:
            self._is_hanging = False
            self._member = MarshalMember(replace(self._member.settings, instance_id=new_instance_id()))
            self._log_host = LogHost(self, self._log, lambda effect: None)
            self._start()

    def _close(self) -> None:
        with self.changed:
            self.has_ended = True
            for tenure in list(self.inbox.tenures):  # no heartbeat renews them any more
                self.inbox.close(tenure, events.LossReason.EXPIRED, 0)
            self.changed.notify_all()
        try:
            self._data.close()
        finally:
            self._log.close()

    # ---- one step

    def _step(self) -> None:
        """Wait for what comes first, and handle it."""
        log_host = self._log_host
        wait = self._wait_seconds()
        has_room, is_awaited = self.inbox.has_room, log_host.is_awaited
        log_host.step(wait if is_awaited else 0)
        wait = 0 if is_awaited else wait
        fetched: Sequence[Any] = self._data.poll(wait) if has_room else ()
        with self.changed:
            news = self._sort(fetched)
            news += self._take_wishes()
            if not has_room and not self.inbox.has_room:
                self.changed.wait(wait)
        if self.inbox.is_at_most_once or monotonic_ms() - self._reported_at >= _REPORT_MS:
            news.append(Tick())
        for event in news:
            log_host.handle(event)

    def _wait_seconds(self) -> float:
        deadline = self._member.deadline
        if deadline is None:
            return WAIT_SECONDS
        return min(WAIT_SECONDS, max(0, deadline - monotonic_ms()) / 1000)

    def _sort(self, fetched: Sequence[Any]) -> list[Any]:
        """Take what the topics have returned; return what is for the machine."""
        news = []
        for event in fetched:
            if isinstance(event, DataRecord):
                self.inbox.put(event)
            elif isinstance(event, Covered):
                self.inbox.cover(event)
            elif isinstance(event, LogEvent):
                self._log_host.note(event)
            else:
                if isinstance(event, events.TopicPartitions):
                    self._counts = event
                news.append(event)
        if fetched:
            self.changed.notify_all()
        return news

    def _take_wishes(self) -> list[Any]:
        """Return what the application wants, by its words or by its silence."""
        wishes = [*self.asked]
        self.asked.clear()
        self._is_leaving |= any(isinstance(wish, Shutdown | events.Suspend) for wish in wishes)
        silent_ms = monotonic_ms() - self.polled_at
        is_silent = not self.is_polling and silent_ms > self._max_poll_interval_ms
        if is_silent and not (self._is_leaving or self._is_hanging):
            self._is_hanging = True
            self._log_host.note(LogEvent(logging.WARNING, "application hangs", {"silent_ms": silent_ms}))
            wishes.append(Shutdown())
        return wishes

    # ---- the machine, as the log's host sees it

    @property
    def deadline(self) -> int | None:
        """See `machines.Machine`."""
        return self._member.deadline

    def handle(self, event: Any, now: int) -> Sequence[Any]:
        """Let the member handle an event; return the effects about the log."""
        with self.changed:
            self._reported_at = now
            effects: list[Any] = []
            for each in self.inbox.news(now):
                effects += self._member.handle(each, now)
            effects += self._member.handle(event, now)
            rest = []
            for effect in effects:
                execute = _EFFECTS.get(type(effect))
                if execute is None:
                    rest.append(effect)
                else:
                    execute(self, effect)
            self.valid_until = self._member.context.fences.next or 0
            self.changed.notify_all()
        return rest

    def _find_start(self, effect: events.FindStart) -> None:
        self._data.find_start(effect)

    def _start_fetching(self, effect: events.StartFetching) -> None:
        self.inbox.open(effect.tenure, effect.offset)
        if isinstance(self._data, RangeTopics):
            assert effect.end is not None
            self._data.start(effect.tenure, effect.offset, effect.end)
        else:
            self._data.start(effect.tenure, effect.offset)

    def _deliver(self, effect: events.Deliver) -> None:
        self.inbox.committed(effect.tenure)

    def _stop_fetching(self, effect: events.StopFetching) -> None:
        self._data.stop(effect.tenure)
        self.inbox.close(effect.tenure, effect.why, effect.deadline)

    def _commit_offset(self, effect: events.CommitOffset) -> None:
        self._data.commit(effect.tenure, effect.offset)


_EFFECTS: Final[dict[type, Callable[[MemberHost, Any], None]]] = {
    events.FindStart: MemberHost._find_start,
    events.StartFetching: MemberHost._start_fetching,
    events.Deliver: MemberHost._deliver,
    events.StopFetching: MemberHost._stop_fetching,
    events.CommitOffset: MemberHost._commit_offset,
}


CLOSE_SECONDS: Final = 30.0


class MarshalConsumer:
    """One member of a group. One thread at a time iterates over it, or polls it.

    :param log: the coordination log; closed by the consumer, as is `data`
    :param data: the topics of this group
    :param client_id: unique in the group; the same after a restart, to take up what it had
    :param acknowledges: whether a record is processed when the application asks for the next one
    :param on_gained: called with a tenure, in the application's thread, before its first record
    :param on_lost: called with a tenure and the reason, in the application's thread, behind its last record; also
        by `close`
    :param max_poll_interval_ms: see the laws
    :param batch_records: of what is committed at once, at most, where `delivery` is at most once
    :param settings: further ones of `member_events.MemberSettings`: delivery, rules, heartbeat_interval_ms ...
    :raises EncodeError: an id is empty or has a "/"
    :raises ValueError: there is no topic, or a setting is not allowed
    """

    def __init__(
        self,
        log: Log,
        data: DataTopics,
        *,
        group_id: str,
        client_id: str,
        topics: Sequence[str],
        acknowledges: bool = True,
        on_gained: Callable[[events.Tenure], None] | None = None,
        on_lost: Callable[[events.Tenure, events.LossReason], None] | None = None,
        max_poll_interval_ms: int = 300_000,
        batch_records: int = 100,
        **settings: Any,
    ) -> None:
        check_id("group_id", group_id)
        check_id("client_id", client_id)
        if not topics:
            raise ValueError("there is no topic to consume")
        self.settings: events.MemberSettings = events.MemberSettings(
            group_id, client_id, new_instance_id(), tuple(topics), log.partitions, **settings
        )
        self._host = MemberHost(log, data, self.settings, batch_records, max_poll_interval_ms)
        self._acknowledges = acknowledges
        self._on_gained = on_gained
        self._on_lost = on_lost
        self._in_hand: DataRecord | None = None
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    # ---- the application's side

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Begin to claim partitions; `poll` does so, too. A second call does nothing."""
        with self._host.changed:
            if self._thread is None and not self._is_stopping:
                self._thread = threading.Thread(target=self._host.run, name="marshal-consumer", daemon=True)
                self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> DataRecord:
        """Return the next record.

        :raises StopIteration: `stop` was called
        :raises LogError: the log is lost
        """
        record = self.poll(None)
        if record is None:
            raise StopIteration
        return record

    def poll(self, timeout: float | None = 0.0) -> DataRecord | None:
        """Return the next record; None if there is none within `timeout` seconds (None: until `stop` is called).

        :raises LogError: the log is lost
        """
        self.start()
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._host.changed:
                item = self._take(until)
            if item is None or isinstance(item, DataRecord):
                return item
            self._call_back(item)

    def processed(self, record: DataRecord) -> bool:
        """Note that a record is processed; return whether that counts, which it does not if its tenure is over: then
        the record is delivered again.

        :raises ValueError: it was processed before, or is not of this consumer
        """
        with self._host.changed:
            if record is self._in_hand:
                self._in_hand = None
            return self._host.inbox.processed(record)

    def holds(self, tenure: events.Tenure) -> bool:
        """Return whether a tenure is valid at this moment: for applications that work long on a record."""
        with self._host.changed:
            return self._host.is_held(tenure)

    @property
    def tenures(self) -> frozenset[events.Tenure]:
        """What it holds and consumes."""
        with self._host.changed:
            return frozenset(self._host.inbox.tenures)

    def release(self, topic: str, partition: int) -> None:
        """Let go of a partition; it is not claimed again for a while (`MemberSettings.cooldown_ms`)."""
        with self._host.changed:
            self._host.asked.append(events.Release(topic, partition))

    def stop(self) -> None:
        """End the iteration; from any thread, or a signal's handler. Nothing is released before `close`."""
        self._is_stopping = True  # without the lock, which the thread that a signal interrupts may hold

    def close(self, *, keep_claims: bool = False) -> None:
        """Release everything, and end; a second call does nothing.

        :param keep_claims: keep the claims instead: a restart of this client within a heartbeat interval goes on
        """
        with self._host.changed:
            self._is_stopping = True
            self._in_hand = None
            thread, self._thread = self._thread, None
            if self._acknowledges:
                self._host.inbox.abandon()
            self._host.asked.append(events.Suspend() if keep_claims else Shutdown())
            self._host.changed.notify_all()
        if thread is not None:
            thread.join(CLOSE_SECONDS)
            self._host.abandon()
            thread.join()
            while isinstance(notice := self._host.inbox.next_item(), Gained | Lost):
                self._call_back(notice)

    def _take(self, until: float | None) -> DataRecord | Gained | Lost | None:
        """Wait for the next record or notice; the caller has the lock."""
        host = self._host
        if self._in_hand is not None:
            if self._acknowledges:
                host.inbox.processed(self._in_hand)
            self._in_hand = None
        host.is_polling = True
        try:
            while host.failure is None and not (self._is_stopping or host.has_ended):
                if monotonic_ms() < host.valid_until or not host.inbox.tenures:
                    item = host.inbox.next_item()
                    if item is not None:
                        self._in_hand = item if isinstance(item, DataRecord) else None
                        return item
                seconds = WAIT_SECONDS if until is None else min(WAIT_SECONDS, until - time.monotonic())
                if seconds <= 0:
                    return None
                host.changed.notify_all()  # there may be room now
                host.changed.wait(seconds)
        finally:
            host.is_polling = False
            host.polled_at = monotonic_ms()
        if host.failure is not None:
            raise host.failure
        return None

    def _call_back(self, notice: Gained | Lost) -> None:
        if isinstance(notice, Gained):
            if self._on_gained is not None:
                self._on_gained(notice.tenure)
        elif self._on_lost is not None:
            self._on_lost(notice.tenure, notice.why)
