"""Clock skew: a member of a Marshal group whose clock is ahead of the others', or behind.

The Go library judges a claim by the time in its last heartbeat and the clock of the reader. A claim whose time is ahead
of the reader's clock is no claim to it: another member takes the partition at once. One that is behind becomes stale
early: the holder stops by its own clock one interval after its last heartbeat, and others claim after two, so a clock
that is behind by an interval leaves no margin.

Times in messages are whole seconds, rounded down, so a right clock is never ahead of the broker's append time.

Thresholds: 2 s ahead: within that, brokers, too, differ from each other, and times that follow from the other members
of a group are inexact. 5 s behind: that long a heartbeat may be under way (the library's timeout of a produce request).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import Found, client_of
from kcoord_wire.forensics.model import Evidence, GroupHistory, MemberLife

if TYPE_CHECKING:
    import pyarrow as pa

AHEAD_MS: Final = 2000
BEHIND_MS: Final = 5000


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per instance."""
    for life in history.members:
        ahead = life.clock_ahead_ms
        if ahead is not None and (ahead >= AHEAD_MS or -ahead >= BEHIND_MS):
            yield _found(history, life, ahead)


def _found(history: GroupHistory, life: MemberLife, ahead: int) -> Found:
    threshold = AHEAD_MS if ahead > 0 else BEHIND_MS
    amount = f"{abs(ahead) / 1000:.1f} s {'ahead' if ahead > 0 else 'behind'}"
    effect = (
        "members with the Go library do not see its claims until their clocks are there, and take its partitions"
        if ahead > 0
        else "for members with the Go library its claims are stale so much earlier"
    )
    has_margin = ahead < 0 and -2 * ahead < (life.session_timeout_ms or 0)
    is_harmful = history.group.protocol_type == "marshal library" and not has_margin
    return Found(
        severity="critical" if is_harmful else "warning",
        from_ns=life.joined_ns,
        to_ns=life.last_seen_ns,
        subject=client_of(life),
        text=f"the clock of {client_of(life)} (instance {life.member_id}) is {amount}: {effect}",
        advice="Set the clock of its host (NTP). Where the topic has message.timestamp.type=LogAppendTime, members "
        "that follow the document do not depend on clocks.",
        value=abs(ahead) / 1000,
        threshold=threshold / 1000,
        rebalances=[row.number for row in history.rebalances if row.member_id == life.member_id],
        evidence=[Evidence(life.joined_ns, "", -1, f"times in its messages are {amount}")],
    )
