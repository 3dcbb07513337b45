"""Processes that end without leaving their group, and members of which a broker's log says as much as that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from kcoord_wire.forensics.course import KILLED_NS, course_of
from kcoord_wire.forensics.detectors.expiries import Expiry, read_expiries
from kcoord_wire.forensics.detectors.finding import (
    MINUTE_NS,
    SECOND_NS,
    DetectorResult,
    Seen,
    client_of,
    concerns,
    detector,
    lasting,
    person,
    unclaimed_ms,
)
from kcoord_wire.forensics.detectors.membership import loops_of
from kcoord_wire.forensics.model import NS_PER_MS, Evidence, GroupHistory, MemberLife, Rebalance
from kcoord_wire.protocol.wording import clock, first_of, only

_ENDS: Final = {
    "process died": "its connection was closed without LeaveGroup",
    "process ended": "its connection was closed, and it sends no LeaveGroup",
    "gone": "its connection was closed, and bytes before that are missing",
}
_TOGETHER_NS: Final = 5 * SECOND_NS


@detector(38)
def dead_member(seen: Seen) -> Iterator[DetectorResult]:
    """Dead member: a process died or was killed, and its partitions waited until the coordinator noticed.

    The coordinator learns of the end of a process only when its session is over; until then its partitions are not
    read, and a rebalance waits for it. The kernel closes the connections of a process that ends, so that the moment is
    known. A client that sends no LeaveGroup (a static member, Kafka Streams) ends in the same way when it is stopped in
    order; if it is back within its session, that is a restart as it should be.

    Not counted are the processes of the final shutdown, and clients that die again and again (`flapping_member`).

    Threshold: 1; warning. Members that end within five seconds are one finding: a host, or one act that killed them.
    """
    looping = {member_id for loop in loops_of(seen) for member_id in loop.ids}
    dead = [life for life in seen.history.members if life.end in _ENDS and life.member_id not in looping]
    dead = [life for life in dead if _is_missed(life, seen.history)]
    together: list[list[MemberLife]] = []
    for life in sorted(dead, key=_died_ns):
        if together and _died_ns(life) - _died_ns(together[-1][0]) <= _TOGETHER_NS:
            together[-1].append(life)
        else:
            together.append([life])
    for lives in together:
        yield _found(seen.history, lives)


def _died_ns(life: MemberLife) -> int:
    return life.died_ns or life.last_seen_ns


def _is_missed(life: MemberLife, history: GroupHistory) -> bool:
    """Whether the group went on without it: not in the final shutdown, nor where a static member was back in time.

    Of one whose last bytes are missing (``gone``) only the end of its session shows that they held no LeaveGroup.
    """
    if life.end in ("process ended", "gone") and life.why_left != "session timeout":
        return False
    if life.member_id in _ids(course_of(history).shutdown):
        return False
    after_ns = _died_ns(life) + KILLED_NS
    return any(other.last_seen_ns > after_ns for other in history.members if other is not life)


def _ids(shutdown: Sequence[Rebalance]) -> set[str]:
    """Return the members that the final shutdown ended."""
    return {row.member_id or "" for row in shutdown} | {gone.member_id for row in shutdown for gone in row.removed}


def _found(history: GroupHistory, lives: list[MemberLife]) -> DetectorResult:
    ids = {life.member_id for life in lives}
    rows = [row for row in history.rebalances if concerns(row, ids) and row.started_ns >= _died_ns(lives[0])]
    names = [person(client_of(life), life.client_host) for life in lives]
    paused_ms = sum(row.paused_ms or 0.0 for row in rows) + (unclaimed := unclaimed_ms(history, ids))
    text = f"{first_of(names)} {_how(lives)}{_noticed(lives)}{_return(history, lives)}"
    cost = f"; {lasting(paused_ms * NS_PER_MS)} of partition time without an owner" if paused_ms else ""
    return DetectorResult(
        severity="warning",
        from_ns=_died_ns(lives[0]),
        to_ns=max((row.ended_ns or row.started_ns for row in rows), default=None),
        subject=only(sorted({client_of(life) for life in lives})),
        text=text + cost,
        advice=_advice(lives),
        value=len(lives),
        rebalances=[row.number for row in rows],
        evidence=(
            Evidence(_died_ns(life), "", -1, f"{client_of(life)} ({life.member_id}): {_ENDS[life.end or '']}")
            for life in lives
        ),
        cost_ms=unclaimed,
        rests_on=_doubtful(lives, rows),
    )


def _doubtful(lives: Sequence[MemberLife], rows: Sequence[Rebalance]) -> frozenset[str]:
    """Return those whose LeaveGroup may only be missing."""
    return frozenset(life.member_id for life in lives if not _outlived(life, rows))


def _outlived(life: MemberLife, rows: Sequence[Rebalance]) -> bool:
    """Whether the coordinator kept a member for half of its session after its end, or let others wait for it.

    It lets one go at once that has sent LeaveGroup, also where that is missing in the source.
    """
    half_ns = (life.session_timeout_ms or 0) * NS_PER_MS // 2
    for row in (row for row in rows if row.outcome == "stable"):
        if any(wait.member_id == life.member_id and wait.died_ns for wait in row.waited_for):
            return True
        gone = any(gone.member_id == life.member_id and gone.why == "session timeout" for gone in row.removed)
        if gone and row.started_ns - _died_ns(life) >= half_ns > 0:
            return True
    return False


def _how(lives: Sequence[MemberLife]) -> str:
    at, end = clock(_died_ns(lives[0])), lives[0].end or ""
    verb = {"process died": "died", "process ended": "ended"}.get(end, "was gone" if len(lives) == 1 else "were gone")
    return (
        f"{verb} at {at} UTC: {_ENDS[end] if len(lives) == 1 else 'their connections were closed without LeaveGroup'}"
    )


def _noticed(lives: Sequence[MemberLife]) -> str:
    """How much later the coordinator removed them, at most."""
    late = [life.left_ns - _died_ns(life) for life in lives if life.left_ns is not None and life.why_left != "replaced"]
    if not late:
        return (
            "; the coordinator had not noticed when the source ended"
            if all(life.left_ns is None for life in lives)
            else ""
        )
    why = f" ({lives[0].why_left})" if lives[0].why_left else ""
    return f"; the coordinator noticed {lasting(max(late))} later{why}"


def _return(history: GroupHistory, lives: Sequence[MemberLife]) -> str:
    """When the last of them was there again."""
    back = [_back_ns(history, life) for life in lives]
    known = [ns for ns in back if ns is not None]
    if not known:
        return ", and it did not come back" if len(lives) == 1 else ", and none came back"
    if len(known) < len(lives):
        return f", and {len(known)} of {len(lives)} came back"
    return f", and {'it was' if len(lives) == 1 else 'all were'} back {lasting(max(known))} after that moment"


def _back_ns(history: GroupHistory, life: MemberLife) -> int | None:
    """Return how long after its end a client was there again, by instance id, else by client id and host."""

    def name(of: MemberLife) -> tuple[str | None, ...]:
        return (of.instance_id,) if of.instance_id else (of.client_id, of.client_host)

    again = [
        other.joined_ns - _died_ns(life)
        for other in history.members
        if other.member_id != life.member_id and name(other) == name(life) and other.joined_ns > _died_ns(life)
    ]
    return min(again, default=None)


def _advice(lives: Sequence[MemberLife]) -> str:
    """Return what to look at; a group.instance.id only where there is none, and what it does not do."""
    look = "Look at the exit code and log of that process, the OOM killer (exit code 137, OOMKilled), its liveness "
    look += "probe, and who stopped it."
    if any(life.instance_id for life in lives):
        return f"{look} A restart within session.timeout.ms takes its partitions back without a rebalance."
    return (
        f"{look} Its partitions were not read until its session was over: a consumer that is closed on SIGTERM leaves "
        "the group at once, and session.timeout.ms says how long one that cannot do that is waited for."
    )


# ---- members that a log says were removed


@detector(56, origin="text")
def expired_member(seen: Seen) -> Iterator[DetectorResult]:
    """Expired member: the coordinator removed a member on heartbeat expiration, as a broker's log says.

    Whether its process had ended, stood still or was cut off, the log does not say; when its client joined again tells
    them apart in part (`expiries`). Until the removal its partitions were not read.

    Not counted are the processes of the final shutdown, clients that come back again and again (`flapping_member`,
    `tight_heartbeats`), and members that do not come back to a coordinator that has just loaded the group.

    Threshold: 1; warning. Members that are removed within five seconds are one finding.
    """
    together: list[list[Expiry]] = []
    for each in sorted(_unexplained(seen), key=lambda each: each.left_ns):
        if together and each.left_ns - together[-1][0].left_ns <= _TOGETHER_NS:
            together[-1].append(each)
        else:
            together.append([each])
    for expiries in together:
        yield _expired_found(seen.history, expiries)


def _unexplained(seen: Seen) -> Iterator[Expiry]:
    """Yield the removals that no other finding has."""
    known = {member_id for loop in loops_of(seen) for member_id in loop.ids}
    known |= {each.life.member_id for expiries in seen.late for each in expiries}
    known |= _ids(course_of(seen.history).shutdown)
    loads = [row.time_ns for row in seen.lines if row.kind == "loaded"]
    for each in chain.from_iterable(read_expiries(seen.history)):
        if each.life.member_id not in known and not _follows_load(each, loads):
            yield each


def _follows_load(each: Expiry, loads: Sequence[int]) -> bool:
    """Whether it was not heard since its coordinator had loaded the group: the broker before had gone."""
    return any(each.heard_ns < at <= each.left_ns <= at + MINUTE_NS for at in loads)


def _expired_found(history: GroupHistory, expiries: list[Expiry]) -> DetectorResult:
    lives, at_ns = [each.life for each in expiries], expiries[0].left_ns
    rows = _removals(history, {life.member_id for life in lives})
    names = list(dict.fromkeys(life.instance_id or person(client_of(life), life.client_host) for life in lives))
    verb, them = ("was", "it") if len(lives) == 1 else ("were", "them")
    waited_ns = max((at_ns - row.started_ns for row in rows), default=0)
    waited = f"; the others waited {lasting(waited_ns)} for it in a rebalance" if waited_ns >= SECOND_NS else ""
    return DetectorResult(
        severity="warning",
        from_ns=at_ns,
        to_ns=max((row.ended_ns or row.started_ns for row in rows), default=None),
        subject=only(sorted({client_of(life) for life in lives})),
        text=f"{first_of(names)} {verb} removed on heartbeat expiration at {clock(at_ns)} UTC, since nothing of {them} "
        f"had come for a session timeout: {_what_happened(history, expiries)}{waited}",
        advice=_EXPIRED_ADVICE,
        value=len(lives),
        rebalances=[row.number for row in rows],
        evidence=(
            Evidence(each.left_ns, "", -1, f"{each.life.member_id} is removed on heartbeat expiration")
            for each in expiries
        ),
    )


def _removals(history: GroupHistory, ids: set[str]) -> list[Rebalance]:
    """Return the rebalances in which the group lost one of these."""
    return [row for row in history.rebalances if any(gone.member_id in ids for gone in row.removed)]


_EXPIRED_ADVICE: Final = (
    "Look at that process and its host at that time: its exit code and log, what stopped or killed it, pauses, CPU "
    "limits, the network to its coordinator. A consumer that is closed when its process is stopped leaves the group at "
    "once; heartbeat.interval.ms should be a third of session.timeout.ms at most."
)


def _what_happened(history: GroupHistory, expiries: Sequence[Expiry]) -> str:
    """What the return of the clients shows."""
    known = sorted(each.gap_ns for each in expiries if each.gap_ns is not None)
    if len(expiries) > 1:
        return _what_happened_to_all(history, expiries, known)
    unknown = "its process had ended, stood still, or was cut off from the coordinator"
    if not known:
        return f"{unknown}; it did not come back"
    if expiries[0].is_early:
        proof = "it had ended" if expiries[0].is_restart else "it had ended, or had given its session up by itself"
        return f"its client had joined anew {lasting(-known[0])} before that, so that {proof}"
    if expiries[0].is_at_once:
        return (
            f"it joined again {lasting(known[0])} later, as a process does that lives and is late with its heartbeats"
        )
    return f"{unknown}; it joined again {lasting(known[0])} later"


def _what_happened_to_all(history: GroupHistory, expiries: Sequence[Expiry], known: Sequence[int]) -> str:
    """:param known: how much later those joined again that did"""
    unknown = "the processes had ended, stood still, or were cut off from the coordinator"
    if len(known) < len(expiries):
        return f"{unknown}; {f'{len(known)} of {len(expiries)}' if known else 'none'} came back"
    back = f"within {lasting(max(known[-1], 0))}"
    if not _are_all(history, expiries):
        return f"{unknown}; all came back {back}"
    return (
        f"they are all members that there were, and all came back {back}, so that rather the coordinator stood still, "
        "or the network before it, than each of them"
    )


def _are_all(history: GroupHistory, expiries: Sequence[Expiry]) -> bool:
    """Whether the group had no other member then."""
    at_ns, ids = expiries[0].left_ns, {each.life.member_id for each in expiries}
    others = (life for life in history.members if life.member_id not in ids and life.joined_ns < at_ns)
    return all(life.left_ns is not None and life.left_ns < at_ns for life in others)
