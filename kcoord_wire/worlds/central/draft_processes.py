"""The processes of a `CentralCluster`: brokers, and consumers with fetchers and an application that counts.

Laws:

* Fetchers run between `StartFetchers` and `StopFetchers`, each with one request under way. An answer that comes after
  `StopFetchers` is dropped, so nothing is consumed after the positions were reported.
* A process that resumes may fetch before its machine notices how much time has passed.
* A broker that crashes loses the fences of its topics, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.central.draft import events
from kcoord_wire.central.draft.consumer import ConsumerState, DraftConsumer
from kcoord_wire.central.draft.coordinator import DraftCoordinator
from kcoord_wire.central.draft.events import CentralError, Fence, Partition
from kcoord_wire.central.served_topics import GeneratedTopics
from kcoord_wire.kernel.machines import Disconnected, LogEvent, Received, Send
from kcoord_wire.kernel.virtual.network import ProcessServer
from kcoord_wire.messages import central as m
from kcoord_wire.worlds.central.broker_world import BrokerProcess, ClientProcess, Link
from kcoord_wire.zookeeper.layout import election_of

if TYPE_CHECKING:
    from kcoord_wire.worlds.central.draft_world import CentralCluster


_TERM_ENDS: Final = ("elected", "resigned")
_LATE: Final = "no answer in time from "
_REBALANCE: Final = ("rebalance started", "rebalance completed")


class _Served:
    """What a broker's process runs: fetches go to the topics, all else to the coordinator's machine."""

    def __init__(self, process: DraftBroker, coordinator: DraftCoordinator, topics: GeneratedTopics) -> None:
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


class DraftBroker(BrokerProcess):
    """A broker's process.

    :ivar broker_id: as its address has it
    :ivar coordinator: its machine
    """

    __slots__ = ("_cluster", "broker_id", "coordinator")

    def __init__(
        self, cluster: CentralCluster, server: ProcessServer, coordinator: DraftCoordinator, topics: GeneratedTopics
    ) -> None:
        super().__init__(cluster, server, _Served(self, coordinator, topics))
        self.broker_id = server.number
        self.coordinator = coordinator
        self._cluster = cluster

    def leads(self, subset: int) -> bool:
        """Whether ZooKeeper has it as the coordinator of a subset of the groups."""
        node = self._cluster.zookeeper.leader.node(election_of(subset)[0])
        return node is not None and node.ephemeral_owner == self.registry.session_id

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants, and let the laws see it."""
        if isinstance(effect, Send):
            self._send(effect)
            return
        super().carry_out(effect)
        if isinstance(effect, LogEvent):
            self._note(effect)

    def _send(self, effect: Send) -> None:
        link = self._network.answer(effect.connection, effect.message)
        if link is not None:
            settings, laws = self._cluster.settings_of(link), self._cluster.invariants
            group, session_ms = settings.group_id, settings.session_timeout_ms
            is_leader = self.leads(laws.subset_of(group))
            laws.sends(self.broker_id, effect.connection, group, effect.message, session_ms, is_leader=is_leader)

    def _note(self, effect: LogEvent) -> None:
        facts, laws = effect.facts, self._cluster.invariants
        if effect.what in _TERM_ENDS:
            laws.term_changed(self.broker_id, facts.get("subset", 0))
        elif effect.what in _REBALANCE:
            laws.noted(self.broker_id, effect.what, facts["group"], facts["generation"])
        elif effect.what == "consumer failed" and facts["reason"] != "its connection ended":
            laws.failed(self.broker_id, facts["group"], facts["consumer"], facts["reason"])
        elif effect.what == "rebalance attempt failed" and facts["reason"].startswith(_LATE):
            laws.attempt_failed(self.broker_id, facts["group"], facts["reason"].removeprefix(_LATE))

    def takes_in(self, connection: int, message: Any) -> None:
        """The coordinator takes in a consumer's message."""
        group = self._cluster.settings_of(self._network.link(connection)).group_id
        self._cluster.invariants.takes_in(self.broker_id, connection, group, message)

    def serves(self, connection: int, request: m.CentralFetchRequest) -> None:
        """The topics serve a fetch."""
        self._cluster.invariants.serves(self._network.link(connection).about, self.broker_id, request)


_FETCH_BYTES: Final = 400  # about ten records
_FETCH_MS: Final = (50, 300)  # between an answer and the next fetch: the application's work
_STOP_MS: Final = (0, 30)  # until the fetchers have stopped
_REFUSED_MS: Final = 500  # before a fetch is tried again that found no broker
_FETCH_TIMEOUT_MS: Final = 2_000
_LATEST: Final = -1


class Fetching:
    """One assignment of a consumer, from `StartFetchers` to the end of its fetchers.

    :ivar process: the consumer's
    :ivar fence: sent with each fetch; None without
    :ivar positions: the next offset to consume; negative until the first answer says where records begin
    :ivar failed: the partitions whose fetchers have ended by themselves
    """

    __slots__ = ("failed", "fence", "positions", "process")

    def __init__(self, process: ConsumerProcess, positions: dict[Partition, int], fence: Fence | None) -> None:
        self.process = process
        self.positions = positions
        self.fence = fence
        self.failed: set[Partition] = set()

    @property
    def is_running(self) -> bool:
        """Whether its fetchers run."""
        return self.process.fetching is self

    def __str__(self) -> str:
        fence = "" if self.fence is None else f" at epoch {self.fence.epoch}, generation {self.fence.generation}"
        return f"{self.process.name}{fence}"


class ConsumerProcess(ClientProcess):
    """A consumer's process.

    :ivar settings: of its machine
    """

    __slots__ = ("_deferred", "_fetches", "machine", "settings")

    fetching: Fetching | None
    machine: DraftConsumer

    def __init__(self, cluster: CentralCluster, name: str, settings: events.ConsumerSettings, random: Random) -> None:
        super().__init__(cluster, name, DraftConsumer(settings), random)
        self.settings = settings
        self._fetches: dict[Link, tuple[Fetching, Partition]] = {}
        self._deferred: list[Callable[[], None]] = []

    @property
    def is_working(self) -> bool:
        """Whether it runs and has not been shut down."""
        return self.is_alive and self.machine.state is not ConsumerState.ENDED

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        match effect:
            case events.StartFetchers():
                self._start(effect)
            case events.StopFetchers():
                self._stop()
            case _:
                super().carry_out(effect)

    def changed(self) -> None:
        """It was paused, resumed or killed."""
        super().changed()
        if self.is_alive and not self.is_paused:
            deferred, self._deferred = self._deferred, []
            for action in deferred:  # the threads of the fetchers and that of the machine race after a pause
                if self.random.random() < 0.5:
                    action()
                else:
                    self._clock.after(self.random.randint(0, _FETCH_MS[0]), action)

    def _when_running(self, action: Callable[[], None]) -> None:
        if self.is_paused:
            self._deferred.append(action)
        elif self.is_alive:
            action()

    # ---- fetchers

    def _start(self, effect: events.StartFetchers) -> None:
        positions = {partition: offset for parts in effect.threads.values() for partition, offset in parts.items()}
        self.fetching = fetching = Fetching(self, positions, effect.fence)
        self._clock.record(self.name, "starts", {"fence": effect.fence, **_texts(positions)})
        for partition in positions:
            self._fetch_later(fetching, partition, self.random.randint(0, _FETCH_MS[0]))

    def _stop(self) -> None:
        fetching: Fetching | None = self._end_fetching()
        positions = {} if fetching is None else {each: at for each, at in fetching.positions.items() if at >= 0}
        self._clock.record(self.name, "stops", _texts(positions))
        self._clock.after(self.random.randint(*_STOP_MS), self.deliver, events.FetchersStopped(positions))

    def _fetch_later(self, fetching: Fetching, partition: Partition, ms: int) -> None:
        self._clock.after(ms, self._when_running, lambda: self._fetch(fetching, partition))

    def _fetch(self, fetching: Fetching, partition: Partition) -> None:
        if not fetching.is_running:
            return
        broker_id, _, number = partition.name.partition("-")
        broker = self._network.brokers[f"10.0.0.{broker_id}"]
        request = m.CentralFetchRequest(
            topic=partition.topic,
            partition=int(number),
            offset=max(fetching.positions[partition], 0),
            max_size=_FETCH_BYTES,
            fence=None if fetching.fence is None else [self._fetch_fence(fetching.fence)],
        )
        link = self._network.link_to(self, broker, self._fetch_seen)
        link.about = fetching
        self._fetches[link] = fetching, partition
        self._network.request(link, request)
        self._clock.after(_FETCH_TIMEOUT_MS, self._fetch_seen, link, Disconnected(link.number))

    def _fetch_fence(self, fence: Fence) -> m.CentralFetchRequestFence:
        return m.CentralFetchRequestFence(
            group_id=self.settings.group_id,
            consumer_id=self.settings.consumer_id,
            epoch=fence.epoch,
            generation=fence.generation,
        )

    def _fetch_seen(self, link: Link, what: Any) -> None:
        self._when_running(lambda: self._fetched(link, what))

    def _fetched(self, link: Link, what: Any) -> None:
        if link not in self._fetches:
            return
        fetching, partition = self._fetches.pop(link)
        self._network.hang_up(link)
        if not fetching.is_running:
            return
        if isinstance(what, Disconnected):
            self._fetch_later(fetching, partition, _REFUSED_MS)
            return
        self._consume(fetching, partition, what)
        if partition not in fetching.failed:
            self._fetch_later(fetching, partition, self.random.randint(*_FETCH_MS))

    def _consume(self, fetching: Fetching, partition: Partition, response: m.CentralFetchResponse) -> None:
        """Let the application consume what was fetched, or end the fetcher."""
        position = fetching.positions[partition]
        if position < 0 and response.error_code in (CentralError.NONE, CentralError.OFFSET_OUT_OF_RANGE):
            position = response.end_offset if position == _LATEST else response.first_offset
            fetching.positions[partition] = position
            self._invariants.reset(fetching, partition, position)
        elif response.error_code:
            fetching.failed.add(partition)
            self._clock.record(self.name, "fails", (partition, response.error_code))
            self.deliver(events.FetcherFailed(partition, CentralError(response.error_code)))
        elif response.records:
            end = response.records[-1].offset + 1
            self._invariants.consumed(fetching, partition, position, end)
            fetching.positions[partition] = end
            self.deliver(events.Progress({partition: end}))


def _texts(positions: Mapping[Partition, int]) -> dict[str, int]:
    return {f"{partition.topic}-{partition.name}": offset for partition, offset in sorted(positions.items())}
