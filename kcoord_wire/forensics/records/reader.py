"""Histories of groups from the records of ``__consumer_offsets``: what the coordinator wrote to its log.

    histories = log_histories(records)          # a table of `LogRow`

The log shows the members of each generation with their partitions, and every commit. It has no requests: no joins,
heartbeats, leaves or reasons. Causes follow from the differences between two generations. What the log shows of each:

| cause                   | classic                                        | KIP-848                            |
|-------------------------|------------------------------------------------|------------------------------------|
| new member              | yes                                            | yes                                |
| member left             | one of left, timed out, missed the join,       | one of left, timed out, too slow   |
|                         | max.poll exceeded, removed; its commits may    | to give up partitions, removed;    |
|                         | show that it had not timed out                 | its commits may show which         |
| session timeout         | likely, where it committed steadily before     | no                                 |
| static member replaced  | yes; a rebalance only if the assignor changed  | yes; no rebalance follows          |
|                         | or one was under way                           |                                    |
| second cooperative round| yes                                            | does not exist                     |
| topic metadata changed  | where partitions appeared or disappeared       | yes                                |
| subscription changed    | yes                                            | yes                                |
| assignors changed       | where another one was chosen                   | the server's assignor only         |
| leader rejoined         | one of leader rejoined, a member came and went | does not exist                     |
| rebalance timeout       | for a static member that was missing and sends | no                                 |
|                         | the generation it comes from; a dynamic one    |                                    |
|                         | comes back as a new member                     |                                    |
| sync timeout, max.poll exceeded, coordinator failover, group.max.size | no | no                               |

Laws:

* Order and chunking of the rows do not matter; a record that was read twice (same partition, same offset) counts once.
* Damage costs only what it hit: a record with an unreadable key belongs to no group, one with an unreadable value is
  counted in `GroupSummary.blind`.
* Commits are counted by column, never one by one.

Source: kafka/group-coordinator `GroupCoordinatorRecordSerde.java`; `kcoord_wire.records.offsets`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.codec.columns import ColumnDecoder
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError
from kcoord_wire.forensics.history import Place
from kcoord_wire.forensics.model import CommitRow, GroupHistory
from kcoord_wire.forensics.records.classic import ClassicRecords
from kcoord_wire.forensics.records.kip848 import EpochRecords, infer_topic_names, protocol_and_part
from kcoord_wire.forensics.records.ledger import CommitTimes, Entry, Ledger
from kcoord_wire.records import decode_offsets_record

_MINUTE_NS: Final = 60_000_000_000
_COMMIT: Final = "OffsetCommit"
_CLASSIC: Final = "GroupMetadata"
_NAMING: Final = {  # kinds of records with topics by id and name, and the fields that have them
    "ConsumerGroupPartitionMetadata": ("topics",),
    "ShareGroupStatePartitionMetadata": ("initializing_topics", "initialized_topics", "deleting_topics"),
}
_BAD: Final = "{} record{s} whose value could not be read."
_FORGOTTEN: Final = "{} committed offset{s} forgotten: expired or deleted, the log does not show which."
_GONE_BLIND: Final = "A member that left, timed out or was removed leaves the same records; its commits may show which."
_CLASSIC_BLIND: Final = (
    "When a rebalance began, who joined last and how late is not in the log: times count from the answer to the joins.",
    "Members of eager assignors stop while they rejoin; the log does not show that, only pauses between generations.",
    _GONE_BLIND,
)
_CONSUMER_BLIND: Final = (_GONE_BLIND,)
NO_ENDS: Final = "A log has commits and not the ends of partitions: the lag is not known."
"""In `GroupSummary.blind` of a group that has committed."""

_NO_GROUP: Final = ("Only offsets are in the log: the group has no members there, as one that assigns by hand.",)


class RecordKey(NamedTuple):
    """A record key: its kind as `OffsetsRecord` has it, or empty where it is torn.

    :ivar number: the record type of a commit
    """

    kind: str
    group: str | None
    number: int = -1
    topic: str = ""
    partition: int = -1

    @property
    def is_commit(self) -> bool:
        return self.kind.endswith(_COMMIT)

    @property
    def is_read(self) -> bool:
        """Whether it is of a record that describes a group of a protocol that is read."""
        return self.group is not None and not self.is_commit


TORN: Final = RecordKey("", None)


def group_of(keys: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the group that each record key belongs to; null for a torn key and an unknown record type.

    :param keys: binary or large_binary, as `LogRow.key`
    """
    encoded = _encoded(keys)
    names = pa.array([read_key(key.as_py()).group for key in encoded.dictionary], pa.string())
    return names.take(encoded.indices)


def log_history(records: pa.Table) -> GroupHistory:
    """Return the history of the one group whose records these are.

    :param records: `LogRow`, in any order; rows that belong to no group are left out
    :raises ValueError: they belong to several groups, or to none
    """
    histories = log_histories(records)
    if len(histories) != 1:
        names = ", ".join(repr(history.group.group_id) for history in histories[:5])
        raise ValueError(f"these are records of {len(histories)} groups ({names}), not of one: use log_histories")
    return histories[0]


def log_histories(records: pa.Table) -> list[GroupHistory]:
    """Return the histories of all groups that have records, in order of their ids.

    :param records: `LogRow`, in any order
    """
    rows = _in_order(records)
    if not rows.num_rows:
        return []
    encoded = _encoded(rows["key"])
    keys = [read_key(key.as_py()) for key in encoded.dictionary]
    names = pa.array([key.group for key in keys], pa.string()).dictionary_encode()
    index = pa.table(
        {
            "key": encoded.indices,
            "group": names.indices.take(encoded.indices),
            "time": rows["time_ns"],
            "row": pa.array(range(rows.num_rows), pa.int64()),
        }
    )
    index = index.filter(pc.is_valid(index["group"]))
    kind = pa.array([key.kind for key in keys], pa.string()).take(index["key"].combine_chunks())
    groups = [LogGroup(name) for name in names.dictionary.to_pylist()]
    for span in _grouped(index, ["group"], [("time", "min"), ("time", "max")]):
        groups[span["group"]].span = (span["time_min"], span["time_max"])
    is_commit = pc.is_in(kind, pa.array([_COMMIT, f"Legacy{_COMMIT}"]))
    _read_records(rows, index.filter(pc.invert(is_commit)), groups)
    _count_commits(rows, index.filter(is_commit), keys, groups)
    return [group.history() for group in sorted(groups, key=lambda group: group.name)]


class LogGroup:
    """What was read of one group.

    :ivar span: times of its first and its last record
    :ivar entries: its records, but for commits, in order
    :ivar commits: its commits by partition and minute
    :ivar times: when its partitions were committed
    :ivar names: of topics, by the bytes of their ids
    :ivar notes: sentences for `GroupSummary.blind`, with how often each applies
    :ivar base: offset up to which the records are what compaction has left: they say what is, not what has changed
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.base = -1
        self.span = (0, 0)
        self.entries: list[Entry] = []
        self.commits: list[CommitRow] = []
        self.times = CommitTimes()
        self.names: dict[bytes, str] = {}
        self.notes: dict[str, int] = defaultdict(int)

    def read(self, time_ns: int, source: str, offset: int, key: bytes, value: bytes | None) -> None:
        """Take in the next record, but for commits."""
        try:
            record = decode_offsets_record(key, value, strict=False)
        except DecodeError:
            self.notes[_BAD] += 1
            return
        at = max(time_ns, self.entries[-1].at) if self.entries else time_ns
        self.entries.append(Entry(at, source, offset, record))
        if record.value is not None and record.kind in _NAMING:
            topics = [item for name in _NAMING[record.kind] for item in getattr(record.value, name)]
            self.names.update((item.topic_id.bytes, item.topic_name) for item in topics)

    def history(self) -> GroupHistory:
        """The tables so far, without findings."""
        infer_topic_names(self.entries, self.names)
        ledger = Ledger(self.name, self.times)
        both = _BothProtocols(ledger, self.names)
        for entry, following in zip_longest(self.entries, self.entries[1:]):
            both.read(entry, following)
            if entry.offset <= self.base:
                both.settle()
        both.close()
        ledger.notes.update(self.notes)
        blind = _NO_GROUP if not self.entries and self.commits else both.blind
        ends = [NO_ENDS] if self.commits else []
        return ledger.history(*self.span, self.commits, [*blind, *ends])


class _BothProtocols:
    """Reads the records of a group that may change from the classic protocol to KIP-848, and back.

    A tombstone of the group's record means that the group was deleted, unless a record of the other protocol follows at
    the same moment: then the group was converted.

    :ivar blind: what the log cannot show of such a group
    """

    def __init__(self, ledger: Ledger, names: Mapping[bytes, str]) -> None:
        self.blind: tuple[str, ...] = ()
        self._ledger = ledger
        self._classic, self._consumer = ClassicRecords(ledger), EpochRecords(ledger, names)

    def read(self, entry: Entry, following: Entry | None) -> None:
        is_classic = entry.record.kind == _CLASSIC
        if entry.record.is_tombstone and (is_classic or protocol_and_part(entry.record.kind)[1] == "Metadata"):
            is_converted = (
                following is not None
                and following.at == entry.at
                and not following.record.is_tombstone
                and (following.record.kind == _CLASSIC) != is_classic
            )
            (self._end_classic if is_classic else self._end_consumer)(entry, is_converted)
        else:
            self.blind = self.blind or (_CLASSIC_BLIND if is_classic else _CONSUMER_BLIND)
            (self._classic if is_classic else self._consumer).read(entry)

    def settle(self) -> None:
        """Take what was read so far for known, not for a reason of what follows."""
        self._consumer.settle()

    def close(self) -> None:
        """Note what is still unknown after the last record."""
        self._consumer.close()

    def _end_classic(self, entry: Entry, is_converted: bool) -> None:
        self.blind = self.blind or _CLASSIC_BLIND
        if is_converted:
            self._consumer.adopt(self._classic.generation)
        self._classic.forget()
        if not is_converted:
            self._ledger.deleted(entry.at)

    def _end_consumer(self, entry: Entry, is_converted: bool) -> None:
        epoch = self._consumer.epoch
        self._consumer.read(entry)
        if is_converted and epoch is not None:
            self._classic.adopt(entry, epoch)
        else:
            self._ledger.deleted(entry.at)


# ---- rows and keys


def _in_order(records: pa.Table) -> pa.Table:
    """Return the sound rows by partition and offset, each place once."""
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
    """Return which rows are at the place of the row before; None if there are none."""
    partition, offset = (rows[name].combine_chunks() for name in ("partition", "offset"))
    same = pc.and_(pc.equal(partition[1:], partition[:-1]), pc.equal(offset[1:], offset[:-1]))
    return pa.concat_arrays([pa.array([False]), same]) if pc.any(same).as_py() else None


def _encoded(keys: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    wide = keys.cast(pa.large_binary())
    whole = wide.combine_chunks() if isinstance(wide, pa.ChunkedArray) else wide
    encoded: pa.DictionaryArray = whole.dictionary_encode()
    return encoded


def read_key(key: bytes) -> RecordKey:
    """Return what a record key says; `TORN` for one that cannot be read, and for a record type of no group."""
    try:
        record = decode_offsets_record(key, None)
    except DecodeError:
        return TORN
    if record.key is None:
        return TORN
    if record.kind.endswith(_COMMIT):
        return RecordKey(record.kind, record.key.group, record.record_type, record.key.topic, record.key.partition)
    group = record.key.group if record.kind == _CLASSIC else record.key.group_id
    return RecordKey(record.kind, group, record.record_type)


def _grouped(rows: pa.Table, by: Sequence[str], aggregates: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield aggregates over the rows in their order, one dict per group; the groups come in no defined order."""
    table = rows.group_by(by, use_threads=False).aggregate(aggregates)
    for batch in table.to_batches(max_chunksize=65_536):
        yield from batch.to_pylist()


# ---- records of groups


def _read_records(rows: pa.Table, index: pa.Table, groups: Sequence[LogGroup]) -> None:
    """Decode the records of `index`, a table of row, key, group and time, and hand them to their groups."""
    wanted = rows.take(index["row"])
    for group, row in zip(index["group"].to_pylist(), _pylist(wanted), strict=True):
        groups[group].read(row["time_ns"], row["source"], row["offset"], row["key"], row["value"])


def _pylist(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in rows.to_batches(max_chunksize=65_536):
        yield from batch.to_pylist()


# ---- commits


_VALUES: Final = ("OffsetCommitValue", "LegacyOffsetCommitValue")
_COMMITS: Final = ColumnDecoder(_VALUES, form="prefixed", columns=["offset", "topic_id"], strict=False)
_NEWEST: Final = registry[_VALUES[0]].valid_versions[-1]
NO_ID: Final = bytes(16)
"""The id of a topic that has none."""


def decode_commits(values: pa.Array, numbers: pa.Array) -> pa.RecordBatch:
    """Return ``offset``, ``topic_id`` and ``is_bad`` of the values of commits, none of them null.

    :param numbers: the record type of each
    """
    decoded = _COMMITS.decode(values, keys=numbers)
    offsets = pc.coalesce(*(pc.struct_field(decoded[name], "offset") for name in _VALUES))
    is_newer = pc.greater(decoded["version"], _NEWEST)  # it was decoded as the newest known version, which is a guess
    is_bad = pc.or_(pc.is_valid(decoded["error"]), pc.fill_null(is_newer, True))
    columns = {"offset": offsets, "topic_id": pc.struct_field(decoded[_VALUES[0]], "topic_id"), "is_bad": is_bad}
    return pa.RecordBatch.from_pydict(columns)


def _count_commits(rows: pa.Table, index: pa.Table, keys: Sequence[RecordKey], groups: Sequence[LogGroup]) -> None:
    """Count the commits of `index` by partition and minute, with their times for the groups that have members."""
    if not index.num_rows:
        return
    values = rows["value"].take(index["row"]).combine_chunks()
    is_deleted = pc.is_null(values)
    for item in _grouped(index.filter(is_deleted), ["group"], [("time", "count")]):
        groups[item["group"]].notes[_FORGOTTEN] += item["time_count"]
    index, values = index.filter(pc.invert(is_deleted)), values.filter(pc.invert(is_deleted))
    numbers = pa.array([key.number for key in keys], pa.int64()).take(index["key"].combine_chunks())
    decoded = decode_commits(values, numbers)
    is_bad = decoded["is_bad"]
    for item in _grouped(index.filter(is_bad), ["group"], [("time", "count")]):
        groups[item["group"]].notes[_BAD] += item["time_count"]
    minute = pc.multiply(pc.divide(index["time"], _MINUTE_NS), _MINUTE_NS)
    counts = index.append_column("minute", minute).append_column("offset", decoded["offset"])
    counts = counts.append_column("id", decoded["topic_id"]).filter(pc.invert(is_bad))
    _add_commits(counts, keys, groups)
    is_named = pc.and_(pc.is_valid(counts["id"]), pc.not_equal(counts["id"], pa.scalar(NO_ID, pa.binary(16))))
    for item in _grouped(counts.filter(is_named), ["group", "key", "id"], []):
        groups[item["group"]].names.setdefault(item["id"], keys[item["key"]].topic)
    has_members = pa.array([bool(group.entries) for group in groups], pa.bool_()).take(counts["group"].combine_chunks())
    _add_times(counts.select(["key", "group", "time"]).filter(has_members), keys, groups)


def _add_commits(counts: pa.Table, keys: Sequence[RecordKey], groups: Sequence[LogGroup]) -> None:
    columns = [("offset", "count"), ("offset", "first"), ("offset", "last")]
    for item in _grouped(counts, ["group", "key", "minute"], columns):
        group, key = groups[item["group"]], keys[item["key"]]
        first, last = item["offset_first"], item["offset_last"]
        group.commits.append(
            CommitRow(group.name, key.topic, key.partition, item["minute"], item["offset_count"], 0, first, last, None)
        )
    for group in groups:
        group.commits.sort(key=lambda row: (row.from_ns, row.topic, row.partition))


def _add_times(counts: pa.Table, keys: Sequence[RecordKey], groups: Sequence[LogGroup]) -> None:
    """Give the groups the times of their commits: one sorted column for all, of which each partition has a range."""
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
