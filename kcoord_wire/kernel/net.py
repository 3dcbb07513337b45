"""Network addresses as text, and what every listening program needs against unknown peers.

Laws:

* An address is ``HOST:PORT``, with brackets around a host that has colons; `parse_address` reads what `address_text`
  writes.
* Nothing here opens a socket.
"""

from __future__ import annotations

import time
from typing import Final

from kcoord_wire.protocol.wording import LIKE_TLS

WILDCARD_HOSTS: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Hosts that listen on every interface, each with an address that reaches it from the same machine."""

_LARGEST_PORT: Final = 0xFFFF
_TLS_RECORDS: Final = (b"\x16\x03", b"\x15\x03")  # a handshake or an alert, of SSL 3.0 to TLS 1.3


def address_text(host: str, port: int) -> str:
    """Return ``HOST:PORT``, with brackets around a host that has colons."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_address(host: str, port: int) -> str:
    """Return the address that reaches a listener on `host` from the same machine."""
    return address_text(WILDCARD_HOSTS.get(host, host), port)


def parse_port(text: str) -> int:
    """Return a port number; 0 is one.

    :raises ValueError: the text is not a number from 0 to 65535
    """
    if not text.isdecimal() or int(text) > _LARGEST_PORT:
        raise ValueError(f"{text!r} is not a port")
    return int(text)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``. The host may be in brackets, and may be empty.

    :raises ValueError: the text is not of that form
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} is not of the form HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), parse_port(port)


def guess_protocol(start: bytes) -> str:
    """Return what the first bytes of a connection look like if not Kafka's protocol: text to append to an error.

    :param start: at least four bytes, where the size of a frame was expected
    """
    if start[:2] in _TLS_RECORDS:
        return LIKE_TLS
    return ", which looks like plain text" if start[:4].isascii() and start[:4].decode().isprintable() else ""


class LogLimiter:
    """Limits log lines per interval, so that a peer cannot fill the disk with warnings about itself."""

    LINES: Final = 20
    SECONDS: Final = 10.0

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._left = self.LINES

    def allows_line(self) -> bool:
        """Return whether one more line may be written now, and count it."""
        now = time.monotonic()
        if now - self._since >= self.SECONDS:
            self._since, self._left = now, self.LINES
        self._left -= 1
        return self._left >= 0
