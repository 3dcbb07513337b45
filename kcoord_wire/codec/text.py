"""Messages that are text: a type token and the fields, joined by "/". Marshal's log is written so.

Laws:

* There is no escaping: a string that holds the separator cannot be written.
* An integer is an optional sign and ASCII digits, any number of leading zeros among them, and nothing else (Go's
  strconv.ParseInt in base 10). What `int` accepts beyond that (blanks, underscores, other digits) is rejected.
* The work is linear in the length of the value, however many digits or separators it has.
* What the native core reads, the plain form (`_speedups/objects/text.pxd`), is what this module would read.
* A decode error's offset is the byte at which its field starts; of a string that is not UTF-8, the first wrong byte.

Source: schemas/marshal, and Marshal's message.go.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from kcoord_wire.codec.backend import Buffer, PlainText
from kcoord_wire.codec.diagnose import is_default
from kcoord_wire.codec.into import encode_into
from kcoord_wire.codec.stored import as_subclass
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.schema.model import Message
from kcoord_wire.schema.plan import MAX_STRING, Op, Presence, Step, StructPlan

SEPARATOR: Final = b"/"
MAX_DIGITS: Final = 20  # without leading zeros; an int64 has at most 19

_INTEGER: Final = re.compile(rb"([+-]?)0*+([0-9]*+)")


class TextDecoder(Protocol):
    """A codec that `decode_text` passes a value to."""

    def decode(self, data: bytes | bytearray | memoryview) -> Any: ...


class TextProgram:
    """A text-encoded message at one version, with the methods of the binary programs.

    :param message: the schema, with ``textType``
    :param plan: its plan
    :param classes: its class, by name
    :param plain: reads the plain form faster; None for nothing that does
    :param subclass: of the message's class, where instances of that are read
    """

    def __init__(
        self,
        message: Message,
        plan: StructPlan,
        classes: Mapping[str, type],
        plain: PlainText | None = None,
        subclass: type | None = None,
    ) -> None:
        assert message.text_type is not None
        self._plain = plain
        self._prefix = message.text_type.encode() + SEPARATOR
        self.plan = plan
        self.classes = classes
        self.cls = classes[plan.name]
        self._subclass = subclass
        self.text_type = message.text_type.encode()

    def decode(self, data: Buffer, strict: bool = True, parts: bool = False, lazy: bool = False) -> Any:
        """The message that `data` holds. Text has no bytes, no arrays, and nothing to be lenient about.

        :raises DecodeError: kind ``text`` (another type, another number of fields, no integer), ``range`` (an integer
            out of bounds, a string above its maxLength), ``length`` (a string above 32,767 bytes) or ``utf8``
        """
        if self._plain is not None and type(data) is bytes and data.startswith(self._prefix):
            message = self._plain(data, len(self._prefix))
            if message is not None:
                return message if self._subclass is None else as_subclass(message, self._subclass)
        return self.decode_prefix(data, 0, strict)[0]

    def decode_prefix(
        self, data: Buffer, offset: int, strict: bool, parts: bool = False, lazy: bool = False
    ) -> tuple[Any, int]:
        """The message from byte `offset` to the end of `data`, and that end: text carries no length.

        Errors as `decode`.
        """
        if offset < 0:
            raise ValueError(f"the offset {offset} is negative")
        offset = min(offset, len(data))
        steps = self.plan.wire
        tokens = bytes(data[offset:]).split(SEPARATOR, len(steps) + 1)
        if tokens[0] != self.text_type:
            raise DecodeError("text", offset, self.plan.name, f"the type is not {self.text_type.decode()}")
        if len(tokens) != len(steps) + 1:
            found = "more" if len(tokens) > len(steps) + 1 else str(len(tokens) - 1)
            raise DecodeError("text", offset, self.plan.name, f"{len(steps)} fields must follow the type, not {found}")
        pos = offset + len(self.text_type) + 1
        values: dict[str, int | str] = {}
        for step, token in zip(steps, tokens[1:], strict=True):
            path = f"{self.plan.name}.{step.attr}"
            parse = _parse_string if step.op is Op.STRING else _parse_int
            values[step.attr] = parse(step, token, pos, path)
            pos += len(token) + 1
        message = self.cls(**values)
        return message if self._subclass is None else as_subclass(message, self._subclass), pos - 1

    def encode(self, message: Any) -> bytes:
        """The text of `message`, UTF-8.

        :raises EncodeError: kind ``range`` also where a string holds the separator
        """
        if not isinstance(message, self.cls):
            raise EncodeError("type", self.plan.name, f"{type(message).__name__} where {self.plan.name} must be")
        tokens = [self.text_type]
        for step in self.plan.steps:
            path = f"{self.plan.name}.{step.attr}"
            try:
                value = getattr(message, step.attr)
            except AttributeError:
                raise EncodeError("type", path, "the attribute is missing") from None
            if step.presence is not Presence.ABSENT:
                write = _format_string if step.op is Op.STRING else _format_int
                tokens.append(write(step, value, path))
            elif not step.ignorable and not is_default(step, value, self.classes):
                raise EncodeError("version", path, f"version {self.plan.version} carries nothing but the default")
        return SEPARATOR.join(tokens)

    def encode_into(self, message: Any, buffer: bytearray, offset: int = 0) -> int:
        """Write the text of `message` into `buffer`; errors as `encode` and `codec.into.encode_into`."""
        return encode_into(buffer, offset, lambda: self.encode(message))


def decode_text(value: bytes | bytearray | memoryview, messages: Mapping[str, TextDecoder]) -> Any:
    """The message that `value` holds, whichever its type token says.

    :param messages: the codecs to choose from, by type token (the schema's ``textType``)
    :raises DecodeError: kind ``text`` where no message has that token; else as its own codec's `decode`
    """
    raw = value if type(value) is bytes else bytes(value)
    end = raw.find(SEPARATOR)
    token = raw[: len(raw) if end < 0 else end].decode("ascii", "replace")
    if token not in messages:
        token = token[: max(map(len, messages), default=0) + 1]
        raise DecodeError("text", 0, "type", f"no message has the type {token!r}")
    return messages[token].decode(raw)


def _parse_int(step: Step, token: bytes, pos: int, path: str) -> int:
    match = _INTEGER.fullmatch(token)
    if match is None or not token[-1:].isdigit():
        raise DecodeError("text", pos, path, "the field is not an integer")
    sign, digits = match.groups()
    # Leading zeros are gone, so that a longer number is out of every range, and `int` never sees it.
    if len(digits) <= MAX_DIGITS:
        number = int(digits or b"0")
        number = -number if sign == b"-" else number
        if step.low <= number <= step.high:
            return number
    raise DecodeError("range", pos, path, f"the number is not between {step.low} and {step.high}")


def _parse_string(step: Step, token: bytes, pos: int, path: str) -> str:
    if len(token) > MAX_STRING:
        raise DecodeError("length", pos, path, f"the string has {len(token)} bytes, at most {MAX_STRING} may be")
    if len(token) > step.high:
        raise DecodeError("range", pos, path, f"the string has {len(token)} bytes, at most {step.high} may be")
    try:
        return token.decode()
    except UnicodeDecodeError as error:
        raise DecodeError("utf8", pos + error.start, path, f"the string is not UTF-8: {error.reason}") from None


def _format_int(step: Step, value: object, path: str) -> bytes:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise EncodeError("type", path, f"{type(value).__name__} where int must be") from None
    if not step.low <= number <= step.high:
        raise EncodeError("range", path, f"the number is not between {step.low} and {step.high}")
    return b"%d" % number


def _format_string(step: Step, value: object, path: str) -> bytes:
    if value is None:
        raise EncodeError("null", path, "the value is None, which it may not be")
    if not isinstance(value, str):
        raise EncodeError("type", path, f"{type(value).__name__} where str must be")
    try:
        raw = str.encode(value)
    except UnicodeEncodeError:
        raise EncodeError("type", path, "the string holds a lone surrogate, which UTF-8 cannot carry") from None
    if len(raw) > MAX_STRING:
        raise EncodeError("length", path, f"the string has {len(raw)} bytes, at most {MAX_STRING} may be")
    if len(raw) > step.high:
        raise EncodeError("range", path, f"the string has {len(raw)} bytes, at most {step.high} may be")
    if SEPARATOR in raw:
        raise EncodeError("range", path, 'the string holds a "/", which separates the fields and cannot be carried')
    return raw
