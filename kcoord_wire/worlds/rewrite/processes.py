"""The processes of a `RewriteCluster`: brokers, and members with an application that counts records.

Laws:

* A member consumes between `StartFetching` and `StopFetching`, and not while it is paused; when it resumes, its machine
  is first.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.central.rewrite.coordinator import RewriteCoordinator
from kcoord_wire.central.rewrite.events import (
    CoordinatorSettings,
    FetchingStopped,
    MemberSettings,
    Progress,
    StartFetching,
    StopFetching,
)
from kcoord_wire.central.rewrite.member import MemberPhase, RewriteMember
from kcoord_wire.kernel.machines import Close, Connect, Connected, Disconnected, LogEvent, Received, Send
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.messages.rewrite import RewriteJoinGroupRequest
from kcoord_wire.worlds.central.wire import Link, VirtualBroker, Wire
from kcoord_wire.worlds.rewrite.invariants import Invariants, Tenure
from kcoord_wire.worlds.zookeeper import VirtualRegistry
from kcoord_wire.zookeeper.model import Ask

_FETCH_MS: Final = (50, 300)  # between records
_STOP_MS: Final = (0, 30)  # until the fetchers have stopped
_MOST_RECORDS: Final = 5


class BrokerProcess(Process):
    """A broker's process.

    :ivar registry: its client of ZooKeeper
    """

    __slots__ = ("_wire", "machine", "registry")

    machine: RewriteCoordinator

    def __init__(
        self, clock: VirtualClock, wire: Wire, broker: VirtualBroker, settings: CoordinatorSettings, random: Random
    ) -> None:
        address = broker.address
        machine = RewriteCoordinator(address, settings)
        super().__init__(clock, f"broker-{address.broker_id}", address.host, machine, random)
        self.registry: VirtualRegistry
        self._wire = wire

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        match effect:
            case Ask():
                self.registry.ask(effect)
            case Send():
                self._wire.answer(effect.connection, effect.message)
            case Close():
                self._wire.end(effect.connection)
            case LogEvent():
                self._clock.record(self.name, effect.what, dict(effect.facts))

    def handled(self) -> None:
        """Nothing is checked here: the laws look at what is written and consumed."""

    def changed(self) -> None:
        """It was paused, resumed or killed, and its client of ZooKeeper with it."""
        self.registry.follow(self)


class MemberProcess(Process):
    """A member's process.

    :ivar tenure: what it fetches; None for nothing
    """

    __slots__ = ("_invariants", "_links", "_wire", "machine", "tenure")

    machine: RewriteMember

    def __init__(
        self,
        clock: VirtualClock,
        wire: Wire,
        invariants: Invariants,
        name: str,
        settings: MemberSettings,
        random: Random,
    ) -> None:
        super().__init__(clock, name, wire.host_of(name), RewriteMember(settings), random)
        self.tenure: Tenure | None = None
        self._wire = wire
        self._invariants = invariants
        self._links: dict[int, Link] = {}

    @property
    def is_working(self) -> bool:
        """Whether it is alive and has not ended."""
        return self.is_alive and self.machine.phase is not MemberPhase.ENDED

    def carry_out(self, effect: Any) -> None:
        """Do what the member wants."""
        match effect:
            case Send():
                if isinstance(effect.message, RewriteJoinGroupRequest):
                    self._invariants.joins(self)
                self._wire.request(self._links[effect.connection], effect.message)
            case Connect():
                broker = self._wire.brokers[effect.broker.host]
                link = self._links[effect.connection] = self._wire.open(self, broker, self._seen_by(effect.connection))
                self._wire.connect(link)
            case Close():
                self._wire.hang_up(self._links.pop(effect.connection))
            case StartFetching():
                self._start(effect)
            case StopFetching():
                positions = self._end_tenure()
                self._clock.after(self.random.randint(*_STOP_MS), self.deliver, FetchingStopped(positions))
            case LogEvent():
                self._clock.record(self.name, effect.what, dict(effect.facts))

    def _seen_by(self, number: int) -> Callable[[Link, Any], None]:
        def seen(_link: Link, what: Any) -> None:
            if what is None:
                self.deliver(Connected(number))
            else:
                self.deliver(Disconnected(number) if isinstance(what, Disconnected) else Received(number, what))

        return seen

    def handled(self) -> None:
        """Nothing is checked here."""

    def changed(self) -> None:
        """A killed process fetches nothing."""
        if not self.is_alive:
            self._end_tenure()
            for link in self._links.values():
                self._wire.hang_up(link)

    # ---- fetching

    def _start(self, effect: StartFetching) -> None:
        positions = {partition: max(offset, 0) for partition, offset in effect.positions.items()}
        self.tenure = tenure = Tenure(self, effect.generation, positions)
        begins = {f"{partition.topic}-{partition.partition}": offset for partition, offset in positions.items()}
        self._clock.record(self.name, "fetches", (effect.generation, begins))
        self._invariants.started(tenure)
        for partition in positions:
            self._plan(tenure, partition)

    def _end_tenure(self) -> dict[TopicPartition, int]:
        tenure, self.tenure = self.tenure, None
        if tenure is None:
            return {}
        self._clock.record(self.name, "stops", tenure.generation)
        self._invariants.stopped(tenure)
        return tenure.positions

    def _plan(self, tenure: Tenure, partition: TopicPartition) -> None:
        self._clock.after(self.random.randint(*_FETCH_MS), self._consume, tenure, partition)

    def _consume(self, tenure: Tenure, partition: TopicPartition) -> None:
        if tenure is not self.tenure:
            return
        if not self.is_paused:
            first = tenure.positions[partition]
            end = first + self.random.randint(1, _MOST_RECORDS)
            self._invariants.consumed(tenure, partition, first, end)
            tenure.positions[partition] = end
            self.deliver(Progress({partition: end}))
        if tenure is self.tenure:
            self._plan(tenure, partition)
