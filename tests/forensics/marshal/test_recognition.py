"""A coordination topic is recognised by its values, whatever it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.forensics.marshal.reader import coordination_sources, holds_marshal_text
from kcoord_wire.forensics.model import LogRow
from tests.support.marshal_rows import live_log, log_rows, table
from tests.support.offsets_log import generation
from tests.support.offsets_log import table as offsets_table

TEXTS = Path(__file__).parents[3] / "schemas" / "marshal"


@pytest.mark.parametrize("kind", sorted(path.stem for path in TEXTS.glob("*.json")))
def test_every_message_of_the_family_is_recognised(kind: str) -> None:
    assert coordination_sources(table(log_rows([(0, f"{kind}/1/{{}}/i/c/g/t/0")]))).to_pylist() == ["__marshal-0"]


def test_only_the_sources_with_marshal_text_count() -> None:
    rows = [*live_log(), *log_rows([(0, b"junk")], partition=7)]
    found = coordination_sources(table(rows)).to_pylist()
    assert sorted(found) == ["__marshal-1", "__marshal-2"]


def test_a_record_with_a_key_is_none_of_marshal() -> None:
    row = LogRow("x.log", 0, 0, 0, 0, b"k", b"Heartbeat/1/1/i/c/g/t/0/0")
    assert coordination_sources(table([row])).to_pylist() == []
    assert coordination_sources(offsets_table([generation(1, {"m": [0]})])).to_pylist() == []


def test_the_text_is_found_in_the_bytes_of_a_segment() -> None:
    assert holds_marshal_text(b"\0" * 61 + b"ClaimingPartition/1/1795224460/3879dfdf/cl-one/gr/t/0")
    assert not holds_marshal_text(b"\0" * 61 + b"Heartbeat of a log: /1/2")
