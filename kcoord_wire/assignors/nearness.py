"""Which partitions have a replica in a member's rack (KIP-881)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice

from kcoord_wire.assignors.model import Racks


class Nearness:
    """Which partitions are near which member.

    :param counts: the number of partitions of each topic
    :ivar rack_of: by member: its rack; None if it has none
    """

    def __init__(self, counts: Mapping[str, int], member_racks: Sequence[str | None], racks: Racks) -> None:
        self.rack_of = [rack or None for rack in member_racks]
        self._any_rack = any(self.rack_of)
        self._counts = counts
        self._racks = racks
        self._near: dict[tuple[str, str], frozenset[int]] = {}

    @classmethod
    def where_racks_matter(
        cls, counts: Mapping[str, int], member_racks: Sequence[str | None], racks: Racks
    ) -> Nearness | None:
        """Return None if racks make no difference: no member is in a rack of a replica, or all partitions have replicas
        in the same racks. Source: kafka/clients `AbstractPartitionAssignor.useRackAwareAssignment`.
        """
        near = cls(counts, member_racks, racks)
        return near if near.matter(counts, range(len(member_racks))) else None

    def matter(self, topics: Iterable[str], members: Iterable[int]) -> bool:
        """Whether racks make a difference when these topics are assigned to these members."""
        if not self._racks or not self._any_rack:
            return False
        sets = {self.replicas(topic, number) for topic in topics for number in range(self._counts[topic])}
        everywhere = frozenset[str]().union(*sets)
        return sets != {everywhere} and not everywhere.isdisjoint(self.rack_of[member] or "" for member in members)

    def replicas(self, topic: str, number: int) -> frozenset[str]:
        """Return the racks of a partition's replicas; none if they are unknown."""
        listed = self._racks.get(topic, ())
        return frozenset(filter(None, listed[number])) if number < len(listed) else frozenset()

    def partitions(self, rack: str, topic: str) -> frozenset[int]:
        """Return the partitions of a topic that have a replica in a rack."""
        found = self._near.get((rack, topic))
        if found is None:
            listed = islice(self._racks.get(topic, ()), self._counts[topic])
            found = self._near[rack, topic] = frozenset(number for number, each in enumerate(listed) if rack in each)
        return found

    def of(self, member: int, topic: str) -> frozenset[int] | None:
        """Return the partitions of a topic that are near a member; None for a member without a rack."""
        rack = self.rack_of[member]
        return None if rack is None else self.partitions(rack, topic)

    def pair(self, topic: str, numbers: Sequence[int], amounts: Mapping[int, int]) -> dict[int, Sequence[int]]:
        """Give each member its amount of partitions of a topic, as many as possible near; return them by member.

        Partitions that are near the fewest go first.
        """
        slots: dict[str | None, list[int]] = {}
        for member, amount in amounts.items():
            slots.setdefault(self.rack_of[member], []).extend([member] * amount)
        anywhere = slots.pop(None, [])
        choices = {number: self._racks_near(topic, number, slots) for number in numbers}
        room = {rack: len(members) for rack, members in slots.items()}
        paired: dict[int, list[int]] = {member: [] for member in amounts}
        others = []
        for number in sorted(numbers, key=lambda number: sum(room[rack] for rack in choices[number])):
            largest = max((slots[rack] for rack in choices[number]), key=len, default=[])
            if largest:
                paired[largest.pop()].append(number)
            else:
                others.append(number)
        for number, member in zip(others, chain(anywhere, *slots.values()), strict=True):
            paired[member].append(number)
        return {member: sorted(mine) for member, mine in paired.items()}

    def _racks_near(self, topic: str, number: int, racks: Iterable[str | None]) -> list[str]:
        return [rack for rack in racks if rack is not None and number in self.partitions(rack, topic)]
