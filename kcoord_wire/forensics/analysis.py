"""From files to histories in one process: what kcoord_wire.spark does on many.

    analysis = analyze(["cooperative.pcap"])
    for history in analysis.histories:
        for rebalance in history.rebalances:
            print(rebalance.cause, rebalance.client_id, rebalance.duration_ms)

Laws:

* Whatever is in the files, an analysis comes out; what could not be read is in `Analysis.losses`, with its place.
* Frames are decoded as they are read, and dropped. Exchanges are kept until the files end, for a group's may be in all
  of them: that is what bounds the size of a capture here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.exchanges.matcher import Matcher, name_topics
from kcoord_wire.forensics.log.history import group_of, log_history
from kcoord_wire.forensics.model import (
    CommitRow,
    Exchange,
    Finding,
    Generation,
    GroupHistory,
    GroupSummary,
    LogRow,
    Loss,
    MemberLife,
    Ownership,
    Pause,
    Rebalance,
    StateInterval,
    TopicSighting,
    arrow_schema,
    table_of,
)
from kcoord_wire.forensics.sources.frames import find_sources, read_frames, read_log
from kcoord_wire.forensics.wire.history import wire_history
from kcoord_wire.forensics.wire.traffic import read_sightings

__all__ = ["TABLES", "Analysis", "Progress", "analyze", "analyze_records", "by_group", "tables_of", "write_tables"]

TABLES: Mapping[str, type] = {
    "groups": GroupSummary,
    "rebalances": Rebalance,
    "generations": Generation,
    "states": StateInterval,
    "members": MemberLife,
    "ownership": Ownership,
    "pauses": Pause,
    "commits": CommitRow,
    "findings": Finding,
}
"""The tables of a report: name, which is that of the Parquet file, and row type. ``losses`` is one more."""

Progress = Callable[[str, int, int], None]
"""Is told the source, how many bytes of all sources are done, and how many there are."""


@dataclass(slots=True)
class Analysis:
    """What the sources told.

    :ivar histories: a group each, in order of their ids
    :ivar losses: what could not be read, and where
    :ivar counts: ``sources``, ``bytes``, ``frames``, ``exchanges``, ``records``
    """

    histories: list[GroupHistory]
    losses: list[Loss] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def analyze(
    paths: Sequence[str | os.PathLike[str]],
    *,
    ports: Collection[int] | None = None,
    groups: Collection[str] | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """The histories of all groups in captures, recordings and log segments: files, folders, patterns.

    :param ports: the brokers' ports, for captures; None finds them
    :param groups: only these
    :raises SourceError: a path has nothing that can be read
    """
    sources = find_sources(paths)
    total = sum(source.path.stat().st_size for source in sources)
    matcher = Matcher()
    told = Collected(groups)
    done = frames = 0
    for source in sources:
        size = source.path.stat().st_size
        if progress is not None:
            progress(source.path.name, done, total)
        if source.kind == "log":
            for batch in read_log(source.path):
                told.add_records(batch)
        else:
            for batch in read_frames(source.path, ports=ports):
                frames += batch.num_rows
                told.add_exchanges(*matcher.feed(batch))
                if progress is not None and source.kind == "recording" and batch.num_rows:
                    progress(source.path.name, done + min(size, batch["position"][-1].as_py()), total)
        done += size
    told.add_exchanges(*matcher.finish())
    if progress is not None:
        progress("", total, total)
    analysis = told.analysis()
    analysis.losses = [*matcher.losses, *analysis.losses]
    analysis.counts |= {"sources": len(sources), "bytes": total, "frames": frames}
    return analysis


def analyze_records(batches: Iterable[pa.RecordBatch], *, groups: Collection[str] | None = None) -> Analysis:
    """The histories of all groups in records of ``__consumer_offsets``: batches of `LogRow`."""
    told = Collected(groups)
    for batch in batches:
        told.add_records(batch)
    return told.analysis()


class Collected:
    """What was read, until all of it was."""

    def __init__(self, groups: Collection[str] | None) -> None:
        self._groups = None if groups is None else pa.array(sorted(groups), pa.string())
        self._exchanges: list[pa.RecordBatch] = []
        self._topics: list[pa.RecordBatch] = []
        self._records: list[pa.RecordBatch] = []
        self._losses: list[Loss] = []

    def add_exchanges(self, exchanges: pa.RecordBatch, topics: pa.RecordBatch) -> None:
        """What `Matcher.feed` and `Matcher.finish` give."""
        if self._groups is not None:
            exchanges = exchanges.filter(pc.is_in(exchanges["group_id"], self._groups))
        self._exchanges.append(exchanges)
        self._topics.append(topics)

    def add_records(self, records: pa.RecordBatch) -> None:
        """A batch of `LogRow`."""
        for row in records.filter(pc.is_valid(records["error"])).to_pylist():
            self._losses.append(Loss(row["source"], row["position"], row["error"], row["lost"]))
        self._records.append(records.filter(pc.is_null(records["error"])))

    def analysis(self) -> Analysis:
        """All histories, with their findings."""
        histories = []
        exchanges = pa.Table.from_batches(self._exchanges, arrow_schema(Exchange))
        topics = pa.Table.from_batches(self._topics, arrow_schema(TopicSighting))
        sightings = read_sightings(topics)
        for rows in by_group(name_topics(exchanges, topics), exchanges["group_id"]):
            history = wire_history(rows, sightings)
            history.findings = detect(history, rows)
            histories.append(history)
        records = pa.Table.from_batches(self._records, arrow_schema(LogRow))
        names = group_of(records["key"].combine_chunks()) if records.num_rows else pa.array([], pa.string())
        if self._groups is not None:
            wanted = pc.fill_null(pc.is_in(names, self._groups), False)
            names, records = names.filter(wanted), records.filter(wanted)
        for rows in by_group(records, names):
            history = log_history(rows)
            history.findings = detect(history)
            histories.append(history)
        histories.sort(key=lambda history: (history.group.group_id, history.group.origin))
        counts = {"exchanges": exchanges.num_rows, "records": records.num_rows}
        return Analysis(histories, self._losses, counts)


def by_group(rows: pa.Table, groups: pa.Array | pa.ChunkedArray) -> Iterator[pa.Table]:
    """The rows of each group, in order of the groups' names. Rows of no group are left out."""
    order = pc.sort_indices(pa.table({"group": groups}), sort_keys=[("group", "ascending")])
    start = 0
    for run in groups.take(order).value_counts().to_pylist():  # in order of first appearance
        if run["values"] is not None:
            yield rows.take(order.slice(start, run["counts"]))
        start += run["counts"]


def tables_of(histories: Iterable[GroupHistory], losses: Iterable[Loss] = ()) -> dict[str, pa.Table]:
    """The tables of a report, by name."""
    rows: dict[str, list[Any]] = {name: [] for name in TABLES}
    lists = {item.name for item in fields(GroupHistory)} - {"group"}
    for history in histories:
        rows["groups"].append(history.group)
        for name in lists:
            rows[name] += getattr(history, name)
    tables = {name: table_of(TABLES[name], rows[name]) for name in TABLES}
    return {**tables, "losses": table_of(Loss, list(losses))}


def write_tables(histories: Iterable[GroupHistory], losses: Iterable[Loss], folder: Path) -> list[Path]:
    """Write each table as ``NAME.parquet``, replacing what was there; the files.

    :raises OSError: one cannot be written; those before it are there, and of this one nothing
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in tables_of(histories, losses).items():
        path = folder / f"{name}.parquet"
        part = path.with_suffix(".part")
        try:
            with part.open("wb") as file:  # Python's errors name the file; Arrow's are sentences of their own
                pq.write_table(table, file)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        written.append(path)
    return written
