"""Files for the workers: frames in Parquet files that they read and decode, and the package as one file.

    decode_parquet(spark, ["frames/part-0.parquet"], apis=["JoinGroup"], columns=["group_id"], flat=True)
    convert_parquet(spark, ["frames/part-0.parquet"], "joins/", apis=["JoinGroup"], columns=["group_id"], flat=True)

With `decode_frames` Spark reads the files and passes each frame to Python, which costs more than decoding it. Here a
worker reads a file with pyarrow and passes only decoded columns to Spark, or only a count if it writes the result.

    archive = package_archive("kcoord_wire.zip")  # for the executors of a cluster
    spark-submit --py-files kcoord_wire.zip job.py
    spark-submit --archives kcoord_wire.zip#kcoord --conf spark.executorEnv.PYTHONPATH=kcoord job.py

Laws:

* The rows equal those of `decode_frames` on the same files, as multisets; a file is a partition.
* Rows of other apis are dropped before they reach Spark. A batch holds at most a row group and at most `BATCH_ROWS`.
* A worker names a file after its index in `paths` and moves it there when it is complete, so that a repeated task
  replaces it by the same file. ``_SUCCESS`` exists when all files do.
* The package's archive holds the modules, the schema files and the native modules of this platform; the executors also
  need pyarrow.
* Python cannot load a native module from a zip. With ``--archives`` Spark unpacks the file; with ``--py-files`` the
  first import unpacks it into the executor's folder beside the file, or into a temporary folder if that is read-only.
* Executors on another platform ignore the native modules, whose file names contain the platform, and run the pure ones.
"""

from __future__ import annotations

import os
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import kcoord_wire
from kcoord_wire.schema.files import schema_root
from kcoord_wire.spark.decode import DecodePlan, decode_plan
from kcoord_wire.spark.rows import as_arrow, as_spark, spark_type

_FOLDER: Final = "kcoord_wire_unpacked"
_SUFFIXES: Final = {".py", ".pyi", ".so", ".pyd", ".typed"}
_FIRST: Final = "kcoord_wire/__init__.py"
_PACKAGE: Final = "kcoord_wire/_package.py"
_BOOTSTRAP: Final = '''\
"""kcoord_wire in an archive: the first import unpacks a zip, then runs the package."""


def _unpacked(archive):
    import atexit
    import os
    import shutil
    import tempfile
    import zipfile

    folder = archive + ".unpacked"
    if os.path.isdir(folder):
        return folder
    try:
        scratch = tempfile.mkdtemp(dir=os.path.dirname(archive) or ".", prefix=".kcoord-")
    except OSError:
        scratch = tempfile.mkdtemp(prefix="kcoord-")
        atexit.register(shutil.rmtree, scratch, True)
        folder = scratch
    with zipfile.ZipFile(archive) as file:
        file.extractall(scratch)
    if folder != scratch:
        try:
            os.rename(scratch, folder)
        except OSError:  # another worker has unpacked it first
            shutil.rmtree(scratch, True)
    return folder


def _located():
    import os

    above = os.path.abspath(os.path.dirname(__path__[0]))
    if os.path.isfile(above):
        above = _unpacked(above)
        __path__[:] = [os.path.join(above, "kcoord_wire")]
    return os.path.join(__path__[0], "_package.py")


__file__ = _located()
with open(__file__, encoding="utf-8") as _file:
    exec(compile(_file.read(), __file__, "exec"))
'''


def package_archive(path: str | Path) -> Path:
    """Write the imported package to `path`, a zip for ``--py-files``, ``--archives`` or `SparkContext.addPyFile`.

    :returns: `path`
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    package = Path(kcoord_wire.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_FIRST, _BOOTSTRAP)
        if not (package / "_package.py").exists():  # this process does not run from an archive itself
            archive.write(package / "__init__.py", _PACKAGE)
        for file in _files(package):
            name = f"kcoord_wire/{file.relative_to(package)}"
            if name != _FIRST:
                archive.write(file, name)
        root = schema_root()
        if not root.is_relative_to(package):
            for file in sorted(root.rglob("*.json")):
                archive.write(file, f"kcoord_wire/_schemas/{file.relative_to(root)}")
    return path


def submit_conf(archive: str | Path) -> dict[str, str]:
    """The settings of a session that have Spark unpack an archive on the executors, as ``--archives`` does."""
    return {"spark.archives": f"{archive}#{_FOLDER}", "spark.executorEnv.PYTHONPATH": _FOLDER}


def _files(package: Path) -> Iterator[Path]:
    for file in sorted(package.rglob("*")):
        if (file.suffix in _SUFFIXES and "__pycache__" not in file.parts) or (
            file.suffix == ".json" and "_schemas" in file.relative_to(package).parts
        ):
            yield file


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
    """Decode the requests in a binary column of Parquet files.

    :param paths: files that every executor can read under these names
    :param column: the column of frames, without their four bytes of size
    :param apis: names (``JoinGroup``), message names (``JoinGroupRequest``) or api keys; None: those of `GROUP_APIS`
    :param columns: dotted paths of the fields to decode, and columns of the header; None: all
    :param mode: FAILFAST ends the job at a bad row; DROPMALFORMED leaves it out; PERMISSIVE has nulls for it, with the
        error in further columns
    :param beside: other columns of the files to keep, before the decoded ones
    :param flat: a column for each path instead of a struct for each message
    :param strict: whether to reject what Kafka reads but never writes
    :return: the columns of `beside`, then the decoded ones as `decode_frames` has them
    :raises ValueError: an argument is wrong, `paths` is empty, or the first file lacks a column
    :raises FileNotFoundError: the first file does not exist
    """
    task = _task(paths, column, beside, decode_plan(apis, columns, mode, flat=flat, strict=strict))
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
    """Decode the requests in a binary column of Parquet files, and write a Parquet file for each.

    The other parameters are those of `decode_parquet`.

    :param out: a folder that every executor can write to under this name; created if missing, else it must be empty
    :return: the number of rows written
    :raises FileExistsError: `out` is not empty
    :raises ValueError: an argument is wrong, `paths` is empty, or the first file lacks a column
    :raises FileNotFoundError: the first file does not exist
    """
    task = _task(paths, column, beside, decode_plan(apis, columns, mode, flat=flat, strict=strict))
    folder = Path(out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{out} is not empty")
    written = _numbers(spark, task).mapInArrow(partial(_convert_files, task, str(folder)), "rows long")
    rows: int = sum(row["rows"] for row in written.collect())
    (folder / "_SUCCESS").touch()
    return rows


class _Task(NamedTuple):
    """The work of every worker: which columns of which files to decode, and how."""

    plan: DecodePlan
    paths: list[str]
    column: str
    beside: list[str]
    schema: StructType


def _task(paths: Sequence[str], column: str, beside: Sequence[str], plan: DecodePlan) -> _Task:
    if isinstance(paths, str) or not paths:
        raise ValueError(f"paths must be a list of at least one file, not {paths!r}")
    known = pq.read_schema(paths[0])
    for name in (column, *beside):
        if name not in known.names:
            raise ValueError(f"{paths[0]} has no column {name!r}, only {', '.join(known.names)}")
    kept = spark_type(pa.schema([known.field(name) for name in beside]))
    if clash := set(beside) & set(plan.schema.names):
        raise ValueError(f"beside has names of decoded columns: {', '.join(sorted(clash))}; leave them out")
    return _Task(plan, list(paths), column, list(beside), StructType([*kept, *plan.schema]))


def _numbers(spark: SparkSession, task: _Task) -> DataFrame:
    """The indices of the files, each in its own partition."""
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
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=[task.column, *task.beside]):
            frames = batch[task.column].cast(pa.binary())
            batch = batch.set_column(batch.schema.get_field_index(task.column), task.column, frames)
            selected = task.plan.may_have(frames)
            if selected.false_count:
                batch = batch.filter(selected)
            yield as_spark(task.plan.beside(batch, task.column, task.beside), wanted)
