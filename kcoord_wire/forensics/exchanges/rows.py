"""Requests and responses of one API as `Exchange` rows: decoded and put together by column.

Laws:

* A row says what the two messages say, no more: what the version lacks, or what has no response, is None.
* Where the response does not decode, the row counts as answered, with nothing known of the answer. A blob that does not
  decode is a loss, and None.
* Sound frames are never read one by one; only those of FindCoordinator and LeaveGroup become objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.codec.columns import ColumnDecoder
from kcoord_wire.forensics.exchanges.arrow import Flat, absent, child, flatten, joined, lists, records, take_or_null
from kcoord_wire.forensics.exchanges.decode import Decoded, assembled, note_errors
from kcoord_wire.forensics.exchanges.pairing import BatchMemory
from kcoord_wire.forensics.model import Exchange, arrow_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NO_ID: Final = bytes(16)
# The first versions that ...
_FETCHES_GROUPS: Final = 8  # OffsetFetch: name several groups
_FETCHES_FOR_MEMBER: Final = 9  # OffsetFetch: name the member and its epoch (KIP-848)
_JOINS_WITH_REASON: Final = 8  # KIP-800
_JOINS_WITH_SKIP: Final = 9  # KIP-814
_LEAVES_MEMBERS: Final = 3  # LeaveGroup: name several members (KIP-345)
_LEAVES_WITH_REASON: Final = 5  # KIP-800
_FINDS_SEVERAL: Final = 4  # FindCoordinator: name several groups (KIP-699)


def exchange_rows(pairs: Decoded, memory: BatchMemory) -> pa.RecordBatch:
    """Return the rows of `Exchange` for these pairs: one each, or one for each group that a request names."""
    return _MAKERS[pairs.api](pairs, memory)


def _where(keep: NDArray[np.bool_], column: pa.Array) -> pa.Array:
    """Return the column, null where not `keep`."""
    return column if keep.all() else pc.if_else(pa.array(keep), column, pa.nulls(len(column), column.type))


def _not_empty(column: pa.Array) -> pa.Array:
    """Return the strings of a column, null for the empty one."""
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


# ---- heartbeats


def _heartbeats(pairs: Decoded, _: BatchMemory) -> pa.RecordBatch:
    asked = pairs.asked
    return assembled(
        pairs,
        {
            "group_id": child(asked, "group_id"),
            "member_id": child(asked, "member_id"),
            "instance_id": child(asked, "group_instance_id"),
            "generation_id": child(asked, "generation_id"),
            "error_code": child(pairs.answered, "error_code"),
        },
    )


def _epoch_heartbeats(pairs: Decoded, more: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return the rows of an API in which the coordinator assigns.

    :param more: the columns that not all of these APIs have
    """
    asked, answered = pairs.asked, pairs.answered
    return assembled(
        pairs,
        {
            "group_id": child(asked, "group_id"),
            "member_id": child(asked, "member_id"),
            "generation_id": child(asked, "member_epoch"),
            "error_code": child(answered, "error_code"),
            "given_member_id": _not_empty(child(answered, "member_id")),
            "new_generation_id": child(answered, "member_epoch"),
            **more,
        },
    )


def _consumer_heartbeats(pairs: Decoded, memory: BatchMemory) -> pa.RecordBatch:
    asked = pairs.asked
    given = child(child(pairs.answered, "assignment"), "topic_partitions")
    return _epoch_heartbeats(
        pairs,
        {
            "instance_id": child(asked, "instance_id"),
            "rebalance_timeout_ms": _revocation_timeout(asked),
            "assignor": child(asked, "server_assignor"),
            "topics": child(asked, "subscribed_topic_names"),
            "topic_regex": child(asked, "subscribed_topic_regex"),
            "owned": _named(child(asked, "topic_partitions"), pairs.requests, memory),
            "assignment": _named(given, pairs.responses, memory),
        },
    )


def _share_heartbeats(pairs: Decoded, memory: BatchMemory) -> pa.RecordBatch:
    """Members of a share group do not state what they have: nothing is revoked (KIP-932)."""
    given = child(child(pairs.answered, "assignment"), "topic_partitions")
    return _epoch_heartbeats(
        pairs,
        {
            "topics": child(pairs.asked, "subscribed_topic_names"),
            "assignment": _named(given, pairs.responses, memory),
        },
    )


def _streams_heartbeats(pairs: Decoded, _: BatchMemory) -> pa.RecordBatch:
    """What a member of a streams group owns are active tasks, each a subtopology and a partition (KIP-1071)."""
    asked = pairs.asked
    return _epoch_heartbeats(
        pairs,
        {
            "instance_id": child(asked, "instance_id"),
            "rebalance_timeout_ms": _revocation_timeout(asked),
            "owned": _tasks(child(asked, "active_tasks")),
            "assignment": _tasks(child(pairs.answered, "active_tasks")),
        },
    )


def _revocation_timeout(asked: pa.Array) -> pa.Array:
    timeout = child(asked, "rebalance_timeout_ms")
    return pc.if_else(pc.less(timeout, 0), pa.scalar(None, timeout.type), timeout)


def _tasks(column: pa.Array) -> pa.Array:
    """Return lists of tasks with the names that `_named` gives to those of partitions."""
    flat = flatten(column)
    values = {"topic": child(flat.values, "subtopology_id"), "partitions": child(flat.values, "partitions")}
    return lists(records(values), flat.row, flat.rows, absent(column))


def _named(column: pa.Array, rows: NDArray[np.int64], memory: BatchMemory) -> pa.Array:
    """Replace topic ids by topics in lists of id and partitions. `rows` are the frames that the lists are in."""
    flat = flatten(column)
    ids = child(flat.values, "topic_id").to_pylist()
    names = [memory.topic_name(row, id_) for row, id_ in zip(rows[flat.row].tolist(), ids, strict=True)]
    values = records({"topic": pa.array(names, pa.string()), "partitions": child(flat.values, "partitions")})
    return lists(values, flat.row, flat.rows, absent(column))


# ---- offsets


@dataclass(slots=True)
class _Places:
    """Partitions, with the row (an exchange, or a group in one) that each belongs to."""

    row: NDArray[np.int64]
    topic: pa.Array
    partition: pa.Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.row)

    def labels(self) -> list[tuple[int, str, int]]:
        return list(zip(self.row.tolist(), self.topic.to_pylist(), self.partition.to_pylist(), strict=True))


def _places(topics: Flat, rows: NDArray[np.int64], memory: BatchMemory) -> _Places:
    """Return the partitions of topics. `rows` are the frames that the rows of `topics` are in."""
    names = child(topics.values, "name")
    if topics.values.type.get_field_index("topic_id") >= 0:
        ids = child(topics.values, "topic_id")
        by_id = np.flatnonzero(pc.equal(names, "").to_numpy(zero_copy_only=False))
        if len(by_id):
            given = names.to_pylist()
            for index, id_ in zip(by_id.tolist(), ids.take(pa.array(by_id)).to_pylist(), strict=True):
                if id_ != _NO_ID:
                    given[index] = memory.topic_name(int(rows[topics.row[index]]), id_)
            names = pa.array(given, pa.string())
    inner = flatten(child(topics.values, "partitions"))
    return _Places(
        topics.row[inner.row], take_or_null(names, inner.row), child(inner.values, "partition_index"), inner.values
    )


def _same(left: _Places, right: _Places) -> bool:
    return (
        len(left) == len(right)
        and bool(np.array_equal(left.row, right.row))
        and left.partition.equals(right.partition)
        and left.topic.equals(right.topic)
    )


def _first_errors(codes: pa.Array, row: NDArray[np.int64], base: pa.Array) -> pa.Array:
    """Return the first code of each row that is not 0; `base` where there is none."""
    found = codes.to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(found != 0)
    if not len(wrong):
        return base
    first = wrong[np.unique(row[wrong], return_index=True)[1]]
    codes_of_rows = base.to_numpy(zero_copy_only=False).astype(np.float64)
    rows = row[first]
    rows, first = rows[codes_of_rows[rows] == 0], first[codes_of_rows[rows] == 0]
    codes_of_rows[rows] = found[first]
    return pa.array(codes_of_rows, mask=np.isnan(codes_of_rows)).cast(pa.int16())


def _offset_commits(pairs: Decoded, memory: BatchMemory) -> pa.RecordBatch:
    asked = pairs.asked
    wanted = _places(flatten(child(asked, "topics")), pairs.requests, memory)
    given = _places(flatten(child(pairs.answered, "topics")), pairs.responses, memory)
    codes = child(given.values, "error_code")
    answered = pairs.has_answer[wanted.row]
    within = _Places(wanted.row, wanted.topic, wanted.partition, None)
    if not answered.all():
        picked = np.flatnonzero(answered)
        within = _Places(
            wanted.row[picked], take_or_null(wanted.topic, picked), take_or_null(wanted.partition, picked), None
        )
    if _same(within, given):
        errors = take_or_null(codes, np.where(answered, np.cumsum(answered) - 1, -1))
    else:
        by_place = dict(zip(given.labels(), codes.to_pylist(), strict=True))
        errors = pa.array([by_place.get(place) for place in wanted.labels()], pa.int16())
    offsets = records(
        {
            "topic": wanted.topic,
            "partition": wanted.partition,
            "offset": child(wanted.values, "committed_offset"),
            "error_code": errors,
        }
    )
    well = pa.array(np.zeros(len(pairs), np.int16), mask=~pairs.has_answer)
    return assembled(
        pairs,
        {
            "group_id": child(asked, "group_id"),
            "member_id": child(asked, "member_id"),
            "instance_id": child(asked, "group_instance_id"),
            "generation_id": child(asked, "generation_id_or_member_epoch"),
            "error_code": _first_errors(codes, given.row, well),
            "offsets": lists(offsets, wanted.row, len(pairs)),
        },
    )


def _fetched(topics: pa.Array, rows: NDArray[np.int64], memory: BatchMemory) -> tuple[pa.Array, _Places]:
    places = _places(flatten(topics), rows, memory)
    offsets = records(
        {
            "topic": places.topic,
            "partition": places.partition,
            "offset": child(places.values, "committed_offset"),
            "error_code": child(places.values, "error_code"),
        }
    )
    return lists(offsets, places.row, len(topics), absent(topics)), places


def _offset_fetches(pairs: Decoded, memory: BatchMemory) -> pa.RecordBatch:
    """Version 8 names several groups, and each becomes a row; earlier ones name one."""
    of_groups = pairs.versions >= _FETCHES_GROUPS
    single, several = (np.flatnonzero(wanted) for wanted in (~of_groups, of_groups))
    made = []
    if len(single):
        answered = take_or_null(pairs.answered, single)
        offsets, places = _fetched(child(answered, "topics"), pairs.responses[single], memory)
        codes = child(places.values, "error_code")
        columns = {
            "group_id": take_or_null(child(pairs.asked, "group_id"), single),
            "error_code": _first_errors(codes, places.row, child(answered, "error_code")),
            "offsets": offsets,
        }
        made.append(assembled(pairs, columns, single))
    if len(several):
        made.append(_offset_fetches_of_groups(pairs, several, memory))
    return joined(made, arrow_schema(Exchange))


def _offset_fetches_of_groups(pairs: Decoded, several: NDArray[np.int64], memory: BatchMemory) -> pa.RecordBatch:
    wanted = flatten(child(take_or_null(pairs.asked, several), "groups"))
    given = flatten(child(take_or_null(pairs.answered, several), "groups"))
    group_ids, given_ids = child(wanted.values, "group_id"), child(given.values, "group_id")
    of = several[wanted.row]
    answer = np.full(len(wanted), -1)
    in_order = np.flatnonzero(pairs.has_answer[of])
    if len(in_order) == len(given) and take_or_null(group_ids, in_order).equals(given_ids):
        answer[in_order] = np.arange(len(given))
    else:
        by_name = {
            place: index for index, place in enumerate(zip(given.row.tolist(), given_ids.to_pylist(), strict=True))
        }
        names = zip(wanted.row.tolist(), group_ids.to_pylist(), strict=True)
        answer = np.array([by_name.get(place, -1) for place in names], np.int64)
    answers = take_or_null(given.values, answer)
    offsets, places = _fetched(child(answers, "topics"), pairs.responses[of], memory)
    epochs = child(wanted.values, "member_epoch")
    columns = {
        "group_id": group_ids,
        "member_id": child(wanted.values, "member_id"),
        "generation_id": _where(pairs.versions[of] >= _FETCHES_FOR_MEMBER, epochs),
        "error_code": _first_errors(child(places.values, "error_code"), places.row, child(answers, "error_code")),
        "offsets": offsets,
    }
    return assembled(pairs, columns, of)


# ---- joins and syncs, whose blobs are the clients' own


@cache
def _blob_decoder(message: str, columns: tuple[str, ...]) -> ColumnDecoder:
    return ColumnDecoder([message], form="prefixed", columns=[f"{message}.{name}" for name in columns], strict=False)


def _subscriptions(
    blobs: pa.Array, assignors: pa.Array, consumers: NDArray[np.bool_], rows: NDArray[np.int64], memory: BatchMemory
) -> pa.Array:
    """Return the blobs as `Subscription`.

    :param assignors: what the user data is for
    :param consumers: which have the protocol type of consumers
    """
    name = "ConsumerProtocolSubscription"
    decoder = _blob_decoder(name, ("topics", "user_data", "owned_partitions", "generation_id", "rack_id"))
    found = decoder.decode(_where(consumers, blobs))
    note_errors(found.column("error"), rows, name, "blob", memory)
    read = found.column(name)
    return records(
        {
            "topics": child(read, "topics"),
            "owned": child(read, "owned_partitions"),
            "generation_id": _generations(child(read, "generation_id"), child(read, "user_data"), assignors),
            "rack_id": child(read, "rack_id"),
            "metadata": blobs,
        }
    )


def _generations(stated: pa.Array, user_data: pa.Array, assignors: pa.Array) -> pa.Array:
    """Return the generations of the owned partitions.

    Where a version has none (before KIP-792), cooperative-sticky has it at the end of its user data.
    """
    lacking = pc.and_(pc.less(stated, 0), pc.greater_equal(pc.binary_length(user_data), _GENERATION_BYTES))
    lacking = pc.fill_null(pc.and_(lacking, pc.equal(assignors, _COOPERATIVE_STICKY)), False)
    rows = np.flatnonzero(lacking.to_numpy(zero_copy_only=False))
    if not len(rows):
        return stated
    found = stated.to_numpy(zero_copy_only=False).astype(np.float64)
    tails = pc.binary_slice(take_or_null(user_data, rows), -_GENERATION_BYTES).to_pylist()
    found[rows] = np.frombuffer(b"".join(tails), ">i4")
    return pa.array(found, mask=np.isnan(found)).cast(pa.int32())


def _assignments(
    blobs: pa.Array, consumers: NDArray[np.bool_], rows: NDArray[np.int64], memory: BatchMemory
) -> pa.Array:
    """Return the blobs as lists of topic and partitions. An empty blob means no partitions, as for clients."""
    name = "ConsumerProtocolAssignment"
    empty = pc.equal(pc.binary_length(blobs), 0)
    given = pc.if_else(empty, pa.scalar(_NO_PARTITIONS, pa.binary()), blobs)
    found = _blob_decoder(name, ("assigned_partitions",)).decode(_where(consumers, given))
    note_errors(found.column("error"), rows, name, "blob", memory)
    return child(found.column(name), "assigned_partitions")


_NO_PARTITIONS: Final = bytes(10)  # version 0, no topics, no user data
_CONSUMER: Final = "consumer"
_COOPERATIVE_STICKY: Final = "cooperative-sticky"
_GENERATION_BYTES: Final = 4


def _joins(pairs: Decoded, memory: BatchMemory) -> pa.RecordBatch:
    asked, answered, versions = pairs.asked, pairs.answered, pairs.versions
    group_ids, kinds = child(asked, "group_id"), child(asked, "protocol_type")
    for row, group_id, kind in zip(pairs.requests.tolist(), group_ids.to_pylist(), kinds.to_pylist(), strict=True):
        memory.joins_as(row, group_id, kind)
    consumers = pc.equal(kinds, _CONSUMER).to_numpy(zero_copy_only=False)
    protocols = flatten(child(asked, "protocols"))
    metadata, names = child(protocols.values, "metadata"), child(protocols.values, "name")
    subscriptions = _subscriptions(metadata, names, consumers[protocols.row], pairs.requests[protocols.row], memory)
    offered = records({"assignor": names, "subscription": subscriptions})
    given = child(answered, "members")
    members = flatten(given)
    metadata, chosen = child(members.values, "metadata"), take_or_null(child(answered, "protocol_name"), members.row)
    subscriptions = _subscriptions(metadata, chosen, consumers[members.row], pairs.responses[members.row], memory)
    listed = records(
        {
            "member_id": child(members.values, "member_id"),
            "instance_id": child(members.values, "group_instance_id"),
            "subscription": subscriptions,
        }
    )
    session, rebalance = child(asked, "session_timeout_ms"), child(asked, "rebalance_timeout_ms")
    return assembled(
        pairs,
        {
            "group_id": group_ids,
            "member_id": child(asked, "member_id"),
            "instance_id": child(asked, "group_instance_id"),
            "session_timeout_ms": session,
            "rebalance_timeout_ms": pc.if_else(pa.array(versions == 0), session, rebalance),
            "reason": _where(versions >= _JOINS_WITH_REASON, child(asked, "reason")),
            "protocol_type": kinds,
            "offered": lists(offered, protocols.row, len(pairs)),
            "error_code": child(answered, "error_code"),
            "given_member_id": _not_empty(child(answered, "member_id")),
            "new_generation_id": child(answered, "generation_id"),
            "assignor": _not_empty(child(answered, "protocol_name")),
            "leader_id": _not_empty(child(answered, "leader")),
            "skip_assignment": _where(versions >= _JOINS_WITH_SKIP, child(answered, "skip_assignment")),
            "members": lists(listed, members.row, len(pairs), absent(given)),
        },
    )


def _syncs(pairs: Decoded, memory: BatchMemory) -> pa.RecordBatch:
    asked, answered = pairs.asked, pairs.answered
    group_ids, kinds = child(asked, "group_id"), child(asked, "protocol_type")
    known = [
        (kind or memory.protocol_type(row, group_id) or _CONSUMER) == _CONSUMER
        for row, group_id, kind in zip(pairs.requests.tolist(), group_ids.to_pylist(), kinds.to_pylist(), strict=True)
    ]
    consumers = np.array(known, np.bool_)
    given = flatten(child(asked, "assignments"))
    partitions = _assignments(
        child(given.values, "assignment"), consumers[given.row], pairs.requests[given.row], memory
    )
    assignments = records({"member_id": child(given.values, "member_id"), "partitions": partitions})
    codes = child(answered, "error_code")
    fine = pc.fill_null(pc.equal(codes, 0), False).to_numpy(zero_copy_only=False)
    return assembled(
        pairs,
        {
            "group_id": group_ids,
            "member_id": child(asked, "member_id"),
            "instance_id": child(asked, "group_instance_id"),
            "generation_id": child(asked, "generation_id"),
            "protocol_type": kinds,
            "assignments": lists(assignments, given.row, len(pairs)),
            "error_code": codes,
            "assignment": _assignments(child(answered, "assignment"), consumers & fine, pairs.responses, memory),
        },
    )


# ---- the rare ones, row by row


def _leaves(pairs: Decoded, _: BatchMemory) -> pa.RecordBatch:
    departures = []
    asked, answered = pairs.asked.to_pylist(), pairs.answered.to_pylist()
    for version, request, response in zip(pairs.versions.tolist(), asked, answered, strict=True):
        if version < _LEAVES_MEMBERS:
            code = response and response["error_code"]
            departures.append([_departure(request["member_id"], None, None, code)])
            continue
        given = response["members"] if response else []
        by_name = {(member["member_id"], member["group_instance_id"]): member["error_code"] for member in given}
        departures.append(
            [
                _departure(
                    member["member_id"],
                    member["group_instance_id"],
                    member["reason"] if version >= _LEAVES_WITH_REASON else None,
                    by_name.get((member["member_id"], member["group_instance_id"])),
                )
                for member in request["members"]
            ]
        )
    kind = arrow_schema(Exchange).field("departures").type
    return assembled(
        pairs,
        {
            "group_id": child(pairs.asked, "group_id"),
            "member_id": child(pairs.asked, "member_id"),
            "error_code": child(pairs.answered, "error_code"),
            "departures": pa.array(departures, kind),
        },
    )


def _departure(member_id: str, instance_id: str | None, reason: str | None, code: int | None) -> dict[str, Any]:
    return {"member_id": member_id, "instance_id": instance_id, "reason": reason, "error_code": code}


def _find_coordinators(pairs: Decoded, _: BatchMemory) -> pa.RecordBatch:
    """A row per group; coordinators of transactions and share groups are left out."""
    of, group_ids, codes, coordinators = [], [], [], []
    asked, answered = pairs.asked.to_pylist(), pairs.answered.to_pylist()
    for pair, (version, request, response) in enumerate(zip(pairs.versions.tolist(), asked, answered, strict=True)):
        if request["key_type"]:
            continue
        given: dict[str, Any] = {}
        if response and version < _FINDS_SEVERAL:
            given = {request["key"]: response}
        elif response:
            given = {coordinator["key"]: coordinator for coordinator in response["coordinators"]}
        for group_id in request["coordinator_keys"] if version >= _FINDS_SEVERAL else [request["key"]]:
            answer = given.get(group_id)
            of.append(pair)
            group_ids.append(group_id)
            codes.append(answer and answer["error_code"])
            coordinators.append(f"{answer['host']}:{answer['port']}" if answer and not answer["error_code"] else None)
    columns = {
        "group_id": pa.array(group_ids, pa.string()),
        "error_code": pa.array(codes, pa.int16()),
        "coordinator": pa.array(coordinators, pa.string()),
    }
    return assembled(pairs, columns, np.array(of, np.int64))


def _share_fetches(pairs: Decoded, memory: BatchMemory) -> pa.RecordBatch:
    """Only those that deliver records again: of others a member that reads has one every half second (KIP-932)."""
    topics = flatten(child(pairs.answered, "responses"))
    parts = flatten(child(topics.values, "partitions"))
    given = flatten(child(parts.values, "acquired_records"))
    again = np.flatnonzero(pc.greater(child(given.values, "delivery_count"), 1).to_numpy(zero_copy_only=False))
    part = given.row[again]
    topic = parts.row[part]
    of_pair = topics.row[topic]
    ids = child(topics.values, "topic_id").take(pa.array(topic)).to_pylist()
    rows = pairs.responses[of_pair].tolist()
    names = [memory.topic_name(row, id_) for row, id_ in zip(rows, ids, strict=True)]
    values = {name: take_or_null(child(given.values, name), again) for name in ("first_offset", "last_offset")}
    redelivered = records(
        {
            "topic": pa.array(names, pa.string()),
            "partition": take_or_null(child(parts.values, "partition_index"), part),
            **values,
            "deliveries": take_or_null(child(given.values, "delivery_count"), again),
        }
    )
    of, row = np.unique(of_pair, return_inverse=True)
    columns = {
        "group_id": take_or_null(child(pairs.asked, "group_id"), of),
        "member_id": take_or_null(child(pairs.asked, "member_id"), of),
        "error_code": take_or_null(child(pairs.answered, "error_code"), of),
        "redelivered": lists(redelivered, row, len(of)),
    }
    return assembled(pairs, columns, of)


_MAKERS: Final[Mapping[str, Callable[[Decoded, BatchMemory], pa.RecordBatch]]] = {
    "OffsetCommit": _offset_commits,
    "OffsetFetch": _offset_fetches,
    "FindCoordinator": _find_coordinators,
    "JoinGroup": _joins,
    "Heartbeat": _heartbeats,
    "LeaveGroup": _leaves,
    "SyncGroup": _syncs,
    "ConsumerGroupHeartbeat": _consumer_heartbeats,
    "ShareFetch": _share_fetches,
    "ShareGroupHeartbeat": _share_heartbeats,
    "StreamsGroupHeartbeat": _streams_heartbeats,
}
