"""Coded rows are the rows that were added, and a group that is too large is named before it is held."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kcoord_wire.forensics.analysis import by_group
from kcoord_wire.forensics.coded import CHUNK_ROWS, CodedExchanges, GroupTooLargeError, coded, names_of
from kcoord_wire.forensics.model import Exchange, OffsetsCommitted, table_of
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


@pytest.mark.parametrize("order", [1, -1])
def test_rows_are_sorted_by_kind_group_and_time(order: int) -> None:
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    few = script.tables()[0]
    beats = [script.beat(client, 1_000 + 500 * number, 1) for number in range(4) for client in ("c2", "c1")]
    commit = script.beat("c1", 1_200, 1)
    commit.api, commit.offsets = "OffsetCommit", [OffsetsCommitted("orders", 0, 7, 0)]
    beats[3].group_id = "another"
    table = pa.concat_tables([few, table_of(Exchange, [*beats, commit])])
    kept = coded([table.take(pa.array(range(len(table))[::order]))])
    assert kept["api"].to_pylist()[-9:] == [*["Heartbeat"] * 8, "OffsetCommit"]
    found = zip(*(kept[name].to_pylist()[-9:-1] for name in ("group_id", "asked_ns", "seq")), strict=True)
    assert list(found) == sorted((row.group_id, row.asked_ns, row.seq) for row in beats)
    shared = {chunk.buffers()[1].address for chunk in kept["session_timeout_ms"].chunks[-2:]}
    assert len(shared) == 1  # heartbeats and commits have no memory of their own for it
    [_, own] = by_group(kept, kept["group_id"])
    assert own["offsets"].chunks[-1].buffers()[1].address == kept["offsets"].chunks[-1].buffers()[1].address


def test_large_numbers_of_frames_stay_whole() -> None:
    script = Script()
    few, many = (table_of(Exchange, [script.beat("c1", ms, 1)]) for ms in (1_000, 2_000))
    large = pa.array([1 << 40])
    many = many.set_column(many.column_names.index("position"), many.schema.field("position"), large)
    kept = coded([few, many])
    assert kept["position"].to_pylist() == [*few["position"].to_pylist(), 1 << 40]
    assert (kept["position"].type, kept["seq"].type) == (pa.int64(), pa.int32())


def test_groups_are_read_without_the_names_of_the_others() -> None:
    """What looks at a dictionary looks at all of it: 2,000 groups of two rows would read 12 million names."""
    count, table = 2_000, rows().slice(0, 2)
    numbers = np.repeat(np.arange(count), len(table))
    many = table.take(pa.array(np.tile(np.arange(len(table)), count)))
    for name in ("group_id", "member_id", "connection"):
        names = pa.array([f"{name}-{number}" for number in numbers.tolist()])
        many = many.set_column(many.column_names.index(name), many.schema.field(name), names)
    kept = coded(many)
    read = 0
    for number, of_group in enumerate(by_group(kept, kept["group_id"])):
        for name, column in zip(of_group.column_names, of_group.columns, strict=True):
            if pa.types.is_dictionary(column.type):
                read += sum(len(chunk.dictionary) for chunk in column.chunks)
                assert column.type == kept.schema.field(name).type
        if number % 500 == 0:
            name = of_group["group_id"][0].as_py()
            assert values(of_group) == values(many.filter(pc.equal(many["group_id"], name)))
    assert number == count - 1
    assert read <= len(many) * len(many.column_names)
