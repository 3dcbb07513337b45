"""Lists and structs of Arrow arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.forensics.exchanges.arrow import absent, as_type, child, filled, flatten, lists, records, take_or_null

LISTS = st.lists(st.none() | st.lists(st.integers(0, 9), max_size=3), max_size=5)


@given(LISTS, st.integers(0, 2))
def test_lists_are_what_flatten_flattened(rows: list[list[int] | None], skipped: int) -> None:
    column = pa.array(rows, pa.list_(pa.int64()))[skipped:]
    flat = flatten(column)
    assert flat.values.to_pylist() == [item for row in rows[skipped:] for item in row or ()]
    assert lists(flat.values, flat.row, flat.rows, absent(column)).to_pylist() == rows[skipped:]


def test_a_nested_list_keeps_the_outermost_row() -> None:
    column = pa.array([[{"n": [1, 2]}], None, [{"n": []}, {"n": [3]}]])
    flat = flatten(column).inner("n")
    assert (flat.values.to_pylist(), flat.row.tolist(), flat.rows) == ([1, 2, 3], [0, 0, 2], 3)


def test_take_gives_null_for_minus_one() -> None:
    assert take_or_null(pa.array(["a", "b"]), np.array([1, -1, 0])).to_pylist() == ["b", None, "a"]


def test_as_type_matches_fields_by_name_and_fills_nulls() -> None:
    kind = pa.list_(pa.struct([pa.field("b", pa.int32(), nullable=False), pa.field("a", pa.string())]))
    column = pa.array([[{"a": "x", "b": 1}, {"a": None, "b": None}], None])
    cast = as_type(column, kind)
    assert cast.type == kind
    assert cast.to_pylist() == [[{"b": 1, "a": "x"}, {"b": None, "a": None}], None]


def test_filled_has_no_nulls() -> None:
    for values, empty in ([["a", None], ""], [[b"a", None], b""], [[1, None], 0], [[[1], None], []]):
        assert filled(pa.array(values)).to_pylist() == [values[0], empty]


def test_a_struct_is_null_where_it_is_absent() -> None:
    column = records({"a": pa.array([1, 2])}, pa.array([False, True]))
    assert column.to_pylist() == [{"a": 1}, None]
    assert child(column, "a").to_pylist() == [1, None]
