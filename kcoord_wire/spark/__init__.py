"""The pipeline on Spark: frames into columns, captures, recordings and logs as sources, histories of groups.

    spark = session("local[4]")
    register(spark)
    frames = spark.read.format("kcoord").load("captures/")
    decode_frames(frames, apis=["JoinGroup"], columns=["group_id", "reason"], flat=True).show()
    explain_rebalances(frames).select("group_id", "cause", "client_id", "detail").show(truncate=False)

Spark (4.2 or newer), pyarrow and pandas come with the extra ``spark``. On a cluster every worker needs pyarrow, and
this package, which `package_archive` makes into a file that travels. What fits one machine needs no Spark: see
`kcoord_wire.forensics.analysis`.
"""

from kcoord_wire.extras import require

require("pyspark", "spark", "kcoord_wire.spark")
require("pandas", "spark", "kcoord_wire.spark")

from kcoord_wire.spark.archive import package_archive, submit_conf  # noqa: E402
from kcoord_wire.spark.decode import BadFrameError, decode_frames, from_kafka_wire  # noqa: E402
from kcoord_wire.spark.files import convert_parquet, decode_parquet  # noqa: E402
from kcoord_wire.spark.session import session, spark_conf  # noqa: E402
from kcoord_wire.spark.sources import register  # noqa: E402
from kcoord_wire.spark.timelines import (  # noqa: E402
    Matched,
    Timeline,
    explain_rebalances,
    group_timeline,
    match_exchanges,
)

__all__ = [
    "BadFrameError",
    "Matched",
    "Timeline",
    "convert_parquet",
    "decode_frames",
    "decode_parquet",
    "explain_rebalances",
    "from_kafka_wire",
    "group_timeline",
    "match_exchanges",
    "package_archive",
    "register",
    "session",
    "spark_conf",
    "submit_conf",
]
