"""Frames to match, and what their exchanges have to be, made message by message from decoded objects.

`rows_of` is the plain account of what an `Exchange` says; the package comes to the same by columns.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import kcoord_wire as kw
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.model import Exchange, Frame, Sighting, arrow_schema, table_of

NO_ID = "00000000-0000-0000-0000-000000000000"


def batch(frames: Sequence[Frame]) -> pa.RecordBatch:
    batches = table_of(Frame, list(frames)).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], arrow_schema(Frame))


def match_all(batches: Iterable[pa.RecordBatch]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Matcher]:
    """Return all exchanges and sightings as dicts, and the matcher."""
    matcher = Matcher()
    exchanges, topics = [], []
    for frames in batches:
        exchange, topic = matcher.feed(frames)
        exchanges.append(exchange)
        topics.append(topic)
    exchange, topic = matcher.finish()
    tables = [
        pa.Table.from_batches([*rows, last], arrow_schema(row))
        for rows, last, row in ((exchanges, exchange, Exchange), (topics, topic, Sighting))
    ]
    for table in tables:
        table.validate(full=True)
    return tables[0].to_pylist(), tables[1].to_pylist(), matcher


def canonical(rows: Iterable[Any]) -> list[str]:
    """Return the rows in an order that does not depend on theirs."""
    return sorted(repr(row) for row in rows)


@dataclass
class Talk:
    """A connection with its frames; they get their seq when `mixed` mixes them with others."""

    number: int
    source: str = "made.pcap"
    client_id: str | None = "client"

    def __post_init__(self) -> None:
        self.name = f"10.0.0.{self.number}:5000{self.number % 10}-10.9.9.9:9092#{self.number}"
        self.frames: list[Frame] = []

    def _say(self, direction: str, body: bytes = b"", error: str | None = None, lost: int = 0) -> None:
        self.frames.append(Frame(self.source, 0, 0, 0, self.name, direction, body, error, lost))

    def open(self) -> None:
        self._say("opened")

    def close(self) -> None:
        self._say("closed")

    def ask(self, message: Any, version: int, correlation_id: int) -> None:
        self._say(
            "request", kw.encode_request(message, version, correlation_id=correlation_id, client_id=self.client_id)
        )

    def answer(self, message: Any, version: int, correlation_id: int) -> None:
        self._say("response", kw.encode_response(message, version, correlation_id=correlation_id))

    def raw(self, direction: str, body: bytes, error: str | None = None, lost: int = 0) -> None:
        self._say(direction, body, error, lost)


def mixed(talks: Sequence[Talk], rng: random.Random) -> list[Frame]:
    """Return the frames of all connections, those of each in order.

    Frames are numbered as they first come, so that the numbers do not depend on the mixture.
    """
    seq = 0
    for talk in talks:
        for frame in talk.frames:
            frame.seq = frame.position = seq
            frame.time_ns = 1_000 * seq
            seq += 1
    left = [list(reversed(talk.frames)) for talk in talks]
    found = []
    while left := [frames for frames in left if frames]:
        frames = rng.choice(left)
        for _ in range(rng.choice((1, 1, 2, 50))):
            if frames:
                found.append(frames.pop())
    return found


def cut_anywhere(frames: Sequence[Frame], rng: random.Random) -> list[pa.RecordBatch]:
    """Return the frames in batches of any size, also of none and of one."""
    batches, at = [], 0
    most = rng.choice((5, 20, 100, len(frames)))
    while at < len(frames):
        size = rng.randint(0, most)
        batches.append(batch(frames[at : at + size]))
        at += size
    return batches


# ---- the plain account


def pair_rows(frame: Any, answer: Any | None, seq: int, answer_seq: int | None, source: str) -> list[dict[str, Any]]:
    """Return the exchanges of a request and its response, two `CapturedFrame`; positions are those of a `Talk`."""
    host = frame.connection.partition("-")[0].rpartition(":")[0].strip("[]")
    common = {
        "api": frame.api,
        "api_version": frame.api_version,
        "source": source,
        "seq": seq,
        "answer_seq": answer_seq,
        "position": seq,
        "answer_position": answer_seq,
        "connection": frame.connection,
        "client_id": frame.client_id,
        "client_host": host,
        "asked_ns": frame.time_ns,
        "answered_ns": answer.time_ns if answer else None,
    }
    reply = answer.message if answer else None
    return [
        dict.fromkeys(EMPTY) | {"member_id": ""} | common | row
        for row in rows_of(frame.message, reply, frame.api_version)
    ]


EMPTY = arrow_schema(Exchange).names


def rows_of(asked: Any, reply: Any | None, version: int) -> list[dict[str, Any]]:
    """Return the columns of the API, as dicts of those that are not None."""
    maker = globals().get(f"_of_{type(asked).__name__.removesuffix('Request')}")
    return maker(asked, reply, version) if maker else []


def _partitions(topics: Iterable[Any]) -> list[dict[str, Any]]:
    return [
        {"topic": getattr(topic, "topic", None) or f"id:{topic.topic_id.hex}", "partitions": list(topic.partitions)}
        for topic in topics
    ]


def _label(topic: Any) -> str:
    by_id = not topic.name and str(getattr(topic, "topic_id", NO_ID)) != NO_ID
    return f"id:{topic.topic_id.hex}" if by_id else topic.name


def _decoded(cls: type, blob: bytes) -> Any:
    try:
        return kw.decode_prefixed(cls, blob, strict=False)[1]
    except kw.DecodeError:
        return None


def _subscription(blob: bytes, consumer: bool, assignor: str | None) -> dict[str, Any]:
    found = _decoded(kw.ConsumerProtocolSubscription, blob) if consumer else None
    if found and found.generation_id < 0 and assignor == "cooperative-sticky" and len(found.user_data or b"") >= 4:
        found.generation_id = int.from_bytes(found.user_data[-4:], "big", signed=True)
    return {
        "topics": list(found.topics) if found else None,
        "owned": _partitions(found.owned_partitions) if found else None,
        "generation_id": found.generation_id if found else None,
        "rack_id": found.rack_id if found else None,
        "metadata": blob,
    }


def _assignment(blob: bytes) -> list[dict[str, Any]] | None:
    if not blob:
        return []
    found = _decoded(kw.ConsumerProtocolAssignment, blob)
    return _partitions(found.assigned_partitions) if found else None


def _of_Heartbeat(asked: Any, reply: Any, _: int) -> list[dict[str, Any]]:
    return [
        {
            "group_id": asked.group_id,
            "member_id": asked.member_id,
            "instance_id": asked.group_instance_id,
            "generation_id": asked.generation_id,
            "error_code": reply.error_code if reply else None,
        }
    ]


def _of_JoinGroup(asked: Any, reply: Any, version: int) -> list[dict[str, Any]]:
    consumer = asked.protocol_type == "consumer"
    row = {
        "group_id": asked.group_id,
        "member_id": asked.member_id,
        "instance_id": asked.group_instance_id,
        "session_timeout_ms": asked.session_timeout_ms,
        "rebalance_timeout_ms": asked.rebalance_timeout_ms if version else asked.session_timeout_ms,
        "reason": asked.reason,
        "protocol_type": asked.protocol_type,
        "offered": [
            {"assignor": protocol.name, "subscription": _subscription(protocol.metadata, consumer, protocol.name)}
            for protocol in asked.protocols
        ],
    }
    if reply:
        row |= {
            "error_code": reply.error_code,
            "given_member_id": reply.member_id or None,
            "new_generation_id": reply.generation_id,
            "assignor": reply.protocol_name or None,
            "leader_id": reply.leader or None,
            "skip_assignment": reply.skip_assignment if version >= 9 else None,
            "members": [
                {
                    "member_id": member.member_id,
                    "instance_id": member.group_instance_id,
                    "subscription": _subscription(member.metadata, consumer, reply.protocol_name),
                }
                for member in reply.members
            ],
        }
    return [row]


def _of_SyncGroup(asked: Any, reply: Any, _: int) -> list[dict[str, Any]]:
    consumer = asked.protocol_type in (None, "consumer")
    row = {
        "group_id": asked.group_id,
        "member_id": asked.member_id,
        "instance_id": asked.group_instance_id,
        "generation_id": asked.generation_id,
        "protocol_type": asked.protocol_type,
        "assignments": [
            {"member_id": given.member_id, "partitions": _assignment(given.assignment) if consumer else None}
            for given in asked.assignments
        ],
    }
    if reply:
        row["error_code"] = reply.error_code
        row["assignment"] = _assignment(reply.assignment) if consumer and not reply.error_code else None
    return [row]


def _of_LeaveGroup(asked: Any, reply: Any, version: int) -> list[dict[str, Any]]:
    row = {
        "group_id": asked.group_id,
        "member_id": asked.member_id,
        "error_code": reply.error_code if reply else None,
    }
    members = [(asked.member_id, None, None)]
    codes = {(asked.member_id, None): row["error_code"]}
    if version >= 3:
        members = [(member.member_id, member.group_instance_id, member.reason) for member in asked.members]
        answers = reply.members if reply else []
        codes = {(member.member_id, member.group_instance_id): member.error_code for member in answers}
    names = ("member_id", "instance_id", "reason", "error_code")
    row["departures"] = [dict(zip(names, (*member, codes.get(member[:2])), strict=True)) for member in members]
    return [row]


def _offsets(topics: Iterable[Any]) -> list[dict[str, Any]]:
    return [
        {
            "topic": _label(topic),
            "partition": partition.partition_index,
            "offset": partition.committed_offset,
            "error_code": partition.error_code,
        }
        for topic in topics
        for partition in topic.partitions
    ]


def _first(codes: Iterable[int]) -> int:
    return next((code for code in codes if code), 0)


def _of_OffsetCommit(asked: Any, reply: Any, _: int) -> list[dict[str, Any]]:
    answers = reply.topics if reply else []
    codes = {
        (_label(topic), partition.partition_index): partition.error_code
        for topic in answers
        for partition in topic.partitions
    }
    return [
        {
            "group_id": asked.group_id,
            "member_id": asked.member_id,
            "instance_id": asked.group_instance_id,
            "generation_id": asked.generation_id_or_member_epoch,
            "error_code": _first(part.error_code for topic in answers for part in topic.partitions) if reply else None,
            "offsets": [
                {
                    "topic": _label(topic),
                    "partition": partition.partition_index,
                    "offset": partition.committed_offset,
                    "error_code": codes.get((_label(topic), partition.partition_index)),
                }
                for topic in asked.topics
                for partition in topic.partitions
            ],
        }
    ]


def _of_OffsetFetch(asked: Any, reply: Any, version: int) -> list[dict[str, Any]]:
    rows = []
    groups = asked.groups if version >= 8 else [asked]
    answers: dict[str, Any] = {}
    if reply:
        answers = {group.group_id: group for group in reply.groups} if version >= 8 else {asked.group_id: reply}
    for group in groups:
        row: dict[str, Any] = {"group_id": group.group_id}
        if version >= 8:
            row["member_id"] = group.member_id or ""
        if version >= 9:
            row["generation_id"] = group.member_epoch
        if answer := answers.get(group.group_id):
            row["offsets"] = _offsets(answer.topics)
            row["error_code"] = answer.error_code or _first(offset["error_code"] for offset in row["offsets"])
        rows.append(row)
    return rows


def _of_FindCoordinator(asked: Any, reply: Any, version: int) -> list[dict[str, Any]]:
    if asked.key_type:
        return []
    answers: dict[str, Any] = {}
    if reply:
        answers = {one.key: one for one in reply.coordinators} if version >= 4 else {asked.key: reply}
    rows = []
    for key in asked.coordinator_keys if version >= 4 else [asked.key]:
        row = {"group_id": key}
        if answer := answers.get(key):
            row["error_code"] = answer.error_code
            row["coordinator"] = None if answer.error_code else f"{answer.host}:{answer.port}"
        rows.append(row)
    return rows


def _of_epochs(asked: Any, reply: Any) -> dict[str, Any]:
    row = {"group_id": asked.group_id, "member_id": asked.member_id, "generation_id": asked.member_epoch}
    if reply:
        row |= {
            "error_code": reply.error_code,
            "given_member_id": reply.member_id or None,
            "new_generation_id": reply.member_epoch,
        }
    return row


def _of_ShareGroupHeartbeat(asked: Any, reply: Any, _: int) -> list[dict[str, Any]]:
    row = _of_epochs(asked, reply) | {"topics": asked.subscribed_topic_names}
    if reply and reply.assignment is not None:
        row["assignment"] = _partitions(reply.assignment.topic_partitions)
    return [row]


def _tasks(given: Iterable[Any] | None) -> list[dict[str, Any]] | None:
    if given is None:
        return None
    return [{"topic": each.subtopology_id, "partitions": list(each.partitions)} for each in given]


def _of_StreamsGroupHeartbeat(asked: Any, reply: Any, _: int) -> list[dict[str, Any]]:
    timeout = asked.rebalance_timeout_ms
    more = {"instance_id": asked.instance_id, "rebalance_timeout_ms": timeout if timeout >= 0 else None}
    row = _of_epochs(asked, reply) | more | {"owned": _tasks(asked.active_tasks)}
    return [row | {"assignment": _tasks(reply.active_tasks)} if reply else row]


def _of_ShareFetch(asked: Any, reply: Any, _: int) -> list[dict[str, Any]]:
    again = [
        {
            "topic": f"id:{topic.topic_id.hex}",
            "partition": part.partition_index,
            "first_offset": each.first_offset,
            "last_offset": each.last_offset,
            "deliveries": each.delivery_count,
        }
        for topic in (reply.responses if reply else ())
        for part in topic.partitions
        for each in part.acquired_records
        if each.delivery_count > 1
    ]
    if not again:
        return []
    names = {"group_id": asked.group_id, "member_id": asked.member_id or ""}
    return [names | {"error_code": reply.error_code, "redelivered": again}]


def _of_ConsumerGroupHeartbeat(asked: Any, reply: Any, _: int) -> list[dict[str, Any]]:
    owned = asked.topic_partitions
    row = _of_epochs(asked, reply) | {
        "instance_id": asked.instance_id,
        "rebalance_timeout_ms": asked.rebalance_timeout_ms if asked.rebalance_timeout_ms >= 0 else None,
        "assignor": asked.server_assignor,
        "topics": asked.subscribed_topic_names,
        "topic_regex": asked.subscribed_topic_regex,
        "owned": None if owned is None else _partitions(owned),
    }
    if reply:
        given = reply.assignment
        row["assignment"] = None if given is None else _partitions(given.topic_partitions)
    return [row]
