"""Members that are replaced or added and taken away on purpose: deploys, and groups whose size swings."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import filterfalse, pairwise
from typing import Final, NamedTuple

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.course import SETTLED_NS, course_of, resets_of
from kcoord_wire.forensics.detectors.finding import (
    MINUTE_NS,
    DetectorResult,
    Seen,
    client_of,
    detector,
    lasting,
    plural,
    stem,
)
from kcoord_wire.forensics.model import NS_PER_MS, Evidence, GroupHistory, MemberLife, Rebalance
from kcoord_wire.protocol.wording import first_of

_ORDERLY: Final = frozenset(
    {Cause.NEW_MEMBER, Cause.MEMBER_LEFT, Cause.COOPERATIVE_FOLLOW_UP, Cause.LEADER_REJOINED, Cause.STATIC_REPLACED}
)
"""Causes of the rebalances that a deploy or a change of size consists of; others in its time are not of it."""


def _begun_ns(history: GroupHistory) -> int:
    """When the group was complete: its first start was over, or the source had shown each member that was there."""
    return _calm_ns(history, course_of(history).start[-1:])


def _calm_ns(history: GroupHistory, last: Sequence[Rebalance]) -> int:
    return (last[0].ended_ns or last[0].started_ns) if last else history.group.first_ns + SETTLED_NS


def _over_ns(history: GroupHistory) -> int:
    """When the final shutdown began, else the end of the source."""
    shutdown = course_of(history).shutdown
    return shutdown[0].started_ns if shutdown else history.group.last_ns


def _is_there(life: MemberLife, at_ns: int) -> bool:
    return life.joined_ns <= at_ns and (life.left_ns is None or life.left_ns >= at_ns)


# ---- deploy

DEPLOY_THRESHOLD: Final = 2
APART_NS: Final = 5 * MINUTE_NS


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
    def from_ns(self) -> int:
        return min(self.left_ns, self.new.joined_ns)

    @property
    def to_ns(self) -> int:
        return max(self.left_ns, self.new.joined_ns)

    @property
    def down_ns(self) -> int:
        return max(0, self.new.joined_ns - self.left_ns)


@detector(80, basis="frames")
def deploy(seen: Seen) -> Iterator[DetectorResult]:
    """Deploy: the members of a group are replaced, one after another or all at once.

    A rolling restart costs each member two rebalances, which need no action; what counts is what it cost, and what it
    would have cost with static members (KIP-345). A member is replaced where it left in order, other than in the final
    shutdown, and another with its client id (or, as pods have, with the same id but for the part behind its last
    separator) joined within five minutes. One that had joined within five minutes before counts, too, unless it was
    there from the beginning. A process that was killed has no replacement. Members that come back again and again
    are `flapping_member`, a group whose size goes up and down is `swinging_size`, members that return with another
    protocol migrate, and those that return after the group was deleted (`generation_reset`) had been stopped for that:
    a group that has members, static ones as well, cannot be deleted.

    Threshold: two members or more replaced, each once, and half of those that were there at least; all of them, where
    the group lost two or more at a time; no two replacements further apart than five minutes. Always info. In the text
    of logs clients that state no reason leave in the same words after max.poll.interval.ms: there it is a deploy where
    three members or more, all that there are, come back under their names, each before the next one leaves.
    """
    if swings_of(seen.history):
        return
    for pairs in filterfalse(partial(_is_formed_again, seen.history), _runs(_replaced(seen.history))):
        before = [life for life in seen.history.members if _is_there(life, pairs[0].from_ns)]
        pairs = [pair for pair in pairs if pair.old in before and pair.old.protocol == pair.new.protocol]
        names = {client_of(pair.old) for pair in pairs}
        count = len(names) if len(names) > 1 else len(pairs)  # all instances may have one client id
        if _is_deploy(seen.history, pairs, count, len(before)):
            yield _deploy(seen.history, pairs, count, max(count, len(before)))


_IN_TURN: Final = 3  # two may be late with their polls one after the other


def _is_deploy(history: GroupHistory, pairs: Sequence[_Replaced], count: int, before: int) -> bool:
    """Whether so many of the members before were replaced together as the source needs for that."""
    if count < DEPLOY_THRESHOLD or 2 * count < before:
        return False
    if history.group.origin == "text" and not _is_in_turn(pairs, before):
        return False
    return count >= before or _dip(history, pairs) < DEPLOY_THRESHOLD


def _is_in_turn(pairs: Sequence[_Replaced], before: int) -> bool:
    """Whether all members of a group came back one by one, each under its name before the next one left."""
    in_turn = all(pair.to_ns <= after.from_ns for pair, after in pairwise(pairs))
    return len(pairs) == before >= _IN_TURN and in_turn and _is_in_place(pairs)


def _is_formed_again(history: GroupHistory, pairs: Sequence[_Replaced]) -> bool:
    """Whether the group was lost between the departure of some of them and the return of all."""
    from_ns, to_ns = min(pair.from_ns for pair in pairs), max(pair.to_ns for pair in pairs)
    return any(before.joined_ns <= to_ns and after.joined_ns >= from_ns for before, after in resets_of(history))


def _replaced(history: GroupHistory) -> list[_Replaced]:
    """Return the members that left in order, each with the one that took its place, in order of departures."""
    came = sorted(history.members, key=lambda life: life.joined_ns)
    begun_ns, over_ns = _begun_ns(history), _over_ns(history)
    taken = {life.member_id for life in came if life.joined_ns <= begun_ns} | _revived_ids(came)
    found = []
    for old in sorted(came, key=lambda life: life.left_ns or 0):
        if old.left_ns is None or old.why_left != "left" or old.left_ns >= over_ns:
            continue
        new = _successor(old, came, taken)
        if new is not None:
            taken.add(new.member_id)
            found.append(_Replaced(old, new, _last_held(history, old)))
    return found


def _revived_ids(came: Sequence[MemberLife]) -> set[str]:
    """Return the lives with which members that did not leave in order came back."""
    return {after.member_id for dead in came if (after := _revived(dead, came)) is not None}


def _revived(dead: MemberLife, came: Sequence[MemberLife]) -> MemberLife | None:
    """Return the life with which a member that did not leave in order came back; None where it left, or stayed away."""
    if dead.died_ns is None and dead.why_left in (None, "left"):
        return None
    since_ns = dead.left_ns if dead.died_ns is None else dead.died_ns
    again = [life for life in came if life.client_id == dead.client_id and life.joined_ns >= (since_ns or 0)]
    return again[0] if again else None


def _last_held(history: GroupHistory, old: MemberLife) -> int:
    """Return how many partitions a member held when it left, else those of its latest assignment."""
    held = [row for row in history.ownership if row.member_id == old.member_id]
    ends = [row for row in held if row.to_ns is None or row.to_ns >= (old.left_ns or 0)]
    latest = max((row.from_ns for row in held), default=0)
    return len(ends) or sum(row.from_ns == latest for row in held)


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
    """Yield the replacements that belong together: near each other, and none of a member that had just come."""
    run: list[_Replaced] = []
    for pair in pairs:
        is_again = any(pair.old is other.new for other in run)
        if run and (is_again or pair.left_ns - run[-1].left_ns > APART_NS):
            yield run
            run = []
        run.append(pair)
    if run:
        yield run


def _dip(history: GroupHistory, pairs: Sequence[_Replaced]) -> int:
    """Return how many members that had not died were missing at once, at most, while they were replaced."""
    lives = [life for life in history.members if life.died_ns is None and life.why_left in (None, "left")]
    before = sum(_is_there(life, pairs[0].from_ns) for life in lives)
    return before - min(sum(_is_there(life, pair.left_ns + 1) for life in lives) for pair in pairs)


def _deploy(history: GroupHistory, pairs: list[_Replaced], count: int, before: int) -> DetectorResult:
    start_ns, end_ns = min(pair.from_ns for pair in pairs), max(pair.to_ns for pair in pairs)
    rows = _orderly(history, start_ns, end_ns)
    paused_ns = sum(row.paused_ms or 0.0 for row in rows) * NS_PER_MS
    names = sorted({client_of(pair.old) for pair in pairs})
    is_rolling = not any(row.outcome == "empty" for row in rows)
    how = "a deploy, one after another" if is_rolling else "a deploy that emptied the group"
    is_static = all(pair.old.instance_id for pair in pairs)
    cost = f" and {lasting(paused_ns)} of partition time without an owner"
    cost += "" if is_static or not rows else _as_static(pairs)
    what = "Nothing is wrong."
    if history.group.origin == "text":  # which has neither owners nor, often, reasons
        cost = "; why they left, the log does not say"
        what = "Nothing is wrong if they were restarted on purpose: their own logs say so."
    return DetectorResult(
        severity="info",
        from_ns=start_ns,
        to_ns=end_ns,
        text=f"{how}: {count} of {before} {plural('member', range(before))} ({first_of(names)}) were restarted or "
        f"replaced within {lasting(end_ns - start_ns)}, with {len(rows)} {plural('rebalance', rows)}{cost}",
        advice=what + ("" if is_static else f" {_advice(pairs)}"),
        value=count,
        threshold=DEPLOY_THRESHOLD,
        rebalances=[row.number for row in rows],
        evidence=(Evidence(pair.left_ns, "", -1, f"{client_of(pair.old)} leaves, {_return(pair)}") for pair in pairs),
    )


_NEAR_NS: Final = 20 * NS_PER_MS  # logs have the line of a join some milliseconds before that of its rebalance


def _orderly(history: GroupHistory, from_ns: int, to_ns: int) -> list[Rebalance]:
    rows = history.rebalances
    return [row for row in rows if from_ns - _NEAR_NS <= row.started_ns <= to_ns + _NEAR_NS and row.cause in _ORDERLY]


def _return(pair: _Replaced) -> str:
    name = client_of(pair.new)
    return (
        f"{name} had joined before"
        if pair.new.joined_ns < pair.left_ns
        else f"{name} joins {lasting(pair.down_ns)} later"
    )


_MOVES_BY_SIMULATION: Final = "`kcoord simulate rolling-bounce --from` computes what each setting would cost."


def _is_in_place(pairs: Sequence[_Replaced]) -> bool:
    """Whether each came back under its own name after it had left, as a static member has to."""
    return all(pair.new.client_id == pair.old.client_id and pair.down_ns > 0 for pair in pairs)


def _as_static(pairs: Sequence[_Replaced]) -> str:
    """Return what the deploy would have cost with static members, which keep their partitions while they are down.

    Empty where the new ones came before the old ones left, which no static member can.
    """
    if not _is_in_place(pairs):
        return ""
    cost_ns, longest_ns = sum(pair.partitions * pair.down_ns for pair in pairs), max(pair.down_ns for pair in pairs)
    sessions = [pair.old.session_timeout_ms * NS_PER_MS for pair in pairs if pair.old.session_timeout_ms]
    is_within = len(sessions) == len(pairs) and longest_ns < min(sessions)
    how = "static members" if is_within else f"static members and a session of more than {lasting(longest_ns)}"
    return f"; with {how}: no rebalance, and {lasting(cost_ns)}"


def _advice(pairs: Sequence[_Replaced]) -> str:
    if _is_in_place(pairs):
        return (
            "Static members (group.instance.id for each instance, and a session longer than a restart takes) are "
            f"restarted without a rebalance; {_MOVES_BY_SIMULATION}"
        )
    return f"Each new member, and each that leaves, makes the group rebalance; {_MOVES_BY_SIMULATION}"


# ---- swinging size

SWINGING_SIZE_THRESHOLD: Final = 2
_ADVICE_ON_SWINGS: Final = (
    "Look at what scales this group: an autoscaler that follows the lag or load which its own rebalances move. Let it "
    "wait before it scales down (stabilizationWindowSeconds of a HorizontalPodAutoscaler, cooldownPeriod of KEDA), and "
    "change the size in fewer steps. Static members do not help, since each change of size moves partitions; "
    "cooperative-sticky, or the consumer protocol (KIP-848), pauses only what moves."
)


class Wave(NamedTuple):
    """Members that were added and left again in order, while others stayed that had been there before them.

    :ivar before: size of the group without them
    :ivar size: of the group with them
    """

    lives: list[MemberLife]
    before: int
    size: int

    @property
    def from_ns(self) -> int:
        return min(life.joined_ns for life in self.lives)

    @property
    def to_ns(self) -> int:
        return _gone_ns(self.lives)


@detector(37, basis="frames")
def swinging_size(seen: Seen) -> Iterator[DetectorResult]:
    """Swinging size: members are added and leave again in order, over and over, while others stay.

    An autoscaler that follows a figure which its own rebalances move (lag, CPU) adds members, and takes them away when
    they have done their work. Each change of size moves partitions, so that static members do not help. Normal is a
    size that stays, or is changed once.

    What is added is a wave: members that come and leave within the life of another, and whose times in the group
    overlap. Those that are away for a shorter time than half of what they had been there, and than ten seconds, were
    replaced: the size has not changed. It is no deploy, because those that leave had been added before, and no single
    process that is restarted, because the size changes by two or the names are new. Those that came last in the group's
    start were added, too, if they left sooner after that than the next ones left after them; those that leave last, if
    the others stay for longer than half of the time that they had been there.

    Threshold: twice up and down within the source; warning.
    """
    if waves := swings_of(seen.history):
        yield _swinging_found(seen.history, waves)


def _swinging_found(history: GroupHistory, waves: Sequence[Wave]) -> DetectorResult:
    from_ns, to_ns, ids = waves[0].from_ns, waves[-1].to_ns, swinging_ids(history)
    moving = sorted({client_of(life) for life in history.members if life.member_id in ids})
    there = (life for life in history.members if life.joined_ns < from_ns and life.member_id not in ids)
    staying = sorted({client_of(life) for life in there if life.died_ns is None})
    rows = _orderly(history, from_ns, to_ns)
    paused_ns = sum(row.paused_ms or 0.0 for row in rows) * NS_PER_MS
    is_known = bool(paused_ns or history.ownership)  # logs do not say what members own
    paused = f" and {lasting(paused_ns)} of partition time without an owner" if is_known else ""
    return DetectorResult(
        severity="warning",
        from_ns=from_ns,
        to_ns=to_ns,
        text=f"the group's size swings between {_sizes(waves)}, {len(waves)} times within {lasting(to_ns - from_ns)}: "
        f"{first_of(moving)} were added and left again in order, {first_of(staying)} stayed; it cost {len(rows)} "
        f"{plural('rebalance', rows)}{paused}",
        advice=_ADVICE_ON_SWINGS,
        value=len(waves),
        threshold=SWINGING_SIZE_THRESHOLD,
        rebalances=[row.number for row in rows],
        evidence=(fact for wave in waves for fact in _wave_evidence(wave)),
    )


def _sizes(waves: Sequence[Wave]) -> str:
    return f"{min(wave.before for wave in waves)} and {max(wave.size for wave in waves)}"


def _wave_evidence(wave: Wave) -> tuple[Evidence, Evidence]:
    names = first_of(sorted({client_of(life) for life in wave.lives}))
    return (
        Evidence(wave.from_ns, "", -1, f"{names} join: {wave.size} members"),
        Evidence(wave.to_ns, "", -1, f"{names} leave: {wave.before} members"),
    )


def swinging_ids(history: GroupHistory) -> set[str]:
    """Return the member ids that come and leave where the group's size swings."""
    return {life.member_id for wave in swings_of(history) for life in wave.lives}


_HOSTS: Final = 16
"""Lives, the longest ones, in which waves are looked for."""


def swings_of(history: GroupHistory) -> list[Wave]:
    """Return the waves of a group whose size swings; none where it does not."""
    lives = [life for life in history.members if life.died_ns is None and life.why_left in (None, "left")]
    revived = _revived_ids(sorted(history.members, key=lambda life: life.joined_ns))
    added = sorted((life for life in lives if life.member_id not in revived), key=lambda life: life.joined_ns)

    def length(life: MemberLife) -> int:
        return _left_ns(history, life) - life.joined_ns

    hosts = sorted(lives, key=length, reverse=True)[:_HOSTS]
    runs = max((_runs_within(history, host, lives, added) for host in hosts), key=len, default=[])
    waves = _sized(runs, lives) if len(runs) >= SWINGING_SIZE_THRESHOLD else []
    return waves if waves and not _is_one_process(waves, history.members) else []


def _left_ns(history: GroupHistory, life: MemberLife) -> int:
    return history.group.last_ns + 1 if life.left_ns is None else life.left_ns


def _runs_within(
    history: GroupHistory, host: MemberLife, lives: Sequence[MemberLife], added: Sequence[MemberLife]
) -> list[list[MemberLife]]:
    """Return the lives of each wave within one life.

    :param lives: of members that did not die
    :param added: those that did not come back from the dead, in order of time
    """
    runs: list[list[MemberLife]] = []
    for life in added:
        if life.left_ns is None or not (host.joined_ns < life.joined_ns and life.left_ns < _left_ns(history, host)):
            continue
        if runs and not _is_apart(runs[-1], life.joined_ns):
            runs[-1].append(life)
        else:
            runs.append([life])
    if runs and not _is_added(history, runs, lives):
        del runs[0]
    if runs and not _is_apart(runs[-1], _next_leave(history, _gone_ns(runs[-1]), lives)):
        del runs[-1]
    return runs


def _sized(runs: Iterable[list[MemberLife]], lives: Sequence[MemberLife]) -> list[Wave]:
    """Return the waves with the sizes of the group before and at the top of each."""
    came = sorted(life.joined_ns for life in lives)
    left = sorted(life.left_ns for life in lives if life.left_ns is not None)
    found = []
    for run in runs:
        own = sorted(life.left_ns or 0 for life in run)
        before = bisect_left(came, run[0].joined_ns) - bisect_left(left, run[0].joined_ns)
        most = max(number - bisect_left(own, life.joined_ns) for number, life in enumerate(run, 1))
        found.append(Wave(run, before, before + most))
    return found


def _gone_ns(run: Iterable[MemberLife]) -> int:
    return max(life.left_ns or 0 for life in run)


def _is_apart(run: Sequence[MemberLife], at_ns: int) -> bool:
    """Whether a time is so long after the last of a run had left that it is not about replacing one of them."""
    last = max(run, key=lambda life: life.left_ns or 0)
    apart_ns = at_ns - (last.left_ns or 0)
    return apart_ns > SETTLED_NS or 2 * apart_ns > (last.left_ns or 0) - last.joined_ns


def _is_added(history: GroupHistory, runs: Sequence[Sequence[MemberLife]], lives: Sequence[MemberLife]) -> bool:
    """Whether the first ones to leave had been added: to a group at work, or as the last ones of its start, and for
    less time than the next ones left after them."""
    first, start = runs[0], course_of(history).start
    from_ns, to_ns = first[0].joined_ns, _gone_ns(first)
    own = {life.member_id for life in first}
    others = [life.joined_ns for life in lives if life.joined_ns < to_ns and life.member_id not in own]
    before = [at_ns for at_ns in others if at_ns < from_ns]
    is_at_work = from_ns - max(before, default=0) > SETTLED_NS
    if is_at_work or not start or from_ns > (start[-1].ended_ns or start[-1].started_ns):
        return True
    return len(before) == len(others) and len(runs) > 1 and to_ns - from_ns <= _gone_ns(runs[1]) - to_ns


def _next_leave(history: GroupHistory, at_ns: int, lives: Iterable[MemberLife]) -> int:
    """Return when the next member left after a time, else the end of the source."""
    left = (life.left_ns for life in lives if life.left_ns is not None and life.left_ns > at_ns)
    return min(left, default=history.group.last_ns + SETTLED_NS + 1)


def _is_one_process(waves: Sequence[Wave], members: Sequence[MemberLife]) -> bool:
    """Whether a single process is stopped and started again, with its name."""
    returned = [life for wave in waves[1:] for life in wave.lives if not _is_new(life, members)]
    return max(wave.size - wave.before for wave in waves) == 1 and len(returned) >= len(waves) - 1
