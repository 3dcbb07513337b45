"""The processes of a `ProposalCluster`: the coordinator's, and one for each member.

Laws:

* An answer of the coordinator leaves after what was saved before it is on the disk.
* The law of one owner is checked after every event that changes what a member owns, or who is a member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.worlds.proposal import events
from kcoord_wire.worlds.proposal.coordinator import Coordinator
from kcoord_wire.worlds.proposal.events import MemberState, Strategy, Subscription
from kcoord_wire.worlds.proposal.member import Member
from kcoord_wire.worlds.proposal.variants import ROUND_ROBIN
from kcoord_wire.worlds.proposal.wire import Link

if TYPE_CHECKING:
    from kcoord_wire.worlds.proposal.cluster import ProposalCluster

_OVER: Final = (MemberState.LEFT, MemberState.FAILED)


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """How a member is set up.

    :ivar subscription: what it consumes; None for all topics there are when it starts
    :ivar strategies: the preferred one first
    :ivar asks_coordinator: whether it fetches metadata from the coordinator, which sees every change at once; other
        brokers may be behind
    :ivar settings: fields of `events.MemberSettings` that differ from the defaults
    """

    subscription: Subscription | None = None
    strategies: Sequence[Strategy] = (ROUND_ROBIN,)
    asks_coordinator: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


class CoordinatorProcess(Process):
    """The coordinator's process. Answers leave when the disk has what they depend on."""

    __slots__ = ("_cluster", "_seen", "_written_at", "machine")

    machine: Coordinator

    def __init__(self, cluster: ProposalCluster, clock: VirtualClock, machine: Coordinator, random: Random) -> None:
        super().__init__(clock, "coordinator", "10.0.0.1", machine, random)
        self._cluster = cluster
        self._seen: set[str] = set()
        self._written_at = 0

    def carry_out(self, effect: events.Answer | events.Save) -> None:
        """Write to the disk, or answer after what was written."""
        self._written_at = max(self._written_at, self._clock.time_ms)
        if isinstance(effect, events.Answer):
            self._clock.at(self._written_at, self._cluster.answer, self, effect)
        elif self._cluster.is_persistent:
            self._written_at += self.random.randint(*self._cluster.write_ms)
            self._clock.at(self._written_at, self._cluster.written, self, effect)

    def handled(self) -> None:
        """Check the law of one owner."""
        if self.machine.members.keys() != self._seen:
            self._seen = set(self.machine.members)
            self._cluster.members_changed()

    def changed(self) -> None:
        """Nothing depends on it."""


class MemberProcess(Process):
    """A member's process.

    :ivar options: how it was set up
    """

    __slots__ = ("_cluster", "_seen", "machine", "options")

    connection: Link | None
    machine: Member

    def __init__(
        self,
        cluster: ProposalCluster,
        clock: VirtualClock,
        name: str,
        host: str,
        machine: Member,
        options: MemberOptions,
    ) -> None:
        super().__init__(clock, name, host, machine, Random(f"{cluster.seed}/{name}"))
        self.options = options
        self._cluster = cluster
        self._seen: frozenset[TopicPartition] = machine.owned

    @property
    def is_working(self) -> bool:
        """Whether it is alive, and its member has neither left nor failed."""
        return self.is_alive and self.machine.state not in _OVER

    def carry_out(self, effect: Any) -> None:
        """Do what the member wants."""
        self._cluster.carry_out(self, effect)

    def handled(self) -> None:
        """Check the law of one owner."""
        owned = self.machine.owned
        if owned is not self._seen:
            before, self._seen = self._seen, owned
            self._cluster.owned_changed(self, before, owned)

    def changed(self) -> None:
        """A killed process owns nothing."""
        if not self.is_alive:
            self._cluster.owned_changed(self, self._seen, frozenset())
