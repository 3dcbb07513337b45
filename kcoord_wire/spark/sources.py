"""The data source ``kcoord``: captures, recordings, log segments and logs of text as rows.

    register(spark)
    frames = spark.read.format("kcoord").option("ports", "9092,9093").load("captures/")
    records = spark.read.format("kcoord").load("kafka-logs/")        # __consumer_offsets-*/*.log
    growing = spark.readStream.format("kcoord").load("recording/")   # see `streams`

Laws:

* Captures and recordings have the rows of `Frame`, log segments those of `LogRow`, logs of brokers and clients those of
  `LogLine` (`kcoord_wire.forensics.model`). A path with several is rejected, because a table has one schema.
* A file is a partition, because a frame is found only by reading all before it. Every executor needs access to the
  files.
* Unreadable bytes are a row with `error`; with mode FAILFAST they end the job.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kcoord_wire.forensics.lines.wrapping import parse_zone
from kcoord_wire.forensics.model import Frame, LogLine, LogRow
from kcoord_wire.forensics.sources.files import find_sources
from kcoord_wire.forensics.sources.frames import read_frames, read_lines, read_log
from kcoord_wire.spark.rows import as_arrow, as_spark, spark_schema
from kcoord_wire.spark.versions import SparkVersionError

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
except ModuleNotFoundError:
    raise SparkVersionError("the data source kcoord", "4.0") from None

STREAM_OPTIONS: Final = (
    "failOnDataLoss",
    "maxBytesPerTrigger",
    "maxFilesPerTrigger",
    "maxRowsPerTrigger",
    "startingOffsets",
)
OPTIONS: Final = ("mode", "path", "paths", "ports", "timezone")
ROWS: Final[Mapping[str, type]] = {"frames": Frame, "records": LogRow, "lines": LogLine}
_OF_KIND: Final = {"pcap": "frames", "recording": "frames", "log": "records", "text": "lines"}
_NAMES: Final = {"frames": "frames", "records": "records of a log", "lines": "lines of text"}


class UnreadableError(ValueError):
    """Bytes of a source are not a frame or record, and the mode is FAILFAST."""


class KcoordSource(DataSource):
    """The data source behind ``format("kcoord")``.

    Options of a batch: ``path`` (a file, a folder or a pattern; `load` takes several), ``ports`` (of the brokers,
    separated by commas; without them the connections of a capture are recognised by their bytes), ``mode`` (PERMISSIVE
    or FAILFAST), ``timezone`` (of lines whose time states none, UTC by default). `RecordingStream` lists those of a
    stream.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "kcoord"

    def schema(self) -> StructType:
        """The schema of `Frame`, `LogRow` or `LogLine`, by the kind of the files.

        An empty folder has that of `Frame`, because a stream may begin before its recording.

        :raises ValueError: there are files of several kinds, or none that can be read
        """
        paths = _paths(self.options)
        if all(Path(path).is_dir() and not any(Path(path).iterdir()) for path in paths):
            return spark_schema(Frame)
        return spark_schema(ROWS[_kind(paths)])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the files that exist now."""
        return _Reader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of a folder of recordings that grows."""
        from kcoord_wire.spark.streams import RecordingStream  # which needs a newer Spark than the batch source

        return RecordingStream(dict(self.options), schema)


def register(spark: SparkSession) -> None:
    """Register ``spark.read.format("kcoord")`` and ``spark.readStream.format("kcoord")`` with a session."""
    spark.dataSource.register(KcoordSource)


class _File(InputPartition):
    """A file, read by one task."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(path)
        self.path = path
        self.kind = kind


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.fail_fast, self.ports = _checked(options)
        self.timezone = options.get("timezone", "UTC")
        parse_zone(self.timezone)
        self.paths = _paths(options)
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [_File(str(source.path), source.kind) for source in find_sources(self.paths)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _File)
        wanted = as_arrow(self.schema)
        for batch in self._batches(partition):
            if self.fail_fast and batch["error"].null_count < len(batch):
                raise UnreadableError(_damage_text(batch))
            yield as_spark(batch, wanted)

    def _batches(self, partition: _File) -> Iterator[pa.RecordBatch]:
        if partition.kind == "log":
            return read_log(partition.path)
        if partition.kind == "text":
            return read_lines(partition.path, timezone=self.timezone)
        return read_frames(partition.path, ports=self.ports)


def _damage_text(batch: pa.RecordBatch) -> str:
    row = batch.slice(pc.index(batch["error"].is_valid(), pa.scalar(True)).as_py(), 1).to_pylist()[0]
    return f"{row['source']} at {row['position']}: {row['error']}; mode PERMISSIVE has a row for it"


def _kind(paths: Sequence[str]) -> str:
    sources = find_sources(paths)
    first: dict[str, Path] = {}
    for source in sources:
        first.setdefault(_OF_KIND[source.kind], source.path)
    if len(first) > 1:
        found = " and ".join(f"{_NAMES[kind]} ({path})" for kind, path in first.items())
        raise ValueError(f"{', '.join(paths)} has {found}; a table has one kind: load them separately")
    return next(iter(first))


def _paths(options: Mapping[str, str]) -> list[str]:
    if "paths" in options:  # load() was called with a list
        return [str(path) for path in json.loads(options["paths"])]
    if not options.get("path"):
        raise ValueError('the source kcoord needs a path: .load("captures/")')
    return [options["path"]]


def _checked(options: Mapping[str, Any]) -> tuple[bool, list[int] | None]:
    """Whether damage ends the job, and the ports of the brokers."""
    for name in options:
        if name.lower() not in OPTIONS:
            is_of_streams = name.lower() in map(str.lower, STREAM_OPTIONS)
            known = ", ".join(OPTIONS) + (f"; {name} is an option of streams" if is_of_streams else "")
            raise ValueError(f"the source kcoord has no option {name!r}; its options are {known}")
    mode = options.get("mode", "PERMISSIVE")
    if mode.upper() not in ("FAILFAST", "PERMISSIVE"):
        raise ValueError(f"mode must be FAILFAST or PERMISSIVE, not {mode!r}")
    if "ports" not in options:
        return mode.upper() == "FAILFAST", None
    try:
        ports = [int(port) for port in options["ports"].split(",")]
    except ValueError:
        raise ValueError(f"ports must be numbers separated by commas, not {options['ports']!r}") from None
    return mode.upper() == "FAILFAST", ports
