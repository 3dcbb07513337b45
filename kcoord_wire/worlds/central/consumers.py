"""The consumer processes of a `CentralCluster`: the draft's machine, its fetchers, and an application that counts.

Laws:

* Fetchers run between `StartFetchers` and `StopFetchers`, each with one request under way. An answer that comes after
  `StopFetchers` is dropped, so nothing is consumed after the positions were reported.
* A process that resumes may fetch before its machine notices how much time has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.central.draft import events
from kcoord_wire.central.draft.consumer import ConsumerState, DraftConsumer
from kcoord_wire.central.draft.events import CentralError, Fence, Partition
from kcoord_wire.kernel.machines import Close, Connect, Connected, Disconnected, LogEvent, Received, Send
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.messages import central as m
from kcoord_wire.worlds.central.wire import Link, Wire

if TYPE_CHECKING:
    from kcoord_wire.worlds.central.invariants import Invariants

_FETCH_BYTES: Final = 400  # about ten records
_FETCH_MS: Final = (50, 300)  # between an answer and the next fetch: the application's work
_STOP_MS: Final = (0, 30)  # until the fetchers have stopped
_REFUSED_MS: Final = 500  # before a fetch is tried again that found no broker
_FETCH_TIMEOUT_MS: Final = 2_000
_LATEST: Final = -1


class Tenure:
    """One assignment of a consumer, from `StartFetchers` to the end of its fetchers.

    :ivar process: the consumer's
    :ivar fence: sent with each fetch; None without
    :ivar positions: the next offset to consume; negative until the first answer says where records begin
    :ivar failed: the partitions whose fetchers have ended by themselves
    :ivar is_running: whether its fetchers run
    """

    __slots__ = ("failed", "fence", "is_running", "positions", "process")

    def __init__(self, process: ConsumerProcess, positions: dict[Partition, int], fence: Fence | None) -> None:
        self.process = process
        self.positions = positions
        self.fence = fence
        self.failed: set[Partition] = set()
        self.is_running = True

    def __str__(self) -> str:
        fence = "" if self.fence is None else f" at epoch {self.fence.epoch}, generation {self.fence.generation}"
        return f"{self.process.name}{fence}"


class ConsumerProcess(Process):
    """A consumer's process.

    :param brokers: finds a broker by its address
    :ivar settings: of its machine
    :ivar tenure: its present assignment; None while no fetcher runs
    """

    __slots__ = ("_deferred", "_fetching", "_invariants", "_links", "_wire", "machine", "settings", "tenure")

    machine: DraftConsumer

    def __init__(
        self,
        clock: VirtualClock,
        wire: Wire,
        invariants: Invariants,
        name: str,
        settings: events.ConsumerSettings,
        random: Random,
    ) -> None:
        super().__init__(clock, name, wire.host_of(name), DraftConsumer(settings), random)
        self.settings = settings
        self.tenure: Tenure | None = None
        self._wire = wire
        self._invariants = invariants
        self._links: dict[int, Link] = {}  # by the machine's number
        self._fetching: dict[Link, tuple[Tenure, Partition]] = {}
        self._deferred: list[Callable[[], None]] = []

    @property
    def is_working(self) -> bool:
        """Whether it runs and has not been shut down."""
        return self.is_alive and self.machine.state is not ConsumerState.ENDED

    # ---- the machine

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        match effect:
            case Send():
                self._wire.request(self._links[effect.connection], effect.message)
            case Connect():
                self._connect(effect)
            case Close():
                self._close(effect.connection)
            case events.StartFetchers():
                self._start(effect)
            case events.StopFetchers():
                self._stop()
            case LogEvent():
                self._clock.record(self.name, effect.what, dict(effect.facts))

    def _connect(self, effect: Connect) -> None:
        number = effect.connection
        broker = self._wire.brokers.get(effect.broker.host)
        if broker is None:
            self._clock.after(1, self.deliver, Disconnected(number))
            return

        def seen(_link: Link, what: Any) -> None:
            if what is None:
                self.deliver(Connected(number))
            else:
                self.deliver(Disconnected(number) if isinstance(what, Disconnected) else Received(number, what))

        self._links[number] = link = self._wire.open(self, broker, seen)
        self._wire.connect(link)

    def _close(self, number: int) -> None:
        link = self._links.pop(number, None)
        if link is not None:
            self._wire.hang_up(link)

    def handled(self) -> None:
        """Nothing is checked here: the laws look at messages, fetches and writes."""

    def changed(self) -> None:
        """It was paused, resumed or killed."""
        if not self.is_alive:
            self._end_tenure()
            for link in [*self._links.values(), *self._fetching]:
                self._wire.hang_up(link)
        elif not self.is_paused:
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
        self.tenure = tenure = Tenure(self, positions, effect.fence)
        self._clock.record(self.name, "starts", {"fence": effect.fence, **_texts(positions)})
        for partition in positions:
            self._fetch_later(tenure, partition, self.random.randint(0, _FETCH_MS[0]))

    def _stop(self) -> None:
        tenure = self.tenure
        self._end_tenure()
        positions = {} if tenure is None else {each: at for each, at in tenure.positions.items() if at >= 0}
        self._clock.record(self.name, "stops", _texts(positions))
        self._clock.after(self.random.randint(*_STOP_MS), self.deliver, events.FetchersStopped(positions))

    def _end_tenure(self) -> None:
        if self.tenure is not None:
            self.tenure.is_running = False
            self.tenure = None

    def _fetch_later(self, tenure: Tenure, partition: Partition, ms: int) -> None:
        self._clock.after(ms, self._when_running, lambda: self._fetch(tenure, partition))

    def _fetch(self, tenure: Tenure, partition: Partition) -> None:
        if not tenure.is_running:
            return
        broker_id, _, number = partition.name.partition("-")
        broker = self._wire.brokers[f"10.0.0.{broker_id}"]
        request = m.CentralFetchRequest(
            topic=partition.topic,
            partition=int(number),
            offset=max(tenure.positions[partition], 0),
            max_size=_FETCH_BYTES,
            fence=None if tenure.fence is None else [self._fetch_fence(tenure.fence)],
        )
        link = self._wire.open(self, broker, self._fetch_seen)
        link.about = tenure
        self._fetching[link] = tenure, partition
        self._wire.request(link, request)
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
        if link not in self._fetching:
            return
        tenure, partition = self._fetching.pop(link)
        self._wire.hang_up(link)
        if not tenure.is_running:
            return
        if isinstance(what, Disconnected):
            self._fetch_later(tenure, partition, _REFUSED_MS)
            return
        self._consume(tenure, partition, what)
        if partition not in tenure.failed:
            self._fetch_later(tenure, partition, self.random.randint(*_FETCH_MS))

    def _consume(self, tenure: Tenure, partition: Partition, response: m.CentralFetchResponse) -> None:
        """Let the application consume what was fetched, or end the fetcher."""
        position = tenure.positions[partition]
        if position < 0 and response.error_code in (CentralError.NONE, CentralError.OFFSET_OUT_OF_RANGE):
            position = response.end_offset if position == _LATEST else response.first_offset
            tenure.positions[partition] = position
            self._invariants.reset(tenure, partition, position)
        elif response.error_code:
            tenure.failed.add(partition)
            self._clock.record(self.name, "fails", (partition, response.error_code))
            self.deliver(events.FetcherFailed(partition, CentralError(response.error_code)))
        elif response.records:
            end = response.records[-1].offset + 1
            self._invariants.consumed(tenure, partition, position, end)
            tenure.positions[partition] = end
            self.deliver(events.Progress({partition: end}))


def _texts(positions: Mapping[Partition, int]) -> dict[str, int]:
    return {f"{partition.topic}-{partition.name}": offset for partition, offset in sorted(positions.items())}
