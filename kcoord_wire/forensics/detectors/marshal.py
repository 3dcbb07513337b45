"""Groups of Marshal: their clocks, client ids, and partitions without a claim."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from kcoord_wire.forensics.detectors.finding import SECOND_NS, DetectorResult, Seen, client_of, detector, plural
from kcoord_wire.forensics.model import NS_PER_MS, ClaimRow, Evidence, GroupHistory, MemberLife
from kcoord_wire.protocol.wording import first_of

# ---- client id reuse

THRESHOLD_NS: Final = 5 * SECOND_NS


@detector(60, origin="marshal")
def client_id_reuse(seen: Seen) -> Iterator[DetectorResult]:
    """Client id reuse: two live instances of a Marshal group have one client id.

    The Go library takes a claim for its own by group and client id. Two processes with one client id both consume what
    either of them holds; and whichever sends a heartbeat last is the holder. Normal is one instance after the other: a
    restart keeps the client id, and the instance id is new.

    Threshold: they are heard of at the same time for 5 s. That long a message of a stopped process may be under way
    (the library's timeout of a produce request).
    """
    lives: dict[str, list[MemberLife]] = defaultdict(list)
    for life in sorted(seen.history.members, key=lambda life: life.joined_ns):
        lives[life.client_id or ""].append(life)
    for client_id, instances in lives.items():
        together = list(_together(instances))
        if together:
            yield _client_id_reuse_found(seen.history, client_id, instances, together)


def _together(instances: list[MemberLife]) -> Iterator[tuple[int, int]]:
    """Yield the intervals of two instances at a time, each with the one before that was heard of longest."""
    longest = instances[0]
    for life in instances[1:]:
        until = min(longest.last_seen_ns, life.last_seen_ns)
        if until - life.joined_ns >= THRESHOLD_NS:
            yield life.joined_ns, until
        longest = max(longest, life, key=lambda each: each.last_seen_ns)


def _client_id_reuse_found(
    history: GroupHistory, client_id: str, instances: list[MemberLife], together: list[tuple[int, int]]
) -> DetectorResult:
    ids = {life.member_id for life in instances}
    longest = max(until - since for since, until in together)
    return DetectorResult(
        severity="critical",
        from_ns=together[0][0],
        to_ns=max(until for _, until in together),
        subject=client_id,
        text=f"{client_id or 'the empty client id'} was used by several instances at a time, for "
        f"{longest / SECOND_NS:.0f} s: with the Go library each of them consumes what any of them holds",
        advice="Give each process of a group a client id of its own, one that it keeps when it is restarted.",
        value=longest / SECOND_NS,
        threshold=THRESHOLD_NS / SECOND_NS,
        rebalances=[row.number for row in history.rebalances if row.member_id in ids],
        evidence=(
            Evidence(life.joined_ns, "", -1, f"instance {life.member_id} is heard of for the first time")
            for life in instances
        ),
    )


# ---- clock skew

AHEAD_MS: Final = 2000
BEHIND_MS: Final = 5000


@detector(72, origin="marshal")
def clock_skew(seen: Seen) -> Iterator[DetectorResult]:
    """Clock skew: a member of a Marshal group whose clock is ahead of the others', or behind.

    The Go library judges a claim by the time in its last heartbeat and the clock of the reader. A claim whose time is
    ahead of the reader's clock is no claim to it: another member takes the partition at once. One that is behind
    becomes stale early: the holder stops by its own clock one interval after its last heartbeat, and others claim after
    two, so a clock that is behind by an interval leaves no margin.

    Times in messages are whole seconds, rounded down, so a right clock is never ahead of the broker's append time.

    Thresholds: 2 s ahead: within that, brokers, too, differ from each other, and times that follow from the other
    members of a group are inexact. 5 s behind: that long a heartbeat may be under way (the library's timeout of a
    produce request).
    """
    for life in seen.history.members:
        ahead = life.clock_ahead_ms
        if ahead is not None and (ahead >= AHEAD_MS or -ahead >= BEHIND_MS):
            yield _clock_skew_found(seen.history, life, ahead)


def _clock_skew_found(history: GroupHistory, life: MemberLife, ahead: int) -> DetectorResult:
    threshold = AHEAD_MS if ahead > 0 else BEHIND_MS
    amount = f"{abs(ahead) / 1000:.1f} s {'ahead' if ahead > 0 else 'behind'}"
    effect = (
        "members with the Go library do not see its claims until their clocks are there, and take its partitions"
        if ahead > 0
        else "for members with the Go library its claims are stale so much earlier"
    )
    has_margin = ahead < 0 and -2 * ahead < (life.session_timeout_ms or 0)
    is_harmful = history.group.protocol_type == "marshal library" and not has_margin
    return DetectorResult(
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


# ---- unclaimed partitions, although others of their topic are claimed
#
# No member reads them. Normal is that a partition is claimed within seconds after it was released or has become stale:
# members look for partitions every three seconds. A group that is paused (ReleaseGroup), or has no member left, is
# stopped on purpose, and is not reported. Threshold: one heartbeat interval. The Go library leaves a partition alone
# for that long (60 s) after it has released it.


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


@detector(52, origin="marshal")
def unclaimed_partition(seen: Seen) -> Iterator[DetectorResult]:
    """Unclaimed partition: it had no claim for a while, or never had one although larger numbers of its topic had."""
    return _free_partitions(seen.history, is_given_up=False)


@detector(53, origin="marshal")
def released_not_reclaimed(seen: Seen) -> Iterator[DetectorResult]:
    """Released and not reclaimed: it was given up, and has no holder at the end of the log.

    The Go library releases what it cannot keep up with; then either no member has room for it, or each of them has
    given it up.
    """
    return _free_partitions(seen.history, is_given_up=True)


def _free_partitions(history: GroupHistory, *, is_given_up: bool) -> Iterator[DetectorResult]:
    """Yield one result per topic."""
    for topic, gaps in _long_gaps(history):
        if mine := [gap for gap in gaps if gap.is_given_up is is_given_up]:
            result = free_partitions(topic, mine, history.group.last_ns, interval_ns(history))
            yield result._replace(rebalances=_rebalances(history, topic, mine))


def free_partitions(topic: str, gaps: list[Gap], end_ns: int, limit_ns: int) -> DetectorResult:
    """Return the result about gaps of a topic, all of partitions that were given up or none.

    :param end_ns: until when those last that have no end
    :param limit_ns: from which length on gaps are reported
    """
    longest = max(_lasted_ns(gap, end_ns) for gap in gaps)
    numbers = sorted({gap.partition for gap in gaps})
    names = first_of([f"{topic}-{number}" for number in numbers])
    is_open = any(gap.to_ns is None for gap in gaps)
    if gaps[0].is_given_up:
        by = first_of(sorted({gap.last.client_id for gap in gaps if gap.last is not None}))
        what = f"{plural('was', gaps, 'were')} released by {by} and not claimed again"
        advice = (
            "A member releases what it cannot keep up with, and the others have no room or gave it up, too: add "
            "members, raise MaximumClaims, or look why its records are slow."
        )
    else:
        what = "had no claim, although others of the topic were claimed"
        advice = (
            "No member read them meanwhile. Look whether the members may claim more (MaximumClaims), and whether one "
            "of them reuses a client id."
        )
    return DetectorResult(
        severity="critical" if is_open else "warning",
        from_ns=min(gap.from_ns for gap in gaps),
        to_ns=None if is_open else max(gap.to_ns or 0 for gap in gaps),
        subject=topic,
        text=f"{len(numbers)} {plural('partition', numbers)} {what}: {names}, for {longest / SECOND_NS:.0f} s at most",
        advice=advice,
        value=longest / SECOND_NS,
        threshold=limit_ns / SECOND_NS,
        evidence=(_evidence(topic, gap) for gap in gaps),
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
