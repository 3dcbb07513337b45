"""Entries of the log, from their bytes: the only place that reads the text of foreign writers.

Laws:

* No value raises; what is no message becomes the reason (`Unreadable`, in `world_state.Entry.message`), a few hundred
  characters at most.
* The longest value that is looked at has `MAX_VALUE` bytes.

Source: schemas/marshal; the Go library logs and skips what it cannot decode.
"""

from __future__ import annotations

from typing import Any, Final

from kcoord_wire.codec.registry import decode_text
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.marshal.log import RawEntry
from kcoord_wire.marshal.world_state import Entry, Unreadable

MAX_VALUE: Final = 1 << 16
"""Bytes. The strings of a message come from names of topics (249 at most), groups and clients."""


def read_value(value: bytes | None) -> Any:
    """Return the message that a value holds, or `Unreadable`."""
    if not value:
        return Unreadable("empty", "the value is empty")
    if len(value) > MAX_VALUE:
        return Unreadable("length", f"the value has {len(value)} bytes, at most {MAX_VALUE} are read")
    try:
        return decode_text(value)
    except DecodeError as error:
        return Unreadable(error.kind, str(error))


def read_entry(raw: RawEntry) -> Entry:
    """Return the entry with its message."""
    return Entry(raw.partition, raw.offset, raw.time_ms, raw.is_append_time, read_value(raw.value))


def check_id(name: str, value: str) -> str:
    """Return an id that members may use.

    :param name: what it is, for the error
    :raises EncodeError: kind ``range``: it is empty, or holds a "/", which makes each message with it unreadable for
        everybody; kind ``utf8``: it has no UTF-8 form
    """
    if not value:
        raise EncodeError("range", name, "the id is empty")
    if "/" in value:
        raise EncodeError("range", name, f'{value!r} holds a "/", which separates the fields of a message')
    try:
        value.encode()
    except UnicodeEncodeError:
        raise EncodeError("utf8", name, f"{value!r} has no UTF-8 form") from None
    return value
