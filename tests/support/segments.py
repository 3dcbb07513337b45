"""Segments of ``__consumer_offsets`` by hand, and the rows of any source."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import kcoord_wire as kw
from kcoord_wire.records import (
    Record,
    encode_offsets_record,
)

CAPTURES = Path(__file__).parents[1] / "data" / "captures"


def rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def commit(group: str, offset: int) -> Record:
    key = kw.OffsetCommitKey(group=group, topic="orders", partition=0)
    return Record(
        *encode_offsets_record(key, kw.OffsetCommitValue(offset=offset, metadata="")), timestamp=1000 + offset
    )


def segment(tmp_path: Path, *batches: bytes) -> Path:
    folder = tmp_path / "__consumer_offsets-17"
    folder.mkdir(exist_ok=True)
    path = folder / f"{0:020}.log"
    path.write_bytes(b"".join(batches))
    return path
