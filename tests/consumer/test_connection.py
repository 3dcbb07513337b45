"""A connection against a scripted peer: agreement on versions, order, and every way in which a peer can misbehave."""

from __future__ import annotations

import asyncio
import socket
import ssl
import unittest.mock
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.consumer.connection import SOFTWARE_NAME, BrokerConnection, ConnectionSettings
from kcoord_wire.consumer.errors import (
    AuthenticationError,
    BrokerError,
    ConnectionLostError,
    ForeignBytesError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from kcoord_wire.consumer.settings import Sasl
from kcoord_wire.protocol.error_codes import ErrorCode

HEARTBEAT = kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
SOON = 20.0  # seconds: far more than anything here takes
KNOWN = {0: (3, 13), 12: (0, 4), 17: (0, 1), 18: (0, 5), 36: (0, 2), 3: (0, 99)}  # Heartbeat, SASL, Metadata ...


class Peer:
    """The broker's side of one connection, as a script plays it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def receive(self) -> tuple[kw.RequestHeader, Any]:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        header, message = kw.decode_request(await self.reader.readexactly(size))
        return header, message

    def answer(self, header: kw.RequestHeader, message: Any, version: int | None = None) -> None:
        version = header.request_api_version if version is None else version
        self.send(kw.frame(kw.encode_response(message, version, correlation_id=header.correlation_id)))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def agree(self) -> kw.ApiVersionsRequest:
        header, asked = await self.receive()
        self.answer(header, versions())
        assert isinstance(asked, kw.ApiVersionsRequest)
        return asked

    async def closed(self) -> bytes:
        """What the client still sends before it closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


def versions(known: dict[int, tuple[int, int]] | None = None, error_code: int = 0) -> kw.ApiVersionsResponse:
    return kw.ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            kw.ApiVersionsResponseApiVersion(api_key=key, min_version=first, max_version=last)
            for key, (first, last) in (KNOWN if known is None else known).items()
        ],
    )


Script = Callable[[Peer], Coroutine[Any, Any, None]]
Use = Callable[[str, int], Awaitable[None]]


def play(script: Script, use: Use, tls: ssl.SSLContext | None = None) -> None:
    """Play the broker's script for each connection, and the client's; both have to end without an error."""

    async def run() -> None:
        played: list[asyncio.Future[None]] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            playing = asyncio.ensure_future(script(Peer(reader, writer)))
            played.append(playing)
            await asyncio.wait([playing])
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        async with asyncio.timeout(SOON), server:
            await use(*server.sockets[0].getsockname()[:2])
            await asyncio.gather(*played)

    asyncio.run(run())


async def opened(host: str, port: int, **settings: Any) -> BrokerConnection:
    return await BrokerConnection.open(host, port, ConnectionSettings(client_id="c", **settings))


# ---- versions


def test_the_highest_common_version_is_used() -> None:
    async def script(peer: Peer) -> None:
        asked = await peer.agree()
        assert (asked.client_software_name, asked.client_software_version) == (SOFTWARE_NAME, kw.__version__)
        for version in (4, 1):
            header, request = await peer.receive()
            assert (header.request_api_version, header.client_id, request) == (version, "c", HEARTBEAT)
            peer.answer(header, kw.HeartbeatResponse(error_code=version))
        assert await peer.closed() == b""

    async def use(host: str, port: int) -> None:
        connection = await opened(host, port)
        assert connection.highest_version(12) == 4
        assert connection.highest_version(12, newest=2) == 2
        assert connection.highest_version(3) == kw.registry.request(3).valid_versions.stop - 1
        assert (await connection.request(HEARTBEAT)).error_code == 4
        assert (await connection.request(HEARTBEAT, 1)).error_code == 1
        for lacking in (lambda: connection.highest_version(11), lambda: connection.highest_version(0, newest=2)):
            with pytest.raises(UnsupportedVersionError, match="the broker has"):
                lacking()
        with pytest.raises(UnsupportedVersionError, match="no version 5 of Heartbeat, but 4"):
            connection.request(HEARTBEAT, 5)
        assert not connection.lost.done()
        await connection.close()

    play(script, use)


def test_an_old_broker_is_asked_again_as_it_offers() -> None:
    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        assert header.request_api_version == 3
        peer.answer(header, versions({18: (0, 2)}, ErrorCode.UNSUPPORTED_VERSION), 0)
        header, _ = await peer.receive()
        assert header.request_api_version == 2
        peer.answer(header, versions({12: (0, 1)}))
        assert await peer.closed() == b""

    async def use(host: str, port: int) -> None:
        connection = await opened(host, port)
        assert connection.highest_version(12) == 1
        await connection.close()

    play(script, use)


def test_an_error_instead_of_versions_is_reported() -> None:
    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        peer.answer(header, versions(error_code=ErrorCode.INVALID_REQUEST))
        assert await peer.closed() == b""

    async def use(host: str, port: int) -> None:
        with pytest.raises(UnsupportedVersionError, match="42 INVALID_REQUEST"):
            await opened(host, port)

    play(script, use)


# ---- order


def test_requests_are_pipelined_and_answered_in_order() -> None:
    async def script(peer: Peer) -> None:
        await peer.agree()
        headers = [(await peer.receive())[0] for _ in range(50)]
        data = b"".join(
            kw.frame(kw.encode_response(kw.HeartbeatResponse(throttle_time_ms=n), 4, correlation_id=h.correlation_id))
            for n, h in enumerate(headers)
        )
        for start in range(0, len(data), 7):
            peer.send(data[start : start + 7])
            await asyncio.sleep(0)
        assert await peer.closed() == b""

    async def use(host: str, port: int) -> None:
        connection = await opened(host, port)
        futures = [connection.request(HEARTBEAT) for _ in range(50)]
        futures[20].cancel()
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(answers.pop(20), asyncio.CancelledError)
        assert [answer.throttle_time_ms for answer in answers] == [n for n in range(50) if n != 20]
        await connection.close()

    play(script, use)


def test_a_request_has_its_own_timeout() -> None:
    async def script(peer: Peer) -> None:
        await peer.agree()
        await peer.closed()

    async def use(host: str, port: int) -> None:
        connection = await opened(host, port)
        patient = connection.request(HEARTBEAT, timeout_ms=60_000)
        with pytest.raises(RequestTimeoutError, match="no response to Heartbeat v4 within 50 ms"):
            await connection.request(HEARTBEAT, timeout_ms=50)
        with pytest.raises(RequestTimeoutError):
            await patient

    play(script, use)


# ---- the end


def test_loss_fails_every_request_with_one_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.agree()
        for _ in range(3):
            await peer.receive()

    async def use(host: str, port: int) -> None:
        connection = await opened(host, port)
        futures = [connection.request(HEARTBEAT) for _ in range(3)]
        errors = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(errors[0], ConnectionLostError)
        assert "closed by the broker" in str(errors[0])
        assert all(error is errors[0] for error in errors)
        assert await connection.lost is errors[0]
        with pytest.raises(ConnectionLostError):
            connection.request(HEARTBEAT)
        await connection.close()

    play(script, use)


def test_what_was_requested_is_written_before_the_close() -> None:
    leave = kw.LeaveGroupRequest(group_id="g", members=[kw.LeaveGroupRequestMemberIdentity(member_id="m" * 30_000)])

    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        peer.answer(header, versions({13: (0, 5)}))
        assert (await peer.receive())[1] == leave
        assert await peer.closed() == b""

    async def use(host: str, port: int) -> None:
        connection = await opened(host, port)
        future = connection.request(leave)
        await connection.close()
        with pytest.raises(ConnectionLostError, match="closed by this client"):
            await future

    play(script, use)


def test_an_opening_that_is_cancelled_leaves_no_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.receive()
        await peer.closed()

    async def use(host: str, port: int) -> None:
        opening = asyncio.ensure_future(opened(host, port))
        await asyncio.sleep(0.05)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    play(script, use)


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 1), ("no.such.host.invalid", 9092), ("a..b", 9092), ("x" * 80, 1), ("a\0b", 1)]
)
def test_a_broker_that_cannot_be_reached(host: str, port: int) -> None:
    with pytest.raises(ConnectionLostError) as raised:
        asyncio.run(opened(host, port))
    assert raised.value.retriable
    assert str(raised.value).startswith(f"{host}:{port}: ")


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_is_none(port: int) -> None:
    with pytest.raises(ConnectionLostError):
        asyncio.run(opened("127.0.0.1", port))


# ---- hostile peers


def response(correlation_id: int, tail: bytes = b"") -> bytes:
    """A Heartbeat response: requests count from 1, and ApiVersions was the first."""
    body = kw.encode_response(kw.HeartbeatResponse(), 4, correlation_id=correlation_id)
    return kw.frame(body + tail)


HOSTILE = {
    "plain text": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "frame size 1213486160 is above the limit"),
    "a giant size": (b"\x7f\xff\xff\xff" + bytes(1000), "frame size 2147483647 is above the limit of 100000"),
    "a negative size": (b"\xff\xff\xff\xff", "frame size -1 is negative"),
    "one byte above the limit": ((100_001).to_bytes(4, "big"), "frame size 100001 is above the limit"),
    "an empty frame": (kw.frame(b""), "ResponseHeader.correlation_id: 4 bytes are needed"),
    "the id of a later request": (response(3), "correlation id 3, 2 is next, of Heartbeat v4"),
    "the id of an earlier request": (response(1), "correlation id 1, 2 is next"),
    "a negative id": (response(-2), "correlation id -2, 2 is next"),
    "garbage behind the id": (kw.frame(b"\0\0\0\2" + b"\xff" * 20), r"varint|tag|trailing|truncated"),
    "a body that ends early": (kw.frame(response(2)[4:-1]), "truncated"),
    "a body that does not end": (response(2, b"x"), "1 bytes are left after the message"),
    "one response too many": (response(2) + response(3) + response(4), "no request is pending"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bytes_that_are_no_response_end_the_connection(name: str) -> None:
    data, text = HOSTILE[name]

    async def script(peer: Peer) -> None:
        await peer.agree()
        await peer.receive()
        await peer.receive()
        peer.send(data)
        await peer.closed()

    async def use(host: str, port: int) -> None:
        connection = await opened(host, port, max_response_bytes=100_000)
        await asyncio.gather(*(connection.request(HEARTBEAT) for _ in range(2)), return_exceptions=True)
        error = await connection.lost
        assert isinstance(error, ForeignBytesError), error
        with pytest.raises(ForeignBytesError, match=text):
            raise error

    play(script, use)


@given(
    data=st.one_of(
        st.binary(max_size=60),
        st.builds(bytes.__add__, st.just(response(1) + response(2)), st.binary(max_size=40)),
        st.builds(
            lambda at, byte: response(1)[:at] + bytes([byte]) + response(1)[at + 1 :],
            st.integers(0, len(response(1)) - 1),
            st.integers(0, 255),
        ),
    ),
    cuts=st.lists(st.integers(0, 100), max_size=4),
)
def test_any_bytes_end_in_responses_or_one_typed_error(data: bytes, cuts: list[int]) -> None:
    async def run() -> None:
        connection = BrokerConnection("broker:9092", ConnectionSettings(max_response_bytes=1_000))
        transport = unittest.mock.create_autospec(asyncio.Transport, instance=True)
        connection.connection_made(transport)
        connection._wire.versions = {12: range(5)}
        futures = [connection.request(HEARTBEAT) for _ in range(2)]
        edges = sorted({0, *cuts, len(data)})
        for start, end in pairwise(edges):
            if chunk := data[start:end]:  # a transport gives no empty chunk
                connection.data_received(chunk)
        connection.connection_lost(None)
        error = await connection.lost
        assert isinstance(error, ForeignBytesError | ConnectionLostError)
        for answer in await asyncio.gather(*futures, return_exceptions=True):
            assert answer is error or isinstance(answer, kw.HeartbeatResponse)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "hint"), [(b"\x15\x03\x03\0\2\2\x28", "looks like TLS"), (b"SSH-2.0-x\r\n", "looks like plain text")]
)
def test_what_is_not_kafka_is_named(data: bytes, hint: str) -> None:
    async def script(peer: Peer) -> None:
        peer.send(data)
        await peer.closed()

    async def use(host: str, port: int) -> None:
        with pytest.raises(ForeignBytesError, match=hint):
            await opened(host, port)

    play(script, use)


@pytest.mark.parametrize(("sent", "text"), [(b"", "closed by the broker$"), (response(2)[:-3], "13 bytes into a resp")])
def test_half_a_response_is_none(sent: bytes, text: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.agree()
        await peer.receive()
        peer.send(sent)

    async def use(host: str, port: int) -> None:
        connection = await opened(host, port)
        with pytest.raises(ConnectionLostError, match=text):
            await connection.request(HEARTBEAT)

    play(script, use)


def test_a_silent_peer_is_given_up() -> None:
    async def script(peer: Peer) -> None:
        await peer.closed()

    async def use(host: str, port: int) -> None:
        with pytest.raises(RequestTimeoutError, match="no response to ApiVersions v3 within 50 ms"):
            await opened(host, port, request_timeout_ms=50)
        with pytest.raises(ConnectionLostError, match="no connection within 50 ms"):
            await opened(host, port, tls=ssl.create_default_context(), connect_timeout_ms=50)

    play(script, use)


# ---- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def contexts(authority: trustme.CA, name: str = "127.0.0.1") -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a broker with that name, and of a client that trusts its authority."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


async def one_heartbeat(peer: Peer) -> None:
    await peer.agree()
    header, _ = await peer.receive()
    peer.answer(header, kw.HeartbeatResponse(error_code=7))
    await peer.closed()


def test_tls(authority: trustme.CA) -> None:
    server, client = contexts(authority)

    async def use(host: str, port: int) -> None:
        connection = await opened(host, port, tls=client)
        assert (await connection.request(HEARTBEAT)).error_code == 7
        await connection.close()

    play(one_heartbeat, use, server)


@pytest.mark.parametrize("wrong", ["name", "authority"])
def test_a_certificate_that_is_not_trusted(authority: trustme.CA, wrong: str) -> None:
    server, client = contexts(authority, "localhost" if wrong == "name" else "127.0.0.1")
    trust = client if wrong == "name" else ssl.create_default_context()

    async def use(host: str, port: int) -> None:
        with pytest.raises(AuthenticationError, match="certificate verify failed") as raised:
            await opened(host, port, tls=trust)
        assert not raised.value.retriable

    play(one_heartbeat, use, server)


def test_a_client_without_the_certificate_it_needs(authority: trustme.CA) -> None:
    server, client = contexts(authority)
    server.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(server)

    def refuse(listener: socket.socket) -> None:
        # asyncio's servers of Python 3.11 close without the alert that says why; Kafka's send it.
        with server.wrap_socket(listener.accept()[0], server_side=True, do_handshake_on_connect=False) as accepted:
            with pytest.raises(ssl.SSLError, match="peer did not return a certificate"):
                accepted.do_handshake()
            while socket.socket.recv(accepted, 4096):  # what is unread at the close would reset the connection
                pass

    async def use() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            refusing = asyncio.create_task(asyncio.to_thread(refuse, listener))
            with pytest.raises(AuthenticationError, match=r"certificate required|CERTIFICATE_REQUIRED"):
                await opened(*listener.getsockname()[:2], tls=client)
            await refusing

    asyncio.run(asyncio.wait_for(use(), SOON))


# ---- SASL


async def admit(peer: Peer, lifetime_ms: int = 0) -> None:
    """The broker's part of PLAIN."""
    header, handshake = await peer.receive()
    assert (header.request_api_version, handshake.mechanism) == (1, "PLAIN")
    peer.answer(header, kw.SaslHandshakeResponse(mechanisms=["PLAIN"]))
    header, token = await peer.receive()
    assert token.auth_bytes == b"\0alice\0secret"
    peer.answer(header, kw.SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms))


PLAIN = Sasl("PLAIN", "alice", "secret")


def test_a_session_is_renewed_between_requests() -> None:
    """Older requests are answered first, newer ones wait until the session is renewed."""

    async def script(peer: Peer) -> None:
        await peer.agree()
        await admit(peer, lifetime_ms=1)
        parked, _ = await peer.receive()
        await asyncio.sleep(1.2)  # beyond the shortest session
        peer.answer(parked, kw.HeartbeatResponse(error_code=1))
        await admit(peer)
        header, _ = await peer.receive()
        peer.answer(header, kw.HeartbeatResponse(error_code=2))
        await peer.closed()

    async def use(host: str, port: int) -> None:
        connection = await opened(host, port, sasl=PLAIN)
        parked = connection.request(HEARTBEAT)
        await asyncio.sleep(1.1)
        held = connection.request(HEARTBEAT)
        assert [(await parked).error_code, (await held).error_code] == [1, 2]
        await connection.close()

    play(script, use)


def test_a_renewal_that_is_refused_ends_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.agree()
        await admit(peer, lifetime_ms=1)
        header, _ = await peer.receive()
        peer.answer(header, kw.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
        await peer.closed()

    async def use(host: str, port: int) -> None:
        connection = await opened(host, port, sasl=PLAIN)
        assert isinstance(await connection.lost, AuthenticationError)

    play(script, use)


def test_a_broker_without_sasl() -> None:
    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        peer.answer(header, versions({12: (0, 4)}))
        await peer.closed()

    async def use(host: str, port: int) -> None:
        with pytest.raises(UnsupportedVersionError, match="no version of SaslAuthenticate"):
            await opened(host, port, sasl=PLAIN)

    play(script, use)


def test_refused_credentials_are_reported() -> None:
    text = "Authentication failed: Invalid username or password"

    async def script(peer: Peer) -> None:
        await peer.agree()
        header, _ = await peer.receive()
        peer.answer(header, kw.SaslHandshakeResponse(mechanisms=["PLAIN"]))
        header, _ = await peer.receive()
        refusal = kw.SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=text)
        peer.answer(header, refusal)
        await peer.closed()

    async def use(host: str, port: int) -> None:
        with pytest.raises(AuthenticationError, match=text) as raised:
            await opened(host, port, sasl=PLAIN)
        assert "secret" not in f"{raised.value!r} {PLAIN}"

    play(script, use)


def test_a_mechanism_that_is_not_offered_is_reported() -> None:
    async def script(peer: Peer) -> None:
        await peer.agree()
        header, _ = await peer.receive()
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        peer.answer(header, kw.SaslHandshakeResponse(error_code=code, mechanisms=["GSSAPI", "OAUTHBEARER"]))
        await peer.closed()

    async def use(host: str, port: int) -> None:
        with pytest.raises(AuthenticationError, match="offered: GSSAPI, OAUTHBEARER"):
            await opened(host, port, sasl=PLAIN)

    play(script, use)


def test_all_errors_name_the_broker() -> None:
    error = BrokerError("[::1]:9092", "why")
    assert (str(error), error.address, error.retriable) == ("[::1]:9092: why", "[::1]:9092", True)
