"""From files to histories in one process; `kcoord_wire.spark` does the same on many.

    analysis = analyze(["cooperative.pcap"])
    for history in analysis.histories:
        for rebalance in history.rebalances:
            print(rebalance.cause, rebalance.client_id, rebalance.duration_ms)

Laws:

* The content of a file raises nothing; what could not be read is in `Analysis.losses`, with its place.
* Frames are decoded as they are read, and dropped. Exchanges are kept until the files end, because those of a group may
  be in all of them; their memory is the limit on the size of a capture here.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.coded import (
    CHUNK_ROWS,
    KINDS,
    CodedExchanges,
    coded,
    names_of,
    ranked,
    whole,
    with_own_names,
)
from kcoord_wire.forensics.detectors import clients_of, detect, history_of_clients, share_lines
from kcoord_wire.forensics.exchanges.clusters import rename_groups
from kcoord_wire.forensics.exchanges.matcher import Matcher, name_topics
from kcoord_wire.forensics.lines.wrapping import parse_zone
from kcoord_wire.forensics.model import (
    GroupHistory,
    GroupSummary,
    Lag,
    LagStatus,
    LogLine,
    LogRow,
    Loss,
    PartitionState,
    Sighting,
    arrow_schema,
    table_of,
)
from kcoord_wire.forensics.sources.files import Progress, ReadProgress, Stop, find_sources, units
from kcoord_wire.forensics.sources.frames import read_lines, read_log, read_unit
from kcoord_wire.forensics.sources.segments import MAX_EXPANSION
from kcoord_wire.forensics.wire.clocks import correct_clocks
from kcoord_wire.forensics.wire.history import place_evidence, wire_history
from kcoord_wire.forensics.wire.signs import ahead_by_source
from kcoord_wire.forensics.wire.traffic import Sightings, read_sightings
from kcoord_wire.protocol.wording import counted

if TYPE_CHECKING:
    from kcoord_wire.forensics.marshal.reader import ClaimRules

_LISTS: Final = {name: get_args(hint)[0] for name, hint in get_type_hints(GroupHistory).items() if name != "group"}
TABLES: Final[Mapping[str, type]] = {"groups": GroupSummary, **_LISTS}
"""The tables of a report: name, which is that of the Parquet file, and row type. ``losses`` is one more."""

Look = Callable[[GroupHistory, pa.Table], None]
"""Called with the history of a group, and its rows of `Exchange`, whose strings are dictionary arrays."""


@dataclass(slots=True)
class Analysis:
    """What the sources show.

    :ivar histories: one per group and origin, in order of the group ids; and one without a group (origin ``clients``)
        where clients that belong to none were refused
    :ivar losses: what could not be read, and where
    :ivar counts: ``sources``, ``bytes``, ``frames``, ``exchanges``, ``records``, ``lines``
    :ivar stopped: share of the sources that was read, from 0 to 1, where reading was stopped; None otherwise. `losses`
        say where
    :ivar left_out: groups that were not analysed since a stop came before; a row of `losses` says it
    """

    histories: list[GroupHistory]
    losses: list[Loss] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    stopped: float | None = None
    left_out: int = 0


def analyze(
    paths: Sequence[str | os.PathLike[str]],
    *,
    ports: Collection[int] | None = None,
    groups: Collection[str] | None = None,
    progress: Progress | None = None,
    look: Look | None = None,
    judge: ClaimRules | None = None,
    stop: Stop | None = None,
    timezone: str = "UTC",
    max_expansion: int = MAX_EXPANSION,
) -> Analysis:
    """Return the histories of all groups in captures, recordings, log segments and logs of brokers and clients.

    :param paths: files, folders, patterns
    :param ports: the brokers' ports, for captures; None to detect them
    :param groups: only these
    :param progress: called while the sources are read, and once at the end
    :param look: called with the history of each group on the wire and its exchanges
    :param judge: the rules for logs of Marshal; those of the document if left out
    :param stop: asked while the sources are read: whether to stop reading and analyse what was read. If it first says
        so later, the groups that were begun by then are returned
    :param timezone: of lines whose time states none, as in ``Europe/Berlin`` or ``+02:00``
    :param max_expansion: bytes that compressed batches of a segment may have for each of its bytes
    :raises SourceError: a path has nothing that can be read
    :raises ValueError: the time zone is unknown
    :raises OSError: a source cannot be read
    """
    parse_zone(timezone)
    sources = find_sources(paths)
    pace = ReadProgress(sources, progress, stop)
    matcher = Matcher()
    collected = Collected(groups, look, judge)
    frames = 0
    for unit in units(sources):
        begun = (source.path for source in unit if pace.begin(source))
        if unit[0].kind == "log":
            log = partial(read_log, max_expansion=max_expansion, goes_on=pace.goes_on)
            for batch in chain.from_iterable(map(log, begun)):
                collected.add_records(batch)
        elif unit[0].kind == "text":
            lines = partial(read_lines, timezone=timezone, goes_on=pace.goes_on)
            for batch in chain.from_iterable(map(lines, begun)):
                collected.add_lines(batch)
        else:
            for batch in read_unit(begun, is_rotated=len(unit) > 1, ports=ports, goes_on=pace.goes_on):
                frames += batch.num_rows
                collected.add_exchanges(*matcher.feed(batch))
    collected.add_exchanges(*matcher.finish())
    pace.finish()
    analysis = collected.analysis(_from_now(stop))
    analysis.losses = [*pace.losses, *matcher.losses, *analysis.losses]
    analysis.counts |= {"sources": len(sources), "bytes": pace.total, "frames": frames}
    if pace.losses:
        analysis.stopped = 1 - sum(loss.bytes for loss in pace.losses) / max(1, pace.total)
    return analysis


def analyze_frames(batches: Iterable[pa.RecordBatch], *, groups: Collection[str] | None = None) -> Analysis:
    """Return the histories of all groups in frames that are at hand, such as those of a `worlds.group.wire.Tap`.

    :param batches: rows of `Frame`, those of each connection in order
    :param groups: only these
    """
    matcher = Matcher()
    collected = Collected(groups)
    for batch in batches:
        collected.add_exchanges(*matcher.feed(batch))
    collected.add_exchanges(*matcher.finish())
    analysis = collected.analysis()
    analysis.losses = [*matcher.losses, *analysis.losses]
    return analysis


def analyze_records(
    batches: Iterable[pa.RecordBatch],
    *,
    groups: Collection[str] | None = None,
    judge: ClaimRules | None = None,
    stop: Stop | None = None,
) -> Analysis:
    """Return the histories of all groups in records of ``__consumer_offsets``, or of a coordination topic of Marshal.

    :param batches: rows of `LogRow`
    :param groups: only these
    :param judge: the rules for logs of Marshal; those of the document if left out
    :param stop: as in `analyze`
    """
    collected = Collected(groups, judge=judge)
    for batch in batches:
        if stop is not None and stop():
            break
        collected.add_records(batch)
    return collected.analysis(_from_now(stop))


def _from_now(stop: Stop | None) -> Stop | None:
    """Return what stops the analysis: a stop that came before it has ended the reading, and no more."""
    return None if stop is not None and stop() else stop


class Collected:
    """Keeps what is read until the sources end.

    :param groups: only these; None for all
    :param look: see `analyze`
    :param judge: see `analyze`
    """

    def __init__(
        self, groups: Collection[str] | None, look: Look | None = None, judge: ClaimRules | None = None
    ) -> None:
        self._look = look
        self._judge = judge
        self._groups = None if groups is None else pa.array(sorted(groups), pa.string())
        self._exchanges = CodedExchanges()
        self._topics: list[pa.RecordBatch] = []
        self._records: list[pa.RecordBatch] = []
        self._lines: list[pa.RecordBatch] = []
        self._losses: list[Loss] = []
        self._stop: Stop | None = None
        self._begun = self._left_out = 0

    def add_exchanges(self, exchanges: pa.RecordBatch, topics: pa.RecordBatch) -> None:
        """Add what `Matcher.feed` and `Matcher.finish` return."""
        if self._groups is not None:
            exchanges = exchanges.filter(pc.is_in(exchanges["group_id"], self._groups))
        self._exchanges.add(exchanges)
        self._topics.append(topics)

    def add_records(self, records: pa.RecordBatch) -> None:
        """Add a batch of `LogRow`."""
        self._records.append(self._sound(records))

    def add_lines(self, lines: pa.RecordBatch) -> None:
        """Add a batch of `LogLine`."""
        self._lines.append(self._sound(lines))

    def _sound(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows without an error, and note the others as losses."""
        for row in rows.filter(pc.is_valid(rows["error"])).to_pylist():
            self._losses.append(Loss(row["source"], row["position"], row["error"], row["lost"]))
        return rows.filter(pc.is_null(rows["error"]))

    def analysis(self, stop: Stop | None = None) -> Analysis:
        """Return all histories, with their findings.

        :param stop: asked before each group but the first: whether to leave it out, and the rest
        """
        self._stop = stop
        exchanges = self._exchanges.table()
        records = pa.Table.from_batches(self._records, arrow_schema(LogRow))
        lines = pa.Table.from_batches(self._lines, arrow_schema(LogLine))
        histories = [*self._of_wire(exchanges), *self._of_records(records)]
        if lines.num_rows:
            from kcoord_wire.forensics.witnesses import join_witnesses

            histories = join_witnesses([*histories, *self._of_text(lines)])
            histories = share_lines(histories, self._groups and self._groups.to_pylist())
        histories.sort(key=lambda history: (history.group.group_id, history.group.origin))
        counts = {"exchanges": exchanges.num_rows, "records": records.num_rows, "lines": lines.num_rows}
        if self._left_out:
            what = f"the analysis was stopped here on request: {counted(self._left_out, 'group')} left out"
            self._losses.append(Loss("all sources", 0, what, 0, self._left_out))
        return Analysis(histories, self._losses, counts, left_out=self._left_out)

    def _until_stop(self, groups: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the rows of each group until a stop, and count those behind it."""
        for rows in groups:
            if self._begun and self._stop is not None and self._stop():
                self._left_out += 1
            else:
                self._begun += 1
                yield rows

    def _of_wire(self, exchanges: pa.Table) -> list[GroupHistory]:
        topics = pa.Table.from_batches(self._topics, arrow_schema(Sighting))
        sightings = read_sightings(topics)
        found: list[GroupHistory] = []
        exchanges = rename_groups(name_topics(exchanges, topics), topics)
        for rows in self._until_stop(by_group(exchanges, exchanges["group_id"])):
            history = group_history(rows, sightings)
            if self._look is not None:
                self._look(history, rows)
            found.append(history)
        others = history_of_clients(found, sightings.errors.rows) if self._groups is None else None
        return found if others is None else [*found, others]

    def _of_records(self, records: pa.Table) -> Iterator[GroupHistory]:
        if not records.num_rows:
            return
        from kcoord_wire.forensics.marshal.claims import marshal_histories
        from kcoord_wire.forensics.marshal.reader import ClaimRules, coordination_sources
        from kcoord_wire.forensics.records.reader import group_of, log_history

        is_marshal = pc.is_in(records["source"], coordination_sources(records))
        others = records.filter(pc.invert(is_marshal))
        for rows in self._until_stop(self._wanted(others, group_of(others["key"].combine_chunks()))):
            history = log_history(rows)
            history.findings = detect(history)
            yield history
        histories, losses = marshal_histories(records.filter(is_marshal), self._judge or ClaimRules())
        self._losses += losses
        for history in histories:
            if self._groups is None or history.group.group_id in self._groups.to_pylist():
                history.findings = detect(history)
                yield history

    def _of_text(self, lines: pa.Table) -> Iterator[GroupHistory]:
        names = pc.fill_null(lines["group_id"], "")
        yield from map(text_group, self._until_stop(self._wanted(lines, names, also=[""])))

    def _wanted(
        self, rows: pa.Table, names: pa.Array | pa.ChunkedArray, also: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        """Yield the rows of each group of the analysis, and of those in `also`; parameters as in `by_group`."""
        if self._groups is not None:
            groups = pa.array([*self._groups.to_pylist(), *also], pa.string())
            wanted = pc.fill_null(pc.is_in(names, groups), False)
            names, rows = names.filter(wanted), rows.filter(wanted)
        yield from by_group(rows, names)


def group_history(batches: Iterable[pa.RecordBatch | pa.Table] | pa.Table, sightings: Sightings) -> GroupHistory:
    """Return the history of one group on the wire, with its findings and the positions of its evidence.

    Clocks of sources that differ are found and corrected first (`wire.clocks`).

    :param batches: rows of `Exchange` of the group, with the names of topics (`name_topics`); their order has no
        effect. A coded table is not copied, unless clocks are corrected
    :param sightings: of all sources
    """
    rows, clocks = correct_clocks(coded(batches))
    if clocks:
        sightings = sightings.by_clock(ahead_by_source(clocks))
    history = wire_history(rows, sightings)
    if len(rows) > CHUNK_ROWS:
        gc.collect()  # requests and joins refer to each other: 40 bytes an exchange of a group that rebalances
    history.findings = detect(history, rows, sightings.errors.of(clients_of(history)), clocks)
    place_evidence(history, rows)
    return history


def text_group(lines: pa.Table) -> GroupHistory:
    """Return the history of one group in logs, with its findings.

    :param lines: rows of `LogLine` of the group, or all that name none
    """
    from kcoord_wire.forensics.lines.history import lines_in_order, text_history

    history = text_history(lines)
    history.findings = detect(history, lines=lines_in_order(lines))
    return history


def add_lag(histories: Iterable[GroupHistory], rows: Iterable[Lag]) -> None:
    """Put rows of `sources.live.read_lag` into histories that show no lag, such as those of a log.

    With one moment for each partition, its state is OK where everything is read, and UNKNOWN elsewhere.
    """
    from kcoord_wire.forensics.records.reader import NO_ENDS

    of_group: dict[str, list[Lag]] = {}
    for row in rows:
        of_group.setdefault(row.group_id, []).append(row)
    for history in histories:
        history.lag = of_group.get(history.group.group_id, [])
        history.partitions = [_state_of(row) for row in history.lag]
        if history.lag:
            history.group.blind = [sentence for sentence in history.group.blind if sentence != NO_ENDS]


def _state_of(row: Lag) -> PartitionState:
    status = LagStatus.OK if row.lag == 0 else LagStatus.UNKNOWN
    return PartitionState(
        row.group_id,
        row.topic,
        row.partition,
        str(status),
        None,
        row.time_ns,
        row.committed_offset,
        row.fetch_offset,
        row.end_offset,
        row.lag,
        row.lag,
        row.member_id,
    )


def by_group(rows: pa.Table, groups: pa.Array | pa.ChunkedArray) -> Iterator[pa.Table]:
    """Yield the rows of each group, in order of the groups' names.

    What is yielded of a coded table has no dictionary that is longer than it: see `with_own_names`.

    :param groups: per row, its group; rows of null are left out
    """
    names = names_of(groups)
    if len(names) == 1 and not groups.null_count:
        yield rows
        return
    if not names:
        return
    ranks = whole(ranked(groups, names))
    numbers = pc.fill_null(ranks, -1).to_numpy()
    starts = np.flatnonzero(np.diff(numbers, prepend=-2))
    if len(starts) <= (len(KINDS) + 1) * (len(names) + 1):  # rows of `CodedExchanges`: no copy
        ends = [*starts[1:].tolist(), len(numbers)]
        runs: list[list[pa.Table]] = [[] for _ in names]
        for rank, start, end in zip(numbers[starts].tolist(), starts.tolist(), ends, strict=True):
            if rank >= 0:
                runs[rank].append(rows.slice(start, end - start))
        yield from (with_own_names(pa.concat_tables(each)) for each in runs)
        return
    order = pc.sort_indices(ranks)  # nulls last
    start = 0
    for run in ranks.take(order).value_counts().to_pylist():  # in order of first appearance
        if run["values"] is not None:
            yield with_own_names(rows.take(order.slice(start, run["counts"])))
        start += run["counts"]


def tables_of(histories: Iterable[GroupHistory], losses: Iterable[Loss] = ()) -> dict[str, pa.Table]:
    """Return the tables of a report, by name."""
    rows: dict[str, list[Any]] = {name: [] for name in TABLES}
    for history in histories:
        rows["groups"].append(history.group)
        for name in _LISTS:
            rows[name] += getattr(history, name)
    tables = {name: table_of(TABLES[name], rows[name]) for name in TABLES}
    return {**tables, "losses": table_of(Loss, list(losses))}


def write_tables(histories: Iterable[GroupHistory], losses: Iterable[Loss], folder: Path) -> list[Path]:
    """Write each table as ``NAME.parquet``, replacing existing files, and return the files.

    :raises OSError: one cannot be written; the tables before it are complete, and nothing of this one remains
    """
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in tables_of(histories, losses).items():
        path = folder / f"{name}.parquet"
        part = path.with_suffix(".part")
        try:
            with part.open("wb") as file:  # opened here because Python's errors name the file and Arrow's do not
                pq.write_table(table, file)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        written.append(path)
    return written
