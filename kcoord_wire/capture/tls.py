"""Whether the TLS handshake of a connection failed, from the records that are in the clear (RFC 8446, RFC 5246).

Laws:

* A handshake has failed where a side says so in the clear, or where the connection ends when the server has answered,
  and the client has sent nothing that could be its Finished. It is an alert in the clear if it is two bytes long, since
  an encrypted one carries a tag or a MAC.
* With TLS 1.3 alerts of the client are encrypted, and so is what a server says of a client's certificate: after the
  client's Finished. It is an alert if a side sends no more than that many bytes of application data, and the connection
  ends: a server that lets a client in sends tickets, and answers of more bytes, and a client its Finished.
* It has succeeded, as far as can be seen, when the server sends application data behind the client's Finished that an
  encrypted alert cannot be, or, before TLS 1.3, when the client has sent its Finished.
* Nothing is held but the head of a record, with an alert behind it.
"""

from __future__ import annotations

from typing import Final

_CHANGE_CIPHER_SPEC: Final = 20
_ALERT: Final = 21
_HANDSHAKE: Final = 22
_APPLICATION_DATA: Final = 23
_TYPES: Final = range(_CHANGE_CIPHER_SPEC, _APPLICATION_DATA + 1)
"""Of records: RFC 8446, 5.1."""

_HEAD: Final = 5  # type, version, length
_ALERT_BODY: Final = 2  # level, description
_MAX_RECORD: Final = 2**14 + 2048  # RFC 5246, 6.2.3; less in RFC 8446
_FINISHED: Final = 40  # bytes: the least Finished of TLS 1.3 has 45 (SHA-256, a tag of 8), an encrypted alert 19

_ENCRYPTED: Final = "an encrypted alert of the {}"

_NO_ERRORS: Final = {0, 90}  # close_notify, user_canceled
_ALERTS: Final = {
    10: "unexpected_message", 40: "handshake_failure", 42: "bad_certificate", 43: "unsupported_certificate",
    44: "certificate_revoked", 45: "certificate_expired", 46: "certificate_unknown", 47: "illegal_parameter",
    48: "unknown_ca", 49: "access_denied", 50: "decode_error", 51: "decrypt_error", 70: "protocol_version",
    71: "insufficient_security", 80: "internal_error", 86: "inappropriate_fallback", 109: "missing_extension",
    112: "unrecognized_name", 113: "bad_certificate_status_response", 116: "certificate_required",
    120: "no_application_protocol",
}  # fmt: skip
"""RFC 8446, 6, and RFC 5246, 7.2."""


class TlsHandshake:
    """Reads the bytes of both sides of a connection, from its first one.

    :param client: index of the side that opened the connection
    :ivar is_over: what follows makes no difference: an alert was sent, it succeeded, or is no handshake of TLS
    """

    def __init__(self, client: int) -> None:
        self.is_over = False
        self._client = client
        self._heads = (bytearray(), bytearray())
        self._skipped = [0, 0]  # bytes of the record that are still to come
        self._changed = [False, False]  # the side has sent ChangeCipherSpec
        self._answered = False
        self._finished = False
        self._sent = 0  # application data of the client, in bytes
        self._said = 0  # of the server, behind the client's Finished
        self._alert: tuple[int, int] | None = None

    def feed(self, side: int, data: bytes) -> None:
        """Take in the next bytes of a side."""
        at = 0
        while at < len(data) and not self.is_over:
            skipped = min(self._skipped[side], len(data) - at)
            self._skipped[side] -= skipped
            at += skipped
            head = self._heads[side]
            wanted = _HEAD + _ALERT_BODY if self._is_clear_alert(head) else _HEAD
            piece = data[at : at + wanted - len(head)]
            at += len(piece)
            head += piece
            if len(head) == wanted and (wanted > _HEAD or not self._is_clear_alert(head)):
                self._note(side, head)
                head.clear()

    @property
    def is_unanswered(self) -> bool:
        """Whether the server has sent nothing."""
        return not self._answered and not self.is_over

    def failure(self) -> str | None:
        """Return the alert by which the handshake failed, in words, "" where none is in the clear; None if it did not.

        That is so if the connection ends now, or if `is_over`.
        """
        if self._alert is not None:
            side, code = self._alert
            who = "client" if side == self._client else "broker"
            return f"alert {code}, {_ALERTS.get(code, 'unknown')}, of the {who}"
        if not self._answered or self._finished or self.is_over:
            return None
        if self._sent < _FINISHED:
            return _ENCRYPTED.format("client") if self._sent else ""
        return _ENCRYPTED.format("broker") if self._said else None

    @staticmethod
    def _is_clear_alert(head: bytearray) -> bool:
        return len(head) >= _HEAD and head[0] == _ALERT and int.from_bytes(head[3:_HEAD], "big") == _ALERT_BODY

    def _note(self, side: int, head: bytearray) -> None:
        kind, size = head[0], int.from_bytes(head[3:_HEAD], "big")
        if kind not in _TYPES or head[1] != 3 or size > _MAX_RECORD:
            self.is_over = True
            return
        self._answered |= side != self._client
        if len(head) > _HEAD:
            if head[-1] not in _NO_ERRORS:
                self._alert, self.is_over = (side, head[-1]), True
            return
        self._skipped[side] = size
        if side == self._client:
            self._of_client(kind, size)
        elif kind == _APPLICATION_DATA and self._sent >= _FINISHED:
            self._said += size
            self.is_over = self._said >= _FINISHED
        self._changed[side] |= kind == _CHANGE_CIPHER_SPEC

    def _of_client(self, kind: int, size: int) -> None:
        if kind == _APPLICATION_DATA:
            self._sent += size
            self.is_over = self._finished and self._sent >= _FINISHED  # of TLS 1.2: it follows the handshake
        self._finished |= kind == _HANDSHAKE and self._changed[self._client]
