"""What a deploy costs a group: a rolling bounce on the virtual clusters, with members of each protocol.

    for name in PROTOCOLS:
        result = simulate_bounce(BounceWorkload(members=10), name)
        print(name, result.pause_partition_ms, result.rebalances)

One instance after the other gives up its partitions, leaves (unless it is static), is down, and starts again. The
coordinator, the bytes on the wire and the members' machines are those of `worlds.group` and `worlds.consumer_groups`;
the application has one thread, as the Java consumer's: while a listener opens or closes partitions it processes nothing
and does not poll. The cost (pauses, throughput, moves, lag) is computed from the events of the instances' work, which
are the same for a simulated and for a real group, so that the two can be compared.

Laws:

* Workload, protocol and seed decide everything.
* Time counts as it would for real members: they learn of a rebalance by their next heartbeat, join at their next poll,
  and a join is complete when the last one has joined. A member of KIP-848 beats while its application is in a
  listener, and reports what it owns when the listener has returned.
* A partition is processed while a running instance has taken it and is in no listener. Everything else is pause.
* Records arrive evenly and are processed as a fluid: an instance processes what arrives, and uses the rest of its
  capacity for the lag, in proportion to the lag of its partitions. What has arrived is processed or is lag.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from kcoord_wire.assignors import Assignor, RebalanceProtocol, TopicPartition
from kcoord_wire.consumer.member_events import CLIENT_VERSIONS
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.worlds.consumer_groups.consumer_group_world import GROUP, ConsumerGroupCluster
from kcoord_wire.worlds.consumer_groups.stores import AnyCluster, Stores, StoreSettings
from kcoord_wire.worlds.group.members import MemberOptions, check_known
from kcoord_wire.worlds.group.world import Cluster


class Work(enum.StrEnum):
    """What happens to an instance's work."""

    STARTS = "starts"  # the process starts, without partitions
    TAKES = "takes"  # it processes these partitions from now on
    DROPS = "drops"  # it no longer processes these
    BLOCKS = "blocks"  # a listener runs: nothing is processed
    RESUMES = "resumes"  # the listener has returned
    STOPS = "stops"  # the process begins to stop and processes nothing any more


class WorkEvent(NamedTuple):
    """One event. Until it starts again, a stopped instance has no others that count.

    :ivar at: ms
    :ivar instance: its name
    :ivar what: see `Work`
    :ivar partitions: those taken or dropped; empty for the other kinds
    """

    at: float
    instance: str
    what: Work
    partitions: frozenset[TopicPartition] = frozenset()


@dataclass(slots=True)
class InstanceCost:
    """What a bounce meant for one instance.

    :ivar paused_ms: how long it ran without processing anything
    :ivar down_ms: from the beginning of its stop until it started again
    :ivar opened: partitions that it took
    :ivar records: that it processed
    :ivar throughput: records per second, in the intervals of `BounceResult.times_ms`
    """

    paused_ms: float = 0.0
    down_ms: float = 0.0
    opened: int = 0
    records: float = 0.0
    throughput: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class BounceResult:
    """The cost of one rolling bounce. Times are in ms and count from the first stop.

    :ivar label: the protocol, or what else distinguishes this result
    :ivar took_ms: until the group had settled after the last start
    :ivar pause_partition_ms: time in which a partition was not processed, summed over the partitions
    :ivar pause_instance_ms: time in which a running instance processed nothing, summed over the instances
    :ivar down_instance_ms: time between stop and start, summed over the instances: what any deploy takes
    :ivar longest_pause_ms: of one partition, without a break
    :ivar rebalances: that began
    :ivar moves: how often a partition went to another instance than the one before
    :ivar opened: how often a partition was taken, by whichever instance
    :ivar lag_records: at the end of the bounce
    :ivar caught_up_ms: when that lag was gone; None if the capacity does not suffice
    :ivar times_ms: the beginnings of the intervals of `throughput`
    :ivar throughput: records per second, of all instances
    :ivar instances: by name
    """

    label: str
    took_ms: float
    pause_partition_ms: float
    pause_instance_ms: float
    down_instance_ms: float
    longest_pause_ms: float
    rebalances: int
    moves: int
    opened: int
    lag_records: float
    caught_up_ms: float | None
    times_ms: list[float]
    throughput: list[float]
    instances: dict[str, InstanceCost]


def account(
    label: str,
    events: Iterable[WorkEvent],
    *,
    partitions: Iterable[TopicPartition],
    rate_per_s: float,
    capacity_per_s: float,
    window_ms: tuple[float, float],
    rebalances: int,
    interval_ms: float = 1_000,
    around_ms: float = 10_000,
) -> BounceResult:
    """Compute the cost of a bounce.

    :param label: of the result
    :param events: in order of time, from the first start of each instance on
    :param partitions: all there are
    :param rate_per_s: records that arrive per second and partition
    :param capacity_per_s: records that an instance processes per second, at most
    :param window_ms: when the first instance stopped, and when the group had settled after the last start
    :param rebalances: that began in the window
    :param interval_ms: of the throughput
    :param around_ms: how long before and after the window throughput is computed; the group is steady then, without lag
        before the window
    :raises ValueError: there are no instances, or not all partitions are processed when the window begins
    """
    begin, end = window_ms
    first = begin - around_ms
    last = first + math.ceil((end + around_ms - first) / interval_ms) * interval_ms
    ledger = _Ledger(partitions, rate_per_s / 1_000, capacity_per_s / 1_000, interval_ms)
    history = list(events)
    for event in history:
        if event.at < first:
            ledger.apply(event)
    ledger.begin(first, last)
    for event in history:
        if first <= event.at <= end:
            ledger.apply(event)
    ledger.end(end)
    lag, caught_up_ms = ledger.lag(end), ledger.catch_up_ms()
    ledger.advance(last)
    costs = {name: instance.cost for name, instance in ledger.instances.items()}
    return BounceResult(
        label=label,
        took_ms=end - begin,
        pause_partition_ms=sum(pause.total for pause in ledger.pauses.values()),
        pause_instance_ms=sum(cost.paused_ms for cost in costs.values()),
        down_instance_ms=sum(cost.down_ms for cost in costs.values()),
        longest_pause_ms=max(pause.longest for pause in ledger.pauses.values()),
        rebalances=rebalances,
        moves=ledger.moves,
        opened=sum(cost.opened for cost in costs.values()),
        lag_records=lag,
        caught_up_ms=None if caught_up_ms is None else end - begin + caught_up_ms,
        times_ms=[number * interval_ms - around_ms for number in range(round((last - first) / interval_ms))],
        throughput=[sum(rates) for rates in zip(*(cost.throughput for cost in costs.values()), strict=True)],
        instances=costs,
    )


@dataclass(slots=True)
class _Pause:
    """The pauses of one partition; `since` is None while it is processed."""

    since: float | None
    total: float = 0.0
    longest: float = 0.0

    def end(self, at: float) -> None:
        if self.since is not None:
            self.total += at - self.since
            self.longest = max(self.longest, at - self.since)
            self.since = None


@dataclass(slots=True)
class _Instance:
    """An instance, and the lag of each partition that it has taken, at the time `at`."""

    at: float
    lags: dict[TopicPartition, float] = field(default_factory=dict)
    is_up: bool = True
    is_blocked: bool = False
    cost: InstanceCost = field(default_factory=InstanceCost)

    @property
    def is_working(self) -> bool:
        return self.is_up and not self.is_blocked and bool(self.lags)


class _Ledger:
    """The state of the group at a moment. Pauses count between `begin` and `end`, records from `begin` on.

    Rates are per ms.
    """

    def __init__(self, partitions: Iterable[TopicPartition], rate: float, capacity: float, interval_ms: float) -> None:
        self.instances: dict[str, _Instance] = {}
        self.pauses = {partition: _Pause(None) for partition in partitions}
        self.moves = 0
        self._start_ms = math.inf
        self._is_counting = False
        self._rate = rate
        self._capacity = capacity
        self._interval_ms = interval_ms
        self._orphans: dict[TopicPartition, tuple[float, float]] = {}  # its lag, and when it was that
        self._last_taker: dict[TopicPartition, str] = {}

    def begin(self, first: float, last: float) -> None:
        """Count from now on."""
        working = {partition for each in self.instances.values() if each.is_working for partition in each.lags}
        if not self.instances or working != set(self.pauses):
            raise ValueError(f"{len(self.pauses) - len(working)} partitions are not processed before the bounce")
        self._start_ms = first
        self._is_counting = True
        self.moves = 0
        for instance in self.instances.values():
            instance.at = first
            instance.lags = dict.fromkeys(instance.lags, 0.0)
            instance.cost = InstanceCost(throughput=[0.0] * round((last - first) / self._interval_ms))

    def end(self, at: float) -> None:
        """Count no pauses from now on."""
        self.advance(at)
        self._is_counting = False
        for pause in self.pauses.values():
            pause.end(at)

    def advance(self, to: float) -> None:
        """Let time pass for all."""
        for instance in self.instances.values():
            self._work(instance, to)

    def lag(self, at: float) -> float:
        """The records that have arrived and are not processed."""
        held = sum(sum(instance.lags.values()) for instance in self.instances.values())
        return held + sum(lag + self._rate * (at - since) for lag, since in self._orphans.values())

    def catch_up_ms(self) -> float | None:
        """How long until there is no lag, if everything stays as it is."""
        if self._orphans or not all(instance.is_working for instance in self.instances.values() if instance.lags):
            return None
        longest = 0.0
        for instance in self.instances.values():
            spare = self._capacity - self._rate * len(instance.lags)
            if (lag := sum(instance.lags.values())) > 0:
                if spare <= 0:
                    return None
                longest = max(longest, lag / spare)
        return longest

    # ---- events

    def apply(self, event: WorkEvent) -> None:
        """Take in one event."""
        instance = self.instances.get(event.instance)
        if instance is None:
            instance = self.instances[event.instance] = _Instance(event.at, is_up=False)
        self._work(instance, event.at)
        if event.what is Work.STARTS:
            instance.is_up, instance.is_blocked = True, False
        elif instance.is_up:
            self._change(instance, event)

    def _change(self, instance: _Instance, event: WorkEvent) -> None:
        if event.what is Work.TAKES:
            self._take(instance, event)
            self._note_pauses(event.partitions, event.at, is_working=instance.is_working)
        elif event.what is Work.DROPS:
            self._drop(instance, event.partitions & instance.lags.keys(), event.at)
        elif event.what is Work.STOPS:
            self._drop(instance, frozenset(instance.lags), event.at)
            instance.is_up = False
        elif instance.is_blocked is not (event.what is Work.BLOCKS):
            instance.is_blocked = event.what is Work.BLOCKS
            self._note_pauses(instance.lags, event.at, is_working=instance.is_working)

    def _take(self, instance: _Instance, event: WorkEvent) -> None:
        for partition in event.partitions:
            lag, since = self._orphans.pop(partition, (0.0, event.at))
            instance.lags[partition] = lag + self._rate * (event.at - since)
            self.moves += self._last_taker.get(partition, event.instance) != event.instance
            self._last_taker[partition] = event.instance
        instance.cost.opened += len(event.partitions)

    def _drop(self, instance: _Instance, partitions: Iterable[TopicPartition], at: float) -> None:
        for partition in partitions:
            self._orphans[partition] = instance.lags.pop(partition), at
        self._note_pauses(partitions, at, is_working=False)

    def _note_pauses(self, partitions: Iterable[TopicPartition], at: float, *, is_working: bool) -> None:
        if not self._is_counting:
            return
        for partition in partitions:
            pause = self.pauses[partition]
            if is_working:
                pause.end(at)
            elif pause.since is None:
                pause.since = at

    # ---- records

    def _work(self, instance: _Instance, to: float) -> None:
        """Let time pass for one instance."""
        since, instance.at = instance.at, to
        ms, cost, lags = to - since, instance.cost, instance.lags
        if ms <= 0 or to <= self._start_ms:
            return
        if not instance.is_working:
            instance.lags = {partition: lag + self._rate * ms for partition, lag in lags.items()}
            if self._is_counting and instance.is_up:
                cost.paused_ms += ms
            elif self._is_counting:
                cost.down_ms += ms
            return
        arriving, lag = self._rate * len(lags), sum(lags.values())
        spare = self._capacity - arriving
        if spare <= 0:
            self._process(cost, since, to, self._capacity)
            instance.lags = {partition: lag - spare * ms / len(lags) for partition, lag in lags.items()}
            return
        until = min(to, since + lag / spare)
        self._process(cost, since, until, self._capacity)
        self._process(cost, until, to, arriving)
        rest = 1 - spare * (until - since) / lag if until == to and lag else 0.0
        instance.lags = {partition: lag * rest for partition, lag in lags.items()}

    def _process(self, cost: InstanceCost, since: float, to: float, rate: float) -> None:
        """Add to the throughput what is processed at a rate."""
        cost.records += rate * (to - since)
        while since < to:
            index = int((since - self._start_ms) // self._interval_ms)
            until = min(to, self._start_ms + (index + 1) * self._interval_ms)
            cost.throughput[index] += rate * (until - since) * 1_000 / self._interval_ms
            since = until


_STORES: Final = ("disk", "memory")
_AROUND_MS: Final = 10_000  # of steady state, before and after


class BounceProtocol(NamedTuple):
    """How the members of a group share its partitions.

    :ivar assignor: the one that they offer; None for members of KIP-848
    :ivar is_static: whether they have instance ids (KIP-345), so that a short absence is no rebalance
    :ivar knows_stores: how they rebalance with an assignor that knows where state is, if there is any; None: they keep
        their own assignor
    """

    assignor: str | None
    is_static: bool = False
    knows_stores: RebalanceProtocol | None = None


PROTOCOLS: Final[Mapping[str, BounceProtocol]] = MappingProxyType(
    {
        "eager": BounceProtocol("range", knows_stores=RebalanceProtocol.EAGER),
        "sticky": BounceProtocol("sticky"),
        "cooperative": BounceProtocol("cooperative-sticky", knows_stores=RebalanceProtocol.COOPERATIVE),
        "static": BounceProtocol("range", is_static=True),
        "consumer": BounceProtocol(None),
    }
)
"""The protocols that are compared. ``sticky`` is eager too: its partitions come back to where they were, but they are
given up for every rebalance all the same. ``consumer`` is ``group.protocol=consumer``, KIP-848."""


@dataclass(frozen=True, kw_only=True)
class BounceWorkload:
    """A group, its work and its deploy: the same for the simulation and for real clients. Times are in ms.

    :ivar members: instances of the application, each with one consumer
    :ivar topics: name to number of partitions
    :ivar revoke_ms: how long an instance takes to give up one partition: to commit, flush and close its store
    :ivar assign_ms: how long it takes to open one that it was assigned
    :ivar restore_ms: how long it takes besides to restore its state, where the instance has no copy of it (`stores`).
        With it, eager and cooperative members have an assignor that knows the copies
    :ivar store: where copies are: on ``disk``, or in ``memory``, where they end with the process
    :ivar standbys: so many other instances keep a copy of each partition's state
    :ivar warms_up: whether partitions move only to instances that have restored their state beside their work (KIP-441)
    :ivar opens_aside: whether it opens partitions one by one beside its work, as Kafka Streams does; otherwise it opens
        those of one assignment in the listener, and processes nothing meanwhile
    :ivar down_ms: how long an instance is down, from the end of its consumer to the start of the next one
    :ivar interval_ms: from one stop to the next; None: the next instance stops when the group has settled and standbys
        are whole, at a moment within one heartbeat interval
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
    restore_ms: int = 0
    store: Literal["disk", "memory"] = "disk"
    standbys: int = 0
    warms_up: bool = False
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
        for name in ("revoke_ms", "assign_ms", "restore_ms", "standbys", "down_ms", "poll_ms", "rate_per_s"):
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
        self._check_stores()

    def _check_stores(self) -> None:
        check_known("store", [self.store], _STORES)
        if not self.restore_ms and (self.standbys or self.warms_up or self.store != "disk"):
            raise ValueError("standbys, warm-up and stores in memory need a restore_ms above 0")
        if self.standbys >= self.members:
            raise ValueError(f"{self.standbys} standbys need more than {self.members} members")

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

    @property
    def opens(self) -> bool:
        """Whether opening a partition takes time."""
        return self.assign_ms + self.restore_ms > 0

    @property
    def store_settings(self) -> StoreSettings:
        """How its state is kept."""
        return StoreSettings(self.assign_ms, self.restore_ms, self.store == "memory", self.standbys, self.warms_up)

    def options(self, protocol: BounceProtocol, name: str, stores: Stores | None = None) -> MemberOptions:
        """The options of a simulated instance.

        :param stores: the group's, if state has to be restored
        """
        assignor: str | Assignor | None = protocol.assignor
        if stores is not None and protocol.knows_stores is not None:
            assignor = stores.assignor(protocol.knows_stores)
        return MemberOptions(
            group=GROUP,
            assignors=None if assignor is None else [assignor],
            instance_id=name if protocol.is_static else None,
            client=self.client,
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            heartbeat_restarts=self.client != "librdkafka",
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            release_ms=self.revoke_ms,
            restore_ms=self.assign_ms,
            restoring=None if stores is None else partial(stores.opening_ms, name),
            restores_aside=self.opens_aside and self.opens,
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
    with _cluster(workload, protocol, seed) as cluster:
        try:
            stores = Stores(cluster, workload.store_settings) if workload.restore_ms else None
            start = partial(_start, cluster, workload, PROTOCOLS[protocol], stores)
            begin, end = Bounce(cluster, workload, start, Random(f"{seed}/bounce"), stores).run()
        except TimeoutError:
            raise ValueError(_why_restless(workload)) from None
        rebalances = sum(begin <= account.started_at - EPOCH_MS for account in cluster.begun)
        return workload.account(protocol, list(_events(cluster, workload)), (begin, end), rebalances)


def _cluster(workload: BounceWorkload, protocol: str, seed: int) -> AnyCluster:
    if PROTOCOLS[protocol].assignor is None:
        config = GroupConfig(
            consumer_session_timeout_ms=workload.session_timeout_ms,
            consumer_heartbeat_interval_ms=workload.heartbeat_interval_ms,
        )
        return ConsumerGroupCluster(seed, topics=workload.topics, config=config)
    config = GroupConfig(min_session_timeout_ms=min(6_000, workload.session_timeout_ms))
    return Cluster(seed, topics=workload.topics, config=config)


def _start(
    cluster: AnyCluster, workload: BounceWorkload, protocol: BounceProtocol, stores: Stores | None, name: str
) -> None:
    options = workload.options(protocol, name, stores)
    if isinstance(cluster, Cluster):
        cluster.member(name, options)
    else:
        cluster.member(name, vars(options))


def _why_restless(workload: BounceWorkload) -> str:
    """Say why a group does not settle under a workload."""
    share = -(-workload.partition_count // workload.members)
    open_ms = share * (workload.assign_ms + workload.restore_ms)
    return (
        f"the group does not settle: a member of {share} partitions needs {share * workload.revoke_ms} ms to close and "
        f"{open_ms} ms to open them; max.poll.interval.ms is {workload.rebalance_timeout_ms}"
    )


class Bounce:
    """Starts the instances of a cluster, and restarts each of them once.

    :param start: starts an instance
    :param stores: the group's, if state has to be restored
    """

    def __init__(
        self,
        cluster: AnyCluster,
        workload: BounceWorkload,
        start: Callable[[str], object],
        random: Random,
        stores: Stores | None = None,
    ) -> None:
        self._cluster = cluster
        self._workload = workload
        self._start = start
        self._random = random
        self._stores = stores
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
        patience += workload.partition_count * (1 + workload.standbys) * workload.restore_ms
        self._cluster.run_until(self._has_settled, patience)

    def _has_settled(self) -> bool:
        cluster, stores = self._cluster, self._stores
        is_quiet = self._left == 0 and cluster.is_settled() and not any(map(cluster.is_busy, cluster.processes))
        return is_quiet and (stores is None or stores.is_warm)


def _events(cluster: AnyCluster, workload: BounceWorkload) -> Iterator[WorkEvent]:
    """The events of the instances' work, from the trace.

    A partition is processed when it is open; of a classic member, if that takes no time, when its offset is known.
    """
    taken = "fetched" if isinstance(cluster, Cluster) and not workload.opens else "opened"
    aside = workload.opens_aside and workload.opens  # then opening is no listener
    for at, who, what, detail in cluster.trace:
        if who not in cluster.processes:
            continue
        if what in _WORK and not (aside and what == "opened"):
            yield WorkEvent(at, who, _WORK[what])
        if what == taken:
            yield WorkEvent(at, who, Work.TAKES, frozenset(detail.offsets if what == "fetched" else detail))
        elif what in ("closes", "lost"):
            yield WorkEvent(at, who, Work.DROPS, frozenset(getattr(detail, "partitions", detail)))


_WORK: Final[Mapping[str, Work]] = {
    "starts": Work.STARTS,
    "opens": Work.BLOCKS,
    "opened": Work.RESUMES,
    "closes": Work.BLOCKS,
    "closed": Work.RESUMES,
    "shuts down": Work.STOPS,
}
"""Words of the trace, as the account understands them."""
