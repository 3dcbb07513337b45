"""One connection to one broker: requests out, in order, and to each its response or one typed error.

Laws:

* A response that `codec.connection` cannot match, and one that does not decode, end the connection. A request whose
  caller has gone keeps its place.
* A connection ends once, for one reason (`BrokerConnection.lost`), and each request that waits then fails with it.
  Silence ends it too: no request waits longer than its timeout.
* Memory is bounded by `ConnectionSettings.max_response_bytes`: a larger size ends the connection before any byte of
  that response is kept.
* Every request has a version that the broker has announced.
* Time is the event loop's: its timers, no clock of the system and no thread.

Sources: the protocol guide (size, header, order of responses); KIP-35 and 511 (ApiVersions), 43, 152 and 368 (SASL).
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self, cast

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE
from kcoord_wire.consumer import errors
from kcoord_wire.consumer.metrics import Metrics
from kcoord_wire.consumer.settings import Sasl, SaslError, sasl_tokens
from kcoord_wire.kernel.net import address_text, guess_protocol
from kcoord_wire.protocol.api_keys import ApiKey, api_name
from kcoord_wire.protocol.error_codes import ErrorCode, describe_error

SOFTWARE_NAME: Final = "kcoord-wire"
"""What brokers log and count this client as (KIP-511, which does not allow an underscore)."""

_API_VERSIONS: Final = 3
"""The first version with the client's name. Later ones only add what a consumer does not use, and brokers before them
would need a second round."""
_LIFETIME_USED: Final = 0.85  # of a session, before it is renewed; Java's clients take 0.85 to 0.95
_SHORTEST_SESSION: Final = 1.0  # seconds; brokers refuse to renew sooner (KIP-368)
_CLOSE_SECONDS: Final = 2.0  # for the bytes still to be written to a broker that does not read


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How connections are made. Defaults are the Java client's; times in milliseconds.

    :ivar tls: speak TLS; see `settings.tls_context`
    :ivar sasl: authenticate
    :ivar connect_timeout_ms: for TCP and TLS (``socket.connection.setup.timeout.ms``)
    :ivar request_timeout_ms: for each response, unless the request has its own
    :ivar metrics: where requests are counted
    :ivar max_response_bytes: the largest response accepted, without its four bytes of size
    """

    client_id: str = SOFTWARE_NAME
    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = None
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    max_response_bytes: int = DEFAULT_MAX_FRAME_SIZE
    metrics: Metrics = field(default_factory=Metrics)


@dataclass(slots=True)
class _Waiting:
    """Who waits for a response, and when the connection is given up for lack of it."""

    future: asyncio.Future[Any]
    since: float
    timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class BrokerConnection(asyncio.Protocol):
    """A connection that is ready for requests; `open` makes one.

    :ivar address: ``HOST:PORT``
    :ivar lost: done when the connection has ended; its result is the reason, a `BrokerError`
    """

    def __init__(self, address: str, settings: ConnectionSettings) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._transport: asyncio.Transport | None = None
        self._wire = kw.Connection("client", client_id=settings.client_id, max_frame_size=settings.max_response_bytes)
        self._held: list[tuple[bytes, _Waiting]] | None = None  # requests, while the session is renewed
        self._renewal: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
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
        for waiting in (*self._waiting(), *(waiting for _, waiting in self._held or ())):
            waiting.end()
            self._settings.metrics.count("failed_requests_total")
            if not waiting.future.done():
                waiting.future.set_exception(error)
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
        try:
            return self._wire.version_of(api_key, newest)
        except kw.ProtocolError as error:
            raise errors.UnsupportedVersionError(self.address, error.detail) from None

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
        return self._ask(message, highest, timeout_ms)

    def _ask(
        self, message: Any, version: int, timeout_ms: int | None = None, *, at_once: bool = False
    ) -> asyncio.Future[Any]:
        """Send a request, or hold it back while the session is renewed unless it goes out `at_once`."""
        if self.lost.done():
            raise self.lost.result()
        settings = self._settings
        waiting = _Waiting(self._loop.create_future(), self._loop.time())
        if self._held is None or at_once:
            self._write(self._wire.send(message, version, context=waiting))
        else:
            self._held.append((kw.encode_request(message, version, client_id=settings.client_id), waiting))
        timeout_ms = settings.request_timeout_ms if timeout_ms is None else timeout_ms
        name = type(message).__name__.removesuffix("Request")
        silence = f"no response to {name} v{version} within {timeout_ms} ms"
        waiting.timer = self._loop.call_later(
            timeout_ms / 1000, partial(self._end, errors.RequestTimeoutError(self.address, silence))
        )
        return waiting.future

    def _write(self, data: bytes) -> None:
        cast(asyncio.Transport, self._transport).write(data)

    def _waiting(self) -> list[_Waiting]:
        return [request.context for request in self._wire.pending]

    # ---- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.lost.done():
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.lost.done():
            return
        try:
            for event in self._wire.receive_data(data):
                self._take(event)
                if self.lost.done():
                    return
        except kw.WireError as error:
            self._end(self._foreign(error, "" if self._wire.versions else guess_protocol(data)))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        if exc is not None:
            self._end(self._network_error(exc))
            return
        begun = len(self._wire.rest)
        within = f", {begun} bytes into a response" if begun else ""
        self._end(errors.ConnectionLostError(self.address, f"closed by the broker{within}"))

    def _take(self, event: kw.Event) -> None:
        """Hand a response to the request that it answers."""
        if isinstance(event, kw.Response | kw.Opaque) and event.error is not None:
            self._end(self._foreign(event.error))
        if isinstance(event, kw.Response):
            waiting: _Waiting = event.request.context
            waiting.end()
            self._settings.metrics.took("request", self._loop.time() - waiting.since)
            if not waiting.future.done():
                if event.error is None:
                    waiting.future.set_result(event.message)
                else:
                    waiting.future.set_exception(self.lost.result())

    def _foreign(self, error: kw.WireError, hint: str = "") -> errors.ForeignBytesError:
        return errors.ForeignBytesError(self.address, f"{error}{hint}")

    # ---- versions and authentication

    async def _negotiate(self) -> None:
        asked = m.ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=kw.__version__)
        answer = await self._ask(asked, self.highest_version(ApiKey.API_VERSIONS, _API_VERSIONS), at_once=True)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = await self._ask(asked, self.highest_version(ApiKey.API_VERSIONS, _API_VERSIONS), at_once=True)
        if answer.error_code:
            raise errors.UnsupportedVersionError(self.address, f"ApiVersions: {describe_error(answer.error_code)}")

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
        chosen = await self._ask(m.SaslHandshakeRequest(mechanism=sasl.mechanism), 1, at_once=True)
        if chosen.error_code:
            offered = ", ".join(chosen.mechanisms) or "none"
            raise SaslError(f"{sasl.mechanism}: {describe_error(chosen.error_code)}; offered: {offered}")
        tokens = sasl_tokens(sasl)
        token: bytes | None = next(tokens)
        lifetime_ms = 0
        while token is not None:
            request = m.SaslAuthenticateRequest(auth_bytes=token)
            answer = await self._ask(request, self.highest_version(ApiKey.SASL_AUTHENTICATE), at_once=True)
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
        if waiting := self._waiting():
            await asyncio.wait([each.future for each in waiting])
        try:
            await self._authenticate(sasl)
        except errors.BrokerError:
            return  # it has ended the connection, and what was held has failed
        held, self._held = self._held or [], None
        for body, each in held:
            self._write(self._wire.send_raw(body, context=each))
