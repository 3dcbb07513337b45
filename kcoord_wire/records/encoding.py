"""What every encoder of records needs: assigned offsets, checked widths, and the path of an error.

Laws:

* A given offset is kept; an offset of -1 becomes the one after its predecessor's, or the base offset for the first
  record.
* Offsets ascend, and none is below the base offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kcoord_wire.errors import EncodeError
from kcoord_wire.records.model import NO_OFFSET, Record


def with_offsets(records: Iterable[Record], base_offset: int | None) -> tuple[list[Record], int]:
    """The records, every offset assigned, and the base offset: the one given, else the first record's, else 0.

    :raises EncodeError: ``range``
    """
    placed: list[Record] = []
    following = base_offset
    for index, record in enumerate(records):
        if record.offset == NO_OFFSET:
            record = replace(record, offset=0 if following is None else following)
        elif following is not None and record.offset < following:
            raise EncodeError("range", f"records[{index}].offset", f"{record.offset} where {following} is the least")
        following = record.offset + 1
        placed.append(record)
    if base_offset is None:
        base_offset = placed[0].offset if placed else 0
    return placed, base_offset


def check_width(path: str, value: int, bits: int) -> None:
    """Refuse an integer that a signed field of `bits` bits cannot hold.

    :raises EncodeError: ``range`` or ``type``
    """
    if not isinstance(value, int):
        raise EncodeError("type", path, f"must be int, not {type(value).__name__}")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise EncodeError("range", path, f"{value} does not fit {bits} bits")


def encoding_below(parent: str, error: EncodeError) -> EncodeError:
    """`error` with `parent` in front of its path."""
    return EncodeError(error.kind, f"{parent}.{error.path}", error.detail)
