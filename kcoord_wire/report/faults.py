"""A rebalance in a sentence: who set it off and how, how long it took, whom it waited for, and what it cost.

Laws:

* Nothing is concluded here: every figure is a row of `Rebalance` or `MemberLife`.
* Where a session ended because the member's process had died or was silent, the sentence begins with that moment, and
  says how much later the coordinator removed the member, which learns of it by the session timeout.
* A member that joined last is named only where the others waited for longer than the news of a rebalance takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kcoord_wire.forensics.model import NS_PER_MS, Cause, GroupHistory, MemberLife, Rebalance
from kcoord_wire.report.formatting import ago, counted, duration, name_if_known, name_of, shown, utc

_LATE: Final = 0.3  # share of a rebalance from which the last member to join is named as the reason for its length
_LATE_MS: Final = 3_000  # members learn of a rebalance by a heartbeat; its interval is 3 s by default
_DEAD_MS: Final = 1_000
_REMOVED: Final = frozenset({Cause.SESSION_EXPIRED, Cause.REBALANCE_TIMEOUT, Cause.SYNC_EXPIRED})

_HOW_ENDED: Final = {
    "process died": "died at {at}: its connection was closed without LeaveGroup",
    "process ended": "ended at {at}: its connection was closed, and it sends no LeaveGroup",
    "gone": "was gone at {at}: its connection ended, and bytes before that are missing",
    "silent": "fell silent at {at} on an open connection, frozen or cut off",
}
_AWAITED: Final = {
    "process died": "whose process had died",
    "process ended": "whose process had ended",
    "gone": "whose connection had ended",
    "silent": "which was silent",
}


class Waiting(NamedTuple):
    """The member that the others waited for in a rebalance.

    :ivar name: client id or member id, printable
    :ivar ms: how long; None where it was the only one to join
    :ivar how: `model.Awaited.end`; empty for the last one to join
    """

    name: str
    host: str
    ms: float | None
    how: str

    @property
    def person(self) -> str:
        return self.name + (f" ({self.host})" if self.host else "")


def awaited(row: Rebalance) -> Waiting | None:
    """Return the member that the others waited for longest: dead, silent or late, else the last to join."""
    longest = max(row.waited_for, key=lambda wait: wait.ms, default=None)
    if longest is not None and longest.ms >= (row.late_ms or 0.0):
        name = name_of(longest.client_id, longest.member_id)
        return Waiting(name, shown(longest.client_host, 60), longest.ms, shown(longest.end, 40))
    if not (row.last_client_id or row.last_member_id):
        return None
    return Waiting(name_of(row.last_client_id, row.last_member_id), shown(row.last_client_host, 60), row.late_ms, "")


def waited_for_dead(row: Rebalance) -> bool:
    """Whether the group waited for a member that was dead or silent, a second or longer."""
    return any(wait.died_ns is not None and wait.ms >= _DEAD_MS for wait in row.waited_for)


def sentence_of(history: GroupHistory, row: Rebalance, lengths: Mapping[int, float | None]) -> str:
    """A rebalance in a sentence: why, when, how long, and what it cost."""
    length = lengths[row.number]
    same = sum(other.cause == row.cause for other in history.rebalances)
    text = f"{same} x {shown(str(row.cause), 60)}, the costliest: " if same > 1 else ""
    death = _death(history, row)
    if death:
        text += death
    else:
        text = f"{same} x {shown(str(row.cause), 60)}, the costliest" if same > 1 else shown(str(row.cause), 60)
        if name := name_if_known(row.client_id, row.member_id, row.instance_id):
            text += f" of {_person(name, row.client_host)}"
        text += f" at {ago(row.started_ns, history.group.first_ns)}"
    if length is not None:
        text += f"; rebalance #{row.number} " if death else f": rebalance #{row.number} "
        text += f"has not ended after {duration(length)}" if row.outcome == "open" else f"took {duration(length)}"
        text += _because(row, length)
    if row.paused_ms:
        text += f", {duration(row.paused_ms)} of partition time without an owner"
    return text


def _death(history: GroupHistory, row: Rebalance) -> str:
    """How the member whose session ended had ended, and how much later it was removed; empty if that is not known."""
    if row.cause not in _REMOVED:
        return ""
    life = next((life for life in history.members if life.member_id == row.member_id), None)
    how = _HOW_ENDED.get(life.end or "") if life is not None else None
    if life is None or how is None or life.died_ns is None or life.died_ns > row.started_ns:
        return ""
    text = _person(name_of(row.client_id, row.member_id, row.instance_id), row.client_host)
    text += f" {how.format(at=utc(life.died_ns)[11:])}"
    if more := len([gone for gone in row.removed if gone.member_id != row.member_id]):
        text += f" (and {counted(more, 'other member')} with it)"
    text += f"; the coordinator noticed {duration((row.started_ns - life.died_ns) / NS_PER_MS)} later"
    text += f" ({shown(str(row.cause), 60)}, at {ago(row.started_ns, history.group.first_ns)})"
    return text + _return(history, life)


def _return(history: GroupHistory, life: MemberLife) -> str:
    """When the client was there again after its end; what happens to one that is not is for the reader to see to."""
    if life.died_ns is None or not (life.instance_id or life.client_id):
        return ""
    again = [
        other.joined_ns
        for other in history.members
        if other.member_id != life.member_id
        and (other.instance_id, other.client_id, other.client_host)
        == (life.instance_id, life.client_id, life.client_host)
        and other.joined_ns > life.died_ns
    ]
    if again:
        return f", and it was back {duration((min(again) - life.died_ns) / NS_PER_MS)} after that moment"
    return ", and it did not come back"


def _because(row: Rebalance, length: float) -> str:
    wait = awaited(row)
    if wait is None or wait.ms is None or wait.ms < _LATE * length:
        return ""
    if wait.how in ("", "late"):
        return f" ({wait.person} joined last, {duration(wait.ms)} after the others)" if wait.ms >= _LATE_MS else ""
    return f" because it waited {duration(wait.ms)} for {wait.person}, {_AWAITED.get(wait.how, wait.how)}"


def _person(name: str, host: str | None) -> str:
    return name + (f" ({shown(host, 60)})" if host else "")
