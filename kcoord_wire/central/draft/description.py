"""An elected coordinator's state and what it waits for, as plain data: for status commands and tests.

Law: describing changes nothing, and what is returned does not change with the coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass

from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.groups import Group, Member


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A registered consumer.

    :ivar owned: the partitions that it was started with
    :ivar failed_pings: in a row
    """

    consumer_id: str
    connection: int
    topic_count: str
    session_timeout_ms: int
    is_fenced: bool
    is_started: bool
    failed_pings: int
    owned: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group.

    :ivar generation: of its last assignment
    :ivar phase: of the rebalance that is under way: ``computing``, ``stopping``, ``committing``, ``starting`` ...; else
        ``restoring``, ``queued`` or ``stable``
    :ivar waits_for: ids of the consumers that have to answer or to come back before the phase ends
    :ivar topics: that it is interested in
    """

    group_id: str
    generation: int
    phase: str
    waits_for: tuple[str, ...]
    topics: tuple[str, ...]
    members: tuple[MemberDescription, ...]


@dataclass(frozen=True, slots=True)
class CoordinatorDescription:
    """A broker, and what it does as the coordinator.

    :ivar coordinator_id: the broker that is the coordinator; -1 if unknown
    :ivar epoch: of its own term; None if it is not the coordinator
    :ivar lease_until: ms, on the machine's clock
    :ivar queues: the groups that wait for each rebalance handler
    :ivar pings: number of pings without an answer
    :ivar stops: number of StopFetcherRequests without an answer
    :ivar starts: number of StartFetcherRequests without an answer
    :ivar uncommitted: number of offsets that the committer has to write
    """

    broker_id: int
    coordinator_id: int
    epoch: int | None = None
    lease_until: int = 0
    groups: tuple[GroupDescription, ...] = ()
    queues: tuple[tuple[str, ...], ...] = ()
    pings: int = 0
    stops: int = 0
    starts: int = 0
    uncommitted: int = 0


def describe_group(group: Group) -> GroupDescription:
    """Return a group as it is now."""
    attempt = group.attempt
    phase, waits_for = "stable", set(group.awaited)
    if attempt is not None:
        phase = attempt.phase
        waits_for = {member.consumer_id for member in attempt.waiting} | group.reconnecting
    elif not group.is_restored:
        phase = "restoring"
    elif group.needs_rebalance:
        phase = "queued"
    return GroupDescription(
        group.group_id,
        group.generation,
        phase,
        tuple(sorted(waits_for)),
        tuple(sorted(group.interests)),
        tuple(map(_describe_member, group.members.values())),
    )


def _describe_member(member: Member) -> MemberDescription:
    return MemberDescription(
        member.consumer_id,
        member.connection,
        member.topic_count.text,
        member.session_timeout_ms,
        member.is_fenced,
        member.is_started,
        member.failed_pings,
        tuple(sorted(member.owned)),
    )
