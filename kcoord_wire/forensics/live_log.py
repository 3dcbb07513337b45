"""One partition of ``__consumer_offsets`` that grows: rebalances as soon as they are final, for a stream.

    log = LiveLog()
    log.read(rows)                       # a table of `LogRow`, again and again
    for explained in log.events(): ...   # `Explained`: a rebalance with the findings about it

Laws:

* The rows do not depend on how the records are split among calls of `read`, and each is in one call of `events`.
* A rebalance comes once, when it is final (`final_rebalances`). Time is that of the partition's records, of whatever
  group. What is final before the end of a log is what a longer log would have said: nothing comes because a log has
  ended.
* Of the records more than two windows old each group keeps what compaction would leave of them, the newest of each key,
  and the last three commits of each partition: what a live group needs. Of a group whose records are all deleted
  nothing is kept.
* So the rows equal those of `log_history` and `detect` for a log shorter than two windows. In a longer one an earlier
  record can only be missing to what looks back further: the first join of a member in a finding, the commits before
  that. A pause that is longer than a window is not in the sum of its rebalance.
* The state is bytes of a numbered layout, which hold records as the log has them; `LiveLog.restored` refuses a layout
  that it does not know.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.detectors.rebalances import WINDOW_NS
from kcoord_wire.forensics.final_rebalances import STEPS, Awaited, Explained
from kcoord_wire.forensics.history import Place
from kcoord_wire.forensics.model import GroupHistory, Rebalance
from kcoord_wire.forensics.records.ledger import CommitTimes
from kcoord_wire.forensics.records.reader import NO_ID, LogGroup, RecordKey, decode_commits, read_key
from kcoord_wire.forensics.state import pack_state, unpack_state

_KIND: Final = "LiveLog"
_LAYOUT: Final = 1  # of the state
_HABIT: Final = 3  # commits by which `Ledger.departed` sees that a member was steady


class _Raw(NamedTuple):
    """A record of a group as the log has it; `at` is its time, or that of a record before if that is later."""

    at: int
    time_ns: int
    source: str
    offset: int
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class _Group(Awaited):
    """What is kept of one group; a place of it is the offset of a record.

    :ivar records: but for commits, in order
    :ivar commits: when each partition was committed, in order
    :ivar names: of topics, by the bytes of their ids, as commits have them
    :ivar span: times of the first and the last record
    :ivar base: offset of the last record that was compacted
    """

    records: list[_Raw] = field(default_factory=list)
    commits: dict[Place, array[int]] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)
    span: tuple[int, int] | None = None
    base: int = -1


class LiveLog:
    """Reads one partition of ``__consumer_offsets``, see the laws of the module.

    :param window_ns: after which a rebalance is final
    """

    def __init__(self, window_ns: int = WINDOW_NS) -> None:
        self._window_ns = window_ns
        self._step_ns = max(window_ns // STEPS, 1)
        self._groups: dict[str, _Group] = {}
        self._now_ns = 0
        self._last = -1  # offset of the last record
        self._events: list[Explained] = []

    @classmethod
    def restored(cls, state: bytes, window_ns: int = WINDOW_NS) -> LiveLog:
        """Return a reader that goes on from a `state`.

        :raises ValueError: another version wrote it, in a layout that this one does not know
        """
        log = cls(window_ns)
        log._now_ns, log._last, groups = unpack_state(_KIND, _LAYOUT, state)
        for name, (records, commits, names, span, due, since, base, emitted, number) in groups.items():
            kept = [_Raw(*record) for record in records]
            log._groups[name] = _Group(due, since, emitted, number, kept, commits, names, span, base)
        return log

    @property
    def state(self) -> bytes:
        """What `restored` goes on from; it holds built-in types only, so that no class is part of the layout."""
        groups = {
            name: (
                [tuple(record) for record in group.records],
                *(
                    group.commits,
                    group.names,
                    group.span,
                    group.due,
                    group.since,
                    group.base,
                    group.emitted,
                    group.number,
                ),
            )
            for name, group in self._groups.items()
        }
        return pack_state(_KIND, _LAYOUT, (self._now_ns, self._last, groups))

    def events(self) -> list[Explained]:
        """Return what has become final since the last call."""
        events, self._events = self._events, []
        return events

    def read(self, rows: pa.Table) -> None:
        """Take in the next records of the partition: rows of `LogRow` in order of their offsets.

        A record that was read before is left out, and so are damage and records without a key.
        """
        rows = rows.filter(pc.and_(pc.is_null(rows["error"]), pc.is_valid(rows["key"])))
        keys = [read_key(key) for key in rows["key"].to_pylist()]
        commits = _commits(rows, keys)
        names = ("source", "offset", "time_ns", "key", "value")
        columns = (rows[name].to_pylist() for name in names)
        for index, (key, record) in enumerate(zip(keys, zip(*columns, strict=True), strict=True)):
            source, offset, time_ns, key_bytes, value = record
            if offset <= self._last:
                continue
            self._last = offset
            self._advance(time_ns)
            if key.group is None:
                continue
            group = self._groups.setdefault(key.group, _Group())
            first, latest = group.span or (time_ns, time_ns)
            group.span = min(first, time_ns), max(latest, time_ns)
            if index in commits:
                place = key.topic, key.partition
                _insert(group.commits.setdefault(place, array("q")), time_ns)
                if commits[index]:
                    group.names.setdefault(commits[index], key.topic)
            elif key.is_read:
                at = max(time_ns, group.records[-1].at) if group.records else time_ns
                group.records.append(_Raw(at, time_ns, source, offset, key_bytes, value))
                group.expect(at)

    def _advance(self, time_ns: int) -> None:
        """Let the time of the log pass, and look for what has become final on the way."""
        if time_ns // self._step_ns > self._now_ns // self._step_ns:
            now_ns = time_ns // self._step_ns * self._step_ns
            for name, group in list(self._groups.items()):
                if group.is_due(now_ns, self._window_ns):
                    history = _history(name, group)
                    is_gone = bool(history.states) and history.states[-1].to_ns is not None
                    self._events += group.settle(history, now_ns, self._window_ns, _place, is_over=is_gone)
                if not self._trim(group, now_ns - 2 * self._window_ns):
                    del self._groups[name]
        self._now_ns = max(self._now_ns, time_ns)

    def _trim(self, group: _Group, until_ns: int) -> bool:
        """Compact what is older than `until_ns` and not awaited; return whether anything is left."""
        kept_from = until_ns if group.due is None else min(until_ns, group.since)
        old = bisect_left(group.records, kept_from, key=lambda record: record.at)
        if old:
            group.base = group.records[old - 1].offset
            group.emitted = max(group.emitted, group.base)
        newest: dict[bytes, _Raw] = {}
        for record in group.records[:old]:
            newest.pop(record.key, None)
            newest[record.key] = record
        group.records[:old] = [record for record in newest.values() if record.value is not None]
        for place, times in list(group.commits.items()):
            kept = _HABIT if group.records else 0
            del times[: max(min(bisect_left(times, until_ns), len(times) - kept), 0)]
            if not times:
                del group.commits[place]
        if group.span is not None:
            group.span = max(group.span[0], until_ns), max(group.span[1], until_ns)
        return bool(group.records or group.commits)


def _commits(rows: pa.Table, keys: list[RecordKey]) -> dict[int, bytes]:
    """Return the topic id, empty if it has none, of each sound commit, by its number in `rows`."""
    values = rows["value"].combine_chunks() if isinstance(rows["value"], pa.ChunkedArray) else rows["value"]
    known = values.is_valid().to_pylist()
    indices = [index for index, key in enumerate(keys) if key.is_commit and known[index]]
    if not indices:
        return {}
    decoded = decode_commits(values.take(pa.array(indices)), pa.array([keys[index].number for index in indices]))
    found = zip(indices, decoded["topic_id"].to_pylist(), decoded["is_bad"].to_pylist(), strict=True)
    return {index: b"" if topic_id in (None, NO_ID) else topic_id for index, topic_id, is_bad in found if not is_bad}


def _insert(times: array[int], time_ns: int) -> None:
    if times and times[-1] > time_ns:
        times.insert(bisect_left(times, time_ns), time_ns)
    else:
        times.append(time_ns)


def _history(name: str, group: _Group) -> GroupHistory:
    """Return the history of what is kept of a group, with its findings."""
    read = LogGroup(name)
    read.base = group.base
    read.span = group.span or (0, 0)
    read.names.update(group.names)
    for record in group.records:
        read.read(record.time_ns, record.source, record.offset, record.key, record.value)
    times, ranges = array("q"), {}
    for place, mine in group.commits.items():
        ranges[place] = len(times), len(times) + len(mine)
        times += mine
    read.times = CommitTimes(times, ranges)
    history = read.history()
    history.findings = detect(history)
    return history


def _place(row: Rebalance) -> int:
    """Return the offset of the record that shows the rebalance: the last one of its evidence."""
    return row.evidence[-1].seq
