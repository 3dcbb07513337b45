"""The assignor of Kafka's group coordinator for share groups (KIP-932), as a pure function: ``simple``.

Several members may fetch from a partition: of so many members and partitions each partition is given to
``ceil(members / partitions)`` members, and the numbers of partitions of two members differ by one at most.

Laws:

* The target of before is kept as far as the numbers allow.
* Where every member subscribes to the same topics they are balanced over all partitions, otherwise topic by topic.
* Which of equals is taken follows from the order in which Java iterates its hash tables, so that a group has the same
  target here as in Kafka. Where member ids share a bucket of Java's table, Kafka's order depends on its history, and
  here it is that in which the members were added.

Source: Kafka's `SimpleAssignor.java`, `SimpleHomogeneousAssignmentBuilder.java`,
`SimpleHeterogeneousAssignmentBuilder.java` (4.4).
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

SIMPLE: Final = "simple"
"""The name of the assignor, as ShareGroupDescribe returns it."""

Partitions = Mapping[uuid.UUID, frozenset[int]]
"""Topic id to partitions."""


class ShareSubscription(NamedTuple):
    """A member of a share group, as the assignor sees it.

    :ivar topics: ids of the topics that it subscribes to and that exist, in the order of their names (`order_of_names`)
    :ivar target: what it was to have until now
    """

    topics: Sequence[uuid.UUID]
    target: Partitions


_Key = tuple[uuid.UUID, int]
_T = TypeVar("_T", bound=Hashable)


def simple(
    assignable: Partitions, members: Mapping[str, ShareSubscription], *, is_homogeneous: bool
) -> dict[str, Partitions]:
    """Return the target of each member.

    :param assignable: the partitions that may be given, by topic id; those of topics without a subscriber are ignored
    :param members: by member id
    :param is_homogeneous: whether all of them subscribe to the same names, of topics that exist or not
    """
    ids = _in_java_order(members, _hash_of_text)
    subscribed = dict.fromkeys(topic for member_id in ids for topic in members[member_id].topics)
    if not subscribed:
        return {member_id: {} for member_id in members}
    held = [_ordered(members[member_id].target) for member_id in ids]
    if is_homogeneous:
        kept = _of_topics(held, subscribed)
        targets = _share(_keys(assignable, subscribed), range(len(ids)), kept, len(ids), _hash_of_partition)
    else:
        targets = [set(keys) for keys in held]  # what is of topics without any subscriber stays, as in Kafka
        for topic in subscribed:
            own = [index for index, member_id in enumerate(ids) if topic in members[member_id].topics]
            before = _of_topics(held, (topic,))
            after = _share(_keys(assignable, (topic,)), own, before, len(ids), lambda key: key[1])
            targets = [each.difference(old) | new for each, old, new in zip(targets, before, after, strict=True)]
    kept_topics = subscribed if is_homogeneous else None
    return {
        member_id: _by_topic(target, members[member_id].target, kept_topics)
        for member_id, target in zip(ids, targets, strict=True)
    }


def _ordered(target: Partitions) -> list[_Key]:
    """Return partitions in the order in which Kafka comes across them."""
    return [
        (topic, number)
        for topic in _in_java_order(target, _hash_of_id)
        for number in _in_java_order(sorted(target[topic]), int)
    ]


def _of_topics(held: Iterable[Sequence[_Key]], topics: Collection[uuid.UUID]) -> list[list[_Key]]:
    return [[key for key in keys if key[0] in topics] for keys in held]


def _keys(assignable: Partitions, topics: Iterable[uuid.UUID]) -> list[_Key]:
    return [(topic, number) for topic in topics for number in sorted(assignable.get(topic, ()))]


def _by_topic(keys: Iterable[_Key], before: Partitions, kept: Collection[uuid.UUID] | None) -> Partitions:
    """Return partitions by topic.

    :param before: what the member had; its topics stay, as in Kafka, perhaps without partitions
    :param kept: of these topics only; None for all
    """
    topics: dict[uuid.UUID, set[int]] = {topic: set() for topic in before if kept is None or topic in kept}
    for topic, number in sorted(keys):
        topics.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in topics.items()}


def _share(
    partitions: Sequence[_Key],
    members: Sequence[int],
    held: Sequence[Sequence[_Key]],
    count: int,
    hash_of: Callable[[_Key], int],
) -> list[set[_Key]]:
    """Share partitions among members.

    :param members: the indexes of those that may get them
    :param held: what each member had, by index
    :param count: of all members
    """
    sharing = math.ceil(len(members) / len(partitions)) if partitions else 0
    exact = sharing * len(partitions) / len(members)
    wanted = [0] * count
    for place, index in enumerate(members):
        wanted[index] = math.ceil(exact * (place + 1)) - math.ceil(exact * place)
    targets = [set(keys) for keys in held]
    for index, target in enumerate(targets):
        surplus = max(len(target) - wanted[index], 0)
        target.difference_update(_in_java_order(held[index], hash_of)[:surplus])
    holders: dict[_Key, list[int]] = {}
    for index, keys in enumerate(held):
        for key in keys:
            holders.setdefault(key, [])
            if key in targets[index]:
                holders[key].append(index)
    for key, own in holders.items():
        for index in _in_java_order(own, int)[: max(len(own) - sharing, 0)]:
            targets[index].discard(key)
            own.remove(index)
    for key in partitions:
        holders.setdefault(key, [])
    # Java's computeIfAbsent puts a key before those of its bucket.
    keys = _in_java_order(reversed(holders), hash_of, len(partitions))
    _fill(keys, holders, sharing, wanted, targets, members)
    return targets


def _fill(
    keys: Iterable[_Key],
    holders: Mapping[_Key, Collection[int]],
    sharing: int,
    wanted: Sequence[int],
    targets: Sequence[set[_Key]],
    members: Iterable[int],
) -> None:
    """Give each partition to as many members as are to have it, in turn to those that have too few."""
    unfilled = [index for index in sorted(members) if len(targets[index]) < wanted[index]]
    turn, has_given = list(unfilled), False
    for key in keys:
        left = sharing - len(holders[key])
        while left > 0 and unfilled:
            if not turn:
                if not has_given:
                    break
                turn, has_given = list(unfilled), False
            index = turn.pop(0)
            if index in holders[key]:
                continue
            targets[index].add(key)
            left, has_given = left - 1, True
            if len(targets[index]) >= wanted[index]:
                unfilled.remove(index)


# ---- the order of Java's hash tables


def order_of_names(names: Iterable[str]) -> list[str]:
    """Return names of topics in the order in which Kafka comes across a member's subscription."""
    return _in_java_order(names, _hash_of_text)


def order_of_ids(ids: Iterable[uuid.UUID]) -> list[uuid.UUID]:
    """Return ids of topics in the order of a Java set."""
    return _in_java_order(ids, _hash_of_id)


_LEAST: Final = 16  # buckets


def _in_java_order(keys: Iterable[_T], hash_of: Callable[[_T], int], expected: int | None = None) -> list[_T]:
    """Return keys as a ``java.util.HashMap`` iterates them into which they were put in this order.

    :param expected: how many it was made for, as `AssignorHelpers` in Kafka does; None if it was made without
    """
    keys = list(keys)
    buckets = _LEAST
    if expected is not None:
        buckets = 1 << (int((expected + 1) / 0.75 + 1) - 1).bit_length()
    while len(keys) > buckets * 3 // 4:
        buckets *= 2

    def bucket(key: _T) -> int:
        value = hash_of(key) & 0xFFFFFFFF
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(keys, key=bucket)


def _hash_of_text(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2])) & 0xFFFFFFFF
    return value


def _hash_of_id(topic: uuid.UUID) -> int:
    both = (topic.int >> 64) ^ (topic.int & (1 << 64) - 1)
    return (both >> 32) ^ (both & 0xFFFFFFFF)


def _hash_of_partition(key: _Key) -> int:
    return 31 * _hash_of_id(key[0]) + key[1]
