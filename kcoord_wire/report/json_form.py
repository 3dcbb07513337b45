"""The report as JSON, for programs: `Report`, of which `json_schema` makes the schema.

    {"format": "kcoord-report", "version": 2, "stopped": null,
     "groups": [{"severity": "...", "opening": "...", "headline": "...", "summary": "...", "group": {...},
                 "rebalances": [...], "generations": [...], "states": [...], "members": [...],
                 "ownership": [...], "pauses": [...], "commits": [...], "outages": [...], "lag": [...],
                 "findings": [...]}],
     "losses": [...]}

Laws:

* Rows have all keys of `kcoord_wire.forensics.model`, in its order and with the meaning documented there.
* A time ``x_ns`` is written twice: ``x_ns``, an integer, and ``x``, in ISO 8601 with nanoseconds, UTC; null where that
  has no form, after the year 9999.
* A non-finite number is null.
* Groups are sorted worst first.
* Strings are exactly those of the source; the file is ASCII, so that no control character reaches a terminal.
* The schema allows no key that this version does not write. A version may add keys; removing a key or changing its
  meaning needs a new `VERSION`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TextIO

from kcoord_wire.forensics.model import GroupHistory, Loss
from kcoord_wire.json_schemas import Schema, Schemas
from kcoord_wire.report.digest import Digest, digests
from kcoord_wire.report.formatting import iso

FORMAT: Final = "kcoord-report"
VERSION: Final = 2


@dataclass
class Said:
    """What is said of a group before its tables.

    :ivar severity: that of the headline; ``quiet`` where nothing unusual happened
    :ivar opening: the group's name, printable, and the headline
    :ivar headline: what matters most, in a sentence
    :ivar summary: all that happened: how many rebalances, why, what they cost
    """

    severity: Literal["critical", "warning", "info", "quiet"]
    opening: str
    headline: str
    summary: str


@dataclass
class ReportedGroup(GroupHistory, Said):
    """A group: what is said of it, and its tables."""

    @classmethod
    def of(cls, digest: Digest) -> ReportedGroup:
        """Return the group of a digest."""
        tables = {field.name: getattr(digest.history, field.name) for field in dataclasses.fields(GroupHistory)}
        severity: Any = digest.severity
        return cls(severity, digest.opening, digest.headline.text, digest.sentence, **tables)


@dataclass
class Report:
    """The whole report.

    :ivar format: names the kind of document
    :ivar version: rises where a key is removed or changes its meaning
    :ivar stopped: share of the sources that was read, from 0 to 1, where reading was stopped; null where it was not
    :ivar groups: the worst first
    :ivar losses: what could not be read, and where
    """

    format: Literal["kcoord-report"]
    version: Literal[2]
    stopped: float | None
    groups: list[ReportedGroup]
    losses: list[Loss]


class _ReportSchemas(Schemas):
    """Schemas of rows in the form of `_row`."""

    def __init__(self) -> None:
        super().__init__("#/$defs/", {float: {"type": ["number", "null"]}})  # non-finite ones are null

    def properties(self, name: str, hint: Any) -> dict[str, Schema]:
        own = super().properties(name, hint)
        if not name.endswith("_ns"):
            return own
        pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$"
        return {name.removesuffix("_ns"): {"type": ["string", "null"], "pattern": pattern}, **own}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the report (draft 2020-12), made from `Report` and the types of its rows."""
    schemas = _ReportSchemas()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{FORMAT}, version {VERSION}",
        **schemas.of(Report),
        "$defs": schemas.definitions,
    }


def to_json(histories: Iterable[GroupHistory], losses: Iterable[Loss], stopped: float | None = None) -> dict[str, Any]:
    """The whole report, ready for `json.dumps`.

    :param stopped: share of the sources that was read, where reading was stopped
    """
    groups = [ReportedGroup.of(digest) for digest in digests(histories)]
    return _row(Report(FORMAT, VERSION, stopped, groups, list(losses)))


def write_json(
    histories: Iterable[GroupHistory],
    losses: Iterable[Loss],
    to: str | os.PathLike[str] | TextIO,
    *,
    indent: int | None = None,
    stopped: float | None = None,
) -> None:
    """Write the report; the same input has the same bytes.

    :param to: a path, or a file opened for text
    :param indent: spaces per level; None writes one line
    :param stopped: as in `to_json`
    """
    report = to_json(histories, losses, stopped)
    text = json.dumps(report, indent=indent, allow_nan=False).replace("\x7f", "\\u007f") + "\n"
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
