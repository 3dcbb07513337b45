"""Logs of brokers and clients for the tests: recorded ones in tests/data/logs, and lines made up after a format."""

from __future__ import annotations

import io
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from pathlib import Path

import pyarrow as pa

from kcoord_wire.forensics.lines.extraction import lines_of
from kcoord_wire.forensics.lines.history import text_history
from kcoord_wire.forensics.model import GroupHistory, LogLine, table_of

RECORDED = Path(__file__).parents[1] / "data" / "logs"
NOW = datetime(2026, 11, 23, tzinfo=UTC)


def recorded(*names: str) -> list[Path]:
    """The recorded logs whose names begin like one of these."""
    paths = [path for name in names for path in sorted(RECORDED.glob(f"{name}*.log.gz"))]
    assert paths, names
    return paths


def parse(
    text: str | bytes, *, source: str = "server.log", zone: tzinfo = UTC, latest: datetime = NOW
) -> list[LogLine]:
    """The lines about groups in a text."""
    data = text.encode() if isinstance(text, str) else text
    return list(lines_of(io.BytesIO(data), source, zone, latest))


def history_of(lines: Iterable[LogLine]) -> GroupHistory:
    """The history of the one group whose lines these are."""
    table: pa.Table = table_of(LogLine, list(lines))
    return text_history(table)
