"""The lag of a group as a curve of the page: the records of all partitions together that were not read yet.

Laws:

* A partition counts from its first row on, with the last lag that was seen by then.
* A curve has at most as many points as the page allows: the highest of each stretch, so that no peak is lost.
"""

from __future__ import annotations

from kcoord_wire.forensics.model import GroupHistory
from kcoord_wire.report.page.group_clock import GroupClock


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
