"""Coded rows are the rows that were added, and a group that is too large is named before it is held."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from kcoord_wire.forensics.coded import CHUNK_ROWS, CodedExchanges, GroupTooLargeError, coded, names_of
from kcoord_wire.forensics.model import Exchange, table_of
from tests.support.exchange_script import Script


def rows() -> pa.Table:
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    return pa.concat_tables([script.tables()[0], table_of(Exchange, [script.beat("c1", 1_000, 1)])])


def values(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("size", [1, 2, 100])
def test_values_stay_whatever_the_batches(size: int) -> None:
    table = rows()
    kept = coded(table.to_batches(max_chunksize=size))
    assert values(kept) == values(table)
    assert values(coded(kept)) == values(table)
    assert {str(kept.schema.field(name).type.value_type) for name in ("group_id", "member_id", "api")} == {"string"}
    assert len({tuple(chunk.dictionary.to_pylist()) for chunk in kept["member_id"].chunks}) == 1


def test_many_names_get_wider_codes_and_bounded_chunks() -> None:
    table = rows().slice(0, 1).take(pa.array([0] * (CHUNK_ROWS + 1)))
    names = pa.array([f"m-{number}" for number in range(len(table))])
    kept = coded(table.set_column(table.column_names.index("member_id"), table.schema.field("member_id"), names))
    assert kept["member_id"].type.index_type == pa.int32()
    assert max(len(chunk) for chunk in kept["member_id"].chunks) == CHUNK_ROWS
    assert kept["member_id"].to_pylist() == names.to_pylist()
    assert names_of(kept["member_id"]) == sorted(names.to_pylist())


def test_a_message_is_not_kept_alive() -> None:
    batch = rows().combine_chunks().to_batches()[0]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    message = sink.getvalue()
    held = CodedExchanges()
    held.add(pa.ipc.open_stream(message).read_next_batch())
    start, end = message.address, message.address + message.size
    for column in held.table().columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                assert buffer is None or not start <= buffer.address < end


def test_a_group_that_is_too_large_is_named() -> None:
    table = rows()
    limited = CodedExchanges(most=len(table), setting="the.setting")
    limited.add(table)
    with pytest.raises(GroupTooLargeError, match=r"group '.+' has more than \d+ exchanges.*raise the\.setting") as info:
        limited.add(table.slice(0, 1))
    assert info.value.group_id == table["group_id"][0].as_py()
    assert str(pickle.loads(pickle.dumps(info.value))) == str(info.value)
