"""Whose fault it was: every error that this package raises about bytes, values and schema files.

Laws:

* `EncodeError` is about a value the caller handed in, `DecodeError` about bytes a peer sent, `ProtocolError` about a
  frame or a call at the wrong point of a conversation; all are `WireError`.
* Each carries `.kind`, one word of a closed list, so that a program can tell the cases apart without reading prose, and
  `.path`, the field it happened in (``JoinGroupResponse.members[3].metadata``). A decode error also carries `.offset`,
  the byte at which the offending primitive starts, counted from the start of the buffer that was handed in.
* Kind, path and offset are what programs may rely on, the same from every codec; the words of `.detail` are for people.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal, get_args

DecodeKind = Literal[
    "truncated",  # more bytes are needed than are left
    "length",  # a length that is wrong whatever is left: negative, or above the protocol's limit
    "null",  # null where none may be
    "utf8",  # a string that is not UTF-8
    "varint",  # a varint of more than five bytes or, in strict mode, one that is not canonical
    "tag",  # tagged fields out of order, twice, of a wrong size, or not allowed in this version
    "value",  # a bool that is neither 0 nor 1, a struct marker or union tag that means nothing
    "range",  # a number outside the bounds that the schema sets
    "trailing",  # bytes left over after the message
    "version",  # a version that the schema does not have
    "api",  # an api key that the registry does not have
    "frame",  # a frame size that is negative or above the limit
    "checksum",  # a CRC that does not match
    "compression",  # a block that does not decompress, or not within the limit
    "text",  # a text-encoded message that is not one
]
EncodeKind = Literal[
    "type",  # a value of the wrong Python type
    "range",  # a number outside the field's range
    "length",  # a string or array too long for its length field
    "null",  # None where none may be
    "version",  # a version that the schema does not have, or a value that this version cannot carry
    "tag",  # unknown tags that are unsorted, defined by the schema, or not allowed in this version
]
ProtocolKind = Literal[
    "correlation",  # a response whose correlation id is not that of the oldest pending request
    "pending",  # more unanswered requests than the connection allows
    "order",  # a response to what is not an unanswered request
    "version",  # an api or version that both sides do not have in common, or whose versions are not known yet
    "closed",  # the connection has ended
]
DECODE_KINDS: Final[tuple[str, ...]] = get_args(DecodeKind)
ENCODE_KINDS: Final[tuple[str, ...]] = get_args(EncodeKind)
PROTOCOL_KINDS: Final[tuple[str, ...]] = get_args(ProtocolKind)


class WireError(ValueError):
    """A value, a byte string or a step that does not follow the protocol.

    :ivar kind: one word of `DECODE_KINDS`, `ENCODE_KINDS` or `PROTOCOL_KINDS`
    :ivar path: the field, from the message's name down: ``JoinGroupResponse.members[3].metadata``
    :ivar detail: what was wrong with it, in words
    """

    kind: str
    path: str
    detail: str


class EncodeError(WireError):
    """The caller's value cannot be written. Nothing was written.

    :param kind: one of `ENCODE_KINDS`
    :param path: the field
    :param detail: what is wrong with the value
    """

    def __init__(self, kind: str, path: str, detail: str) -> None:
        super().__init__(kind, path, detail)
        self.kind = kind
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.path}: {self.detail} [{self.kind}]"


class DecodeError(WireError):
    """The peer's bytes do not follow the protocol.

    :param kind: one of `DECODE_KINDS`
    :param offset: first byte of the primitive that failed, in bytes from the start of the buffer handed in
    :param path: the field
    :param detail: what is wrong with the bytes
    """

    offset: int

    def __init__(self, kind: str, offset: int, path: str, detail: str) -> None:
        super().__init__(kind, offset, path, detail)
        self.kind = kind
        self.offset = offset
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.path}: {self.detail} at byte {self.offset} [{self.kind}]"


class ProtocolError(WireError):
    """A step that a conversation does not allow: the peer's where `Connection.events` raises it, else the caller's.

    :param kind: one of `PROTOCOL_KINDS`
    :param detail: what is wrong with it
    :param expected: kind ``correlation``: the id of the oldest pending request, None where none is pending
    :param found: kind ``correlation``: the id of the response
    :param body: kind ``correlation``: the response, without its size
    """

    path = "Connection"

    def __init__(
        self, kind: str, detail: str, *, expected: int | None = None, found: int | None = None, body: bytes = b""
    ) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail
        self.expected = expected
        self.found = found
        self.body = body

    def __str__(self) -> str:
        return f"{self.detail} [{self.kind}]"


class SchemaError(ValueError):
    """A schema file that breaks a rule of the schema language (schemas/README.md).

    :param rule: the rule that is broken, in words
    :param file: path of the schema file
    :param where: JSON path of the offending value (``$.fields[2].type``)
    :param line: line in the file, counted from 1, where it is known
    """

    def __init__(self, rule: str, *, file: str = "<schema>", where: str = "$", line: int | None = None) -> None:
        super().__init__(rule, file, where, line)
        self.rule = rule
        self.file = file
        self.where = where
        self.line = line

    def __reduce__(self) -> tuple[Callable[[], SchemaError], tuple[()]]:
        return partial(type(self), self.rule, file=self.file, where=self.where, line=self.line), ()

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        text = f"{place}: {self.where}: {self.rule}"  # which may quote the file, and be printed
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_DECODE_TEXTS: Final = {
    "truncated": "{a} bytes are needed, {b} are left",
    "length": "a length of {a} cannot be",
    "null": "it cannot be null in this version",
    "utf8": "it is not UTF-8: byte 0x{a:02x} is not valid here",
    "varint": "not a varint of at most five bytes in its shortest form",
    "tag": "tag {a} is out of order, twice there, not known in this version, or not of the size it says",
    "value": "{a} has no meaning here",
    "range": "it must lie between {a} and {b}",
    "trailing": "{a} bytes are left after the message",
}
_ENCODE_TEXTS: Final = {
    "type": "the value is of the wrong type, or not set",
    "range": "it must lie between {a} and {b}",
    "length": "it is {a} long, at most {b} can be written",
    "null": "it cannot be None in this version",
    "version": "this version cannot carry the field, and it does not hold its default",
    "tag": "unknown tags must ascend, must not be tags that the schema defines, and need a flexible version",
}


def decode_detail(kind: str, a: int = 0, b: int = 0) -> str:
    """What the native core says of bytes that it refuses; `a` and `b` are the numbers that the kind's text names."""
    return _DECODE_TEXTS[kind].format(a=a, b=b)


def encode_detail(kind: str, a: int = 0, b: int = 0) -> str:
    """What the native core says of a value that it refuses; `a` and `b` are the numbers that the kind's text names."""
    return _ENCODE_TEXTS[kind].format(a=a, b=b)
