"""What the members of a group hold, from what they claim to hold.

Laws:

* A partition has at most one holder. Of several claimants it is the one with the highest generation; if two claim it in
  that generation, it has no holder, because both may be working on it (Kafka's AbstractStickyAssignor,
  `allSubscriptionsEqual`).
* A member holds only partitions that exist, of topics to which it subscribes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kcoord_wire.assignors.model import MemberSubscription, Partitions, TopicPartition, group_partitions


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
