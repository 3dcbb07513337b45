"""What is decoded: batches of frames as they come from captures, and the ways from them to columns.

The way through objects is the best that we know how to write: the native codec's messages, then an array of each
attribute's values, nested lists flattened; pyarrow takes longer over dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import kcoord_wire as kw
from kcoord_wire.codec.columns import ColumnDecoder
from kcoord_wire.codec.columns.pure import column
from kcoord_wire.codec.columns.shape import arrow_type, shape_of

Way = Callable[["Case"], Callable[[pa.Array], Any]]
SIZE = 500  # bytes of a JoinGroup request


@dataclass(frozen=True)
class Case:
    """A batch. `arguments` is what `decode` takes beside the frames, `two` the two columns of a projection."""

    key: str
    title: str
    messages: list[str]
    make: Callable[[int], list[bytes]]
    rows: int
    two: list[str]
    form: str = "request"
    arguments: dict[str, Any] = field(default_factory=dict)

    def frames(self, quick: bool) -> pa.Array:
        return pa.array(self.make(20 if quick else self.rows), pa.binary())


def join(i: int, metadata: int) -> bytes:
    names = ("range", "cooperative-sticky")
    protocols = [kw.JoinGroupRequestProtocol(name=name, metadata=blob(i, metadata // 2)) for name in names]
    request = kw.JoinGroupRequest(
        group_id=f"payments-settlement-{i % 100:03d}",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id=f"payments-consumer-{i % 1000:04d}-3f2c1b9a-77aa-4c7e-9a55-0c8a7f1b2d3e",
        protocol_type="consumer",
        protocols=protocols,
        reason="need to re-join with the given member-id",
    )
    return kw.encode_request(request, 9, correlation_id=i, client_id=f"payments-consumer-{i % 50:02d}")


def blob(i: int, size: int) -> bytes:
    """A subscription, with user data up to the size."""
    topics = [f"payments.settlements.{i % 7}"]
    bare = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=topics, user_data=b""), 1)
    filling = bytes(k * 7 & 0xFF for k in range(max(0, size - len(bare))))
    return kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=topics, user_data=filling), 1)


def joins(n: int) -> list[bytes]:
    metadata = SIZE - len(join(0, 0)) + 2 * len(blob(0, 0))
    made = [join(i, metadata) for i in range(n)]
    assert abs(len(made[0]) - SIZE) <= 2, len(made[0])
    return made


def beat(i: int) -> bytes:
    request = kw.HeartbeatRequest(
        group_id=f"payments-settlement-{i % 100:03d}",
        generation_id=i % 40,
        member_id=f"payments-consumer-{i % 1000:04d}-3f2c1b9a-77aa-4c7e-9a55-0c8a7f1b2d3e",
    )
    return kw.encode_request(request, 4, correlation_id=i, client_id=f"payments-consumer-{i % 50:02d}")


def commit(i: int) -> bytes:
    partitions = [
        kw.OffsetCommitRequestPartition(partition_index=k, committed_offset=i * 100 + k, committed_metadata="")
        for k in range(6)
    ]
    topic = kw.OffsetCommitRequestTopic(name=f"payments.settlements.{i % 7}", partitions=partitions)
    request = kw.OffsetCommitRequest(
        group_id=f"payments-settlement-{i % 100:03d}",
        generation_id_or_member_epoch=i % 40,
        member_id=f"payments-consumer-{i % 1000:04d}-3f2c1b9a-77aa-4c7e-9a55-0c8a7f1b2d3e",
        topics=[topic],
    )
    return kw.encode_request(request, 8, correlation_id=i, client_id=f"payments-consumer-{i % 50:02d}")


def sync(i: int) -> bytes:
    request = kw.SyncGroupRequest(
        group_id=f"payments-settlement-{i % 100:03d}", generation_id=i % 40, member_id="m" * 50
    )
    return kw.encode_request(request, 5, correlation_id=i, client_id=f"payments-consumer-{i % 50:02d}")


def stream(n: int) -> list[bytes]:
    """Of twenty requests thirteen heartbeats and four commits, as a group at rest sends; and what a rebalance adds."""
    makers = [beat, beat, commit, beat, beat, beat, join_of_stream, beat, commit, beat]
    makers += [beat, sync, beat, commit, beat, beat, leave, beat, commit, beat]
    return [makers[i * 7 % 20](i) for i in range(n)]


def join_of_stream(i: int) -> bytes:
    return join(i, 300)


def leave(i: int) -> bytes:
    member = kw.LeaveGroupRequestMemberIdentity(member_id="m" * 50, reason="the consumer is being closed")
    request = kw.LeaveGroupRequest(group_id=f"payments-settlement-{i % 100:03d}", members=[member])
    return kw.encode_request(request, 5, correlation_id=i, client_id=f"payments-consumer-{i % 50:02d}")


def answers(n: int) -> list[bytes]:
    members = [
        kw.JoinGroupResponseMember(
            member_id=f"payments-consumer-{k:04d}-3f2c1b9a-77aa-4c7e-9a55-0c8a7f1b2d3e", metadata=blob(k, 80)
        )
        for k in range(100)
    ]
    leader = members[0].member_id
    response = kw.JoinGroupResponse(
        generation_id=3,
        protocol_type="consumer",
        protocol_name="range",
        leader=leader,
        member_id=leader,
        members=members,
    )
    return [kw.encode_response(response, 9, correlation_id=i) for i in range(n)]


GROUP = ["JoinGroupRequest", "SyncGroupRequest", "HeartbeatRequest", "LeaveGroupRequest", "OffsetCommitRequest"]
CASES = [
    Case("join", "JoinGroup requests of 500 bytes", ["JoinGroupRequest"], joins, 8192, ["group_id", "member_id"]),
    Case(
        "beats",
        "Heartbeats",
        ["HeartbeatRequest"],
        lambda n: [beat(i) for i in range(n)],
        16384,
        ["group_id", "member_id"],
    ),
    Case("stream", "requests of five apis, mixed", GROUP, stream, 16384, ["group_id", "member_id"]),
    Case(
        "answers",
        "JoinGroup responses with 100 members",
        ["JoinGroupResponse"],
        answers,
        300,
        ["generation_id", "members.member_id"],
        "response",
        {"keys": 11, "versions": 9},
    ),
]


def decoding(**options: Any) -> Way:
    def way(case: Case) -> Callable[[pa.Array], Any]:
        chosen = {"columns": case.two} if options.get("two") else {}
        views = bool(options.get("views"))
        made = ColumnDecoder(case.messages, form=case.form, views=views, **chosen)  # type: ignore[arg-type]
        return lambda frames: made.decode(frames, **case.arguments)

    return way


def through_objects(case: Case) -> Callable[[pa.Array], Any]:
    shapes = {name: shape_of(kw.registry[name]) for name in case.messages}
    types = {name: arrow_type(shape, False) for name, shape in shapes.items()}
    classes = {kw.registry[name].cls: name for name in case.messages}

    def decode(frames: pa.Array) -> Any:
        if case.form == "request":
            pairs = [kw.decode_request(body) for body in frames.to_pylist()]
            headers = [
                pa.array([header.request_api_key for header, _ in pairs], pa.int16()),
                pa.array([header.request_api_version for header, _ in pairs], pa.int16()),
                pa.array([header.correlation_id for header, _ in pairs], pa.int32()),
                pa.array([header.client_id for header, _ in pairs], pa.string()),
            ]
        else:
            key, version = case.arguments["keys"], case.arguments["versions"]
            pairs = [kw.decode_response(body, key, version) for body in frames.to_pylist()]
            headers = [pa.array([header.correlation_id for header, _ in pairs], pa.int32())]
        rows: dict[str, list[Any]] = {name: [None] * len(pairs) for name in case.messages}
        for i, (_, message) in enumerate(pairs):
            rows[classes[type(message)]][i] = message
        return headers, [column(shapes[name], rows[name], types[name]) for name in case.messages]

    return decode


WAYS: dict[str, Way] = {
    "copies": decoding(),
    "views": decoding(views=True),
    "two": decoding(two=True),
    "objects": through_objects,
}
