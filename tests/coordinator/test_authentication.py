"""SASL: the exchanges, what is refused and how, and that a refusal tells nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import Counter
from pathlib import Path

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, decode, encode
from kcoord_wire.coordinator.security.authentication import (
    MAX_ITERATIONS,
    MAX_TOKEN_BYTES,
    MIN_ITERATIONS,
    Admission,
    Credential,
    Session,
    Users,
)
from kcoord_wire.kernel.settings import SettingsError
from kcoord_wire.protocol.error_codes import ErrorCode

SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
USERS = Users({"alice": "secret", "bob,=": "p\u00e4ss"})
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


def begin(mechanism: str, users: Users = USERS, *, version: int = 1, nonce: str | None = None) -> Session:
    session = Session(users, server_nonce=nonce)
    answer = session.handshake(SaslHandshakeRequest(mechanism=mechanism), version)
    assert (answer.error_code, answer.mechanisms) == (0, list(users.mechanisms))
    return session


def send(session: Session, token: bytes) -> SaslAuthenticateResponse:
    return session.authenticate(SaslAuthenticateRequest(auth_bytes=token), 2)


def read(folder: Path, text: str) -> Users:
    path = folder / "users.toml"
    path.write_text(text, encoding="utf-8")
    return Users.from_file(path)


class ScramClient:
    """RFC 5802 section 3 and 5, from hashlib alone."""

    def __init__(self, mechanism: str, name: str, password: str, *, nonce: str = "fyko+d2lbbFgONRv9qkxdawL") -> None:
        self.hash = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
        self.password = password
        self.bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"

    def first(self, header: str = "n,,") -> bytes:
        return (header + self.bare).encode()

    def final(self, server_first: bytes, *, binding: str = "biws") -> bytes:
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        without_proof = f"c={binding},r={fields['r']}"
        self.message = f"{self.bare},{server_first.decode()},{without_proof}".encode()
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        self.salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(), salt, iterations)
        key = hmac.digest(self.salted, b"Client Key", self.hash)
        signature = hmac.digest(hashlib.new(self.hash, key).digest(), self.message, self.hash)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def is_server(self, server_final: bytes) -> bool:
        key = hmac.digest(self.salted, b"Server Key", self.hash)
        return server_final == b"v=" + base64.b64encode(hmac.digest(key, self.message, self.hash))


# ---- what succeeds


def test_the_example_of_rfc_7677(tmp_path: Path) -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    stored = Credential.derive("SCRAM-SHA-256", "pencil", 4096, salt=salt)
    users = read(tmp_path, f'[users.user]\nSCRAM-SHA-256 = "{stored}"')
    session = begin("SCRAM-SHA-256", users, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = send(session, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first.auth_bytes == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = send(
        session,
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    )
    assert final.auth_bytes == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert (final.error_code, final.session_lifetime_ms, session.principal) == (0, 0, "User:user")


@pytest.mark.parametrize("mechanism", SCRAMS)
@pytest.mark.parametrize(("name", "password"), [("alice", "secret"), ("bob,=", "p\u00e4ss")])
@pytest.mark.parametrize("header", ["n,,", "y,,"])
def test_scram_with_a_client_of_its_own(mechanism: str, name: str, password: str, header: str) -> None:
    session, client = begin(mechanism), ScramClient(mechanism, name, password)
    first = send(session, client.first(header))
    binding = base64.b64encode(header.encode()).decode()
    final = send(session, client.final(first.auth_bytes, binding=binding))
    assert (first.error_code, final.error_code, session.principal) == (0, 0, f"User:{name}")
    assert client.is_server(final.auth_bytes)
    assert not session.failed


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_scram_with_scramps_client_and_a_stored_credential(mechanism: str, tmp_path: Path) -> None:
    stored = Credential.derive(mechanism, "secret", MAX_ITERATIONS)
    users = read(tmp_path, f'[users."bob,="]\n{mechanism} = "{stored}"\n')
    assert users.mechanisms == (mechanism,)
    session, client = begin(mechanism, users), scramp.ScramClient([mechanism], "bob,=", "secret")
    client.set_server_first(send(session, client.get_client_first().encode()).auth_bytes.decode())
    client.set_server_final(send(session, client.get_client_final().encode()).auth_bytes.decode())
    assert session.principal == "User:bob,="


def test_extensions_of_the_first_message_are_passed_over() -> None:
    session, client = begin("SCRAM-SHA-256"), ScramClient("SCRAM-SHA-256", "alice", "secret")
    client.bare += ",t=ext"
    send(session, client.final(send(session, client.first()).auth_bytes))
    assert session.principal == "User:alice"


@pytest.mark.parametrize("token", [b"\0alice\0secret", b"alice\0alice\0secret", "\0bob,=\0p\u00e4ss".encode()])
def test_plain(token: bytes) -> None:
    session = begin("PLAIN")
    answer = send(session, token)
    assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
    assert session.principal in ("User:alice", "User:bob,=")


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAMS])
def test_bare_tokens_after_a_handshake_of_version_0(mechanism: str) -> None:
    session = begin(mechanism, version=0)
    assert session.raw
    if mechanism == "PLAIN":
        assert session.raw_token(b"\0alice\0secret") == b""
    else:
        client = ScramClient(mechanism, "alice", "secret")
        first = session.raw_token(client.first())
        assert first is not None
        assert session.raw
        final = session.raw_token(client.final(first))
        assert final is not None
        assert client.is_server(final)
    assert (session.principal, session.raw, session.failed) == ("User:alice", False, False)
    assert session.raw_token(b"more") is None
    assert session.failed


# ---- the order of things


def test_what_is_admitted() -> None:
    session = Session(USERS)
    everything = range(-1, 100)
    assert {key for key in everything if session.admission(key) is Admission.SERVE} == {17, 18}
    assert session.admission(36) is session.admission(3) is Admission.CLOSE
    session.handshake(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert Counter(map(session.admission, everything)) == {Admission.SERVE: 1, Admission.REFUSE: len(everything) - 1}
    assert session.admission(36) is Admission.SERVE
    send(session, b"\0alice\0secret")
    assert {session.admission(key) for key in everything} == {Admission.SERVE}


def test_nothing_is_admitted_after_a_failure() -> None:
    session = begin("PLAIN")
    send(session, b"\0alice\0wrong")
    assert {session.admission(key) for key in range(100)} == {Admission.CLOSE}
    assert session.failure == "wrong credentials"
    assert send(session, b"\0alice\0secret").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert session.principal is None


@pytest.mark.parametrize("mechanism", ["", "GSSAPI", "plain", "SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "PLAIN\0"])
@pytest.mark.parametrize("version", [0, 1])
def test_an_unsupported_mechanism(mechanism: str, version: int) -> None:
    session = Session(USERS)
    answer = session.handshake(SaslHandshakeRequest(mechanism=mechanism), version)
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ["PLAIN", *SCRAMS]
    assert (session.failed, session.raw) == (True, False)


def test_tokens_without_a_handshake() -> None:
    session = Session(USERS)
    assert send(session, b"\0alice\0secret").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert session.failed
    session = Session(USERS)
    assert session.raw_token(b"\0alice\0secret") is None
    assert session.failed


def test_a_second_handshake_before_the_end() -> None:
    session = begin("PLAIN")
    assert session.handshake(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert session.failed


def test_what_comes_after_the_end_is_refused_and_changes_nothing() -> None:
    session = begin("PLAIN")
    send(session, b"\0alice\0secret")
    assert session.handshake(SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert send(session, b"\0bob\0wrong").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert (session.principal, session.failed, session.raw) == ("User:alice", False, False)


# ---- what is refused


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"alice",
        b"\0",
        b"\0\0",
        b"\0\0secret",
        b"\0alice\0",
        b"\0alice\0secret\0",
        b"\0alice\0sec\0ret",
        b"bob\0alice\0secret",
        b"\0al\xffice\0secret",
        b"\0alice\0secre\xc3",
        b"\0alice\0" + b"x" * MAX_TOKEN_BYTES,
        b"\0" * (MAX_TOKEN_BYTES + 1),
        b"\0alice\0wrong",
        b"\0ALICE\0secret",
        b"\0mallory\0secret",
    ],
)
def test_bad_plain_tokens(token: bytes) -> None:
    session = begin("PLAIN")
    answer = send(session, token)
    assert (answer.error_code, answer.auth_bytes, session.principal) == (FAILED, b"", None)
    assert session.failed
    assert answer.error_message
    assert "alice" not in answer.error_message
    assert decode(SaslAuthenticateResponse, encode(answer, 2), 2) == answer
    session = begin("PLAIN", version=0)
    assert session.raw_token(token) is None
    assert session.failed


@pytest.mark.parametrize("mechanism", SCRAMS)
@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,,",
        b"n,,n=alice",
        b"n,,n=alice,r=",
        b"n,,n=,r=abcdefgh",
        b"n,,r=abcdefgh,n=alice",
        b"n,,n=alice,n=bob,r=abcdefgh",
        b"n,,n=alice,r=abcdefgh,r=ijkl",
        b"n,,n=alice,r=abc\x7fdefgh",
        b"n,,n=alice,r=abc def",
        b"n,,n=al=ice,r=abcdefgh",
        b"n,,n=alice=2,r=abcdefgh",
        b"n,,n=alice=2c,r=abcdefgh",
        b"n,,n=al\0ice,r=abcdefgh",
        b"n,,n=al\xffice,r=abcdefgh",
        "n,,n=al\u0007ice,r=abcdefgh".encode(),
        "n,,n=al\u200eice,r=abcdefgh".encode(),
        b"n,a=bob,n=alice,r=abcdefgh",
        b"n,,m=ext,n=alice,r=abcdefgh",
        b"p=tls-unique,,n=alice,r=abcdefgh",
        b"p=tls-server-end-point,,n=alice,r=abcdefgh",
        b"p=tls-exporter,,n=alice,r=abcdefgh",
        b"p=,,n=alice,r=abcdefgh",
        b"x,,n=alice,r=abcdefgh",
        b"Y,,n=alice,r=abcdefgh",
        b"c=biws,r=abcdefgh,p=AAAA",
        b"n,,n=alice,r=" + b"x" * MAX_TOKEN_BYTES,
        b"," * MAX_TOKEN_BYTES,
        b"=" * MAX_TOKEN_BYTES,
    ],
)
def test_bad_first_tokens_of_scram(mechanism: str, token: bytes) -> None:
    session = begin(mechanism)
    answer = send(session, token)
    assert (answer.error_code, answer.auth_bytes) == (FAILED, b"")
    assert session.failed
    assert session.principal is None


def _no_proof(final: bytes) -> bytes:
    return final[: final.index(b",p=")]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda final: b"",
        lambda final: b"n,,n=alice,r=abcdefgh",
        _no_proof,
        lambda final: _no_proof(final) + b",p=",
        lambda final: _no_proof(final) + b",p=AAAA",
        lambda final: _no_proof(final) + b",p=not base64!",
        lambda final: _no_proof(final) + b",p=" + base64.b64encode(bytes(32)),
        lambda final: _no_proof(final) + b",p=" + base64.b64encode(bytes(64)),
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"c=biws", b"c=cD10bHMtdW5pcXVlLCw="),
        lambda final: final.replace(b"c=biws", b"c=!"),
        lambda final: final.replace(b",r=", b",r=x"),
        lambda final: final.replace(b"c=biws", b"c=biws,m=x"),
        lambda final: final + b",x=1",
        lambda final: final + b"\xff",
        lambda final: final + b"x" * MAX_TOKEN_BYTES,
    ],
)
@pytest.mark.parametrize("mechanism", SCRAMS)
def test_bad_final_tokens_of_scram(mechanism: str, spoil: object) -> None:
    assert callable(spoil)
    session, client = begin(mechanism), ScramClient(mechanism, "alice", "secret")
    final = client.final(send(session, client.first()).auth_bytes)
    answer = send(session, spoil(final))
    assert (answer.error_code, answer.auth_bytes, session.principal) == (FAILED, b"", None)
    assert session.failed


def test_a_replayed_exchange_is_worth_nothing() -> None:
    session, client = begin("SCRAM-SHA-256"), ScramClient("SCRAM-SHA-256", "alice", "secret")
    final = client.final(send(session, client.first()).auth_bytes)
    again = begin("SCRAM-SHA-256")
    assert send(again, client.first()).error_code == 0
    assert send(again, final).error_code == FAILED


@given(st.binary(max_size=200) | st.text(alphabet="n,=ry2CD3pcm\0é\u200e", max_size=40).map(str.encode))
def test_no_token_raises(token: bytes) -> None:
    for mechanism in ("PLAIN", *SCRAMS):
        session = begin(mechanism)
        assert send(session, token).error_code in (0, FAILED)
        assert session.principal is None


# ---- what a refusal tells


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_an_unknown_user_looks_like_a_wrong_password(mechanism: str) -> None:
    def attempt(name: str) -> tuple[bytes, SaslAuthenticateResponse, str | None]:
        session, client = begin(mechanism), ScramClient(mechanism, name, "wrong")
        first = send(session, client.first())
        assert first.error_code == 0
        salt_and_iterations = first.auth_bytes.split(b",", 1)[1]
        return salt_and_iterations, send(session, client.final(first.auth_bytes)), session.failure

    known, unknown, other = attempt("alice"), attempt("mallory"), attempt("trudy")
    assert known[1:] == unknown[1:]
    assert len(known[0]) == len(unknown[0])
    assert attempt("mallory")[0] == unknown[0]
    assert attempt("alice")[0] == known[0]
    assert unknown[0] != other[0]


def test_unknown_users_have_the_iterations_of_known_ones(tmp_path: Path) -> None:
    lines = [f'[users.u{n}]\nSCRAM-SHA-256 = "{Credential.derive("SCRAM-SHA-256", "x", n)}"' for n in (5000, 6000)]
    users = read(tmp_path, "\n".join(lines))
    seen = {users.credential("SCRAM-SHA-256", f"nobody{n}").iterations for n in range(40)}
    assert seen == {5000, 6000}


def test_plain_words_are_the_same_for_all_wrong_credentials() -> None:
    answers = [send(begin("PLAIN"), token) for token in (b"\0alice\0wrong", b"\0mallory\0wrong")]
    assert answers[0] == answers[1]


def test_no_password_is_kept() -> None:
    users = Users({"alice": "correct horse"})
    assert "correct horse" not in repr([getattr(users, name) for name in vars(users)])


# ---- the file


def test_a_file_of_users(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    credential = Credential.derive("SCRAM-SHA-512", "hunter2", 8192)
    path.write_text(f'[users.alice]\npassword = "secret"\n[users.bob]\nSCRAM-SHA-512 = "{credential}"\n')
    users = Users.from_file(path)
    assert users.mechanisms == ("PLAIN", *SCRAMS)
    assert users.has_password("alice", "secret")
    assert not users.has_password("bob", "hunter2")  # there is no password to compare with
    assert users.credential("SCRAM-SHA-512", "bob") == credential
    session, client = begin("SCRAM-SHA-512", users), ScramClient("SCRAM-SHA-512", "bob", "hunter2")
    send(session, client.final(send(session, client.first()).auth_bytes))
    assert session.principal == "User:bob"


GOOD = str(Credential.derive("SCRAM-SHA-256", "x"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "users: no users"),
        ("users = 3", "users: no users"),
        ("[users]", "users: no users"),
        ("[users.alice]", "users.alice: needs a password or SCRAM credentials"),
        ("[users]\nalice = 'secret'", "users.alice: needs a password or SCRAM credentials"),
        ("[users.alice]\npassword = 3", "users.alice.password: must be a text that is not empty"),
        ("[users.alice]\npassword = ''", "users.alice.password: must be a text that is not empty"),
        ("[users.alice]\npasswort = 'x'", "users.alice.passwort: unknown; password, SCRAM-SHA-256 and SCRAM-SHA-512"),
        ("[alice]\npassword = 'x'", "alice: unknown; there can be tables like [users.alice]"),
        ("[users.'']\npassword = 'x'", "'' is not a user name"),
        (f"[users.{'x' * 256}]\npassword = 'x'", "is not a user name of 1 to 255 bytes"),
        ('[users."a\\u0007"]\npassword = "x"', "not a user name"),
        ('[users."A\\u030A"]\npassword = "x"', "not in the normal form of names"),
        ("[users.alice]\npassword = x", "line 2"),
        ("[users.alice]\nSCRAM-SHA-256 = 'x'", "users.alice.SCRAM-SHA-256: not of the form"),
        (f"[users.alice]\nSCRAM-SHA-512 = '{GOOD}'", "the keys of SCRAM-SHA-512 have 64 bytes"),
        (f"[users.alice]\nSCRAM-SHA-256 = '{GOOD.replace('=4096', '=4095')}'", "4095 iterations; 4096 to 16384"),
        (f"[users.alice]\nSCRAM-SHA-256 = '{GOOD.replace('=4096', '=16385')}'", "16385 iterations"),
        (f"[users.alice]\nSCRAM-SHA-256 = '{GOOD.replace('=4096', '=' + '4' * 5000)}'", "not of the form"),
        (f"[users.alice]\nSCRAM-SHA-256 = '{GOOD.replace('salt=', 'salt=AAAA,x=')}'", "not of the form"),
        ("[users.a]\nSCRAM-SHA-256 = 'salt=AAAA,stored_key=AA,server_key=AA,iterations=4096'", "bad base64"),
        ("[users.a]\nSCRAM-SHA-256 = 'salt=AAAA,stored_key=AAAA,server_key=AAAA,iterations=4096'", "a salt of 3 bytes"),
    ],
)
def test_bad_files_of_users(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "users.toml") in caught.value.where
    assert message in str(caught.value)


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError):
        Users.from_file(path)
    with pytest.raises(FileNotFoundError):
        Users.from_file(tmp_path / "none")


def test_bounds_of_made_credentials() -> None:
    for iterations in (MIN_ITERATIONS - 1, MAX_ITERATIONS + 1):
        with pytest.raises(ValueError, match="iterations"):
            Credential.derive("SCRAM-SHA-256", "x", iterations)
    with pytest.raises(ValueError, match="none of"):
        Credential.derive("SCRAM-SHA-1", "x")
    with pytest.raises(ValueError, match="salt"):
        Credential.derive("SCRAM-SHA-256", "x", salt=b"short")
    made = Credential.derive("SCRAM-SHA-512", "x")
    assert Credential.parse("SCRAM-SHA-512", str(made)) == made
