"""From frames, or records of the offsets log, to the history of each group and why it rebalanced: on Spark.

    histories = group_histories(spark.read.format("kcoord").load("captures/"))
    histories.tables["ownership"].where("member_id = 'm-1'").show()
    explain_rebalances(histories).select("group_id", "cause", "client_id", "detail").show(truncate=False)

Laws:

* All work is done by the functions of `kcoord_wire.forensics`. Spark only groups their input: the frames of a
  connection in order (across all files of a recording), the exchanges or records of a group. Partitions, batches and
  the order of the rows do not change any table.
* Frames cross to Python once, and so do exchanges: both results are persisted until `unpersist`. Exchanges and
  sightings cross packed (`packing`).
* A worker's memory has to hold the unanswered requests of a connection, and the exchanges of a bucket of groups with
  the sightings that concern them (`sightings`).
* The driver receives no row of the traffic: three sightings, the name of each topic id, and what is collected of the
  histories. That does not grow with the frames.

The coordination topic of Marshal on Spark: the claims of all groups, from an export or a topic.

    records = spark.read.format("kcoord").load("kafka-logs/")        # __marshal-*/*.log
    coordination_claims(records).where("ended = 'stale'").show()
    group_histories(records).tables["findings"].show()

* All work is done by `kcoord_wire.forensics.marshal`. Spark only brings the records of a coordination partition
  together, in the order of their offsets. Partitions, batches and the order of the rows do not change any table.
* A worker holds the live claims and the members of a coordination partition, never all its records.

Logs and recordings that grow: see `live`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from kcoord_wire.forensics.analysis import TABLES, by_group, group_history, text_group
from kcoord_wire.forensics.coded import CodedExchanges
from kcoord_wire.forensics.detectors import detect, history_of_clients
from kcoord_wire.forensics.exchanges.arrow import only_batch
from kcoord_wire.forensics.exchanges.clusters import rename_groups
from kcoord_wire.forensics.exchanges.matcher import name_topics
from kcoord_wire.forensics.marshal.claims import ORDER, marshal_history, read_parts
from kcoord_wire.forensics.marshal.reader import COLUMNS, MARSHAL_PATTERN, ClaimRules, Part
from kcoord_wire.forensics.model import (
    GroupHistory,
    LogLine,
    LogRow,
    Rebalance,
    Sighting,
    arrow_schema,
    table_of,
)
from kcoord_wire.forensics.records.reader import group_of, log_history
from kcoord_wire.forensics.wire.traffic import read_sightings
from kcoord_wire.spark.live import rebalance_stream
from kcoord_wire.spark.matching import (
    EXCHANGES,
    INTERESTS,
    KINDS,
    SIGHTING,
    SIGHTINGS,
    Matched,
    checked_names,
    match_exchanges,
)
from kcoord_wire.spark.packing import (
    BUCKETS,
    PACKED,
    Packer,
    observed,
    packed_row,
    packed_values,
    split,
    unpack,
    unpack_tables,
    unpacked,
)
from kcoord_wire.spark.rows import as_arrow, as_spark, instances, spark_schema, wire_schema
from kcoord_wire.spark.sightings import (
    INTEREST,
    KEYED,
    Overview,
    buckets_by_key,
    is_error,
    keyed,
    named_interests,
    received,
    routed,
)
from kcoord_wire.spark.workers import begin_task, memory_given_back

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PARTS: Final = 8192  # rows of a batch
_DAY_NS: Final = 86_400_000_000_000


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


@dataclass(frozen=True)
class Histories:
    """The histories of all groups.

    :ivar rows: persisted: rows of `PACKED`, one for each history, which the properties unpack
    :ivar losses: rows of `Loss`, for what could not be read
    :ivar metrics: ``metrics.get`` has the number of ``groups`` after the first action, for which it waits; like
        `Matched.metrics`
    :ivar parts: persisted, too: what the others are made of
    """

    rows: DataFrame
    losses: DataFrame
    metrics: Observation | None
    parts: tuple[DataFrame, ...] = ()

    @property
    def histories(self) -> DataFrame:
        """Rows of `GroupHistory`."""
        return self.columns("group", *_LISTS)

    @cached_property
    def tables(self) -> dict[str, DataFrame]:
        """A DataFrame for each of `TABLES`, and ``losses``."""
        tables = {name: self.columns(name).select(F.explode(name).alias("row")).select("row.*") for name in _LISTS}
        return {"groups": self.columns("group").select("group.*"), **tables, "losses": self.losses}

    @property
    def by_day(self) -> dict[str, DataFrame]:
        """The tables with a further column ``day``: the date, in UTC, on which what a row shows begins.

        ``losses`` is left out, because a loss has no time.
        """
        return {
            name: rows.withColumn("day", day_of(TABLES[name])) for name, rows in self.tables.items() if name in TABLES
        }

    def columns(self, *names: str) -> DataFrame:
        """Some columns of `histories`: the others are not unpacked."""
        schema = StructType([spark_schema(GroupHistory)[name] for name in names])
        return self.rows.mapInArrow(partial(_columns, names), schema)

    def collect(self) -> list[GroupHistory]:
        """All histories on the driver, sorted by group id."""
        rows = _collected(self.rows)
        return sorted(rows, key=lambda history: (history.group.group_id, history.group.origin))

    def unpersist(self) -> None:
        """Release the persisted rows."""
        for rows in (self.rows, *self.parts):
            rows.unpersist()


def day_of(row: type) -> Column:
    """The date, in UTC, of the first time that a row of this type always has."""
    begins = next(field.name for field in arrow_schema(row) if field.name.endswith("_ns") and not field.nullable)
    since = f"{begins} - pmod({begins}, {_DAY_NS})"  # whole days: a double would not hold the nanoseconds
    return F.expr(f"date_from_unix_date(int(({since}) div {_DAY_NS}))")


# ---- a history as one value: Arrow IPC messages, one for each table of `TABLES`, in their order

_HISTORY: Final = "history"
_LISTS: Final = tuple(TABLES)[1:]
_SCHEMAS: Final = [arrow_schema(row) for row in TABLES.values()]
_HISTORIES: Final = as_arrow(spark_schema(GroupHistory))
_EMPTY: Final = {name: pa.RecordBatch.from_pylist([], arrow_schema(row)) for name, row in TABLES.items()}


def _packed(history: GroupHistory) -> pa.RecordBatch:
    """Return a history as a row of `PACKED`."""
    rows = {"groups": [history.group], **{name: getattr(history, name) for name in _LISTS}}
    tables = (only_batch(table_of(row, rows[name])) if rows[name] else _EMPTY[name] for name, row in TABLES.items())
    return packed_row(_HISTORY, 0, *tables)


def _of_group(history_of: Callable[[pa.Table], GroupHistory]) -> Callable[[pa.Table], pa.Table]:
    """A function for the rows of a group: their history, with its findings, as a row of `PACKED`."""

    def packed(rows: pa.Table) -> pa.Table:
        history = history_of(rows)
        history.findings = detect(history)
        return pa.Table.from_batches([_packed(history)])

    return packed


def _text_group(lines: pa.Table) -> pa.Table:
    return pa.Table.from_batches([_packed(text_group(lines))])


def _tables_in(data: pa.Scalar) -> dict[str, pa.RecordBatch]:
    return dict(zip(TABLES, unpack_tables(data, _SCHEMAS), strict=True))


def _columns(names: Sequence[str], packed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([_HISTORIES.field(name) for name in names])
    for batch in packed:
        found = [_tables_in(data) for _, _, data in packed_values([batch])]
        rows = [pa.RecordBatch.from_arrays([_column(tables, name) for name in names], names) for tables in found]
        for each in pa.Table.from_batches(rows).combine_chunks().to_batches() if rows else ():
            yield as_spark(each, schema)


def _column(tables: Mapping[str, pa.RecordBatch], name: str) -> pa.Array:
    """Return one row of a column of `GroupHistory`."""
    if name == "group":
        return tables["groups"].to_struct_array()
    return pa.ListArray.from_arrays([0, len(tables[name])], tables[name].to_struct_array())


def _collected(packed: DataFrame) -> list[GroupHistory]:
    every = [_tables_in(data) for _, _, data in packed_values(packed.toArrow().to_batches())]
    rows: list[dict[str, list[Any]]]
    rows = [{name: instances(row, tables[name]) for name, row in TABLES.items()} for tables in every]
    return [GroupHistory(each["groups"][0], **{name: each[name] for name in _LISTS}) for each in rows]


def group_histories(
    rows: DataFrame | Matched, *, groups: Collection[str] | None = None, judge: ClaimRules | None = None
) -> Histories:
    """Build the history of each group, with its findings.

    Frames are matched at once, because all topics have to be known before the first history is built.

    :param rows: frames (rows of `Frame`), records of ``__consumer_offsets`` or of a coordination topic of Marshal (rows
        of `LogRow`), lines of logs (rows of `LogLine`), or the result of `match_exchanges`
    :param groups: only these groups
    :param judge: the rules for logs of Marshal; those of the document if left out
    :raises ValueError: the columns are neither those of `Frame` nor of `LogRow` nor of `LogLine`, or `GROUP_SETTING`
        is not a number
    """
    if isinstance(rows, DataFrame) and {"key", "value", "offset"} <= set(rows.columns):
        return _record_histories(rows, groups, judge or ClaimRules())
    if isinstance(rows, DataFrame) and {"kind", "program", "text"} <= set(rows.columns):
        return _text_histories(rows.select(checked_names(rows, LogLine)), groups)
    return _wire_histories(match_exchanges(rows) if isinstance(rows, DataFrame) else rows, groups)


# ---- histories of exchanges

MAX_GROUP_EXCHANGES: Final = 20_000_000
"""Exchanges that a group may have: about 4 GB in a worker. The setting `GROUP_SETTING` of the session overrides it."""

GROUP_SETTING: Final = "spark.kcoord.maxGroupExchanges"

_BUCKET_EXCHANGES: Final = 1 << 17
_TASK_BUCKETS: Final = 4  # a hash spreads them over the tasks
_HELD_ROWS: Final = 1 << 14  # exchanges that are coded at once: 5 ms, however few they are
_ROUTED: Final = "routed"
_BY_BUCKET: Final = ("bucket", "kind")


def _wire_histories(matched: Matched, groups: Collection[str] | None) -> Histories:
    overview, spark = matched.overview, matched.rows.sparkSession
    count = _buckets(spark, matched.counts[EXCHANGES])
    seen = matched.of_kind(INTERESTS, SIGHTINGS).mapInArrow(partial(_pack_by_key, overview), PACKED)
    # "interests" sorts before "sightings": a task knows who is interested in a key before the sightings come.
    met = seen.repartition("bucket").sortWithinPartitions(*_BY_BUCKET).mapInArrow(partial(_route, count), PACKED)
    exchanges = matched.of_kind(EXCHANGES).withColumn("bucket", F.col("bucket") % count)
    rows = exchanges.union(met).repartition("bucket").sortWithinPartitions(*_BY_BUCKET)
    only = None if groups is None else sorted(groups)
    most = _most(spark)
    histories = rows.mapInArrow(partial(_histories_of, overview, only, most), PACKED)
    return _kept(histories, matched.losses)


def _buckets(spark: SparkSession, exchanges: int) -> int:
    """Return how many of the buckets are apart: as few as leave little in each, and enough for all tasks.

    A bucket costs some 20 ms besides its exchanges, and receives its own copy of the sightings of a host.
    """
    tasks = int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)
    wanted = max(exchanges // _BUCKET_EXCHANGES, tasks * _TASK_BUCKETS)
    return min(BUCKETS, 1 << wanted.bit_length())


def _kept(packed: DataFrame, losses: DataFrame, *parts: DataFrame) -> Histories:
    rows, metrics = observed(packed, "histories", {"groups": _HISTORY})
    return Histories(rows.persist(StorageLevel.MEMORY_AND_DISK), losses, metrics, parts)


def _most(spark: SparkSession) -> int:
    text = spark.conf.get(GROUP_SETTING, None) or str(MAX_GROUP_EXCHANGES)
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ValueError(f"{GROUP_SETTING} must be a number of exchanges, 1 or more, not {text!r}")
    return int(text)


def _pack_by_key(overview: Overview, packed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack interests and sightings again, by their keys."""
    begin_task()
    interests, sightings = Packer(INTERESTS, INTEREST, "key"), Packer(SIGHTINGS, KEYED, "key")
    for batch in packed:
        for rows in unpacked([batch], INTERESTS, INTEREST):
            yield from interests.add(named_interests(rows, overview.by_id))
        for rows in unpacked([batch], SIGHTINGS, SIGHTING):
            yield from sightings.add(keyed(rows, overview))
    yield from interests.flush()
    yield from sightings.flush()


def _route(count: int, packed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Copy sightings to the buckets that are interested in their keys.

    :param count: how many buckets are apart
    """
    begin_task()
    pairs: list[pa.RecordBatch] = []
    wanted: dict[str, NDArray[np.int64]] = {}
    of = -1
    for bucket, kind, data in packed_values(packed):
        if bucket != of:
            of, pairs, wanted = bucket, [], {}
        if kind == INTERESTS:
            pairs.append(unpack(data, INTEREST))
            continue
        if pairs:
            wanted, pairs = buckets_by_key(pairs, count), []
        for to, rows in split(*routed(unpack(data, KEYED), wanted)):
            yield packed_row(_ROUTED, to, rows)


def _histories_of(
    overview: Overview, groups: Collection[str] | None, most: int, packed: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Build the histories of one bucket after the other, of which the exchanges come first."""
    begin_task()
    with memory_given_back():
        yield from _of_buckets(overview, groups, most, packed)


def _of_buckets(
    overview: Overview, groups: Collection[str] | None, most: int, packed: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    only = None if groups is None else pa.array(groups, pa.string())
    bucket = _Bucket(-1, most)
    for number, kind, data in packed_values(packed):
        if number != bucket.number:
            yield from _of_bucket(overview, bucket)
            bucket = _Bucket(number, most)
        if kind == EXCHANGES:
            found = unpack(data, KINDS[EXCHANGES])
            bucket.add(found if only is None else found.filter(pc.is_in(found.column("group_id"), only)))
        else:
            bucket.sightings.append(unpack(data, KEYED))
    yield from _of_bucket(overview, bucket)


class _Bucket:
    """What has come of a bucket.

    :ivar sightings: rows of `KEYED`
    """

    def __init__(self, number: int, most: int) -> None:
        self.number = number
        self.sightings: list[pa.RecordBatch] = []
        self._coded = CodedExchanges(most=most, setting=GROUP_SETTING)
        self._held: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, exchanges: pa.RecordBatch) -> None:
        """Take exchanges: a message has those of a task and a group, which may be few."""
        self._held.append(exchanges)
        self._rows += len(exchanges)
        if self._rows >= _HELD_ROWS:
            self._code()

    def exchanges(self) -> pa.Table:
        """Return all of them, coded, and forget them."""
        self._code()
        return self._coded.table()

    def _code(self) -> None:
        if self._rows:
            self._coded.add(only_batch(pa.Table.from_batches(self._held)))
        self._held, self._rows = [], 0


def _of_bucket(overview: Overview, bucket: _Bucket) -> Iterator[pa.RecordBatch]:
    rows = bucket.exchanges()
    if not len(rows):
        return
    hosts = frozenset(rows["client_host"].unique().to_pylist())
    seen = received(pa.Table.from_batches(bucket.sightings, KEYED), hosts, overview)
    rows = rename_groups(name_topics(rows, overview.names), seen)
    read = read_sightings(seen)
    for of_group in by_group(rows, rows["group_id"]):
        yield _packed(group_history(of_group, read))


def history_of_others(matched: Matched, histories: Sequence[GroupHistory]) -> GroupHistory | None:
    """Return the history of the clients that belong to no group, as `history_of_clients` does.

    One task reads all errors outside groups; the driver receives what it found.
    """
    overview = matched.overview
    if not overview.has_errors:
        return None
    members = [GroupHistory(history.group, members=history.members) for history in histories]

    def others(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(batches, wire_schema(Sighting)).cast(SIGHTING)
        found = history_of_clients(members, read_sightings(pa.concat_tables([rows, overview.names])).errors.rows)
        if found is not None:
            yield _packed(found)

    errors = matched.of_kind(SIGHTINGS).mapInArrow(_errors, spark_schema(Sighting))
    found = _collected(errors.repartition(1).mapInArrow(others, PACKED))
    return found[0] if found else None


def _errors(packed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    begin_task()
    for batch in unpacked(packed, SIGHTINGS, SIGHTING):
        yield as_spark(batch.filter(is_error(batch)), wire_schema(Sighting))


def _record_histories(records: DataFrame, groups: Collection[str] | None, judge: ClaimRules) -> Histories:
    """Histories from the logs of the coordinator, of Marshal, or of both."""
    records = records.select(checked_names(records, LogRow))
    named = coordination_sources(records)
    if not named:
        return _kept(_log_histories(records, groups), _losses(records))
    of_marshal = records.where(F.col("source").isin(named))
    others = records.where(~F.col("source").isin(named))
    histories, losses, parts = _marshal_histories(of_marshal, groups, judge)
    return _kept(_log_histories(others, groups).union(histories), _losses(others).union(losses), parts)


def _marshal_histories(
    records: DataFrame, groups: Collection[str] | None, judge: ClaimRules
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Histories as rows of `PACKED`, losses, and the persisted rows that they are made of."""
    parts = coordination_parts(records.where(F.col("error").isNull()), judge).persist(StorageLevel.MEMORY_AND_DISK)
    of_groups = _only(parts.where(F.col("loss").isNull()), groups)
    histories = of_groups.groupBy("group_id").applyInArrow(_of_group(partial(_marshal_history, judge)), PACKED)
    losses = parts.where(F.col("loss").isNotNull()).select("loss.*").union(_losses(records))
    return histories, losses, parts


def _marshal_history(judge: ClaimRules, parts: pa.Table) -> GroupHistory:
    return marshal_history(instances(Part, parts), judge)


def _log_histories(records: DataFrame, groups: Collection[str] | None) -> DataFrame:
    sound = records.where(F.col("error").isNull())
    schema = StructType([StructField("group_id", StringType()), *sound.schema])
    named = _only(sound.mapInArrow(_name_groups, schema), groups)
    return named.groupBy("group_id").applyInArrow(_of_group(_log_history), PACKED)


def _text_histories(lines: DataFrame, groups: Collection[str] | None) -> Histories:
    sound = lines.where(F.col("error").isNull()).fillna("", ["group_id"])
    named = _only(sound, None if groups is None else [*groups, ""])
    histories = named.groupBy("group_id").applyInArrow(_text_group, PACKED)
    return _kept(histories, _losses(lines))


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


def _log_history(records: pa.Table) -> GroupHistory:
    return log_history(records.drop_columns(["group_id"]))


def _only(rows: DataFrame, groups: Collection[str] | None) -> DataFrame:
    return rows if groups is None else rows.where(F.col("group_id").isin(sorted(groups)))


def explain_rebalances(rows: DataFrame | Matched | Histories) -> DataFrame:
    """Explain each rebalance: rows of `Rebalance`, with the findings about it in ``findings``.

    :param rows: the input of `group_histories`, or its result; or a stream of frames or of records of
        ``__consumer_offsets``, whose rebalances come when they are final, see `rebalance_stream`
    :raises ValueError: as `group_histories`; a stream of other rows
    """
    if isinstance(rows, DataFrame) and rows.isStreaming:
        return rebalance_stream(rows)
    histories = rows if isinstance(rows, Histories) else group_histories(rows)
    names = [f"rebalance.{name}" for name in spark_schema(Rebalance).names]

    def about(finding: Any) -> Any:
        return F.array_contains(finding["rebalances"], F.col("rebalance.number"))

    each = histories.columns("rebalances", "findings").select(F.explode("rebalances").alias("rebalance"), "findings")
    return each.select(*names, F.filter("findings", about).alias("findings"))
