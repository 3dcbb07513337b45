"""What a deploy costs a group: a rolling bounce on the virtual cluster, with eager, cooperative and static members.

    for name in PROTOCOLS:
        result = simulate_bounce(BounceWorkload(members=10), name)
        print(name, result.pause_partition_ms, result.rebalances)

One instance after the other gives up its partitions, leaves (unless it is static), is down, and starts again. The
coordinator, the bytes on the wire and the members' machine are those of `Cluster`; the application has one thread, as
the Java consumer's: while a listener opens or closes partitions it processes nothing and does not poll.

Laws:

* Workload, protocol and seed decide everything.
* Time counts as it would for real members: they learn of a rebalance by their next heartbeat, join at their next poll,
  and a join is complete when the last one has joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.events import CLIENT_VERSIONS
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.worlds.group.bounce_account import BounceResult, Work, WorkEvent, account
from kcoord_wire.worlds.group.cluster import Cluster
from kcoord_wire.worlds.group.members import MemberOptions, check_known

_AROUND_MS: Final = 10_000  # of steady state, before and after


class BounceProtocol(NamedTuple):
    """How the members of a group share its partitions.

    :ivar assignor: the one that they offer
    :ivar is_static: whether they have instance ids (KIP-345), so that a short absence is no rebalance
    """

    assignor: str
    is_static: bool = False


PROTOCOLS: Final[Mapping[str, BounceProtocol]] = MappingProxyType(
    {
        "eager": BounceProtocol("range"),
        "sticky": BounceProtocol("sticky"),
        "cooperative": BounceProtocol("cooperative-sticky"),
        "static": BounceProtocol("range", is_static=True),
    }
)
"""The protocols that are compared. ``sticky`` is eager too: its partitions come back to where they were, but they are
given up for every rebalance all the same."""


@dataclass(frozen=True, kw_only=True)
class BounceWorkload:
    """A group, its work and its deploy: the same for the simulation and for real clients. Times are in ms.

    :ivar members: instances of the application, each with one consumer
    :ivar topics: name to number of partitions
    :ivar revoke_ms: how long an instance takes to give up one partition: to commit, flush and close its store
    :ivar assign_ms: how long it takes to open one that it was assigned
    :ivar opens_aside: whether it opens partitions one by one beside its work, as Kafka Streams does; otherwise it opens
        those of one assignment in the listener, and processes nothing meanwhile
    :ivar down_ms: how long an instance is down, from the end of its consumer to the start of the next one
    :ivar interval_ms: from one stop to the next; None: the next instance stops when the group has settled, at a moment
        within one heartbeat interval
    :ivar rate_per_s: records that arrive per second and partition
    :ivar capacity_per_s: records that an instance processes per second, at most
    :ivar poll_ms: longest time that the application works between two polls
    :ivar session_timeout_ms: ``session.timeout.ms``
    :ivar heartbeat_interval_ms: ``heartbeat.interval.ms``
    :ivar rebalance_timeout_ms: ``max.poll.interval.ms``
    :ivar client: the library whose versions the members speak, see `MemberOptions`
    :raises ValueError: a number that makes no sense, such as fewer partitions than members
    """

    members: int = 10
    topics: Mapping[str, int] = field(default_factory=lambda: {"events": 200})
    revoke_ms: int = 50
    assign_ms: int = 150
    opens_aside: bool = False
    down_ms: int = 5_000
    interval_ms: int | None = None
    rate_per_s: float = 50.0
    capacity_per_s: float = 2_000.0
    poll_ms: int = 100
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 300_000
    client: str = "java"

    def __post_init__(self) -> None:
        for name in ("revoke_ms", "assign_ms", "down_ms", "poll_ms", "rate_per_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        positive = ["members", "capacity_per_s", "session_timeout_ms", "heartbeat_interval_ms", "rebalance_timeout_ms"]
        for name in [*positive, *(["interval_ms"] if self.interval_ms is not None else [])]:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for topic, count in self.topics.items():
            if count < 1:
                raise ValueError(f"topic {topic!r} needs one partition or more, not {count}")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be less than session_timeout_ms "
                f"({self.session_timeout_ms})"
            )
        if self.members > self.partition_count:
            raise ValueError(f"{self.members} members cannot share {self.partition_count} partitions: some are idle")
        check_known("client", [self.client], CLIENT_VERSIONS)

    @property
    def names(self) -> list[str]:
        """The instances, in the order in which they are restarted."""
        return [f"m{number}" for number in range(1, self.members + 1)]

    @property
    def partition_count(self) -> int:
        """The partitions of all topics."""
        return sum(self.topics.values())

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions."""
        return [TopicPartition(topic, number) for topic, count in self.topics.items() for number in range(count)]

    def options(self, protocol: BounceProtocol, name: str) -> MemberOptions:
        """The options of a simulated instance."""
        return MemberOptions(
            assignors=[protocol.assignor],
            instance_id=name if protocol.is_static else None,
            client=self.client,
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            heartbeat_restarts=self.client != "librdkafka",
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            release_ms=self.revoke_ms,
            restore_ms=self.assign_ms,
            restores_aside=self.opens_aside and self.assign_ms > 0,
            poll_ms=self.poll_ms,
            commit_ms=None,
        )

    def account(
        self,
        label: str,
        events: Sequence[WorkEvent],
        window_ms: tuple[float, float],
        rebalances: int,
        around_ms: float = _AROUND_MS,
    ) -> BounceResult:
        """Compute the cost of a bounce under this workload from the events of its work; see `account`."""
        return account(
            label,
            events,
            partitions=self.partitions,
            rate_per_s=self.rate_per_s,
            capacity_per_s=self.capacity_per_s,
            window_ms=window_ms,
            rebalances=rebalances,
            around_ms=around_ms,
        )


def simulate_bounce(workload: BounceWorkload, protocol: str, seed: int = 0) -> BounceResult:
    """Restart every instance of a group once, on the virtual cluster.

    :param protocol: a key of `PROTOCOLS`
    :param seed: decides latencies, and when instances stop
    :raises ValueError: no such protocol; the group does not settle, because its listeners take longer than members may
        stay away from polling
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"no protocol is called {protocol!r}; there are {', '.join(PROTOCOLS)}")
    config = GroupConfig(min_session_timeout_ms=min(6_000, workload.session_timeout_ms))
    with Cluster(seed, topics=workload.topics, config=config) as cluster:
        try:
            start = partial(_start, cluster, workload, PROTOCOLS[protocol])
            begin, end = Bounce(cluster, workload, start, Random(f"{seed}/bounce")).run()
        except TimeoutError:
            raise ValueError(why_restless(workload)) from None
        rebalances = sum(begin <= account.started_at - EPOCH_MS for account in cluster.begun)
        return workload.account(protocol, list(_events(cluster, workload)), (begin, end), rebalances)


def _start(cluster: Cluster, workload: BounceWorkload, protocol: BounceProtocol, name: str) -> None:
    cluster.member(name, workload.options(protocol, name))


def why_restless(workload: BounceWorkload) -> str:
    """Say why a group does not settle under a workload."""
    share = -(-workload.partition_count // workload.members)
    return (
        f"the group does not settle: a member of {share} partitions needs {share * workload.revoke_ms} ms to close and "
        f"{share * workload.assign_ms} ms to open them; max.poll.interval.ms is {workload.rebalance_timeout_ms}"
    )


class Bouncing(Protocol):
    """What a bounce needs of a virtual cluster."""

    @property
    def now(self) -> int:
        """Virtual ms since the start."""

    @property
    def processes(self) -> Mapping[str, Any]:
        """By name."""

    def run(self, ms: int) -> None:
        """Let time pass."""

    def run_until(self, holds: Callable[[], bool], within_ms: int) -> int:
        """Let time pass until `holds` returns True."""

    def at(self, ms: int, action: Callable[[], None]) -> None:
        """Plan an action for so many ms after the start."""

    def shut_down(self, name: str) -> int:
        """Let an instance stop; return how long that takes."""

    def is_settled(self) -> bool:
        """Whether every partition has one owner."""

    def is_busy(self, name: str) -> bool:
        """Whether an instance opens or closes partitions."""


class Bounce:
    """Starts the instances of a cluster, and restarts each of them once.

    :param start: starts an instance
    """

    def __init__(
        self, cluster: Bouncing, workload: BounceWorkload, start: Callable[[str], object], random: Random
    ) -> None:
        self._cluster = cluster
        self._workload = workload
        self._start = start
        self._random = random
        self._left = 0  # restarts that are not done

    def run(self) -> tuple[int, int]:
        """Return when the first instance stopped, and when the group had settled after the last start."""
        names = self._workload.names
        for name in names:
            self._start(name)
        self._settle()
        self._cluster.run(_AROUND_MS + self._phase())
        begin = self._cluster.now
        if self._workload.interval_ms is None:
            for number, name in enumerate(names):
                self._cluster.run(self._phase() if number else 0)
                self._plan(name, 0)
                self._settle()
        else:
            for number, name in enumerate(names):
                self._plan(name, number * self._workload.interval_ms)
            self._settle()
        return begin, self._cluster.now

    def _phase(self) -> int:
        """The part of a heartbeat interval that passes until a stop: a deploy is not in step with the heartbeats."""
        return self._random.randint(0, self._workload.heartbeat_interval_ms)

    def _plan(self, name: str, ms: int) -> None:
        self._left += 1
        self._cluster.at(self._cluster.now + ms, partial(self._stop, name))

    def _stop(self, name: str) -> None:
        stopped_at = self._cluster.now + self._cluster.shut_down(name)
        self._cluster.at(stopped_at + self._workload.down_ms, partial(self._restart, name))

    def _restart(self, name: str) -> None:
        self._left -= 1
        self._start(name)

    def _settle(self) -> None:
        """Let time pass until nothing is left to do and every partition is open."""
        workload = self._workload
        patience = 4 * workload.rebalance_timeout_ms + workload.session_timeout_ms + workload.down_ms
        patience += workload.members * (workload.interval_ms or 0)
        self._cluster.run_until(self._has_settled, patience)

    def _has_settled(self) -> bool:
        cluster = self._cluster
        return self._left == 0 and cluster.is_settled() and not any(map(cluster.is_busy, cluster.processes))


def _events(cluster: Cluster, workload: BounceWorkload) -> Iterator[WorkEvent]:
    """The events of the instances' work, from the trace.

    A partition is processed when it is open; if that takes no time, when its committed offset is known.
    """
    taken = ("opened", "fetched")[workload.assign_ms == 0]
    for at, who, what, detail in cluster.trace:
        if who not in cluster.processes:
            continue
        if what in WORK:
            yield WorkEvent(at, who, WORK[what])
        if what == taken:
            yield WorkEvent(at, who, Work.TAKES, frozenset(detail.offsets if what == "fetched" else detail))
        elif what in ("closes", "lost"):
            yield WorkEvent(at, who, Work.DROPS, frozenset(detail.partitions if what == "lost" else detail))


WORK: Final[Mapping[str, Work]] = MappingProxyType(
    {
        "starts": Work.STARTS,
        "opens": Work.BLOCKS,
        "opened": Work.RESUMES,
        "closes": Work.BLOCKS,
        "closed": Work.RESUMES,
        "shuts down": Work.STOPS,
    }
)
"""Words of the trace, as the account understands them."""
