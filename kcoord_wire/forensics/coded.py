"""Rows of `Exchange` kept small: strings as codes, no memory for columns that are empty, and in order.

Laws:

* A coded table has the columns and the values of the rows that were added. Its columns of strings are dictionary
  arrays, whose chunks share one dictionary; lists keep their strings. Numbers and positions of frames are int32 where
  all of them fit.
* Its rows are sorted by kind (`KINDS`), group, time, source, frame number and connection: those of a kind and group are
  a slice, and what reads them in order of time copies none.
* Heartbeats, commits and fetches of offsets are in chunks of their own, in which two thirds of the columns are empty:
  all empty chunks share one.
* Nothing of a batch that was added stays alive: one of Arrow's IPC holds the whole message as long as one column does.
* Chunks have `CHUNK_ROWS` rows at most: a kernel that looks at the strings has those of one chunk in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.model import EPOCH_APIS, Exchange, arrow_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_ROWS: Final = 1 << 16
GROUP_BYTES: Final = 190
"""What the history of a large group takes at its peak for each exchange, with its rows, in resident bytes: 187 measured
at 600,000 exchanges and 170 at 1,200,000, of which 61 are its rows and the others what sorting takes and what the
allocators keep. It depends on the group: `python -m tests.bench group` has 190 in a worker of Spark."""

KINDS: Final = ("Heartbeat", "OffsetCommit", "OffsetFetch")
"""Apis whose rows are together; among heartbeats those of KIP-848 that change nothing. Other rows come first."""

_ORDER: Final = ("group_id", "asked_ns", "source", "seq", "connection")
_PLACES: Final = frozenset({"seq", "answer_seq", "position", "answer_position"})
_TELLING: Final = ("assignment", "owned", "topics")
_WIDTHS: Final = (pa.int8(), pa.int16(), pa.int32())
_INT32: Final = 1 << 31
_DECIDING: Final = 2  # columns that nearly always decide an order


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
        self._schema = arrow_schema(Exchange) if schema is None else _uncoded(schema)
        self._parts: list[list[list[pa.Array]]] = [[[] for _ in self._schema] for _ in (None, *KINDS)]
        self._codes: dict[str, dict[str, int]] = {each.name: {} for each in self._schema if _is_text(each.type)}
        self._nulls: dict[pa.DataType, pa.Array] = {}
        self._wide: set[str] = set()
        self._most, self._setting = most, setting
        self._counts = np.zeros(0, np.int64)  # by code of the group
        self.rows = 0

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows; they are copied.

        :raises GroupTooLargeError: a group has more of them than it may have
        """
        for batch in (rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])).to_batches(CHUNK_ROWS):
            of_row = _kinds(batch)
            found = np.unique(of_row).tolist()
            for kind in found:
                part = batch.filter(pa.array(of_row == kind)) if len(found) > 1 else batch
                for field, kept in zip(self._schema, self._parts[kind], strict=True):
                    kept.append(self._kept(field, part.column(field.name)))
                self._count(self._parts[kind])
            self.rows += len(batch)

    def table(self) -> pa.Table:
        """Return what was added, and forget it."""
        tables = [self._sorted(parts) for parts in self._parts if parts[0] or parts is self._parts[0]]
        self.rows = 0
        pa.default_memory_pool().release_unused()  # mimalloc keeps what is freed: 60 bytes an exchange
        return pa.concat_tables(tables)

    def _sorted(self, parts: list[list[pa.Array]]) -> pa.Table:
        """Return the rows of a kind in order, and forget them: column by column, so that few are there twice."""
        names = self._schema.names
        keys = {name: self._chunked(name, parts[names.index(name)]) for name in _ORDER}
        rows = in_order(pa.table(keys), _ORDER)
        del keys
        sizes = [min(CHUNK_ROWS, len(rows) - at) for at in range(0, len(rows), CHUNK_ROWS)] or [0]
        columns = []
        for index, field in enumerate(self._schema):
            column, parts[index] = self._chunked(field.name, parts[index]), []
            if column.null_count < len(column):
                taken = whole(column.take(pa.array(rows)))
                chunks = [taken[at : at + CHUNK_ROWS] for at in range(0, len(rows), CHUNK_ROWS)]
                column = pa.chunked_array(chunks, column.type)
            else:
                kind = _WIDTHS[0] if _is_text(field.type) else field.type
                column = self._chunked(field.name, [self._empty(kind, size) for size in sizes])
            columns.append(column)
        return pa.table(columns, names=names)

    def _count(self, parts: list[list[pa.Array]]) -> None:
        """Count the rows of each group in what was added last to the parts of a kind."""
        if self._most is None:
            return
        names = self._codes["group_id"]
        groups = parts[self._schema.get_field_index("group_id")][-1]
        counts = np.bincount(groups.drop_null().to_numpy(), minlength=len(names))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        if counts.max(initial=0) > self._most:
            group_id = next(name for name, code in names.items() if code == counts.argmax())
            raise GroupTooLargeError(group_id, self._most, self._setting)

    def _kept(self, field: pa.Field, column: pa.Array) -> pa.Array:
        if column.null_count == len(column):
            return self._empty(_WIDTHS[0] if _is_text(field.type) else field.type, len(column))
        if _is_text(field.type):
            return self._coded(field.name, column)
        if field.name in _PLACES and column.type == pa.int64() and field.name not in self._wide:
            bounds = pc.min_max(column)
            if bounds["min"].as_py() >= -_INT32 and bounds["max"].as_py() < _INT32:
                return column.cast(pa.int32())
            self._wide.add(field.name)
        return pa.concat_arrays([column])

    def _empty(self, kind: pa.DataType, rows: int) -> pa.Array:
        """Return nulls, which all columns of a type share."""
        if kind not in self._nulls:
            self._nulls[kind] = pa.nulls(CHUNK_ROWS, kind)
        return self._nulls[kind][:rows]

    def _coded(self, name: str, column: pa.Array) -> pa.Array:
        """Return the codes of strings in the narrowest type that has them."""
        known = self._codes[name]
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes = [known.setdefault(text, len(known)) for text in encoded.dictionary.to_pylist()]
        width = _width(max(codes, default=0))
        return pa.array(codes, width).take(encoded.indices)

    def _chunked(self, name: str, parts: list[pa.Array]) -> pa.ChunkedArray:
        """Return parts of a column in the type that it has in the table."""
        kind = self._schema.field(name).type
        if _is_text(kind):
            names = pa.array(list(self._codes[name]), pa.string())
            width = _width(len(names))
            arrays = [pa.DictionaryArray.from_arrays(self._as(codes, width), names) for codes in parts]
            return pa.chunked_array(arrays, pa.dictionary(width, pa.string()))
        if name in _PLACES and kind == pa.int64() and name not in self._wide:
            kind = pa.int32()
        return pa.chunked_array([self._as(part, kind) for part in parts], kind)

    def _as(self, part: pa.Array, kind: pa.DataType) -> pa.Array:
        if part.type == kind:
            return part
        return self._empty(kind, len(part)) if part.null_count == len(part) else part.cast(kind)


def _kinds(batch: pa.RecordBatch) -> NDArray[np.int8]:
    """Return of each row 0, or the number of its kind in `KINDS` from 1 on."""
    api = batch.column("api")
    of_row: NDArray[np.int8] = pc.fill_null(pc.index_in(api, value_set=pa.array(KINDS)), -1).to_numpy().astype(np.int8)
    of_row += 1
    modern = pc.is_in(api, value_set=pa.array(list(EPOCH_APIS)))
    if pc.any(modern).as_py():
        for name in _TELLING:
            modern = pc.and_(modern, pc.is_null(batch.column(name)))
        of_row[pc.fill_null(modern, False).to_numpy(zero_copy_only=False)] = KINDS.index("Heartbeat") + 1
    return of_row


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


def with_own_names(rows: pa.Table) -> pa.Table:
    """Return coded rows of which no dictionary has more strings than there are rows.

    Whatever looks at the dictionary of a column looks at all of its strings: for the rows of one group among many it
    has those of all groups.
    """
    for index, column in enumerate(rows.columns):
        if not pa.types.is_dictionary(column.type) or not len(rows):
            continue
        names = column.chunk(0).dictionary
        if len(names) > len(rows):
            rows = rows.set_column(index, rows.field(index), _with_used(column, names))
    return rows


def _with_used(column: pa.ChunkedArray, names: pa.Array) -> pa.ChunkedArray:
    """Return a column of codes with those of its names that are used."""
    codes = pa.chunked_array([chunk.indices for chunk in column.chunks])
    used = pc.drop_null(pc.unique(codes))
    own = names.take(used)
    chunks = [pc.index_in(chunk, value_set=used).cast(column.type.index_type) for chunk in codes.chunks]
    return pa.chunked_array([pa.DictionaryArray.from_arrays(chunk, own) for chunk in chunks], column.type)


def ranked(column: pa.ChunkedArray | pa.Array, names: list[str]) -> pa.ChunkedArray | pa.Array:
    """Return strings or their codes as numbers in a list of names; null for null and for those that are not in it."""
    values = pa.array(names, pa.string())
    if not pa.types.is_dictionary(column.type):
        return pc.index_in(column, value_set=values)
    chunks = [pc.index_in(chunk.dictionary, value_set=values).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.int32())


def in_order(columns: pa.Table, names: Sequence[str], chosen: pa.ChunkedArray | None = None) -> NDArray[np.uint32]:
    """Return the numbers of the chosen rows, or of all, sorted by columns.

    Strings are sorted by their rank, so that none is copied. The first two columns that differ nearly always decide;
    the others are looked at only where they do not.

    :param columns: nulls in them come first
    """
    rows: NDArray[np.uint32] | None = None  # all, in the order of the table
    if chosen is not None and not pc.all(chosen, skip_nulls=False).as_py():
        rows = pc.indices_nonzero(chosen).to_numpy().astype(np.uint32)
    known = {name: names_of(columns[name]) for name in names if _is_named(columns[name].type)}
    names = [name for name in names if len(known.get(name, "..")) > 1]

    def keys(of: Sequence[str], chosen: NDArray[np.uint32] | None) -> list[NDArray[np.generic]]:
        numbers = (_numbers(columns[name], known.get(name)) for name in reversed(of))
        return list(numbers if chosen is None else (column[chosen] for column in numbers))

    first = keys(names[:_DECIDING], rows)
    if not first:
        return np.arange(len(columns), dtype=np.uint32) if rows is None else rows
    order = np.lexsort(first).astype(np.uint32)
    rows = order if rows is None else rows[order]
    same = np.ones(max(len(rows) - 1, 0), np.bool_)
    while first:
        key = first.pop()[order]
        same &= key[1:] == key[:-1]
    del order, key
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if len(tied) and len(names) > _DECIDING:
        rows[tied] = rows[tied][np.lexsort(keys(names, rows[tied]))]
    return rows


def _numbers(column: pa.ChunkedArray, names: list[str] | None) -> NDArray[np.generic]:
    """Return numbers, or the ranks of strings among names; -1 for null."""
    numbers: NDArray[np.generic]
    ranks = column if names is None else pc.cast(ranked(column, names), _width(len(names)))
    numbers = whole(pc.fill_null(ranks, -1)).to_numpy()
    return numbers


def names_of(column: pa.ChunkedArray | pa.Array) -> list[str]:
    """Return the different strings of a column, sorted."""
    return sorted(name for name in pc.unique(column).to_pylist() if name is not None)


class RowsByName:
    """The rows of each string of a column, for lookups that do not pass the other rows.

    :ivar names: the different strings; rows of null have none
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        self.names = names_of(column)
        self._ranks = {name: rank for rank, name in enumerate(self.names)}
        ranks = pc.fill_null(whole(ranked(column, self.names)), len(self.names)).to_numpy()
        self._order = np.argsort(ranks, kind="stable").astype(np.uint32)
        self._starts = np.searchsorted(ranks[self._order], np.arange(len(self.names) + 1))

    def rows(self, names: Iterable[str]) -> NDArray[np.uint32]:
        """Return the numbers of the rows with one of these strings, in order."""
        ranks = [self._ranks[name] for name in set(names) if name in self._ranks]
        runs = [self._order[self._starts[rank] : self._starts[rank + 1]] for rank in ranks]
        found: NDArray[np.uint32] = np.sort(np.concatenate([np.empty(0, np.uint32), *runs]))
        return found

    def of(self, table: pa.Table, names: Iterable[str]) -> pa.Table:
        """Return the same rows of a table; the table itself where these are all."""
        rows = self.rows(names)
        return table if len(rows) == len(table) else table.take(pa.array(rows))


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array, for a kernel that would join its chunks anyway."""
    if isinstance(column, pa.Array):
        return column
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) and joined.num_chunks else joined


def _uncoded(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(pa.string()) if _is_named(field.type) else field for field in schema])


def _is_named(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind)) or _is_text(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind))


def _width(most: int) -> pa.DataType:
    return next(width for width in _WIDTHS if most < 1 << width.bit_width - 1)
