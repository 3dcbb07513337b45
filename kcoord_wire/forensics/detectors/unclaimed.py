"""Partitions of a Marshal group without a claim, although others of their topic are claimed.

No member reads them. Normal is that a partition is claimed within seconds after it was released or has become stale:
members look for partitions every three seconds. A group that is paused (ReleaseGroup), or has no member left, is
stopped on purpose, and is not reported.

Unclaimed partition: it had no claim for a while, or never had one although partitions with larger numbers had.

Released and not reclaimed: it was given up, and has no holder at the end of the log. The Go library releases what it
cannot keep up with; then either no member has room for it, or each of them has given it up.

Threshold of both: one heartbeat interval. The Go library leaves a partition alone for that long (60 s) after it has
released it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, listed, plural
from kcoord_wire.forensics.detectors.windows import SECOND_NS
from kcoord_wire.forensics.model import NS_PER_MS, ClaimRow, Evidence, GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

_GIVEN_UP: Final = ("released", "handed over", "paused")


class Gap(NamedTuple):
    """An interval in which a partition had no claim; `last` is the claim before, None if it has never had one."""

    partition: int
    from_ns: int
    to_ns: int | None
    last: ClaimRow | None

    @property
    def is_given_up(self) -> bool:
        """Whether the partition was released, and is free."""
        return self.to_ns is None and self.last is not None and self.last.ended in _GIVEN_UP


def find_unclaimed(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per topic, but for partitions of which `find_released` reports."""
    for topic, gaps in _long_gaps(history):
        mine = [gap for gap in gaps if not gap.is_given_up]
        if mine:
            yield found_unclaimed(
                topic, mine, history.group.last_ns, interval_ns(history), _rebalances(history, topic, mine)
            )


def find_released(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per topic."""
    for topic, gaps in _long_gaps(history):
        mine = [gap for gap in gaps if gap.is_given_up]
        if mine:
            yield found_released(
                topic, mine, history.group.last_ns, interval_ns(history), _rebalances(history, topic, mine)
            )


def found_unclaimed(topic: str, gaps: list[Gap], end_ns: int, limit_ns: int, rebalances: list[int]) -> Found:
    """Return the finding about gaps of a topic.

    :param end_ns: until when those last that have no end
    :param limit_ns: from which length on gaps are reported
    """
    return _found(
        topic,
        gaps,
        end_ns,
        limit_ns,
        rebalances,
        "critical" if any(gap.to_ns is None for gap in gaps) else "warning",
        "had no claim, although others of the topic were claimed",
        "No member read them meanwhile. Look whether the members may claim more (MaximumClaims), and whether one of "
        "them reuses a client id.",
    )


def found_released(topic: str, gaps: list[Gap], end_ns: int, limit_ns: int, rebalances: list[int]) -> Found:
    """Return the finding about released partitions of a topic; parameters as in `found_unclaimed`."""
    by = listed(sorted({gap.last.client_id for gap in gaps if gap.last is not None}))
    return _found(
        topic,
        gaps,
        end_ns,
        limit_ns,
        rebalances,
        "critical",
        f"{plural('was', gaps, 'were')} released by {by} and not claimed again",
        "A member releases what it cannot keep up with, and the others have no room or gave it up, too: add members, "
        "raise MaximumClaims, or look why its records are slow.",
    )


def _found(
    topic: str,
    gaps: list[Gap],
    end_ns: int,
    limit_ns: int,
    rebalances: list[int],
    severity: str,
    what: str,
    advice: str,
) -> Found:
    longest = max(_lasted_ns(gap, end_ns) for gap in gaps)
    numbers = sorted({gap.partition for gap in gaps})
    names = listed([f"{topic}-{number}" for number in numbers])
    is_open = any(gap.to_ns is None for gap in gaps)
    return Found(
        severity=severity,
        from_ns=min(gap.from_ns for gap in gaps),
        to_ns=None if is_open else max(gap.to_ns or 0 for gap in gaps),
        subject=topic,
        text=f"{len(numbers)} {plural('partition', numbers)} {what}: {names}, for {longest / SECOND_NS:.0f} s at most",
        advice=advice,
        value=longest / SECOND_NS,
        threshold=limit_ns / SECOND_NS,
        rebalances=rebalances,
        evidence=[_evidence(topic, gap) for gap in gaps[:MAX_EVIDENCE]],
    )


def _rebalances(history: GroupHistory, topic: str, gaps: list[Gap]) -> list[int]:
    numbers = {gap.partition for gap in gaps}
    mine = (row for row in history.pauses if row.topic == topic and row.partition in numbers)
    return sorted({row.rebalance for row in mine if row.rebalance is not None})


def _evidence(topic: str, gap: Gap) -> Evidence:
    if gap.last is None:
        return Evidence(gap.from_ns, "", -1, f"{topic}-{gap.partition} was never claimed")
    text = f"{topic}-{gap.partition}: the claim of {gap.last.client_id} ended: {gap.last.ended}"
    return Evidence(gap.from_ns, "", gap.last.token, text)


def interval_ns(history: GroupHistory) -> int:
    """Return the heartbeat interval; a session is two of them."""
    return max((life.session_timeout_ms or 0 for life in history.members), default=0) * NS_PER_MS // 2


def _lasted_ns(gap: Gap, end_ns: int) -> int:
    return (end_ns if gap.to_ns is None else gap.to_ns) - gap.from_ns


def _long_gaps(history: GroupHistory) -> Iterator[tuple[str, list[Gap]]]:
    """Yield, by topic, the gaps that last an interval and during which another partition of the topic was claimed."""
    if history.group.origin != "marshal":
        return
    topics: dict[str, list[ClaimRow]] = defaultdict(list)
    for row in history.claims:
        topics[row.topic].append(row)
    limit = interval_ns(history)
    for topic, claims in sorted(topics.items()):
        held = _Held(claims, history.group.last_ns)
        gaps = [gap for gap in map(held.cut, _gaps(history, claims)) if gap is not None]
        long = [gap for gap in gaps if _lasted_ns(gap, history.group.last_ns) >= limit]
        if long:
            yield topic, long


def _gaps(history: GroupHistory, claims: list[ClaimRow]) -> Iterator[Gap]:
    """Yield the gaps between the claims of each partition; of one that begins in a pause of the group, what follows."""
    pauses = [(row.from_ns, row.to_ns) for row in history.states if row.state == "Paused" and row.to_ns is not None]
    last: dict[int, ClaimRow] = {}
    for row in claims:
        before = last.get(row.partition)
        if before is not None and before.to_ns is not None and before.to_ns < row.from_ns:
            yield Gap(row.partition, _after(before.to_ns, pauses), row.from_ns, before)
        last[row.partition] = row
    for partition in range(max(last)):
        if partition not in last:
            yield Gap(partition, claims[0].from_ns, None, None)
    for partition, row in last.items():
        if row.to_ns is not None:
            yield Gap(partition, _after(row.to_ns, pauses), None, row)


def _after(moment: int, pauses: list[tuple[int, int]]) -> int:
    for from_ns, to_ns in pauses:
        if from_ns <= moment < to_ns:
            return to_ns
    return moment


class _Held:
    """When any partition of a topic was claimed.

    :param claims: in order of their beginnings
    """

    def __init__(self, claims: list[ClaimRow], end_ns: int) -> None:
        self._spans: list[tuple[int, int]] = []
        self._end_ns = end_ns
        for row in claims:
            until = end_ns + 1 if row.to_ns is None else row.to_ns
            if self._spans and row.from_ns <= self._spans[-1][1]:
                since, before = self._spans.pop()
                self._spans.append((since, max(before, until)))
            else:
                self._spans.append((row.from_ns, until))

    def cut(self, gap: Gap) -> Gap | None:
        """Return the longest part of a gap in which the topic was claimed; None if there is none."""
        end_ns = self._end_ns + 1 if gap.to_ns is None else gap.to_ns
        parts = [(max(since, gap.from_ns), min(until, end_ns)) for since, until in self._spans]
        since, until = max(parts, key=lambda part: part[1] - part[0])
        if until <= since:
            return None
        return gap._replace(from_ns=since, to_ns=None if until > self._end_ns else until)
