"""Growing logs as streams of what has become final: rebalances of groups, and what Marshal's coordination topic shows.

    topic = spark.readStream.format("kafka").option("subscribe", "__consumer_offsets")...load()
    rebalance_stream(kafka_records(topic)).select("group_id", "cause", "detail").writeStream...

    topic = spark.readStream.format("kafka").option("subscribe", "__marshal")...load()
    coordination_stream(kafka_records(topic)).where("finding is not null").select("finding.*").writeStream...

Laws:

* All work is done by `LiveLog` and `LiveReader` of `kcoord_wire.forensics`, one for each partition of the topic. Spark
  brings the records of a partition in the order of their offsets, and keeps the state.
* Rows do not depend on the batches. They are for the output mode append: what has come is final.
* The state is in the checkpoint. After a restart the query goes on where it was, and its rows are those of a query that
  never stopped; each is in the output once if the sink is exactly-once, as files are. A state of a layout that this
  version does not know ends the query with a `ValueError`.
* A worker holds the state of a partition and the records of one batch of it.

`applyInPandasWithState` keeps the state, because it is the same in Spark 3.4 to 4.3 and needs nothing else;
`transformWithState` (4.0) needs protobuf and the RocksDB state store in every session, and would hold the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import ArrayType, StructType

from kcoord_wire.forensics.live_log import LiveLog
from kcoord_wire.forensics.marshal.live import LiveReader
from kcoord_wire.forensics.marshal.reader import COLUMNS, ClaimRules, Part
from kcoord_wire.forensics.model import Finding, LogRow, Rebalance, arrow_schema
from kcoord_wire.spark.rows import spark_schema

_STATE: Final = "state binary"
_ROW: Final = "row string"  # JSON: a nested row would have to be a data frame of pandas
_SECOND_NS: Final = 1_000_000_000
_RECORD: Final = ("source", "partition", "offset", "time_ns", "key", "value", "error")

_Follow = Callable[[int, bytes | None, pd.DataFrame], tuple[list[dict[str, Any]], bytes]]
"""From a partition, its state before, and its next records in order to new rows and the state behind them."""


def rebalance_stream(records: DataFrame, *, window_s: float = 600) -> DataFrame:
    """The rebalances of a growing ``__consumer_offsets``, in the rows of `explain_rebalances`.

    :param records: rows of `LogRow`, those of a partition in order: what has come in a batch is before what comes later
    :param window_s: how long after its end a rebalance is final, see `LiveLog`
    :raises ValueError: the window is not above 0
    """
    if not window_s > 0:
        raise ValueError(f"window_s must be above 0, not {window_s}")
    window_ns = int(window_s * _SECOND_NS)
    schema = pa.schema([arrow_schema(LogRow).field(name) for name in _RECORD])

    def follow(partition: int, state: bytes | None, rows: pd.DataFrame) -> tuple[list[dict[str, Any]], bytes]:
        log = LiveLog(window_ns) if state is None else LiveLog.restored(state, window_ns)
        log.read(pa.Table.from_pandas(rows[list(_RECORD)], schema, preserve_index=False))
        found = [
            {**asdict(each.rebalance), "findings": [asdict(finding) for finding in each.findings]}
            for each in log.events()
        ]
        return found, log.state

    row = StructType([*spark_schema(Rebalance)]).add("findings", ArrayType(spark_schema(Finding)))
    return _rows(records.where(F.col("error").isNull()).select(*_RECORD), follow, row)


def coordination_stream(records: DataFrame, judge: ClaimRules | None = None) -> DataFrame:
    """What a growing coordination topic shows, in rows of `Part` with one column set.

    :param records: as for `rebalance_stream`
    :param judge: the rules; those of the document if left out
    """
    rules = judge or ClaimRules()

    def follow(partition: int, state: bytes | None, rows: pd.DataFrame) -> tuple[list[dict[str, Any]], bytes]:
        reader = LiveReader(partition, rules) if state is None else LiveReader.restored(state)
        for row in zip(*(rows[name].tolist() for name in COLUMNS), strict=True):
            reader.read(*row)
        return [asdict(part) for part in reader.events()], reader.state

    return _rows(records.where(F.col("error").isNull()).select("partition", *COLUMNS), follow, spark_schema(Part))


def _rows(records: DataFrame, follow: _Follow, row: StructType) -> DataFrame:
    """What `follow` finds in the partitions of the topic, with its state kept for each."""

    def step(key: Any, batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        rows = pd.concat(list(batches)).sort_values(["offset", "time_ns", "source"])
        found, after = follow(int(key[0]), state.get[0] if state.exists else None, rows)
        state.update((after,))
        yield pd.DataFrame({"row": [json.dumps(each) for each in found]})

    rows = records.groupBy("partition").applyInPandasWithState(
        step, _ROW, _STATE, "append", GroupStateTimeout.NoTimeout
    )
    return rows.select(F.from_json("row", row).alias("row")).select("row.*")
