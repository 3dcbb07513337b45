"""Sticky and cooperative-sticky: balanced first, then as few moves as that leaves (KIP-54, KIP-341, KIP-429).

Balanced means: no chain of moves, each to a member that subscribes to the partition's topic, takes one partition from a
member to another that has at least two fewer. With equal subscriptions that is max - min <= 1; otherwise it is the best
that the subscriptions allow (an optimal semi-matching), which Kafka's own sticky assignor only approximates.

Method: members keep what they hold, and partitions without a holder go to the subscriber with the fewest. Then, from
the lowest load up, shortest chains of moves (as in Dinic's algorithm) give members one more until no chain is left.
Every chain decreases the sum of the squared loads, so this terminates for any subscriptions. Last, a partition that its
holder has lost goes back if the holder can give another one for it. A balanced, complete assignment does not change.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import pairwise

from kcoord_wire.assignors.model import (
    NO_RACKS,
    Assignment,
    MemberSubscription,
    Partitions,
    Racks,
    TopicPartition,
    group_partitions,
    in_order,
    list_partitions,
)

__all__ = ["cooperative_sticky", "generation_user_data", "sticky", "sticky_user_data"]


def sticky(
    partitions_per_topic: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    _racks: Racks = NO_RACKS,
    /,
) -> Assignment:
    """Assign balanced, moving as few partitions as possible; see `model.Assign`.

    Holders are read from `owned` and `generation` or, if `owned` is empty, from the user data of Kafka's
    StickyAssignor. Of two members that claim a partition, the one with the higher generation holds it; with equal
    generations, neither does.
    """
    claims = {member_id: from_user_data(member) for member_id, member in members.items()}
    return balance(partitions_per_topic, members, claims)


def cooperative_sticky(
    partitions_per_topic: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    _racks: Racks = NO_RACKS,
    /,
) -> Assignment:
    """Assign as `sticky` does, but withhold partitions that another member still claims (KIP-429).

    That member sees that it has lost the partition, gives it up and rejoins, and the next rebalance assigns it. If the
    subscription's version has no `generation`, it is read from the user data of Kafka's CooperativeStickyAssignor.
    """
    claims = {}
    for member_id, member in members.items():
        generation = member.generation
        if generation < 0 and len(member.user_data) == 4:
            (generation,) = struct.unpack(">i", member.user_data)
        claims[member_id] = (member.owned, generation)
    assignment = balance(partitions_per_topic, members, claims)
    claimants: dict[TopicPartition, set[str]] = {}
    for member_id, (owned, _) in claims.items():
        for partition in list_partitions(owned):
            claimants.setdefault(partition, set()).add(member_id)
    return {
        member_id: group_partitions(
            each for each in list_partitions(given) if claimants.get(each, set()) <= {member_id}
        )
        for member_id, given in assignment.items()
    }


# ---- what members hold

Claim = tuple[Partitions, int]  # the partitions that a member claims to hold, and since which generation


def sticky_user_data(_topics: Sequence[str], assigned: Partitions, generation: int) -> bytes:
    """Return the user data that Kafka's StickyAssignor puts into a subscription (StickyAssignorUserData version 1).

    It has none before the first assignment. See `model.OnJoin`.
    """
    if generation < 0:
        return b""
    parts = [struct.pack(">i", len(assigned))]
    for topic in sorted(assigned):
        name, partitions = topic.encode(), assigned[topic]
        count = len(partitions)
        parts += [struct.pack(">h", len(name)), name, struct.pack(f">i{count}i", count, *partitions)]
    return b"".join([*parts, struct.pack(">i", generation)])


def generation_user_data(_topics: Sequence[str], _assigned: Partitions, generation: int) -> bytes:
    """Return the user data of Kafka's CooperativeStickyAssignor, for subscriptions without a `generation` field."""
    return struct.pack(">i", generation)


def from_user_data(member: MemberSubscription) -> Claim:
    """Return a member's claim; like Kafka, treat unreadable user data as none."""
    if member.owned or not member.user_data:
        return member.owned, member.generation
    try:
        return read_sticky_user_data(member.user_data)
    except (struct.error, UnicodeDecodeError):
        return {}, -1


def read_sticky_user_data(data: bytes) -> Claim:
    """Read user data of version 1, or of version 0, which has no generation.

    :raises struct.error: the data ends early; a count beyond the data is rejected before memory is allocated for it
    """
    owned = []
    (topics,), at = struct.unpack_from(">i", data), 4
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, at)
        (name,) = struct.unpack_from(f">{length}s", data, at + 2)
        at += 2 + length
        (count,) = struct.unpack_from(">i", data, at)
        if not 0 <= count <= (len(data) - at) // 4:
            raise struct.error("more partitions than bytes")
        owned += [TopicPartition(name.decode(), each) for each in struct.unpack_from(f">{count}i", data, at + 4)]
        at += 4 + 4 * count
    return group_partitions(owned), struct.unpack_from(">i", data, at)[0] if at < len(data) else -1


def holders(claims: Mapping[str, Claim]) -> dict[TopicPartition, str | None]:
    """Return the holder of each claimed partition; None if two members of one generation claim it."""
    held: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, (owned, generation) in claims.items():
        for partition in list_partitions(owned):
            since, holder = held.get(partition, (-2, None))
            if generation > since:
                held[partition] = (generation, member_id)
            elif generation == since and holder != member_id:
                held[partition] = (generation, None)
    return {partition: holder for partition, (_, holder) in held.items()}


# ---- balancing


def balance(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], claims: Mapping[str, Claim]
) -> Assignment:
    """Return the balanced assignment that keeps as many of the claims as possible."""
    order = in_order(members)
    names = _assignable(partitions_per_topic, members)
    numbers = {name: topic for topic, name in enumerate(names)}
    loads = Loads(
        [{numbers[name] for name in members[each].topics if name in numbers} for each in order],
        [partitions_per_topic[name] for name in names],
    )
    places = {member_id: place for place, member_id in enumerate(order)}
    before = loads.keep(
        (numbers[name], partition, places[holder])
        for (name, partition), holder in sorted(holders(claims).items())
        if name in numbers and holder is not None
    )
    loads.hand_out_the_rest()
    loads.level()

    assignment: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in members}
    for (topic, partition), member in sorted(loads.returned(before).items()):
        assignment[order[member]].setdefault(names[topic], []).append(partition)
    return {**assignment}


def _assignable(partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> list[str]:
    """Return the topics that have both subscribers and partitions, sorted."""
    subscribed = {topic for member in members.values() for topic in member.topics}
    return sorted(topic for topic in subscribed if partitions_per_topic.get(topic, 0) > 0)


class Loads:
    """The partitions of each member during balancing. Members and topics are numbers.

    :ivar counts: by topic: number of its partitions
    :ivar topics_of: by member: the topics it subscribes to, ascending
    :ivar subscribed: the same as sets
    :ivar subscribers: by topic: its members, ascending
    :ivar held: by topic: member to its partitions
    :ivar load: by member: number of its partitions
    """

    def __init__(self, subscribed: list[set[int]], counts: list[int]) -> None:
        self.counts = counts
        self.topics_of = [sorted(each) for each in subscribed]
        self.subscribed = subscribed
        self.subscribers: list[list[int]] = [[] for _ in counts]
        for member, wanted in enumerate(self.topics_of):
            for topic in wanted:
                self.subscribers[topic].append(member)
        self.held: list[dict[int, list[int]]] = [{} for _ in counts]
        self.load = [0] * len(subscribed)

    def give(self, topic: int, member: int, partition: int) -> None:
        self.held[topic].setdefault(member, []).append(partition)
        self.load[member] += 1

    def move(self, topic: int, giver: int, taker: int) -> None:
        partitions = self.held[topic][giver]
        self.give(topic, taker, partitions.pop())
        self.load[giver] -= 1
        if not partitions:
            del self.held[topic][giver]

    def keep(self, claims: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
        """Give the members what they hold of existing partitions of topics that they subscribe to.

        :param claims: topic, partition, and member
        :returns: the member of each topic and partition
        """
        kept = {}
        for topic, partition, member in claims:
            if topic in self.subscribed[member] and 0 <= partition < self.counts[topic]:
                kept[topic, partition] = member
                self.give(topic, member, partition)
        return kept

    def hand_out_the_rest(self) -> None:
        """Give the partitions without a holder away, topics with few subscribers first: they have the least choice."""
        for topic in sorted(range(len(self.counts)), key=lambda topic: (len(self.subscribers[topic]), topic)):
            held = {partition for partitions in self.held[topic].values() for partition in partitions}
            self.hand_out(topic, [each for each in range(self.counts[topic]) if each not in held])

    def hand_out(self, topic: int, partitions: list[int]) -> None:
        """Give each partition to the subscriber with the fewest."""
        takers = [(self.load[member], member) for member in self.subscribers[topic]]
        heapify(takers)
        for partition in partitions:
            load, member = takers[0]
            self.give(topic, member, partition)
            heapreplace(takers, (load + 1, member))

    def level(self) -> None:
        """Move partitions along chains, from the lowest load up, until no chain makes the loads more equal.

        A member from which no chain leads to a load higher by two cannot be in a later chain and is left out.
        """
        active = {member for member, wanted in enumerate(self.topics_of) if wanted}
        while active:
            low = min(self.load[member] for member in active)
            takers = sorted(member for member in active if self.load[member] == low)
            depth, end = self.distances(takers, low)
            if end is None:
                active -= depth.keys()
            else:
                Chains(self, depth, end, low).lift(takers)

    def distances(self, takers: list[int], low: int) -> tuple[dict[int, int], int | None]:
        """Return each member's distance from the takers in moves, and the distance of the nearest that can give.

        The search ends at that distance; it is None if no member can give.
        """
        depth = dict.fromkeys(takers, 0)
        seen: set[int] = set()
        queue, end = deque(takers), None
        while queue and (end is None or depth[queue[0]] < end):
            member = queue.popleft()
            for topic in self.topics_of[member]:
                if topic in seen:
                    continue
                seen.add(topic)
                for giver in self.held[topic]:
                    if giver not in depth:
                        depth[giver] = depth[member] + 1
                        queue.append(giver)
                        if self.load[giver] >= low + 2:
                            end = depth[giver]
        return depth, end

    def returned(self, before: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
        """Return the final holders, with partitions that were moved needlessly back at their former holder.

        A partition goes back if its present holder has more than the former one, or if the former one can give it a
        partition that it has gained.

        :param before: the holders before balancing, by topic and partition
        """
        now = {
            (topic, partition): member
            for topic, held in enumerate(self.held)
            for member, partitions in held.items()
            for partition in partitions
        }
        gained: dict[int, list[tuple[int, int]]] = {}
        for each, member in now.items():
            if before.get(each) != member:
                gained.setdefault(member, []).append(each)
        for each, member in before.items():
            holder = now[each]
            if holder == member:
                continue
            if self.load[holder] > self.load[member]:
                self.load[holder] -= 1
                self.load[member] += 1
            else:
                candidates = gained.get(member, [])
                place = next((i for i, (topic, _) in enumerate(candidates) if topic in self.subscribed[holder]), None)
                if place is None:
                    continue
                exchanged = candidates.pop(place)
                now[exchanged] = holder
                if before.get(exchanged) != holder:
                    gained[holder].append(exchanged)
            now[each] = member
            gained[holder].remove(each)
        return now


class Chains:
    """Moves along shortest chains: a blocking flow in the layers given by `depth`.

    :ivar depth: by member: its distance from the takers
    :ivar end: the distance of the members that give
    :ivar low: the load of the takers
    """

    def __init__(self, loads: Loads, depth: dict[int, int], end: int, low: int) -> None:
        self.loads, self.depth, self.end, self.low = loads, depth, end, low
        self.next_topic: dict[int, int] = {}  # member -> which of its topics the next chain through it tries first
        self.givers: dict[tuple[int, int], list[tuple[int, int]]] = {}  # topic, depth -> heap of (-load, member)
        self.exhausted: set[int] = set()  # no chain leads on from these

    def lift(self, takers: list[int]) -> None:
        """Give one partition more to as many takers as chains reach."""
        for taker in takers:
            chain = [taker]
            while chain:
                member = chain[-1]
                if self.depth[member] == self.end and self.loads.load[member] >= self.low + 2:
                    for to, giver in pairwise(chain):
                        self.loads.move(self.topic_of(to), giver, to)
                    break
                following = self.giver_for(member)
                if following is None:
                    self.exhausted.add(chain.pop())
                else:
                    chain.append(following)

    def topic_of(self, member: int) -> int:
        return self.loads.topics_of[member][self.next_topic.get(member, 0)]

    def giver_for(self, member: int) -> int | None:
        """Return the member from which this one takes; `topic_of` is then the topic of the move."""
        below = self.depth[member] + 1
        if below > self.end:
            return None
        for at in range(self.next_topic.get(member, 0), len(self.loads.topics_of[member])):
            giver = self.fullest(self.loads.topics_of[member][at], below)
            if giver is not None:
                self.next_topic[member] = at
                return giver
        self.next_topic[member] = len(self.loads.topics_of[member])
        return None

    def fullest(self, topic: int, depth: int) -> int | None:
        """Return the holder of the topic in that layer with the highest load: taking from others costs more moves."""
        load, held = self.loads.load, self.loads.held[topic]
        heap = self.givers.get((topic, depth))
        if heap is None:
            heap = [(-load[member], member) for member in held if self.depth.get(member) == depth]
            heapify(heap)
            self.givers[topic, depth] = heap
        while heap:
            negative, member = heap[0]
            if member in self.exhausted or member not in held:
                heappop(heap)
            elif -negative != load[member]:
                heapreplace(heap, (-load[member], member))
            else:
                return member
        return None
