"""What one poll of the Admin API shows of the groups; plain data.

Laws:

* A state has Kafka's name. Of a KIP-848 group librdkafka does not name Assigning and Reconciling; both are Reconciling.
* A classic group shows assignments only while it is Stable: `SeenGroup.shows_assignments`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

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
