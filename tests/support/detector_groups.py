"""Histories by hand, the smallest that a detector needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors import findings_of
from kcoord_wire.forensics.model import (
    Exchange,
    Finding,
    Generation,
    GroupHistory,
    GroupSummary,
    JoinedMember,
    LeaderAssignment,
    MemberLife,
    Ownership,
    Rebalance,
    Subscription,
    TopicPartitions,
    table_of,
)

SECOND = 1_000_000_000


def group(last_s: float = 3600, *, origin: str = "wire", **lists: Any) -> GroupHistory:
    summary = GroupSummary("billing", origin, "consumer", 0, int(last_s * SECOND), 0, 0, 0, 0, 0, 0.0, [])
    return GroupHistory(summary, **lists)


def rebalance(
    number: int, start_s: float, cause: Cause = Cause.NEW_MEMBER, client: str = "c1", **more: Any
) -> Rebalance:
    values: dict[str, Any] = {
        "group_id": "billing", "number": number, "generation_id": number, "started_ns": int(start_s * SECOND),
        "joined_ns": int((start_s + 1) * SECOND), "ended_ns": int((start_s + 2) * SECOND), "outcome": "stable",
        "cause": cause, "member_id": f"{client}-id", "client_id": client, "client_host": "10.0.0.1",
        "instance_id": None, "reason": None, "detail": "", "confidence": 1.0, "evidence": [],
    }  # fmt: skip
    return Rebalance(**{**values, **more})


def life(name: str, from_s: float = 0, to_s: float | None = None, **more: Any) -> MemberLife:
    values: dict[str, Any] = {
        "group_id": "billing", "member_id": f"{name}-id", "instance_id": None, "client_id": name,
        "client_host": "10.0.0.1", "joined_ns": int(from_s * SECOND),
        "left_ns": None if to_s is None else int(to_s * SECOND), "why_left": None if to_s is None else "left",
        "last_seen_ns": int((3600 if to_s is None else to_s) * SECOND), "first_generation_id": 1,
        "last_generation_id": 1, "session_timeout_ms": 45_000, "rebalance_timeout_ms": 300_000,
        "assignors": ["range"], "topics": ["orders"],
    }  # fmt: skip
    return MemberLife(**{**values, **more})


def generation(number: int, joined_s: float, ended_s: float | None = None, members: int = 2) -> Generation:
    end = None if ended_s is None else int(ended_s * SECOND)
    joined = int(joined_s * SECOND)
    return Generation("billing", number, joined, joined, end, "range", "c1-id", members, 4)


def held(name: str, partition: int, from_s: float = 0, to_s: float | None = None) -> Ownership:
    end = None if to_s is None else int(to_s * SECOND)
    return Ownership("billing", "orders", partition, f"{name}-id", name, 1, int(from_s * SECOND), end)


def exchange(api: str, at_s: float, **more: Any) -> Exchange:
    at = int(at_s * SECOND)
    values: dict[str, Any] = {
        "group_id": "billing", "api": api, "api_version": 5, "source": "a.pcap", "seq": int(at_s), "answer_seq": None,
        "connection": "10.0.0.1:1-10.0.0.9:9092#1", "client_id": "c1", "client_host": "10.0.0.1", "asked_ns": at,
        "answered_ns": at + 1000, "error_code": 0, "member_id": "c1-id", "generation_id": 1,
    }  # fmt: skip
    return Exchange(**{**values, **more})


Numbers = Mapping[str, Sequence[int]]


def leader_join(
    leader: str,
    at_s: float,
    number: int,
    claims: Mapping[str, tuple[Numbers, int]],
    assignor: str = "cooperative-sticky",
    rack: str | None = None,
) -> Exchange:
    """A JoinGroup whose response lists the members for the leader, with what each claims and since which generation."""
    members = [
        JoinedMember(f"{name}-id", None, Subscription(["orders", "refunds"], _parts(owned), since, rack, b""))
        for name, (owned, since) in claims.items()
    ]
    return exchange(
        "JoinGroup", at_s, client_id=leader, member_id=f"{leader}-id", given_member_id=f"{leader}-id",
        new_generation_id=number, assignor=assignor, leader_id=f"{leader}-id", members=members,
    )  # fmt: skip


def given(leader: str, at_s: float, number: int, assigned: Mapping[str, Numbers]) -> Exchange:
    """The leader's SyncGroup."""
    assignments = [LeaderAssignment(f"{name}-id", _parts(numbers)) for name, numbers in assigned.items()]
    return exchange(
        "SyncGroup", at_s, client_id=leader, member_id=f"{leader}-id", generation_id=number, assignments=assignments
    )


def _parts(numbers: Numbers) -> list[TopicPartitions]:
    return [TopicPartitions(topic, list(partitions)) for topic, partitions in numbers.items()]


def of(detector: str, history: GroupHistory, exchanges: Sequence[Exchange] | None = None) -> list[Finding]:
    table: pa.Table | None = None if exchanges is None else table_of(Exchange, list(exchanges))
    found = findings_of(detector, history, table)
    assert all(finding.detector == detector and finding.group_id == "billing" for finding in found)
    assert all(finding.value >= finding.threshold for finding in found)
    return found
