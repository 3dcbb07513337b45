"""The broker processes of a `CentralCluster`: the coordinator's machine, its client of ZooKeeper, the topics.

Laws:

* A broker that crashes loses its memory: what its coordinator knew, and the fences of its topics.
* While it is paused, what consumers send waits; ZooKeeper's news come a moment after it has resumed, so it acts before.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.central.draft.coordinator import DraftCoordinator
from kcoord_wire.central.draft.events import CentralError
from kcoord_wire.central.served_topics import GeneratedTopics
from kcoord_wire.kernel.machines import Close, LogEvent, Received, Send
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.layout import COORDINATOR
from kcoord_wire.zookeeper.model import Ask, RegistryEvent

if TYPE_CHECKING:
    from kcoord_wire.worlds.central.cluster import CentralCluster

_TERM_ENDS: Final = ("elected", "resigned")
_REBALANCE: Final = ("rebalance started", "rebalance completed")


class _Served:
    """What a broker's process runs: fetches go to the topics, all else to the coordinator's machine."""

    def __init__(self, process: BrokerProcess, coordinator: DraftCoordinator, topics: GeneratedTopics) -> None:
        self._process = process
        self._coordinator = coordinator
        self._topics = topics

    @property
    def deadline(self) -> int | None:
        """The coordinator's."""
        return self._coordinator.deadline

    def handle(self, event: Any, now: int) -> Sequence[Any]:
        """Answer a fetch, or let the coordinator handle the event."""
        if isinstance(event, Received):
            if isinstance(event.message, m.CentralFetchRequest):
                return [Send(event.connection, self._fetch(event.connection, event.message, now))]
            self._process.takes_in(event.connection, event.message)
        return self._coordinator.handle(event, now)

    def _fetch(self, connection: int, request: m.CentralFetchRequest, now: int) -> m.CentralFetchResponse:
        response = self._topics.fetch(request, now)
        if response.error_code == CentralError.NONE:
            self._process.serves(connection, request)
        return response


class BrokerProcess(Process):
    """A broker's process, from one start to its end.

    :ivar broker_id: as its address has it
    :ivar coordinator: its machine
    :ivar registry: its client of ZooKeeper
    """

    __slots__ = ("_cluster", "broker_id", "coordinator", "registry")

    def __init__(
        self, cluster: CentralCluster, broker_id: int, coordinator: DraftCoordinator, topics: GeneratedTopics
    ) -> None:
        name = f"broker-{broker_id}"
        boot = cluster.brokers[broker_id].boot
        random = Random(f"{cluster.seed}/{name}/{boot}")
        served = _Served(self, coordinator, topics)
        super().__init__(cluster.zookeeper.clock, name, f"10.0.0.{broker_id}", served, random)
        self.broker_id = broker_id
        self.coordinator = coordinator
        self._cluster = cluster
        self.registry = cluster.zookeeper.client(name, self._hears, random, timeout_ms=cluster.zookeeper_timeout_ms)

    def _hears(self, event: RegistryEvent) -> None:
        self.deliver(event)

    @property
    def is_leader(self) -> bool:
        """Whether ZooKeeper has it as the coordinator."""
        node = self._cluster.zookeeper.leader.node(COORDINATOR)
        return node is not None and node.ephemeral_owner == self.registry.session_id

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        match effect:
            case Send():
                self._send(effect)
            case Close():
                self._cluster.wire.end(effect.connection)
            case Ask():
                self.registry.ask(effect)
            case LogEvent():
                self._note(effect)

    def _send(self, effect: Send) -> None:
        link = self._cluster.wire.answer(effect.connection, effect.message)
        if link is not None:
            group = self._cluster.group_of(link)
            self._cluster.invariants.sends(
                self.broker_id, effect.connection, group, effect.message, is_leader=self.is_leader
            )

    def _note(self, effect: LogEvent) -> None:
        self._clock.record(self.name, effect.what, dict(effect.facts))
        if effect.what in _TERM_ENDS:
            self._cluster.invariants.term_changed(self.broker_id)
        elif effect.what in _REBALANCE:
            facts = effect.facts
            self._cluster.invariants.noted(self.broker_id, effect.what, facts["group"], facts["generation"])

    def takes_in(self, connection: int, message: Any) -> None:
        """The coordinator takes in a consumer's message."""
        group = self._cluster.group_of(self._cluster.wire.link(connection))
        self._cluster.invariants.takes_in(self.broker_id, connection, group, message)

    def serves(self, connection: int, request: m.CentralFetchRequest) -> None:
        """The topics serve a fetch."""
        self._cluster.invariants.serves(self._cluster.wire.link(connection).about, self.broker_id, request)

    def handled(self) -> None:
        """Nothing is checked here: the laws look at messages, fetches and writes."""

    def changed(self) -> None:
        """It was paused, resumed or killed, and its client of ZooKeeper with it."""
        self.registry.follow(self)
