"""Why a consumer group rebalanced: from frames or the records of ``__consumer_offsets`` to histories and causes.

    from kcoord_wire.forensics import analyze

    for history in analyze(["trace.pcap"]).histories:
        for rebalance in history.rebalances:
            print(rebalance.cause, rebalance.client_id, rebalance.duration_ms)

`kcoord_wire.spark` does for many groups in parallel what this package does for one after the other. The tables that a
history consists of are declared in `kcoord_wire.forensics.model`. Names are imported on first use, because `analyze`
needs the extra ``analyze``.

    captures, recordings ── sources ──> frames ── exchanges ──> requests with their responses ── wire ──> GroupHistory
    offsets logs ── records, lines of logs ── lines, coordination topics ── marshal, polls ── watch ──> the same

To add a column to a table: `model`, and what fills it (`history`, `wire.history`). To read another kind of file:
`sources.files` says which kind, a reader beside it gives the rows. What is said first: `report.digest`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.extras import require
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory

if TYPE_CHECKING:
    from kcoord_wire.forensics.analysis import (
        Analysis,
        analyze,
        analyze_frames,
        analyze_records,
        tables_of,
        write_tables,
    )

__all__ = [
    "Analysis",
    "Cause",
    "GroupHistory",
    "analyze",
    "analyze_frames",
    "analyze_records",
    "tables_of",
    "write_tables",
]

_LAZY: Final = ("Analysis", "analyze", "analyze_frames", "analyze_records", "tables_of", "write_tables")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("pyarrow", "analyze", f"kcoord_wire.forensics.{name}")
    value = getattr(import_module(f"{__name__}.analysis"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
