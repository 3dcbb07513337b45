"""What becomes of each request: authentication, faults, permissions, and the machine that answers it.

Laws:

* A request passes, in this order, the session's admission, the bounds of its api, the faults, the permissions, the
  routing; the response passes routing, permissions and faults on its way back.
* An answer that promises durability leaves after the append it waits for is on disk (host.py).
* Without faults, permissions, quotas, SASL and other brokers a request costs nothing for them.
* A client over its quota is answered at once with the time for which it has to wait, and nothing that it sends before
  is read: an answer to a Fetch or ShareFetch has no records then.
* A Heartbeat with the bytes of the last one on its connection is not read again: it is answered likewise while the
  member's `Pulse` says that nothing has changed, and takes the way of any request else.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from kcoord_wire.codec.framing import SIZE_BYTES, frame
from kcoord_wire.coordinator.access import ACCESS_APIS, Access
from kcoord_wire.coordinator.api_codec import REQUEST_HEAD, ApiCodec, NotServedError, api_codec, read_client_id
from kcoord_wire.coordinator.connection import REQUEST_ID, CachedHeartbeat, Connection, PeerLimits
from kcoord_wire.coordinator.core.apis import refusal
from kcoord_wire.coordinator.core.brokers import route
from kcoord_wire.coordinator.core.events import HANG_UP, ConnectionLost, Request
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.description import RebalanceLog
from kcoord_wire.coordinator.fault_injection import Fault, FaultedExchange, Faults, Strike
from kcoord_wire.coordinator.host import Host, HostIO, reload_pause
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.metrics import GroupCounts, Metrics, TransactionCounts
from kcoord_wire.coordinator.security.authentication import FAILURE_DELAY_MS, Admission, Session, Users
from kcoord_wire.coordinator.security.authorization import split
from kcoord_wire.coordinator.security.permissions import ANONYMOUS, Permissions
from kcoord_wire.coordinator.security.quotas import Metered
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.coordinator.traffic import Traffic
from kcoord_wire.errors import DecodeError
from kcoord_wire.messages.fetch import FetchResponse
from kcoord_wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord_wire.messages.produce import ProduceRequest, ProduceResponse
from kcoord_wire.messages.sasl_handshake import SaslHandshakeRequest
from kcoord_wire.messages.share_fetch import ShareFetchResponse
from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

# Compared for each request: numbers are twice as fast as the enum's members.
_MAKE_IDS: Final = frozenset({int(ApiKey.JOIN_GROUP), int(ApiKey.CONSUMER_GROUP_HEARTBEAT)})
_SASL_APIS: Final = frozenset({int(ApiKey.SASL_HANDSHAKE), int(ApiKey.SASL_AUTHENTICATE)})
_NOTED: Final = frozenset({int(ApiKey.PRODUCE), int(ApiKey.FETCH), int(ApiKey.SHARE_FETCH), int(ApiKey.HEARTBEAT)})
_HEARTBEAT: Final = int(ApiKey.HEARTBEAT)
_PRODUCE: Final = int(ApiKey.PRODUCE)
_VERSION_BITS: Final = 16
_MOST_STRIKES: Final = 1_000
_ID: Final = slice(4, 8)  # the correlation id: in a request's header, and in a response's frame


@cache
def _alive(version: int) -> tuple[bytes, bytes]:
    """Return what stands before and after the correlation id in the answer to a Heartbeat of a member that is alive."""
    answer = api_codec(ApiKey.HEARTBEAT, version).frame(0, HeartbeatResponse())
    return answer[: _ID.start], answer[_ID.stop :]


def _refuses(session: Session, api_key: int, start: int) -> bool:
    """Return whether a session answers a request, whose header begins at `start`, with an error.

    :raises DecodeError: it does not answer it
    """
    admission = session.admission(api_key)
    if admission is Admission.CLOSE:
        raise DecodeError("api", start, "RequestHeader", f"api {api_key} before authentication")
    return admission is Admission.REFUSE


def _principal(connection: Connection) -> str:
    session = connection.session
    return ANONYMOUS if session is None or session.principal is None else session.principal


class Requests:
    """Answers the requests of all connections.

    :ivar host: the machines
    :ivar access: who may connect and do what
    :ivar faults: what goes wrong; None where nothing can
    :ivar strikes: the last requests and responses that faults have struck, the oldest first
    :ivar topic_name: the name of the topic with an id
    :ivar rebalances: accounts of rebalances
    :ivar traffic: keeps the frames of connections that are made from now on; None keeps none
    """

    def __init__(
        self,
        machine: GroupMachine,
        store: Store,
        topics: Topics,
        metrics: Metrics,
        io: HostIO,
        *,
        transactions: Store,
        shares: Store | None = None,
        limits: PeerLimits,
        users: Users | None = None,
        permissions: Permissions | None,
        faults: Faults | None,
        pause: Callable[[int], int] = reload_pause,
    ) -> None:
        self.rebalances = RebalanceLog(metrics)
        self.traffic: Traffic | None = None
        self.host = Host(
            machine,
            store,
            topics,
            io,
            transactions=transactions,
            shares=shares,
            send=self._send,
            new_token=self._new_token,
            report=self.rebalances.report,
            wrote=lambda sync: metrics.count_sync(sync.seconds, sync.appends),
            pause=pause,
        )
        self.access = Access(topics.catalog, permissions, users)
        self.faults = faults
        self._brokers = machine.brokers
        self._routed = self.host.coordinated
        self.strikes: deque[Strike] = deque(maxlen=_MOST_STRIKES)
        self._topics = topics
        self.topic_name = topics.name_of
        self._metrics = metrics
        self._clock = io.now
        self._started_at = io.now()
        self._max_plain_frame_size = limits.max_plain_frame_size
        self._codecs: dict[int, ApiCodec] = {}
        self._fallback = api_codec(ApiKey.API_VERSIONS, 0)
        self._waiting: dict[int, Connection] = {}  # by token
        self._token = 0
        metrics.read_groups = self._count_groups
        metrics.read_transactions = self._count_transactions

    # ---- requests in

    def receive(self, connection: Connection, body: bytes, start: int) -> None:
        """Handle a request, whose header begins at `start` in `body`. Errors as `PeerOwner.receive`."""
        session = connection.session
        if session is not None and session.raw:
            self._receive_token(connection, session, body[start:])
            return
        api_key, version, connection.correlation_id, length = REQUEST_HEAD.unpack_from(body, start)
        is_refused = session is not None and _refuses(session, api_key, start)
        codec = self._codecs.get(api_key << _VERSION_BITS | version) or self._codec(body, start)
        connection.codec = codec
        if len(body) > self._max_plain_frame_size and not codec.carries_blobs:
            raise DecodeError("frame", start, "Frame.size", f"{len(body)} bytes of api {api_key}")
        if codec is self._fallback:
            if is_refused:
                raise DecodeError("version", start, "RequestHeader", f"ApiVersions {version} during authentication")
            connection.answer(self._topics.cluster.api_versions_fallback())
            return
        client_id, at = read_client_id(body, start, length, codec.flexible_head)
        message, _ = codec.decode(body, at, False)
        connection.client_id = client_id
        if is_refused:
            connection.answer(refusal(message, version, ErrorCode.ILLEGAL_SASL_STATE))
            connection.close()
            return
        if codec.check is not None:
            codec.check(message, client_id)
        if api_key in _NOTED:
            self._note(connection, api_key, version, message, body, start)
        if self.faults is None:
            self.submit(connection, codec, message)
        else:
            connection.exchange = _Exchange(self, connection, codec, message)
            connection.exchange.receive()

    def _note(self, connection: Connection, api_key: int, version: int, message: Any, body: bytes, start: int) -> None:
        """Remember a Heartbeat, which may come again; meter what quotas are for."""
        if api_key == _HEARTBEAT:
            connection.beat = self._cached(body, start, message, version)
        elif self.access.quotas:
            self._meter(connection, message, len(body) - start)

    def _codec(self, body: bytes, start: int) -> ApiCodec:
        """Return the codec of an api that is asked for the first time, or of an ApiVersions that is not served: that
        is answered in version 0, whatever it contains (KIP-511)."""
        api_key, version, _, length = REQUEST_HEAD.unpack_from(body, start)
        if version in self._topics.cluster.served.get(api_key, range(0)):
            return self._codecs.setdefault(api_key << _VERSION_BITS | version, api_codec(api_key, version))
        if api_key == ApiKey.API_VERSIONS:
            return self._fallback
        if api_key in API_NAMES and version >= 0:
            client_id, _ = read_client_id(body, start, length, flexible=False)  # has this place in every version
            raise NotServedError(api_key, version, client_id, start)
        raise DecodeError("version", start, "RequestHeader", f"api {api_key} has no version {version}")

    def _cached(self, body: bytes, start: int, message: HeartbeatRequest, version: int) -> CachedHeartbeat | None:
        """Return a Heartbeat that has come for the first time; None if it may not be answered like this again.

        Where clients need permissions, these are asked each time. Where there are several brokers, `Leaders` says of
        each request whether it has come to the right one.
        """
        machine = self.host.groups.machine
        if self.access.permissions is not None or not self._brokers.is_plain:
            return None
        pulse = machine.pulse(message)
        if pulse is None:
            return None
        size = (len(body) - start).to_bytes(SIZE_BYTES, "big")
        before, after = _alive(version)
        return CachedHeartbeat(size + body[start : start + _ID.start], body[start + _ID.stop :], pulse, before, after)

    def repeat(self, connection: Connection, beat: CachedHeartbeat, data: bytes) -> bytes | None:
        """Return the answer to the last Heartbeat of a connection, which has come again and is the next in turn; None,
        and nothing has happened, if it is to be handled as any request.

        :param data: its frame
        """
        transport, session = connection.transport, connection.session
        if (
            connection.is_choked
            or transport is None
            or transport.is_closing()
            or self.faults is not None
            or (session is not None and session.admission(_HEARTBEAT) is not Admission.SERVE)
            or not beat.pulse.goes_on(self._clock())
        ):
            return None
        connection.active_at = time.monotonic()
        answer = beat.before + data[REQUEST_ID] + beat.after
        self._metrics.count_repeated(len(data), len(answer))
        return answer

    def submit(self, connection: Connection, codec: ApiCodec, message: Any, copies: int = 1) -> None:
        """Give a request, or what the permissions leave of it, to the machine that serves its api."""
        self._token = connection.in_hand = token = self._token + 1
        self._waiting[token] = connection
        if self.access.permissions is not None:
            message = self._permitted(self.access.permissions, connection, codec, message)
        if message is not None and not self._brokers.is_plain and type(message) in self._routed:
            message = self._route(connection, codec, message)
        if message is None:
            if self._waiting.get(token) is connection:
                self._send(token, None)
            return
        if codec.api_key == _PRODUCE:
            self._topics.wall_ahead_ms = int(time.time() * 1000) - self._clock()
        unique = str(uuid.uuid4()) if codec.api_key in _MAKE_IDS and not message.member_id else ""
        request = Request(
            token,
            message,
            codec.version,
            connection.client_id,
            connection.client_host,
            unique,
            connection.broker,
            id(connection),
        )
        hand_over: Callable[[Request], None] = self.host.submit
        if codec.api_key in _SASL_APIS:
            hand_over = partial(self._receive_sasl, connection)
        elif codec.api_key in ACCESS_APIS:
            hand_over = self._answer_access
        hand_over(request)
        while copies > 1:  # the replies to further ones find no connection
            copies -= 1
            hand_over(replace(request, token=self._new_token(), unique=unique and str(uuid.uuid4())))

    def _permitted(self, permissions: Permissions, connection: Connection, codec: ApiCodec, message: Any) -> Any | None:
        """Return what of a request its client may ask; None if nothing."""
        principal = _principal(connection)
        asked, connection.finish = split(
            permissions, message, codec.version, principal, self._topics.name_of, connection.host
        )
        if connection.finish is not None and isinstance(message, ProduceRequest) and message.acks == 0:
            del self._waiting[connection.in_hand]
            connection.close()  # Kafka's only way to report it
            return None
        return asked

    def _route(self, connection: Connection, codec: ApiCodec, message: Any) -> Any | None:
        """Return what of a request the broker coordinates; None if nothing."""
        asked, finish = route(self._brokers, message, codec.version, connection.broker)
        if finish is not None:
            outer = connection.finish
            connection.finish = finish if outer is None else lambda response: outer(finish(response))
        return asked

    def _new_token(self) -> int:
        self._token += 1
        return self._token

    def striking(self, on: str, exchange: FaultedExchange) -> tuple[Fault, ...]:
        """Return the faults that strike the request of an exchange, or the response; and count and remember it."""
        if self.faults is None:
            return ()
        now = self._clock()
        striking = self.faults.decide(on, exchange, now - self._started_at)
        if striking:
            self.strikes.append(exchange.strike(now, on, striking))
            for action in {fault.action for fault in striking}:
                self._metrics.faults[action] += 1
        return striking

    # ---- responses out

    def _send(self, token: int, message: Any) -> None:
        connection = self._waiting.pop(token, None)
        if connection is None:
            self.host.flow.answered(token, message, self._clock())
            return
        if message is HANG_UP:
            connection.close()
            return
        if connection.finish is not None:
            finish, connection.finish = connection.finish, None
            message = finish(message)
        if self.access.quotas:
            message = self._throttled(connection, message)
        exchange = connection.exchange
        if exchange is None:
            connection.answer(message)
        else:
            connection.exchange = None
            exchange.respond(message)

    def forget(self, connection: Connection) -> None:
        """A client has gone: its request stays in the group, the response is discarded."""
        if self._waiting.pop(connection.in_hand, None) is not None:
            self._topics.abandon(connection.in_hand)
        if self.host.shares.machine.sessions:
            self.host.shares.submit(ConnectionLost(id(connection)), self._clock())

    # ---- access

    def _metered(self, connection: Connection) -> Metered:
        return Metered(_principal(connection).partition(":")[2], connection.client_id, connection.broker)

    def _meter(self, connection: Connection, message: Any, size: int) -> None:
        """Count a Produce, and bound a Fetch or ShareFetch."""
        throttling, client = self.access.throttling, self._metered(connection)
        if isinstance(message, ProduceRequest):
            connection.throttle_ms = throttling.produced(client, size, self._clock())
        elif (most := throttling.most_fetched(client)) is not None:
            message.max_bytes = min(message.max_bytes, most)
            message.min_bytes = min(message.min_bytes, most)

    def _throttled(self, connection: Connection, message: Any) -> Any:
        """Return an answer with the time for which its client has to wait; of a Fetch that has to, without records."""
        if isinstance(message, FetchResponse | ShareFetchResponse) and connection.codec is not None:
            size = SIZE_BYTES + len(connection.codec.encode(message))
            connection.throttle_ms = self.access.throttling.fetched(self._metered(connection), size, self._clock())
            if connection.throttle_ms:
                return _without_records(message, connection.throttle_ms)
        elif isinstance(message, ProduceResponse):
            message.throttle_time_ms = connection.throttle_ms
        return message

    def _answer_access(self, request: Request) -> None:
        self._send(request.token, self.access.answer(request))

    # ---- SASL

    def _receive_sasl(self, connection: Connection, request: Request) -> None:
        session = connection.session
        self._send(request.token, self._authenticate(session, request.message, request.version))
        if session is not None:
            self._after_authentication(connection, session)

    def _authenticate(self, session: Session | None, message: Any, version: int) -> Any:
        if session is None:
            return refusal(message, version, ErrorCode.ILLEGAL_SASL_STATE)
        if isinstance(message, SaslHandshakeRequest):
            return session.handshake(message, version)
        return session.authenticate(message, version)

    def _receive_token(self, connection: Connection, session: Session, token: bytes) -> None:
        answer = session.raw_token(token)
        if answer is not None:
            connection.write(frame(answer))
        self._after_authentication(connection, session)

    def _after_authentication(self, connection: Connection, session: Session) -> None:
        """Apply the limits for an authenticated peer, or close after a delay that slows password guessing."""
        if session.failed:
            self._metrics.peers.closed["authentication failed"] += 1
            connection.later(FAILURE_DELAY_MS, connection.close)
        elif session.principal is not None:
            connection.set_frame_limit(connection.limits.max_frame_size)

    # ---- metrics

    def _count_groups(self) -> GroupCounts:
        groups = list(self.host.groups.machine.groups.values())
        return GroupCounts(Counter(str(group.state) for group in groups), sum(len(group.members) for group in groups))

    def _count_transactions(self) -> TransactionCounts:
        machine = self.host.transactions.machine
        states = Counter(transaction.state.value for transaction in list(machine.transactions.values()))
        return TransactionCounts(states, machine.begun, dict(machine.ended))


def _without_records(
    message: FetchResponse | ShareFetchResponse, throttle_ms: int
) -> FetchResponse | ShareFetchResponse:
    """Return what a client gets that has to wait: of a ShareFetch also what became of its acknowledgements.

    The member has acquired the records, as with Kafka (`KafkaApis.processShareFetchResponse`): they are delivered when
    its locks have run out.
    """
    if isinstance(message, FetchResponse):
        return FetchResponse(throttle_time_ms=throttle_ms)
    message.throttle_time_ms = throttle_ms
    for topic in message.responses:
        for each in topic.partitions:
            each.records, each.acquired_records = b"", []
    return message


class _Exchange(FaultedExchange):
    """A request on a connection of the server."""

    __slots__ = ("_codec", "_connection", "_requests")

    def __init__(self, requests: Requests, connection: Connection, codec: ApiCodec, message: Any) -> None:
        super().__init__(codec.api_key, message, codec.version, connection.client_id, requests.topic_name)
        self._requests = requests
        self._connection = connection
        self._codec = codec

    def decide(self, on: str) -> tuple[Fault, ...]:
        return self._requests.striking(on, self)

    def later(self, delay_ms: int, step: Callable[[], None]) -> None:
        self._connection.later(delay_ms, step)

    def submit(self, copies: int) -> None:
        self._requests.submit(self._connection, self._codec, self.message, copies)

    def answer(self, response: Any, copies: int) -> None:
        self._connection.exchange = None
        self._connection.answer(response, copies)

    def disconnect(self) -> None:
        self._connection.close()
