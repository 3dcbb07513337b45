"""What members of a KIP-848 group had to give up, and how long each took.

A response takes partitions away by leaving them out of the assignment. The member then calls its rebalance listener,
and states with a later heartbeat that it owns them no more; until then the coordinator gives them to no other member,
and lets this one have no newer epoch. One that takes longer than the rebalance timeout of its join is fenced, however
regular its heartbeats are, and its next heartbeat is rejected with UNKNOWN_MEMBER_ID.

Laws:

* A revocation begins with the first response that takes the partitions away. It is over with the first heartbeat that
  states what the member owns without them, with the next epoch that it receives, or with its life.
* A member counts as fenced for it only where its timeout lies between its last good heartbeat and its rejection.

Source: KIP-848, GroupMetadataManager.java (scheduleConsumerGroupRebalanceTimeout), CurrentAssignmentBuilder.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.model import NS_PER_MS, Awaited
from kcoord_wire.forensics.wire.members import LATE, LEAST_WAIT_NS, REVOKING, awaited
from kcoord_wire.forensics.wire.signs import NEVER_NS, Moment

if TYPE_CHECKING:
    from kcoord_wire.forensics.wire.kip848 import EpochMember
    from kcoord_wire.forensics.wire.members import End
    from kcoord_wire.forensics.wire.trace import MemberTrace
    from kcoord_wire.forensics.wire.traffic import Partition

_SLACK_NS: Final = 500 * NS_PER_MS  # between the response in the capture and the coordinator's timer
_MISSED_BEATS: Final = 3  # a member that sent its heartbeats up to its rejection was not silent


@dataclass(slots=True)
class Revocation:
    """Partitions that a member had to give up.

    :ivar since: the response that took them away
    :ivar partitions: those that it has taken away
    :ivar over: when the member had given them up; None where it had not
    """

    since: Moment
    partitions: frozenset[Partition]
    over: Moment | None = None


def revocations(member: EpochMember) -> list[Revocation]:
    """Return what a member had to give up, in order of time."""
    moments: list[tuple[Moment, int, int, frozenset[Partition] | None]] = [
        (report.at, 0, 0, report.owned) for report in member.reports
    ]
    moments += [(received.at, 1, received.epoch, received.assignment) for received in member.received]
    held: frozenset[Partition] = frozenset()
    epoch = 0
    found: list[Revocation] = []
    for at, is_response, new_epoch, partitions in sorted(moments, key=lambda moment: moment[:2]):
        pending = found[-1] if found and found[-1].over is None else None
        if pending is not None and _is_done(pending, is_response, new_epoch > epoch, partitions):
            pending.over, held = at, held - pending.partitions
        if is_response:
            epoch = max(epoch, new_epoch)
            if partitions is not None:
                _take(found, at, held - partitions)
                held |= partitions
        elif partitions is not None:
            held = partitions
    return found


def _is_done(pending: Revocation, is_response: int, is_new: bool, owned: frozenset[Partition] | None) -> bool:
    return is_new if is_response else owned is not None and not owned & pending.partitions


def _take(found: list[Revocation], at: Moment, gone: frozenset[Partition]) -> None:
    """Note what a response takes away; what one before it has taken away is named again until it is given up."""
    pending = found[-1] if found and found[-1].over is None else None
    if pending is not None:
        pending.partitions |= gone
    elif gone:
        found.append(Revocation(at, gone))


def fenced_at(member: EpochMember, last_beat_ns: int, interval_ns: int | None) -> int | None:
    """Return when a member that was rejected had been fenced because it did not give up partitions in time.

    :param last_beat_ns: its last heartbeat that was accepted
    :param interval_ns: between its heartbeats; None where it is not known
    """
    pending = next((each for each in member.revocations if each.over is None), None)
    if pending is None or member.left is None:
        return None
    if member.rebalance_ms is not None:
        at_ns = pending.since.time_ns + member.rebalance_ms * NS_PER_MS
        return at_ns if last_beat_ns - _SLACK_NS <= at_ns <= member.left.time_ns + _SLACK_NS else None
    is_regular = interval_ns is not None and member.left.time_ns - last_beat_ns <= _MISSED_BEATS * interval_ns
    return member.left.time_ns if is_regular else None


def awaited_owners(
    members: Iterable[EpochMember],
    reached: Sequence[tuple[Moment, MemberTrace]],
    span: tuple[Moment, Moment],
    ends: Mapping[MemberTrace, End],
    seen_until: Callable[[str], int],
) -> list[Awaited]:
    """Return the members that a reconciliation waited for, for a second or more; the longest wait first.

    :param members: that were in the group when it began
    :param reached: the members that have had its epoch
    :param span: when the reconciliation began, and when the next one does
    :param ends: how members ended
    :param seen_until: until when the source would show a member, by member id
    """
    done = {member for _, member in reached}
    found = []
    for member in members:
        waits = list(_waits(member, span, seen_until(member.member_id)))
        if not waits and member not in done and member in ends and member.left is not None:
            waits = [(span[0].time_ns, min(member.left.time_ns, span[1].time_ns), LATE)]
        for from_ns, until_ns, how in waits:
            if until_ns - from_ns >= LEAST_WAIT_NS:
                found.append(awaited(member, from_ns, until_ns, ends.get(member), how))
    return sorted(found, key=lambda wait: -wait.ms)


def _waits(member: EpochMember, span: tuple[Moment, Moment], seen_ns: int) -> Iterator[tuple[int, int, str]]:
    for each in member.revocations:
        if span[0] <= each.since < span[1]:
            left_ns = NEVER_NS if member.left is None else member.left.time_ns
            over_ns = NEVER_NS if each.over is None else each.over.time_ns
            yield each.since.time_ns, min(left_ns, over_ns, seen_ns), REVOKING
