"""The data source ``kcoord``: captures, recordings, log segments and logs of text as rows.

    register(spark)
    frames = spark.read.format("kcoord").option("ports", "9092,9093").load("captures/")
    records = spark.read.format("kcoord").load("kafka-logs/")        # __consumer_offsets-*/*.log
    growing = spark.readStream.format("kcoord").load("recording/")   # see `streams`

Laws:

* Captures and recordings have the rows of `Frame`, log segments those of `LogRow`, logs of brokers and clients those of
  `LogLine` (`kcoord_wire.forensics.model`). A path with several is rejected, because a table has one schema.
* Small files share a partition (`partitions`). Every executor needs access to the files, which may be in a store
  (`places`).
* Unreadable bytes are a row with `error`; mode DROPMALFORMED leaves such rows out, FAILFAST ends the job.
* Rows that the option ``where`` leaves out do not leave the worker (`conditions`); FAILFAST has looked at them before.
* A table (``CREATE TABLE t USING kcoord OPTIONS (path ...)``) reads its files like `load`. Spark gives the options of a
  table to `schema`, once, and none to the reader, so that the schema brings them, in the metadata of its first column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from glob import glob, has_magic
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from kcoord_wire.forensics.lines.wrapping import parse_zone
from kcoord_wire.forensics.model import Frame, LogLine, LogRow
from kcoord_wire.forensics.sources.files import units
from kcoord_wire.forensics.sources.frames import partition_of
from kcoord_wire.forensics.sources.segments import MAX_EXPANSION
from kcoord_wire.spark.conditions import parse_condition
from kcoord_wire.spark.packing import PACKED, counted_row
from kcoord_wire.spark.places import Place, find_places, local_path, selection, shares_of
from kcoord_wire.spark.rows import as_arrow, as_spark, checked_mode, sound_rows, spark_schema, wire_schema
from kcoord_wire.spark.versions import SparkVersionError

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

    from kcoord_wire.spark.partitions import (
        HERE,
        LATER,
        FilePartition,
        Packing,
        byte_size,
        plan_partitions,
        read_partition,
        recordings,
        total_size,
    )
except ModuleNotFoundError:
    raise SparkVersionError("the data source kcoord", "4.0") from None

STREAM_OPTIONS: Final = (
    "failOnDataLoss",
    "maxBytesPerTrigger",
    "maxFilesPerTrigger",
    "maxRowsPerTrigger",
    "startingOffsets",
)
OPTIONS: Final = (
    *("maxExpansion", "maxPartitionBytes", "mode", "openCostInBytes", "path", "paths", "ports", "timezone", "where"),
    *("metadata", "modifiedAfter", "modifiedBefore", "pathGlobFilter", "recursiveFileLookup"),
)
METADATA: Final = StructField(
    "_metadata",
    StructType(
        [
            StructField("file_path", StringType()),
            StructField("file_name", StringType()),
            StructField("file_size", LongType()),
            StructField("file_modification_time", TimestampType()),
        ]
    ),
)
"""The column of the option ``metadata``: which file a row is from, in the names of Spark's own file sources."""
ROWS: Final[Mapping[str, type]] = {"frames": Frame, "records": LogRow, "lines": LogLine}
_OF_KIND: Final = {"pcap": "frames", "recording": "frames", "log": "records", "text": "lines"}
_MATCHING: Final = "matching"  # an option of `match_files` alone
_KEPT: Final = "kcoord"  # the key of a table's options in the metadata
_OF_TABLES: Final = frozenset({"comment", "is_managed_location", "location", "owner", "provider"})  # Spark's own
_NAMES: Final = {"frames": "frames", "records": "records of a log", "lines": "lines of text"}


class UnreadableError(ValueError):
    """Bytes of a source are not a frame or record, and the mode is FAILFAST."""


class KcoordSource(DataSource):
    """The data source behind ``format("kcoord")``.

    Options of a batch: ``path`` (a file, a folder or a pattern; `load` takes several), ``ports`` (of the brokers,
    separated by commas; without them the connections of a capture are recognised by their bytes), ``mode`` (PERMISSIVE,
    DROPMALFORMED or FAILFAST), ``timezone`` (of lines whose time states none, UTC by default), ``maxExpansion`` (of log
    segments, see `segments.MAX_EXPANSION`), ``where`` (a condition that all rows meet, see `conditions`),
    ``maxPartitionBytes`` and ``openCostInBytes`` (of `Packing`, those of the session by default), ``metadata``
    (``true`` adds the column `METADATA`), and those of `Selection`. `RecordingStream` lists those of a stream.

    :cvar packing: of the session, when the source was registered
    """

    packing: ClassVar[Packing] = Packing()

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "kcoord"

    def schema(self) -> StructType:
        """The schema of `Frame`, `LogRow` or `LogLine`, by the kind of the files.

        What may have recordings later has that of `Frame`, because a stream may begin before them; a batch ends with
        the error of `find_places` when it is planned.

        :raises ValueError: there are files of several kinds, or none that can be read
        """
        kept = _of_table(self.options)
        options = _lower(self.options) if kept is None else kept
        paths = _paths(options)
        if options.get(_MATCHING) == LATER:  # after HERE, which has looked at the files
            return spark_schema(Frame)
        if options.get(_MATCHING) == HERE:
            places = find_places(paths, selection(options))
            if (kind := _kind(places)) != "frames":
                raise ValueError(f"only frames can be matched, and these are {_NAMES[kind]}: {places[0].name}")
            return PACKED
        is_empty = all(map(_is_empty, paths))
        schema = spark_schema(Frame if is_empty else ROWS[_kind(find_places(paths, selection(options)))])
        if _has_metadata(options):
            schema = StructType([*schema.fields, METADATA])
        return schema if kept is None else _with_options(schema, kept)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the files that exist now."""
        kept: Mapping[str, str] = schema[0].metadata.get(_KEPT, {}) if len(schema) else {}
        return _Reader({**kept, **self.options}, schema, self.packing)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of a folder of recordings that grows."""
        try:
            from kcoord_wire.spark.streams import RecordingStream  # which needs a newer Spark than the batch source
        except SparkVersionError as error:
            return _NoStream(error)
        return RecordingStream(dict(self.options), schema)


def register(spark: SparkSession) -> None:
    """Register ``spark.read.format("kcoord")``, ``spark.readStream.format("kcoord")`` and the functions of SQL.

    The session's ``spark.sql.files.maxPartitionBytes``, ``openCostInBytes`` and number of cores are those of now.
    """
    from kcoord_wire.spark.functions import register_functions  # the tasks of the source need none of it

    # Spark plans in a process of its own, which has no session.
    packing = {"packing": Packing.of_session(spark), "__module__": __name__}
    spark.dataSource.register(type("KcoordSource", (KcoordSource,), packing))
    register_functions(spark)


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType, packing: Packing) -> None:
        self.mode, self.ports = _checked(options)
        options = _lower(options)
        self.selected = selection(options)
        self.where = parse_condition(options.get("where", ""))
        self.timezone = options.get("timezone", "UTC")
        parse_zone(self.timezone)
        self.max_expansion = _whole("maxExpansion", options.get("maxexpansion", str(MAX_EXPANSION)))
        self.packing = _packed(options, packing)
        self.paths = _paths(options)
        self.schema = schema
        self.matching = options.get(_MATCHING)

    def partitions(self) -> Sequence[InputPartition]:
        places = find_places(self.paths, self.selected)
        row = ROWS[_kind(places)]
        self.where.check(_asked_schema(row))
        places = [place for unit in units(places) if self._has_rows(unit) for place in unit]
        if self.matching is None:
            _check_columns(self.schema, row)
            return plan_partitions(places, self.packing)
        chosen = [place for unit in recordings(places) if self._is_chosen(unit) for place in unit]
        if self.matching == LATER:
            return plan_partitions(chosen, self.packing)
        others = len(places) - len(chosen)
        partitions = plan_partitions(chosen, self.packing, whole=True)
        return [*partitions, FilePartition((), others)] if others else partitions

    def _has_rows(self, unit: Sequence[Place]) -> bool:
        """Whether a file may have rows that pass; those of a rotated capture are read for each other's connections."""
        return any(self.where.has_file(_known(place)) for place in unit)

    def _is_chosen(self, unit: Sequence[Place]) -> bool:
        """Whether files that share connections are of the part that is asked for."""
        most = self.packing.max_bytes
        is_divided = total_size(unit) > most and (len(unit) > 1 or len(shares_of(unit, most)) > 1)
        is_here = unit[0].kind == "pcap" or not is_divided  # a share of a capture has whole connections
        return is_here == (self.matching == HERE)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FilePartition):  # Spark's own, where there are none
            return
        wanted = as_arrow(self.schema)
        if self.matching == HERE:
            from kcoord_wire.spark.matching import FILES, match_packed  # which a task that only reads does not need

            read = sum(place.is_first_share for place in partition.places)
            files = counted_row(FILES, read + partition.others)
            packed = match_packed(batch for _, batch in self._sound(partition))
            yield from (as_spark(batch, wanted) for batch in chain(packed, [files]))
            return
        for place, batch in self._sound(partition):
            if METADATA.name in wanted.names:
                batch = batch.append_column(METADATA.name, _metadata(place, len(batch)))
            yield as_spark(batch, wanted)

    def _sound(self, partition: FilePartition) -> Iterator[tuple[Place, pa.RecordBatch]]:
        """Yield each file's rows with it, as the mode has them."""
        rows = read_partition(partition, ports=self.ports, timezone=self.timezone, max_expansion=self.max_expansion)
        for place, batch in rows:
            if self.mode != "PERMISSIVE" and batch["error"].null_count < len(batch):
                sound = sound_rows(batch)
                if self.mode == "FAILFAST" and sound.false_count:
                    raise UnreadableError(_damage_text(batch.filter(pc.invert(sound))))
                batch = batch.filter(sound)
            yield place, self.where.rows(batch)


class _NoStream(DataSourceStreamReader):
    """Ends a query with an error. Where none can be made, Spark 4.0 and 4.1 fail once more and show that first."""

    def __init__(self, error: SparkVersionError) -> None:
        self._error = error

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        """What Spark asks for first.

        :raises SparkVersionError: always
        """
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


def _metadata(place: Place, rows: int) -> pa.Array:
    (kind,) = as_arrow(StructType([METADATA])).types
    return pa.repeat(pa.scalar(_metadata_of(place), kind), rows)


def _metadata_of(place: Place) -> dict[str, Any]:
    path = Path(place.name)
    return {
        "file_path": path.absolute().as_uri() if place.stored is None else place.name,
        "file_name": path.name,
        "file_size": place.size,
        "file_modification_time": place.modified_ns // 1000,
    }


def _known(place: Place) -> dict[str, Any]:
    """What is the same for all rows of a file, by the name of the column."""
    known = {f"{METADATA.name}.{name}": value for name, value in _metadata_of(place).items()}
    known["source"] = place.name
    return known | {"partition": partition_of(place.name)} if place.kind == "log" else known


def _asked_schema(row: type) -> pa.Schema:
    """The columns that a condition may name."""
    of_file = [field.with_name(f"{METADATA.name}.{field.name}") for field in as_arrow(StructType([METADATA]))[0].type]
    return pa.schema([*wire_schema(row), *of_file])


def _check_columns(schema: StructType, row: type) -> None:
    """Refuse a schema of the user that is not a choice of the source's columns, in any order."""
    known = {field.name: field.dataType for field in (*spark_schema(row).fields, METADATA)}
    for field in schema.fields:
        if field.name not in known:
            raise ValueError(f"there is no column {field.name!r}; the columns are {', '.join(known)}")
        if field.dataType != known[field.name]:
            expected, given = known[field.name].simpleString(), field.dataType.simpleString()
            raise ValueError(f"the column {field.name} is of type {expected}, not {given}")


def _damage_text(batch: pa.RecordBatch) -> str:
    row = batch.slice(0, 1).to_pylist()[0]
    return f"{row['source']} at {row['position']}: {row['error']}; mode PERMISSIVE has a row for it"


def _kind(places: Sequence[Place]) -> str:
    first: dict[str, str] = {}
    for place in places:
        first.setdefault(_OF_KIND[place.kind], place.name)
    if len(first) > 1:
        found = " and ".join(f"{_NAMES[kind]} ({name})" for kind, name in first.items())
        raise ValueError(f"there are {found}; a table has one kind: load them separately")
    return next(iter(first))


def _is_empty(path: str) -> bool:
    """Whether this is an empty folder, or a pattern of which there is no other match."""
    local = local_path(path)
    if local is None:
        return False
    matches = [Path(match) for match in glob(local, recursive=True)] if has_magic(local) else [Path(local)]
    return all(match.is_dir() and not any(match.iterdir()) for match in matches)


def _of_table(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options that a table is created with, without Spark's own; None if this is no table."""
    lower = _lower(options)
    if not {"provider", "owner"} <= lower.keys():
        return None
    return {name: lower[name] for name in lower if name not in _OF_TABLES and not name.startswith("option.")}


def _with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    first, *others = schema.fields
    return StructType([StructField(first.name, first.dataType, first.nullable, {_KEPT: dict(options)}), *others])


def _paths(options: Mapping[str, str]) -> list[str]:
    if "paths" in options:  # load() was called with a list
        return [str(path) for path in json.loads(options["paths"])]
    if not options.get("path"):
        raise ValueError(
            'the source kcoord needs a path: .load("captures/"); a table has it if its columns are not declared'
        )
    return [options["path"]]


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _has_metadata(options: Mapping[str, str]) -> bool:
    value = options.get("metadata", "false").lower()
    if value not in ("true", "false"):
        raise ValueError(f"metadata must be true or false, not {value!r}")
    return value == "true"


def _checked(options: Mapping[str, str]) -> tuple[str, list[int] | None]:
    """The mode, and the ports of the brokers."""
    for name in options:
        if name.lower() not in (_MATCHING, *map(str.lower, OPTIONS)):
            is_of_streams = name.lower() in map(str.lower, STREAM_OPTIONS)
            known = ", ".join(OPTIONS) + (f"; {name} is an option of streams" if is_of_streams else "")
            raise ValueError(f"the source kcoord has no option {name!r}; its options are {known}")
    options = _lower(options)
    mode = checked_mode(options.get("mode", "PERMISSIVE"))
    if "ports" not in options:
        return mode, None
    try:
        ports = [int(port) for port in options["ports"].split(",")]
    except ValueError:
        raise ValueError(f"ports must be numbers separated by commas, not {options['ports']!r}") from None
    return mode, ports


def _whole(option: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{option} must be a whole number above 0, not {text!r}")
    return int(text)


def _packed(options: Mapping[str, str], packing: Packing) -> Packing:
    """The packing that the options, by names in lower case, ask for."""
    for option, field in (("maxPartitionBytes", "max_bytes"), ("openCostInBytes", "open_cost")):
        if (text := options.get(option.lower())) is not None:
            packing = replace(packing, **{field: byte_size(option, text)})
    return packing
