"""The coordination topic of Marshal as a stream: claims, pauses and findings as they become final.

    topic = spark.readStream.format("kafka").option("subscribe", "__marshal")...load()
    events = coordination_stream(kafka_records(topic))
    events.where("finding is not null").select("finding.*").writeStream...

Laws:

* The state of each coordination partition is in the checkpoint. After a restart the query goes on where it was, and its
  rows are those of a query that never stopped; what a sink does with them is the sink's guarantee.
* The rows do not depend on how the records are split into batches; see `kcoord_wire.forensics.marshal.live`.
* A checkpoint is read by the version of this package that wrote it, because the state is pickled.
* A worker holds the state of a coordination partition and its records of one batch.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from kcoord_wire.forensics.marshal.live import LiveReader
from kcoord_wire.forensics.marshal.parts import Judge, Part
from kcoord_wire.forensics.marshal.reader import COLUMNS
from kcoord_wire.spark.rows import spark_schema

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
