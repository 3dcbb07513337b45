"""A consumer of a group that coordinates through a log: the host of `member.MarshalMember`.

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

Sources: Marshal PROTOCOL.md; the Go library's consumer, whose `Terminate(false)` is ``close(keep_claims=True)``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from kcoord_wire.kernel.hosts import monotonic_ms
from kcoord_wire.kernel.machines import Shutdown
from kcoord_wire.marshal import events
from kcoord_wire.marshal.inbox import Gained, Lost
from kcoord_wire.marshal.log import Log
from kcoord_wire.marshal.member_host import WAIT_SECONDS, MemberHost, new_instance_id
from kcoord_wire.marshal.topics import DataRecord, DataTopics
from kcoord_wire.marshal.values import check_id

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
    :param settings: further ones of `events.MemberSettings`: delivery, rules, heartbeat_interval_ms ...
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
        on_lost: Callable[[events.Tenure, events.Why], None] | None = None,
        max_poll_interval_ms: int = 300_000,
        batch_records: int = 100,
        **settings: Any,
    ) -> None:
        check_id("group_id", group_id)
        check_id("client_id", client_id)
        if not topics:
            raise ValueError("there is no topic to consume")
        self.settings = events.MemberSettings(
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
            while isinstance(notice := self._host.inbox.take(), Gained | Lost):
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
                    item = host.inbox.take()
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
