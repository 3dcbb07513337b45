"""Stuck partition: its member is at work, and neither fetches nor commits it while its end moves (spring-kafka#4687).

Normal is that an owner which is behind the end of a partition reads it: its next request has a higher offset. An owner
that reads its other partitions and leaves one as it is has paused it, has lost it in its own state, or waits for
something of the application. A source that shows the owner reading another partition shows that at once. An owner that
reads none may be busy with a batch, so that it takes longer until that is unusual, and its Fetch requests have to be in
the source: those to a broker that was not captured are not missing.

Threshold: 10 s without a change of the owner's position, committed or fetched, behind an end that has moved; 30 s for
an owner that reads no other partition, and has fetched this one before. Critical from a minute on, if the owner reads
others and has not read the partition at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, client_of, lasting, listed, only, plural
from kcoord_wire.forensics.detectors.windows import MINUTE_NS, SECOND_NS
from kcoord_wire.forensics.model import Evidence, GroupHistory, Lag

PATIENCE_NS: Final = 10 * SECOND_NS
_IDLE_NS: Final = 30 * SECOND_NS  # as LEAST_SILENCE_NS of Burrow's STOPPED
_CRITICAL_NS: Final = MINUTE_NS
_ADVICE: Final = (
    "If the application pauses it (pause(), back pressure, retries), look at what it waits for; otherwise restart this "
    "member and update its client library."
)
_ADVICE_IDLE: Final = (
    "Its heartbeats go on, so that no rebalance takes the partitions away. Look at what the application does between "
    "two polls (a thread dump): a batch that takes long, a call without a timeout, pause() without resume()."
)


class Stuck(NamedTuple):
    """A partition whose owner has left it as it was.

    :ivar since: the first row at that position
    :ivar last: the last one
    :ivar reads_others: its owner read on elsewhere in that time
    """

    since: Lag
    last: Lag
    reads_others: bool = True

    @property
    def place(self) -> tuple[str, int]:
        return self.since.topic, self.since.partition

    @property
    def ns(self) -> int:
        return self.last.time_ns - self.since.time_ns


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for each member with such partitions."""
    by_member: dict[tuple[str, bool], list[Stuck]] = defaultdict(list)
    for each in stuck_partitions(history):
        by_member[each.since.member_id or "", each.reads_others].append(each)
    for (member_id, reads_others), found in by_member.items():
        yield _finding(history, member_id, found, reads_others)


def _finding(history: GroupHistory, member_id: str, found: list[Stuck], reads_others: bool) -> Found:
    who = next((client_of(life) for life in history.members if life.member_id == member_id), member_id)
    longest = max(found, key=lambda each: each.ns)
    names = [f"{each.since.topic}-{each.since.partition}" for each in found]
    unread = any(each.since.fetch_offset is None for each in found)
    behind = sum(each.last.end_offset - each.since.end_offset for each in found)
    last_ns = max(each.last.time_ns for each in found)
    return Found(
        severity="critical" if unread and longest.ns >= _CRITICAL_NS else "warning",
        from_ns=min(each.since.time_ns for each in found),
        to_ns=None if last_ns >= history.group.last_ns - PATIENCE_NS else last_ns,
        subject=only(names) or who,
        text=(
            f"{who} has {plural('partition', names)} {listed(names)} and does not read "
            f"{plural('it', names, 'them')}: no fetch and no commit for {lasting(longest.ns)}, in which {behind:,} "
            f"records came, while it {'read others' if reads_others else 'read nothing else and stayed a member'}."
        ),
        advice=_ADVICE if reads_others else _ADVICE_IDLE,
        value=longest.ns / SECOND_NS,
        threshold=PATIENCE_NS / SECOND_NS,
        rebalances=[],
        evidence=[_evidence(each) for each in found[:MAX_EVIDENCE]],
        suspects=(member_id,),
    )


def _evidence(stuck: Stuck) -> Evidence:
    since, last = stuck.since, stuck.last
    text = (
        f"{since.topic}-{since.partition}: end {since.end_offset:,} to {last.end_offset:,}, "
        f"committed {_known(last.committed_offset)}, fetched {_known(last.fetch_offset)}"
    )
    return Evidence(last.time_ns, "", -1, text)


def stuck_partitions(history: GroupHistory) -> list[Stuck]:
    """Return the longest time of each partition, in order of time."""
    reads = _reads(history.lag)
    longest: dict[tuple[str, int], Stuck] = {}
    running: dict[tuple[str, int], Stuck] = {}
    for row in history.lag:
        place = (row.topic, row.partition)
        before = running.get(place)
        if row.member_id is None:
            running.pop(place, None)
        elif before is None or _position(before.since) != _position(row) or row.end_offset <= (row.fetch_offset or -1):
            running[place] = Stuck(row, row)
        else:
            running[place] = now = Stuck(before.since, row)
            has_moved = row.end_offset > now.since.end_offset
            if has_moved and now.ns >= PATIENCE_NS and now.ns > longest.get(place, Stuck(row, row)).ns:
                longest[place] = now
    found = [
        each._replace(reads_others=_reads_others(reads.get(each.since.member_id or "", []), each))
        for each in longest.values()
    ]
    found = [each for each in found if each.reads_others or _is_idle(each)]
    return sorted(found, key=lambda each: (each.since.time_ns, each.place))


def _position(row: Lag) -> tuple[str | None, int | None, int | None]:
    return row.member_id, row.committed_offset, row.fetch_offset


_Reads = dict[str, list[tuple[int, tuple[str, int]]]]


def _reads(rows: list[Lag]) -> _Reads:
    """Return when each member was seen to read on, and of which partition."""
    found: _Reads = defaultdict(list)
    last: dict[tuple[str, int], tuple[str | None, int | None]] = {}
    for row in rows:
        place, now = (row.topic, row.partition), (row.member_id, row.fetch_offset)
        if row.member_id is not None and row.fetch_offset is not None and last.get(place) != now:
            found[row.member_id].append((row.time_ns, place))
        last[place] = now
    return found


def _reads_others(reads: list[tuple[int, tuple[str, int]]], stuck: Stuck) -> bool:
    """Whether the member has read on elsewhere in the second half of that time."""
    middle = stuck.since.time_ns + stuck.ns // 2
    return any(middle <= at <= stuck.last.time_ns and place != stuck.place for at, place in reads)


def _is_idle(stuck: Stuck) -> bool:
    return stuck.ns >= _IDLE_NS and stuck.since.fetch_offset is not None


def _known(offset: int | None) -> str:
    return "unknown" if offset is None else f"{offset:,}"
