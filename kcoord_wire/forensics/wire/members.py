"""The members of a group as rows: their lives, what they offer, and the client library behind them.

Law: a library is named only where no other client in use sends the same. The facts are the versions at which each
library is capped, and sentences that it alone writes. A broker caps versions too, so that a low version by itself
proves nothing; a low one beside a high one of the same age does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcoord_wire.forensics.model import MemberLife
from kcoord_wire.forensics.wire.deaths import End
from kcoord_wire.forensics.wire.trace import MemberTrace
from kcoord_wire.forensics.wire.traffic import GroupTraffic

_JAVA_REASONS: Final = (
    "need to re-join with the given member-id",
    "rebalance failed due to",
    "need to revoke partitions",
    "cached metadata has changed from",
    "group is already rebalancing",
    "the consumer is being closed",
    "the consumer unsubscribed from all topics",
)

_NO_HEARTBEAT_2: Final = range(2)
_LIBRARIES: Final[tuple[tuple[str, Mapping[str, Collection[int]]], ...]] = (
    ("franz-go", {"OffsetCommit": (10,), "JoinGroup": (9,)}),  # Java commits by topic id with the KIP-848 protocol only
    ("kafka-python", {"JoinGroup": (7,), "LeaveGroup": (5,)}),
    ("kafka-python", {"JoinGroup": (7,), "OffsetCommit": (9,)}),
    ("aiokafka", {"JoinGroup": (5,), "SyncGroup": (3,), "Heartbeat": _NO_HEARTBEAT_2}),
    ("librdkafka", {"JoinGroup": (5,), "SyncGroup": (3,), "Heartbeat": (3,), "OffsetCommit": (8, 9)}),
    ("librdkafka", {"JoinGroup": (5,), "SyncGroup": (3,), "Heartbeat": (3,), "LeaveGroup": (1,)}),
    ("kafkajs", {"JoinGroup": (5,), "SyncGroup": (3,), "Heartbeat": (3,), "OffsetCommit": (5,)}),
)
"""Library, and highest versions of apis that only it combines so; the first that fits counts."""


@dataclass(slots=True)
class _Seen:
    """What all exchanges that name a member id show of it.

    :ivar versions: the highest version of each api
    """

    last_ns: int = 0
    versions: dict[str, int] = field(default_factory=dict)


def member_rows(traffic: GroupTraffic, members: Sequence[MemberTrace]) -> list[MemberLife]:
    """Return the lives in the order of the members; how they ended is added by `add_end`."""
    seen = _read_seen(traffic)
    return [_life(traffic, member, seen.get(member.member_id, _Seen())) for member in members]


def _life(traffic: GroupTraffic, member: MemberTrace, seen: _Seen) -> MemberLife:
    last = member.last_join
    beat_ns = traffic.heartbeats.last(member.member_id) or 0
    row = member_row(traffic.group_id, member, max(seen.last_ns, beat_ns, member.since.time_ns))
    row.session_timeout_ms, row.rebalance_timeout_ms = member.session_ms, member.rebalance_ms
    if last is not None:
        row.assignors, row.topics, row.software = last.assignors, list(last.subscribed), last.software
    row.library = library_of(seen.versions, [request.reason for request in member.joins if request.reason])
    return row


def member_row(group_id: str, member: MemberTrace, last_seen_ns: int) -> MemberLife:
    """Return the row of a member, without what it offers and without its timeouts."""
    return MemberLife(
        group_id=group_id,
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.host or None,
        joined_ns=member.since.time_ns,
        left_ns=None if member.left is None else member.left.time_ns,
        why_left=None if member.why is None else str(member.why),
        last_seen_ns=last_seen_ns,
        first_generation_id=member.first_generation,
        last_generation_id=member.last_generation,
        session_timeout_ms=None,
        rebalance_timeout_ms=None,
        assignors=[],
        topics=[],
    )


def add_end(row: MemberLife, end: End | None) -> None:
    """Add how a life ended."""
    if end is not None:
        row.end, row.died_ns = end


def _read_seen(traffic: GroupTraffic) -> dict[str, _Seen]:
    found: dict[str, _Seen] = {}
    for member_id, api, version in traffic.heartbeats.versions:
        found.setdefault(member_id, _Seen()).versions[api] = version
    for request in traffic.requests:
        for name in request.named:
            seen = found.setdefault(name, _Seen())
            seen.last_ns = max(seen.last_ns, request.asked.time_ns)
            seen.versions[request.api] = max(seen.versions.get(request.api, 0), request.version)
    return found


def library_of(versions: Mapping[str, int], reasons: Iterable[str]) -> str | None:
    """Return the client library, if what a member sends proves one.

    :param versions: the highest of each api
    :param reasons: that it states in JoinGroup
    """
    if any(reason.startswith(_JAVA_REASONS) for reason in reasons):
        return "Java"
    for library, wanted in _LIBRARIES:
        if all(versions.get(api, -1) in expected for api, expected in wanted.items()):
            return library
    return None
