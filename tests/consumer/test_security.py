"""The client's SASL tokens against the coordinator's own sessions, and against servers that lie."""

from __future__ import annotations

import ssl
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
import trustme

from kcoord_wire import SaslAuthenticateRequest, SaslHandshakeRequest
from kcoord_wire.consumer.settings import MAX_ITERATIONS, MECHANISMS, Sasl, SaslError, sasl_tokens, tls_context
from kcoord_wire.coordinator.security.authentication import Session, Users
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.protocol.error_codes import ErrorCode

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
