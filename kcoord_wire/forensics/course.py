"""The course of a group: its first start, what lies between, and its final shutdown.

Laws:

* The first start begins with an empty group, and lasts while new members come, one within a minute of the other. A
  topic that the coordinator learnt of before it had assigned anything is part of it: of one that was just created it
  knows later than its clients, and no partition had an owner to lose.
* The final shutdown leaves the group empty, or without a member that lives, and each of its rebalances leaves fewer
  members. It begins where the last generation ends that was at work: one that was stable for `SETTLED_NS` until the
  next member left, or whose next member died `KILLED_NS` before another did or left. What happened before that, as a
  death, belongs to the middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Generation, GroupHistory, Rebalance

TOGETHER_NS: Final = 60_000_000_000
"""Joins of one start are not further apart."""

SETTLED_NS: Final = 10_000_000_000
"""A generation that is stable for so long is at work; the processes of one shutdown end closer to each other."""

KILLED_NS: Final = 3_000_000_000
"""A process that is killed so much before the next one leaves, or later, is killed by the shutdown."""

_COMES: Final = (Cause.NEW_MEMBER, Cause.COOPERATIVE_FOLLOW_UP)
_ENDS: Final = (Cause.MEMBER_LEFT, Cause.SESSION_EXPIRED)  # of processes that are stopped in order, or killed


class Course(NamedTuple):
    """The rebalances of a group in three parts, each in order of time."""

    start: Sequence[Rebalance]
    middle: Sequence[Rebalance]
    shutdown: Sequence[Rebalance]


def course_of(history: GroupHistory) -> Course:
    """Return the parts of a history; each may be empty."""
    rows = history.rebalances
    begun = _start(history)
    over = max(begun, len(rows) - _shutdown(history))
    return Course(rows[:begun], rows[begun:over], rows[over:])


def resets_of(history: GroupHistory) -> Iterator[tuple[Generation, Generation]]:
    """Yield the generations of a group that do not follow the one before, each behind that one.

    Not while it has members of both protocols: those of the classic one are answered with their own epoch, which is
    behind that of the group until they have joined again (KIP-848).
    """
    for before, after in pairwise(sorted(history.generations, key=lambda generation: generation.joined_ns)):
        is_again = after.generation_id == before.generation_id and after.leader_id != before.leader_id
        if (after.generation_id < before.generation_id or is_again) and not _is_mixed(history, before, after):
            yield before, after


def _is_mixed(history: GroupHistory, before: Generation, after: Generation) -> bool:
    """Whether members of both protocols were there from one generation to the other."""
    there = (
        life.protocol
        for life in history.members
        if life.joined_ns <= after.joined_ns and (life.left_ns is None or life.left_ns >= before.joined_ns)
    )
    return len(set(there)) > 1


def _start(history: GroupHistory) -> int:
    """How many rebalances the first start took: from an empty group on, while new members came."""
    rows = history.rebalances
    if not rows or rows[0].members_before or rows[0].cause != Cause.NEW_MEMBER:
        return 0
    count = 1
    for before, row in pairwise(rows):
        comes = row.cause in _COMES or (row.cause == Cause.TOPICS_CHANGED and _is_unassigned(history, row.started_ns))
        if not comes or row.removed or row.started_ns - before.started_ns > TOGETHER_NS:
            break
        count += 1
    return count


def _is_unassigned(history: GroupHistory, until_ns: int) -> bool:
    """Whether no generation before had partitions, in a source that shows those of later ones."""
    given = [row.joined_ns for row in history.generations if row.partitions]
    return bool(given) and min(given) >= until_ns


def _shutdown(history: GroupHistory) -> int:
    """How many rebalances the final shutdown took."""
    rows = history.rebalances
    if not rows or not (rows[-1].outcome == "empty" or _are_gone(history)):
        return 0
    died = {life.member_id: life.died_ns for life in history.members if life.died_ns is not None}
    count = 0
    next_ns = None  # when the member that follows left or died
    for row in reversed(rows):
        died_ns = died.get(row.member_id or "")
        shrinks = row.members_after == 0 or row.members_after < row.members_before
        if row.cause not in _ENDS or not shrinks or not _is_next(row, died_ns, next_ns):
            break
        ended_ns = row.started_ns if died_ns is None else min(row.started_ns, died_ns)
        next_ns = ended_ns if next_ns is None else min(next_ns, ended_ns)
        count += 1
    return count


def _are_gone(history: GroupHistory) -> bool:
    """Whether all members had left or ended when the source ended: of one of them, LeaveGroup may be missing."""
    return all(life.left_ns is not None or life.died_ns is not None for life in history.members)


def _is_next(row: Rebalance, died_ns: int | None, next_ns: int | None) -> bool:
    """Whether the end of a member and the one that follows are of one shutdown.

    :param died_ns: when it died; None if it left
    :param next_ns: when the next one left or died; None: it is the last
    """
    if next_ns is None:
        return True
    if died_ns is not None:
        return next_ns - died_ns <= KILLED_NS
    return next_ns - (row.ended_ns or row.started_ns) <= SETTLED_NS
