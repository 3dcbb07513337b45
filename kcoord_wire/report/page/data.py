"""The data of the page: small enough for a browser, with a sentence on everything that was left out.

Laws:

* Its keys are those of `kcoord_wire.report.page.keys`. Every string of a peer is made printable and short here.
* `cut` has a sentence on everything that is left out or simplified; the tables of the analysis are complete.
* The same histories have the same data, in the same order.
* The lag of a group is a curve, of all partitions together. A partition counts from its first row on, with the last lag
  that was seen by then.
* A curve has at most as many points as the page allows: the highest of each stretch, so that no peak is lost.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Evidence, GroupHistory, Loss, Rebalance
from kcoord_wire.protocol.wording import counted
from kcoord_wire.report.digest import Card, Digest, awaited, cards_of, digests, lag_sentence, nameless
from kcoord_wire.report.formatting import duration, file_name, name_if_known, name_of, period, place_text, shown, utc
from kcoord_wire.report.page.keys import (
    OTHER,
    FindingKeys,
    GroupClock,
    GroupKeys,
    PageKeys,
    RebalanceKeys,
)
from kcoord_wire.report.page.lanes import Lane, by_trouble, dead_spans, held_ns, lane_row, lanes_of, ownership_of


def lag_curve(history: GroupHistory, clock: GroupClock, points: int) -> list[list[float]]:
    """Return [time, records] at each change, and at the group's end; empty where no lag is known."""
    last: dict[tuple[str, int], int] = {}
    total = 0
    curve: list[list[float]] = []
    for row in history.lag:
        if row.lag is None:
            continue
        place, at = (row.topic, row.partition), clock.ms(row.time_ns)
        total += row.lag - last.get(place, 0)
        last[place] = row.lag
        if curve and curve[-1][0] == at:
            curve[-1][1] = total
        else:
            curve.append([at, total])
    if not curve:
        return []
    if len(curve) > points:
        size = -(-len(curve) // points)
        highest = (max(curve[at : at + size], key=lambda point: point[1]) for at in range(0, len(curve), size))
        curve = [*highest]
    return [*curve, [max(clock.ms(clock.last), curve[-1][0]), total]]


_REMOVED: Final = 20  # members that a rebalance lists as removed
_OF_FINDING: Final = 40  # rebalances that a finding lists


@dataclass(frozen=True, slots=True)
class PageLimits:
    """The size of a page, over all its groups; the worst groups first."""

    groups: int = 200
    rebalances: int = 3000
    evidence: int = 5  # of one rebalance
    lanes: int = 400  # of one group
    outages: int = 200  # of one group
    lives: int = 6000  # of one group: member ids
    steps: int = 60_000  # of all lanes
    held_chars: int = 800_000  # of the texts that list partitions
    points: int = 10_000  # of one curve
    findings: int = 200  # of one group
    losses: int = 200


def page_data(
    histories: Sequence[GroupHistory],
    losses: Sequence[Loss],
    *,
    title: str,
    source: str,
    limits: PageLimits | None = None,
) -> PageKeys:
    """The data of the page, ready for `json.dumps`.

    :param title: of the page
    :param source: a description of the sources
    """
    limits = limits or PageLimits()
    found = digests(histories)
    kept = found[: limits.groups]
    cut = []
    if len(found) > len(kept):
        cut.append(f"{counted(len(found) - len(kept), 'quieter group')} of {len(found):,} are not in this page.")
    shares = _shares([len(d.history.rebalances) for d in kept], limits.rebalances)
    step_shares = _shares([len(d.history.ownership) for d in kept], limits.steps)
    chars = limits.held_chars // max(1, len(kept))
    return {
        "title": shown(title),
        "source": shown(source, 400),
        "groups": [
            _group(digest, limits, rows, steps, chars)
            for digest, rows, steps in zip(kept, shares, step_shares, strict=True)
        ],
        "causes": {str(cause): {"colour": cause.facts.colour, "about": cause.facts.about} for cause in Cause},
        "other": OTHER,
        "cut": cut,
        "losses": [
            {"source": shown(loss.source), "at": loss.position, "what": shown(loss.what, 300), "bytes": loss.bytes,
             "count": loss.count}
            for loss in losses[: limits.losses]
        ],
        "lost": {
            "places": len(losses), "count": sum(loss.count for loss in losses),
            "bytes": sum(loss.bytes for loss in losses),
        },
    }  # fmt: skip


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """Divide the room: small demands are met, large ones get equal parts of the rest."""
    result = [0] * len(wanted)
    left = room
    for rank, at in enumerate(sorted(range(len(wanted)), key=lambda at: wanted[at])):
        result[at] = min(wanted[at], left // (len(wanted) - rank))
        left -= result[at]
    return result


def _group(digest: Digest, limits: PageLimits, rebalances: int, steps: int, chars: int) -> GroupKeys:
    history, group, clock = digest.history, digest.history.group, GroupClock(digest.history)
    cut: list[str] = []
    kept = _longest(digest, rebalances, cut)
    clients = lanes_of(history.members)
    lanes, folded = by_trouble(_most_present(clients, group.last_ns, limits.lanes, cut), history)
    lives = max(1, limits.lives // max(1, len(lanes)))
    if any(len(lane.lives) > lives for lane in lanes):
        cut.append(f"Of clients with more than {counted(lives, 'member id')} the last {lives:,} are in this page.")
    bars, held = ownership_of(history, lanes, clock, max(steps, 500), chars, cut)
    cards = cards_of(history.findings)
    if len(cards) > limits.findings:
        cut.append(f"Of {len(cards):,} findings the {limits.findings:,} worst are in this page.")
    return {
        "id": shown(group.group_id, 200) or nameless(group),
        "origin": digest.origin,
        "severity": shown(digest.severity, 20),
        "headline": digest.headline.text,
        "sentence": digest.sentence,
        "first": clock.first / 1e6,
        "span": clock.ms(clock.last),
        "period": period(clock.first, clock.last),
        "total": len(history.rebalances),
        "rebalancing": round(digest.rebalancing_ms, 3),
        "paused": _rounded(digest.paused_ms),
        "moved": digest.moved,
        "needless": digest.needless,
        "unfinished": digest.unfinished,
        "members": len(history.members),
        "clients": len(clients),
        "worst": None if digest.worst is None else digest.worst.number,
        "causes": [
            [shown(c.cause, 60), c.count, round(c.duration_ms, 1), round(c.paused_ms, 1)] for c in digest.causes
        ],
        "culprits": [[c.name, c.host, c.set_off, c.last, round(c.late_ms, 1), c.removed] for c in digest.culprits[:8]],
        "rebalances": [_rebalance(row, digest.lengths[row.number], clock, limits) for row in kept],
        "lanes": [
            lane_row(lane, clock, lives, dead)
            for lane, dead in zip(lanes, dead_spans(history, lanes, clock, lives), strict=True)
        ],
        "folded": folded,
        "outages": [
            [clock.ms(row.from_ns), clock.end(row.to_ns), shown(row.kind, 40), shown(row.text, 400)]
            for row in history.outages[: limits.outages]
        ],
        "bars": bars,
        "held": held,
        "lag": lag_curve(history, clock, limits.points),
        "behind": lag_sentence(history) or "",
        "pauses": _pauses(history, clock, limits.points, cut),
        "commits": _commits(history, clock, limits.points, cut),
        "interval": _interval_s(history, limits.points),
        "findings": [_finding(card, clock) for card in cards[: limits.findings]],
        "blind": [shown(sentence, 400) for sentence in group.blind],
        "cut": cut,
    }


def _longest(digest: Digest, room: int, cut: list[str]) -> list[Rebalance]:
    """The rebalances that took longest, in order of time."""
    rows = digest.history.rebalances
    if len(rows) <= room:
        return rows
    cut.append(f"Of {len(rows):,} rebalances the {room:,} that took longest are in this page.")
    longest = sorted(rows, key=lambda row: (-(digest.lengths[row.number] or 0.0), row.number))[:room]
    return sorted(longest, key=lambda row: row.number)


def _most_present(lanes: list[Lane], last_ns: int, room: int, cut: list[str]) -> list[Lane]:
    """The clients that were members longest, in their order."""
    if len(lanes) <= room:
        return lanes
    cut.append(f"Of {len(lanes):,} clients the {room:,} that were members longest have a lane.")
    chosen = sorted(range(len(lanes)), key=lambda at: -held_ns(lanes[at], last_ns))[:room]
    return [lanes[at] for at in sorted(chosen)]


def _rebalance(row: Rebalance, length: float | None, clock: GroupClock, limits: PageLimits) -> RebalanceKeys:
    start, wait = clock.ms(row.started_ns), awaited(row)
    joined = None if row.joined_ns is None else clock.ms(row.joined_ns)
    every: dict[str, Any] = {
        "n": row.number,
        "gen": row.generation_id,
        "start": start,
        "joined": joined,
        "end": (joined or start) if length is None else round(start + length, 3),
        "iso": utc(row.started_ns, digits=3),
        "outcome": shown(row.outcome, 20),
        "cause": shown(str(row.cause), 60),
        "who": name_if_known(row.client_id, row.member_id, row.instance_id),
        "member": shown(row.member_id),
        "host": shown(row.client_host, 60),
        "reason": shown(row.reason, 300),
        "detail": shown(row.detail, 400),
        "sure": round(row.confidence, 3) if math.isfinite(row.confidence) else 0.0,
        "evidence": _evidence(row.evidence, clock, limits),
        "assignor": shown(row.assignor, 60),
        "leader": shown(row.leader_id),
        "cooperative": row.cooperative,
        "took": _rounded(length),
        "joining": _rounded(row.joining_ms),
        "syncing": _rounded(row.syncing_ms),
        "last": wait.name if wait else "",
        "lastHost": wait.host if wait else "",
        "late": _rounded(wait.ms) if wait else None,
        "how": wait.how if wait else "",
        "before": row.members_before,
        "after": row.members_after,
        "moved": row.moved,
        "needless": row.moved_needlessly,
        "paused": _rounded(row.paused_ms),
        "removed": [
            [name_of(gone.client_id, gone.member_id), shown(gone.client_host, 60), shown(gone.why, 60)]
            for gone in row.removed[:_REMOVED]
        ],
        "moreRemoved": max(0, len(row.removed) - _REMOVED),
        "moreEvidence": max(0, len(row.evidence) - limits.evidence),
    }
    known = {key: value for key, value in every.items() if value not in (None, "", [], 0) or key in ("start", "end")}
    return cast(RebalanceKeys, known)


def _rounded(ms: float | None) -> float | None:
    return None if ms is None or not math.isfinite(ms) else round(ms, 1)


def _evidence(rows: Sequence[Evidence], clock: GroupClock, limits: PageLimits) -> list[Any]:
    return [
        [clock.ms(row.time_ns), file_name(row.source), place_text(row), shown(row.text, 300)]
        for row in rows[: limits.evidence]
    ]


def _finding(card: Card, clock: GroupClock) -> FindingKeys:
    row, rebalances = card.first, card.rebalances
    return {
        "detector": shown(row.detector, 60),
        "severity": shown(row.severity, 20),
        "start": clock.ms(row.from_ns),
        "end": clock.end(card.to_ns),
        "text": shown(row.text, 600),
        "alike": shown(card.more, 400),
        "advice": shown(row.advice, 600),
        "value": row.value if math.isfinite(row.value) else None,
        "threshold": row.threshold if math.isfinite(row.threshold) else None,
        "rebalances": rebalances[:_OF_FINDING],
        "more": max(0, len(rebalances) - _OF_FINDING),
    }


# ---- curves


def _pauses(history: GroupHistory, clock: GroupClock, points: int, cut: list[str]) -> list[list[float]]:
    """The number of partitions without an owner: a point where it changes."""
    changes: dict[float, int] = {}
    for pause in history.pauses:
        for ns, change in ((pause.from_ns, 1), (pause.to_ns, -1)):
            if ns is not None:
                changes[clock.ms(ns)] = changes.get(clock.ms(ns), 0) + change
    curve: list[list[float]] = [[0, 0]]
    for moment in sorted(changes):
        if changes[moment]:
            curve.append([moment, curve[-1][1] + changes[moment]])
    curve.append([clock.ms(clock.last), curve[-1][1]])
    if len(curve) <= points:
        return curve
    width = clock.ms(clock.last) * 2 / points
    cut.append(f"The curve of paused partitions shows the highest number of every {duration(width)}.")
    return _highest(curve, width)


def _highest(curve: Sequence[Sequence[float]], width: float) -> list[list[float]]:
    """The highest value of the curve in each window of `width`."""
    moments = [point[0] for point in curve]
    result = []
    for at in range(int(curve[-1][0] / width) + 1):
        first, last = bisect_right(moments, at * width) - 1, bisect_right(moments, (at + 1) * width)
        result.append([round(at * width, 3), max(point[1] for point in curve[max(first, 0) : last])])
    return result


def _commits(history: GroupHistory, clock: GroupClock, points: int, cut: list[str]) -> list[list[float]]:
    """Per interval: its start, the records that the commits advanced by, commits, refused ones; then an end."""
    intervals: dict[int, list[int]] = {}
    reached: dict[tuple[str, int], int] = {}
    for row in history.commits:
        place = (row.topic, row.partition)
        records = max(0, row.last_offset - reached.get(place, row.first_offset))
        reached[place] = row.last_offset
        sums = intervals.setdefault(row.from_ns, [0, 0, 0])
        for at, value in enumerate((records, row.commits, row.errors)):
            sums[at] += value
    if not intervals:
        return []
    size_ns = _interval_s(history, points) * 1_000_000_000
    if size_ns > history.commits[0].interval_s * 1_000_000_000:
        cut.append(f"Commits are summed over {duration(size_ns / 1e6)}.")
    rows: dict[int, list[int]] = {}
    for at_ns in sorted(intervals):
        start = at_ns // size_ns * size_ns
        for edge in (start, start + size_ns):  # an interval without commits ends a step at zero
            rows.setdefault(edge, [0, 0, 0])
        rows[start] = [a + b for a, b in zip(rows[start], intervals[at_ns], strict=True)]
    return [[clock.ms(start), *row] for start, row in sorted(rows.items())]


def _interval_s(history: GroupHistory, points: int) -> int:
    """The length of the intervals in which the page sums commits, in seconds: so that there are at most `points`."""
    if not history.commits:
        return 60
    times = [row.from_ns for row in history.commits]
    each = history.commits[0].interval_s
    return each * (1 + (max(times) - min(times)) // (each * 1_000_000_000) // points)
