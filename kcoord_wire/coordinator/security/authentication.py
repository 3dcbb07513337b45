"""Authentication: SASL PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 as Kafka's brokers speak them, without IO.

Laws:

* A `Session` belongs to one connection and sees its requests in order. A failure is final: the answer, if there is one,
  is sent, and the connection is closed `FAILURE_DELAY_MS` later (Kafka's connection.failed.authentication.delay.ms).
* A refusal does not reveal whether the user exists: an unknown user gets a salt that stays the same for its name while
  the server runs, the same steps and the same text. Secrets are compared in constant time, and no plain password is
  kept in memory.
* The cost of a token is bounded before it is read: at most `MAX_TOKEN_BYTES`, and no key derivation in an exchange.
* Channel binding is not supported: a SCRAM client that asks for it ("p=") is refused, "n" and "y" are served.
* Sessions do not end (session_lifetime_ms is 0), so there is no reauthentication: as with a broker whose
  connections.max.reauth.ms is 0, a second handshake is answered ILLEGAL_SASL_STATE (34) and the connection stays open.

SCRAM's server side is scramp, of the extra ``serve``. Sources: RFC 4616, 5802, 7677; KIP-43, 84, 152, 368; Kafka's
SaslServerAuthenticator, ScramSaslServer and PlainSaslServer.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self

from kcoord_wire.extras import require
from kcoord_wire.kernel import settings
from kcoord_wire.kernel.settings import SettingsError, read_tables
from kcoord_wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kcoord_wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

__tracebackhide__ = settings.__tracebackhide__

FAILURE_DELAY_MS: Final = 100
MAX_TOKEN_BYTES: Final = 4096
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384

_FIRST_APIS: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE})
_PLAIN: Final = "PLAIN"
_SCRAM: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}  # mechanism -> hash
_MAX_SCRAM_BYTES: Final = 1024  # preparing a name takes 2 us a byte; the longest escaped one has 765
_MAX_NAME_BYTES: Final = 255
_SALT_BYTES: Final = 24
_MIN_SALT_BYTES: Final = 12  # scramp refuses shorter ones
_CREDENTIAL: Final = re.compile(r"salt=([^,]+),stored_key=([^,]+),server_key=([^,]+),iterations=([0-9]{1,9})")


class Credential(NamedTuple):
    """What a server stores of a SCRAM password (RFC 5802 section 3). ``str`` gives the form in which Kafka stores it::

        salt=BASE64,stored_key=BASE64,server_key=BASE64,iterations=4096

    :ivar salt: random
    :ivar stored_key: the hash of the client's key
    :ivar server_key: proves the server to the client
    :ivar iterations: of PBKDF2
    """

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def derive(
        cls, mechanism: str, password: str, iterations: int = MIN_ITERATIONS, *, salt: bytes | None = None
    ) -> Self:
        """Return the credential of a password.

        :param mechanism: ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``
        :param salt: random if not given
        :raises ValueError: an unknown mechanism, or iterations outside `MIN_ITERATIONS` to `MAX_ITERATIONS`
        """
        if mechanism not in _SCRAM:
            raise ValueError(f"{mechanism!r} is none of {', '.join(_SCRAM)}")
        salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
        hash_name = _SCRAM[mechanism]
        _check_bounds(salt, iterations)
        # Java's clients and librdkafka use the password as it is, without SASLprep, and so does this.
        salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
        return cls.of_salted(mechanism, salted, salt, iterations)

    @classmethod
    def of_salted(cls, mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Self:
        """Return the credential of a salted password (RFC 5802: ``SaltedPassword``).

        :raises ValueError: iterations outside `MIN_ITERATIONS` to `MAX_ITERATIONS`, or too short a salt
        """
        _check_bounds(salt, iterations)
        hash_name = _SCRAM[mechanism]
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        stored_key = hashlib.new(hash_name, client_key).digest()
        return cls(salt, stored_key, hmac.digest(salted, b"Server Key", hash_name), iterations)

    @classmethod
    def parse(cls, mechanism: str, text: str) -> Self:
        """Return the credential that `text` describes.

        :raises ValueError: it is not of the form above, or breaks the lengths and bounds of the mechanism
        """
        match = _CREDENTIAL.fullmatch(text)
        if match is None:
            raise ValueError("not of the form salt=...,stored_key=...,server_key=...,iterations=...")
        try:
            salt, stored_key, server_key = (base64.b64decode(part, validate=True) for part in match.groups()[:3])
        except binascii.Error as error:
            raise ValueError(f"bad base64: {error}") from None
        iterations = int(match[4])
        _check_bounds(salt, iterations)
        length = hashlib.new(_SCRAM[mechanism]).digest_size
        if len(stored_key) != length or len(server_key) != length:
            raise ValueError(f"the keys of {mechanism} have {length} bytes")
        return cls(salt, stored_key, server_key, iterations)

    def __str__(self) -> str:
        salt, stored_key, server_key = (base64.b64encode(part).decode() for part in self[:3])
        return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={self.iterations}"


def _check_bounds(salt: bytes, iterations: int) -> None:
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError(f"{iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed")
    if len(salt) < _MIN_SALT_BYTES:
        raise ValueError(f"a salt of {len(salt)} bytes; at least {_MIN_SALT_BYTES} are needed")


class Users:
    """The users that may connect, and how. As a file::

        [users.alice]                       # PLAIN and both SCRAMs
        password = "secret"

        [users.bob]                         # this mechanism alone
        SCRAM-SHA-512 = "salt=...,stored_key=...,server_key=...,iterations=8192"

    :ivar mechanisms: those that at least one user can use, in the order in which they are offered
    """

    def __init__(self, passwords: Mapping[str, str]) -> None:
        """
        :param passwords: user name to password
        :raises SettingsError: there are none, or a name or password is not allowed
        """
        self._take({name: {"password": password} for name, password in passwords.items()}, "users")

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """Read a TOML file.

        :raises SettingsError: it is not TOML, or not of the form above
        :raises OSError: it cannot be read
        """
        document = read_tables(path, {"users": "tables like [users.alice]"})
        users = cls.__new__(cls)
        users._take(document.get("users", {}), f"{path}: users")
        return users

    def _take(self, tables: Any, where: str) -> None:
        if not isinstance(tables, dict) or not tables:
            raise SettingsError(where, "no users")
        self._secret = secrets.token_bytes(32)
        self._passwords: dict[str, bytes] = {}
        self._credentials: dict[str, dict[str, Credential]] = {mechanism: {} for mechanism in _SCRAM}
        for name, table in tables.items():
            check_name(name, where)
            if not isinstance(table, dict) or not table:
                raise SettingsError(f"{where}.{name}", "needs a password or SCRAM credentials")
            for key, value in table.items():
                self._take_value(name, key, value, f"{where}.{name}.{key}")
        self._offer()

    def _offer(self) -> None:
        offered = {_PLAIN: self._passwords, **self._credentials}
        self.mechanisms: tuple[str, ...] = tuple(mechanism for mechanism, users in offered.items() if users)
        self._unknown = {mechanism: self._make_unknown(mechanism) for mechanism in _SCRAM}

    @classmethod
    def empty(cls) -> Self:
        """Return no users, to whom `alter` adds some."""
        users = cls.__new__(cls)
        users._secret, users._passwords = secrets.token_bytes(32), {}
        users._credentials = {mechanism: {} for mechanism in _SCRAM}
        users._offer()
        return users

    def copy(self) -> Self:
        """Return users that `alter` changes without these."""
        made = self.empty()
        made._secret = self._secret
        made._passwords.update(self._passwords)
        for mechanism, users in self._credentials.items():
            made._credentials[mechanism].update(users)
        made._offer()
        return made

    @property
    def credentials(self) -> Mapping[str, Mapping[str, Credential]]:
        """Mechanism to user to SCRAM credential."""
        return self._credentials

    def alter(self, changes: Mapping[tuple[str, str], Credential | None]) -> None:
        """Set SCRAM credentials by mechanism and user, or delete them (None). Who is logged in stays so."""
        for (mechanism, name), credential in changes.items():
            self._credentials[mechanism].pop(name, None)
            if credential is not None:
                self._credentials[mechanism][name] = credential
        self._offer()

    def _take_value(self, name: str, key: str, value: object, where: str) -> None:
        if not isinstance(value, str) or not value:
            raise SettingsError(where, "must be a text that is not empty")
        if key == "password":
            self._passwords[name] = self._digest(value)
            for mechanism, credentials in self._credentials.items():
                credentials.setdefault(name, Credential.derive(mechanism, value))
        elif key in self._credentials:
            try:
                self._credentials[key][name] = Credential.parse(key, value)
            except ValueError as error:
                raise SettingsError(where, str(error)) from None
        else:
            raise SettingsError(where, f"unknown; password, {' and '.join(_SCRAM)} are known")

    def _digest(self, text: str) -> bytes:
        return hmac.digest(self._secret, text.encode(), "sha256")

    def _make_unknown(self, mechanism: str) -> list[Credential]:
        """Return keys of no password, with the iterations and salt lengths of existing users."""
        length = hashlib.new(_SCRAM[mechanism]).digest_size
        shapes = {(len(known.salt), known.iterations) for known in self._credentials[mechanism].values()}
        shapes = shapes or {(_SALT_BYTES, MIN_ITERATIONS)}
        return [
            Credential(bytes(salt_length), secrets.token_bytes(length), secrets.token_bytes(length), iterations)
            for salt_length, iterations in sorted(shapes)
        ]

    def has_password(self, name: str, password: str) -> bool:
        """Return whether this user may use PLAIN with this password."""
        known = self._passwords.get(name, self._secret)
        return hmac.compare_digest(self._digest(password), known)

    def credential(self, mechanism: str, name: str) -> Credential:
        """Return the user's credential; for an unknown user, one that no proof satisfies.

        :param mechanism: one of `mechanisms`, not PLAIN
        """
        seed = hashlib.shake_256(self._digest(f"{mechanism} {name}"))
        known = self._credentials[mechanism].get(name)
        if known is not None:
            return known
        shapes = self._unknown[mechanism]
        shape = shapes[seed.digest(1)[0] % len(shapes)]
        return shape._replace(salt=seed.digest(1 + len(shape.salt))[1:])


def check_name(name: object, where: str) -> None:
    """Reject names that SCRAM's preparation changes, so that a name means the same user in every mechanism.

    :raises SettingsError: it is none, with `where`
    """
    if not isinstance(name, str) or not name or len(name.encode()) > _MAX_NAME_BYTES:
        raise SettingsError(where, f"{name!r} is not a user name of 1 to {_MAX_NAME_BYTES} bytes")
    scramp = require("scramp.utils", "serve", "SASL")
    try:
        prepared = scramp.saslprep(name)
    except scramp.ScramException as error:
        raise SettingsError(f"{where}.{name!r}", f"not a user name: {error}") from None
    if prepared != name:
        raise SettingsError(f"{where}.{name!r}", f"not in the normal form of names (RFC 4013), which is {prepared!r}")


class Admission(enum.Enum):
    """What happens to a request on a connection with SASL."""

    SERVE = "serve"
    """It is handled; SaslHandshake and SaslAuthenticate by the session."""
    REFUSE = "refuse"
    """It is answered ILLEGAL_SASL_STATE (34), and the connection is closed."""
    CLOSE = "close"
    """The connection is closed without an answer, and the request is not decoded."""


class _Refused(Exception):
    """Authentication has failed. The text is for the peer.

    :ivar why: the reason for the operator
    """

    def __init__(self, text: str, why: str) -> None:
        super().__init__(text)
        self.why = why


class _Exchange(Protocol):
    user: str | None

    def step(self, token: bytes) -> bytes: ...


class Session:
    """The SASL state of one connection.

    While `raw` is true, the connection's next frame is a bare token for `raw_token`; otherwise frames are requests, and
    `admission` says what to do with each before it is decoded. Once `failed`, nothing more is read: what has been
    answered goes out and the connection is closed after `FAILURE_DELAY_MS`.

    :ivar principal: ``User:NAME`` once authenticated, else None
    :ivar failure: None, or why authentication has failed, in a fixed text for the operator
    :ivar raw: whether bare tokens follow, after a handshake of version 0 (KIP-43)
    """

    __slots__ = ("_exchange", "_nonce", "_users", "failure", "principal", "raw")

    def __init__(self, users: Users, *, server_nonce: str | None = None) -> None:
        """
        :param server_nonce: SCRAM's, printable ASCII without a comma; random if not given
        """
        self._users = users
        self._nonce = server_nonce
        self._exchange: _Exchange | None = None
        self.principal: str | None = None
        self.failure: str | None = None
        self.raw = False

    @property
    def failed(self) -> bool:
        """Whether authentication has failed, so that the connection has to be closed."""
        return self.failure is not None

    def admission(self, api_key: int) -> Admission:
        """Return what happens to a request that arrives now: before a mechanism is chosen only ApiVersions and
        SaslHandshake are served, then only SaslAuthenticate, and everything once that has succeeded."""
        if self.failure is not None:
            return Admission.CLOSE
        if self.principal is not None:
            return Admission.SERVE
        if self._exchange is None:
            return Admission.SERVE if api_key in _FIRST_APIS else Admission.CLOSE
        return Admission.SERVE if api_key == ApiKey.SASL_AUTHENTICATE else Admission.REFUSE

    def handshake(self, request: SaslHandshakeRequest, version: int) -> SaslHandshakeResponse:
        """Answer the choice of a mechanism. Errors: UNSUPPORTED_SASL_MECHANISM (33), with the offered mechanisms;
        ILLEGAL_SASL_STATE (34) where `admission` does not admit it, or after authentication.

        :param version: 0 makes the session `raw`
        """
        if self.principal is not None:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        if self.failure is not None or self._exchange is not None:
            self.failure = self.failure or "unexpected SaslHandshake"
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        offered = list(self._users.mechanisms)
        if request.mechanism not in offered:
            self.failure = "unsupported mechanism"
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
        if request.mechanism == _PLAIN:
            self._exchange = _Plain(self._users)
        else:
            self._exchange = _Scram(self._users, request.mechanism, self._nonce)
        self.raw = version == 0
        return SaslHandshakeResponse(mechanisms=offered)

    def authenticate(self, request: SaslAuthenticateRequest, version: int) -> SaslAuthenticateResponse:
        """Answer a token. Errors: SASL_AUTHENTICATION_FAILED (58), with a text for the user; ILLEGAL_SASL_STATE (34)
        where `admission` does not admit it, or after authentication."""
        if self.principal is not None:
            text = "SaslAuthenticate request received after successful authentication"
            return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)
        if self.failure is not None or self._exchange is None or self.raw:
            self.failure = self.failure or "unexpected SaslAuthenticate"
            text = "SaslAuthenticate request received before SaslHandshake"
            return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)
        try:
            return SaslAuthenticateResponse(auth_bytes=self._step(self._exchange, request.auth_bytes))
        except _Refused as refused:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return SaslAuthenticateResponse(error_code=code, error_message=str(refused))

    def raw_token(self, token: bytes) -> bytes | None:
        """Return the answer to a bare token: another one, perhaps empty. None means that authentication has failed
        and nothing is answered."""
        if self._exchange is None or not self.raw or self.failure is not None:
            self.failure = self.failure or "unexpected token"
            return None
        try:
            return self._step(self._exchange, token)
        except _Refused:
            return None

    def _step(self, exchange: _Exchange, token: bytes) -> bytes:
        try:
            if len(token) > MAX_TOKEN_BYTES:
                raise _Refused("Authentication failed: the token is too large", "token too large")
            answer = exchange.step(token)
        except _Refused as refused:
            self.failure = refused.why
            self._exchange, self.raw = None, False
            raise
        if exchange.user is not None:
            self.principal = f"User:{exchange.user}"
            self._exchange, self.raw = None, False
        return answer


def _malformed(mechanism: str) -> _Refused:
    text = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    return _Refused(text, "malformed token")


class _Plain:
    """RFC 4616: ``[authzid] NUL authcid NUL password``, in one token."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self.user: str | None = None

    def step(self, token: bytes) -> bytes:
        try:
            authzid, authcid, password = token.decode().split("\0")
        except ValueError:  # of UTF-8, or of the number of parts
            raise _malformed(_PLAIN) from None
        if not authcid or not password or authzid not in ("", authcid):
            raise _malformed(_PLAIN)
        if not self._users.has_password(authcid, password):
            raise _Refused("Authentication failed: Invalid username or password", "wrong credentials")
        self.user = authcid
        return b""


class _Scram:
    """RFC 5802: two tokens from each side."""

    def __init__(self, users: Users, mechanism: str, nonce: str | None) -> None:
        scramp = require("scramp", "serve", "SASL")
        self._error: type[Exception] = scramp.ScramException
        self._users = users
        self._mechanism = mechanism
        self._name: str | None = None
        self._server = scramp.ScramMechanism(mechanism).make_server(self._look_up, s_nonce=nonce)
        self.user: str | None = None

    def _look_up(self, name: str) -> Credential:
        self._name = name
        return self._users.credential(self._mechanism, name)

    def step(self, token: bytes) -> bytes:
        if len(token) > _MAX_SCRAM_BYTES:
            raise _malformed(self._mechanism)
        try:
            text = token.decode()
            if self._name is None:
                self._server.set_client_first(text)
                return str(self._server.get_server_first()).encode()
            self._server.set_client_final(text)
            answer = str(self._server.get_server_final()).encode()
        except (self._error, UnicodeDecodeError):
            refused = _malformed(self._mechanism)
            if self._name is not None:
                refused.why = "wrong credentials"
            raise refused from None
        self.user = self._name
        return answer
