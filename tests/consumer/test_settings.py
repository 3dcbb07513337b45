"""The consumer's settings: what is rejected, and what the member machine gets.

The client's SASL tokens against the coordinator's own sessions, and against servers that lie.
"""

from __future__ import annotations

import ssl
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest
import trustme

from kcoord_wire import SaslAuthenticateRequest, SaslHandshakeRequest
from kcoord_wire.assignors import ASSIGNORS, Assignor, RebalanceProtocol
from kcoord_wire.consumer.member_events import CLIENT_VERSIONS
from kcoord_wire.consumer.settings import (
    MAX_ITERATIONS,
    MECHANISMS,
    ConsumerSettings,
    Sasl,
    SaslError,
    sasl_tokens,
    tls_context,
)
from kcoord_wire.coordinator.security.authentication import Session, Users
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.protocol.error_codes import ErrorCode


def made(**changes: Any) -> ConsumerSettings:
    return ConsumerSettings(**{"bootstrap_servers": "one:9092, [::1]:9093", "group_id": "billing", **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"group_id": ""}, "group_id"),
        ({"bootstrap_servers": []}, "names no server"),
        ({"bootstrap_servers": "nowhere"}, "HOST:PORT"),
        ({"session_timeout_ms": 0}, "session_timeout_ms"),
        ({"max_poll_records": 1 << 31}, "max_poll_records"),
        ({"heartbeat_interval_ms": 45_000}, "less than session_timeout_ms"),
        ({"fetch_max_wait_ms": 30_000}, "less than request_timeout_ms"),
        ({"auto_offset_reset": "smallest"}, "smallest"),
        ({"isolation_level": "dirty"}, "dirty"),
        ({"partition_assignment_strategy": []}, "no assignor"),
        ({"partition_assignment_strategy": ["fair"]}, "fair"),
    ],
)
def test_settings_that_cannot_work_are_rejected(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        made(**changes)


def test_a_strategy_is_a_list() -> None:
    with pytest.raises(TypeError, match="a list"):
        made(partition_assignment_strategy="range")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"group_id": 7}, "group_id must be of type str or None"),
        ({"session_timeout_ms": "5000"}, "session_timeout_ms must be of type int, not '5000'"),
        ({"fetch_max_wait_ms": 0.5}, "fetch_max_wait_ms must be of type int"),
        ({"enable_auto_commit": "false"}, "enable_auto_commit must be of type bool, not 'false'"),
        ({"group_instance_id": 7}, "group_instance_id must be of type str or None"),
        ({"tls": True}, "tls must be of type SSLContext or None"),
        ({"sasl": ("PLAIN", "alice", "secret")}, "sasl must be of type Sasl or None"),
        ({"partition_assignment_strategy": [3]}, "neither a name nor an Assignor"),
    ],
)
def test_values_of_another_type_are_rejected(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        made(**changes)


@pytest.mark.parametrize("name", ["group_id", "group_instance_id"])
def test_an_empty_id_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must not be empty"):
        made(**{name: ""})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"group_protocol": "newest"}, "group_protocol"),
        ({"group_remote_assignor": "range"}, "group_remote_assignor is for group_protocol 'consumer'"),
        ({"group_protocol": "consumer", "session_timeout_ms": 9_000}, "session_timeout_ms is for group_protocol"),
        (
            {"group_protocol": "consumer", "partition_assignment_strategy": ["range"]},
            "partition_assignment_strategy is",
        ),
    ],
)
def test_a_protocol_refuses_the_settings_of_the_other(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        made(**changes)


def test_addresses_and_assignors() -> None:
    assert made().addresses == [("one", 9092), ("::1", 9093)]
    own = Assignor("own", RebalanceProtocol.EAGER, ASSIGNORS["range"].assign)
    assert made(partition_assignment_strategy=[own, "range"]).assignors == [own, ASSIGNORS["range"]]


def test_the_member_has_the_settings_of_the_group() -> None:
    versions = CLIENT_VERSIONS["oldest"]
    member = made(max_poll_interval_ms=9_000, group_instance_id="i", client_rack="r").of_member(versions)
    assert (member.group_id, member.rebalance_timeout_ms, member.group_instance_id) == ("billing", 9_000, "i")
    assert (member.rack, member.versions, member.session_timeout_ms) == ("r", versions, 45_000)


USERS = Users({"alice": "secret", "bob,=": "p\u00e4ss"})
SCRAMS = MECHANISMS[1:]


def authenticate(sasl: Sasl) -> tuple[Session, int]:
    """The server's session at the end of the exchange, and its last error code."""
    session = Session(USERS)
    session.handshake(SaslHandshakeRequest(mechanism=sasl.mechanism), 1)
    tokens = sasl_tokens(sasl)
    token = next(tokens)
    while True:
        answer = session.authenticate(SaslAuthenticateRequest(auth_bytes=token), 2)
        if answer.error_code:
            return session, answer.error_code
        try:
            token = tokens.send(answer.auth_bytes)
        except StopIteration:
            return session, 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("alice", "secret"), ("bob,=", "p\u00e4ss")])
def test_the_coordinator_admits_the_user(mechanism: str, name: str, password: str) -> None:
    session, error = authenticate(Sasl(mechanism, name, password))
    assert (session.principal, error) == (f"User:{name}", 0)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["alice", "mallory"])
def test_the_coordinator_refuses_a_wrong_password(mechanism: str, name: str) -> None:
    session, error = authenticate(Sasl(mechanism, name, "wrong"))
    assert (session.principal, error) == (None, ErrorCode.SASL_AUTHENTICATION_FAILED)


def server_first(client_first: bytes, salt: str = "W22ZaJ0SNY7soEsUEjb6gQ==", iterations: str = "4096") -> bytes:
    return f"r={client_first.decode().partition('r=')[2]}abc,s={salt},i={iterations}".encode()


@pytest.mark.parametrize("mechanism", SCRAMS)
@pytest.mark.parametrize("final", [b"v=AAAA", b"", b"e=other-error", b"v=" + b"A" * 43 + b"=", b"\xff"])
def test_a_server_that_does_not_know_the_password(mechanism: str, final: bytes) -> None:
    tokens = sasl_tokens(Sasl(mechanism, "alice", "secret"))
    tokens.send(server_first(next(tokens)))
    with pytest.raises(SaslError):
        tokens.send(final)


@pytest.mark.parametrize("iterations", [str(MAX_ITERATIONS + 1), "2147483647", "9" * 5000, "4095", "0", "-1", "x", ""])
def test_an_unreasonable_cost_is_refused(iterations: str) -> None:
    tokens = sasl_tokens(Sasl("SCRAM-SHA-512", "alice", "secret"))
    with pytest.raises(SaslError):
        tokens.send(server_first(next(tokens), iterations=iterations))


@pytest.mark.parametrize("first", [b"", b"r=x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", b"\xff\xfe", b"r=" + b"x" * 100_000])
def test_a_first_token_that_is_none(first: bytes) -> None:
    tokens = sasl_tokens(Sasl("SCRAM-SHA-256", "alice", "secret"))
    next(tokens)
    with pytest.raises(SaslError):
        tokens.send(first)


def test_a_salt_that_is_too_short_is_refused() -> None:
    tokens = sasl_tokens(Sasl("SCRAM-SHA-256", "alice", "secret"))
    with pytest.raises(SaslError):
        tokens.send(server_first(next(tokens), salt="AAAA"))


def test_a_password_that_preparation_changes_is_refused() -> None:
    """RFC 4013 turns the Roman numeral into letters; Kafka's brokers hash it as it is."""

    with pytest.raises(SaslError, match="normal form") as raised:
        next(sasl_tokens(Sasl("SCRAM-SHA-256", "alice", "\u2168")))
    assert "\u2168" not in str(raised.value)


@pytest.mark.parametrize(
    ("mechanism", "name", "password"),
    [("GSSAPI", "a", "b"), ("PLAIN", "", "b"), ("PLAIN", "a", ""), ("PLAIN", "a\0", "b"), ("plain", "a", "b")],
)
def test_credentials_that_cannot_be_sent(mechanism: str, name: str, password: str) -> None:
    with pytest.raises(ValueError, match=r"is none of|must not"):
        Sasl(mechanism, name, password)


def test_a_context_of_files(tmp_path: Path) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("client")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "own.pem"))
    context = tls_context(tmp_path / "ca.pem", tmp_path / "own.pem")
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(context.get_ca_certs()) == 1
    with pytest.raises(FileNotFoundError):
        tls_context(tmp_path / "none.pem")
    with pytest.raises(ssl.SSLError):
        tls_context(certfile=tmp_path / "ca.pem")  # without its key


def test_scram_without_its_library_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(MetaPathFinder):
        def find_spec(self, fullname: str, *rest: object) -> None:
            if fullname == "scramp":
                raise ModuleNotFoundError("No module named 'scramp'", name="scramp")

    monkeypatch.delitem(sys.modules, "scramp", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    assert Sasl("PLAIN", "alice", "secret").mechanism == "PLAIN"
    with pytest.raises(MissingLibraryError, match=r"SCRAM needs scramp: pip install 'kcoord_wire\[consumer\]'"):
        Sasl("SCRAM-SHA-256", "alice", "secret")
