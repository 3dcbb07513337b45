"""Who subscribes to what, with equal subscriptions and equal subscriber lists found once instead of once a topic.

Most groups have one subscription, few have more than a handful; the number of members times topics is what costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kcoord_wire.assignors.model import MemberSubscription


@dataclass(frozen=True, slots=True)
class Kind:
    """The members with one subscription.

    :ivar topics: those that have partitions, sorted; not empty
    :ivar members: their places in the order of members, ascending
    """

    topics: tuple[str, ...]
    members: list[int]


def kinds_of(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], order: Sequence[str]
) -> list[Kind]:
    """Group the members by subscription. A member that can get no partition is in no group."""
    # Almost all members list their topics in the same order, so that few lists are left to be sorted.
    as_listed: dict[tuple[str, ...], list[int]] = {}
    for place, member_id in enumerate(order):
        as_listed.setdefault(tuple(members[member_id].topics), []).append(place)
    kinds: dict[tuple[str, ...], list[int]] = {}
    for topics, places in as_listed.items():
        assignable = tuple(sorted(topic for topic in set(topics) if partitions_per_topic.get(topic, 0) > 0))
        kinds.setdefault(assignable, []).extend(places)
    return [Kind(topics, sorted(places)) for topics, places in kinds.items() if topics]


def topics_by_subscribers(kinds: Sequence[Kind]) -> list[tuple[list[str], list[int]]]:
    """Group the topics by subscribers: sorted topics, and the places of their subscribers, ascending."""
    kinds_by_topic: dict[str, list[int]] = {}
    for number, kind in enumerate(kinds):
        for topic in kind.topics:
            kinds_by_topic.setdefault(topic, []).append(number)
    groups: dict[tuple[int, ...], list[str]] = {}
    for topic in sorted(kinds_by_topic):
        groups.setdefault(tuple(kinds_by_topic[topic]), []).append(topic)
    return [
        (topics, sorted(place for number in numbers for place in kinds[number].members))
        for numbers, topics in groups.items()
    ]
