"""Groups as they are now, for tests and operators: who is in them, who owns what, whom a rebalance waits for.

Laws:

* A description is a copy: it does not change when the group does.
* Metadata and assignments are read where they are those of consumers, and left out where they cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.assignors.model import MemberSubscription
from kcoord_wire.codec.fields import number_runs
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup, Held
from kcoord_wire.coordinator.core.any_group import CONSUMER, AnyGroup, TopicNames
from kcoord_wire.coordinator.core.events import RebalanceAccount
from kcoord_wire.coordinator.core.groups import Group, Member, State
from kcoord_wire.coordinator.rebalance_log import describe_rebalance, shown
from kcoord_wire.errors import DecodeError

_EMBEDDED = ConsumerProtocol()
_MOST_MEMBERS = 20  # in a text for people
_MOST_OFFSETS = 20  # likewise


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group.

    :ivar member_id: its id
    :ivar client_id: from its request header
    :ivar client_host: its address, as Kafka writes it: ``/127.0.0.1``
    :ivar group_instance_id: of a static member; None if it is dynamic
    :ivar topics: its subscription; None if it is not a consumer's
    :ivar owned: topic to partitions that it said it owned when it joined (KIP-429); empty with eager assignors
    :ivar assignment: topic to partitions; None if it is not a consumer's
    :ivar awaited: the request that the rebalance in progress waits for, ``JoinGroup``, ``SyncGroup`` or
        ``ConsumerGroupHeartbeat``; None if none
    """

    member_id: str
    client_id: str
    client_host: str
    group_instance_id: str | None
    topics: tuple[str, ...] | None
    owned: Mapping[str, tuple[int, ...]]
    assignment: Mapping[str, tuple[int, ...]] | None
    awaited: str | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group.

    :ivar group_id: the group
    :ivar state: as ListGroups names it: ``Empty``, ``PreparingRebalance``, ``CompletingRebalance``, ``Stable``; of a
        group of KIP-848 ``Empty``, ``Assigning``, ``Reconciling``, ``Stable``
    :ivar state_since: ms since the epoch
    :ivar generation_id: the current one; of a group of KIP-848 its group epoch
    :ivar protocol_type: ``consumer``, ``connect`` ...; None for a group that never had a member
    :ivar protocol: the assignor of the current generation; None in a group without members
    :ivar leader_id: the member that computes the assignment; None likewise
    :ivar members: in the order in which they were added
    :ivar joining: member ids that were given out and are not used yet (KIP-394)
    :ivar offsets: topic to partition to committed offset
    :ivar rebalance: the account of the rebalance in progress; None if there is none
    :ivar is_settled: no rebalance is in progress, and none is certain to follow: the group is Stable, every member has
        fetched its assignment, and no member owned a partition that it was not assigned. A cooperative member revokes
        such a partition and joins again (KIP-429).
    """

    group_id: str
    state: str
    state_since: int
    generation_id: int
    protocol_type: str | None
    protocol: str | None
    leader_id: str | None
    members: tuple[MemberDescription, ...]
    joining: tuple[str, ...]
    offsets: Mapping[str, Mapping[int, int]]
    rebalance: RebalanceAccount | None
    is_settled: bool

    @property
    def owners(self) -> dict[tuple[str, int], list[str]]:
        """(topic, partition) to the ids of the members to which it is assigned: one, unless an assignor is wrong."""
        owners: dict[tuple[str, int], list[str]] = {}
        for member in self.members:
            for topic, partitions in (member.assignment or {}).items():
                for partition in partitions:
                    owners.setdefault((topic, partition), []).append(member.member_id)
        return owners


def _revoked(owned: Mapping[str, tuple[int, ...]], assigned: Mapping[str, tuple[int, ...]] | None) -> bool:
    return assigned is not None and any(
        set(partitions) - set(assigned.get(topic, ())) for topic, partitions in owned.items()
    )


def describe_group(group: AnyGroup, topics: TopicNames) -> GroupDescription:
    """Return a group as it is now."""
    if isinstance(group, ConsumerGroup):
        return _describe_consumer_group(group, topics)
    assert isinstance(group, Group), "there are two kinds of groups"
    rebalance = group.rebalance
    if rebalance is not None:
        rebalance = replace(rebalance, joins=[*rebalance.joins], removed=[*rebalance.removed])
    members = tuple(_describe_member(group, member) for member in group.members.values())
    return GroupDescription(
        group_id=group.group_id,
        state=str(group.state),
        state_since=group.state_since,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader_id=group.leader_id,
        members=members,
        joining=tuple(group.pending),
        offsets=_offsets(group),
        rebalance=rebalance,
        is_settled=_is_settled(str(group.state), members),
    )


def _offsets(group: AnyGroup) -> Mapping[str, Mapping[int, int]]:
    return {
        topic: {partition: committed.offset for partition, committed in sorted(partitions.items())}
        for topic, partitions in group.offsets.items()
    }


def _describe_consumer_group(group: ConsumerGroup, topics: TopicNames) -> GroupDescription:
    rebalance = group.rebalance
    if rebalance is not None:
        rebalance = replace(rebalance, joins=[*rebalance.joins], removed=[*rebalance.removed])

    def by_name(held: Held) -> dict[str, tuple[int, ...]]:
        names = ((topics.name_of(topic_id), sorted(partitions)) for topic_id, partitions in held.items())
        return {name: tuple(partitions) for name, partitions in names if name is not None}

    members = tuple(
        MemberDescription(
            member_id=member.member_id,
            client_id=member.client_id,
            client_host=member.client_host,
            group_instance_id=member.instance_id,
            topics=tuple(sorted(group.subscription(member))),
            owned={},
            assignment=by_name(member.assigned),
            awaited="ConsumerGroupHeartbeat" if member.member_id in group.unsettled else None,
        )
        for member in group.members.values()
    )
    return GroupDescription(
        group_id=group.group_id,
        state=str(group.state),
        state_since=group.state_since,
        generation_id=group.epoch,
        protocol_type=group.protocol_type,
        protocol=None if rebalance is None else rebalance.protocol,
        leader_id=None,
        members=members,
        joining=(),
        offsets=_offsets(group),
        rebalance=rebalance,
        is_settled=_is_settled(str(group.state), members),
    )


def _is_settled(state: str, members: Iterable[MemberDescription]) -> bool:
    return state == State.STABLE.value and not any(
        member.awaited or _revoked(member.owned, member.assignment) for member in members
    )


def _describe_member(group: Group, member: Member) -> MemberDescription:
    awaited = None
    if group.state is State.PREPARING:
        awaited = "JoinGroup" if member.join is None else None
    elif member.member_id in group.unsynced:
        awaited = "SyncGroup"
    subscription, assignment = None, None
    if group.protocol_type == CONSUMER:
        subscription = _subscription(member.metadata(group.protocol) or next((m for _, m in member.protocols), b""))
        assignment = _assignment(member.assignment)
    return MemberDescription(
        member_id=member.member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        group_instance_id=member.group_instance_id,
        topics=None if subscription is None else tuple(subscription.topics),
        owned={} if subscription is None else _as_tuples(subscription.owned),
        assignment=assignment,
        awaited=awaited,
    )


def _subscription(metadata: bytes) -> MemberSubscription | None:
    try:
        return _EMBEDDED.decode_subscription(metadata, None)
    except DecodeError:
        return None


def _assignment(data: bytes) -> Mapping[str, tuple[int, ...]] | None:
    try:
        return _as_tuples(_EMBEDDED.decode_assignment(data).partitions)
    except DecodeError:
        return None


def _as_tuples(partitions: Mapping[str, Iterable[int]]) -> Mapping[str, tuple[int, ...]]:
    return {topic: tuple(numbers) for topic, numbers in partitions.items()}


def explain_group(group: GroupDescription, accounts: Iterable[RebalanceAccount], now: int) -> str:
    """Return a group as lines for people: its state, its members and whom it waits for, and its last rebalance.

    :param accounts: of rebalances that have ended, oldest first; of other groups too
    :param now: ms since the epoch
    """
    seconds = (now - group.state_since) / 1000
    protocol = "" if group.protocol is None else f", {shown(group.protocol)}"
    lines = [
        f"{group.state} for {seconds:.1f} s, generation {group.generation_id}{protocol}, members: {len(group.members)}"
    ]
    # Those that are waited for come first: with many members the rest of the list is cut.
    members = sorted(group.members, key=lambda member: member.awaited is None)
    lines += [f"  {_explain_member(member)}" for member in members[:_MOST_MEMBERS]]
    if len(members) > _MOST_MEMBERS:
        lines.append(f"  and {len(members) - _MOST_MEMBERS} more")
    if group.joining:
        lines.append(f"  member ids given out and not yet used: {', '.join(map(shown, group.joining[:_MOST_MEMBERS]))}")
    committed = [f"{shown(topic)}-{p} at {offset}" for topic, of in group.offsets.items() for p, offset in of.items()]
    if committed:
        more = " ..." if len(committed) > _MOST_OFFSETS else ""
        lines.append(f"committed: {', '.join(committed[:_MOST_OFFSETS])}{more}")
    if group.rebalance is not None:
        lines.append(f"rebalance in progress: {describe_rebalance(group.rebalance)}")
    ended = [account for account in accounts if account.group_id == group.group_id]
    lines += [f"last rebalance: {describe_rebalance(account)}" for account in ended[-1:]]
    return "\n".join(lines)


def _explain_member(member: MemberDescription) -> str:
    parts = [f"{shown(member.member_id)} (client {shown(member.client_id)}, {shown(member.client_host)})"]
    if member.awaited is not None:
        parts.append(f"its {member.awaited} is awaited")
    elif member.assignment is not None:
        owned = (f"{shown(topic)} {number_runs(partitions)}" for topic, partitions in sorted(member.assignment.items()))
        parts.append("assigned " + (", ".join(owned) or "nothing"))
        if _revoked(member.owned, member.assignment):
            parts.append("has to revoke partitions and to join again")
    return ": ".join([parts[0], "; ".join(parts[1:])]) if parts[1:] else parts[0]
