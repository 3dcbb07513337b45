"""State that has to be rebuilt, in a rolling bounce: who has a copy of which partition's store, and who is assigned it.

As in Kafka Streams, a store is restored from its changelog where it is opened, unless the instance has a copy:

* on disk, of each store that it has opened once, also after a restart; in memory until its process ends, or another
  instance opens the store;
* as a standby (``num.standby.replicas``), kept up to date beside the work;
* as a warm-up replica (KIP-441): a partition stays with its present owner, or goes to a standby of it if that is gone,
  until the instance that it is to move to has restored it beside its work; a further rebalance then moves it.

Laws:

* A copy is whole when it has been restored; an instance restores its standbys and warm-ups one after the other, and
  beside the stores that it opens. What remains to be restored is what opening costs.
* The assignment is balanced (max - min <= 1, but for partitions that wait for a warm-up), sticky, and prefers instances
  with a copy, as Streams' assignor does; its standbys are spread over the other instances.
* What was written while a copy on disk was not kept up to date is small against the store, and not counted.

Source: "From Eager to Smarter in Apache Kafka Consumer Rebalances"; KIP-441; `HighAvailabilityTaskAssignor` of Streams.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kcoord_wire.assignors import (
    NO_RACKS,
    Assignment,
    Assignor,
    MemberSubscription,
    Racks,
    RebalanceProtocol,
    TopicPartition,
    group_partitions,
    list_partitions,
)
from kcoord_wire.worlds.consumer_groups.consumer_group_world import ConsumerGroupCluster
from kcoord_wire.worlds.group.world import Cluster

AnyCluster = Cluster | ConsumerGroupCluster


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How a group keeps its state.

    :ivar open_ms: to open a store of which there is a copy
    :ivar restore_ms: to restore one from its changelog
    :ivar is_in_memory: a copy ends with its process
    :ivar standbys: so many other instances keep a copy of each store
    :ivar warms_up: partitions move only to instances with a copy
    """

    open_ms: int
    restore_ms: int
    is_in_memory: bool
    standbys: int
    warms_up: bool


class Stores:
    """The stores of a group of a virtual cluster, as its trace has them.

    :param cluster: whose instances have names without ``-``
    """

    def __init__(self, cluster: AnyCluster, settings: StoreSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._read = 0  # lines of the trace
        self._owners: dict[TopicPartition, str] = {}  # who has opened it last
        self._whole_at: defaultdict[TopicPartition, dict[str, float]] = defaultdict(dict)  # copies, by instance
        self._standbys: defaultdict[TopicPartition, set[str]] = defaultdict(set)
        self._busy_until: dict[str, float] = {}  # with standbys and warm-ups
        self._warming: dict[TopicPartition, str] = {}  # where it is to move to

    @property
    def is_warm(self) -> bool:
        """Whether all standbys are whole, and no partition waits for a warm-up."""
        self._follow()
        return not self._warming and all(until <= self._cluster.now for until in self._busy_until.values())

    def opening_ms(self, instance: str, partitions: Iterable[TopicPartition]) -> int:
        """Return how long an instance takes from now to open these, one after another."""
        self._follow()
        return sum(self._settings.open_ms + self._to_restore(instance, partition) for partition in partitions)

    def _to_restore(self, instance: str, partition: TopicPartition) -> int:
        left = self._whole_at[partition].get(instance, math.inf) - self._cluster.now
        return int(min(max(left, 0), self._settings.restore_ms))

    # ---- what has happened

    def _follow(self) -> None:
        trace = self._cluster.trace
        while self._read < len(trace):
            at, who, what, detail = trace[self._read]
            self._read += 1
            if what == "starts":
                self._start(who)
            elif what == "opened":
                for opened in detail:
                    self._open(at, who, opened)

    def _start(self, instance: str) -> None:
        self._busy_until.pop(instance, None)
        for copies in self._standbys.values():
            copies.discard(instance)
        for whole_at in self._whole_at.values():
            if self._settings.is_in_memory or whole_at.get(instance, 0) > self._cluster.now:
                whole_at.pop(instance, None)

    def _open(self, at: float, instance: str, partition: TopicPartition) -> None:
        former = self._owners.get(partition)
        self._owners[partition] = instance
        self._whole_at[partition][instance] = at
        self._standbys[partition].discard(instance)
        if self._warming.get(partition) == instance:
            del self._warming[partition]
        if self._settings.is_in_memory and former not in (None, instance, *self._standbys[partition]):
            self._whole_at[partition].pop(former or "", None)

    # ---- the assignment

    def assignor(self, protocol: RebalanceProtocol) -> Assignor:
        """Return an assignor that knows the stores."""
        return Assignor("stores", protocol, partial(self._assign, protocol is RebalanceProtocol.COOPERATIVE))

    def _assign(
        self,
        is_cooperative: bool,
        counts: Mapping[str, int],
        members: Mapping[str, MemberSubscription],
        _racks: Racks = NO_RACKS,
    ) -> Assignment:
        self._follow()
        member_of = {member_id.partition("-")[0]: member_id for member_id in sorted(members)}
        partitions = [TopicPartition(topic, number) for topic in sorted(counts) for number in range(counts[topic])]
        targets = self._targets(partitions, list(member_of))
        if self._settings.warms_up:
            self._warm_up(targets, member_of)
        if self._settings.standbys:
            self._place_standbys(targets, list(member_of))
        holders = {each: member for member, given in members.items() for each in list_partitions(given.owned)}
        found: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        for partition, instance in targets.items():
            member_id = member_of[instance]
            if (
                not is_cooperative or holders.get(partition, member_id) == member_id
            ):  # else its holder gives it up first
                found[member_id].append(partition)
        return {member_id: group_partitions(owned) for member_id, owned in found.items()}

    def _targets(self, partitions: Sequence[TopicPartition], instances: Sequence[str]) -> dict[TopicPartition, str]:
        """Return where each partition belongs: balanced first, then sticky, then to a copy."""
        owned: dict[str, list[TopicPartition]] = {instance: [] for instance in instances}
        free: list[TopicPartition] = []
        for partition in partitions:
            owned.get(self._owners.get(partition, ""), free).append(partition)
        least, extra = divmod(len(partitions), len(instances))
        fullest = sorted(instances, key=lambda instance: -len(owned[instance]))
        room = {instance: least + (rank < extra) - len(owned[instance]) for rank, instance in enumerate(fullest)}
        needy = [each for each in instances if room[each] > 0]
        for instance, mine in owned.items():
            mine.sort(key=lambda each: (self._nearest(each, needy)[0], each))
            free += mine[: max(-room[instance], 0)]
            del mine[: max(-room[instance], 0)]
        targets = {partition: instance for instance, mine in owned.items() for partition in mine}
        self._hand_out(free, {each: room[each] for each in needy}, targets)
        return targets

    def _hand_out(
        self, free: Iterable[TopicPartition], room: dict[str, int], targets: dict[TopicPartition, str]
    ) -> None:
        """Give partitions to instances with room, first those of which one has a copy."""
        for most in (0, self._settings.restore_ms):
            for partition in sorted(set(free) - targets.keys()):
                cost, instance = self._nearest(partition, [each for each in room if room[each]], room)
                if instance and cost <= most:
                    targets[partition] = instance
                    room[instance] -= 1

    def _nearest(
        self, partition: TopicPartition, instances: Sequence[str], room: Mapping[str, int] | None = None
    ) -> tuple[int, str]:
        """Return the instance with the least to restore, and how long that takes; of equals the one with most room."""
        room = room or {}
        ranked = ((self._to_restore(each, partition), -room.get(each, 0), each) for each in instances)
        cost, _, instance = min(ranked, default=(self._settings.restore_ms, 0, ""))
        return cost, instance

    def _restore_aside(self, instance: str, partition: TopicPartition) -> None:
        """Let an instance restore a copy beside its work, after those that it restores already."""
        if instance not in self._whole_at[partition]:
            begin = max(self._cluster.now, self._busy_until.get(instance, 0))
            self._busy_until[instance] = self._whole_at[partition][instance] = begin + self._settings.restore_ms

    def _warm_up(self, targets: dict[TopicPartition, str], live: Mapping[str, str]) -> None:
        """Leave partitions where they are, or where there is a copy, until there is one where they belong."""
        self._warming.clear()
        for partition, instance in targets.items():
            present = self._owners.get(partition, "")
            if present not in live:
                cost, nearest = self._nearest(partition, list(live))
                present = "" if cost else nearest
            if present and present != instance and self._to_restore(instance, partition):
                self._restore_aside(instance, partition)
                self._warming[partition] = instance
                targets[partition] = present
        for instance in sorted(set(self._warming.values())):
            until = int(self._busy_until.get(instance, 0))
            self._cluster.at(max(until, self._cluster.now), partial(self._probe, instance))

    def _probe(self, instance: str) -> None:
        """Rebalance when an instance has restored what is to move to it, as Streams does at an interval."""
        if isinstance(self._cluster, Cluster) and instance in self._warming.values():
            self._cluster.rejoin(instance, "probing rebalance")

    def _place_standbys(self, targets: Mapping[TopicPartition, str], instances: Sequence[str]) -> None:
        """Keep the standbys that there are, and add those that are missing where there are fewest."""
        count = min(self._settings.standbys, len(instances) - 1)
        pairs: Counter[tuple[str, str]] = Counter()
        missing: list[TopicPartition] = []
        for partition, active in targets.items():
            kept = sorted(self._standbys[partition].intersection(instances) - {active})[:count]
            self._standbys[partition] = set(kept)
            pairs.update((active, each) for each in kept)
            missing += [partition] * (count - len(kept))
        totals = Counter(each for copies in self._standbys.values() for each in copies)
        for partition in missing:
            active, copies = targets[partition], self._standbys[partition]
            ranked = (
                (self._to_restore(each, partition), pairs[active, each], totals[each], each)
                for each in instances
                if each != active and each not in copies
            )
            *_, instance = min(ranked)
            copies.add(instance)
            pairs[active, instance] += 1
            totals[instance] += 1
            self._restore_aside(instance, partition)
