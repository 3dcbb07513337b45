"""Logs of brokers and clients as rows of `LogLine`.

Laws:

* The content of a file raises nothing; what could not be read is a row with an error, a place and a size.
* Times without a zone are read in the zone given. Where a year is missing, the file's own time decides it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import partial
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from kcoord_wire.capture.frames import GoesOn
from kcoord_wire.forensics.lines.reader import lines_of
from kcoord_wire.forensics.model import LogLine, table_of
from kcoord_wire.forensics.sources.unpacked import unpacked

_OFFSET: Final = re.compile(r"([+-])(\d\d):?([0-5]\d)")
_DAY: Final = timedelta(hours=24)


def parse_zone(text: str) -> tzinfo:
    """Return a time zone by its name (``Europe/Berlin``, ``UTC``) or offset (``+02:00``).

    :raises ValueError: there is none
    """
    if offset := _OFFSET.fullmatch(text):
        ahead = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        if ahead < _DAY:
            return timezone(ahead if offset[1] == "+" else -ahead)
    try:
        return UTC if text == "UTC" else ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{text} is no time zone: give one as in Europe/Berlin, UTC or +02:00") from None


def read_lines(
    path: str | os.PathLike[str],
    *,
    timezone: str = "UTC",
    batch_rows: int = 8192,
    goes_on: GoesOn | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the lines about groups in a log, as rows of `LogLine`.

    :param timezone: of times that state none, as for `parse_zone`
    :param batch_rows: rows of a batch, at most
    :param goes_on: see `GoesOn`
    :raises OSError: the file cannot be read
    :raises ValueError: the time zone is unknown
    """
    zone, source = parse_zone(timezone), os.fspath(path)
    latest = datetime.fromtimestamp(Path(path).stat().st_mtime, UTC)
    held: list[LogLine] = []
    with unpacked(Path(path)) as content, content.path.open("rb") as file:
        size = content.path.stat().st_size
        ask = None if goes_on is None else partial(_ask, goes_on, size)
        for line in lines_of(file, source, zone, latest, ask):
            held.append(line)
            if len(held) >= batch_rows:
                yield from table_of(LogLine, held).to_batches()
                held = []
        if content.fault is not None:
            held.append(LogLine(source, size, 0, False, "", "", "", error=content.fault, lost=content.lost))
        yield from table_of(LogLine, held).to_batches()


def _ask(goes_on: GoesOn, size: int, done: int) -> bool:
    return goes_on(done, size)
