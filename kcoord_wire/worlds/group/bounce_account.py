"""What a rolling bounce costs, computed from the events of the instances' work: pauses, throughput, moves, lag.

The events are the same for a simulated and for a real group, so that the two can be compared.

Laws:

* A partition is processed while a running instance has taken it and is in no listener. Everything else is pause.
* Records arrive evenly and are processed as a fluid: an instance processes what arrives, and uses the rest of its
  capacity for the lag, in proportion to the lag of its partitions. What has arrived is processed or is lag.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kcoord_wire.assignors import TopicPartition


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
