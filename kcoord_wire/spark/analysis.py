"""From files to histories on Spark, as `kcoord_wire.forensics.analysis` does it in one process.

    analysis = analyze_on_spark(["captures/"], master="spark://host:7077")

Laws:

* Histories, losses and counts equal those of the plain analysis, for any cluster.
* Frames and exchanges stay on the executors; only histories and losses come to the driver.
* A running session is used and left running; a session started here is stopped here.
* What is being done, with the numbers that are known by then, is the text of the progress, and in Spark's UI the
  description of the jobs (`_Steps`); Connect has no descriptions.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kcoord_wire.forensics.analysis import Analysis
from kcoord_wire.forensics.detectors import share_lines
from kcoord_wire.forensics.marshal.reader import ClaimRules
from kcoord_wire.forensics.model import LogRow, Loss, arrow_schema
from kcoord_wire.forensics.sources.files import Kind, Progress, Source, find_sources
from kcoord_wire.forensics.sources.live import OFFSETS_TOPIC, read_topic
from kcoord_wire.forensics.sources.segments import MAX_EXPANSION
from kcoord_wire.forensics.witnesses import join_witnesses
from kcoord_wire.spark.histories import Histories, group_histories, history_of_others
from kcoord_wire.spark.matching import Matched, match_files
from kcoord_wire.spark.rows import instances
from kcoord_wire.spark.sessions import SHORT_JVM, session
from kcoord_wire.spark.sources import register

if TYPE_CHECKING:  # it imports what Connect needs and nothing else does
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

_POLL_SECONDS: Final = 0.5
_DESCRIPTION: Final = "spark.job.description"


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
    max_expansion: int = MAX_EXPANSION,
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
    :param progress: called with what is being done, the completed tasks of the running stages, and all their tasks
    :param judge: the rules for logs of Marshal; those of the document if left out
    :param timezone: of lines whose time states none, as in ``Europe/Berlin`` or ``+02:00``
    :param max_expansion: as for `analyze`
    :raises SourceError: a path has nothing that can be read
    """
    sources = [] if kafka else find_sources(paths)
    is_new = SparkSession.getActiveSession() is None
    spark = session(master, **local_conf(master))
    try:
        register(spark)
        with tempfile.TemporaryDirectory(prefix="kcoord-topic-") as folder, _Steps(spark, progress) as steps:
            analysis = Analysis([], [], {"exchanges": 0, "records": 0, "frames": 0, "lines": 0})
            if frames := _of_kinds(sources, "pcap", "recording"):
                options = {"ports": ",".join(map(str, sorted(ports)))} if ports else {}
                steps.begin(f"matching the frames of {_shown(frames)}")
                _add_frames(analysis, match_files(spark, *_names(frames, master), **options), groups, steps)
            if kafka:
                _stage(kafka, kafka_config or {}, topic, Path(folder) / "topic.parquet", progress)
                steps.begin(f"reading the records of {topic}")
                _add_records(analysis, spark.read.parquet(folder), groups, judge, steps)
            elif logs := _of_kinds(sources, "log"):
                steps.begin(f"reading the records of {_shown(logs)}")
                _add_records(analysis, _load(spark, logs, master, maxExpansion=max_expansion), groups, judge, steps)
            if text := _of_kinds(sources, "text"):
                steps.begin(f"reading the lines of {_shown(text)}")
                _add_lines(analysis, _load(spark, text, master, timezone=timezone), groups, steps)
    finally:
        if is_new:
            spark.stop()
    analysis.histories = share_lines(join_witnesses(analysis.histories), groups)
    analysis.histories.sort(key=lambda history: (history.group.group_id, history.group.origin))
    size = sum(source.path.stat().st_size for source in sources)
    analysis.counts |= {"sources": len(sources), "bytes": size}
    return analysis


def local_conf(master: str) -> dict[str, str]:
    """The settings of a session for the analysis alone: none on a cluster, whose machines have their own.

    Rows cross the JVM packed, a few hundred of a million frames, so that compiling its code well does not pay.

    :param master: as of `session`
    """
    return {"spark.driver.extraJavaOptions": SHORT_JVM} if master.startswith("local") else {}


def _of_kinds(sources: Sequence[Source], *kinds: Kind) -> list[Source]:
    return [source for source in sources if source.kind in kinds]


def _load(spark: SparkSession, sources: Sequence[Source], master: str, **options: str | int) -> DataFrame:
    return spark.read.format("kcoord").options(**options).load(_names(sources, master))


def _names(sources: Sequence[Source], master: str) -> list[str]:
    is_local = master.startswith("local")  # executors elsewhere have another current folder
    return [str(source.path if is_local else source.path.absolute()) for source in sources]


def _shown(sources: Sequence[Source]) -> str:
    size = sum(source.path.stat().st_size for source in sources)
    return f"{len(sources):,} file{'s' if len(sources) > 1 else ''}, {size / 1e6:,.1f} MB"


def _add_frames(analysis: Analysis, matched: Matched, groups: Collection[str] | None, steps: _Steps) -> None:
    try:
        counts = matched.counts
        analysis.counts["frames"] += counts["frames"]
        analysis.counts["exchanges"] += counts["exchanges"]
        counted = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        steps.begin(f"histories of groups: {counted}")
        _add(analysis, group_histories(matched, groups=groups), has_losses=counts["losses"] > 0)
        steps.begin(f"clients without a group: {len(analysis.histories):,} groups, {counted}")
        others = history_of_others(matched, analysis.histories) if groups is None else None
        analysis.histories += [others] if others is not None else []
    finally:
        matched.unpersist()


def _add_records(
    analysis: Analysis, records: DataFrame, groups: Collection[str] | None, judge: ClaimRules | None, steps: _Steps
) -> None:
    records = records.persist()
    try:
        analysis.counts["records"] += records.where(F.col("error").isNull()).count()
        steps.begin(f"histories of groups: {analysis.counts['records']:,} records")
        _add(analysis, group_histories(records, groups=groups, judge=judge))
    finally:
        records.unpersist()


def _add_lines(analysis: Analysis, lines: DataFrame, groups: Collection[str] | None, steps: _Steps) -> None:
    lines = lines.persist()
    try:
        analysis.counts["lines"] += lines.where(F.col("error").isNull()).count()
        steps.begin(f"histories of groups: {analysis.counts['lines']:,} lines")
        _add(analysis, group_histories(lines, groups=groups))
    finally:
        lines.unpersist()


def _add(analysis: Analysis, histories: Histories, *, has_losses: bool = True) -> None:
    try:
        analysis.histories += histories.collect()
        losses = instances(Loss, histories.losses.toArrow()) if has_losses else []
        analysis.losses += sorted(losses, key=lambda loss: (loss.source, loss.position))
    finally:
        histories.unpersist()


def _stage(kafka: str, config: Mapping[str, str], topic: str, path: Path, progress: Progress | None) -> None:
    """Copy the records of a live topic to a file."""
    report = None if progress is None else partial(progress, kafka)
    with pq.ParquetWriter(path, arrow_schema(LogRow)) as writer:
        for batch in read_topic(kafka, dict(config), topic=topic, progress=report):
            writer.write_batch(batch)


class _Steps:
    """What is being done in a block: in the descriptions of Spark's jobs, and in the progress with their tasks.

    :param progress: as of `analyze_on_spark`
    """

    def __init__(self, spark: SparkSession, progress: Progress | None) -> None:
        self._spark, self._progress = spark, progress
        self._has_context = hasattr(spark, "sparkContext")  # Spark Connect has none
        self._now = "Spark"
        self._before: str | None = None
        self._finished = threading.Event()
        self._watcher = threading.Thread(target=self._poll, name="kcoord-progress", daemon=True)
        self._handler = cast("ProgressHandler", self._report)

    def __enter__(self) -> Self:
        if self._has_context:
            self._before = self._spark.sparkContext.getLocalProperty(_DESCRIPTION)
        if self._progress is not None and self._has_context:
            self._watcher.start()
        elif self._progress is not None:
            self._spark.registerProgressHandler(self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_context:
            self._describe(self._before)
        if self._progress is not None and self._has_context:
            self._finished.set()
            self._watcher.join()
        elif self._progress is not None:
            self._spark.removeProgressHandler(self._handler)

    def begin(self, what: str) -> None:
        """Say what is done from now on."""
        self._now = what
        if self._has_context:
            self._describe(what)

    def _describe(self, what: str | None) -> None:
        self._spark.sparkContext.setLocalProperty(_DESCRIPTION, cast("str", what))  # None removes it

    def _poll(self) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        while not self._finished.wait(_POLL_SECONDS):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            self._show([(stage.numCompletedTasks, stage.numTasks) for stage in known])

    def _report(self, stages: Iterable[StageInfo] | None, *rest: Any, **more: Any) -> None:
        self._show([(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()])

    def _show(self, tasks: Sequence[tuple[int, int]]) -> None:
        if tasks and self._progress is not None:
            completed, every = map(sum, zip(*tasks, strict=True))
            self._progress(self._now, completed, every)
