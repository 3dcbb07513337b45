"""Frozen member: a member sends nothing for much longer than its heartbeat interval, and then it goes on.

The process stood still (garbage collection, a paused VM or container, a CPU limit) or its network carried nothing; it
did not die, for the same member id sends again. A gap counts from the last response on, so that a member that waits
for its JoinGroup, or for a broker that does not answer, is not silent. Others have to send meanwhile: else the
capture paused, or the broker.

Threshold: three of the member's own heartbeat intervals, and three seconds. Warning where half of the session timeout
passed, or where the coordinator had removed the member when it went on; else info.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, client_of, lasting, listed, only, person
from kcoord_wire.forensics.detectors.windows import SECOND_NS
from kcoord_wire.forensics.model import NS_PER_MS, Evidence, GroupHistory, MemberLife

INTERVALS: Final = 3
LEAST_NS: Final = 3 * SECOND_NS
_BEATS: Final = 4  # heartbeats from which on their interval is known
_LEAST_OTHERS: Final = 2  # requests of other members meanwhile
_BEATING: Final = ["Heartbeat", "ConsumerGroupHeartbeat"]


class _Gap(NamedTuple):
    """A silence of a member."""

    life: MemberLife
    from_ns: int
    to_ns: int
    interval_ns: float

    @property
    def ns(self) -> int:
        return self.to_ns - self.from_ns

    @property
    def was_removed(self) -> bool:
        return self.life.left_ns is not None and self.life.left_ns <= self.to_ns

    @property
    def is_long(self) -> bool:
        return self.was_removed or 2 * self.ns >= (self.life.session_timeout_ms or 0) * NS_PER_MS > 0


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for each severity."""
    if exchanges is None or not exchanges.num_rows:
        return
    asked = exchanges.filter(pc.and_(pc.is_valid(exchanges["asked_ns"]), pc.not_equal(exchanges["member_id"], "")))
    if not asked.num_rows:
        return
    times = np.sort(asked["asked_ns"].to_numpy())
    own = _by_member(asked)
    gaps = [
        gap
        for life in history.members
        if life.member_id in own
        for gap in _gaps(life, *own[life.member_id])
        if _others_sent(times, gap, own[life.member_id][0])
    ]
    for is_long in (True, False):
        if found := [gap for gap in gaps if gap.is_long is is_long]:
            yield _finding(history, found, "warning" if is_long else "info")


def _by_member(asked: pa.Table) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]]:
    """Return of each member when it asked, when that was answered (else asked), and which of it are heartbeats."""
    rows = asked.select(["member_id", "asked_ns"])
    rows = rows.append_column("done_ns", pc.coalesce(asked["answered_ns"], asked["asked_ns"]))
    rows = rows.append_column("beats", pc.is_in(asked["api"], value_set=pa.array(_BEATING)))
    rows = rows.sort_by([("member_id", "ascending"), ("asked_ns", "ascending")])
    names, starts = np.unique(rows["member_id"].to_numpy(zero_copy_only=False).astype(str), return_index=True)
    columns: list[Any] = [rows[name].to_numpy(zero_copy_only=False) for name in ("asked_ns", "done_ns", "beats")]
    parts = zip(names.tolist(), *(np.split(column, starts[1:]) for column in columns), strict=True)
    return {name: (asked_ns, done_ns, beats) for name, asked_ns, done_ns, beats in parts}


def _gaps(
    life: MemberLife, asked: NDArray[np.int64], done: NDArray[np.int64], beats: NDArray[np.bool_]
) -> Iterator[_Gap]:
    times = asked[beats]
    if len(times) < _BEATS:
        return
    interval = float(np.median(np.diff(times)))
    silent = asked[1:] - np.maximum.accumulate(done)[:-1]
    for at in np.flatnonzero(silent >= max(INTERVALS * interval, LEAST_NS)).tolist():
        from_ns, to_ns = int(asked[at + 1] - silent[at]), int(asked[at + 1])
        if life.joined_ns <= from_ns and (life.left_ns is None or from_ns < life.left_ns):
            yield _Gap(life, from_ns, to_ns, interval)


def _others_sent(times: NDArray[np.int64], gap: _Gap, own: NDArray[np.int64]) -> bool:
    """Whether other members sent requests in a gap."""
    first, last = np.searchsorted(times, [gap.from_ns, gap.to_ns], side="left")
    mine = np.searchsorted(own, [gap.from_ns, gap.to_ns], side="left")
    return bool((last - first) - (mine[1] - mine[0]) >= _LEAST_OTHERS)


def _finding(history: GroupHistory, gaps: list[_Gap], severity: str) -> Found:
    worst = max(gaps, key=lambda gap: gap.ns)
    names = sorted({person(gap.life.client_id, gap.life.client_host) for gap in gaps})
    end = ", when the coordinator had removed it" if worst.was_removed else ""
    more = f"; {len(gaps)} such pauses ({listed(names)})" if len(gaps) > 1 else ""
    return Found(
        severity=severity,
        from_ns=min(gap.from_ns for gap in gaps),
        to_ns=max(gap.to_ns for gap in gaps),
        subject=only(sorted({client_of(gap.life) for gap in gaps})),
        text=f"{person(worst.life.client_id, worst.life.client_host)} was silent for {lasting(worst.ns)}, with a "
        f"heartbeat every {lasting(worst.interval_ns)} before, and then went on as the same process{end}: it was "
        f"frozen, or its network carried nothing{more}",
        advice="Look at that process and host at that time: garbage collection, a paused or migrated VM, a container "
        "without CPU, a suspended laptop, the network. The process did not end, so its own log has a gap as well.",
        value=worst.ns / NS_PER_MS,
        threshold=max(INTERVALS * worst.interval_ns, LEAST_NS) / NS_PER_MS,
        rebalances=[
            row.number
            for row in history.rebalances
            if any(gap.life.member_id in [gone.member_id for gone in row.removed] for gap in gaps if gap.was_removed)
        ],
        evidence=[
            Evidence(gap.to_ns, "", -1, f"{client_of(gap.life)} goes on after {lasting(gap.ns)}")
            for gap in gaps[:MAX_EVIDENCE]
        ],
    )
