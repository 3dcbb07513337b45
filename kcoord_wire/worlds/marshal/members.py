"""The member processes of a virtual cluster, each with an application.

Laws:

* A member gives its application records between `StartFetching` and `StopFetching`, and not while it is paused; when it
  resumes, its machine is first. Records at most once are given after `Deliver`.
* The application finishes records in any order, some of them late.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from kcoord_wire.kernel.machines import Machine
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.marshal import events
from kcoord_wire.marshal.events import Delivery, LossReason, Tenure
from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.worlds.marshal.clients import LocalClock, LogProcess
from kcoord_wire.worlds.marshal.invariants import Holding, Invariants
from kcoord_wire.worlds.marshal.log import LATENCY_MS, VirtualLog
from kcoord_wire.worlds.marshal.topics import VirtualTopics

_DRAINS: Final = (LossReason.RELEASED, LossReason.HANDED_OVER, LossReason.PAUSED, LossReason.KEPT)
_FETCH_MS: Final = (20, 200)  # between fetches
_WORK_MS: Final = (0, 80)  # of the application on a record
_SLOW: Final = 0.02  # of the records take up to `_SLOWEST_MS`
_SLOWEST_MS: Final = 3_000
_BATCH: Final = 5  # records given at once
_MOST_OPEN: Final = 20  # records that the application works on


class MemberProcess(LogProcess):
    """A member's process.

    :ivar settings: of its machine
    :ivar holdings: what it fetches
    """

    __slots__ = ("_invariants", "_open", "_stopped", "_topics", "holdings", "settings")

    def __init__(
        self,
        clock: VirtualClock,
        log: VirtualLog,
        topics: VirtualTopics,
        invariants: Invariants,
        name: str,
        settings: events.MemberSettings,
        machine: Machine,
        local: LocalClock,
        random: Random,
        lag_ms: tuple[int, int],
    ) -> None:
        self.settings = settings
        self.holdings: dict[Tenure, Holding] = {}
        self._topics = topics
        self._invariants = invariants
        self._stopped: dict[Tenure, Holding] = {}
        self._open = 0
        reads = {coordination_partition(topic, log.partitions) for topic in settings.topics}
        super().__init__(clock, log, name, machine, local, random, lag_ms, reads)
        self.learn_topics()

    def learn_topics(self) -> None:
        """It reads how many partitions the topics have."""
        counts = {topic: self._topics.counts.get(topic, 0) for topic in self.settings.topics}
        self.deliver(events.TopicPartitions(counts))

    # ---- the machine

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        match effect:
            case events.FindStart():
                self._clock.after(self.random.randint(*LATENCY_MS), self._find_start, effect)
            case events.StartFetching():
                self._start(effect.tenure, effect.offset)
            case events.Deliver():
                self._give_batch(effect)
            case events.StopFetching():
                self._stop(effect)
            case events.CommitOffset():
                self._clock.after(self.random.randint(*LATENCY_MS), self._commit, effect)
            case _:
                super().carry_out(effect)

    def _find_start(self, effect: events.FindStart) -> None:
        topic, partition, _ = effect.tenure
        offset = self._topics.start(self.settings.group_id, topic, partition, effect.offset)
        self.deliver(events.StartFound(effect.request, offset))

    def _commit(self, effect: events.CommitOffset) -> None:
        topic, partition, _ = effect.tenure
        self._topics.committed[self.settings.group_id, topic, partition] = effect.offset

    def end(self) -> None:
        """It has ended, or was killed: it fetches and reads nothing."""
        super().end()
        for holding in [*self.holdings.values()]:
            self._finish(holding)

    # ---- the application

    def _start(self, tenure: Tenure, offset: int) -> None:
        self._clock.record(self.name, "fetches", (tenure, offset))
        holding = Holding(self, tenure, offset, self._clock.time_ms)
        self.holdings[tenure] = holding
        self._invariants.started(holding)
        self._plan(holding)

    def _finish(self, holding: Holding) -> None:
        holding.is_running = False
        del self.holdings[holding.tenure]
        self._invariants.ended(holding)

    def _stop(self, effect: events.StopFetching) -> None:
        self._clock.record(self.name, "stops", (effect.tenure, effect.why.value))
        holding = self.holdings.get(effect.tenure)
        if holding is not None:
            self._finish(holding)
            self._stopped[effect.tenure] = holding
        elif (holding := self._stopped.pop(effect.tenure, None)) is None:
            raise ViolationError("tenures", f"{self.name} stops {effect.tenure}, which has not begun or has ended")
        holding.drains_until = self.local.time_of(effect.deadline) if effect.why in _DRAINS else 0

    def _plan(self, holding: Holding) -> None:
        self._clock.after(self.random.randint(*_FETCH_MS), self._fetch, holding)

    def _fetch(self, holding: Holding) -> None:
        if not holding.is_running:
            return
        self._plan(holding)
        if self.is_paused or self._open >= _MOST_OPEN:
            return
        topic, partition, _ = holding.tenure
        most = self.random.randint(1, _BATCH)
        offsets = list(self._topics.records(topic, partition, holding.position, most))
        if self.settings.delivery is Delivery.AT_LEAST_ONCE:
            self._give(holding, offsets)
        elif offsets and holding.position >= holding.asked:
            holding.asked = offsets[-1] + 1
            self.deliver(events.Fetched(holding.tenure, offsets[0], holding.asked))

    def _give(self, holding: Holding, offsets: Sequence[int]) -> None:
        if not offsets:
            return
        for offset in offsets:
            self._invariants.given(holding, offset)
            longest = _SLOWEST_MS if self.random.random() < _SLOW else _WORK_MS[1]
            self._clock.after(self.random.randint(_WORK_MS[0], longest), self._processed, holding, offset)
        self._open += len(offsets)
        holding.position = offsets[-1] + 1
        self.deliver(events.Delivered(holding.tenure, offsets, holding.position))

    def _processed(self, holding: Holding, offset: int) -> None:
        if self.is_paused:
            self._clock.after(_FETCH_MS[0], self._processed, holding, offset)
            return
        self._open -= 1
        is_in_time = holding.is_running or self._clock.time_ms < holding.drains_until
        if is_in_time and self.is_working:
            self._invariants.processed(holding, offset)
            self.deliver(events.Processed(holding.tenure, [offset]))

    def _give_batch(self, effect: events.Deliver) -> None:
        holding = self.holdings.get(effect.tenure)
        if holding is None or effect.end != holding.asked:
            raise ViolationError("tenures", f"{self.name}: {effect} without a batch that waits")
        topic, partition, _ = holding.tenure
        for offset in list(self._topics.records(topic, partition, holding.position, effect.end - holding.position)):
            if offset < effect.end:
                self._invariants.given(holding, offset)
        holding.position = effect.end
