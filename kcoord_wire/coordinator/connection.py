"""One client of the coordinator, of which `kernel.peers` cuts the bytes into frames and bounds what it costs.

`Requests` handles the frames, a `Scheduler` says when to go on.

Laws:

* A frame is dropped by a fault as it is answered: the next one is looked at. A Produce beyond
  `PeerLimits.max_frame_size` is kept without the batches that do not fit (oversized.py).
* While its broker is paused nothing is read from a client or sent to it, and no limit in time applies.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kcoord_wire.codec.framing import Framer
from kcoord_wire.coordinator.api_codec import ApiCodec
from kcoord_wire.coordinator.core.apis import Finish
from kcoord_wire.coordinator.core.groups import Pulse
from kcoord_wire.coordinator.fault_injection import FaultedExchange
from kcoord_wire.coordinator.metrics import Metrics, first_error
from kcoord_wire.coordinator.oversized import RequestFramer
from kcoord_wire.coordinator.scheduler import Scheduler
from kcoord_wire.coordinator.security.authentication import Session
from kcoord_wire.errors import EncodeError
from kcoord_wire.kernel import peers

HELD: Final = -1
"""The token of a request that a fault, or a failed authentication, holds back."""

REQUEST_ID: Final = slice(8, 12)
"""The correlation id in the frame of a request, which has its size, api key and version before."""

_log = logging.getLogger("kcoord_wire.coordinator")

Repeat = Callable[["Connection", "CachedHeartbeat", bytes], bytes | None]


@dataclass(frozen=True, slots=True)
class PeerLimits(peers.PeerLimits):
    """What one client may cost the coordinator, in bytes and milliseconds; and all clients together.

    :ivar max_frame_size: bytes of a Produce, JoinGroup or SyncGroup, which carry blobs. Less than the 100 MiB of
        Kafka's ``socket.request.max.bytes``, because other connections wait while a request is read
    :ivar idle_ms: silence after which a connection is closed (``connections.max.idle.ms``)
    :ivar max_batch_bytes: bytes of the batches that are kept of a larger Produce; its other batches are refused
    :ivar max_skipped_frame_size: bytes of a Produce that is answered at all; a larger one closes the connection
        (``socket.request.max.bytes``)
    :ivar max_plain_frame_size: bytes of any other request, which may be a list of two-byte names: each becomes a
        hundred bytes of memory and a microsecond of work
    :ivar max_unauthenticated_frame_size: the same before SASL has ended (``sasl.server.max.receive.size``)
    :ivar unauthenticated_ms: from the connection to the end of SASL
    """

    max_batch_bytes: int = 16 << 20
    max_skipped_frame_size: int = 100 << 20
    max_plain_frame_size: int = 1 << 20
    max_unauthenticated_frame_size: int = 512 << 10
    unauthenticated_ms: int = 30_000


@dataclass(slots=True, eq=False)
class CachedHeartbeat:
    """A Heartbeat, to be recognised when it comes again: a member sends the same one until the next rebalance.

    :ivar head: the frame until the correlation id, which differs each time
    :ivar rest: the frame after it
    :ivar pulse: knows whether the answer is still the same
    :ivar before: what the answer has before the correlation id
    :ivar after: what it has after it
    """

    head: bytes
    rest: bytes
    pulse: Pulse
    before: bytes
    after: bytes


class Connection(peers.FramedPeer):
    """One client. The frame in hand is a request, by its token.

    :param owner: the listener that has accepted it
    :param repeat: answers the last Heartbeat again; see `Requests.repeat`
    :param limits: its owner's
    :ivar beat: the last Heartbeat, if it was answered without an error; else None
    :ivar broker: the one that it leads to
    :ivar client_host: the peer's address, as Kafka writes it: ``/127.0.0.1``
    :ivar codec: of the request in hand, or of the last one
    :ivar correlation_id: of the same request
    :ivar client_id: of the same request
    :ivar exchange: the request in hand, where faults may meet it
    :ivar finish: makes the whole answer of what the machine answers, where permissions have taken something away
    :ivar session: None where there is no SASL
    :ivar throttle_ms: for how long its next request waits once the one in hand is answered (KIP-219)
    """

    __slots__ = (
        "_metrics", "_repeat", "_scheduler", "beat", "broker", "client_host", "client_id", "codec", "correlation_id",
        "exchange", "finish", "session", "throttle_ms",
    )  # fmt: skip
    limits: PeerLimits

    def __init__(
        self, owner: peers.PeerOwner, repeat: Repeat, metrics: Metrics, scheduler: Scheduler, broker: int
    ) -> None:
        super().__init__(owner, owner.limits.max_frame_size)
        self._repeat = repeat
        self._metrics = metrics
        self._scheduler = scheduler
        self.broker = broker
        self.client_host = ""
        self.beat: CachedHeartbeat | None = None
        self.codec: ApiCodec | None = None
        self.correlation_id = 0
        self.client_id = ""
        self.exchange: FaultedExchange | None = None
        self.finish: Finish | None = None
        self.session: Session | None = None
        self.throttle_ms = 0

    # ---- requests in

    def data_received(self, data: bytes) -> None:
        beat, transport = self.beat, self.transport
        if (
            beat is not None
            and transport is not None
            and data[REQUEST_ID.stop :] == beat.rest
            and data.startswith(beat.head)
            and self._framer is self.in_hand is None  # it is the next in turn
            and (answer := self._repeat(self, beat, data)) is not None
        ):
            transport.write(answer)
            return
        super().data_received(data)
        self._scheduler.settle_soon()

    def resume_writing(self) -> None:
        if isinstance(self.transport, _Paused):
            self.transport.was_choked = False
            return
        super().resume_writing()
        self._scheduler.settle()

    def pump_later(self) -> None:
        self._scheduler.wait_for_others(self)

    @property
    def largest_frame(self) -> int:
        return max(self.frame_limit, 0 if self.is_unauthenticated else self.limits.max_skipped_frame_size)

    def new_framer(self) -> Framer:
        return RequestFramer(self.frame_limit, self.largest_frame, self.limits.max_batch_bytes)

    @property
    def is_unauthenticated(self) -> bool:
        """Whether its client has to authenticate, and has not."""
        return self.session is not None and self.session.principal is None

    # ---- answers out

    def answer(self, message: Any, copies: int = 1) -> None:
        """Answer the request in hand; None answers nothing, as Produce with acks=0 asks for."""
        self.in_hand = None
        codec = self.codec
        if self.transport is None or codec is None:
            return
        if message is not None:
            try:
                data = codec.frame(self.correlation_id, message)
            except EncodeError:
                _log.exception("an answer cannot be written")
                self.abort()
                return
            # Counted first: a client that has its answer finds it in the metrics.
            self._metrics.count_request(codec.api_key, first_error(message), time.monotonic() - self.active_at)
            self.write(data * copies)
        if self.throttle_ms:
            delay_ms, self.throttle_ms = self.throttle_ms, 0
            self.later(delay_ms, self._end_wait)
        elif self.has_more:
            self._scheduler.ready.append(self)

    def later(self, delay_ms: int, step: Callable[[], None]) -> None:
        """Take `step` after a delay, if the client is still connected; until then its next request waits."""
        self.in_hand = HELD

        def go_on() -> None:
            if not self.is_closing:
                try:
                    step()
                except Exception as error:
                    self.owner.blame(self, error)
                self.pump()
                self._scheduler.settle()

        asyncio.get_running_loop().call_later(delay_ms / 1000, go_on)

    def _end_wait(self) -> None:
        self.in_hand = None

    # ---- a paused broker

    def pause(self) -> None:
        """Take no more requests, and let answers wait, until `resume`."""
        transport = self.transport
        if transport is not None and not isinstance(transport, _Paused):
            transport.pause_reading()
            self.transport = _Paused(transport, self._is_unread, self.is_choked)
            self.is_choked = True

    def resume(self) -> None:
        """Send the answers that have waited, and take requests again."""
        paused = self.transport
        if isinstance(paused, _Paused):
            self.transport, self.is_choked = paused.transport, paused.was_choked
            if not paused.stays_unread:
                paused.transport.resume_reading()
            if paused.written:
                paused.transport.write(bytes(paused.written))
            self.active_at = time.monotonic()
            self.stuck_at = None
            self.pump()
            self._scheduler.settle_soon()

    def overdue(self, now: float) -> str | None:
        if isinstance(self.transport, _Paused):
            return None
        if self.is_unauthenticated:
            waited_ms = (now - self.opened_at) * 1000
            return "unauthenticated" if waited_ms > self.limits.unauthenticated_ms else None
        return super().overdue(now)


class _Paused(asyncio.Transport):
    """Stands in for the transport of a connection whose broker is paused.

    :ivar transport: the connection's own
    :ivar stays_unread: whether reading is to stay paused when the broker goes on
    :ivar was_choked: whether the peer did not read its answers
    :ivar written: answers that wait
    """

    def __init__(self, transport: asyncio.Transport, stays_unread: bool, was_choked: bool) -> None:
        super().__init__()
        self.transport = transport
        self.stays_unread = stays_unread
        self.was_choked = was_choked
        self.written = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.stays_unread = True

    def resume_reading(self) -> None:
        self.stays_unread = False

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()
