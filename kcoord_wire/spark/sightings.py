"""Which sightings the history of a group needs, and how they come to its bucket without the driver.

A task that matches frames notes what the groups of a bucket have to do with (`Interests`): the hosts of their clients,
their topics, brokers and sources. `keyed` puts the same keys on sightings; where both meet, `routed` copies the
sightings to the buckets.

Laws:

* A bucket receives every sighting that `wire_history`, `detect` and `rename_groups` look at for one of its groups, once
  (`received` drops what came by a second key). What else it receives has no effect.
* Of a broker that some host does not reach (REFUSED, RESENT) the groups look at what other hosts show of it, too: when
  they connect to it, and lose it; of a way on which bytes are sent again, at each Fetch of its broker and its host. A
  broker that closes connections while every attempt to reach it succeeds is seen through the hosts of the groups alone.
* `wire_history` asks of all others only when the last of them was, and whether any shows that connections are closed or
  how large a topic is: `overview` finds one of each.
* The driver receives those two rows, one error if there is any, the name of each topic id, and those brokers and hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.exchanges.arrow import child, flatten, joined
from kcoord_wire.forensics.model import Sighting, SightingKind, arrow_schema, broker_address, client_host, table_of
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.spark.packing import BUCKETS

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOST, TOPIC, BROKER, SOURCE = "host ", "topic ", "broker ", "source "
ALL: Final = "*"
"""The key of bytes that are missing of an unknown connection: they may be of any group."""

INTEREST: Final = pa.schema([("key", pa.string()), ("bucket", pa.int32())])
KEYED: Final = arrow_schema(Sighting).append(pa.field("key", pa.string()))
_MAX_PAIRS: Final = 100_000
_TOPIC_FIELDS: Final = ("topic", "topics")
_SHOWING: Final = [SightingKind.CLOSED.value, SightingKind.RESET.value, SightingKind.TOPIC.value]
_ERROR: Final = "error"
_NAMED: Final = "name"
_LOST, _CUT_BROKER, _CUT_HOST = "lost broker", "cut broker", "cut host"
MANY: Final = (_NAMED, _LOST, _CUT_BROKER, _CUT_HOST)
"""What of `candidates` there is one row for each name of, in ``topic_id``."""
_UNREACHED: Final = [SightingKind.REFUSED.value, SightingKind.RESENT.value]
_LINKS: Final = [SightingKind.OPENED.value, SightingKind.CLOSED.value, SightingKind.RESET.value]
_FETCHED: Final = SightingKind.FETCHED.value
_FORBIDDEN: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED.value


class Interests:
    """What the groups of each bucket have to do with, as far as one task has seen."""

    def __init__(self) -> None:
        self._pairs: set[tuple[str, int]] = set()

    def note(self, exchanges: pa.RecordBatch, buckets: NDArray[np.int64]) -> None:
        """Note the keys of exchanges."""
        every = np.arange(len(exchanges))
        self._note(exchanges.column("client_host"), HOST.__add__, buckets)
        self._note(exchanges.column("connection"), lambda name: BROKER + broker_address(name), buckets)
        self._note(exchanges.column("source"), SOURCE.__add__, buckets)
        for name in exchanges.schema.names:
            for topics, rows in _topics(exchanges.column(name), name, every):
                self._note(topics, TOPIC.__add__, buckets[rows])
        self._pairs |= {(ALL, bucket) for bucket in np.unique(buckets).tolist()}

    def taken(self, *, at_least: int = _MAX_PAIRS) -> Iterator[pa.RecordBatch]:
        """Yield rows of `INTEREST`, if there are so many, and forget them."""
        if self._pairs and len(self._pairs) >= at_least:
            keys, buckets = zip(*sorted(self._pairs), strict=True)
            self._pairs.clear()
            yield pa.RecordBatch.from_arrays(
                [pa.array(keys, pa.string()), pa.array(buckets, pa.int32())], schema=INTEREST
            )

    def _note(self, names: pa.Array, key: Callable[[str], str], buckets: NDArray[np.int64]) -> None:
        encoded = names.dictionary_encode()
        keys = [key(name) for name in encoded.dictionary.to_pylist()]
        codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        for code in np.unique(codes[codes >= 0] * BUCKETS + buckets[codes >= 0]).tolist():
            self._pairs.add((keys[code // BUCKETS], code % BUCKETS))


def _topics(column: pa.Array, name: str, rows: NDArray[np.int64]) -> Iterator[tuple[pa.Array, NDArray[np.int64]]]:
    """Yield the names of topics in a column, however deep they are, with the row of each."""
    if pa.types.is_list(column.type):
        flat = flatten(column)
        yield from _topics(flat.values, name, rows[flat.row])
    elif pa.types.is_struct(column.type):
        for index in range(column.type.num_fields):
            field = column.type.field(index).name
            yield from _topics(child(column, field), field, rows)
    elif name in _TOPIC_FIELDS:
        yield column, rows


# ---- what all groups share


@dataclass(frozen=True)
class Overview:
    """What the history of every group needs of all sightings.

    :ivar names: rows of TOPIC, one for each topic id
    :ivar ends: the last row of any kind but FETCHED; one that shows that connections are closed, or the size of a topic
    :ivar has_errors: whether any is an error (`is_error`)
    :ivar lost: the brokers that some host did not reach
    :ivar cut: the brokers, and the hosts, of ways on which bytes were sent again
    """

    names: pa.Table
    ends: list[dict[str, Any]]
    has_errors: bool
    lost: frozenset[str] = frozenset()
    cut: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    @cached_property
    def by_id(self) -> dict[str, str]:
        """The names of topics, by what stands for them where only the id is known."""
        ids, names = self.names["topic_id"].to_pylist(), self.names["topic"].to_pylist()
        return {f"id:{id_}": name for id_, name in zip(ids, names, strict=True)}


def candidates(sightings: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows from which `overview_of` chooses, with ``what`` they are for: three, and one a name for `MANY`."""
    kinds = sightings.column("kind")
    parts = []
    for what, wanted in (
        ("last", pc.not_equal(kinds, SightingKind.FETCHED.value)),
        ("showing", pc.is_in(kinds, pa.array(_SHOWING))),
        (_ERROR, is_error(sightings)),
    ):
        rows = sightings.filter(wanted)
        if len(rows):
            parts.append(_marked(rows.slice(int(np.argmax(rows.column("time_ns").to_numpy())), 1), what))
    named = sightings.filter(
        pc.and_(pc.equal(kinds, SightingKind.TOPIC.value), pc.is_valid(sightings.column("topic_id")))
    )
    if len(named):
        parts.append(_one_each(named, named.column("topic_id"), _NAMED))
    unreached = sightings.filter(pc.is_in(kinds, pa.array(_UNREACHED)))
    resent = unreached.filter(pc.equal(unreached.column("kind"), SightingKind.RESENT.value))
    for rows, what, name_of in (
        (unreached, _LOST, broker_address),
        (resent, _CUT_BROKER, broker_address),
        (resent, _CUT_HOST, client_host),
    ):
        if len(rows):
            names = pa.array([name_of(name) for name in rows.column("connection").to_pylist()], pa.string())
            parts.append(_one_each(rows, names, what))
    return joined(parts, KEYED)


def _one_each(rows: pa.RecordBatch, names: pa.Array, what: str) -> pa.RecordBatch:
    """Return one row for each name, which stands in ``topic_id``."""
    rows = rows.set_column(rows.schema.get_field_index("topic_id"), "topic_id", names)
    _, first = np.unique(names.to_numpy(zero_copy_only=False), return_index=True)
    return _marked(rows.take(pa.array(first)), what)


def _marked(rows: pa.RecordBatch, what: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*rows.columns, pa.repeat(pa.scalar(what), len(rows))], schema=KEYED)


def overview_of(rows: pa.Table) -> Overview:
    """Return what `candidates` stand for: rows of `KEYED`, where ``key`` says what for."""
    columns = arrow_schema(Sighting).names
    named = rows.filter(pc.equal(rows["key"], _NAMED)).select(columns).cast(arrow_schema(Sighting))
    ends = rows.filter(pc.is_in(rows["key"], pa.array(["last", "showing"]))).select(columns).to_pylist()
    lost, *cut = (
        frozenset(rows.filter(pc.equal(rows["key"], what))["topic_id"].to_pylist())
        for what in (_LOST, _CUT_BROKER, _CUT_HOST)
    )
    has_errors = pc.any(pc.equal(rows["key"], _ERROR)).as_py() or False
    return Overview(named, ends, has_errors, lost, (cut[0], cut[1]))


# ---- the way of a sighting


def keyed(sightings: pa.RecordBatch, overview: Overview) -> pa.RecordBatch:
    """Return rows of `KEYED`: a sighting once for each of its keys; topic ids are replaced by names."""
    by_id = overview.by_id
    kinds = sightings.column("kind")
    names = sightings.column("connection").dictionary_encode()
    known = names.dictionary.to_pylist()
    is_fetched = pc.equal(kinds, SightingKind.FETCHED.value)
    topics = sightings.column("topic").dictionary_encode()
    named = pa.array([by_id.get(topic, topic) for topic in topics.dictionary.to_pylist()], pa.string())
    topic = named.take(topics.indices)
    at = sightings.schema.get_field_index("topic")
    sightings = sightings.set_column(
        at, sightings.schema.field(at), pc.if_else(is_fetched, topic, sightings.column("topic"))
    )

    def of_connection(key: Callable[[str], str]) -> pa.Array:
        return pa.array([key(name) for name in known], pa.string()).take(names.indices)

    to_host = of_connection(lambda name: HOST + client_host(name))
    to_broker = of_connection(lambda name: BROKER + broker_address(name))
    is_read = pc.and_(is_fetched, pc.invert(_is_forbidden(sightings)))
    cut_brokers, cut_hosts = overview.cut
    placed = pc.not_equal(sightings.column("connection"), "")
    is_cluster = pc.equal(kinds, SightingKind.CLUSTER.value)
    by_topic = pc.and_(
        pc.is_in(kinds, pa.array([SightingKind.TOPIC.value, SightingKind.FETCHED.value])), pc.is_valid(topic)
    )
    ways = [
        (pc.and_(placed, _is_by_host(sightings)), to_host),
        (by_topic, pc.binary_join_element_wise(TOPIC, topic, "")),
        (pc.equal(kinds, SightingKind.REFUSED.value), to_broker),
        (pc.and_(pc.is_in(kinds, pa.array(_LINKS)), _are_of(names, broker_address, overview.lost)), to_broker),
        (pc.and_(is_read, _are_of(names, broker_address, cut_brokers)), to_broker),
        (pc.and_(is_read, _are_of(names, client_host, cut_hosts)), to_host),
        (is_cluster, pc.binary_join_element_wise(SOURCE, sightings.column("source"), "")),
        (pc.invert(placed), pa.repeat(pa.scalar(ALL), len(sightings))),
    ]
    parts = [
        pa.RecordBatch.from_arrays([*sightings.filter(wanted).columns, keys.filter(wanted)], schema=KEYED)
        for wanted, keys in ways
    ]
    return joined(parts, KEYED)


def _is_by_host(sightings: pa.RecordBatch) -> pa.Array:
    """Mark those that go to all groups of their client's host."""
    of_others = pc.is_in(sightings.column("kind"), pa.array([SightingKind.CLUSTER.value, SightingKind.FETCHED.value]))
    return pc.or_(pc.invert(of_others), _is_forbidden(sightings))


def _is_forbidden(sightings: pa.RecordBatch) -> pa.Array:
    """Mark partitions that an ACL did not let a client fetch."""
    is_code = pc.fill_null(pc.equal(sightings.column("error_code"), _FORBIDDEN), False)
    return pc.and_(pc.equal(sightings.column("kind"), SightingKind.FETCHED.value), is_code)


def is_error(sightings: pa.RecordBatch) -> pa.Array:
    """Mark what `read_sightings` has in its errors."""
    return pc.or_(pc.equal(sightings.column("kind"), SightingKind.ERROR.value), _is_forbidden(sightings))


def named_interests(rows: pa.RecordBatch, by_id: Mapping[str, str]) -> pa.RecordBatch:
    """Replace topic ids in the keys of `INTEREST` by names.

    :param by_id: see `Overview`
    """
    known = {TOPIC + id_: TOPIC + name for id_, name in by_id.items()}
    keys = rows.column("key").to_pylist()
    named = pa.array([known.get(key, key) for key in keys], pa.string())
    return pa.RecordBatch.from_arrays([named, rows.column("bucket")], schema=INTEREST)


def buckets_by_key(pairs: list[pa.RecordBatch], count: int = BUCKETS) -> dict[str, NDArray[np.int64]]:
    """Return which buckets are interested in each key, of rows of `INTEREST`.

    :param count: how many buckets are apart: of that many, those of the same remainder are one
    """
    found: dict[str, set[int]] = {}
    for batch in pairs:
        for key, bucket in zip(batch.column("key").to_pylist(), batch.column("bucket").to_pylist(), strict=True):
            found.setdefault(key, set()).add(bucket % count)
    return {key: np.array(sorted(buckets), np.int64) for key, buckets in found.items()}


def routed(
    sightings: pa.RecordBatch, buckets: Mapping[str, NDArray[np.int64]]
) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Return rows of `KEYED` once for each bucket that is interested in their key, and the bucket of each.

    :param buckets: by key
    """
    keys = sightings.column("key").dictionary_encode()
    none = np.zeros(0, np.int64)
    of_key = [buckets.get(key, none) for key in keys.dictionary.to_pylist()]
    codes = keys.indices.to_numpy(zero_copy_only=False)
    counts = np.array([len(each) for each in of_key], np.int64)[codes]
    rows = np.repeat(np.arange(len(codes)), counts)
    found = np.concatenate([none, *(of_key[code] for code in codes.tolist() if len(of_key[code]))])
    return sightings.take(pa.array(rows)), found


def received(rows: pa.Table, hosts: Collection[str], overview: Overview) -> pa.Table:
    """Return the sightings of a bucket, each once, and those of the overview, as rows of `Sighting`.

    :param rows: of `KEYED`
    :param hosts: of the clients of its groups
    """
    columns = arrow_schema(Sighting)
    cut_here = overview.cut[1].intersection(hosts)
    wanted = pc.unique(rows["key"])  # a topic that is wanted is the key of all its rows
    batches = []
    for batch in rows.to_batches():
        keys, names = batch.column("key"), batch.column("connection").dictionary_encode()
        came_by_host, came_by_topic = pc.starts_with(keys, HOST), pc.starts_with(keys, TOPIC)
        again = pc.and_(_are_of(names, client_host, hosts), _is_by_host(batch))
        again = pc.and_(again, pc.invert(pc.or_(came_by_host, pc.equal(keys, ALL))))
        by_topic = pc.is_in(pc.binary_join_element_wise(TOPIC, batch.column("topic"), ""), wanted)
        read_again = pc.or_(by_topic, pc.and_(_are_of(names, client_host, cut_here), pc.invert(came_by_host)))
        is_read = pc.and_(pc.equal(batch.column("kind"), _FETCHED), pc.invert(_is_forbidden(batch)))
        read_again = pc.and_(pc.and_(is_read, pc.invert(came_by_topic)), read_again)
        batches.append(batch.filter(pc.invert(pc.or_(again, read_again))).select(columns.names))
    found = pa.Table.from_batches(batches, columns)
    ends = [row for row in overview.ends if not _has(found, row)]
    ends = [row for number, row in enumerate(ends) if row not in ends[:number]]
    return pa.concat_tables([found, table_of(Sighting, [Sighting(**row) for row in ends])])


def _are_of(names: pa.DictionaryArray, name_of: Callable[[str], str], wanted: Collection[str]) -> pa.Array:
    """Mark the connections of these hosts, or brokers; most archives have none that is cut off."""
    if not wanted:
        return pa.repeat(pa.scalar(False), len(names))
    found = [name_of(name) in wanted for name in names.dictionary.to_pylist()]
    return pa.array(found, pa.bool_()).take(names.indices)


def _has(rows: pa.Table, row: Mapping[str, Any]) -> bool:
    return row in rows.filter(pc.equal(rows["time_ns"], row["time_ns"])).to_pylist()
