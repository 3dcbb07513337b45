"""The thread that runs a member: its machine, the log, the topics and the inbox of the application.

Laws:

* What the application shares with it is guarded by `MemberHost.changed`. The machine handles an event, and what follows
  from it for the inbox happens, under this lock and after it has heard of every record that was handed out: a tenure
  ends with what the application has at that moment, and not with one record more.
* Until `MemberHost.valid_until` all tenures are valid. An application that takes records looks at the clock, and from
  then on waits for the thread; so a thread that is late hands out no record late.
* While `inbox.MOST_WAITING` records wait for the application nothing more is fetched.
* `run` ends with everything closed.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from kcoord_wire.kernel.hosts import monotonic_ms
from kcoord_wire.kernel.machines import Noted, Shutdown, Tick
from kcoord_wire.marshal import events
from kcoord_wire.marshal.hosting import LogHost
from kcoord_wire.marshal.inbox import Inbox
from kcoord_wire.marshal.log import Log, coordination_partition
from kcoord_wire.marshal.member import MarshalMember
from kcoord_wire.marshal.topics import DataRecord, DataTopics

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
        self._data = data
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
                self.inbox.close(tenure, events.Why.EXPIRED, 0)
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
            elif isinstance(event, Noted):
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
            self._log_host.note(Noted(logging.WARNING, "application hangs", {"silent_ms": silent_ms}))
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
