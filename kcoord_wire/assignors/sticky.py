"""Sticky and cooperative-sticky: balanced first, then as few moves as that leaves (KIP-54, KIP-341, KIP-429).

With equal subscriptions balanced means max - min <= 1 (`equal`); otherwise it is the best that the subscriptions allow
(`leveling`). What the members hold is worked out in `claims`.

Laws:

* A balanced, complete assignment does not change.
* After a cooperative rebalance that withholds partitions, the next one hands them out and takes nothing away.
* Of the members that may get a partition, one in the rack of a replica gets it where balance and moves leave the choice
  (KIP-881); nothing moves for a rack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kcoord_wire.assignors import claims
from kcoord_wire.assignors.equal import deal_in_turn, share_out
from kcoord_wire.assignors.leveling import level
from kcoord_wire.assignors.model import NO_RACKS, Assignment, MemberSubscription, Partitions, Racks, in_order, kinds_of
from kcoord_wire.assignors.nearness import Nearness


def sticky(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], racks: Racks = NO_RACKS, /
) -> Assignment:
    """Assign balanced, moving as few partitions as possible; see `model.Assign`.

    Holders are read from `owned` and `generation` or, if `owned` is empty, from the user data of Kafka's
    StickyAssignor. Of two members that claim a partition, the one with the higher generation holds it; with equal
    generations, neither does.
    """
    return _balance(partitions_per_topic, members, racks, claims.with_owned_from_user_data).assignment


def cooperative_sticky(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], racks: Racks = NO_RACKS, /
) -> Assignment:
    """Assign as `sticky` does, but withhold each partition whose holder or claimant has to give it up first (KIP-429).

    That member sees that it has lost the partition, gives it up and rejoins, and the next rebalance assigns it. If the
    subscription's version has no `generation`, it is read from the user data of Kafka's CooperativeStickyAssignor.
    """
    balanced = _balance(partitions_per_topic, members, racks, claims.with_generation_from_user_data)
    if balanced.in_use:
        for member_id, partitions in balanced.assignment.items():
            balanced.assignment[member_id] = _without(partitions, balanced.in_use, balanced.held[member_id])
    return balanced.assignment


def balanced_target(partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
    """Assign as `sticky` does where `owned` is what the coordinator assigned, and not what a member claims."""
    return _balance(partitions_per_topic, members, NO_RACKS, lambda member: claims.Claim(member.owned, 0)).assignment


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
    claim_of: Callable[[MemberSubscription], claims.Claim],
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
    holdings = claims.holdings(counts, subscribed, [claim_of(members[member_id]) for member_id in order])
    near = Nearness.where_racks_matter(counts, [members[member_id].rack for member_id in order], racks)
    in_use: dict[str, set[int]] = {}
    if len(kinds) != 1 or len(kinds[0].members) != len(order):
        given, in_use = level(counts, kinds, holdings.held, holdings.free, near)
    elif any(holdings.held) or near is not None:
        given, in_use = share_out(counts, holdings.held, holdings.free, near)
    else:
        given = [*deal_in_turn(counts, len(order))]
    for topic, numbers in holdings.claimed.items():
        in_use.setdefault(topic, set()).update(numbers)
    by_member = dict(zip(order, given, strict=True))
    assignment = {member_id: by_member[member_id] for member_id in members}
    return _Balanced(assignment, dict(zip(order, holdings.held, strict=True)), in_use)
