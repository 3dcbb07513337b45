"""The lanes of a group's chart of members: one per client, with the number of its partitions as steps.

Laws:

* A lane is a client, with its successive member ids. Clients with the same name and host at the same time have separate
  lanes.
* A step is start, end, number of partitions, and an index into a list of texts that name them, or -1.
* Too many steps are merged, evenly over all lanes; a count is then the mean over its step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcoord_wire.forensics.model import GroupHistory, MemberLife, Ownership
from kcoord_wire.report.formatting import duration, name_of, partition_runs, shown
from kcoord_wire.report.page.keys import GroupClock, LaneKeys

_FOLDED_FROM: Final = 20  # lanes above which those without trouble are folded
_LATE_MS: Final = 1_000  # a member that joins so long after the others is in trouble
_OWN_ENDS: Final = ("left", "replaced")


@dataclass(slots=True)
class Lane:
    """One client over time.

    :ivar label: its name, with a number if several clients share name and host
    :ivar host: where it runs
    :ivar lives: its member ids, in order of time
    """

    label: str
    host: str
    lives: list[MemberLife] = field(default_factory=list)


def lanes_of(members: Iterable[MemberLife]) -> list[Lane]:
    """The clients in order of their first join."""
    lanes: list[Lane] = []
    of: dict[tuple[str, str], list[Lane]] = {}
    for life in sorted(members, key=lambda life: (life.joined_ns, _natural(life.member_id))):
        label = name_of(life.client_id, life.member_id, life.instance_id)
        host = shown(life.client_host, 60)
        same = of.setdefault((label, host), [])
        free = (lane for lane in same if (left := lane.lives[-1].left_ns) is not None and left <= life.joined_ns)
        lane = next(free, None)
        if lane is None:
            lane = Lane(label, host)
            same.append(lane)
            lanes.append(lane)
        lane.lives.append(life)
    for same in of.values():
        for number, lane in enumerate(same[1:], start=2):
            lane.label += f" ({number})"
    return lanes


def _natural(text: str) -> list[tuple[int, str]]:
    """A sort key that puts c2 before c10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split("([0-9]{1,9})", text[:200])]


def by_trouble(lanes: Sequence[Lane], history: GroupHistory) -> tuple[list[Lane], int]:
    """Return the lanes, where there are many those with trouble first, and how many of the last ones have none.

    Trouble is an end that the client did not choose, a rebalance that it set off by such an end or in which the others
    waited for it, and a finding about it.
    """
    if len(lanes) <= _FOLDED_FROM:
        return list(lanes), 0
    trouble = _trouble(history)
    marks = [sum(trouble[name] for name in _names_of(lane)) + _bad_ends(lane) for lane in lanes]
    order = sorted(range(len(lanes)), key=lambda at: (-marks[at], at))
    quiet = sum(not mark for mark in marks)
    return [lanes[at] for at in order], quiet if quiet < len(lanes) else 0


def _trouble(history: GroupHistory) -> Counter[str]:
    """How often members, clients and instances are named where something is wrong."""
    found: Counter[str] = Counter()
    for finding in history.findings:
        if finding.subject and finding.severity != "info":
            found[finding.subject] += 10
    for row in history.rebalances:
        late = row.late_ms is not None and row.late_ms >= _LATE_MS and row.last_member_id
        if late and row.last_member_id:
            found[row.last_member_id] += 1
        for gone in row.removed:
            found[gone.member_id] += gone.why not in _OWN_ENDS
    return found


def _names_of(lane: Lane) -> set[str]:
    names = {lane.label}
    for life in lane.lives:
        host = f" at {life.client_host}" if life.client_host else ""
        names |= {life.member_id, life.instance_id or "", life.client_id or "", f"{life.client_id}{host}"}
    return names - {""}


def _bad_ends(lane: Lane) -> int:
    return sum(life.why_left is not None and life.why_left not in _OWN_ENDS for life in lane.lives)


def held_ns(lane: Lane, last_ns: int) -> int:
    """How long the client was a member."""
    return sum((last_ns if life.left_ns is None else life.left_ns) - life.joined_ns for life in lane.lives)


def lane_row(lane: Lane, clock: GroupClock, lives: int, dead: Sequence[list[float]] = ()) -> LaneKeys:
    """The JSON of a lane, with the last `lives` member ids.

    :param dead: see `dead_spans`
    """
    last = lane.lives[-1]
    about = [
        f"instance {shown(last.instance_id, 60)}" if last.instance_id else "",
        f"library {shown(last.software or last.library, 80)}" if last.software or last.library else "",
        f"protocol {shown(last.protocol, 20)}",
        f"assignors {shown(', '.join(last.assignors))}" if last.assignors else "",
        f"topics {shown(', '.join(last.topics))}" if last.topics else "",
    ]
    return {
        "label": lane.label,
        "host": lane.host,
        "about": "; ".join(filter(None, about)),
        "lives": [
            [clock.ms(life.joined_ns), clock.end(life.left_ns), shown(life.why_left, 40), shown(life.member_id)]
            for life in lane.lives[-lives:]
        ],
        "dead": list(dead),
    }


def dead_spans(history: GroupHistory, lanes: Sequence[Lane], clock: GroupClock, room: int) -> list[list[list[float]]]:
    """Of each lane, the last times in which its client was dead while the coordinator took it for an owner.

    :param room: the most of a lane
    :return: per lane, start, end and number of partitions of each
    """
    spans: list[list[list[float]]] = []
    for rows in _by_lane(history.ownership, lanes):
        held = Counter((row.dead_from_ns, row.to_ns) for row in rows if row.dead_from_ns is not None)
        found = [[clock.ms(begin), clock.end(end), count] for (begin, end), count in held.items()]
        spans.append(sorted(found)[-room:])
    return spans


def ownership_of(
    history: GroupHistory, lanes: Sequence[Lane], clock: GroupClock, room: int, chars: int, cut: list[str]
) -> tuple[list[list[float]], list[str]]:
    """The steps of each lane, flattened, and the texts of their partitions.

    :param room: the most steps, over all lanes
    :param chars: the most characters of all texts
    :param cut: receives a sentence for each simplification
    """
    owned = _by_lane(history.ownership, lanes)
    steps = [_steps(rows, clock) for rows in owned]
    count, width = sum(map(len, steps)), 0.0
    while sum(map(len, steps)) > room:
        width = 1.4 * width or max(1.0, clock.ms(clock.last) / 5000)
        steps = [_coarser(lane, width) for lane in steps]
    if width:
        cut.append(
            f"{len(history.ownership):,} intervals of ownership make {count:,} steps, too many for a page: those "
            f"shorter than {duration(width)} are merged with their neighbours."
        )
    texts = _Texts(chars)
    bars: list[list[float]] = []
    for lane in steps:
        bars.append([value for start, end, held, places in lane for value in (start, end, held, texts.index(places))])
    if texts.used > chars * 0.9:
        cut.append("Only some bars list their partitions; all have their number.")
    return bars, list(texts.indices)


def _by_lane(ownership: Iterable[Ownership], lanes: Sequence[Lane]) -> list[list[Ownership]]:
    lane_of = {life.member_id: at for at, lane in enumerate(lanes) for life in lane.lives}
    rows: list[list[Ownership]] = [[] for _ in lanes]
    for row in ownership:
        if row.member_id in lane_of:
            rows[lane_of[row.member_id]].append(row)
    return rows


class _Texts:
    """The texts of sets of partitions, up to a number of characters.

    :ivar indices: index of each text, in order
    :ivar used: characters of all texts
    """

    def __init__(self, room: int) -> None:
        self.indices: dict[str, int] = {}
        self.used = 0
        self._room = room

    def index(self, places: Iterable[tuple[str, int]] | None) -> int:
        """The index of a set's text; -1 for a merged step, or if there is no room for the text."""
        text = None if places is None else partition_runs(places)
        if text is None or (text not in self.indices and self.used + len(text) > self._room):
            return -1
        if text not in self.indices:
            self.used += len(text)
            self.indices[text] = len(self.indices)
        return self.indices[text]


_Step = tuple[float, float, float, "frozenset[tuple[str, int]] | None"]
"""Start, end, number of partitions, and which; None for a merged step."""


def _steps(rows: Sequence[Ownership], clock: GroupClock) -> list[_Step]:
    """The intervals with the same partitions. At one moment, ends come before starts."""
    events: dict[float, list[tuple[bool, tuple[str, int]]]] = {}
    for row in rows:
        place = (row.topic, row.partition)
        events.setdefault(clock.ms(row.from_ns), []).append((True, place))
        until_ns = row.to_ns if row.dead_from_ns is None else row.dead_from_ns
        events.setdefault(clock.end(until_ns), []).append((False, place))
    held: dict[tuple[str, int], int] = {}
    result: list[_Step] = []
    since = 0.0
    for moment in sorted(events):
        places = frozenset(place for place, times in held.items() if times > 0)
        if places and moment > since:
            if result and result[-1][1] == since and result[-1][3] == places:
                since = result.pop()[0]
            result.append((since, moment, len(places), places))
        since = moment
        for begins, place in events[moment]:
            held[place] = held.get(place, 0) + (1 if begins else -1)
            if not held[place]:
                del held[place]
    return result


def _coarser(steps: Sequence[_Step], width: float) -> list[_Step]:
    """Merge steps narrower than `width` with their neighbours; the count is the mean."""
    result: list[_Step] = []
    for start, end, held, places in steps:
        if result:
            before, until, mean, _ = result[-1]
            if start - until < width and min(until - before, end - start) < width:
                whole = end - before
                total = mean * (until - before) + held * (end - start)
                result[-1] = (before, end, round(total / whole, 1) if whole else held, None)
                continue
        result.append((start, end, held, places))
    return result
