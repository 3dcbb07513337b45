"""The report as JSON, for programs.

    {"format": "kcoord-report", "version": 2,
     "groups": [{"group": {...}, "severity": "...", "opening": "...", "headline": "...", "summary": "...",
                 "rebalances": [...], "generations": [...], "states": [...], "members": [...],
                 "ownership": [...], "pauses": [...], "commits": [...], "outages": [...], "lag": [...],
                 "findings": [...]}],
     "losses": [...]}

Laws:

* Rows have all keys of `kcoord_wire.forensics.model`, in its order and with the meaning documented there.
* A time ``x_ns`` is written twice: ``x_ns``, an integer, and ``x``, in ISO 8601 with nanoseconds, UTC.
* A non-finite number is null.
* Groups are sorted worst first. ``severity`` is that of the headline, or ``quiet``; ``opening`` is the group's name
  with the headline.
* Strings are exactly those of the source; the file is ASCII, so that no control character reaches a terminal.
* A version may add keys; removing a key or changing its meaning needs a new version.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, TextIO

from kcoord_wire.forensics.model import GroupHistory, Loss
from kcoord_wire.report.digest import digests
from kcoord_wire.report.formatting import iso

FORMAT: Final = "kcoord-report"
VERSION: Final = 2


def to_json(histories: Iterable[GroupHistory], losses: Iterable[Loss]) -> dict[str, Any]:
    """The whole report, ready for `json.dumps`."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "groups": [
            {
                "severity": digest.severity,
                "opening": digest.opening,
                "headline": digest.headline.text,
                "summary": digest.sentence,
                **_row(digest.history),
            }
            for digest in digests(histories)
        ],
        "losses": [_row(loss) for loss in losses],
    }


def write_json(
    histories: Iterable[GroupHistory],
    losses: Iterable[Loss],
    to: str | os.PathLike[str] | TextIO,
    *,
    indent: int | None = None,
) -> None:
    """Write the report; the same input has the same bytes.

    :param to: a path, or a file opened for text
    :param indent: spaces per level; None writes one line
    """
    text = json.dumps(to_json(histories, losses), indent=indent, allow_nan=False).replace("\x7f", "\\u007f") + "\n"
    if isinstance(to, str | os.PathLike):
        with open(to, "w", encoding="ascii", newline="\n") as file:
            file.write(text)
    else:
        to.write(text)


def _row(row: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        if field.name.endswith("_ns"):
            result[field.name.removesuffix("_ns")] = None if value is None else iso(value)
        result[field.name] = _plain(value)
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return _row(value) if dataclasses.is_dataclass(value) else value
