"""What a deploy costs a group of KIP-848: the bounce of `worlds.group.rolling_bounce` with such members.

Laws:

* Workload and seed decide everything, and time counts as for the other protocols: listeners run when the application
  polls, one at a time, and nothing is processed meanwhile.
* A member beats while its application is in a listener, and reports what it owns when the listener has returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from random import Random
from typing import Any, Final

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import kip848_member as events
from kcoord_wire.consumer.kip848_member import Partition
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.worlds.consumer_groups.consumer_group_world import ConsumerGroupCluster, MemberProcess
from kcoord_wire.worlds.group.members import Opening
from kcoord_wire.worlds.group.rolling_bounce import (
    WORK,
    Bounce,
    BounceResult,
    BounceWorkload,
    Work,
    WorkEvent,
    why_restless,
)

LABEL: Final = "consumer"
"""Of the result: ``group.protocol=consumer``."""


def simulate_consumer_bounce(workload: BounceWorkload, seed: int = 0) -> BounceResult:
    """Restart every instance of a group of KIP-848 once, on the virtual cluster.

    :raises ValueError: the group does not settle
    """
    with _BounceCluster(workload, seed) as cluster:
        try:
            begin, end = Bounce(cluster, workload, cluster.member, Random(f"{seed}/bounce")).run()
        except TimeoutError:
            raise ValueError(why_restless(workload)) from None
        rebalances = sum(begin <= account.started_at - EPOCH_MS for account in cluster.begun)
        return workload.account(LABEL, list(cluster.work()), (begin, end), rebalances)


class _BounceCluster(ConsumerGroupCluster):
    """A cluster whose applications have one thread each, which takes time to open and to close partitions."""

    def __init__(self, workload: BounceWorkload, seed: int) -> None:
        self._workload = workload
        self._busy_until: Counter[str] = Counter()
        self._listeners: Counter[str] = Counter()
        self._opening: dict[str, Opening] = {}
        config = GroupConfig(
            consumer_session_timeout_ms=workload.session_timeout_ms,
            consumer_heartbeat_interval_ms=workload.heartbeat_interval_ms,
        )
        options = {"rebalance_timeout_ms": workload.rebalance_timeout_ms, "commit_ms": None}
        super().__init__(seed, topics=workload.topics, options=options, config=config)

    # ---- what a bounce asks

    def is_busy(self, name: str) -> bool:
        """Return whether an instance opens or closes partitions, or is about to."""
        return self._listeners[name] > 0 or bool(self._opening.get(name))

    def shut_down(self, name: str) -> int:
        """The application gives up its partitions, then closes its member; return how long that takes."""
        process = self.processes[name]
        owned = process.client.owned
        self._clock.record(name, "shuts down", self._named(owned))
        ends = max(self._busy_until[name], self._clock.time_ms) + self._workload.revoke_ms * len(owned)
        self._busy_until[name] = ends
        self._opening.pop(name, None)
        self._clock.at(ends, self.leave, name)
        return ends - self._clock.time_ms

    # ---- the application's thread

    def carry_out(self, process: MemberProcess, effect: Any) -> None:
        """Do what a member wants, in the time that its application takes."""
        workload = self._workload
        if isinstance(effect, events.Revoking):
            wait = workload.revoke_ms * len(effect.partitions)
            self._listen(process, "closes", "closed", wait, effect.partitions, events.Released(effect.ticket))
        elif isinstance(effect, events.Assigned):
            if workload.opens_aside and workload.assign_ms:
                self._open_aside(process, effect.partitions)
            else:
                wait = workload.assign_ms * len(effect.partitions)
                self._listen(process, "opens", "opened", wait, effect.partitions, None)
        elif isinstance(effect, events.Lost):
            self._clock.record(process.name, "lost", self._named(effect.partitions))
            if opening := self._opening.get(process.name):
                opening.drop(self._named(effect.partitions))
        else:
            super().carry_out(process, effect)

    def _listen(
        self,
        process: MemberProcess,
        begins: str,
        ends: str,
        ms: int,
        partitions: frozenset[Partition],
        event: events.Released | None,
    ) -> None:
        """Call a listener when the application polls and no other listener runs."""
        name, now = process.name, self._clock.time_ms
        poll_ms = self._workload.poll_ms
        works = process.random.randint(0, poll_ms) if poll_ms and self._busy_until[name] <= now else 0
        starts = max(self._busy_until[name], now + works)
        self._busy_until[name] = starts + ms
        self._listeners[name] += 1
        named = self._named(partitions)
        if begins == "closes" and (opening := self._opening.get(name)):
            opening.drop(named)
        self._clock.at(starts, self._note, process, begins, named)
        self._clock.at(starts + ms, self._returned, process, ends, named, event)

    def _note(self, process: MemberProcess, what: str, named: frozenset[TopicPartition]) -> None:
        if process.is_working:
            self._clock.record(process.name, what, named)

    def _returned(
        self, process: MemberProcess, what: str, named: frozenset[TopicPartition], event: events.Released | None
    ) -> None:
        self._listeners[process.name] -= 1
        self._note(process, what, named)
        if event is not None:
            process.deliver(event)

    def _open_aside(self, process: MemberProcess, partitions: Iterable[Partition]) -> None:
        name = process.name
        if name not in self._opening:
            self._opening[name] = Opening(self._clock, self._workload.assign_ms, partial(self._opened, process))
        self._opening[name].add(self._named(partitions))

    def _opened(self, process: MemberProcess, partition: TopicPartition) -> None:
        self._note(process, "opened", frozenset({partition}))

    def _named(self, partitions: Iterable[Partition]) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(self._name_of(topic_id), number) for topic_id, number in partitions)

    # ---- the account

    def work(self) -> Iterator[WorkEvent]:
        """Yield the events of the instances' work, from the trace."""
        aside = self._workload.opens_aside and self._workload.assign_ms > 0  # then opening is no listener
        for at, who, what, detail in self.trace:
            if who not in self.processes:
                continue
            if what in WORK and not (aside and what == "opened"):
                yield WorkEvent(at, who, WORK[what])
            if what == "opened":
                yield WorkEvent(at, who, Work.TAKES, detail)
            elif what in ("closes", "lost"):
                yield WorkEvent(at, who, Work.DROPS, detail)
