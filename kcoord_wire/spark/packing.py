"""Rows that only Python reads, as they travel through Spark: many in one binary value.

    packer = Packer("exchanges", arrow_schema(Exchange), "group_id")
    yield from packer.add(batch)           # rows of `PACKED`, whenever there is enough
    yield from packer.flush()

Laws:

* A packed row holds rows of one kind and one bucket as a message of Arrow IPC without its schema, which both sides
  know; a history is a row with a message for each of its tables. Spark does not look into them, so that nested rows
  cost the JVM no more than their bytes, of which there are few: they are compressed (exchanges to an eighth).
* A bucket follows from the key alone (CRC-32), in any process: all rows of a key are in one bucket.
* A packer holds `FLUSHED_BYTES` and a batch at most.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from kcoord_wire.forensics.exchanges.arrow import only_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

BUCKETS: Final = 1024
"""Into how many buckets keys are spread; one without rows costs nothing."""

FLUSHED_BYTES: Final = 32 << 20
"""Bytes of rows after which they are packed: a message of exchanges has some 5 kB besides its rows."""

MESSAGE_ROWS: Final = 1 << 14
"""Rows of a packed row, which is unpacked as a whole: exchanges of one group take some 350 bytes each then."""

PACKED: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("bucket", IntegerType()),
        StructField("rows", LongType()),
        StructField("data", BinaryType()),
    ]
)
"""``rows``: how many rows `data` has; a kind that is only counted has no `data`."""

_CODEC: Final = pa.Codec("zstd", compression_level=1)
_SIZE: Final = 8  # bytes in front of the compressed ones that say how many there were

_ARROW: Final = pa.schema([("kind", pa.string()), ("bucket", pa.int32()), ("rows", pa.int64()), ("data", pa.binary())])

_observed: Final = count(1)
"""Numbers of observations: a query that has two of one name is refused."""

Look = Callable[[pa.RecordBatch, "NDArray[np.int64]"], None]


class Packer:
    """Packs rows of one kind.

    :param kind: name of the kind
    :param schema: of the rows
    :param key: the column whose values are kept together; None has all rows in bucket 0
    :param look: called with rows and their buckets, before they are packed
    """

    def __init__(self, kind: str, schema: pa.Schema, key: str | None = None, look: Look | None = None) -> None:
        self._kind, self._schema, self._key, self._look = kind, schema, key, look
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows, and yield packed ones if there is enough."""
        if rows.num_rows:
            self._held.append(rows)
            self._bytes += rows.nbytes
        if self._bytes >= FLUSHED_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left."""
        if not self._held:
            return
        rows = only_batch(pa.Table.from_batches(self._held, self._schema))
        self._held, self._bytes = [], 0
        buckets = np.zeros(len(rows), np.int64) if self._key is None else buckets_of(rows.column(self._key))
        if self._look is not None:
            self._look(rows, buckets)
        for bucket, part in split(rows, buckets):
            for start in range(0, len(part), MESSAGE_ROWS):
                yield packed_row(self._kind, bucket, part[start : start + MESSAGE_ROWS])


def split(rows: pa.RecordBatch, buckets: NDArray[np.int64]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each bucket, in their order."""
    if not len(rows):
        return
    order = np.argsort(buckets, kind="stable")
    found, starts = np.unique(buckets[order], return_index=True)
    if len(found) > 1:
        rows = rows.take(pa.array(order))
    for bucket, start, end in zip(found.tolist(), starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        yield bucket, rows.slice(start, end - start)


def packed_row(kind: str, bucket: int, *tables: pa.RecordBatch) -> pa.RecordBatch:
    """Return one row of `PACKED`.

    :param tables: what its data has; ``rows`` counts those of the first
    """
    messages = b"".join(each.serialize() for each in tables)
    data = len(messages).to_bytes(_SIZE, "little") + _CODEC.compress(messages, asbytes=True)
    columns = {"kind": [kind], "bucket": [bucket], "rows": [len(tables[0])], "data": [data]}
    return pa.RecordBatch.from_pydict(columns, _ARROW)


def counted_row(kind: str, rows: int) -> pa.RecordBatch:
    """Return one row of `PACKED` without data."""
    return pa.RecordBatch.from_pydict({"kind": [kind], "bucket": [0], "rows": [rows], "data": [None]}, _ARROW)


def packed_values(packed: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, str, pa.Scalar]]:
    """Yield bucket, kind and data of rows of `PACKED`."""
    for batch in packed:
        yield from zip(
            batch.column("bucket").to_pylist(), batch.column("kind").to_pylist(), batch.column("data"), strict=True
        )


def unpacked(packed: Iterable[pa.RecordBatch], kind: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a kind in rows of `PACKED`; others are passed over."""
    for _, name, data in packed_values(packed):
        if name == kind:
            yield unpack(data, schema)


def unpack(data: pa.Scalar, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows in a value of the column `data`."""
    [rows] = unpack_tables(data, [schema])
    return rows


def unpack_tables(data: pa.Scalar, schemas: Sequence[pa.Schema]) -> list[pa.RecordBatch]:
    """Return the tables in a value of the column `data`."""
    packed = data.as_buffer()
    size = int.from_bytes(packed[:_SIZE].to_pybytes(), "little")
    source = pa.BufferReader(_CODEC.decompress(packed[_SIZE:], size))
    return [pa.ipc.read_record_batch(pa.ipc.read_message(source), schema) for schema in schemas]


def buckets_of(keys: pa.Array) -> NDArray[np.int64]:
    """Return the bucket of each key, a string."""
    encoded = keys.dictionary_encode()
    of_name = np.array([zlib.crc32(name.encode()) % BUCKETS for name in encoded.dictionary.to_pylist()], np.int64)
    found: NDArray[np.int64] = of_name[encoded.indices.to_numpy(zero_copy_only=False)]
    return found


def observed(packed: DataFrame, what: str, kinds: Mapping[str, str]) -> tuple[DataFrame, Observation | None]:
    """Count rows of `PACKED` while they are made, which takes no job: in the queries' plans, and for the program.

    :param what: of the name in the plan, which is ``kcoord WHAT N``
    :param kinds: by the names of the counts
    :return: None through Connect, whose client refuses a query that has the same rows twice if they are observed
    """
    if not hasattr(packed.sparkSession, "sparkContext"):
        return packed, None
    metrics = Observation(f"kcoord {what} {next(_observed)}")
    return packed.observe(metrics, *counted(kinds)), metrics


def counted(kinds: Mapping[str, str]) -> list[Column]:
    """Return how many rows of each kind there are, as aggregations of rows of `PACKED`.

    :param kinds: by the names of the counts
    """
    counts = {name: F.sum(F.when(F.col("kind") == kind, F.col("rows"))) for name, kind in kinds.items()}
    return [F.coalesce(each, F.lit(0)).alias(name) for name, each in counts.items()]
