"""What all relays of a proxy share: its settings, counters and log, and the numbers and memory of connections.

A relay knows this and nothing else of the proxy; the proxy makes it, and looks into it for what its relays did.

Laws:

* No produced or fetched record is recorded unless everything is; of Fetch, only the numbers are (`FetchNumbers`).
* Passwords are never recorded: SaslAuthenticate is only followed.
* No call from the event loop waits for the disk. At most `HELD_FOR_DISK` bytes are held; frames beyond are not
  recorded, and counted.
* After a write has failed, nothing is recorded any more; the failure is logged as an error and reported once.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kcoord_wire.kernel.net import LogLimiter
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.recorder.recording import Batch, Direction, RecordingWriter, Side

if TYPE_CHECKING:
    from kcoord_wire.recorder.relay import Relay


FLUSH_SECONDS: Final = 0.005
HELD_FOR_DISK: Final = 64 << 20

log = logging.getLogger("kcoord_wire.capture")
log.addHandler(logging.NullHandler())  # silent unless the application configures logging


class RecordingThread:
    """Hands frames from an event loop to a `RecordingWriter` in a thread.

    :param loop: the running event loop; every method is called from it
    :param counters: counts go here
    :param on_failure: called in the event loop when a write has failed
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: RecordingWriter,
        counters: Counters,
        on_failure: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._writer = writer
        self._counters = counters
        self._on_failure = on_failure
        self._batches: queue.SimpleQueue[tuple[list[Batch], int] | None] = queue.SimpleQueue()
        self._taken = 0  # bytes given to the thread
        self._written = 0  # bytes written by it
        self._flushing = self._failed = self._slow = False
        self._thread = threading.Thread(target=self._run, name="kcoord-recording", daemon=True)
        self._thread.start()

    @property
    def unwritten(self) -> int:
        """Bytes given to the thread that it has not written yet."""
        return self._taken - self._written

    def opened(self, connection: int, name: str) -> None:
        """Record that a connection begins."""
        if not self._failed:
            self._writer.opened(connection, name, time.time_ns())
            self._flush_soon()

    def closed(self, connection: int, by: Side | None, *, reset: bool, time_ns: int) -> None:
        """Record that a connection ends.

        :param by: the side that ended it; None where that is not known
        :param reset: it was broken off
        :param time_ns: when its first side ended it
        """
        if not self._failed:
            self._writer.closed(connection, time_ns, by=by, reset=reset)
            self._flush_soon()

    def refused(self, connection: int, name: str, reason: str) -> None:
        """Record that a client's connection to a broker could not be made."""
        if not self._failed:
            self._writer.refused(connection, name, reason, time.time_ns())
            self._flush_soon()

    def foreign(self, connection: int, by: Side, reason: str) -> None:
        """Record that a side sends what is no frame."""
        if not self._failed:
            self._writer.foreign(connection, by, reason, time.time_ns())
            self._flush_soon()

    def frame(self, connection: int, direction: Direction, body: bytes, time_ns: int, size: int) -> None:
        """Record a frame.

        :param size: bytes it had on the wire; more than `body` where only its beginning is recorded
        """
        if self._failed or self.unwritten + self._writer.held > HELD_FOR_DISK:
            self._counters.not_recorded += 1
            if not self._failed and not self._slow:
                self._slow = True
                log.error("the disk is too slow for the recording: frames are not recorded until it has caught up")
            return
        self._writer.frame(connection, direction, body, time_ns, size=size)
        self._counters.cut += len(body) < size
        if not self._flushing:
            self._flush_soon()

    async def close(self) -> None:
        """Write what is held, and close the file."""
        self._flush()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)
        try:
            self._writer.close()
        except OSError as error:
            self._fail(error)
        await asyncio.sleep(0)  # a failure that the thread has posted is handled before this returns

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._failed:
            held = self._writer.held
            self._taken += held
            self._batches.put((self._writer.drain(), held))
        self._counters.recorded = self._writer.records
        self._counters.recorded_bytes = self._writer.size
        if self._slow and self.unwritten < HELD_FOR_DISK // 2:
            self._slow = False
            missed = self._counters.not_recorded
            log.warning("the disk has caught up: frames are recorded again; %d were not", missed)

    def _run(self) -> None:
        while (given := self._batches.get()) is not None:
            batches, size = given
            try:
                self._writer.write(batches)
            except OSError as error:
                with suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._fail, error)
                break
            self._written += size

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            log.error("nothing is recorded any more: %s: %s", self._writer.folder, error.strerror or error)
            self._on_failure(error)


TRACKED, RECORDED, REWRITTEN, NUMBERS = 1, 2, 4, 8
"""The request is remembered until its response; its frames are recorded; the addresses in its response are replaced;
of its frames only the numbers of partitions are recorded."""

_WITH_ADDRESSES: Final = (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER)

GROUP_APIS: Final = frozenset(
    (
        *_WITH_ADDRESSES,
        ApiKey.API_VERSIONS,
        ApiKey.LIST_OFFSETS,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_DESCRIBE,
    )
)
"""The apis of consumer groups, those that clients need to reach them, and the one that says where partitions end."""


def plan_of(apis: str, *, rewrite: bool) -> Callable[[int], int]:
    """Return what is done with an api key, as a sum of `TRACKED`, `RECORDED`, `REWRITTEN` and `NUMBERS`.

    :param apis: ``group`` or ``all``
    """
    plan: dict[int, int] = dict.fromkeys(GROUP_APIS, TRACKED | RECORDED)
    plan[ApiKey.FETCH] = TRACKED | NUMBERS
    other = 0
    if apis == "all":
        other = TRACKED | RECORDED
        plan[ApiKey.FETCH] = other
        plan[ApiKey.PRODUCE] = RECORDED  # without a response if no acknowledgement is asked for
        plan[ApiKey.SASL_AUTHENTICATE] = TRACKED
    if rewrite:
        for api_key in _WITH_ADDRESSES:
            plan[api_key] |= REWRITTEN
    return lambda api_key: plan.get(api_key, other)


_MAX_REASONS: Final = 100


@dataclass(slots=True)
class Counters:
    """The traffic since the proxy began.

    :ivar connections: of clients
    :ivar open: of these, those that are open now
    :ivar unreachable: connections whose broker could not be reached
    :ivar foreign: connections on which another protocol than Kafka's was seen
    :ivar requests: frames seen
    :ivar responses: frames seen
    :ivar request_bytes: sent by clients
    :ivar response_bytes: sent by brokers
    :ivar rewritten: responses with replaced addresses
    :ivar not_rewritten: responses whose addresses should have been replaced, but could not
    :ivar recorded: records written, openings and closings included
    :ivar recorded_bytes: size of these together
    :ivar not_recorded: frames to be recorded that were not, because the disk was too slow or had failed
    :ivar cut: frames of which only the beginning was recorded
    """

    connections: int = 0
    open: int = 0
    unreachable: int = 0
    foreign: int = 0
    requests: int = 0
    responses: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    rewritten: int = 0
    not_rewritten: int = 0
    recorded: int = 0
    recorded_bytes: int = 0
    not_recorded: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """The memory that connections may take.

    :ivar max_frame: bytes of a frame that are recorded; the rest of a larger one only passes
    :ivar max_held: bytes of frames in progress, over all connections
    :ivar connect_seconds: after which an attempt to connect to a broker fails
    """

    max_frame: int = 16 << 20
    max_held: int = 256 << 20
    connect_seconds: float = 10.0


class RelayContext:
    """See the head of this module: one object between a proxy and its relays.

    :param replacement: takes host and port of a broker, and the host that the client has connected to; returns the
        address to put in their place, or None to leave them
    :ivar loop: set by the proxy before the first relay, as is `recording`
    :ivar recording: None records nothing
    :ivar plan: as `plan_of` returns it
    :ivar held: bytes of frames in progress
    :ivar relays: those of open connections
    :ivar reached: the address at which each broker was reached last, by host and port
    """

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        *,
        apis: str,
        rewrites: bool,
        tls: ssl.SSLContext | None,
        limits: RelayLimits,
        replacement: Callable[[str, int, str], tuple[str, int] | None],
    ) -> None:
        self.records_all = apis == "all"
        self.rewrites = rewrites
        self.plan = plan_of(apis, rewrite=rewrites)
        self.tls = tls
        self.limits = limits
        self.replacement = replacement
        self.counters = Counters()
        self.recording: RecordingThread | None = None
        self.held = 0
        self.relays: set[Relay] = set()
        self.reached: dict[tuple[str, int], str] = {}
        self._number = 0
        self._reasons: set[tuple[str, str]] = set()
        self._limiter = LogLimiter()

    def next_number(self) -> int:
        """Return the number of a new connection."""
        self._number += 1
        return self._number

    def joined(self, relay: Relay) -> None:
        """Note that a client has connected."""
        self.relays.add(relay)
        self.counters.connections += 1
        self.counters.open += 1

    def left(self, relay: Relay) -> None:
        """Note that both connections of a relay have ended."""
        if relay in self.relays:
            self.relays.discard(relay)
            self.counters.open -= 1

    def cannot_rewrite(self, what: str, why: str) -> None:
        """Count a message that keeps the brokers' own addresses; log each kind and reason once."""
        self.counters.not_rewritten += 1
        if (what, why) not in self._reasons and len(self._reasons) < _MAX_REASONS:
            self._reasons.add((what, why))
            self.warn(f"addresses in a {what} are left as they are: {why}")

    def warn(self, text: str) -> None:
        """Log a warning, unless there were too many."""
        if self._limiter.allows_line():
            log.warning("%s", text)
