"""Sticky and cooperative-sticky: balanced first, then as few moves as that leaves (KIP-54, KIP-341, KIP-429).

With equal subscriptions balanced means max - min <= 1 (`equal`); otherwise it is the best that the subscriptions allow
(`leveling`), after what the members hold has been worked out from what they claim.

Laws:

* A balanced, complete assignment does not change.
* After a cooperative rebalance that withholds partitions, the next one hands them out and takes nothing away.
* As many partitions are in the rack of their member as balance and moves leave room for (KIP-881, `exchanges`);
  nothing moves for a rack.
* A partition has at most one holder. Of several claimants it is the one with the highest generation; if two claim it in
  that generation, it has no holder, because both may be working on it (Kafka's AbstractStickyAssignor,
  `allSubscriptionsEqual`).
* A member holds only partitions that exist, of topics to which it subscribes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kcoord_wire.assignors.equal import deal_in_turn, share_out
from kcoord_wire.assignors.exchanges import bring_near, lost_by
from kcoord_wire.assignors.leveling import level
from kcoord_wire.assignors.subscriptions import (
    NO_RACKS,
    Assignment,
    MemberSubscription,
    Nearness,
    Partitions,
    Racks,
    TopicPartition,
    group_partitions,
    in_order,
    kinds_of,
)


class Claim(NamedTuple):
    """The partitions that a member claims to hold, and since which generation."""

    owned: Partitions
    generation: int


@dataclass(slots=True)
class Holdings:
    """What is held and what is not.

    :ivar held: by member: its partitions; the member's own mapping wherever all of it is valid
    :ivar free: by topic: the partitions without a holder, ascending; no topic without
    :ivar claimed: those of `free` that a member claims, and may be working on
    """

    held: list[Partitions]
    free: dict[str, Sequence[int]]
    claimed: dict[str, set[int]]


def holdings(counts: Mapping[str, int], subscribed: Sequence[Collection[str]], claims: Sequence[Claim]) -> Holdings:
    """Return who holds what.

    :param counts: the number of partitions of the topics to assign
    :param subscribed: by member: the topics of those to which it subscribes
    :param claims: by member
    """
    taken = _taken(counts, subscribed, claims)
    if taken is not None:
        held: list[Partitions] = [claim.owned for claim in claims]
        claimed: dict[str, set[int]] = {}
    else:
        taken = {topic: set() for topic in counts}
        held, claimed = _sorted_out(counts, subscribed, claims, taken)
    free: dict[str, Sequence[int]] = {}
    for topic, count in counts.items():
        numbers = taken[topic]
        if not numbers:
            free[topic] = range(count)
        elif len(numbers) < count:
            free[topic] = [each for each in range(count) if each not in numbers]
    return Holdings(held, free, claimed)


def _taken(
    counts: Mapping[str, int], subscribed: Sequence[Collection[str]], claims: Sequence[Claim]
) -> dict[str, set[int]] | None:
    """Return the held partitions of each topic if all claims are valid, as they are in a group in good order."""
    lists: dict[str, list[int]] = {topic: [] for topic in counts}
    extend = {topic: numbers.extend for topic, numbers in lists.items()}
    equal = len({id(each) for each in subscribed}) == 1 and len(subscribed[0]) == len(counts)
    for wanted, (owned, _) in zip(subscribed, claims, strict=True):
        if not equal and not owned.keys() <= set(wanted):
            return None
        try:
            for topic, numbers in owned.items():
                extend[topic](numbers)
        except KeyError:
            return None
    taken = {}
    for topic, listed in lists.items():
        taken[topic] = distinct = set(listed)
        if len(distinct) != len(listed) or (distinct and (min(distinct) < 0 or max(distinct) >= counts[topic])):
            return None
        listed.clear()
    return taken


def _sorted_out(
    counts: Mapping[str, int],
    subscribed: Sequence[Collection[str]],
    claims: Sequence[Claim],
    taken: dict[str, set[int]],
) -> tuple[list[Partitions], dict[str, set[int]]]:
    """Return what each member holds, and what is claimed but not held; add what is held to `taken`."""
    holders = _holders(counts, claims)
    held: list[list[TopicPartition]] = [[] for _ in claims]
    claimed: dict[str, set[int]] = {}
    for partition, holder in holders.items():
        topic, number = partition
        if holder is not None and topic in subscribed[holder]:
            held[holder].append(partition)
            taken[topic].add(number)
        else:
            claimed.setdefault(topic, set()).add(number)
    return [group_partitions(each) for each in held], claimed


def _holders(counts: Mapping[str, int], claims: Sequence[Claim]) -> dict[TopicPartition, int | None]:
    """Return the holder of each existing partition that is claimed; None if two members of one generation claim it."""
    found: dict[TopicPartition, tuple[int, int | None]] = {}
    for member, (owned, generation) in enumerate(claims):
        for topic, numbers in owned.items():
            count = counts.get(topic, 0)
            for partition in {TopicPartition(topic, number) for number in numbers if 0 <= number < count}:
                since, _ = found.get(partition, (None, None))
                if since is None or generation > since:
                    found[partition] = (generation, member)
                elif generation == since:
                    found[partition] = (generation, None)
    return {partition: holder for partition, (_, holder) in found.items()}


# ---- Kafka's user data


def sticky_user_data(_topics: Sequence[str], assigned: Partitions, generation: int) -> bytes:
    """Return the user data that Kafka's StickyAssignor puts into a subscription (StickyAssignorUserData version 1).

    It has none before the first assignment. See `subscriptions.OnJoin`.
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


def with_generation_from_user_data(member: MemberSubscription) -> Claim:
    """Return a member's claim; the generation is in the user data if the subscription is older than version 2."""
    generation = member.generation
    if generation < 0 and len(member.user_data) == 4:
        (generation,) = struct.unpack(">i", member.user_data)
    return Claim(member.owned, generation)


def with_owned_from_user_data(member: MemberSubscription) -> Claim:
    """Return a member's claim, from the user data if it owns nothing; like Kafka, treat unreadable data as none."""
    if member.owned or not member.user_data:
        return Claim(member.owned, member.generation)
    try:
        return _read_sticky_user_data(member.user_data)
    except (struct.error, UnicodeDecodeError):
        return Claim({}, -1)


def _read_sticky_user_data(data: bytes) -> Claim:
    """Read user data of version 1, or of version 0, which has no generation.

    :raises struct.error: the data ends early; a count beyond the data is rejected before memory is allocated for it
    """
    owned: dict[str, Sequence[int]] = {}
    (topics,), at = struct.unpack_from(">i", data), 4
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, at)
        (name,) = struct.unpack_from(f">{length}s", data, at + 2)
        at += 2 + length
        (count,) = struct.unpack_from(">i", data, at)
        if not 0 <= count <= (len(data) - at) // 4:
            raise struct.error("more partitions than bytes")
        numbers = {*struct.unpack_from(f">{count}i", data, at + 4), *owned.get(name.decode(), ())}
        if numbers:
            owned[name.decode()] = sorted(numbers)
        at += 4 + 4 * count
    generation = struct.unpack_from(">i", data, at)[0] if at < len(data) else -1
    return Claim(owned, generation)


def sticky(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], racks: Racks = NO_RACKS, /
) -> Assignment:
    """Assign balanced, moving as few partitions as possible; see `subscriptions.Assign`.

    Holders are read from `owned` and `generation` or, if `owned` is empty, from the user data of Kafka's
    StickyAssignor. Of two members that claim a partition, the one with the higher generation holds it; with equal
    generations, neither does.
    """
    return _balance(partitions_per_topic, members, racks, with_owned_from_user_data).assignment


def cooperative_sticky(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], racks: Racks = NO_RACKS, /
) -> Assignment:
    """Assign as `sticky` does, but withhold each partition whose holder or claimant has to give it up first (KIP-429).

    That member sees that it has lost the partition, gives it up and rejoins, and the next rebalance assigns it. If the
    subscription's version has no `generation`, it is read from the user data of Kafka's CooperativeStickyAssignor.
    """
    balanced = _balance(partitions_per_topic, members, racks, with_generation_from_user_data)
    if balanced.in_use:
        for member_id, partitions in balanced.assignment.items():
            balanced.assignment[member_id] = _without(partitions, balanced.in_use, balanced.held[member_id])
    return balanced.assignment


def balanced_target(partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
    """Assign as `sticky` does where `owned` is what the coordinator assigned, and not what a member claims."""
    return _balance(partitions_per_topic, members, NO_RACKS, lambda member: Claim(member.owned, 0)).assignment


def _without(partitions: Partitions, in_use: Mapping[str, set[int]], held: Partitions) -> Partitions:
    """Return the partitions but those that are in use by others."""
    changed = {}
    for topic, numbers in partitions.items() if partitions is not held else ():
        mine = held.get(topic, ())
        if numbers is not mine and topic in in_use:
            others = in_use[topic].difference(mine)
            if not others.isdisjoint(numbers):
                changed[topic] = [number for number in numbers if number not in others]
    if not changed:
        return partitions
    return {topic: numbers for topic, numbers in {**partitions, **changed}.items() if numbers}


class _Balanced(NamedTuple):
    """A balanced assignment and how it came about.

    :ivar held: by member: what it held before
    :ivar in_use: by topic: what was taken from its holder, or is claimed by members that do not hold it
    """

    assignment: Assignment
    held: Mapping[str, Partitions]
    in_use: Mapping[str, set[int]]


def _balance(
    partitions_per_topic: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    racks: Racks,
    claim_of: Callable[[MemberSubscription], Claim],
) -> _Balanced:
    """Return the balanced assignment that keeps as many of the claims as possible."""
    order = in_order(members)
    kinds = kinds_of(partitions_per_topic, members, order)
    assignable = sorted({topic for kind in kinds for topic in kind.topics})
    counts = {topic: partitions_per_topic[topic] for topic in assignable}
    subscribed: list[frozenset[str]] = [frozenset()] * len(order)
    for kind in kinds:
        topics = frozenset(kind.topics)
        for place in kind.members:
            subscribed[place] = topics
    found = holdings(counts, subscribed, [claim_of(members[member_id]) for member_id in order])
    near = Nearness.where_racks_matter(counts, [members[member_id].rack for member_id in order], racks)
    in_use: dict[str, set[int]] = {}
    if len(kinds) != 1 or len(kinds[0].members) != len(order):
        given, in_use = level(counts, kinds, found.held, found.free, near)
    elif any(found.held) or near is not None:
        given, in_use = share_out(counts, found.held, found.free, near)
    else:
        given = [*deal_in_turn(counts, len(order))]
    if near is not None:
        given = bring_near(given, found.held, kinds, near)
        in_use = lost_by(found.held, given)
    for topic, numbers in found.claimed.items():
        in_use.setdefault(topic, set()).update(numbers)
    by_member = dict(zip(order, given, strict=True))
    assignment = {member_id: by_member[member_id] for member_id in members}
    return _Balanced(assignment, dict(zip(order, found.held, strict=True)), in_use)
