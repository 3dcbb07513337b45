"""Sockets of the coordinator: authentications and TLS handshakes that do not end, and too many connections."""

from __future__ import annotations

import ssl
from contextlib import ExitStack

import pytest
import trustme

import kcoord_wire as kw
from kcoord_wire.coordinator.connection import PeerLimits
from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.security.authentication import Users
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import VERSIONS
from tests.support.waiting import eventually
from tests.support.wire import Wire


def test_authentication_has_to_come_to_an_end(coordinator: StartCoordinator) -> None:
    c = coordinator(users=Users({"alice": "secret"}), limits=PeerLimits(unauthenticated_ms=300))
    with Wire(c.address) as known, Wire(c.address) as unknown:
        assert known.call(kw.SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        assert known.call(kw.SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 1).error_code == 0
        eventually(lambda: not is_answered(unknown))  # asking for versions does not keep it alive
        assert known.call(kw.MetadataRequest(topics=[]), 9)
    assert 'kcoord_connections_closed_total{reason="unauthenticated"} 1.0' in c.metrics()


def test_handshakes_of_tls_count_as_connections_and_end(coordinator: StartCoordinator) -> None:
    authority = trustme.CA()
    server, trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(trust)
    c = coordinator(tls=server, limits=PeerLimits(max_connections=3, unauthenticated_ms=1_000))
    with ExitStack() as stack:
        known = stack.enter_context(Wire(c.address, ssl_context=trust))
        assert known.call(VERSIONS, 3).error_code == 0
        silent, half = (stack.enter_context(Wire(c.address)) for _ in range(2))
        half.send_raw(b"\x16\x03\x01\x02")
        with pytest.raises(OSError), Wire(c.address, ssl_context=trust):  # noqa: PT011  # which one differs by who reads
            pass
        assert known.call(VERSIONS, 3).error_code == 0
        assert silent.is_closed_by_peer()
        assert half.is_closed_by_peer()
        eventually(lambda: 'kcoord_connections_closed_total{reason="TLS"} 2.0' in c.metrics())
        with Wire(c.address, ssl_context=trust) as other:
            assert other.call(VERSIONS, 3).error_code == 0
    assert 'kcoord_connections_closed_total{reason="too many"} 1.0' in c.metrics()


def test_stopping_ends_handshakes_of_tls(coordinator: StartCoordinator) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(server)
    c = coordinator(tls=server, limits=PeerLimits(max_connections=1))
    with Wire(c.address) as silent, Wire(c.address) as refused:
        assert refused.is_closed_by_peer()  # so the one before it has been taken
        c.stop()
        assert silent.is_closed_by_peer()


def is_answered(wire: Wire) -> bool:
    try:
        return bool(wire.call(VERSIONS, 3).error_code == 0)
    except (EOFError, ConnectionError):
        return False


def test_unfinished_requests_to_all_brokers_are_bounded(
    coordinator: StartCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """The slowest goes first, on whichever broker it is; one whose request arrives whole is served meanwhile."""
    c = coordinator(brokers=2, limits=PeerLimits(max_input_held=5 << 19))
    half = (1 << 20).to_bytes(4, "big") + bytes(1 << 19)
    with ExitStack() as stack:
        opened = [stack.enter_context(Wire(address)) for address in c.addresses * 3]
        for number, wire in enumerate(opened[:4]):
            wire.send_raw(half)
            eventually(lambda least=(number + 1) << 19: held(c) >= least)
        assert opened[5].call(VERSIONS, 3).error_code == 0
        opened[4].send_raw(half)
        assert opened[0].is_closed_by_peer()
        assert opened[5].call(VERSIONS, 3).error_code == 0
        eventually(lambda: held(c) == 4 * len(half))
    assert 'kcoord_connections_closed_total{reason="too much unfinished input"} 1.0' in c.metrics()
    assert f"closed the connection from 127.0.0.1: too much unfinished input: {len(half)} of" in caplog.text


def held(c: Coordinator) -> int:
    (line,) = (line for line in c.metrics().splitlines() if line.startswith("kcoord_unfinished_bytes "))
    return int(float(line.split()[1]))
