"""From frames, or records of the offsets log, to the history of each group and why it rebalanced: on Spark.

    histories = group_histories(spark.read.format("kcoord").load("captures/"))
    histories.tables["ownership"].where("member_id = 'm-1'").show()
    explain_rebalances(histories).select("group_id", "cause", "client_id", "detail").show(truncate=False)

Laws:

* All work is done by the functions of `kcoord_wire.forensics`. Spark only groups their input: the frames of a
  connection in order (across all files of a recording), the exchanges or records of a group. Partitions, batches and
  the order of the rows do not change any table.
* Frames cross to Python once, and so do exchanges: both results are persisted until `unpersist`.
* A worker's memory has to hold the unanswered requests of a connection and the exchanges of a group. The driver's has
  to hold the topics of all Metadata responses, which are sent to every group.

The coordination topic of Marshal on Spark: the claims of all groups, from an export, a live topic or a stream.

    records = spark.read.format("kcoord").load("kafka-logs/")        # __marshal-*/*.log
    coordination_claims(records).where("ended = 'stale'").show()
    group_histories(records).tables["findings"].show()

    topic = spark.readStream.format("kafka").option("subscribe", "__marshal")...load()
    events = coordination_stream(kafka_records(topic))               # claims, pauses, findings as they become final
    events.where("finding is not null").select("finding.*").writeStream...

* All work is done by `kcoord_wire.forensics.marshal`. Spark only brings the records of a coordination partition
  together, in the order of their offsets. Partitions, batches and the order of the rows do not change any table.
* A worker holds the live claims and the members of a coordination partition, and of a stream the records of one batch;
  never all its records.
* The state of a stream is in the checkpoint, pickled, so that it is read by the version of this package that wrote it.
  After a restart the query goes on where it was, and its rows are those of a query that never stopped; what a sink does
  with them is the sink's guarantee.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kcoord_wire.forensics.analysis import TABLES, group_history
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.exchanges.clusters import BROKER, names_by_cluster, read_clusters
from kcoord_wire.forensics.exchanges.matcher import Matcher, name_topics
from kcoord_wire.forensics.exchanges.pairing import RECORDING_FILE
from kcoord_wire.forensics.lines.history import text_history
from kcoord_wire.forensics.marshal.claims import ORDER, marshal_history, read_parts
from kcoord_wire.forensics.marshal.live import LiveReader
from kcoord_wire.forensics.marshal.reader import COLUMNS, MARSHAL_PATTERN, ClaimRules, Part
from kcoord_wire.forensics.model import (
    Exchange,
    Frame,
    GroupHistory,
    LogLine,
    LogRow,
    Loss,
    Rebalance,
    Sighting,
    table_of,
)
from kcoord_wire.forensics.records.reader import group_of, log_history
from kcoord_wire.forensics.wire.traffic import Sightings, read_sightings
from kcoord_wire.spark.rows import as_arrow, as_spark, instances, spark_schema, wire_schema
from kcoord_wire.spark.versions import SparkVersionError

if not hasattr(DataFrame, "toArrow"):
    raise SparkVersionError("the analysis of groups on Spark", "4.0")

_PARTS: Final = 8192  # rows of a batch


def kafka_records(topic: DataFrame) -> DataFrame:
    """Rows of `LogRow` from those of Spark's own Kafka source, of a batch or a stream."""
    return topic.select(
        F.concat_ws("-", "topic", F.col("partition").cast("string")).alias("source"),
        "partition",
        "offset",
        F.col("offset").alias("position"),
        (F.unix_millis("timestamp") * 1_000_000).alias("time_ns"),
        "key",
        "value",
        F.lit(None).cast("string").alias("error"),
        F.lit(0).cast("long").alias("lost"),
        (F.col("timestampType") == 1).alias("is_append_time"),
    )


def coordination_sources(records: DataFrame) -> list[str]:
    """The names of the sources that have a value of Marshal; this runs a job over the records.

    :param records: rows of `LogRow`
    """
    text = records.where(F.col("key").isNull() & F.col("value").cast("string").rlike(MARSHAL_PATTERN))
    return sorted(row["source"] for row in text.select("source").distinct().collect())


def coordination_claims(records: DataFrame, judge: ClaimRules | None = None) -> DataFrame:
    """The claims of all groups: rows of `ClaimRow`.

    :param records: rows of `LogRow`, all of them of a coordination topic
    :param judge: the rules; those of the document if left out
    """
    parts = coordination_parts(records, judge or ClaimRules(), has_commits=False)
    return parts.where(F.col("claim").isNotNull()).select("claim.*")


def coordination_parts(records: DataFrame, judge: ClaimRules, *, has_commits: bool = True) -> DataFrame:
    """What each coordination partition shows, in rows of `Part`."""
    home = F.when(F.col("partition") < 0, F.col("source")).otherwise("").alias("home")
    rows = records.select("partition", home, *COLUMNS).repartition("partition", "home")
    return rows.sortWithinPartitions(*ORDER).mapInArrow(_parts_of(judge, has_commits), spark_schema(Part))


def _parts_of(judge: ClaimRules, has_commits: bool) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def parts_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[Part] = []
        for part in read_parts(batches, judge, has_commits=has_commits):
            held.append(part)
            if len(held) == _PARTS:
                yield from _batches(held)
                held = []
        yield from _batches(held)

    return parts_of


def _batches(parts: list[Part]) -> Iterator[pa.RecordBatch]:
    for batch in table_of(Part, parts).to_batches():
        yield as_spark(batch, wire_schema(Part))


_STATE: Final = "reader binary"
_ROW: Final = "row string"  # JSON: a nested row would have to be a data frame of pandas


def coordination_stream(records: DataFrame, judge: ClaimRules | None = None) -> DataFrame:
    """What a growing coordination topic shows, in rows of `Part` with one column set; for the output mode append.

    :param records: rows of `LogRow`, those of a coordination partition in order: what has come in a batch is before
        what comes in later ones
    :param judge: the rules; those of the document if left out
    """
    sound = records.where(F.col("error").isNull()).select("partition", *COLUMNS)
    rows = sound.groupBy("partition").applyInPandasWithState(
        _step(judge or ClaimRules()), _ROW, _STATE, "append", GroupStateTimeout.NoTimeout
    )
    return rows.select(F.from_json("row", spark_schema(Part)).alias("part")).select("part.*")


def _step(judge: ClaimRules) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    def step(key: Any, batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        reader = pickle.loads(state.get[0]) if state.exists else LiveReader(int(key[0]), judge)
        rows = pd.concat(list(batches)).sort_values(["offset", "time_ns", "source"])
        for row in zip(*(rows[name].tolist() for name in COLUMNS), strict=True):
            reader.read(*row)
        found = [json.dumps(asdict(part)) for part in reader.events()]
        state.update((pickle.dumps(reader),))
        yield pd.DataFrame({"row": found})

    return step


_MATCHED: Final = StructType(
    [
        StructField("exchange", spark_schema(Exchange)),
        StructField("topic", spark_schema(Sighting)),
        StructField("loss", spark_schema(Loss)),
        StructField("frames", LongType()),
    ]
)


@dataclass(frozen=True)
class Matched:
    """Requests with their responses, and the topics and losses found on the way.

    :ivar rows: persisted; in each row one column is set: an `Exchange`, a `Sighting`, a `Loss` or a frame count
    """

    rows: DataFrame

    @property
    def exchanges(self) -> DataFrame:
        """Rows of `Exchange`."""
        return self._of("exchange")

    @property
    def topics(self) -> DataFrame:
        """Rows of `Sighting`."""
        return self._of("topic")

    @property
    def losses(self) -> DataFrame:
        """Rows of `Loss`."""
        return self._of("loss")

    @property
    def counts(self) -> dict[str, int]:
        """The number of ``frames`` read and of ``exchanges`` found."""
        [row] = self.rows.agg(F.sum("frames").alias("frames"), F.count("exchange").alias("exchanges")).collect()
        return {"frames": row["frames"] or 0, "exchanges": row["exchanges"]}

    def unpersist(self) -> None:
        """Release the persisted rows."""
        self.rows.unpersist()

    def _of(self, kind: str) -> DataFrame:
        return self.rows.where(F.col(kind).isNotNull()).select(f"{kind}.*")


@dataclass(frozen=True)
class Histories:
    """The histories of all groups.

    :ivar histories: persisted; a row per group, with a column for each list of `GroupHistory`
    :ivar losses: rows of `Loss`, for what could not be read
    :ivar parts: persisted, too: what the others are made of
    """

    histories: DataFrame
    losses: DataFrame
    parts: tuple[DataFrame, ...] = ()

    @cached_property
    def tables(self) -> dict[str, DataFrame]:
        """A DataFrame for each of `TABLES`, and ``losses``."""
        tables = {
            name: self.histories.select(F.explode(name).alias("row")).select("row.*") for name in list(TABLES)[1:]
        }
        return {"groups": self.histories.select("group.*"), **tables, "losses": self.losses}

    def collect(self) -> list[GroupHistory]:
        """All histories on the driver, sorted by group id."""
        rows = instances(GroupHistory, self.histories.toArrow())
        return sorted(rows, key=lambda history: (history.group.group_id, history.group.origin))

    def unpersist(self) -> None:
        """Release the persisted rows."""
        for rows in (self.histories, *self.parts):
            rows.unpersist()


def match_exchanges(frames: DataFrame) -> Matched:
    """Match requests with their responses.

    :param frames: rows of `Frame`, as the source ``kcoord`` has them; further columns are ignored
    :raises ValueError: a column of `Frame` is missing
    """
    names = _checked_names(frames, Frame)
    recording = F.regexp_replace("source", RECORDING_FILE, "")  # a connection goes on in the next file of it
    apart = frames.select(*names, recording.alias("_recording")).repartition("_recording", "connection")
    in_order = apart.sortWithinPartitions("_recording", "connection", F.length("source"), "source", "seq")
    return Matched(in_order.select(names).mapInArrow(_match, _MATCHED).persist(StorageLevel.MEMORY_AND_DISK))


def _match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    matcher = Matcher()
    for batch in batches:
        exchanges, topics = matcher.feed(batch)
        yield from _in_column("exchange", exchanges)
        yield from _in_column("topic", topics)
    exchanges, topics = matcher.finish()
    yield from _in_column("exchange", exchanges)
    yield from _in_column("topic", topics)
    yield from _in_column("loss", table_of(Loss, matcher.losses).combine_chunks())
    yield from _in_column("frames", pa.table({"frames": pa.array([matcher.counts["frames"]], pa.int64())}))


def _in_column(kind: str, rows: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
    """Put rows into the column of their kind; the other columns are null."""
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


def group_histories(
    rows: DataFrame | Matched, *, groups: Collection[str] | None = None, judge: ClaimRules | None = None
) -> Histories:
    """Build the history of each group, with its findings.

    Frames are matched at once, because all topics have to be known before the first history is built.

    :param rows: frames (rows of `Frame`), records of ``__consumer_offsets`` or of a coordination topic of Marshal (rows
        of `LogRow`), lines of logs (rows of `LogLine`), or the result of `match_exchanges`
    :param groups: only these groups
    :param judge: the rules for logs of Marshal; those of the document if left out
    :raises ValueError: the columns are neither those of `Frame` nor of `LogRow` nor of `LogLine`
    """
    if isinstance(rows, DataFrame) and {"key", "value", "offset"} <= set(rows.columns):
        return _record_histories(rows, groups, judge or ClaimRules())
    if isinstance(rows, DataFrame) and {"kind", "program", "text"} <= set(rows.columns):
        return _text_histories(rows.select(_checked_names(rows, LogLine)), groups)
    matched = match_exchanges(rows) if isinstance(rows, DataFrame) else rows
    topics = matched.topics.toArrow()
    exchanges = _by_cluster(_only(matched.exchanges, groups), topics)
    histories = exchanges.groupBy("group_id").applyInArrow(_wire_history_of(topics), spark_schema(GroupHistory))
    return Histories(histories.persist(StorageLevel.MEMORY_AND_DISK), matched.losses)


def _by_cluster(exchanges: DataFrame, topics: pa.Table) -> DataFrame:
    """Put the cluster into the names of groups that are in several, as `rename_groups` does."""
    clusters = read_clusters(topics)
    if not clusters.are_several:
        return exchanges
    places = exchanges.select(
        "group_id", "source", F.regexp_extract("connection", BROKER, 1).alias("broker")
    ).distinct()
    keys = [(row["group_id"], (row["source"], row["broker"])) for row in places.collect()]
    names = names_by_cluster(keys, clusters)
    if not names:
        return exchanges
    rows = [(group_id, *place, name) for (group_id, place), name in names.items()]
    new = exchanges.sparkSession.createDataFrame(rows, "group_id string, source string, _broker string, _name string")
    marked = exchanges.withColumn("_broker", F.regexp_extract("connection", BROKER, 1))
    joined = marked.join(F.broadcast(new), ["group_id", "source", "_broker"], "left")
    renamed = joined.withColumn("group_id", F.coalesce("_name", "group_id"))
    return renamed.select(exchanges.columns)


def _wire_history_of(topics: pa.Table) -> Callable[[pa.Table], pa.Table]:
    """A function from the exchanges of a group to its history. It carries the topics as Arrow bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, topics.schema) as stream:
        stream.write_table(topics)
    encoded = sink.getvalue().to_pybytes()

    def history_of(exchanges: pa.Table) -> pa.Table:
        topics, sightings = _read_topics(encoded)
        exchanges = name_topics(exchanges, topics)
        return _one(group_history([exchanges], sightings))

    return history_of


@lru_cache(maxsize=1)
def _read_topics(encoded: bytes) -> tuple[pa.Table, Sightings]:
    """Decode the topics once per worker, not once per group."""
    topics = pa.ipc.open_stream(encoded).read_all()
    return topics, read_sightings(topics)


def _record_histories(records: DataFrame, groups: Collection[str] | None, judge: ClaimRules) -> Histories:
    """Histories from the logs of the coordinator, of Marshal, or of both."""
    records = records.select(_checked_names(records, LogRow))
    named = coordination_sources(records)
    if not named:
        log = _log_histories(records, groups)
        return Histories(log.histories.persist(StorageLevel.MEMORY_AND_DISK), log.losses)
    marshal = _marshal_histories(records.where(F.col("source").isin(named)), groups, judge)
    log = _log_histories(records.where(~F.col("source").isin(named)), groups)
    histories = log.histories.union(marshal.histories).persist(StorageLevel.MEMORY_AND_DISK)
    return Histories(histories, log.losses.union(marshal.losses), marshal.parts)


def _marshal_histories(records: DataFrame, groups: Collection[str] | None, judge: ClaimRules) -> Histories:
    parts = coordination_parts(records.where(F.col("error").isNull()), judge).persist(StorageLevel.MEMORY_AND_DISK)
    of_groups = _only(parts.where(F.col("loss").isNull()), groups)
    histories = of_groups.groupBy("group_id").applyInArrow(_marshal_history_of(judge), spark_schema(GroupHistory))
    losses = parts.where(F.col("loss").isNotNull()).select("loss.*").union(_losses(records))
    return Histories(histories, losses, (parts,))


def _marshal_history_of(judge: ClaimRules) -> Callable[[pa.Table], pa.Table]:
    def history_of(parts: pa.Table) -> pa.Table:
        history = marshal_history(instances(Part, parts), judge)
        history.findings = detect(history)
        return _one(history)

    return history_of


def _log_histories(records: DataFrame, groups: Collection[str] | None) -> Histories:
    sound = records.where(F.col("error").isNull())
    schema = StructType([StructField("group_id", StringType()), *sound.schema])
    named = _only(sound.mapInArrow(_name_groups, schema), groups)
    histories = named.groupBy("group_id").applyInArrow(_log_history_of, spark_schema(GroupHistory))
    return Histories(histories, _losses(records))


def _text_histories(lines: DataFrame, groups: Collection[str] | None) -> Histories:
    named = _only(lines.where(F.col("error").isNull() & F.col("group_id").isNotNull()), groups)
    histories = named.groupBy("group_id").applyInArrow(_text_history_of, spark_schema(GroupHistory))
    return Histories(histories.persist(StorageLevel.MEMORY_AND_DISK), _losses(lines))


def _text_history_of(lines: pa.Table) -> pa.Table:
    history = text_history(lines)
    history.findings = detect(history)
    return _one(history)


def _losses(records: DataFrame) -> DataFrame:
    """Rows of `Loss` for the damage among rows of `LogRow` or `LogLine`."""
    one = F.lit(1).cast("long")
    return records.where(F.col("error").isNotNull()).select(
        "source", "position", F.col("error").alias("what"), F.col("lost").alias("bytes"), one.alias("count")
    )


def _name_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        names = group_of(batch["key"])
        whole = pa.RecordBatch.from_arrays([names, *batch.columns], names=["group_id", *batch.schema.names])
        yield whole.filter(names.is_valid())


def _log_history_of(records: pa.Table) -> pa.Table:
    history = log_history(records.drop_columns(["group_id"]))
    history.findings = detect(history)
    return _one(history)


def _one(history: GroupHistory) -> pa.Table:
    batches = table_of(GroupHistory, [history]).to_batches()
    return pa.Table.from_batches([as_spark(batch, wire_schema(GroupHistory)) for batch in batches])


def _only(rows: DataFrame, groups: Collection[str] | None) -> DataFrame:
    return rows if groups is None else rows.where(F.col("group_id").isin(sorted(groups)))


def _checked_names(rows: DataFrame, row: type) -> list[str]:
    """The columns of a row type, all of which `rows` has."""
    names = spark_schema(row).names
    missing = [name for name in names if name not in rows.columns]
    if missing:
        raise ValueError(
            f"these are not rows of {row.__name__}: {', '.join(missing)} missing; "
            'spark.read.format("kcoord") reads them from captures, recordings and log segments'
        )
    return names


def explain_rebalances(rows: DataFrame | Matched | Histories) -> DataFrame:
    """Explain each rebalance: rows of `Rebalance`, with the findings about it in ``findings``.

    :param rows: the input of `group_histories`, or its result
    """
    histories = rows if isinstance(rows, Histories) else group_histories(rows)
    names = [f"rebalance.{name}" for name in spark_schema(Rebalance).names]

    def about(finding: Any) -> Any:
        return F.array_contains(finding["rebalances"], F.col("rebalance.number"))

    each = histories.histories.select(F.explode("rebalances").alias("rebalance"), "findings")
    return each.select(*names, F.filter("findings", about).alias("findings"))
