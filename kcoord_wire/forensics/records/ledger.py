"""What only records show of a group: commits, and from them why a member may be gone.

`classic` and `kip848` write into the same ledger, because a group may change from one protocol to the other and keep
its members and what they hold.

Law: a record with an earlier timestamp than the record before it counts at that record's time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.history import GONE, HistoryBuilder, Place
from kcoord_wire.forensics.model import NS_PER_MS, Evidence, MemberLife
from kcoord_wire.protocol.wording import only

_STEADY: Final = 3  # commits that make a habit
_LEAST_SESSION_MS: Final = 1_000  # brokers allow no shorter session in practice
_EXPLAINED: Final = 4  # departures in a sentence


class Entry(NamedTuple):
    """A record of a group.

    :ivar at: its time, in nanoseconds since 1970
    :ivar source: file, or topic and partition, that it is from
    :ivar offset: of the record
    :ivar record: an `OffsetsRecord`
    """

    at: int
    source: str
    offset: int
    record: Any

    def evidence(self, text: str) -> Evidence:
        """Return this record as evidence for what `text` says."""
        return Evidence(self.at, self.source, self.offset, text)


class Explanation(NamedTuple):
    """Why a generation or an epoch began: as `Rebalance` has it."""

    cause: Cause
    confidence: float
    detail: str
    member_id: str | None = None


class Departed(NamedTuple):
    """A member that is gone.

    :ivar cause: likeliest cause
    :ivar confidence: in that cause
    :ivar why: as `MemberLife.why_left`
    :ivar text: the same in a sentence
    """

    life: MemberLife
    cause: Cause
    confidence: float
    why: str
    text: str


class CommitTimes:
    """When each partition of a group was committed.

    :param times: nanoseconds since 1970, ascending within each partition
    :param ranges: start and end of each partition's part of `times`
    """

    def __init__(self, times: Sequence[int] = (), ranges: Mapping[Place, tuple[int, int]] | None = None) -> None:
        self._times = times
        self._ranges = ranges or {}

    def between(self, place: Place, since: int, until: int) -> tuple[int, int, int]:
        """Return how many commits there were from `since` to `until`, the first and the last; 0, 0, 0 for none."""
        start, end = self._ranges.get(place, (0, 0))
        first = bisect_left(self._times, since, start, end)
        after = bisect_right(self._times, until, start, end)
        return (after - first, self._times[first], self._times[after - 1]) if after > first else (0, 0, 0)


class Ledger(HistoryBuilder):
    """The tables of one group from its records.

    :ivar commits: when the group's partitions were committed
    """

    def __init__(self, group_id: str, commits: CommitTimes) -> None:
        super().__init__(group_id)
        self.commits = commits

    def departed(self, life: MemberLife, at: int) -> Departed:
        """Explain why a member may be gone by `at`, from the commits of what it holds; call it before `lose`.

        A commit keeps a session alive: within a session timeout after one, the session cannot have expired. A member
        that committed steadily and then not for that long was most likely not running any more.
        """
        mine = [(place, item.from_ns) for place, item in self.held.items() if item.member_id == life.member_id]
        counts = [self.commits.between(place, since, at) for place, since in mine]
        last = max((last for count, _, last in counts if count), default=None)
        timeout = max(life.session_timeout_ms or 0, _LEAST_SESSION_MS) * NS_PER_MS
        who = self.named(life.member_id)
        if last is None:
            text = f"{who} is gone; the log does not show whether it left, timed out or was removed"
            return Departed(life, Cause.MEMBER_LEFT, 0.5, GONE, text)
        quiet = (at - last) // NS_PER_MS
        if at - last < timeout:
            text = f"{who} is gone; it committed {quiet} ms before, so its session had not run out"
            return Departed(life, Cause.MEMBER_LEFT, 0.9, "left", text)
        if life.session_timeout_ms is not None and any(
            count >= _STEADY and (last - first) / (count - 1) * 2 < timeout for count, first, last in counts
        ):
            text = f"{who} is gone; it had committed steadily, and then not for {quiet} ms, longer than its session"
            return Departed(life, Cause.SESSION_EXPIRED, 0.75, "session timeout", text)
        text = f"{who} is gone, {quiet} ms after its last commit; the log does not show whether it left or timed out"
        return Departed(life, Cause.MEMBER_LEFT, 0.5, GONE, text)


def explain_departures(gone: Mapping[str, Departed]) -> Explanation:
    """Return why a generation began after these departures: the likeliest cause, and all of them in the sentence."""
    ordered = sorted(gone.items(), key=lambda item: (-item[1].confidence, item[0]))
    best = ordered[0][1]
    detail = "; ".join(departed.text for _, departed in ordered[:_EXPLAINED])
    if len(ordered) > _EXPLAINED:
        detail += f"; and {len(ordered) - _EXPLAINED} more"
    return Explanation(best.cause, best.confidence, detail, only(member_id for member_id, _ in ordered))
