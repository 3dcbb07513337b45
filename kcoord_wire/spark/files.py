"""Frames in Parquet files, read and decoded by the workers themselves.

    decode_parquet(spark, ["frames/part-0.parquet"], apis=["JoinGroup"], columns=["group_id"], flat=True)
    convert_parquet(spark, ["frames/part-0.parquet"], "joins/", apis=["JoinGroup"], columns=["group_id"], flat=True)

`decode_frames` has Spark read the files and hand each frame to Python, which costs more than decoding it. Here a worker
reads a file with pyarrow, and only what was decoded goes to Spark; or nothing but a count, where it writes that itself.

Laws:

* The rows are those of `decode_frames` on the same files, as multisets; a file is a partition.
* What is not asked for is left out before it goes to Spark. A batch is what a row group holds, at most `BATCH_ROWS`.
* A file that a worker writes has its name from its place in `paths` and is moved there when it is whole: a task that is
  done again replaces it by the same. ``_SUCCESS`` is there when all are.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import kcoord_wire as kw
from kcoord_wire.spark.decode import DecodePlan, decode_plan
from kcoord_wire.spark.rows import as_arrow, as_spark, spark_type

__all__ = ["BATCH_ROWS", "convert_parquet", "decode_parquet"]

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
    task = _task(paths, column, apis, columns, mode, beside, flat=flat, strict=strict)
    return _numbers(spark, task).mapInArrow(partial(_decode_files, task), task.schema)


def convert_parquet(
    spark: SparkSession,
    paths: Sequence[str],
    out: str | os.PathLike[str],
    column: str = "frame",
    apis: Sequence[str | int] | None = None,
    columns: Sequence[str] | None = None,
    mode: str = "PERMISSIVE",
    *,
    beside: Sequence[str] = (),
    flat: bool = False,
    strict: bool = True,
) -> int:
    """Write what `decode_parquet` gives of each file to a file in `out`; how many rows that were.

    :param out: a folder that every executor sees under this name; made if missing. It must hold nothing
    :raises FileExistsError: `out` holds something
    :raises ValueError, FileNotFoundError: as `decode_parquet`, which takes the same arguments
    """
    task = _task(paths, column, apis, columns, mode, beside, flat=flat, strict=strict)
    folder = Path(out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{out} is not empty")
    written = _numbers(spark, task).mapInArrow(partial(_convert_files, task, str(folder)), "rows long")
    rows: int = sum(row["rows"] for row in written.collect())
    (folder / "_SUCCESS").touch()
    return rows


class _Task(NamedTuple):
    """What a worker is told."""

    plan: DecodePlan
    paths: list[str]
    column: str
    beside: list[str]
    schema: StructType


def _task(
    paths: Sequence[str],
    column: str,
    apis: Sequence[str | int] | None,
    columns: Sequence[str] | None,
    mode: str,
    beside: Sequence[str],
    *,
    flat: bool,
    strict: bool,
) -> _Task:
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
    return _Task(plan, list(paths), column, list(beside), StructType([*given, *plan.schema]))


def _numbers(spark: SparkSession, task: _Task) -> DataFrame:
    """A row a file, each in a partition of its own."""
    return spark.range(0, len(task.paths), 1, len(task.paths))


def _decode_files(task: _Task, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for number in (n for batch in numbers for n in batch["id"].to_pylist()):
        yield from _decode_file(task, task.paths[number])


def _convert_files(task: _Task, folder: str, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for number in (n for batch in numbers for n in batch["id"].to_pylist()):
        path = Path(folder, f"part-{number:05d}.parquet")
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        rows = 0
        try:
            with pq.ParquetWriter(part, as_arrow(task.schema)) as writer:
                for batch in _decode_file(task, task.paths[number]):
                    writer.write_batch(batch)
                    rows += batch.num_rows
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        yield pa.record_batch({"rows": pa.array([rows], pa.int64())})


def _decode_file(task: _Task, path: str) -> Iterator[pa.RecordBatch]:
    wanted = as_arrow(task.schema)
    api_keys = [kw.registry[name].api_key or 0 for name in task.plan.messages]
    keys = pa.array([key.to_bytes(2, "big", signed=True) for key in api_keys], pa.binary())
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=[task.column, *task.beside]):
            frames = batch[task.column].cast(pa.binary())
            asked = _asked_for(frames, keys)
            if asked.false_count:
                batch, frames = batch.filter(asked), frames.filter(asked)
            decoded = pa.RecordBatch.from_arrays(
                [*(batch[name] for name in task.beside), *task.plan.decoded(frames, None, None)], names=wanted.names
            )
            yield as_spark(decoded, wanted)


def _asked_for(frames: pa.Array, keys: pa.Array) -> pa.Array:
    """Which frames begin with one of the keys, or are too short to tell; a null is neither."""
    begins = pc.is_in(pc.binary_slice(frames, 0, 2), value_set=keys)
    return pc.and_(frames.is_valid(), pc.or_(begins, pc.fill_null(pc.less(pc.binary_length(frames), 2), False)))
