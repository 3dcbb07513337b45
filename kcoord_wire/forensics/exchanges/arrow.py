"""Lists and structs of Arrow arrays: flatten them, build them, and cast them to the types of the row types.

Laws: every function works by column, never row by row; slices and nulls are allowed everywhere; no input is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Flat:
    """The elements of a list column, one after the other.

    :ivar values: the elements; null lists have none
    :ivar row: per element, the row whose list it is in
    :ivar rows: how many rows there are
    """

    __slots__ = ("row", "rows", "values")

    def __init__(self, values: pa.Array, row: NDArray[np.int64], rows: int) -> None:
        self.values, self.row, self.rows = values, row, rows

    def __len__(self) -> int:
        return len(self.row)

    def inner(self, name: str) -> Flat:
        """Flatten the list `name` of the elements; `row` is still that of the outermost list."""
        flat = flatten(child(self.values, name))
        return Flat(flat.values, self.row[flat.row], self.rows)


def flatten(column: pa.Array) -> Flat:
    """Return the elements of a list column."""
    parents = pc.list_parent_indices(column)
    return Flat(pc.list_flatten(column), parents.to_numpy(zero_copy_only=False).astype(np.int64), len(column))


def lists(values: pa.Array, row: NDArray[np.int64], rows: int, absent: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return the list column that `flatten` flattens.

    :param values: the elements
    :param row: per element, the row whose list it is in; ascending
    :param rows: how many rows there are
    :param absent: rows whose list is null; they have no elements
    """
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(row, minlength=rows), out=offsets[1:])
    mask = None if absent is None or not absent.any() else pa.array(absent)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


def records(names: dict[str, pa.Array], absent: pa.Array | None = None) -> pa.Array:
    """Return a struct column of columns by name; null where the boolean column `absent` is true."""
    return pa.StructArray.from_arrays(list(names.values()), names=list(names), mask=absent)


def child(column: pa.Array, name: str) -> pa.Array:
    """Return a field of a struct column, null where the struct is."""
    return pc.struct_field(column, name)


def absent(column: pa.Array) -> NDArray[np.bool_]:
    """Return which rows are null."""
    found: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return found


def take_or_null(column: pa.Array, rows: NDArray[np.int64]) -> pa.Array:
    """Return the rows of those numbers; null for -1."""
    return column.take(pa.array(rows, mask=rows < 0))


def as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to a type of the same shape: fields match by name, and the name of a list's elements does not matter."""
    if column.type == kind:
        return column
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        parts = [as_type(child(column, field.name), field.type) for field in fields]
        if any(not field.nullable for field in fields) and column.null_count:
            parts = [part if field.nullable else filled(part) for part, field in zip(parts, fields, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=column.is_null())
    if pa.types.is_list(kind):
        flat = flatten(column)
        values = as_type(flat.values, kind.value_type)
        built = lists(values, flat.row, flat.rows, absent(column))
        return pa.Array.from_buffers(kind, len(built), built.buffers()[:2], built.null_count, 0, [values])
    return column.cast(kind)


def filled(column: pa.Array) -> pa.Array:
    """Replace nulls by the empty value of the type."""
    if not column.null_count:
        return column
    kind = column.type
    if pa.types.is_list(kind):
        flat = flatten(column)
        return as_type(lists(flat.values, flat.row, flat.rows), kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pc.fill_null(column, pa.scalar("" if pa.types.is_string(kind) else b"", kind))
    return pc.fill_null(column, pa.scalar(0, pa.int64()).cast(kind))


def joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return several batches, or none, as one."""
    some = [batch for batch in batches if len(batch)]
    return some[0] if len(some) == 1 else only_batch(pa.Table.from_batches(some, schema))


def only_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
