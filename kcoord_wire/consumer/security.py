"""The client's side of TLS and SASL: certificates, and PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 without IO.

Laws:

* A password is in no ``repr`` and in no error.
* The server has to prove that it knows the SCRAM credential: success without its signature is a failure.
* What a server may cost is bounded: `MAX_ITERATIONS` of key derivation, which runs on the event loop (0.1 s).
* SASLprep (RFC 4013) must leave a password as it is, because scramp applies it and Kafka's brokers do not: such a
  password is rejected instead of refused by the broker for an unclear reason.

SCRAM is scramp, of the extra ``consumer``. Sources: RFC 4616, 5802, 7677; KIP-43, 84.
"""

from __future__ import annotations

import ssl
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kcoord_wire.extras import require

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MAX_ITERATIONS: Final = 100_000
"""Kafka's brokers store at most 16,384."""


class SaslError(Exception):
    """The exchange cannot go on: the server's token is wrong, or the credentials cannot be expressed."""


@dataclass(frozen=True, slots=True)
class Sasl:
    """Credentials.

    :ivar mechanism: one of `MECHANISMS`
    :raises ValueError: another mechanism, or a name or password that is empty or has a NUL
    :raises MissingLibraryError: SCRAM without scramp; here, because a connection in the background would end by it
    """

    mechanism: str
    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"{self.mechanism!r} is none of {', '.join(MECHANISMS)}")
        for what, text in (("name", self.username), ("password", self.password)):
            if not text or "\0" in text:
                raise ValueError(f"a {what} must not be empty and must not have a NUL")
        if self.mechanism != "PLAIN":
            require("scramp", "consumer", "SCRAM")


def tls_context(
    cafile: Path | str | None = None,
    certfile: Path | str | None = None,
    keyfile: Path | str | None = None,
    password: str | None = None,
) -> ssl.SSLContext:
    """Return a context that verifies the broker's certificate and name.

    :param cafile: PEM file of the authorities to trust; the system's where it is None
    :param certfile: PEM file of the client's own certificate, for brokers that require one
    :param keyfile: PEM file of its key; in `certfile` where it is None
    :param password: of the key
    :raises OSError: a file cannot be read, or is not such a file (ssl.SSLError)
    """
    context = ssl.create_default_context(cafile=cafile)
    if certfile is not None:
        context.load_cert_chain(certfile, keyfile, password)
    return context


def sasl_tokens(sasl: Sasl) -> Generator[bytes, bytes, None]:
    """Yield the client's tokens; each one is sent, and the server's answer to it is sent into the generator.

    The generator ends when the server has been accepted.

    :raises SaslError: see there
    """
    if sasl.mechanism == "PLAIN":
        yield f"\0{sasl.username}\0{sasl.password}".encode()
        return
    scramp = require("scramp", "consumer", "SCRAM")
    try:
        client = scramp.ScramClient([sasl.mechanism], sasl.username, sasl.password)
        if bytes(client.password) != sasl.password.encode():
            raise SaslError("the password is not in the normal form of RFC 4013, which SCRAM needs")
        client.set_server_first((yield client.get_client_first().encode()).decode())
        if int(client.iterations) > MAX_ITERATIONS:
            raise SaslError(f"the server asks for {int(client.iterations)} iterations; {MAX_ITERATIONS} are allowed")
        client.set_server_final((yield client.get_client_final().encode()).decode())
    except (scramp.ScramException, ValueError) as error:
        raise SaslError(f"{sasl.mechanism}: {error}") from None
