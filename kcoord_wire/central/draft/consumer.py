"""The consumer's machine of the 0.8 draft: finds the coordinator, registers, and answers its requests.

The draft is ambiguous in four places. This machine's choices:

* A closed connection (section 2: "consumers notice the broken socket connection") stops the fetchers at once, as
  silence does (section 10). Section 8, point 5, asks for it: a consumer without a coordinator stops its fetchers "until
  it has re-registered".
* What handlePingRequest, step 2, and section 10 list in two orders has one: the fetchers stop first, then the
  connection is closed. The other order lets the coordinator give partitions away while they are still fetched.
* Silence is a session timeout (section 10), not a third of it (section 8, point 5).
* handlePingRequest, step 1.2, waits for the next ping as a sign that the answer before has arrived. A ping that is a
  retry says the opposite, so it is answered and the wait goes on.

Laws:

* No fetcher runs while the machine is not registered. RegisterConsumer is sent only after `FetchersStopped`.
* The deadline is checked before anything else in `handle`: what arrives after a pause of a session timeout starts and
  answers nothing.
* A partition's position is reported only while this consumer owns it, for the last time in the StopFetcherResponse: a
  later report could make the group's offset go back.
* Each StopFetcher and StartFetcher gets one answer, in the order of the requests, also if they arrive while the
  fetchers are stopping. StartFetcher to running fetchers stops them first. Pings are answered at once.
* A request with a lower epoch than the highest known one, or for another consumer, changes nothing but the connection:
  it is answered with an error and the connection is closed.

Source: "the 0.8 consumer-coordinator draft", sections 2, 7, 8, 10 and 11.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kcoord_wire.central.draft import events
from kcoord_wire.central.draft.events import CentralError, Partition
from kcoord_wire.kernel import machines
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.messages import central as m

_MOST_QUEUED: Final = 16
"""StopFetcher and StartFetcher requests that may wait for the fetchers to stop. A coordinator sends the next one after
the answer, or after two thirds of the session timeout."""
_MOST_BROKERS: Final = 1_000  # that are kept: a round over them has no pause
_ERROR_CODES: Final = frozenset(CentralError)
_LONGEST_REGISTRATION: Final = 2
_FINAL: Final = frozenset(
    {
        CentralError.INVALID_GROUP_ID,
        CentralError.INVALID_CONSUMER_ID,
        CentralError.INVALID_SESSION_TIMEOUT,
        CentralError.INVALID_TOPIC_COUNT,
        CentralError.INVALID_OFFSET_RESET,
    }
)
"""In session timeouts: with the passage of section 2 the response waits until the group's other consumers have
registered, or their session timeout is over."""

_Request: TypeAlias = m.PingRequest | m.StopFetcherRequest | m.StartFetcherRequest
_Ownership: TypeAlias = Iterable[m.StartFetcherRequestOwnership | m.RegisterConsumerResponseOwnership]


class ConsumerState(enum.Enum):
    """Where a consumer is in consumerStartup (section 7)."""

    WAITING = "waiting"  # for its next attempt
    CONNECTING = "connecting"  # step 1
    ASKING = "asking"  # step 2: ClusterMetadata
    CONNECTING_TO_COORDINATOR = "connecting to coordinator"  # step 4
    REGISTERING = "registering"
    REGISTERED = "registered"  # step 5
    LEAVING = "leaving"  # the fetchers are stopping; then it closes the connection
    ENDED = "ended"


class _Fetchers(enum.Enum):
    NONE = "none"
    RUNNING = "running"
    STOPPING = "stopping"


class DraftConsumer:
    """One consumer. A `machines.Machine`; the first `Tick` starts it.

    :ivar state: see `ConsumerState`
    :ivar fence: the highest epoch that any coordinator sent, with its generation; None before that
    :ivar positions: the next offset to consume, of each partition that it owns; negative while not known
    :ivar coordinator: the broker that it is registered with, or about to be; None if it has found none
    :ivar refusal: the error for which it has ended: the same registration would be refused again
    """

    def __init__(self, settings: events.ConsumerSettings) -> None:
        self.settings = settings
        self.state = ConsumerState.WAITING
        self.fence: events.Fence | None = None
        self.positions: dict[Partition, int] = {}
        self.coordinator: machines.BrokerAddress | None = None
        self.refusal: CentralError | None = None
        self._now = 0
        self._effects: list[events.ConsumerEffect] = []
        self._due: int | None = 0
        self._brokers = settings.bootstrap
        self._next_broker = 0
        self._round_began = -settings.reconnect_backoff_ms
        self._tried = 0  # brokers, in this round
        self._connection: int | None = None
        self._last_connection = 0
        self._fetchers = _Fetchers.NONE
        self._queued: deque[m.StopFetcherRequest | m.StartFetcherRequest] = deque()
        self._failed: dict[Partition, CentralError] = {}
        self._out_of_range: dict[Partition, int] = {}
        self._is_shutting_down = False
        self._has_answered_last_ping = False

    @property
    def deadline(self) -> int | None:
        """See `machines.Machine`."""
        return self._due

    def handle(self, event: events.ConsumerEvent, now: int) -> list[events.ConsumerEffect]:
        """See `machines.Machine`."""
        self._now = now
        self._effects = []
        if self.state is not ConsumerState.ENDED:
            self._expire()
            _EVENTS[type(event)](self, event)
        return self._effects

    def _expire(self) -> None:
        if self._due is None or self._now < self._due:
            return
        if self.state is ConsumerState.WAITING:
            self._round_began, self._tried = self._now, 0
            self._try_broker()
        elif self.state is ConsumerState.CONNECTING:
            self._close()
            self._broker_failed("no connection in time")
        elif self.state is ConsumerState.REGISTERED:
            silent_ms = self._now - self._due + self.settings.session_timeout_ms
            self._leave(logging.WARNING, "coordinator suspected", silent_ms=silent_ms)
        else:
            self._leave(logging.WARNING, "no answer in time", state=self.state.value)

    def _tick(self, _event: Tick) -> None:
        pass  # `_expire` has done what is due

    # ---- consumerStartup (section 7)

    def _try_broker(self) -> None:
        """Step 1: the next broker, round robin."""
        broker = self._brokers[self._next_broker % len(self._brokers)]
        self._next_broker += 1
        self._tried += 1
        self._connect(broker, ConsumerState.CONNECTING)

    def _broker_failed(self, reason: str) -> None:
        """Steps 1.1 and 1.2: log an error, try the next broker; after a round without any, wait, and begin again with
        the configured ones, because those of the last metadata may all have moved."""
        broker = self._brokers[(self._next_broker - 1) % len(self._brokers)]
        self._note(logging.ERROR, "broker not reached", broker=_text(broker), reason=reason)
        if self._tried < len(self._brokers):
            self._try_broker()
        else:
            self._brokers, self._next_broker = self.settings.bootstrap, 0
            self._wait_for_next_round()

    def _wait_for_next_round(self) -> None:
        self.state = ConsumerState.WAITING
        self._due = max(self._now, self._round_began + self.settings.reconnect_backoff_ms)

    def _connect(self, broker: machines.BrokerAddress, state: ConsumerState) -> None:
        self._last_connection += 1
        self._connection = self._last_connection
        self._go(state)
        self._effects.append(machines.Connect(self._connection, broker))

    def _connected(self, event: machines.Connected) -> None:
        if event.connection != self._connection:
            return
        if self.state is ConsumerState.CONNECTING:
            self._go(ConsumerState.ASKING)
            groups = [m.ClusterMetadataRequestGroup(group_id=self.settings.group_id)]
            self._send(m.ClusterMetadataRequest(groups=groups if self.settings.is_fenced else None))
        elif self.state is ConsumerState.CONNECTING_TO_COORDINATOR:
            self._go(ConsumerState.REGISTERING, _LONGEST_REGISTRATION)
            self._send(self.registration())

    def _cluster_metadata(self, response: m.ClusterMetadataResponse) -> None:
        """Steps 3 and 4."""
        if response.error_code:
            self._leave(logging.WARNING, "cluster metadata refused", error=_error_text(response.error_code))
            return
        self._update_brokers(response.brokers_info)
        for broker in response.brokers_info:
            if broker.id == response.coordinator_id:
                self._close()
                self.coordinator = machines.BrokerAddress(broker.id, broker.host, broker.port)
                self._connect(self.coordinator, ConsumerState.CONNECTING_TO_COORDINATOR)
                return
        self._leave(logging.INFO, "no coordinator", coordinator_id=response.coordinator_id)

    def _update_brokers(self, brokers: Sequence[m.ClusterMetadataResponseBroker | m.StartFetcherRequestBroker]) -> None:
        found = tuple(machines.BrokerAddress(each.id, each.host, each.port) for each in brokers[:_MOST_BROKERS])
        if found and found != self._brokers:
            self._brokers, self._next_broker = found, 0

    def registration(self) -> m.RegisterConsumerRequest:
        """Return the request of step 4, as it would be sent now."""
        settings = self.settings
        fence: list[m.RegisterConsumerRequestFence] | None = None
        if settings.is_fenced:
            known = [self.fence] if self.fence is not None else []
            fence = [m.RegisterConsumerRequestFence(epoch=each.epoch, generation=each.generation) for each in known]
        return m.RegisterConsumerRequest(
            group_id=settings.group_id,
            consumer_id=settings.consumer_id,
            topic_count=settings.topic_count,
            auto_commit=settings.auto_commit,
            auto_offset_rest=settings.auto_offset_reset,
            session_timeout_ms=settings.session_timeout_ms,
            fence=fence,
        )

    def _registered(self, response: m.RegisterConsumerResponse) -> None:
        """Step 5. The older passage has the partitions here (section 2, point 2 of "Consumer")."""
        if response.error_code:
            if response.error_code in _FINAL:
                self.refusal = CentralError(response.error_code)
                self._is_shutting_down = True
            self._leave(logging.ERROR, "registration refused", error=_error_text(response.error_code))
            return
        self._go(ConsumerState.REGISTERED)
        assert self.coordinator is not None
        self._note(logging.INFO, "registered", coordinator=_text(self.coordinator))
        if response.ownership_info is not None:
            self._start_fetchers(response.ownership_info, None)

    def _disconnected(self, event: machines.Disconnected) -> None:
        if event.connection != self._connection:
            return
        self._connection = None
        if self.state is ConsumerState.CONNECTING:
            self._broker_failed("not connected")
        elif self.state is not ConsumerState.LEAVING:
            self._leave(logging.WARNING, "connection lost", state=self.state.value)

    # ---- the coordinator's requests (section 11)

    def _received(self, event: machines.Received) -> None:
        if event.connection != self._connection or self.state is ConsumerState.LEAVING:
            return
        message = event.message
        accept = _MESSAGES.get((self.state, type(message)))
        if accept is None:
            self._leave(logging.ERROR, "unexpected message", message=type(message).__name__, state=self.state.value)
        else:
            accept(self, message)

    def _accept_request(self, request: _Request) -> None:
        fence = events.Fence(request.fence[0].epoch, request.fence[0].generation) if request.fence else None
        if request.consumer_id != self.settings.consumer_id:
            self._refuse(request, CentralError.UNKNOWN_CONSUMER_ID, addressee=request.consumer_id)
            return
        if self.settings.is_fenced:
            if self.fence is not None and (fence is None or fence.epoch < self.fence.epoch):
                self._refuse(request, CentralError.STALE_EPOCH, sent=fence, known=self.fence)
                return
            self.fence = fence
        self._go(ConsumerState.REGISTERED)  # any request ends the silence
        _REQUESTS[type(request)](self, request)

    def _refuse(self, request: _Request, error: CentralError, **facts: Any) -> None:
        self._send(_ANSWERS[type(request)](error_code=error, consumer_id=self.settings.consumer_id))
        self._leave(logging.ERROR, "request refused", request=type(request).__name__, error=error.name, **facts)

    def _handle_ping(self, _request: m.PingRequest) -> None:
        """handlePingRequest."""
        if self._has_answered_last_ping and not _request.num_retries:  # 1.2
            self._leave(logging.INFO, "shut down")
            return
        if self._failed and not self._is_shutting_down:  # 2
            partitions = ", ".join(sorted(_text(partition) for partition in self._failed))
            self._leave(logging.WARNING, "reconnecting after an offset out of range", partitions=partitions)
            return
        offsets = self._offsets(m.PingResponseOffset)  # 3.1 and 3.2
        self._send(m.PingResponse(consumer_id=self.settings.consumer_id, offset_info=offsets))
        if self._is_shutting_down and self.settings.auto_commit:
            self._has_answered_last_ping = True
        elif self._is_shutting_down:  # 1.1
            self._leave(logging.INFO, "shut down")

    def _enqueue(self, request: m.StopFetcherRequest | m.StartFetcherRequest) -> None:
        self._queued.append(request)
        if len(self._queued) > _MOST_QUEUED:
            self._leave(logging.ERROR, "too many requests while the fetchers stop", queued=len(self._queued))
        else:
            self._work_off()

    def _work_off(self) -> None:
        """Each queued request needs fetchers that have stopped."""
        while self._queued and self._fetchers is _Fetchers.NONE:
            request = self._queued.popleft()
            if isinstance(request, m.StopFetcherRequest):
                self._answer_stop()
            else:
                self._handle_start(request)
        if self._queued:
            self._stop_fetchers()

    def _answer_stop(self) -> None:
        """StopFetcherRequest, step 2; step 1 was `_stop_fetchers`."""
        offsets = self._offsets(m.StopFetcherResponseOffset)
        self._send(m.StopFetcherResponse(consumer_id=self.settings.consumer_id, offset_info=offsets))
        self.positions = {}

    def _handle_start(self, request: m.StartFetcherRequest) -> None:
        """handleStartFetcherRequest; step 1, the streams of a wildcard, is the host's: it makes them new each time."""
        self._update_brokers(request.brokers_info)
        if self._start_fetchers(request.ownership_info, self.fence):
            self._send(m.StartFetcherResponse(consumer_id=self.settings.consumer_id))  # 5

    def _offsets(self, entry: Callable[..., Any]) -> list[Any] | None:
        if not self.settings.auto_commit:
            return None
        known = sorted((partition, offset) for partition, offset in self.positions.items() if offset >= 0)
        return [entry(topic=partition.topic, partition=partition.name, offset=offset) for partition, offset in known]

    # ---- fetchers

    def _start_fetchers(self, ownership: _Ownership, fence: events.Fence | None) -> bool:
        """Steps 2 to 4 of handleStartFetcherRequest; return False if the assignment is not one."""
        threads: dict[str, dict[Partition, int]] = {}
        count = 0
        for owned in ownership:
            parts = threads.setdefault(owned.consumer_thread_id, {})
            for part in owned.assigned_parts:
                partition = Partition(part.topic, part.partition)
                parts[partition] = self._offset_to_start(partition, part.offset)
                count += 1
        self.positions = {partition: offset for parts in threads.values() for partition, offset in parts.items()}
        if len(self.positions) != count:
            self.positions = {}
            self._leave(logging.ERROR, "assignment names a partition twice")
            return False
        self._fetchers = _Fetchers.RUNNING
        self._effects.append(events.StartFetchers(threads, self._brokers, fence))
        self._effects.append(events.Assigned(frozenset(self.positions)))
        return True

    def _offset_to_start(self, partition: Partition, offset: int) -> int:
        """A negative offset means that none is committed. One that has been out of range is not tried again: the
        coordinator sends it after each registration until a ping is answered, and while any partition is out of range
        none is."""
        if offset < 0 or self._out_of_range.get(partition) == offset:
            return events.RESET_OFFSETS[self.settings.auto_offset_reset]
        return offset

    def _stop_fetchers(self) -> None:
        if self._fetchers is _Fetchers.RUNNING:
            self._fetchers = _Fetchers.STOPPING
            self._effects.append(events.StopFetchers())

    def _fetchers_stopped(self, event: events.FetchersStopped) -> None:
        if self._fetchers is not _Fetchers.STOPPING:
            return
        self._advance(event.positions)
        self._fetchers = _Fetchers.NONE
        self._failed = {}
        self._effects.append(events.Assigned(frozenset()))
        if self.state is ConsumerState.LEAVING:
            self._left()
        else:
            self._work_off()

    def _progress(self, event: events.Progress) -> None:
        self._advance(event.positions)

    def _advance(self, positions: Mapping[Partition, int]) -> None:
        for partition, offset in positions.items():
            if self.positions.get(partition, offset) != offset:
                self.positions[partition] = offset

    def _fetcher_failed(self, event: events.FetcherFailed) -> None:
        if self._fetchers is not _Fetchers.RUNNING or event.partition not in self.positions:
            return
        if event.error is CentralError.STALE_EPOCH:  # another coordinator has given the partition away
            self._leave(logging.WARNING, "fetcher refused", partition=_text(event.partition), error=event.error.name)
            return
        self._failed[event.partition] = event.error
        self._out_of_range[event.partition] = self.positions[event.partition]

    # ---- the end of a registration, and of the consumer

    def _shutdown(self, _event: machines.Shutdown) -> None:
        """Wait for pings (handlePingRequest, step 1) if there is a coordinator; a second event waits for nothing."""
        is_again, self._is_shutting_down = self._is_shutting_down, True
        if self.state is not ConsumerState.LEAVING and (is_again or self.state is not ConsumerState.REGISTERED):
            self._leave(logging.INFO, "shut down")

    def _leave(self, level: int, what: str, **facts: Any) -> None:
        """Stop the fetchers, close the connection, go back to step 1 (section 10)."""
        self._note(level, what, **facts)
        self.state = ConsumerState.LEAVING
        self._due = None
        self._queued.clear()
        self._stop_fetchers()
        if self._fetchers is _Fetchers.NONE:
            self._left()

    def _left(self) -> None:
        self._close()
        self.positions = {}
        self.coordinator = None
        if self._is_shutting_down:
            self.state = ConsumerState.ENDED
            self._effects.append(machines.Ended())
        else:
            self._wait_for_next_round()

    # ---- effects

    def _go(self, state: ConsumerState, session_timeouts: int = 1) -> None:
        self.state = state
        self._due = self._now + session_timeouts * self.settings.session_timeout_ms

    def _send(self, message: Any) -> None:
        assert self._connection is not None
        self._effects.append(machines.Send(self._connection, message))

    def _close(self) -> None:
        if self._connection is not None:
            self._effects.append(machines.Close(self._connection))
            self._connection = None

    def _note(self, level: int, what: str, **facts: Any) -> None:
        who = {"group": self.settings.group_id, "consumer": self.settings.consumer_id}
        self._effects.append(machines.LogEvent(level, what, who | facts))


def _text(named: machines.BrokerAddress | Partition) -> str:
    if isinstance(named, Partition):
        return f"{named.topic}/{named.name}"
    return f"{named.broker_id} at {named.host}:{named.port}"


def _error_text(code: int) -> str:
    return CentralError(code).name if code in _ERROR_CODES else str(code)


_EVENTS: Final[dict[type, Callable[[DraftConsumer, Any], None]]] = {
    Tick: DraftConsumer._tick,
    machines.Connected: DraftConsumer._connected,
    machines.Disconnected: DraftConsumer._disconnected,
    machines.Received: DraftConsumer._received,
    events.FetchersStopped: DraftConsumer._fetchers_stopped,
    events.Progress: DraftConsumer._progress,
    events.FetcherFailed: DraftConsumer._fetcher_failed,
    machines.Shutdown: DraftConsumer._shutdown,
}
_MESSAGES: Final[dict[tuple[ConsumerState, type], Callable[[DraftConsumer, Any], None]]] = {
    (ConsumerState.ASKING, m.ClusterMetadataResponse): DraftConsumer._cluster_metadata,
    (ConsumerState.REGISTERING, m.RegisterConsumerResponse): DraftConsumer._registered,
    (ConsumerState.REGISTERED, m.PingRequest): DraftConsumer._accept_request,
    (ConsumerState.REGISTERED, m.StopFetcherRequest): DraftConsumer._accept_request,
    (ConsumerState.REGISTERED, m.StartFetcherRequest): DraftConsumer._accept_request,
}
_REQUESTS: Final[dict[type, Callable[[DraftConsumer, Any], None]]] = {
    m.PingRequest: DraftConsumer._handle_ping,
    m.StopFetcherRequest: DraftConsumer._enqueue,
    m.StartFetcherRequest: DraftConsumer._enqueue,
}
_ANSWERS: Final[dict[type, Callable[..., Any]]] = {
    m.PingRequest: m.PingResponse,
    m.StopFetcherRequest: m.StopFetcherResponse,
    m.StartFetcherRequest: m.StartFetcherResponse,
}
