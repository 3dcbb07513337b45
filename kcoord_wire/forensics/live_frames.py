"""One recording that grows: rebalances as soon as they are final, for a stream.

    frames = LiveFrames()
    frames.read(rows)                       # a table of `Frame`, again and again
    for explained in frames.events(): ...   # `Explained`: a rebalance with the findings about it

Laws:

* The rows do not depend on how the frames are split among calls of `read`, and each is in one call of `events`.
* A rebalance comes once, when it is final (`final_rebalances`). Time is that of the recording's frames, of whatever
  group; one that comes late (from a file that was copied late) counts for its group and leaves the time as it is.
  Nothing comes because the frames end.
* Matching, histories and findings are those of the batch, so that the rows equal it for a recording shorter than two
  windows, except for what goes on when a rebalance is emitted: a pause that has not ended, lag that grows, and a
  finding that counts more rebalances later are emitted as they are then. (The batch also samples lag the more coarsely,
  the longer its sources are: `wire.lag`.)
* Of the exchanges more than two windows old, and not awaited, those are kept that say who the members are: of each the
  newest of every kind. Of the sightings, the sizes and ids of topics as each client learnt them last. Of a group of
  which nothing is heard any more the number of its last rebalance is kept, for `FORGOTTEN_NS`; of a connection, what
  the matcher remembers, for `IDLE_NS`.
* So in a longer recording only what looks back further can be missing: earlier commits, a member's first join.
* A recorder stands before one cluster: its groups differ by their names.
* The state is bytes of a numbered layout, with rows of the pipeline's types and built-in types; `LiveFrames.restored`
  refuses a layout that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.analysis import by_group, group_history
from kcoord_wire.forensics.coded import coded
from kcoord_wire.forensics.detectors.rebalances import WINDOW_NS
from kcoord_wire.forensics.exchanges.arrow import joined, only_batch
from kcoord_wire.forensics.exchanges.matcher import Matcher, name_topics
from kcoord_wire.forensics.exchanges.pairing import connection_codes
from kcoord_wire.forensics.final_rebalances import STEPS, Awaited, Explained
from kcoord_wire.forensics.model import (
    EPOCH_APIS,
    NS_PER_MS,
    Exchange,
    GroupHistory,
    Rebalance,
    Sighting,
    SightingKind,
    arrow_schema,
    client_host,
)
from kcoord_wire.forensics.state import pack_rows, pack_state, unpack_rows, unpack_state
from kcoord_wire.forensics.wire.traffic import Sightings, read_sightings

IDLE_NS: Final = 3600 * 1_000_000_000
"""After this time without a frame a connection is forgotten: brokers close them after ten minutes by default."""

FORGOTTEN_NS: Final = 7 * 24 * IDLE_NS
"""After this time without an exchange a group is forgotten: brokers do so by default, with its offsets."""

_KIND: Final = "LiveFrames"
_LAYOUT: Final = 1  # of the state, which has `Matcher.state` in it
_CHANGING: Final = pa.array(["JoinGroup", "SyncGroup", *EPOCH_APIS])
_SHOWING: Final = (SightingKind.TOPIC, SightingKind.CLOSED, SightingKind.RESET)
_ANSWERS: Final = ("assignment", "topics", "owned")  # that some exchanges of one api have


@dataclass(slots=True)
class _Group(Awaited):
    """What is known of one group; a place of it is the time at which a rebalance began.

    :ivar members: that it had since the beginning of what was kept when it was looked at
    :ivar heard_ns: when it was asked for last
    """

    members: frozenset[str] = frozenset()
    heard_ns: int = 0


class _Steps:
    """Rows by the step of time in which they came; of those before, what is kept.

    :ivar kept: of the steps that are over
    :ivar recent: the other steps, by number, in order
    """

    def __init__(self, row: type, kept: pa.RecordBatch | None = None) -> None:
        self._row, self._schema = row, arrow_schema(row)
        self.kept = joined([], self._schema) if kept is None else kept
        self.recent: dict[int, pa.RecordBatch] = {}

    @classmethod
    def restored(cls, row: type, state: tuple[bytes, int, dict[int, int]]) -> _Steps:
        packed, start, sizes = state
        rows = unpack_rows(row, packed)
        steps = cls(row, rows.slice(0, start))
        for step, size in sizes.items():
            steps.recent[step] = rows.slice(start, size)
            start += size
        return steps

    @property
    def state(self) -> tuple[bytes, int, dict[int, int]]:
        """All rows in one batch, whose description would take more than the rows of a calm step."""
        sizes = {step: len(rows) for step, rows in self.recent.items()}
        return pack_rows(self._row, joined(list(self.batches()), self._schema)), len(self.kept), sizes

    def add(self, step: int, rows: pa.RecordBatch) -> None:
        if len(rows):
            before = self.recent.get(step)
            self.recent[step] = rows if before is None else joined([before, rows], self._schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield self.kept
        yield from self.recent.values()

    def taken(self, until: int) -> pa.RecordBatch:
        """Return the rows that are kept and those of the steps before `until`, which are over."""
        over = [self.recent.pop(step) for step in list(self.recent) if step < until]
        return joined([self.kept, *over], self._schema)


class LiveFrames:
    """Reads one recording, see the laws of the module.

    :param window_ns: after which a rebalance is final
    """

    def __init__(self, window_ns: int = WINDOW_NS) -> None:
        self._window_ns = window_ns
        self._step_ns = max(window_ns // STEPS, 1)
        self._matcher = Matcher()
        self._exchanges, self._sightings = _Steps(Exchange), _Steps(Sighting)
        self._groups: dict[str, _Group] = {}
        self._heard: dict[tuple[str, str], int] = {}  # when each connection was
        self._now_ns = 0
        self._events: list[Explained] = []

    @classmethod
    def restored(cls, state: bytes, window_ns: int = WINDOW_NS) -> LiveFrames:
        """Return a reader that goes on from a `state`.

        :raises ValueError: another version wrote it, in a layout that this one does not know
        """
        frames = cls(window_ns)
        frames._now_ns, frames._heard, matcher, exchanges, sightings, groups = unpack_state(_KIND, _LAYOUT, state)
        frames._matcher = Matcher.restored(matcher)
        frames._exchanges = _Steps.restored(Exchange, exchanges)
        frames._sightings = _Steps.restored(Sighting, sightings)
        frames._groups = {name: _Group(*group) for name, group in groups.items()}
        return frames

    @property
    def state(self) -> bytes:
        """What `restored` goes on from."""
        groups = {name: astuple(group) for name, group in self._groups.items()}
        rows = (self._matcher.state, self._exchanges.state, self._sightings.state)
        return pack_state(_KIND, _LAYOUT, (self._now_ns, self._heard, *rows, groups))

    def events(self) -> list[Explained]:
        """Return what has become final since the last call."""
        events, self._events = self._events, []
        return events

    def read(self, rows: pa.Table) -> None:
        """Take in the next frames of the recording: rows of `Frame`, in whose types `Matcher` takes them."""
        frames = only_batch(rows)
        times = np.maximum.accumulate(np.maximum(frames.column("time_ns").to_numpy(), self._now_ns))
        steps = times // self._step_ns
        borders = np.flatnonzero(np.diff(steps, prepend=self._now_ns // self._step_ns)).tolist()
        for start, end in pairwise(sorted({0, *borders, len(frames)})):
            step = int(steps[start])
            if start in borders:
                self._look(step)
            self._take(step, frames.slice(start, end - start))
            self._now_ns = int(times[end - 1])

    def _take(self, step: int, frames: pa.RecordBatch) -> None:
        """Take in frames of one step."""
        self._heard |= dict.fromkeys(connection_codes(frames)[1], step * self._step_ns)
        exchanges, sightings = self._matcher.feed(frames)
        self._exchanges.add(step, exchanges)
        self._sightings.add(step, sightings)
        first = pa.table(exchanges.select(["group_id", "asked_ns"])).group_by("group_id")
        for name, asked_ns in zip(*first.aggregate([("asked_ns", "min")]).to_pydict().values(), strict=True):
            group = self._groups.setdefault(name, _Group())
            group.heard_ns = max(group.heard_ns, step * self._step_ns)
            group.expect(asked_ns)

    def _look(self, step: int) -> None:
        """Look for what has become final when a step begins, and drop what is too old."""
        now_ns = step * self._step_ns
        due = [name for name, group in self._groups.items() if group.is_due(now_ns, self._window_ns)]
        for name in due:
            self._groups[name].due = None
        if due:
            topics = pa.Table.from_batches(self._sightings.batches())
            read = read_sightings(topics)
            read = replace(read, lasts={**read.lasts, "": now_ns})
            for history in _histories(self._exchanges.batches(), topics, read, due):
                self._settle(self._groups[history.group.group_id], history, now_ns)
        self._trim(step - 2 * STEPS)
        idle = {key for key, heard_ns in self._heard.items() if heard_ns + IDLE_NS < now_ns}
        if idle:
            self._matcher.forget(idle)
            self._heard = {key: heard_ns for key, heard_ns in self._heard.items() if key not in idle}

    def _settle(self, group: _Group, history: GroupHistory, now_ns: int) -> None:
        is_over = group.heard_ns + 2 * self._window_ns < now_ns
        self._events += group.settle(history, now_ns, self._window_ns, _place, is_over=is_over)
        until_ns = now_ns - 2 * self._window_ns
        group.members = frozenset(
            life.member_id for life in history.members if life.left_ns is None or life.left_ns >= until_ns
        )
        for life in history.members:  # a session may run out, though nothing comes of the group any more
            expires_ns = life.last_seen_ns + (life.session_timeout_ms or 0) * NS_PER_MS
            if life.left_ns is None and expires_ns + self._window_ns > now_ns:
                group.expect(life.last_seen_ns)

    def _trim(self, until: int) -> None:
        """Drop what came before a step and is not needed."""
        until_ns = until * self._step_ns
        for name, group in list(self._groups.items()):
            group.emitted = max(group.emitted, (until_ns if group.due is None else min(until_ns, group.since)) - 1)
            if group.due is None and group.heard_ns < until_ns:
                group.members = frozenset()
                if group.heard_ns + FORGOTTEN_NS < until_ns:
                    del self._groups[name]
        old = self._exchanges.taken(until)
        self._exchanges.kept = old.take(pa.array(self._needed(old), pa.int64()))
        seen = self._sightings.taken(until)
        self._sightings.kept = seen.take(pa.array(_last_seen(seen), pa.int64()))

    def _needed(self, old: pa.RecordBatch) -> list[int]:
        """Return the exchanges that are awaited, or say who the members of a group are, by number in `old`."""
        awaited = {name: group.since for name, group in self._groups.items() if group.due is not None}
        members = {name: group.members for name, group in self._groups.items()}
        newest: dict[tuple[Any, ...], tuple[int, int]] = {}
        needed = set()
        for row, (name, asked_ns, says, member_id, given_id, *kind) in enumerate(_of_members(old)):
            if asked_ns >= awaited.get(name, asked_ns + 1):
                needed.add(row)
            elif says and (given_id or member_id) in members.get(name, ()):
                key = (name, given_id or member_id, *kind)
                newest[key] = max(newest.get(key, (asked_ns, row)), (asked_ns, row))
        return sorted(needed | {row for _, row in newest.values()})


def _histories(
    exchanges: Iterable[pa.RecordBatch], topics: pa.Table, sightings: Sightings, groups: list[str]
) -> Iterator[GroupHistory]:
    """Yield the histories of some groups, in order of their names."""
    names = pa.array(groups, pa.string())
    found = [batch.filter(pc.is_in(batch.column("group_id"), names)) for batch in exchanges]
    rows = name_topics(coded([joined(found, arrow_schema(Exchange))]), topics)
    for of_group in by_group(rows, rows["group_id"]):
        yield group_history(of_group, sightings)


def _of_members(exchanges: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield of each row: group, time, whether it says anything of a member; its ids; api, whether it joins, answers."""
    succeeded = pc.fill_null(pc.equal(exchanges.column("error_code"), 0), False)
    columns = [
        exchanges.column("group_id"),
        exchanges.column("asked_ns"),
        pc.and_(pc.is_in(exchanges.column("api"), _CHANGING), succeeded),
        exchanges.column("member_id"),
        exchanges.column("given_member_id"),
        exchanges.column("api"),
        pc.equal(exchanges.column("generation_id"), 0),
        *(pc.is_valid(exchanges.column(name)) for name in _ANSWERS),
    ]
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _last_seen(sightings: pa.RecordBatch) -> list[int]:
    """Return the last size of each topic as each client knows it, and that connections are closed, by number."""
    newest: dict[tuple[Any, ...], tuple[int, int]] = {}
    wanted = pc.is_in(sightings.column("kind"), pa.array(map(str, _SHOWING)))
    names = ["kind", "client_id", "connection", "topic", "time_ns"]
    rows = np.flatnonzero(wanted.to_numpy(zero_copy_only=False)).tolist()
    columns = (sightings.filter(wanted).column(name).to_pylist() for name in names)
    for row, (kind, client_id, connection, topic, time_ns) in zip(rows, zip(*columns, strict=True), strict=True):
        key = (kind, client_id, client_host(connection), topic) if kind == SightingKind.TOPIC else (kind,)
        newest[key] = max(newest.get(key, (time_ns, row)), (time_ns, row))
    return sorted(row for _, row in newest.values())


def _place(row: Rebalance) -> int:
    """Return when a rebalance began."""
    return row.started_ns
