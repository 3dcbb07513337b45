"""How a group does on a partition, by the rules of Burrow, from the last commits and the lag at each of them.

The rules are those of Burrow's wiki, "Consumer Lag Evaluation Rules", in its order, over a window of the last
`WINDOW` commits, at most one per second:

1. A lag of 0 in the window: OK.
2. No commit for longer than the window spans, and not everything is read: STOPPED. Here for `LEAST_SILENCE_NS` at
   least, because the window of a short source spans little.
3. The same offset in the whole window while the lag does not fall: STALLED.
4. Offsets rise, and the lag never falls from one commit to the next: WARN.
5. Otherwise OK.

With fewer than `LEAST` commits only the first two rules can be judged; if neither holds, the status is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from kcoord_wire.forensics.model import LagStatus
from kcoord_wire.forensics.wire.moments import NS_PER_S

WINDOW: Final = 10
LEAST: Final = 3
LEAST_SILENCE_NS: Final = 30 * NS_PER_S


class Committed(NamedTuple):
    """A commit.

    :ivar lag: records between it and the end at that time
    """

    time_ns: int
    offset: int
    lag: int


def lag_status(commits: Sequence[Committed], lag: int | None, now_ns: int) -> tuple[LagStatus, int | None]:
    """Return the status, and since when it holds; None for OK and UNKNOWN.

    :param commits: the last ones, in order of time; `WINDOW` of them count
    :param lag: now; None where the end is not known
    :param now_ns: the last time in the source
    """
    window = commits[-WINDOW:]
    if lag == 0:
        return LagStatus.OK, None
    if lag is None or not window:
        return LagStatus.UNKNOWN, None
    silent_ns = now_ns - window[-1].time_ns
    if silent_ns > max(window[-1].time_ns - window[0].time_ns, LEAST_SILENCE_NS):
        return LagStatus.STOPPED, window[-1].time_ns
    if any(each.lag == 0 for each in window):
        return LagStatus.OK, None
    if len(window) < LEAST:
        return LagStatus.UNKNOWN, None
    if any(after.lag < before.lag for before, after in pairwise(window)):
        return LagStatus.OK, None
    if window[0].offset == window[-1].offset:
        return LagStatus.STALLED, window[0].time_ns
    return LagStatus.WARN, window[0].time_ns
