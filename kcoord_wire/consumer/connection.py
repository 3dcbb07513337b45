"""One connection to one broker: requests out, in order, and to each its response or one typed error.

Laws:

* Kafka answers the requests of a connection in their order, so the next response is that to the oldest request; any
  other ends the connection. A request whose caller has gone keeps its place.
* A connection ends once, for one reason (`Connection.lost`), and each request that waits then fails with it. Silence
  ends it too: no request waits longer than its timeout.
* Memory is bounded by `ConnectionSettings.max_response_bytes`: a larger size ends the connection before any byte of
  that response is kept.
* Every request has a version that the broker has announced.
* Time is the event loop's: its timers, no clock of the system and no thread.

Sources: the protocol guide (size, header, order of responses); KIP-35 and 511 (ApiVersions), 43, 152 and 368 (SASL).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self, cast

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.api_keys import ApiKey, api_name
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE
from kcoord_wire.consumer import errors
from kcoord_wire.consumer.security import Sasl, SaslError, sasl_tokens
from kcoord_wire.error_codes import ErrorCode, describe_error
from kcoord_wire.net import address_text, looks_like

__all__ = ["SOFTWARE_NAME", "Connection", "ConnectionSettings"]

SOFTWARE_NAME: Final = "kcoord-wire"
"""What brokers log and count this client as (KIP-511, which does not allow an underscore)."""

_API_VERSIONS: Final = 3
"""The first version with the client's name. Later ones only add what a consumer does not use, and brokers before them
would need a second round."""
_LARGEST_ID: Final = 0x7FFFFFFF
_LIFETIME_USED: Final = 0.85  # of a session, before it is renewed; Java's clients take 0.85 to 0.95
_SHORTEST_SESSION: Final = 1.0  # seconds; brokers refuse to renew sooner (KIP-368)
_CLOSE_SECONDS: Final = 2.0  # for the bytes still to be written to a broker that does not read


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How connections are made. Defaults are the Java client's; times in milliseconds.

    :ivar tls: speak TLS; see `security.tls_context`
    :ivar sasl: authenticate
    :ivar connect_timeout_ms: for TCP and TLS (``socket.connection.setup.timeout.ms``)
    :ivar request_timeout_ms: for each response, unless the request has its own
    :ivar max_response_bytes: the largest response accepted, without its four bytes of size
    """

    client_id: str = SOFTWARE_NAME
    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = None
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    max_response_bytes: int = DEFAULT_MAX_FRAME_SIZE


class _Pending(NamedTuple):
    """A request that waits for its response."""

    api_key: int
    version: int
    correlation_id: int
    frame: bytes
    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle

    def __str__(self) -> str:
        return f"{api_name(self.api_key)} v{self.version}"


class Connection(asyncio.Protocol):
    """A connection that is ready for requests; `open` makes one.

    :ivar address: ``HOST:PORT``
    :ivar lost: done when the connection has ended; its result is the reason, a `BrokerError`
    """

    def __init__(self, address: str, settings: ConnectionSettings) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._transport: asyncio.Transport | None = None
        self._framer = kw.Framer(settings.max_response_bytes)
        self._pending: deque[_Pending] = deque()
        self._held: list[_Pending] | None = None  # while the session is renewed
        self._renewal: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._broker_versions: dict[int, range] = {}
        self._last_id = 0
        self._gone: asyncio.Future[None] = self._loop.create_future()  # the transport has ended
        self.address = address
        self.lost: asyncio.Future[errors.BrokerError] = self._loop.create_future()

    # ---- life

    @classmethod
    async def open(cls, host: str, port: int, settings: ConnectionSettings | None = None) -> Self:
        """Connect, agree on versions, and authenticate.

        :raises ConnectionLostError: the broker cannot be reached, or has closed the connection
        :raises AuthenticationError: TLS or SASL has failed
        :raises BrokerError: anything else that ends a connection (see `errors`)
        """
        settings = settings or ConnectionSettings()
        self = cls(address_text(host, port), settings)
        try:
            await self._connect(host, port)
            await self._negotiate()
            if settings.sasl is not None:
                await self._authenticate(settings.sasl)
        except BaseException:
            self._end(errors.ConnectionLostError(self.address, "it was given up while it was opened"))
            raise
        return self

    async def close(self) -> None:
        """End the connection after what has been requested is written; requests that wait fail."""
        self._end(errors.ConnectionLostError(self.address, "closed by this client"), at_once=False)
        if self._transport is not None:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await asyncio.shield(self._gone)
            except TimeoutError:
                self._transport.abort()

    async def _connect(self, host: str, port: int) -> None:
        tls, limit = self._settings.tls, self._settings.connect_timeout_ms
        try:
            async with asyncio.timeout(limit / 1000):
                await self._loop.create_connection(
                    lambda: self, host, port, ssl=tls, server_hostname=host if tls is not None else None
                )
        except TimeoutError:
            raise errors.ConnectionLostError(self.address, f"no connection within {limit} ms") from None
        except (OSError, ValueError, OverflowError) as error:  # the latter of a host or port that cannot be one
            raise self._network_error(error) from error

    def _network_error(self, error: Exception) -> errors.BrokerError:
        kind = errors.AuthenticationError if isinstance(error, ssl.SSLError) else errors.ConnectionLostError
        return kind(self.address, str(error) or type(error).__name__)

    def _end(self, error: errors.BrokerError, *, at_once: bool = True) -> None:
        if self.lost.done():
            return
        self.lost.set_result(error)
        for pending in (*self._pending, *(self._held or ())):
            pending.timer.cancel()
            if not pending.future.done():
                pending.future.set_exception(error)
        self._pending.clear()
        self._held = None
        if self._renewal is not None:
            self._renewal.cancel()
        if self._transport is not None:
            self._transport.abort() if at_once else self._transport.close()

    # ---- requests

    def highest_version(self, api_key: int, newest: int | None = None) -> int:
        """Return the highest version of a request that this package and the broker have in common.

        :param newest: no version above this one
        :raises UnsupportedVersionError: there is none
        """
        ours = kw.registry.request(api_key).valid_versions
        theirs = self._broker_versions.get(api_key, range(0))
        last = min(ours.stop, theirs.stop, ours.stop if newest is None else newest + 1) - 1
        if last < max(ours.start, theirs.start):
            name = api_name(api_key)
            has = f"versions {theirs.start} to {theirs.stop - 1}" if theirs else "no version"
            raise errors.UnsupportedVersionError(
                self.address, f"the broker has {has} of {name}, this client {ours.start} to {ours.stop - 1}"
            )
        return last

    def request(
        self, message: Any, version: int | None = None, *, timeout_ms: int | None = None
    ) -> asyncio.Future[Any]:
        """Send a request; the future returns its response, or raises the `BrokerError` that has ended the connection.

        :param message: a request of family ``kafka`` that is answered (no Produce with acks=0)
        :param version: the highest common one if not given
        :param timeout_ms: `ConnectionSettings.request_timeout_ms` if not given
        :raises BrokerError: the connection has ended already
        :raises UnsupportedVersionError: the broker lacks the version
        :raises EncodeError: the message cannot be written in that version
        """
        api_key = kw.registry.by_class(type(message)).api_key
        if api_key is None:
            raise TypeError(f"{type(message).__name__} is not a request")
        highest = self.highest_version(api_key, version)
        if version is not None and highest != version:
            detail = f"the broker has no version {version} of {api_name(api_key)}, but {highest}"
            raise errors.UnsupportedVersionError(self.address, detail)
        pending = self._prepare(api_key, message, highest, timeout_ms)
        if self._held is None:
            self._send(pending)
        else:
            self._held.append(pending)
        return pending.future

    def _prepare(self, api_key: int, message: Any, version: int, timeout_ms: int | None) -> _Pending:
        if self.lost.done():
            raise self.lost.result()
        timeout_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        correlation_id = self._last_id = self._last_id % _LARGEST_ID + 1
        body = kw.encode_request(message, version, correlation_id=correlation_id, client_id=self._settings.client_id)
        silence = f"no response to {api_name(api_key)} v{version} within {timeout_ms} ms"
        timer = self._loop.call_later(
            timeout_ms / 1000, partial(self._end, errors.RequestTimeoutError(self.address, silence))
        )
        return _Pending(api_key, version, correlation_id, kw.frame(body), self._loop.create_future(), timer)

    def _send(self, pending: _Pending) -> None:
        self._pending.append(pending)
        cast(asyncio.Transport, self._transport).write(pending.frame)

    async def _call(self, message: Any, version: int) -> Any:
        """Return the response to a request that comes before all that are held."""
        api_key = cast(int, kw.registry.by_class(type(message)).api_key)
        pending = self._prepare(api_key, message, version, None)
        self._send(pending)
        return await pending.future

    # ---- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.lost.done():
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.lost.done():
            return
        try:
            for body in self._framer.feed(data):
                self._take(body)
                if self.lost.done():
                    return
        except kw.DecodeError as error:
            hint = "" if self._broker_versions else looks_like(data)
            self._end(errors.ForeignBytesError(self.address, f"{error}{hint}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        if exc is not None:
            self._end(self._network_error(exc))
            return
        begun = self._framer.buffered
        within = f", {begun} bytes into a response" if begun else ""
        self._end(errors.ConnectionLostError(self.address, f"closed by the broker{within}"))

    def _take(self, body: bytes) -> None:
        """Hand the response to the oldest request.

        :raises DecodeError: it is not that response
        """
        if not self._pending:
            raise kw.DecodeError("frame", 0, "Frame", f"a response of {len(body)} bytes where no request waits")
        oldest = self._pending[0]
        correlation_id = int.from_bytes(body[:4], "big", signed=True)
        if correlation_id != oldest.correlation_id:
            detail = f"{correlation_id} where {oldest.correlation_id}, of {oldest}, is next"
            raise kw.DecodeError("value", 0, "ResponseHeader.correlation_id", detail)
        message = kw.decode_response(body, oldest.api_key, oldest.version)[1]
        self._pending.popleft()
        oldest.timer.cancel()
        if not oldest.future.done():
            oldest.future.set_result(message)

    # ---- versions and authentication

    async def _negotiate(self) -> None:
        asked = m.ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=kw.__version__)
        answer = await self._call(asked, _API_VERSIONS)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = await self._call(m.ApiVersionsRequest(), 0)
        if answer.error_code:
            raise errors.UnsupportedVersionError(self.address, f"ApiVersions: {describe_error(answer.error_code)}")
        self._broker_versions = {api.api_key: range(api.min_version, api.max_version + 1) for api in answer.api_keys}

    async def _authenticate(self, sasl: Sasl) -> None:
        try:
            await self._exchange(sasl)
        except SaslError as error:
            refused = errors.AuthenticationError(self.address, str(error))
            self._end(refused)
            raise refused from None

    async def _exchange(self, sasl: Sasl) -> None:
        """KIP-152: SaslHandshake, then the tokens in SaslAuthenticate."""
        self.highest_version(ApiKey.SASL_AUTHENTICATE)  # before the handshake, after which nothing else is answered
        chosen = await self._call(m.SaslHandshakeRequest(mechanism=sasl.mechanism), 1)
        if chosen.error_code:
            offered = ", ".join(chosen.mechanisms) or "none"
            raise SaslError(f"{sasl.mechanism}: {describe_error(chosen.error_code)}; offered: {offered}")
        tokens = sasl_tokens(sasl)
        token: bytes | None = next(tokens)
        lifetime_ms = 0
        while token is not None:
            request = m.SaslAuthenticateRequest(auth_bytes=token)
            answer = await self._call(request, self.highest_version(ApiKey.SASL_AUTHENTICATE))
            if answer.error_code:
                raise SaslError(answer.error_message or describe_error(answer.error_code))
            lifetime_ms = answer.session_lifetime_ms
            try:
                token = tokens.send(answer.auth_bytes)
            except StopIteration:
                token = None
        if lifetime_ms > 0:
            seconds = max(_SHORTEST_SESSION, lifetime_ms / 1000 * _LIFETIME_USED)
            self._renewal = self._loop.call_later(seconds, self._begin_renewal, sasl)

    def _begin_renewal(self, sasl: Sasl) -> None:
        self._held = []
        self._renewing = self._loop.create_task(self._renew(sasl))

    async def _renew(self, sasl: Sasl) -> None:
        """Authenticate again (KIP-368). New requests wait, because brokers serve none meanwhile; older ones come first,
        because the timeout of the exchange must not count a JoinGroup that the broker has parked."""
        if self._pending:
            await asyncio.wait([pending.future for pending in self._pending])
        try:
            await self._authenticate(sasl)
        except errors.BrokerError:
            return  # it has ended the connection, and what was held has failed
        held, self._held = self._held or [], None
        for pending in held:
            self._send(pending)
