"""Sticky and cooperative-sticky: balanced first, then as few moves as that leaves (KIP-54, KIP-341, KIP-429).

Balanced means that no chain of moves, each to a member that subscribes to the partition's topic, would take one
partition from a member to another that has at least two fewer. Where all subscribe to the same topics that is max -
min <= 1; where not, it is the best that the subscriptions allow (an optimal semi-matching), which Kafka's own sticky
assignor only approaches.

How: members keep what they hold; what nobody holds goes to the subscriber with the fewest; then, from the least loaded
level up, shortest chains of moves (as in Dinic's algorithm) lift members by one until none is left. Every chain makes
the sum of the squared loads smaller, so it ends whatever the subscriptions. Last, what a member has lost goes back to
it where it can give something else for it. A balanced, complete assignment is returned as it is.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heapreplace
from itertools import pairwise

from .model import Assignment, MemberSubscription, TopicPartition, sort_key

__all__ = ["cooperative_sticky", "sticky", "sticky_user_data"]


def sticky(partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
    """See `Assign`. What members hold is read from `owned` and `generation`, or, where `owned` is empty, from the
    user data of Kafka's StickyAssignor. Of two that claim one partition the higher generation holds it; with equal
    ones, neither."""
    claims = {member_id: from_user_data(member) for member_id, member in members.items()}
    return balance(partitions_per_topic, members, claims)


def cooperative_sticky(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]
) -> Assignment:
    """As `sticky`, but a partition that another member still claims is given to nobody: its holder sees that it has
    lost it, gives it up and rejoins, and the rebalance after this one hands it on (KIP-429). `generation` is read
    from the user data of Kafka's CooperativeStickyAssignor where the subscription's version has no field for it."""
    claims = {}
    for member_id, member in members.items():
        generation = member.generation
        if generation < 0 and len(member.user_data) == 4:
            (generation,) = struct.unpack(">i", member.user_data)
        claims[member_id] = (member.owned, generation)
    assignment = balance(partitions_per_topic, members, claims)
    claimants: dict[TopicPartition, set[str]] = {}
    for member_id, (owned, _) in claims.items():
        for partition in owned:
            claimants.setdefault(partition, set()).add(member_id)
    return {
        member_id: [each for each in given if claimants.get(each, set()) <= {member_id}]
        for member_id, given in assignment.items()
    }


# ---- who holds what

Claim = tuple[Iterable[TopicPartition], int]
"""What a member says it holds, and since which generation."""


def sticky_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """The user data that Kafka's StickyAssignor puts into a subscription (its StickyAssignorUserData version 1)."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(owned):
        topics.setdefault(topic, []).append(partition)
    parts = [struct.pack(">i", len(topics))]
    for topic, partitions in topics.items():
        name = topic.encode()
        count = len(partitions)
        parts += [struct.pack(">h", len(name)), name, struct.pack(f">i{count}i", count, *partitions)]
    return b"".join([*parts, struct.pack(">i", generation)])


def from_user_data(member: MemberSubscription) -> Claim:
    """Like Kafka, takes user data that it cannot read for none."""
    if member.owned or not member.user_data:
        return member.owned, member.generation
    try:
        return read_sticky_user_data(member.user_data)
    except (struct.error, UnicodeDecodeError):
        return (), -1


def read_sticky_user_data(data: bytes) -> Claim:
    """Version 1, or version 0, which ends before the generation. A count beyond the data is a struct.error before
    anything is made for it."""
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
    return owned, struct.unpack_from(">i", data, at)[0] if at < len(data) else -1


def holders(claims: Mapping[str, Claim]) -> dict[TopicPartition, str | None]:
    """Who holds each partition that anybody claims; None where two of one generation do."""
    held: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, (owned, generation) in claims.items():
        for partition in dict.fromkeys(owned):
            since, holder = held.get(partition, (-2, None))
            if generation > since:
                held[partition] = (generation, member_id)
            elif generation == since and holder != member_id:
                held[partition] = (generation, None)
    return {partition: holder for partition, (_, holder) in held.items()}


# ---- balancing


def balance(
    partitions_per_topic: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    claims: Mapping[str, Claim],
) -> Assignment:
    order = sorted(members, key=lambda member_id: sort_key(member_id, members[member_id]))
    number = {member_id: place for place, member_id in enumerate(order)}
    known = {topic for topic, count in partitions_per_topic.items() if count > 0}
    names = sorted({topic for member in members.values() for topic in member.topics} & known)
    of_topic = {name: topic for topic, name in enumerate(names)}
    topics_of = [sorted({of_topic[name] for name in members[each].topics if name in of_topic}) for each in order]

    state = Loads(topics_of, len(names))
    before: dict[tuple[int, int], int] = {}
    free = [set(range(partitions_per_topic[name])) for name in names]
    for (name, partition), holder in sorted(holders(claims).items()):
        topic = of_topic.get(name)
        if topic is None or holder is None or partition not in free[topic]:
            continue
        if topic in state.subscribed[number[holder]]:
            before[topic, partition] = number[holder]
            state.give(topic, number[holder], partition)
            free[topic].discard(partition)
    for topic in sorted(range(len(names)), key=lambda topic: (len(state.subscribers[topic]), topic)):
        state.hand_out(topic, sorted(free[topic]))
    state.level()

    assignment: Assignment = {member_id: [] for member_id in members}
    for (topic, partition), member in sorted(state.returned(before).items()):
        assignment[order[member]].append(TopicPartition(names[topic], partition))
    return assignment


class Loads:
    """Who has what while it is balanced. Members and topics are numbers."""

    def __init__(self, topics_of: list[list[int]], topics: int) -> None:
        self.topics_of = topics_of
        self.subscribed = [frozenset(each) for each in topics_of]
        self.subscribers: list[list[int]] = [[] for _ in range(topics)]
        for member, wanted in enumerate(topics_of):
            for topic in wanted:
                self.subscribers[topic].append(member)
        self.held: list[dict[int, list[int]]] = [{} for _ in range(topics)]  # by topic: member -> its partitions
        self.load = [0] * len(topics_of)

    def give(self, topic: int, member: int, partition: int) -> None:
        self.held[topic].setdefault(member, []).append(partition)
        self.load[member] += 1

    def move(self, topic: int, giver: int, taker: int) -> None:
        partitions = self.held[topic][giver]
        self.give(topic, taker, partitions.pop())
        self.load[giver] -= 1
        if not partitions:
            del self.held[topic][giver]

    def hand_out(self, topic: int, partitions: list[int]) -> None:
        """Each to the subscriber with the fewest."""
        takers = [(self.load[member], member) for member in self.subscribers[topic]]
        heapify(takers)
        for partition in partitions:
            load, member = takers[0]
            self.give(topic, member, partition)
            heapreplace(takers, (load + 1, member))

    def level(self) -> None:
        """Chains of moves until none makes the loads more equal, from the lowest load up. Members out of which no
        chain leads to a load that is higher by two can never be in a later chain and are left out from then on."""
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
        """How many moves away from the takers each member is, up to the nearest that can spare one; and how far that
        is."""
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
        """Who has each partition in the end: as it is held now, but what has left a member for no need has come back
        to it, for one that is new to it or for a place among the fuller members."""
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
                mine = gained.get(member, [])
                place = next((i for i, new in enumerate(mine) if new[0] in self.subscribed[holder]), None)
                if place is None:
                    continue
                new = mine.pop(place)
                now[new] = holder
                if before.get(new) != holder:
                    gained[holder].append(new)
            now[each] = member
            gained[holder].remove(each)
        return now


class Chains:
    """Moves along shortest chains: a blocking flow in the layers that `depth` tells."""

    def __init__(self, loads: Loads, depth: dict[int, int], end: int, low: int) -> None:
        self.loads, self.depth, self.end, self.low = loads, depth, end, low
        self.next_topic: dict[int, int] = {}  # member -> which of its topics the next chain through it tries first
        self.givers: dict[tuple[int, int], list[tuple[int, int]]] = {}  # topic, depth -> heap of (-load, member)
        self.dead: set[int] = set()  # no chain leads on from these

    def lift(self, takers: list[int]) -> None:
        """One partition more for as many takers as chains reach."""
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
                    self.dead.add(chain.pop())
                else:
                    chain.append(following)

    def topic_of(self, member: int) -> int:
        return self.loads.topics_of[member][self.next_topic.get(member, 0)]

    def giver_for(self, member: int) -> int | None:
        """The member from which this one takes; its `topic_of` then is the topic."""
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
        """The holder of the topic in that layer with the highest load: taking from others would cost more moves."""
        load, held = self.loads.load, self.loads.held[topic]
        heap = self.givers.get((topic, depth))
        if heap is None:
            heap = [(-load[member], member) for member in held if self.depth.get(member) == depth]
            heapify(heap)
            self.givers[topic, depth] = heap
        while heap:
            negative, member = heap[0]
            if member in self.dead or member not in held:
                heappop(heap)
            elif -negative != load[member]:
                heapreplace(heap, (-load[member], member))
            else:
                return member
        return None
