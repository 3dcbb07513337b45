"""From files to histories on Spark, as `kcoord_wire.forensics.analysis` does it in one process.

    analysis = analyze_on_spark(["captures/"], master="spark://host:7077")

Laws:

* Histories, losses and counts equal those of the plain analysis, for any cluster.
* Frames and exchanges stay on the executors; only histories and losses come to the driver.
* A running session is used and left running; a session started here is stopped here.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kcoord_wire.forensics.analysis import Analysis
from kcoord_wire.forensics.lines.history import join_witnesses
from kcoord_wire.forensics.marshal.reader import ClaimRules
from kcoord_wire.forensics.model import LogRow, Loss, arrow_schema
from kcoord_wire.forensics.sources.files import Kind, Progress, Source, find_sources
from kcoord_wire.forensics.sources.live import OFFSETS_TOPIC, read_topic
from kcoord_wire.spark.histories import Histories, group_histories, history_of_others
from kcoord_wire.spark.matching import Matched, match_files
from kcoord_wire.spark.rows import instances
from kcoord_wire.spark.sessions import session
from kcoord_wire.spark.sources import register

if TYPE_CHECKING:  # it imports what Connect needs and nothing else does
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

_POLL_SECONDS: Final = 0.5


def analyze_on_spark(
    paths: Sequence[str | os.PathLike[str]],
    *,
    kafka: str | None = None,
    kafka_config: Mapping[str, str] | None = None,
    topic: str = OFFSETS_TOPIC,
    master: str = "local[*]",
    ports: Collection[int] | None = None,
    groups: Collection[str] | None = None,
    progress: Progress | None = None,
    judge: ClaimRules | None = None,
    timezone: str = "UTC",
) -> Analysis:
    """The histories of all groups in captures, recordings, log segments and logs of text, or in a live topic.

    :param paths: files, folders, patterns; every executor needs access to them
    :param kafka: ``host:port`` of a cluster of which `topic` is read instead. The driver copies it to a temporary
        folder, which executors need access to as well
    :param kafka_config: settings of librdkafka for `kafka`
    :param topic: ``__consumer_offsets``, or a coordination topic of Marshal
    :param master: Spark's master URL, if no session runs yet
    :param ports: the brokers' ports, for captures; None finds them
    :param groups: only these groups
    :param progress: called with the name of the stage, its completed tasks and all its tasks
    :param judge: the rules for logs of Marshal; those of the document if left out
    :param timezone: of lines whose time states none, as in ``Europe/Berlin`` or ``+02:00``
    :raises SourceError: a path has nothing that can be read
    """
    sources = [] if kafka else find_sources(paths)
    is_new = SparkSession.getActiveSession() is None
    spark = session(master)
    try:
        register(spark)
        with tempfile.TemporaryDirectory(prefix="kcoord-topic-") as folder, _watched(spark, progress):
            analysis = Analysis([], [], {"exchanges": 0, "records": 0, "frames": 0, "lines": 0})
            if frames := _of_kinds(sources, "pcap", "recording"):
                options = {"ports": ",".join(map(str, sorted(ports)))} if ports else {}
                _add_frames(analysis, match_files(spark, *_names(frames, master), **options), groups)
            if kafka:
                _stage(kafka, kafka_config or {}, topic, Path(folder) / "topic.parquet", progress)
                _add_records(analysis, spark.read.parquet(folder), groups, judge)
            elif logs := _of_kinds(sources, "log"):
                _add_records(analysis, _load(spark, logs, master), groups, judge)
            if text := _of_kinds(sources, "text"):
                _add_lines(analysis, _load(spark, text, master, timezone), groups)
    finally:
        if is_new:
            spark.stop()
    analysis.histories = join_witnesses(analysis.histories)
    analysis.histories.sort(key=lambda history: (history.group.group_id, history.group.origin))
    size = sum(source.path.stat().st_size for source in sources)
    analysis.counts |= {"sources": len(sources), "bytes": size}
    return analysis


def _of_kinds(sources: Sequence[Source], *kinds: Kind) -> list[Source]:
    return [source for source in sources if source.kind in kinds]


def _load(spark: SparkSession, sources: Sequence[Source], master: str, timezone: str = "UTC") -> DataFrame:
    return spark.read.format("kcoord").option("timezone", timezone).load(_names(sources, master))


def _names(sources: Sequence[Source], master: str) -> list[str]:
    is_local = master.startswith("local")  # executors elsewhere have another current folder
    return [str(source.path if is_local else source.path.absolute()) for source in sources]


def _add_frames(analysis: Analysis, matched: Matched, groups: Collection[str] | None) -> None:
    try:
        counts = matched.counts
        analysis.counts["frames"] += counts["frames"]
        analysis.counts["exchanges"] += counts["exchanges"]
        _add(analysis, group_histories(matched, groups=groups))
        others = history_of_others(matched, analysis.histories) if groups is None else None
        analysis.histories += [others] if others is not None else []
    finally:
        matched.unpersist()


def _add_records(
    analysis: Analysis, records: DataFrame, groups: Collection[str] | None, judge: ClaimRules | None
) -> None:
    records = records.persist()
    try:
        analysis.counts["records"] += records.where(F.col("error").isNull()).count()
        _add(analysis, group_histories(records, groups=groups, judge=judge))
    finally:
        records.unpersist()


def _add_lines(analysis: Analysis, lines: DataFrame, groups: Collection[str] | None) -> None:
    lines = lines.persist()
    try:
        analysis.counts["lines"] += lines.where(F.col("error").isNull()).count()
        _add(analysis, group_histories(lines, groups=groups))
    finally:
        lines.unpersist()


def _add(analysis: Analysis, histories: Histories) -> None:
    try:
        analysis.histories += histories.collect()
        losses = instances(Loss, histories.losses.toArrow())
        analysis.losses += sorted(losses, key=lambda loss: (loss.source, loss.position))
    finally:
        histories.unpersist()


def _stage(kafka: str, config: Mapping[str, str], topic: str, path: Path, progress: Progress | None) -> None:
    """Copy the records of a live topic to a file."""
    report = None if progress is None else partial(progress, kafka)
    with pq.ParquetWriter(path, arrow_schema(LogRow)) as writer:
        for batch in read_topic(kafka, dict(config), topic=topic, progress=report):
            writer.write_batch(batch)


@contextmanager
def _watched(spark: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Report the completed tasks of the active stages while the block runs."""
    if progress is None:
        yield
        return
    if not hasattr(spark, "sparkContext"):  # Spark Connect, whose server tells the client
        with _told(spark, progress):
            yield
        return
    finished = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def poll() -> None:
        while not finished.wait(_POLL_SECONDS):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                tasks = sum(stage.numTasks for stage in known)
                progress(known[0].name.partition(" at ")[0], sum(stage.numCompletedTasks for stage in known), tasks)

    watcher = threading.Thread(target=poll, name="kcoord-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


@contextmanager
def _told(spark: SparkSession, progress: Progress) -> Iterator[None]:
    """Report the completed tasks of each query while the block runs."""

    def report(stages: Iterable[StageInfo] | None, *rest: Any, **more: Any) -> None:
        known = list(stages or ())
        if known:
            progress("Spark", sum(each.num_completed_tasks for each in known), sum(each.num_tasks for each in known))

    handler = cast("ProgressHandler", report)
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)
