"""What one poll of the Admin API shows of the groups, and why a group rebalances, as far as two polls differ.

Laws:

* A state has Kafka's name. Of a KIP-848 group librdkafka does not name Assigning and Reconciling; both are Reconciling.
* A classic group shows assignments only while it is Stable: `SeenGroup.shows_assignments`.

| what differs                         | cause                                          | confidence |
|--------------------------------------|------------------------------------------------|------------|
| an empty group has members           | new member                                     | 0.9        |
| members appeared                     | new member                                     | 0.8        |
| a dynamic member is gone             | member left (or its session ran out)           | 0.5        |
| a static member is gone              | session timeout: it does not leave when it is  | 0.7        |
|                                      | closed (KIP-345), but an admin can remove it   |            |
| a client is gone, and is back under  | member left: in less than two polls no session | 0.5        |
| another member id                    | of the usual length runs out                   |            |
| a static member has another id       | static member replaced                         | 0.8        |
| nothing, after an outage             | coordinator failover                           | 0.6        |
| nothing; cooperative-sticky had left | second round of a cooperative rebalance        | 0.8        |
| partitions without an owner          |                                                |            |
| nothing; cooperative-sticky was      | second round of a cooperative rebalance: its   | 0.6        |
| assigning in the poll before         | first one ended between two polls, or failed   |            |
| nothing, then a known topic has new  | topic metadata changed                         | 0.6        |
| partitions                           |                                                |            |
| anything else                        | unknown                                        | 0          |

The Admin API has neither requests nor reasons, so no confidence is 1. The broker's own log has the reason
(``Preparing to rebalance group``), a capture has the requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Identity
from kcoord_wire.protocol import wording
from kcoord_wire.report.formatting import name_of, shown

REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True)
class SeenMember:
    """A member as the coordinator describes it.

    :ivar assigned: its partitions; nothing while a classic group rebalances
    :ivar target: KIP-848: the partitions that it is to have; None for a classic member
    """

    member_id: str
    client_id: str | None
    client_host: str | None
    instance_id: str | None
    assigned: frozenset[Place]
    target: frozenset[Place] | None = None

    @property
    def key(self) -> str:
        """What stays when a static member is restarted: its instance id, else its member id."""
        return self.member_id if self.instance_id is None else f"instance {self.instance_id}"


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group as its coordinator describes it.

    :ivar protocol: ``classic`` or ``consumer`` (KIP-848)
    :ivar assignor: None while none is chosen
    :ivar coordinator: ``host:port``; None where it is not known
    :ivar members: by member id
    """

    group_id: str
    state: str
    protocol: str
    assignor: str | None
    coordinator: str | None
    members: Mapping[str, SeenMember]

    @property
    def is_rebalancing(self) -> bool:
        return self.state in REBALANCING

    @property
    def shows_assignments(self) -> bool:
        return self.protocol == "consumer" or not self.is_rebalancing

    def owners(self) -> dict[Place, str]:
        """Return who has each partition, by `SeenMember.key`; empty where the group shows no assignments."""
        return {place: member.key for member in self.members.values() for place in member.assigned}


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A group that was not described.

    :ivar kind: ``loading``, ``broker down`` or ``refused``
    :ivar text: why, as the cluster or librdkafka says it
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Poll:
    """The answers of one poll. A group that is in neither `groups` nor `unanswered` does not exist.

    :ivar committed: committed offsets, of the groups whose offsets this poll has read
    :ivar ends: where the partitions end
    """

    time_ns: int
    groups: Mapping[str, SeenGroup]
    unanswered: Mapping[str, Unanswered] = field(default_factory=dict)
    committed: Mapping[str, Mapping[Place, int]] = field(default_factory=dict)
    ends: Mapping[Place, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Missed:
    """A poll that no broker answered.

    :ivar broker: ``host:port`` that was asked
    """

    time_ns: int
    broker: str
    text: str


_LISTED: Final = 4
_COOPERATIVE: Final = "cooperative-sticky"


class Reason(NamedTuple):
    """Why a rebalance began: as `Rebalance` has it."""

    cause: Cause
    confidence: float
    detail: str
    trigger: Identity | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """How the members of a group differ between two polls; a replaced static member is in neither of the others."""

    appeared: Sequence[SeenMember]
    gone: Sequence[SeenMember]
    replaced: Sequence[SeenMember]

    @classmethod
    def between(cls, before: SeenGroup | None, after: SeenGroup) -> Self:
        old = {} if before is None else before.members
        new = [member for member_id, member in after.members.items() if member_id not in old]
        gone = [member for member_id, member in old.items() if member_id not in after.members]
        again = {member.key for member in new} & {member.key for member in gone}
        return cls(
            [member for member in new if member.key not in again],
            [member for member in gone if member.key not in again],
            [member for member in new if member.key in again],
        )

    @property
    def is_empty(self) -> bool:
        return not (self.appeared or self.gone or self.replaced)


def explain(
    before: SeenGroup | None,
    after: SeenGroup,
    difference: Difference,
    *,
    assignor: str | None,
    after_outage: bool,
    has_unowned: bool,
) -> Reason:
    """Return why a rebalance began between two polls; the table of the module has the rules.

    :param assignor: of the last assignment; while a group rebalances, none is shown
    :param after_outage: the coordinator has moved, or was not described, shortly before
    :param has_unowned: the last assignment left partitions without an owner that had one before
    """
    appeared, gone, replaced = difference.appeared, difference.gone, difference.replaced
    if not difference.is_empty:
        return _of_members(appeared, gone, replaced, was_empty=before is None or not before.members)
    if after_outage:
        return Reason(Cause.COORDINATOR_FAILOVER, 0.6, "the same members rebalance after the coordinator was away")
    is_assigned = before is not None and before.state == "CompletingRebalance"
    if assignor == _COOPERATIVE and (has_unowned or is_assigned):
        text = "the first round had taken partitions that this one assigns (KIP-429)"
        return Reason(Cause.COOPERATIVE_FOLLOW_UP, 0.8 if has_unowned else 0.6, text)
    return Reason(
        Cause.UNKNOWN, 0.0, "the members are the same; the Admin API shows no reason, the broker's log has it"
    )


def _of_members(
    appeared: Sequence[SeenMember], gone: Sequence[SeenMember], replaced: Sequence[SeenMember], *, was_empty: bool
) -> Reason:
    if appeared and gone:
        return _both(appeared, gone)
    if appeared:
        text = f"{listed(appeared)} joined" + (" an empty group" if was_empty else "")
        return Reason(Cause.NEW_MEMBER, 0.9 if was_empty else 0.8, text, _only(appeared))
    if gone:
        if all(member.instance_id is not None for member in gone):
            text = f"{listed(gone)} gone: static members do not leave when they are closed (KIP-345)"
            return Reason(Cause.SESSION_EXPIRED, 0.7, text, _only(gone))
        text = f"{listed(gone)} gone; the Admin API does not show whether by leaving or by a timeout"
        return Reason(Cause.MEMBER_LEFT, 0.5, text, _only(gone))
    text = f"{listed(replaced)} came back under another member id"
    return Reason(Cause.STATIC_REPLACED, 0.8, text, _only(replaced))


def _both(appeared: Sequence[SeenMember], gone: Sequence[SeenMember]) -> Reason:
    text = f"{listed(gone)} gone and {listed(appeared)} joined between two polls"
    if {(each.client_id, each.client_host) for each in gone} == {(e.client_id, e.client_host) for e in appeared}:
        return Reason(Cause.MEMBER_LEFT, 0.5, f"{text}: restarted", _only(gone))
    return Reason(Cause.UNKNOWN, 0.0, f"{text}; which came first is not shown")


def topics_changed(topics: Sequence[str]) -> Reason:
    """Return the reason of a rebalance that has assigned new partitions of topics that the group had before."""
    names = ", ".join(shown(topic, 60) for topic in sorted(topics)[:_LISTED])
    return Reason(Cause.TOPICS_CHANGED, 0.6, f"the members are the same, and new partitions of {names} are assigned")


def identity(member: SeenMember) -> Identity:
    """Return the member as rows name it."""
    return Identity(member.member_id, member.client_id, member.client_host, member.instance_id)


def who(member: SeenMember) -> str:
    """Return the member for people: ``c-2 (10.0.0.2)``."""
    name = name_of(member.client_id, member.member_id, member.instance_id)
    return f"{name} ({shown(member.client_host, 60)})" if member.client_host else name


def listed(members: Sequence[SeenMember]) -> str:
    """Return the first four members for people, and how many more there are."""
    return wording.listed(map(who, members), _LISTED)


def _only(members: Sequence[SeenMember]) -> Identity | None:
    return identity(members[0]) if len(members) == 1 else None
