"""Deploy: the members of a group are replaced, one after another or all at once.

A rolling restart costs each member two rebalances, which need no action; what counts is what it cost, and what
it would have cost with static members (KIP-345). A member is replaced where it left in order and another with its
client id (or, as pods have, with the same id but for the part behind its last separator) joined within five minutes, or
had joined within five minutes before. Members that come back again and again are `flapping_member`.

Threshold: two members or more replaced, and half of those that were there at least, no two replacements further apart
than five minutes; always info. Not in the text of logs: clients that state no reason leave in the same words after
max.poll.interval.ms, and what a deploy cost is not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, client_of, lasting, listed, plural
from kcoord_wire.forensics.detectors.windows import MINUTE_NS
from kcoord_wire.forensics.model import NS_PER_MS, Evidence, GroupHistory, MemberLife, Rebalance

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD: Final = 2
APART_NS: Final = 5 * MINUTE_NS
_SUFFIX: Final = re.compile(r"[-_.][0-9a-zA-Z]*$|[0-9]+$")


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A member that left, and the one that came for it."""

    old: MemberLife
    new: MemberLife
    partitions: int

    @property
    def left_ns(self) -> int:
        return self.old.left_ns or self.old.last_seen_ns

    @property
    def down_ns(self) -> int:
        return max(0, self.new.joined_ns - self.left_ns)


def stem(client_id: str | None) -> str:
    """Return a client id without its last part: ``web-7d4f`` and ``web-2`` are both ``web``."""
    return _SUFFIX.sub("", client_id or "")


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per deploy."""
    if history.group.origin == "text":
        return
    for pairs in _runs(_replaced(history)):
        names = {client_of(pair.old) for pair in pairs}
        before = [
            life
            for life in history.members
            if life.joined_ns <= pairs[0].left_ns and (life.left_ns is None or life.left_ns >= pairs[0].left_ns)
        ]
        count = len(names) if len(names) > 1 else len(pairs)  # all instances may have one client id
        if count >= THRESHOLD and 2 * count >= len(before):
            yield _deploy(history, pairs, count, max(count, len(before)))


def _replaced(history: GroupHistory) -> list[_Replaced]:
    """Return the members that left in order, each with the one that took its place."""
    held: dict[str, list[tuple[int, int | None]]] = {}
    for row in history.ownership:
        held.setdefault(row.member_id, []).append((row.from_ns, row.to_ns))
    came = sorted(history.members, key=lambda life: life.joined_ns)
    taken: set[str] = set()
    found = []
    for old in sorted(came, key=lambda life: life.left_ns or 0):
        if old.left_ns is None or old.why_left != "left":
            continue
        new = _successor(old, came, taken)
        if new is not None:
            taken.add(new.member_id)
            ends = [to_ns for _, to_ns in held.get(old.member_id, ()) if to_ns is None or to_ns >= old.left_ns]
            found.append(_Replaced(old, new, len(ends) or _last_held(held.get(old.member_id, ()))))
    return found


def _last_held(rows: Iterable[tuple[int, int | None]]) -> int:
    """Return how many partitions a member held last: those of its latest assignment."""
    starts = [from_ns for from_ns, _ in rows]
    return starts.count(max(starts)) if starts else 0


def _successor(old: MemberLife, came: Sequence[MemberLife], taken: set[str]) -> MemberLife | None:
    """Return the member that came for one that left: with its client id after it, else with a new one alike."""
    left_ns = old.left_ns or 0
    near = [life for life in came if old.joined_ns < life.joined_ns and abs(life.joined_ns - left_ns) <= APART_NS]
    near = [life for life in near if life.member_id not in taken]
    same = [life for life in near if life.client_id == old.client_id and life.joined_ns >= left_ns]
    alike = [life for life in near if stem(life.client_id) == stem(old.client_id) and _is_new(life, came)]
    return min(same or alike, key=lambda life: abs(life.joined_ns - left_ns), default=None)


def _is_new(life: MemberLife, came: Sequence[MemberLife]) -> bool:
    """Whether no earlier member had its client id."""
    return not any(other.client_id == life.client_id and other.joined_ns < life.joined_ns for other in came)


def _runs(pairs: list[_Replaced]) -> Iterator[list[_Replaced]]:
    run: list[_Replaced] = []
    for pair in pairs:
        if run and pair.left_ns - run[-1].left_ns > APART_NS:
            yield run
            run = []
        run.append(pair)
    if run:
        yield run


def _deploy(history: GroupHistory, pairs: list[_Replaced], count: int, before: int) -> Found:
    start_ns = min(min(pair.left_ns, pair.new.joined_ns) for pair in pairs)
    end_ns = max(max(pair.left_ns, pair.new.joined_ns) for pair in pairs)
    rows = [row for row in history.rebalances if start_ns - NS_PER_MS <= row.started_ns <= end_ns + NS_PER_MS]
    paused_ns = sum(row.paused_ms or 0.0 for row in rows) * NS_PER_MS
    names = sorted({client_of(pair.old) for pair in pairs})
    is_rolling = not any(row.outcome == "empty" for row in rows)
    how = "a deploy, one after another" if is_rolling else "a deploy that emptied the group"
    return Found(
        severity="info",
        from_ns=start_ns,
        to_ns=end_ns,
        subject=None,
        text=f"{how}: {count} of {before} {plural('member', range(before))} ({listed(names)}) were restarted or "
        f"replaced within {lasting(end_ns - start_ns)}, with {len(rows)} {plural('rebalance', rows)} and "
        f"{lasting(paused_ns)} of partition time without an owner{_as_static(pairs, rows)}",
        advice="Nothing is wrong. Static members (group.instance.id for each instance, and a session longer than a "
        "restart takes) are restarted without a rebalance; `kcoord simulate rolling-bounce --from` computes it for "
        "this group, cooperative assignors included.",
        value=float(count),
        threshold=float(THRESHOLD),
        rebalances=[row.number for row in rows],
        evidence=[
            Evidence(pair.left_ns, "", -1, f"{client_of(pair.old)} leaves, {_return(pair)}")
            for pair in pairs[:MAX_EVIDENCE]
        ],
    )


def _return(pair: _Replaced) -> str:
    name = client_of(pair.new)
    return (
        f"{name} had joined before"
        if pair.new.joined_ns < pair.left_ns
        else f"{name} joins {lasting(pair.down_ns)} later"
    )


def _as_static(pairs: Sequence[_Replaced], rows: Sequence[Rebalance]) -> str:
    """Return what the deploy would have cost with static members: the partitions of each while it was down, no more."""
    if all(pair.old.instance_id for pair in pairs) or not rows:
        return ""
    cost_ns = sum(pair.partitions * pair.down_ns for pair in pairs)
    return f"; with static members: no rebalance, and {lasting(cost_ns)}"
