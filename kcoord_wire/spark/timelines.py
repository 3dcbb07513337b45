"""From frames, or records of the offsets log, to the history of each group and why it rebalanced: on Spark.

    timeline = group_timeline(spark.read.format("kcoord").load("captures/"))
    timeline.tables["ownership"].where("member_id = 'm-1'").show()
    explain_rebalances(timeline).select("group_id", "cause", "client_id", "detail").show(truncate=False)

Laws:

* What is done here is done by the functions of `kcoord_wire.forensics`; Spark brings together what belongs together:
  the frames of a connection in their order (through all files of a recording), the exchanges or records of a group.
  Partitions, batches and the order of the rows have no effect on any table.
* Frames cross to Python once, and so do exchanges: both results are kept (persisted) until `unpersist`.
* A connection's requests without answer, and a group's exchanges, have to fit a worker's memory; the topics that all
  Metadata responses named have to fit the driver's, and go to every group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kcoord_wire.forensics.analysis import TABLES
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.exchanges.matcher import RECORDING_FILE, Matcher, name_topics
from kcoord_wire.forensics.log.history import group_of, log_history
from kcoord_wire.forensics.model import (
    Exchange,
    Frame,
    GroupHistory,
    LogRow,
    Loss,
    Rebalance,
    TopicSighting,
    table_of,
)
from kcoord_wire.forensics.wire.history import wire_history
from kcoord_wire.forensics.wire.traffic import TopicSightings, read_sightings
from kcoord_wire.spark.rows import as_arrow, as_spark, instances, spark_schema, wire_schema

__all__ = ["Matched", "Timeline", "explain_rebalances", "group_timeline", "match_exchanges"]

_MATCHED: Final = StructType(
    [
        StructField("exchange", spark_schema(Exchange)),
        StructField("topic", spark_schema(TopicSighting)),
        StructField("loss", spark_schema(Loss)),
        StructField("frames", LongType()),
    ]
)


@dataclass(frozen=True)
class Matched:
    """Requests with their responses, and what was learnt on the way.

    :ivar rows: each is an `Exchange`, a `TopicSighting`, a `Loss`, or a number of frames; persisted
    """

    rows: DataFrame

    @property
    def exchanges(self) -> DataFrame:
        """Rows of `Exchange`."""
        return self._of("exchange")

    @property
    def topics(self) -> DataFrame:
        """Rows of `TopicSighting`."""
        return self._of("topic")

    @property
    def losses(self) -> DataFrame:
        """Rows of `Loss`."""
        return self._of("loss")

    @property
    def counts(self) -> dict[str, int]:
        """How many ``frames`` were read and ``exchanges`` found."""
        [row] = self.rows.agg(F.sum("frames").alias("frames"), F.count("exchange").alias("exchanges")).collect()
        return {"frames": row["frames"] or 0, "exchanges": row["exchanges"]}

    def unpersist(self) -> None:
        """Let go of what is kept."""
        self.rows.unpersist()

    def _of(self, kind: str) -> DataFrame:
        return self.rows.where(F.col(kind).isNotNull()).select(f"{kind}.*")


@dataclass(frozen=True)
class Timeline:
    """The histories of all groups.

    :ivar histories: a row for each group, with a column for each list of `GroupHistory`; persisted
    :ivar losses: rows of `Loss`: what could not be read
    """

    histories: DataFrame
    losses: DataFrame

    @cached_property
    def tables(self) -> dict[str, DataFrame]:
        """A DataFrame for each of `TABLES`, and ``losses``."""
        tables = {
            name: self.histories.select(F.explode(name).alias("row")).select("row.*") for name in list(TABLES)[1:]
        }
        return {"groups": self.histories.select("group.*"), **tables, "losses": self.losses}

    def collect(self) -> list[GroupHistory]:
        """All histories, in order of the groups' ids. They have to fit the driver."""
        rows = instances(GroupHistory, self.histories.toArrow())
        return sorted(rows, key=lambda history: (history.group.group_id, history.group.origin))

    def unpersist(self) -> None:
        """Let go of what is kept."""
        self.histories.unpersist()


def match_exchanges(frames: DataFrame) -> Matched:
    """Requests matched with their responses.

    :param frames: rows of `Frame`, as the source ``kcoord`` gives them; more columns do no harm
    """
    names = spark_schema(_row_type(frames, "frame")).names
    recording = F.regexp_replace("source", RECORDING_FILE, "")  # a connection goes on in the next file of it
    apart = frames.select(*names, recording.alias("_recording")).repartition("_recording", "connection")
    in_order = apart.sortWithinPartitions("_recording", "connection", F.length("source"), "source", "seq")
    return Matched(in_order.select(names).mapInArrow(_match, _MATCHED).persist(StorageLevel.MEMORY_AND_DISK))


def _match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    matcher = Matcher()
    for batch in batches:
        exchanges, topics = matcher.feed(batch)
        yield from _told("exchange", exchanges)
        yield from _told("topic", topics)
    exchanges, topics = matcher.finish()
    yield from _told("exchange", exchanges)
    yield from _told("topic", topics)
    yield from _told("loss", table_of(Loss, matcher.losses).combine_chunks())
    yield from _told("frames", pa.table({"frames": pa.array([matcher.counts["frames"]], pa.int64())}))


def _told(kind: str, rows: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows in the one column that is theirs, the other columns null."""
    schema = _matched_arrow()
    for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
        if batch.num_rows:
            inner = schema.field(kind).type
            is_struct = pa.types.is_struct(inner)
            column = as_spark(batch, pa.schema(list(inner))).to_struct_array() if is_struct else batch.column(0)
            columns = [column if field.name == kind else pa.nulls(batch.num_rows, field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


@cache
def _matched_arrow() -> pa.Schema:
    return as_arrow(_MATCHED)


def group_timeline(rows: DataFrame | Matched, *, groups: Collection[str] | None = None) -> Timeline:
    """The history of each group, with its findings.

    Of frames, this matches them at once, for all topics have to be known before the first history is made.

    :param rows: frames, records of ``__consumer_offsets`` (rows of `LogRow`), or what `match_exchanges` gave
    :param groups: only these
    :raises ValueError: the columns are neither those of `Frame` nor of `LogRow`
    """
    if isinstance(rows, DataFrame) and {"key", "value", "offset"} <= set(rows.columns):
        return _log_timeline(rows, groups)
    matched = match_exchanges(rows) if isinstance(rows, DataFrame) else rows
    topics = matched.topics.toArrow()
    exchanges = _only(matched.exchanges, groups)
    histories = exchanges.groupBy("group_id").applyInArrow(_of_wire(topics), spark_schema(GroupHistory))
    return Timeline(histories.persist(StorageLevel.MEMORY_AND_DISK), matched.losses)


def _of_wire(topics: pa.Table) -> Callable[[pa.Table], pa.Table]:
    """What makes the history of a group's exchanges. The topics travel with it as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, topics.schema) as stream:
        stream.write_table(topics)
    told = sink.getvalue().to_pybytes()

    def of_wire(exchanges: pa.Table) -> pa.Table:
        topics, sightings = _read_topics(told)
        exchanges = name_topics(exchanges, topics)
        history = wire_history(exchanges, sightings)
        history.findings = detect(history, exchanges)
        return _one(history)

    return of_wire


@lru_cache(maxsize=1)
def _read_topics(told: bytes) -> tuple[pa.Table, TopicSightings]:
    """Read the topics once for all groups of a worker."""
    topics = pa.ipc.open_stream(told).read_all()
    return topics, read_sightings(topics)


def _log_timeline(records: DataFrame, groups: Collection[str] | None) -> Timeline:
    records = records.select(spark_schema(_row_type(records, "value")).names)
    sound = records.where(F.col("error").isNull())
    schema = StructType([StructField("group_id", StringType()), *sound.schema])
    named = _only(sound.mapInArrow(_name_groups, schema), groups)
    histories = named.groupBy("group_id").applyInArrow(_of_log, spark_schema(GroupHistory))
    one = F.lit(1).cast("long")
    losses = records.where(F.col("error").isNotNull()).select(
        "source", "position", F.col("error").alias("what"), F.col("lost").alias("bytes"), one.alias("count")
    )
    return Timeline(histories.persist(StorageLevel.MEMORY_AND_DISK), losses)


def _name_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        names = group_of(batch["key"])
        whole = pa.RecordBatch.from_arrays([names, *batch.columns], names=["group_id", *batch.schema.names])
        yield whole.filter(names.is_valid())


def _of_log(records: pa.Table) -> pa.Table:
    history = log_history(records.drop_columns(["group_id"]))
    history.findings = detect(history)
    return _one(history)


def _one(history: GroupHistory) -> pa.Table:
    batches = table_of(GroupHistory, [history]).to_batches()
    return pa.Table.from_batches([as_spark(batch, wire_schema(GroupHistory)) for batch in batches])


def _only(rows: DataFrame, groups: Collection[str] | None) -> DataFrame:
    return rows if groups is None else rows.where(F.col("group_id").isin(sorted(groups)))


def _row_type(rows: DataFrame, telling: str) -> type:
    row = Frame if telling == "frame" else LogRow
    missing = [name for name in spark_schema(row).names if name not in rows.columns]
    if missing:
        raise ValueError(
            f"these are no rows of {row.__name__}: {', '.join(missing)} missing; "
            'spark.read.format("kcoord") gives them for captures, recordings and log segments'
        )
    return row


def explain_rebalances(rows: DataFrame | Matched | Timeline) -> DataFrame:
    """Why each rebalance was: rows of `Rebalance`, and in ``findings`` those of the group's findings that are about it.

    :param rows: as of `group_timeline`, or its result
    """
    timeline = rows if isinstance(rows, Timeline) else group_timeline(rows)
    names = [f"rebalance.{name}" for name in spark_schema(Rebalance).names]

    def about(finding: Any) -> Any:
        return F.array_contains(finding["rebalances"], F.col("rebalance.number"))

    each = timeline.histories.select(F.explode("rebalances").alias("rebalance"), "findings")
    return each.select(*names, F.filter("findings", about).alias("findings"))
