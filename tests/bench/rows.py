"""The messages that are measured, and how to make the same values in another library's classes.

Law: a row's message is made from its size alone, so that every process has the same one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import kcoord_wire as kw
from kcoord_wire import messages
from kcoord_wire.schema.plan import Presence, Step, StructPlan


@dataclass(frozen=True)
class Row:
    """One message: `make(*full)` for a measurement, `make(*quick)` for a smoke test.

    :ivar read: options of our decode
    """

    key: str
    title: str
    version: int
    make: Callable[..., Any]
    full: tuple[int, ...] = ()
    quick: tuple[int, ...] = ()
    read: Mapping[str, Any] = field(default_factory=dict)

    def message(self, quick: bool = False) -> Any:
        return self.make(*(self.quick if quick else self.full))


def member_id(i: int) -> str:
    return f"consumer-billing-{i}-{uuid.UUID(int=(i + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128)}"


TOPICS = ["orders.placed", "orders.settled", "payments.authorised"]
SUBSCRIPTION = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=TOPICS, generation_id=41), 2)


def assignment(i: int) -> bytes:
    topics = [
        messages.ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=[4 * i, 4 * i + 1, 4 * i + 2])
        for topic in TOPICS
    ]
    return kw.encode_prefixed(kw.ConsumerProtocolAssignment(assigned_partitions=topics), 2)


def heartbeat() -> Any:
    return kw.HeartbeatRequest(
        group_id="billing", generation_id=42, member_id=member_id(7), group_instance_id="billing-7"
    )


def join_request() -> Any:
    return kw.JoinGroupRequest(
        group_id="billing",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id=member_id(7),
        group_instance_id="billing-7",
        protocol_type="consumer",
        protocols=[
            messages.JoinGroupRequestProtocol(name=name, metadata=SUBSCRIPTION)
            for name in ("range", "cooperative-sticky")
        ],
    )


def join_response(members: int) -> Any:
    return kw.JoinGroupResponse(
        generation_id=42,
        protocol_type="consumer",
        protocol_name="cooperative-sticky",
        leader=member_id(0),
        member_id=member_id(0),
        members=[
            messages.JoinGroupResponseMember(
                member_id=member_id(i), group_instance_id=f"billing-{i}" if i % 2 else None, metadata=SUBSCRIPTION
            )
            for i in range(members)
        ],
    )


def sync_request(members: int) -> Any:
    return kw.SyncGroupRequest(
        group_id="billing",
        generation_id=42,
        member_id=member_id(0),
        protocol_type="consumer",
        protocol_name="cooperative-sticky",
        assignments=[
            messages.SyncGroupRequestAssignment(member_id=member_id(i), assignment=assignment(i))
            for i in range(members)
        ],
    )


def metadata_response(brokers: int, topics: int, partitions: int) -> Any:
    def partition(t: int, p: int) -> Any:
        replicas = [(7 * t + p + k) % brokers for k in range(3)]
        return messages.MetadataResponsePartition(
            partition_index=p,
            leader_id=replicas[0],
            leader_epoch=300 + p,
            replica_nodes=replicas,
            isr_nodes=replicas[:],
        )

    return kw.MetadataResponse(
        brokers=[
            messages.MetadataResponseBroker(
                node_id=i, host=f"broker-{i}.kafka.example.net", port=9092, rack=f"zone-{i % 3}"
            )
            for i in range(brokers)
        ],
        cluster_id="WqR3m1x7Q2yJ9uZ0aBcDeF",
        controller_id=1,
        topics=[
            messages.MetadataResponseTopic(
                name=f"orders.region-{t:03d}", partitions=[partition(t, p) for p in range(partitions)]
            )
            for t in range(topics)
        ],
    )


def offset_fetch_response(topics: int, partitions: int) -> Any:
    return kw.OffsetFetchResponse(
        topics=[
            messages.OffsetFetchResponseTopic(
                name=f"orders.region-{t:03d}",
                partitions=[
                    messages.OffsetFetchResponsePartition(
                        partition_index=p, committed_offset=5_000_000_000 + 7919 * t + p, committed_leader_epoch=300 + p
                    )
                    for p in range(partitions)
                ],
            )
            for t in range(topics)
        ],
    )


ROWS = [
    Row("heartbeat", "HeartbeatRequest", 4, heartbeat),
    Row("join-request", "JoinGroupRequest", 7, join_request),
    Row("join-1", "JoinGroupResponse, 1 member", 7, join_response, (1,), (1,)),
    Row("join-100", "JoinGroupResponse, 100 members", 7, join_response, (100,), (2,)),
    Row("join-5000", "JoinGroupResponse, 5,000 members", 7, join_response, (5000,), (3,)),
    Row("sync-100", "SyncGroupRequest, 100 assignments", 5, sync_request, (100,), (2,)),
    Row("sync-5000", "SyncGroupRequest, 5,000 assignments", 5, sync_request, (5000,), (3,)),
    Row("metadata", "MetadataResponse, 50 brokers, 3,000 partitions", 9, metadata_response, (50, 100, 30), (4, 2, 3)),
    Row("offset-fetch", "OffsetFetchResponse, 3,000 partitions", 7, offset_fetch_response, (100, 30), (2, 3)),
]


def rebuild(plan: StructPlan, value: Any, make: Callable[[StructPlan, dict[str, Any]], Any]) -> Any:
    """`value` in other classes: `make` gets each struct's plan and its fields, those that the plan's version has."""

    def element(step: Step, inner: Any) -> Any:
        if inner is None:
            return None
        if step.struct is not None:
            return rebuild(step.struct, inner, make)
        return [element(step.item, each) for each in inner] if step.item is not None else inner

    present = [step for step in plan.steps if step.presence is not Presence.ABSENT]
    return make(plan, {step.attr: element(step, getattr(value, step.attr)) for step in present})
