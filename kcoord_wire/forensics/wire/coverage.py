"""Whether members hold partitions of which the source shows nothing: a capture of one host, where others are elsewhere.

Laws:

* Others are there where the answer to JoinGroup names a leader, or the leader's list a member, that sent nothing in the
  source; where generations are missing between two that it has; in a KIP-848 group, where partitions of a subscribed
  topic are with no member that it shows.
* A partition that goes from one shown holder to the next within one rebalance had no other owner meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from kcoord_wire.forensics.wire.joins import Join, unshown_members
from kcoord_wire.forensics.wire.kip848 import Epochs
from kcoord_wire.forensics.wire.ownership import Holding
from kcoord_wire.forensics.wire.traffic import GroupTraffic


class Coverage:
    """What the source shows of the members of a group.

    :param joins: in order
    :param skipped: generations of which it shows nothing; numbers of KIP-848 epochs prove nothing here
    :ivar unshown: members that other frames name, and that sent nothing in the source
    :ivar others_hold: partitions of a KIP-848 group that no shown member ever held
    """

    def __init__(self, traffic: GroupTraffic, joins: Sequence[Join], skipped: Sequence[int], epochs: Epochs) -> None:
        self._at = [join.at.time_ns for join in joins]
        self._generations = [join.generation for join in joins]
        self._unshown = [unshown_members(join, traffic) for join in joins]
        self._skipped = skipped
        self.unshown = set[str]().union(*self._unshown)
        self.others_hold = _not_held(traffic, epochs)

    def is_unseen(self, from_ns: int, following: Holding | None) -> bool:
        """Whether others may have held a partition from a time on until its next holder got it, if there is one."""
        if self.others_hold and following is None:
            return True
        first = bisect_right(self._at, from_ns)
        end = len(self._at) if following is None else bisect_right(self._at, following.from_ns)
        got = None if following is None else following.generation
        if any(self._unshown[index] and self._generations[index] != got for index in range(first, end)):
            return True
        if first == 0:
            return False
        before = self._generations[first - 1]
        if got is None:
            return bool(self._unshown[first - 1]) and first == len(self._at)
        return (bool(self._unshown[first - 1]) and got > before + 1) or any(before < n < got for n in self._skipped)


def _not_held(traffic: GroupTraffic, epochs: Epochs) -> int:
    if not any(row.outcome == "stable" for row in epochs.rebalances):
        return 0
    topics = {topic for member in epochs.lives for topic in member.topics}
    sizes = {sighting.topic: sighting.partitions for sighting in traffic.sightings if sighting.topic in topics}
    held = {holding.partition for holding in epochs.holdings}
    return sum((topic, number) not in held for topic, size in sizes.items() for number in range(size))
