"""Growing sources as streams of what has become final: rebalances of groups, and what Marshal's topic shows.

    topic = spark.readStream.format("kafka").option("subscribe", "__consumer_offsets")...load()
    rebalance_stream(kafka_records(topic)).select("group_id", "cause", "detail").writeStream...

    frames = spark.readStream.format("kcoord").load("recorders/*/frames")
    rebalance_stream(frames).select("group_id", "cause", "detail").writeStream...

    topic = spark.readStream.format("kafka").option("subscribe", "__marshal")...load()
    coordination_stream(kafka_records(topic)).where("finding is not null").select("finding.*").writeStream...

Laws:

* All work is done by `LiveLog`, `LiveFrames` and `LiveReader` of `kcoord_wire.forensics`, one for each partition of a
  topic, or folder of a recording. Spark brings the records of a partition in the order of their offsets, the frames of
  a recording in that of its files, and keeps the state.
* Recordings are explained one by one: a group that several recorders show has its rebalances from each.
* Rows do not depend on the batches. They are for the output mode append: what has come is final.
* The state is in the checkpoint. After a restart the query goes on where it was, and its rows are those of a query that
  never stopped; each is in the output once if the sink is exactly-once, as files are. A state of a layout that this
  version does not know ends the query with a `ValueError`.
* A worker holds the state of a partition or recording, and the rows of one batch of it.

`applyInPandasWithState` keeps the state, because it is the same in Spark 3.4 to 4.3 and needs nothing else;
`transformWithState` (4.0) needs protobuf and the RocksDB state store in every session, and would hold the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import ArrayType, StructType

from kcoord_wire.forensics.exchanges.pairing import RECORDING_FILE
from kcoord_wire.forensics.live_frames import LiveFrames
from kcoord_wire.forensics.live_log import LiveLog
from kcoord_wire.forensics.marshal.live import LiveReader
from kcoord_wire.forensics.marshal.reader import COLUMNS, ClaimRules, Part
from kcoord_wire.forensics.model import Finding, Frame, LogRow, Rebalance, arrow_schema
from kcoord_wire.spark.matching import checked_names
from kcoord_wire.spark.rows import spark_schema

_STATE: Final = "state binary"
_ROW: Final = "row string"  # JSON: a nested row would have to be a data frame of pandas
_SECOND_NS: Final = 1_000_000_000
_RECORD: Final = ("source", "partition", "offset", "time_ns", "key", "value", "error")
_BY_OFFSET: Final = ("offset", "time_ns", "source")
_BY_FILE: Final = ("_length", "source", "seq")

_AS_TEXT: Final = "since_ns"  # pandas would make floats of numbers with nulls among them

_Follows = Callable[[Any, bytes | None, pd.DataFrame], tuple[list[dict[str, Any]], bytes]]
"""From a partition or recording, its state before, and its next rows in order to new rows and the state behind them."""


def rebalance_stream(rows: DataFrame, *, window_s: float = 600) -> DataFrame:
    """The rebalances of a growing ``__consumer_offsets``, or of growing recordings, in rows of `explain_rebalances`.

    :param rows: of `LogRow`, those of a partition in order: what has come in a batch is before what comes later; or of
        `Frame`, those of a recording in the same way
    :param window_s: how long after its end a rebalance is final, see `final_rebalances`
    :raises ValueError: the window is not above 0, or these are rows of neither
    """
    if not window_s > 0:
        raise ValueError(f"window_s must be above 0, not {window_s}")
    window_ns = int(window_s * _SECOND_NS)
    row = StructType([*spark_schema(Rebalance)]).add("findings", ArrayType(spark_schema(Finding)))
    if {"key", "value", "offset"} <= set(rows.columns):
        records = rows.select(checked_names(rows, LogRow)).where(F.col("error").isNull()).select(*_RECORD)
        schema = pa.schema([arrow_schema(LogRow).field(name) for name in _RECORD])
        return _rows(records, F.col("partition"), _BY_OFFSET, _follow(LiveLog, schema, window_ns), row)
    frames = rows.select(checked_names(rows, Frame)).withColumn(_AS_TEXT, F.col(_AS_TEXT).cast("string"))
    schema = arrow_schema(Frame)
    schema = schema.set(schema.get_field_index(_AS_TEXT), pa.field(_AS_TEXT, pa.string()))
    recording = F.regexp_replace("source", RECORDING_FILE, "")
    return _rows(frames, recording, _BY_FILE, _follow(LiveFrames, schema, window_ns), row)


def _follow(kind: type[LiveLog | LiveFrames], schema: pa.Schema, window_ns: int) -> _Follows:
    def follow(_: Any, state: bytes | None, rows: pd.DataFrame) -> tuple[list[dict[str, Any]], bytes]:
        live = kind(window_ns) if state is None else kind.restored(state, window_ns)
        live.read(pa.Table.from_pandas(rows[schema.names], schema, preserve_index=False))
        found = [
            {**asdict(each.rebalance), "findings": [asdict(finding) for finding in each.findings]}
            for each in live.events()
        ]
        return found, live.state

    return follow


def coordination_stream(records: DataFrame, judge: ClaimRules | None = None) -> DataFrame:
    """What a growing coordination topic shows, in rows of `Part` with one column set.

    :param records: of Marshal's topic, in rows as for `rebalance_stream`
    :param judge: the rules; those of the document if left out
    """
    rules = judge or ClaimRules()

    def follow(partition: Any, state: bytes | None, rows: pd.DataFrame) -> tuple[list[dict[str, Any]], bytes]:
        reader = LiveReader(int(partition), rules) if state is None else LiveReader.restored(state)
        for row in zip(*(rows[name].tolist() for name in COLUMNS), strict=True):
            reader.read(*row)
        return [asdict(part) for part in reader.events()], reader.state

    sound = records.where(F.col("error").isNull()).select("partition", *COLUMNS)
    return _rows(sound, F.col("partition"), _BY_OFFSET, follow, spark_schema(Part))


def _rows(rows: DataFrame, key: Column, order: Sequence[str], follow: _Follows, row: StructType) -> DataFrame:
    """What `follow` finds in the partitions or recordings that a key names, with its state kept for each."""

    def step(keys: Any, batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        come = pd.concat(list(batches)).sort_values(list(order))
        found, after = follow(keys[0], state.get[0] if state.exists else None, come)
        state.update((after,))
        yield pd.DataFrame({"row": [json.dumps(each) for each in found]})

    keyed = rows.select("*", F.length("source").alias("_length"), key.alias("_key")).groupBy("_key")
    written = keyed.applyInPandasWithState(step, _ROW, _STATE, "append", GroupStateTimeout.NoTimeout)
    return written.select(F.from_json("row", row).alias("row")).select("row.*")
