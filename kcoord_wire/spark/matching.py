"""Requests with their responses on Spark: where the files are read, or from frames that are rows already.

    matched = match_files(spark, "captures/")
    matched.exchanges.groupBy("group_id", "api").count().show()

Laws:

* The frames of a connection meet the matcher of `kcoord_wire.forensics` in order, across all files of a recording or
  rotated capture, so that its rows are those of the plain analysis, for any partitions.
* Of a capture, and of a recording that one task reads, no frame leaves its worker: exchanges, sightings and losses do.
  Several tasks read a large capture, each its share of the connections.
* Exchanges and sightings are packed (`packing`), and persisted until `Matched.unpersist`.
* `Matched.metrics` is counted while the files are read, and is of the first action, as Spark has it: one that does not
  need all rows may see a part, and a task that is repeated may count twice. `Matched.counts` is exact and takes a job.
* A worker's memory has to hold the unanswered requests of its connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from kcoord_wire.forensics.exchanges.arrow import only_batch
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.exchanges.pairing import RECORDING_FILE
from kcoord_wire.forensics.model import Exchange, Frame, Loss, Sighting, arrow_schema, table_of
from kcoord_wire.spark.packing import PACKED, Packer, counted, counted_row, observed, unpacked
from kcoord_wire.spark.partitions import HERE, LATER
from kcoord_wire.spark.rows import as_arrow, as_spark, sound_rows, spark_schema, spark_type, wire_schema
from kcoord_wire.spark.sightings import INTEREST, KEYED, MANY, Interests, Overview, candidates, overview_of
from kcoord_wire.spark.workers import begin_task

EXCHANGES, SIGHTINGS, INTERESTS, LOSSES = "exchanges", "sightings", "interests", "losses"
FILES, FRAMES, ERRORS = "files", "frames", "errors"
"""Kinds of `PACKED`; those of the second line are only counted."""

_COUNTED: Final = (FRAMES, ERRORS, EXCHANGES, LOSSES)

SIGHTING: Final = arrow_schema(Sighting)
KINDS: Final[Mapping[str, pa.Schema]] = {
    EXCHANGES: arrow_schema(Exchange),
    SIGHTINGS: SIGHTING,
    INTERESTS: INTEREST,
    LOSSES: arrow_schema(Loss),
}


@dataclass(frozen=True)
class Matched:
    """Requests with their responses, and the topics and losses found on the way.

    :ivar rows: persisted: rows of `PACKED`, which the properties unpack
    :ivar metrics: ``metrics.get`` has the numbers of `counts` after the first action, for which it waits;
        None through Connect
    :ivar counted: the names of these numbers
    """

    rows: DataFrame
    metrics: Observation | None
    counted: tuple[str, ...]

    @property
    def exchanges(self) -> DataFrame:
        """Rows of `Exchange`."""
        return self._unpacked(EXCHANGES, Exchange)

    @property
    def topics(self) -> DataFrame:
        """Rows of `Sighting`."""
        return self._unpacked(SIGHTINGS, Sighting)

    @property
    def losses(self) -> DataFrame:
        """Rows of `Loss`."""
        return self._unpacked(LOSSES, Loss)

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of ``frames`` read, of ``errors`` among them (rows with `error`), ``exchanges`` and ``losses``.

        Those of `match_files` have ``files``, too.
        """
        [found] = self.rows.agg(*counted({name: name for name in self.counted})).collect()
        return dict(found.asDict())

    @cached_property
    def overview(self) -> Overview:
        """What the history of every group needs of all sightings: one job brings three rows, and a row each name."""
        schema = spark_type(KEYED)
        found = self.of_kind(SIGHTINGS).mapInArrow(_candidates, schema)
        chosen = found.groupBy("key", F.when(F.col("key").isin(*MANY), F.col("topic_id")).alias("id"))
        rows = chosen.agg(F.max_by(F.struct(*schema.names), "time_ns").alias("row")).select("row.*")
        return overview_of(rows.toArrow())

    def unpersist(self) -> None:
        """Release the persisted rows."""
        self.rows.unpersist()

    def of_kind(self, *kinds: str) -> DataFrame:
        """The packed rows of some kinds."""
        return self.rows.where(F.col("kind").isin(*kinds))

    def _unpacked(self, kind: str, row: type) -> DataFrame:
        return self.of_kind(kind).mapInArrow(partial(_unpack, kind, row), spark_schema(row))


def _unpack(kind: str, row: type, packed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in unpacked(packed, kind, KINDS[kind]):
        yield as_spark(batch, wire_schema(row))


def _candidates(packed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    begin_task()
    for batch in unpacked(packed, SIGHTINGS, SIGHTING):
        yield as_spark(candidates(batch), as_arrow(spark_type(KEYED)))


def match_exchanges(frames: DataFrame) -> Matched:
    """Match requests with their responses.

    :param frames: rows of `Frame`, as the source ``kcoord`` has them; further columns are ignored
    :raises ValueError: a column of `Frame` is missing
    """
    return _kept(_matched(frames), *_COUNTED)


def match_files(spark: SparkSession, *paths: str, **options: str) -> Matched:
    """Match requests with their responses in the tasks that read the files, so that no frame leaves its worker.

    A task matches what it reads: files, or of a capture larger than ``maxPartitionBytes``, rotated or not, a share of
    the connections. The frames of a recording that is larger are spread by connection, as `match_exchanges` does it.

    :param spark: a session in which the source is registered
    :param paths: captures and recordings: files, folders, patterns, URIs
    :param options: of the source ``kcoord``, such as ``ports``
    """
    here, later = (
        spark.read.format("kcoord").options(**options, matching=part).load(list(paths)) for part in (HERE, LATER)
    )
    return _kept(here.union(_matched(later)), FILES, *_COUNTED)


def _kept(packed: DataFrame, *kinds: str) -> Matched:
    rows, metrics = observed(packed, "matched", {kind: kind for kind in kinds})
    return Matched(rows.persist(StorageLevel.MEMORY_AND_DISK), metrics, kinds)


def _matched(frames: DataFrame) -> DataFrame:
    if "capture" not in frames.columns:  # rows that an earlier version has written
        frames = frames.withColumn("capture", F.lit(None).cast("string"))
    names = checked_names(frames, Frame)
    file = F.coalesce("capture", "source")  # `seq` goes on in the next file of a rotated capture
    recording = F.regexp_replace(file, RECORDING_FILE, "")  # a connection goes on in the next file of a recording
    apart = frames.select(*names, file.alias("_file"), recording.alias("_recording"))
    apart = apart.repartition("_recording", "connection")
    in_order = apart.sortWithinPartitions("_recording", "connection", F.length("_file"), "_file", "seq")
    return in_order.select(names).mapInArrow(match_packed, PACKED)


def match_packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Match the frames of whole connections, and yield rows of `PACKED`."""
    begin_task()
    matcher, interests = Matcher(), Interests()
    exchanges = Packer(EXCHANGES, KINDS[EXCHANGES], "group_id", interests.note)
    sightings = Packer(SIGHTINGS, SIGHTING)
    noted = Packer(INTERESTS, INTEREST)
    errors = 0
    for batch in batches:
        errors += sound_rows(batch).false_count if batch.column("error").null_count < len(batch) else 0
        found, topics = matcher.feed(batch)
        yield from exchanges.add(found)
        yield from sightings.add(topics)
        for rows in interests.taken():
            yield from noted.add(rows)
    found, topics = matcher.finish()
    losses = Packer(LOSSES, KINDS[LOSSES])
    for packer, rows in ((exchanges, found), (sightings, topics), (losses, only_batch(table_of(Loss, matcher.losses)))):
        yield from packer.add(rows)
        yield from packer.flush()
    for rows in interests.taken(at_least=1):
        yield from noted.add(rows)
    yield from noted.flush()
    yield counted_row(FRAMES, matcher.counts["frames"])
    yield counted_row(ERRORS, errors)


def checked_names(rows: DataFrame, row: type) -> list[str]:
    """The columns of a row type, all of which `rows` has."""
    names = spark_schema(row).names
    missing = [name for name in names if name not in rows.columns]
    if missing:
        raise ValueError(
            f"these are not rows of {row.__name__}: {', '.join(missing)} missing; "
            'spark.read.format("kcoord") reads them from captures, recordings and log segments'
        )
    return names
