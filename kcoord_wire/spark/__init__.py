"""The pipeline on Spark: frames into columns; captures, recordings and logs as sources; histories of groups.

    spark = session("local[4]")
    register(spark)
    frames = spark.read.format("kcoord").load("captures/")
    decode_frames(frames, apis=["JoinGroup"], columns=["group_id", "reason"], flat=True).show()
    explain_rebalances(frames).select("group_id", "cause", "client_id", "detail").show(truncate=False)

Spark, pyarrow and pandas come with the extra ``spark``; `versions` has what differs from Spark 3.5 to 4.3. On a cluster
every worker needs pyarrow and this package, which `package_archive` writes into one file. Sources that fit one machine
need no Spark: see `kcoord_wire.forensics.analysis`.

Names are imported on first use. To add an option of a source: `sources`; of a stream: `streams`; of the decoding of a
column: `decode`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from kcoord_wire.extras import MissingLibraryError, require
from kcoord_wire.lazy_names import lazy_names

if TYPE_CHECKING:
    from kcoord_wire.spark.decode import BadFrameError, decode_frames, from_kafka_wire
    from kcoord_wire.spark.files import convert_parquet, decode_parquet, package_archive, submit_conf
    from kcoord_wire.spark.histories import (
        Histories,
        coordination_claims,
        explain_rebalances,
        group_histories,
        kafka_records,
    )
    from kcoord_wire.spark.live import coordination_stream, rebalance_stream
    from kcoord_wire.spark.matching import Matched, match_exchanges, match_files
    from kcoord_wire.spark.sessions import session, spark_conf
    from kcoord_wire.spark.sources import register

__all__ = [
    "BadFrameError",
    "Histories",
    "Matched",
    "convert_parquet",
    "coordination_claims",
    "coordination_stream",
    "decode_frames",
    "decode_parquet",
    "explain_rebalances",
    "from_kafka_wire",
    "group_histories",
    "kafka_records",
    "match_exchanges",
    "match_files",
    "package_archive",
    "rebalance_stream",
    "register",
    "session",
    "spark_conf",
    "submit_conf",
]

require("pyspark", "spark", "kcoord_wire.spark")
if find_spec("pandas") is None:  # its import takes longer than all others together, and most workers do not need it
    raise MissingLibraryError("pandas", "spark", "kcoord_wire.spark")

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "decode": ("BadFrameError", "decode_frames", "from_kafka_wire"),
        "files": ("convert_parquet", "decode_parquet", "package_archive", "submit_conf"),
        "histories": (
            *("Histories", "coordination_claims", "explain_rebalances"),
            *("group_histories", "kafka_records"),
        ),
        "live": ("coordination_stream", "rebalance_stream"),
        "matching": ("Matched", "match_exchanges", "match_files"),
        "sessions": ("session", "spark_conf"),
        "sources": ("register",),
    },
)
