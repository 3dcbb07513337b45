"""The coordination topic of Marshal on Spark: the claims of all groups, from an export, a live topic or a stream.

    records = spark.read.format("kcoord").load("kafka-logs/")        # __marshal-*/*.log
    coordination_claims(records).where("ended = 'stale'").show()
    group_histories(records).tables["findings"].show()

    topic = spark.readStream.format("kafka").option("subscribe", "__marshal")...load()
    events = coordination_stream(kafka_records(topic))               # claims, pauses, findings as they become final
    events.where("finding is not null").select("finding.*").writeStream...

Laws:

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
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from kcoord_wire.forensics.marshal.history import ORDER, read_parts
from kcoord_wire.forensics.marshal.live import LiveReader
from kcoord_wire.forensics.marshal.parts import Judge, Part
from kcoord_wire.forensics.marshal.reader import COLUMNS
from kcoord_wire.forensics.marshal.recognition import MARSHAL_PATTERN
from kcoord_wire.forensics.model import table_of
from kcoord_wire.spark.rows import as_spark, spark_schema, wire_schema

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


def coordination_claims(records: DataFrame, judge: Judge | None = None) -> DataFrame:
    """The claims of all groups: rows of `ClaimRow`.

    :param records: rows of `LogRow`, all of them of a coordination topic
    :param judge: the rules; those of the document if left out
    """
    parts = coordination_parts(records, judge or Judge(), has_commits=False)
    return parts.where(F.col("claim").isNotNull()).select("claim.*")


def coordination_parts(records: DataFrame, judge: Judge, *, has_commits: bool = True) -> DataFrame:
    """What each coordination partition shows, in rows of `Part`."""
    home = F.when(F.col("partition") < 0, F.col("source")).otherwise("").alias("home")
    rows = records.select("partition", home, *COLUMNS).repartition("partition", "home")
    return rows.sortWithinPartitions(*ORDER).mapInArrow(_parts_of(judge, has_commits), spark_schema(Part))


def _parts_of(judge: Judge, has_commits: bool) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
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


def coordination_stream(records: DataFrame, judge: Judge | None = None) -> DataFrame:
    """What a growing coordination topic shows, in rows of `Part` with one column set; for the output mode append.

    :param records: rows of `LogRow`, those of a coordination partition in order: what has come in a batch is before
        what comes in later ones
    :param judge: the rules; those of the document if left out
    """
    sound = records.where(F.col("error").isNull()).select("partition", *COLUMNS)
    rows = sound.groupBy("partition").applyInPandasWithState(
        _step(judge or Judge()), _ROW, _STATE, "append", GroupStateTimeout.NoTimeout
    )
    return rows.select(F.from_json("row", spark_schema(Part)).alias("part")).select("part.*")


def _step(judge: Judge) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    def step(key: Any, batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        reader = pickle.loads(state.get[0]) if state.exists else LiveReader(int(key[0]), judge)
        rows = pd.concat(list(batches)).sort_values(["offset", "time_ns", "source"])
        for row in zip(*(rows[name].tolist() for name in COLUMNS), strict=True):
            reader.read(*row)
        found = [json.dumps(asdict(part)) for part in reader.events()]
        state.update((pickle.dumps(reader),))
        yield pd.DataFrame({"row": found})

    return step
