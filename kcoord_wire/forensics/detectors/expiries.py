"""Members that their coordinator heard nothing of for a session, where the source shows no more of their end.

A broker logs that it removed a member on heartbeat expiration, not why it heard nothing. More is known where the same
client joins again:

| it joins again          | what that shows                                                                        |
|-------------------------|----------------------------------------------------------------------------------------|
| before the removal, and | another process: the old member's session had not run out, so that one that lives had   |
| sooner than that lies   | been answered within it, and had no reason to join anew                                |
| ahead                   |                                                                                        |
| before it, but later    | another process, or a library that gives its session up by itself, as librdkafka does   |
|                         | (``session timed out (in join-state ...)``): it has no answer yet to a late heartbeat   |
| within `AT_ONCE_NS`     | the same process, if it does so again: its heartbeats are late by less than that       |
| after that              | a process that had ended, stood still, or was cut off                                  |

Laws:

* A session that ran out is not longer than the time since the member was heard last, which is at its join and at each
  assignment at the latest; and not longer than the shortest life of its client that ended like this.
* What the wire shows of an end (`MemberLife.end`) is not judged here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from kcoord_wire.forensics.model import NS_PER_MS, GroupHistory, MemberLife

AT_ONCE_NS: Final = 1_000 * NS_PER_MS
"""After the end of its session, within which a client that lives joins again."""

REPEATED: Final = 2
"""Ends of sessions from which on a client that joins again at once does so because it lives."""

_TIMED_OUT: Final = "session timeout"


class Expiry(NamedTuple):
    """The removal of a member that was not heard.

    :ivar heard_ns: when it was heard last, at the latest, before its client joined again
    :ivar again: the next member of the same client; None where it did not come back
    """

    life: MemberLife
    heard_ns: int
    again: MemberLife | None

    @property
    def left_ns(self) -> int:
        return self.life.over_ns

    @property
    def gap_ns(self) -> int | None:
        """How long after the removal its client joined again; negative where it had joined before."""
        return None if self.again is None else self.again.joined_ns - self.left_ns

    @property
    def is_early(self) -> bool:
        """Whether its client joined again before the removal."""
        return self.gap_ns is not None and self.gap_ns < 0

    @property
    def is_restart(self) -> bool:
        """Whether it joined again so early that only another process can have done so."""
        return self.is_early and self.again is not None and -(self.gap_ns or 0) >= self.again.joined_ns - self.heard_ns

    @property
    def is_at_once(self) -> bool:
        return self.gap_ns is not None and 0 <= self.gap_ns < AT_ONCE_NS


def read_expiries(history: GroupHistory) -> list[list[Expiry]]:
    """Return the removals of each client, in order of time."""
    places: dict[tuple[str | None, ...], list[MemberLife]] = defaultdict(list)
    for life in sorted(history.members, key=lambda life: life.joined_ns):
        name = (life.instance_id, life.client_id, life.client_host)
        places[name if any(name[:2]) else (life.member_id,)].append(life)  # KIP-848: brokers log no client id
    stable = sorted(each.stable_ns for each in history.generations if each.stable_ns is not None)
    return [found for lives in places.values() if (found := _of_client(lives, stable))]


def _of_client(lives: Sequence[MemberLife], stable: Sequence[int]) -> list[Expiry]:
    """:param lives: of one client, in order of their start"""
    expired = [life for life in lives if life.why_left == _TIMED_OUT and life.died_ns is None and life.end is None]
    shortest_ns = min(map(_session_ns, expired), default=0)
    found: list[Expiry] = []
    taken: set[str] = set()
    for life in expired:
        left_ns = life.over_ns
        since_ns = max(life.joined_ns, left_ns - shortest_ns)
        again = next((each for each in lives if each.joined_ns > since_ns and each.member_id not in taken), None)
        if again is not None:
            taken.add(again.member_id)
        until_ns = left_ns if again is None else min(left_ns, again.joined_ns)
        heard_ns = max((at for at in stable if life.joined_ns <= at <= until_ns), default=life.joined_ns)
        found.append(Expiry(life, heard_ns, again))
    return found


def _session_ns(life: MemberLife) -> int:
    """Return how long the session of a life that ended with one was, at most."""
    lived_ns = life.over_ns - life.joined_ns
    return min((life.session_timeout_ms or 0) * NS_PER_MS or lived_ns, lived_ns)


def is_restarted(expiries: Sequence[Expiry]) -> bool:
    """Whether a client is a process that ends and is started again, before its session is over."""
    return any(each.is_restart for each in expiries)


def may_live(expiries: Sequence[Expiry]) -> bool:
    """Whether a client that was removed again and again may live: it was there again at once, or before."""
    alive = sum(each.is_at_once or each.is_early for each in expiries)
    back = sum(each.again is not None for each in expiries)
    return alive >= REPEATED and 2 * alive > back and not is_restarted(expiries)
