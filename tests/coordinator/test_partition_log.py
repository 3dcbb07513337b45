"""One partition's records: what is found by its time."""

from __future__ import annotations

import pytest

from kcoord_wire.records import Compression
from tests.support.broker import GOOD, Broker, batch, resealed


@pytest.mark.parametrize(
    "data",
    [
        resealed(GOOD, 22, b"\2"),  # not compressed, as it says
        resealed(GOOD, 61, b"\x7f"),
        resealed(GOOD, 35, (1_000).to_bytes(8, "big")),  # no record is as late as the header says
        batch(bytes(1 << 25), compression=Compression.ZSTD, at=1_000),  # more than is decompressed
        resealed(
            resealed(batch(b"a", compression=Compression.GZIP), 57, b"\0\1\0\0"), 23, b"\0\0\xff\xff"
        ),  # more records than are read
    ],
    ids=["codec", "record", "time", "bomb", "many"],
)
def test_a_batch_with_unreadable_records_is_found_whole(broker: Broker, data: bytes) -> None:
    latest = int.from_bytes(data[35:43], "big")
    assert broker.produce(data).error_code == 0
    for timestamp in (-3, latest):
        answer = broker.list_offset(timestamp)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, 0, latest)
