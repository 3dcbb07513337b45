"""Histories of groups from the records of ``__consumer_offsets``: what the coordinator wrote down, and so what it did.

    histories = log_histories(records)          # a table of `LogRow`

The log tells who was in which generation with what, and every commit. It does not tell requests: nobody's joins,
heartbeats, leaves or reasons. Causes follow from what differs between two generations:

| cause                   | classic                                        | KIP-848                            |
|-------------------------|------------------------------------------------|------------------------------------|
| new member              | told                                           | told                               |
| member left             | one of left, timed out, missed the join,       | one of left, timed out, too slow   |
|                         | max.poll exceeded, removed; its commits may    | to give up partitions, removed;    |
|                         | tell that it had not timed out                 | its commits may tell               |
| session timeout         | likely, where it committed steadily before     | not told                           |
| static member replaced  | told; a rebalance only if the assignor changed | told; no rebalance follows         |
|                         | or one was under way                           |                                    |
| second cooperative round| told                                           | there is none                      |
| topic metadata changed  | told where partitions came or went             | told                               |
| subscription changed    | told                                           | told                               |
| assignors changed       | told where another one was chosen              | told of the server's assignor      |
| leader rejoined         | one of leader rejoined, somebody came and went | there is none                      |
| rebalance timeout       | told of a static member that was missing and   | not told                           |
|                         | says which generation it comes from; a dynamic |                                    |
|                         | one comes back as a new member                 |                                    |
| sync timeout, max.poll exceeded, coordinator failover, group.max.size | not told   | not told             |

Laws:

* Order and chunking of the rows do not matter; a record that was read twice (same partition, same offset) counts once.
* Damage costs what it hit: a key that cannot be read belongs to no group, a value that cannot is counted in `blind`.
* Commits are counted by column, never one by one.

Source: kafka/group-coordinator `GroupCoordinatorRecordSerde.java`; `kcoord_wire.records.offsets`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.codec.columns import ColumnDecoder
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError
from kcoord_wire.forensics.log.classic import ClassicRecords
from kcoord_wire.forensics.log.kip848 import ConsumerRecords, name_topics
from kcoord_wire.forensics.log.ledger import CommitTimes, Entry, Ledger, Place
from kcoord_wire.forensics.model import CommitRow, GroupHistory
from kcoord_wire.records import decode_offsets_record

__all__ = ["group_of", "log_histories", "log_history"]

_MINUTE: Final = 60_000_000_000
_COMMIT: Final = "OffsetCommit"
_CLASSIC: Final = "GroupMetadata"
_SHARE: Final = frozenset(range(9, 16))
_STREAMS: Final = frozenset(range(17, 24))
_UNREAD: Final = {
    "share": "{} record{s} of a share group: not read.",
    "streams": "{} record{s} of a streams group: not read.",
}
_BAD: Final = "{} record{s} whose value could not be read."
_FORGOTTEN: Final = "{} committed offset{s} forgotten: expired or deleted, the log does not tell which."
_GONE_BLIND: Final = "A member that left, timed out or was removed leaves the same records; its commits may tell which."
_CLASSIC_BLIND: Final = (
    "When a rebalance began, who joined last and how late is not in the log: times count from the answer to the joins.",
    "Members of eager assignors stop while they rejoin; the log does not show that, only pauses between generations.",
    _GONE_BLIND,
)
_CONSUMER_BLIND: Final = (_GONE_BLIND,)
_NO_GROUP: Final = ("Only offsets are in the log: the group has no members there, as one that assigns by hand.",)


class _Key(NamedTuple):
    """What a record's key says: the kind as of `OffsetsRecord`, or ``share`` or ``streams``; empty where it is torn."""

    kind: str
    group: str | None
    number: int = -1
    topic: str = ""
    partition: int = -1


_TORN: Final = _Key("", None)


def group_of(keys: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The group that each record key belongs to; null for a torn key and for record types that are not known.

    :param keys: binary or large_binary, as `LogRow.key`
    """
    encoded = _encoded(keys)
    names = pa.array([_key(key.as_py()).group for key in encoded.dictionary], pa.string())
    return names.take(encoded.indices)


def log_history(records: pa.Table) -> GroupHistory:
    """The history of the one group whose records these are.

    :param records: `LogRow`, in any order; rows that belong to no group are left out
    :raises ValueError: they belong to several groups, or to none
    """
    histories = log_histories(records)
    if len(histories) != 1:
        names = ", ".join(repr(history.group.group_id) for history in histories[:5])
        raise ValueError(f"these are records of {len(histories)} groups ({names}), not of one: use log_histories")
    return histories[0]


def log_histories(records: pa.Table) -> list[GroupHistory]:
    """The histories of all groups that have records, in order of their ids.

    :param records: `LogRow`, in any order
    """
    rows = _in_order(records)
    if not rows.num_rows:
        return []
    encoded = _encoded(rows["key"])
    keys = [_key(key.as_py()) for key in encoded.dictionary]
    names = pa.array([key.group for key in keys], pa.string()).dictionary_encode()
    told = pa.table(
        {
            "key": encoded.indices,
            "group": names.indices.take(encoded.indices),
            "time": rows["time_ns"],
            "row": pa.array(range(rows.num_rows), pa.int64()),
        }
    ).filter(pc.is_valid(names.indices.take(encoded.indices)))
    kinds = pa.array([key.kind for key in keys], pa.string())
    kind = kinds.take(told["key"].combine_chunks())
    groups = [_Group(name) for name in names.dictionary.to_pylist()]
    for span in _grouped(told, ["group"], [("time", "min"), ("time", "max")]):
        groups[span["group"]].span = (span["time_min"], span["time_max"])
    for unread, note in _UNREAD.items():
        for item in _grouped(told.filter(pc.equal(kind, unread)), ["group"], [("time", "count")]):
            groups[item["group"]].notes[note] += item["time_count"]
    is_commit = pc.is_in(kind, pa.array([_COMMIT, f"Legacy{_COMMIT}"]))
    is_read = pc.and_not(pc.invert(is_commit), pc.is_in(kind, pa.array(list(_UNREAD))))
    _read_records(rows, told.filter(is_read), groups)
    _count_commits(rows, told.filter(is_commit), keys, groups)
    return [group.history() for group in sorted(groups, key=lambda group: group.name)]


class _Group:
    """What was read of a group.

    :ivar names: of topics, by the bytes of their ids
    :ivar notes: what goes to `blind`, with how often
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.span = (0, 0)
        self.entries: list[Entry] = []
        self.commits: list[CommitRow] = []
        self.times = CommitTimes()
        self.names: dict[bytes, str] = {}
        self.notes: dict[str, int] = defaultdict(int)

    def history(self) -> GroupHistory:
        """All of it."""
        ledger = Ledger(self.name, self.times)
        name_topics(self.entries, self.names)
        classic, consumer = ClassicRecords(ledger), ConsumerRecords(ledger, self.names)
        blind: list[str] = []
        for number, entry in enumerate(self.entries):
            follows = self.entries[number + 1] if number + 1 < len(self.entries) else None
            if follows is not None and (follows.at != entry.at or follows.record.is_tombstone):
                follows = None  # no part of what this record begins
            if entry.record.kind == _CLASSIC:
                blind = blind or list(_CLASSIC_BLIND)
                if not entry.record.is_tombstone:
                    classic.tell(entry)
                elif follows is not None and follows.record.kind != _CLASSIC:
                    consumer.adopt(classic.generation)
                    classic.forget()
                else:
                    classic.forget()
                    ledger.deleted(entry.at)
            elif entry.record.kind == "ConsumerGroupMetadata" and entry.record.is_tombstone:
                epoch = consumer.epoch
                consumer.tell(entry)
                if follows is not None and follows.record.kind == _CLASSIC and epoch is not None:
                    classic.adopt(entry, epoch)
                else:
                    ledger.deleted(entry.at)
            else:
                blind = blind or list(_CONSUMER_BLIND)
                consumer.tell(entry)
        consumer.close()
        if not self.entries and self.commits:
            blind = list(_NO_GROUP)
        ledger.notes.update(self.notes)
        return ledger.history(*self.span, self.commits, blind)


# ---- rows and keys


def _in_order(records: pa.Table) -> pa.Table:
    """The sound rows by partition and offset, each place once."""
    rows = records.select(["source", "partition", "offset", "time_ns", "key", "value", "error"])
    rows = rows.filter(pc.and_(pc.is_null(rows["error"]), pc.is_valid(rows["key"]))).drop_columns(["error"])
    wide = {"source": pa.large_string(), "key": pa.large_binary(), "value": pa.large_binary()}
    for name, kind in wide.items():  # one chunk of a 32-bit kind holds 2 GB at most
        rows = rows.set_column(rows.schema.get_field_index(name), name, rows[name].cast(kind))
    rows = rows.combine_chunks()
    places = ["partition", "offset"]
    order = _order(rows, places)
    if _repeats(rows.select(places).take(order)) is None:
        in_order = pc.all(pc.equal(order, pa.array(range(len(order)), pa.uint64()))).as_py()
        return rows if in_order else rows.take(order)
    rows = rows.take(_order(rows, [*places, "time_ns", "source", "key", "value"]))
    return rows.filter(pc.invert(_repeats(rows)))


def _order(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    return pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names])


def _repeats(rows: pa.Table) -> pa.Array | None:
    """Which rows are at the place of the row before; None if no one is."""
    if rows.num_rows < 2:
        return None
    same = pa.array([False])
    for name in ("partition", "offset"):
        column = rows[name].combine_chunks()
        equal = pc.equal(column[1:], column[:-1])
        same = equal if len(same) == 1 and name == "partition" else pc.and_(same, equal)
    if not pc.any(same).as_py():
        return None
    return pa.concat_arrays([pa.array([False]), same])


def _encoded(keys: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    wide = keys.cast(pa.large_binary())
    whole = wide.combine_chunks() if isinstance(wide, pa.ChunkedArray) else wide
    encoded: pa.DictionaryArray = whole.dictionary_encode()
    return encoded


def _key(key: bytes) -> _Key:
    number = int.from_bytes(key[:2], "big")
    unread = "share" if number in _SHARE else "streams" if number in _STREAMS else None
    if unread is not None:
        size = int.from_bytes(key[2:4], "big", signed=True)
        if len(key) < 4 or not 0 <= size <= len(key) - 4:
            return _TORN
        try:
            return _Key(unread, key[4 : 4 + size].decode())
        except UnicodeDecodeError:
            return _TORN
    try:
        record = decode_offsets_record(key, None)
    except DecodeError:
        return _TORN
    if record.key is None:
        return _TORN
    if record.kind.endswith(_COMMIT):
        return _Key(record.kind, record.key.group, record.record_type, record.key.topic, record.key.partition)
    return _Key(record.kind, record.key.group if record.kind == _CLASSIC else record.key.group_id, record.record_type)


def _grouped(rows: pa.Table, by: Sequence[str], aggregates: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Aggregates over the rows in their order, one dict for each group; the groups in no certain order."""
    table = rows.group_by(by, use_threads=False).aggregate(aggregates)
    for batch in table.to_batches(max_chunksize=65_536):
        yield from batch.to_pylist()


# ---- records of groups


def _read_records(rows: pa.Table, told: pa.Table, groups: Sequence[_Group]) -> None:
    wanted = rows.take(told["row"])
    latest: dict[int, int] = {}
    for group, row in zip(told["group"].to_pylist(), _pylist(wanted), strict=True):
        try:
            record = decode_offsets_record(row["key"], row["value"], strict=False)
        except DecodeError:
            groups[group].notes[_BAD] += 1
            continue
        at = latest[group] = max(latest.get(group, row["time_ns"]), row["time_ns"])
        groups[group].entries.append(Entry(at, row["source"], row["offset"], record))
        if record.kind == "ConsumerGroupPartitionMetadata" and record.value is not None:
            groups[group].names.update((item.topic_id.bytes, item.topic_name) for item in record.value.topics)


def _pylist(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in rows.to_batches(max_chunksize=65_536):
        yield from batch.to_pylist()


# ---- commits


_VALUES: Final = ("OffsetCommitValue", "LegacyOffsetCommitValue")
_COMMITS: Final = ColumnDecoder(_VALUES, form="prefixed", columns=["offset", "topic_id"], strict=False)
_NEWEST: Final = registry[_VALUES[0]].valid_versions[-1]
_NO_ID: Final = bytes(16)


def _count_commits(rows: pa.Table, told: pa.Table, keys: Sequence[_Key], groups: Sequence[_Group]) -> None:
    """Commits by partition and minute, with their times for the groups that have members."""
    if not told.num_rows:
        return
    values = rows["value"].take(told["row"]).combine_chunks()
    is_deleted = pc.is_null(values)
    for item in _grouped(told.filter(is_deleted), ["group"], [("time", "count")]):
        groups[item["group"]].notes[_FORGOTTEN] += item["time_count"]
    told, values = told.filter(pc.invert(is_deleted)), values.filter(pc.invert(is_deleted))
    numbers = pa.array([key.number for key in keys], pa.int64()).take(told["key"].combine_chunks())
    decoded = _COMMITS.decode(values, keys=numbers)
    offsets = pc.coalesce(*(pc.struct_field(decoded[name], "offset") for name in _VALUES))
    is_newer = pc.greater(decoded["version"], _NEWEST)  # decoded as the newest there is, which nobody promised
    is_bad = pc.or_(pc.is_valid(decoded["error"]), pc.fill_null(is_newer, True))
    for item in _grouped(told.filter(is_bad), ["group"], [("time", "count")]):
        groups[item["group"]].notes[_BAD] += item["time_count"]
    minute = pc.multiply(pc.divide(told["time"], _MINUTE), _MINUTE)
    counts = told.append_column("minute", minute).append_column("offset", offsets)
    counts = counts.append_column("id", pc.struct_field(decoded[_VALUES[0]], "topic_id"))
    counts = counts.filter(pc.invert(is_bad))
    columns = ["group", "key", "minute"]
    for item in _grouped(counts, columns, [("offset", "count"), ("offset", "first"), ("offset", "last")]):
        group, key = groups[item["group"]], keys[item["key"]]
        first, last = item["offset_first"], item["offset_last"]
        group.commits.append(
            CommitRow(group.name, key.topic, key.partition, item["minute"], item["offset_count"], 0, first, last, None)
        )
    for group in groups:
        group.commits.sort(key=lambda row: (row.minute_ns, row.topic, row.partition))
    is_named = pc.and_(pc.is_valid(counts["id"]), pc.not_equal(counts["id"], pa.scalar(_NO_ID, pa.binary(16))))
    for item in _grouped(counts.filter(is_named), ["group", "key", "id"], []):
        groups[item["group"]].names.setdefault(item["id"], keys[item["key"]].topic)
    with_members = pa.array([bool(group.entries) for group in groups], pa.bool_()).take(
        counts["group"].combine_chunks()
    )
    _tell_times(counts.select(["key", "group", "time"]).filter(with_members), keys, groups)


def _tell_times(counts: pa.Table, keys: Sequence[_Key], groups: Sequence[_Group]) -> None:
    if not counts.num_rows:
        return
    ordered = counts.take(_order(counts, ["group", "key", "time"])).combine_chunks()
    times = ordered["time"].combine_chunks()
    view = memoryview(times.buffers()[1]).cast("q")[times.offset : times.offset + len(times)]
    ranges: dict[int, dict[Place, tuple[int, int]]] = defaultdict(dict)
    start = 0
    runs = _grouped(ordered, ["group", "key"], [("time", "count")])
    for item in sorted(runs, key=lambda item: (item["group"], item["key"])):
        key = keys[item["key"]]
        ranges[item["group"]][key.topic, key.partition] = (start, start + item["time_count"])
        start += item["time_count"]
    for number, places in ranges.items():
        groups[number].times = CommitTimes(view, places)
