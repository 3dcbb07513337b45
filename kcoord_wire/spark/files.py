"""Frames in Parquet files, read and decoded by the workers themselves.

    decode_parquet(spark, ["frames/part-0.parquet"], apis=["JoinGroup"], columns=["group_id"], flat=True)

`decode_frames` has Spark read the files and hand each frame to Python, which costs more than decoding it. Here a worker
reads a file with pyarrow, and only what was decoded goes to Spark.

Laws:

* The rows are those of `decode_frames` on the same files, as multisets; a file is a partition.
* What is not asked for is left out before it goes to Spark. A batch is what a row group holds, at most `BATCH_ROWS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import kcoord_wire as kw
from kcoord_wire.spark.decode import DecodePlan, decode_plan
from kcoord_wire.spark.rows import as_arrow, as_spark, spark_type

__all__ = ["BATCH_ROWS", "decode_parquet"]

BATCH_ROWS: Final = 32_768


def decode_parquet(
    spark: SparkSession,
    paths: Sequence[str],
    column: str = "frame",
    apis: Sequence[str | int] | None = None,
    columns: Sequence[str] | None = None,
    mode: str = "PERMISSIVE",
    *,
    beside: Sequence[str] = (),
    flat: bool = False,
    strict: bool = True,
) -> DataFrame:
    """The requests in the binary `column` of Parquet files, decoded.

    :param paths: files that every executor sees under these names
    :param beside: other columns of the files to give too, before the decoded ones
    :param column, apis, columns, mode, flat, strict: as of `decode_frames`
    :raises ValueError: an argument is wrong, there is no path, or a file's first lacks a column
    :raises FileNotFoundError: the first file is not there
    """
    if isinstance(paths, str) or not paths:
        raise ValueError(f"paths is a list of files, at least one, not {paths!r}")
    plan = decode_plan(apis, columns, mode, flat=flat, strict=strict)
    known = pq.read_schema(paths[0])
    for name in (column, *beside):
        if name not in known.names:
            raise ValueError(f"{paths[0]} has no column {name!r}, only {', '.join(known.names)}")
    given = spark_type(pa.schema([known.field(name) for name in beside]))
    if clash := set(beside) & set(plan.schema.names):
        raise ValueError(f"decoding gives columns of these names: {', '.join(sorted(clash))}; leave them out of beside")
    schema = StructType([*given, *plan.schema])
    numbers = spark.range(0, len(paths), 1, len(paths))
    return numbers.mapInArrow(partial(_decode_files, plan, list(paths), column, list(beside), schema), schema)


def _decode_files(
    plan: DecodePlan,
    paths: list[str],
    column: str,
    beside: list[str],
    schema: StructType,
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    wanted = as_arrow(schema)
    api_keys = [kw.registry[name].api_key or 0 for name in plan.messages]
    keys = pa.array([key.to_bytes(2, "big", signed=True) for key in api_keys], pa.binary())
    for number in (n for batch in numbers for n in batch["id"].to_pylist()):
        with pq.ParquetFile(paths[number]) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=[column, *beside]):
                frames = batch[column].cast(pa.binary())
                asked = _asked_for(frames, keys)
                if asked.false_count:
                    batch, frames = batch.filter(asked), frames.filter(asked)
                decoded = pa.RecordBatch.from_arrays(
                    [*(batch[name] for name in beside), *plan.decoded(frames, None, None)], names=wanted.names
                )
                yield as_spark(decoded, wanted)


def _asked_for(frames: pa.Array, keys: pa.Array) -> pa.Array:
    """Which frames begin with one of the keys, or are too short to tell; a null is neither."""
    begins = pc.is_in(pc.binary_slice(frames, 0, 2), value_set=keys)
    return pc.and_(frames.is_valid(), pc.or_(begins, pc.fill_null(pc.less(pc.binary_length(frames), 2), False)))
