"""Moments of a KIP-848 group of which one came before the other, whatever the clocks of their sources say.

* The request to join that raised an epoch comes before each response that brings this epoch, and before each that takes
  partitions away from a member of the epoch before.
* A member has released a partition, or was heard for the last time before it was removed, before another is given it.

Epochs and requests say which came first; no rule here compares times of two sources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from kcoord_wire.forensics.model import Sighting, table_of
from kcoord_wire.forensics.wire.kip848 import EpochMember, read_heartbeats
from kcoord_wire.forensics.wire.revocations import revocations
from kcoord_wire.forensics.wire.traffic import GroupTraffic, Partition, read_sightings, read_traffic

if TYPE_CHECKING:
    import pyarrow as pa

    from kcoord_wire.forensics.wire.signs import Moment


def ordered_moments(rows: pa.Table) -> Iterator[tuple[Moment, Moment]]:
    """Yield pairs of moments, the earlier one first.

    :param rows: of `Exchange`, those of ConsumerGroupHeartbeat of one group
    """
    traffic = read_traffic(rows, read_sightings(table_of(Sighting, [])))
    lives = read_heartbeats(traffic).lives
    raised = {life.received[0].epoch: life.joins[0].asked for life in lives if life.is_new and life.received}
    yield from _of_epochs(lives, raised)
    yield from _of_owners(lives, traffic)


def _of_epochs(lives: Sequence[EpochMember], raised: Mapping[int, Moment]) -> Iterator[tuple[Moment, Moment]]:
    """:param raised: by epoch, the join that raised it"""
    for life in lives:
        for epoch, at, _ in life.received:
            if epoch in raised:
                yield raised[epoch], at
        for each in revocations(life):
            before = max(epoch for epoch, at, _ in life.received if at <= each.since)
            if before + 1 in raised:  # the revocation is of that epoch, or of a later one
                yield raised[before + 1], each.since


def _of_owners(lives: Sequence[EpochMember], traffic: GroupTraffic) -> Iterator[tuple[Moment, Moment]]:
    given: dict[Partition, list[tuple[int, Moment, EpochMember]]] = defaultdict(list)
    for life in lives:
        for epoch, at, assignment in life.received:
            for partition in assignment or ():
                given[partition].append((epoch, at, life))
    for owners in given.values():
        for (_, _, former), (_, at, life) in pairwise(sorted(owners, key=itemgetter(0))):
            released = _released(former, traffic) if former is not life else None
            if released is not None:
                yield released, at


def _released(member: EpochMember, traffic: GroupTraffic) -> Moment | None:
    """When a member had given up what others got then; None where it had to more than once."""
    pending = revocations(member)
    if len(pending) == 1 and pending[0].over is not None:
        return pending[0].over
    if member.rejection is None or any(each.over is not None for each in pending):
        return None
    return traffic.heartbeats.answered.moment_before(member.member_id, member.rejection.asked.time_ns - 1)
