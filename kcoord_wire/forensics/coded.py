"""Rows of `Exchange` kept small: strings as codes, and no memory for columns that are empty.

Laws:

* A coded table has the columns and the values of the rows that were added. Its columns of strings are dictionary
  arrays, whose chunks share one dictionary; lists keep their strings.
* Heartbeats, commits and fetches of offsets are in chunks of their own, in which two thirds of the columns are empty:
  all empty chunks share one.
* Nothing of a batch that was added stays alive: one of Arrow's IPC holds the whole message as long as one column does.
* Chunks have `CHUNK_ROWS` rows at most: a kernel that looks at the strings has those of one chunk in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.model import Exchange, arrow_schema

CHUNK_ROWS: Final = 1 << 16
GROUP_BYTES: Final = 400
"""What the history of a large group takes at its peak for each exchange, with its rows, in bytes: 355 measured at
600,000 exchanges; 683 at 100,000, where what does not grow with them weighs more."""

_QUIET: Final = pa.array(["Heartbeat", "OffsetCommit", "OffsetFetch"])
_WIDTHS: Final = (pa.int8(), pa.int16(), pa.int32())


class GroupTooLargeError(RuntimeError):
    """A group has more exchanges than the memory of one process is meant to hold.

    :ivar group_id: the group
    :ivar most: how many it may have
    """

    def __init__(self, group_id: str, most: int, setting: str) -> None:
        self.group_id, self.most, self.setting = group_id, most, setting
        memory = most * GROUP_BYTES / 1e9
        super().__init__(
            f"group {group_id!r} has more than {most:,} exchanges, for which a process needs some {memory:.2g} GB: "
            f"raise {setting} together with the memory of a worker, or read a shorter time"
        )

    def __reduce__(self) -> tuple[type[GroupTooLargeError], tuple[str, int, str]]:
        return type(self), (self.group_id, self.most, self.setting)


class CodedExchanges:
    """Takes rows of `Exchange`, in batches of any size, and keeps them coded.

    :param schema: of the rows, which may have nulls where those of `Exchange` have none
    :param most: exchanges that a group may have; None for any number
    :param setting: the name by which people know `most`
    """

    def __init__(self, schema: pa.Schema | None = None, most: int | None = None, setting: str = "") -> None:
        self._schema = arrow_schema(Exchange) if schema is None else schema
        self._columns: list[list[pa.Array]] = [[] for _ in self._schema]
        self._codes: dict[str, dict[str, int]] = {each.name: {} for each in self._schema if _is_text(each.type)}
        self._nulls = {each.type: pa.nulls(CHUNK_ROWS, each.type) for each in self._schema}
        self._most, self._setting = most, setting
        self._counts = np.zeros(0, np.int64)  # by code of the group
        self.rows = 0

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows; they are copied.

        :raises GroupTooLargeError: a group has more of them than it may have
        """
        for batch in (rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])).to_batches(CHUNK_ROWS):
            is_quiet = pc.is_in(batch.column("api"), value_set=_QUIET)
            is_mixed = len(pc.unique(is_quiet)) > 1
            for part in (batch.filter(pc.invert(is_quiet)), batch.filter(is_quiet)) if is_mixed else (batch,):
                for field, kept in zip(self._schema, self._columns, strict=True):
                    kept.append(self._kept(field, part.column(field.name)))
                self._count()
            self.rows += len(batch)

    def table(self) -> pa.Table:
        """Return what was added, and forget it."""
        columns = []
        for index, field in enumerate(self._schema):
            parts, self._columns[index] = self._columns[index], []
            columns.append(self._dictionary(field.name, parts) if _is_text(field.type) else _chunked(parts, field.type))
        self.rows = 0
        return pa.table(columns, names=self._schema.names)

    def _count(self) -> None:
        """Count the rows of each group in what was added last."""
        if self._most is None:
            return
        names = self._codes["group_id"]
        groups = self._columns[self._schema.get_field_index("group_id")][-1]
        counts = np.bincount(groups.drop_null().to_numpy(), minlength=len(names))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        if counts.max(initial=0) > self._most:
            group_id = next(name for name, code in names.items() if code == counts.argmax())
            raise GroupTooLargeError(group_id, self._most, self._setting)

    def _kept(self, field: pa.Field, column: pa.Array) -> pa.Array:
        if _is_text(field.type):
            return self._coded(field.name, column)
        if column.null_count == len(column):
            return self._nulls[field.type][: len(column)]
        return pa.concat_arrays([column])

    def _coded(self, name: str, column: pa.Array) -> pa.Array:
        """Return the codes of strings in the narrowest type that has them."""
        known = self._codes[name]
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes = [known.setdefault(text, len(known)) for text in encoded.dictionary.to_pylist()]
        width = _width(max(codes, default=0))
        return pa.array(codes, width).take(encoded.indices)

    def _dictionary(self, name: str, parts: list[pa.Array]) -> pa.ChunkedArray:
        names = pa.array(list(self._codes[name]), pa.string())
        width = _width(len(names))
        kind = pa.dictionary(width, pa.string())
        for index, codes in enumerate(parts):
            parts[index] = pa.DictionaryArray.from_arrays(codes.cast(width), names)
        return _chunked(parts, kind)


def coded(exchanges: Iterable[pa.RecordBatch | pa.Table] | pa.Table) -> pa.Table:
    """Return rows of `Exchange` as a coded table; one that is already is only cut into chunks."""
    if isinstance(exchanges, pa.Table):
        if pa.types.is_dictionary(exchanges.schema.field("group_id").type):
            return pa.Table.from_batches(exchanges.to_batches(CHUNK_ROWS), exchanges.schema)
        exchanges = [exchanges]
    kept = None
    for rows in exchanges:
        kept = kept or CodedExchanges(rows.schema)
        kept.add(rows)
    return (kept or CodedExchanges()).table()


def ranked(column: pa.ChunkedArray | pa.Array, names: list[str]) -> pa.ChunkedArray | pa.Array:
    """Return strings or their codes as numbers in a list of names; null for null and for those that are not in it."""
    values = pa.array(names, pa.string())
    if not pa.types.is_dictionary(column.type):
        return pc.index_in(column, value_set=values)
    chunks = [pc.index_in(chunk.dictionary, value_set=values).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.int32())


def names_of(column: pa.ChunkedArray | pa.Array) -> list[str]:
    """Return the different strings of a column, sorted."""
    return sorted(name for name in pc.unique(column).to_pylist() if name is not None)


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array, for a kernel that would join its chunks anyway."""
    if isinstance(column, pa.Array):
        return column
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) and joined.num_chunks else joined


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind))


def _width(most: int) -> pa.DataType:
    return next(width for width in _WIDTHS if most < 1 << width.bit_width - 1)


def _chunked(parts: list[pa.Array], kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array(parts, kind)
