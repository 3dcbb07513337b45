"""A machine with its log: appends are written to disk, and replies that depend on them are held until then.

The server and the simulation both run this, so that a crash in the one is a crash in the other.

Laws:

* It has no clock, thread or socket: the host passes the time, and says when to write and when the write has ended.
* An append reaches the store before any reply of the same call is sent, so that machine and store number appends alike.
* A reply is sent, and markers are written, no earlier than the append they name is on disk, and in the order of these
  appends. Everything appended during one write goes into the
  next: one fsync for many requests.
* After a failed write the state in memory is dropped: replies that are held are replaced by NOT_COORDINATOR (16), and
  `recover` starts over from the disk.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from kcoord_wire.coordinator.core.apis import refusal
from kcoord_wire.coordinator.core.events import (
    Append,
    AppendMarker,
    Effect,
    Event,
    Load,
    LoggedMachine,
    LogRecord,
    Reply,
    Resign,
    WriteMarkers,
)
from kcoord_wire.coordinator.log.store import Store, Sync
from kcoord_wire.protocol.error_codes import ErrorCode

_APPENDS: Final = (Append, AppendMarker)  # a tuple is checked in a third of the time that a union takes
_WAITING: Final = (Reply, WriteMarkers)


M = TypeVar("M", bound=LoggedMachine)


class Runtime(Generic[M]):
    """A `GroupMachine` or a `TransactionMachine` with its log.

    :param send: called with the token of a request and the response to it, once for each request
    :param perform: called with each other effect
    :ivar machine: the machine
    :ivar store: the log
    :ivar durable: number of the last append on disk, as the machine counts
    """

    def __init__(
        self,
        machine: M,
        store: Store,
        send: Callable[[int, Any], None],
        perform: Callable[[Any], None] | None = None,
    ) -> None:
        self.machine = machine
        self.store = store
        self._send = send
        self._perform = perform
        self.durable = 0
        self._base = 0  # what the machine had appended when the store began to count
        self._held: list[tuple[int, int, Reply | WriteMarkers]] = []  # a heap: by append, then by age
        self._age = 0

    @property
    def deadline(self) -> int | None:
        """When to submit a `Tick`, in ms; None if nothing is due."""
        return self.machine.deadline

    @property
    def held(self) -> int:
        """Number of replies that are held until an append is on disk."""
        return len(self._held)

    def recover(self, now: int) -> None:
        """Read the log, repair its end, and begin to serve.

        :raises CorruptLogError: the log is damaged in a way that a crash does not explain
        :raises OSError: the disk fails
        """
        self.load(self.store.recover(), now)

    def load(self, records: Sequence[LogRecord], now: int) -> None:
        """Begin to serve with what the store's `recover` has returned, which the server calls in another thread."""
        self._base = self.durable = self.machine.appended
        self.submit(Load(records, pending=self.store.pending), now)

    def submit(self, event: Event, now: int) -> None:
        """Give the machine an event, and carry out its effects."""
        effects = self.machine.handle(event, now)
        for effect in effects:
            if isinstance(effect, Append):
                self.store.append(effect.records, now, effect.producer)
            elif isinstance(effect, AppendMarker):
                self.store.append_marker(effect, now)
        for effect in effects:
            if isinstance(effect, Reply) and effect.after <= self.durable:
                self._send(effect.token, effect.message)
            elif isinstance(effect, _WAITING) and effect.after > self.durable:
                self._age += 1
                heapq.heappush(self._held, (effect.after, self._age, effect))
            elif not isinstance(effect, _APPENDS):
                self._release(effect)

    def _release(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            self._send(effect.token, effect.message)
        elif self._perform is not None:
            self._perform(effect)

    def begin_sync(self) -> Sync | None:
        """Return what has to be written next; None if nothing. Its `run` may be called in another thread."""
        return self.store.begin_sync()

    def end_sync(self, sync: Sync) -> None:
        """Note that the write has succeeded, and send the replies that were held for it."""
        self.store.end_sync(sync)
        self.durable = self._base + sync.last
        while self._held and self._held[0][0] <= self.durable:
            self._release(heapq.heappop(self._held)[2])

    def sync_failed(self, now: int) -> None:
        """Note that the write has failed, or that the coordinator stops: refuse what is held and parked. After
        `recover` it serves again."""
        held, self._held = sorted(self._held), []
        for _, _, reply in held:
            if isinstance(reply, WriteMarkers):
                continue  # they are written when the log has been read again
            assert reply.request is not None, "a reply that is held names its request"
            request = reply.request
            self._send(reply.token, refusal(request.message, request.version, ErrorCode.NOT_COORDINATOR))
        self.submit(Resign(), now)
