"""Members that come and go, stand still, or share a group with another application."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.coded import in_order
from kcoord_wire.forensics.detectors.beats import Beats, LateBeat
from kcoord_wire.forensics.detectors.expiries import REPEATED, Expiry, is_restarted, read_expiries
from kcoord_wire.forensics.detectors.finding import (
    MAX_EVIDENCE,
    MINUTE_NS,
    SECOND_NS,
    DetectorResult,
    Seen,
    busiest,
    client_at,
    client_of,
    concerns,
    covered_ns,
    detector,
    lasting,
    person,
    plural,
    stem,
    together_ns,
    unclaimed_ms,
    was_cut_off,
)
from kcoord_wire.forensics.detectors.handlers import Handled, handled
from kcoord_wire.forensics.detectors.sizes import swinging_ids
from kcoord_wire.forensics.model import BROKER_IN_NAME, EPOCH_APIS, NS_PER_MS, Evidence, GroupHistory, MemberLife
from kcoord_wire.protocol.wording import first_of, only

if TYPE_CHECKING:
    from numpy.typing import NDArray

# ---- two applications

OTHERS_NS: Final = SECOND_NS
ALIKE_NS: Final = MINUTE_NS
SETTLED_NS: Final = 10 * SECOND_NS
"""After a change of its subscription, from when on a member counts."""


@detector(22, basis="frames")
def two_applications(seen: Seen) -> Iterator[DetectorResult]:
    """Two applications: members of one group that subscribe to topics of which they have none in common.

    They work, each on its own topics, but every start, stop and deploy of one stops the other, and the offsets of both
    lie under one name. Normal is a group whose members subscribe to the same topics. A member that changes its
    subscription counts from ten seconds later on.

    Threshold: two sets of members without a common topic that are in the group at the same time, for a second if their
    client ids differ in more than the last part (warning), else for a minute (info: one application whose consumers
    should not share a group).
    """
    changes = [row for row in seen.history.rebalances if row.cause == Cause.SUBSCRIPTION_CHANGED]
    since = {row.member_id: row.started_ns + SETTLED_NS for row in changes}
    lives = [replace(life, joined_ns=since.get(life.member_id, life.joined_ns)) for life in seen.history.members]
    sets = _sets([life for life in lives if life.topics])
    pairs = [(together_ns(*each, seen.history.group.last_ns), *each) for each in combinations(sets, 2)]
    if not pairs:
        return
    ns, first, second = max(pairs, key=lambda pair: pair[0])
    is_other = _stems(first).isdisjoint(_stems(second))
    if ns >= (OTHERS_NS if is_other else ALIKE_NS):
        yield _two_applications_found(first, second, ns, is_other)


def _stems(lives: Sequence[MemberLife]) -> set[str]:
    return {stem(life.client_id) for life in lives}


def _two_applications_found(
    first: Sequence[MemberLife], second: Sequence[MemberLife], ns: int, is_other: bool
) -> DetectorResult:
    names = [first_of(sorted({client_of(life) for life in each})) for each in (first, second)]
    topics = [first_of(sorted({topic for life in each for topic in life.topics})) for each in (first, second)]
    what = "two applications share the group id" if is_other else "consumers of different topics share the group id"
    return DetectorResult(
        severity="warning" if is_other else "info",
        from_ns=max(min(life.joined_ns for life in each) for each in (first, second)),
        text=f"{what}: {names[0]} subscribe to {topics[0]}, {names[1]} to {topics[1]}, no topic in common, side by "
        f"side for {lasting(ns)}",
        advice="Give each application a group.id of its own: each start, stop and deploy of one makes the other "
        "rebalance. A new id begins without offsets: copy them (kafka-consumer-groups.sh --reset-offsets --from-file) "
        "before the first start.",
        value=ns / SECOND_NS,
        threshold=(OTHERS_NS if is_other else ALIKE_NS) / SECOND_NS,
        evidence=[
            Evidence(life.joined_ns, "", -1, f"{client_of(life)} subscribes to {', '.join(life.topics)}")
            for life in [*first[: MAX_EVIDENCE // 2], *second[: MAX_EVIDENCE // 2]]
        ],
    )


def _sets(lives: Sequence[MemberLife]) -> list[list[MemberLife]]:
    """Return the members by common topics: a chain of common topics leads from each of a set to each other."""
    sets: list[tuple[set[str], list[MemberLife]]] = []
    for life in lives:
        topics, members = set(life.topics), [life]
        apart = []
        for known, others in sets:
            if known & topics:
                topics |= known
                members = others + members
            else:
                apart.append((known, others))
        sets = [*apart, (topics, members)]
    return [members for _, members in sets]


# ---- tight heartbeats


@detector(19, basis="frames")
def tight_heartbeats(seen: Seen) -> Iterator[DetectorResult]:
    """Tight heartbeats: a client sends its heartbeats so far apart that its session ends if one is a little late.

    Normal is an interval of a third of the session, so that two heartbeats may be lost. What follows from such settings
    (refusals with UNKNOWN_MEMBER_ID, members that come back again and again, storms) is not reported beside it. Logs
    do not have the settings: there it is a client that is removed, and is there again at once, over and over.

    Threshold: an interval of two thirds of the session. A warning if a session has ended although its member was heard
    again within the length of another one, else info. In logs: twice; warning.
    """
    for ended in (True, False):
        if found := [each for each in seen.tight if bool(each.late) is ended]:
            yield _tight_found(seen.history, found)
    for expiries in seen.late:
        yield _late_found(seen.history, expiries)


def _late_found(history: GroupHistory, expiries: Sequence[Expiry]) -> DetectorResult:
    """What a log shows of a client whose heartbeats come when its session is over, or just before."""
    first, times = expiries[0], [each.left_ns for each in expiries]
    name = first.life.instance_id or person(first.life.client_id, first.life.client_host)
    gaps = sorted(each.gap_ns for each in expiries if each.gap_ns is not None)
    ids = {each.life.member_id for each in expiries}
    text = f"{name} was removed on heartbeat expiration {len(expiries)} times within {lasting(times[-1] - times[0])}"
    if gaps[-1] >= 0:
        heard_ns = min(each.left_ns - each.heard_ns for each in expiries)
        text += (
            f", and was there again {_gaps_text(gaps)} later: its process lives, and its heartbeats come later than "
        )
        text += f"its session allows, which is {lasting(heard_ns)} at most (heartbeat.interval.ms, session.timeout.ms)"
    else:
        text += f", and had joined anew {_gaps_text([-gap for gap in gaps])} before: its process ends and is started, "
        text += "or it lives and gives its session up by itself, as librdkafka does where an answer to a heartbeat is "
        text += "later than session.timeout.ms allows"
    return DetectorResult(
        severity="warning",
        from_ns=times[0],
        to_ns=times[-1],
        subject=first.life.client_id,
        text=text,
        advice=_LATE_ADVICE,
        value=len(expiries),
        threshold=REPEATED,
        rebalances=[row.number for row in history.rebalances if concerns(row, ids)],
        evidence=(
            Evidence(
                each.left_ns,
                "",
                -1,
                f"{each.life.member_id} is removed, {lasting(each.left_ns - each.heard_ns)} "
                "after it was heard at the latest",
            )
            for each in expiries
        ),
    )


_LATE_ADVICE: Final = (
    "Compare heartbeat.interval.ms of that client with session.timeout.ms: a third of it at most, so that two "
    "heartbeats may be late or lost. If it is, look at what holds its heartbeats up, and at whether its process is the "
    "same all the time (its own log, its exit code)."
)


def _gaps_text(gaps: Sequence[int]) -> str:
    least, most = lasting(min(gaps)), lasting(max(gaps))
    return least if least == most else f"{least} to {most}"


def _tight_found(history: GroupHistory, found: list[Beats]) -> DetectorResult:
    names = sorted({person(each.client_id or None, each.client_host or None) for each in found})
    worst = min(found, key=lambda each: (each.session_ns, each.interval_ns))
    late = sorted(beat for each in found for beat in each.late)
    ids = {(each.client_id, each.client_host) for each in found if late}
    text = (
        f"{first_of(names)} {plural('sends its', names, 'send their')} heartbeats {lasting(worst.interval_ns)} apart "
        f"with a session of {lasting(worst.session_ns)} (heartbeat.interval.ms, session.timeout.ms): a heartbeat that "
        f"is {lasting(max(0, worst.session_ns - worst.interval_ns))} late ends the session"
    )
    from_ns, to_ns = (late[0].time_ns, late[-1].time_ns) if late else (history.group.first_ns, None)
    return DetectorResult(
        severity="warning" if late else "info",
        from_ns=from_ns,
        to_ns=to_ns,
        subject=only(sorted({each.client_id for each in found})),
        text=text + _late_text(late),
        advice="Set heartbeat.interval.ms to a third of session.timeout.ms at most, so that two heartbeats may be late "
        "or lost: 3 s with a session of 10 s, or of 45 s, which is the default of Java's client.",
        value=worst.interval_ns / worst.session_ns,
        threshold=2 / 3,
        rebalances=[row.number for row in history.rebalances if client_at(row) in ids],
        evidence=(
            Evidence(beat.time_ns, beat.source, beat.seq, f"it was heard again after {lasting(beat.gap_ns)}")
            for beat in late
        ),
        cost_ms=unclaimed_ms(history, _members_of(history, ids)),
    )


def _members_of(history: GroupHistory, clients: Collection[tuple[str, str]]) -> set[str]:
    return {life.member_id for life in history.members if client_at(life) in clients}


def _late_text(late: Sequence[LateBeat]) -> str:
    if not late:
        return ""
    times = "once" if len(late) == 1 else f"{len(late)} times"
    gap = lasting(late[0].gap_ns)
    return f"; {times} the coordinator had removed the member when it was heard again, {gap} after the heartbeat before"


# ---- flapping member

WINDOW_NS: Final = 10 * MINUTE_NS
FLAPPING_MEMBER_THRESHOLD: Final = 3

_NO_REASON: Final = "Look at this one process: what ends it, a supervisor that restarts it, or the network between."
_STATIC: Final = (
    "Until that is fixed, a group.instance.id lets a restart within session.timeout.ms take its partitions back "
    "without a rebalance."
)
_RESTARTED: Final = "a restart of its process"
_CRASHES: Final = ("process died", _RESTARTED)
_ADVICE: Final[Mapping[str, str]] = {
    _RESTARTED: "A process ends without leaving the group and is started again before its session is over, again and "
    "again: look at its exit code and log, the OOM killer (exit code 137, OOMKilled), and its liveness probe; let the "
    f"supervisor wait between restarts. {_STATIC}",
    "process died": "The process dies without leaving the group: look at its exit code and log, the OOM killer (exit "
    f"code 137, OOMKilled), and its liveness probe; let the supervisor wait between restarts. {_STATIC}",
    "process ended": "The process is restarted again and again: look at its exit code and log, the OOM killer (exit "
    "code 137, OOMKilled), its liveness probe, and who deploys it.",
    "silent": "The process falls silent although it is not closed: look for long garbage collections, CPU limits that "
    "throttle it, a frozen host, and the network between it and the broker; session.timeout.ms says how long it may.",
    "cut off": "The network between it and the broker carries nothing at times, or its host stands still: its kernel "
    "does not acknowledge what it is sent. Look at the host, its network policies, and what lies between.",
    "poll timeout": "Its application takes longer between two polls than max.poll.interval.ms allows: do less per poll "
    "(max.poll.records), move the work to another thread, or raise max.poll.interval.ms.",
    "rebalance timeout": "It does not rejoin in time, because its application does not poll: do less per poll "
    "(max.poll.records), move the work to another thread, or raise max.poll.interval.ms.",
    "session timeout": "Its heartbeats stop for longer than session.timeout.ms: look for long garbage collections, CPU "
    "limits that throttle it, and the network between it and the broker.",
    "removal": "The coordinator had removed it: look at the broker's log of the group, which says why, and for long "
    "garbage collections, CPU limits that throttle it, and the network between it and the broker.",
    "left": "It leaves the group in order each time: look at what closes and opens it, an autoscaler, a deployment, a "
    f"supervisor, or an application that closes its consumer after an error. {_STATIC}",
}
"""By how the lives ended. Shortening a timeout is in none: none of these ends waits for one."""


@detector(36, basis="frames")
def flapping_member(seen: Seen) -> Iterator[DetectorResult]:
    """Flapping member: a client that is lost and comes back, over and over.

    A client that comes back has a new member id, so the detector counts member ids one after the other of the same
    client id and host (or of the same group.instance.id). Normal are several consumers with one client id on one host
    at the same time; they look alike, so the returns are divided by the number of members present at once. A dead one
    is not present, although the coordinator counts it until its session is over: also where another process of its
    client joined within that session (`expiries`). Those that `tight_heartbeats` explains are left out. Each return was
    seen, and where the end of a life is missing, the more are present at once: lost packets make it fewer returns.

    The advice follows from how the lives ended (`MemberLife.end`, `MemberLife.why_left`), the commonest way first.

    Threshold: 3 returns of each within 10 minutes.
    """
    scaled = swinging_ids(seen.history)
    for loop in loops_of(seen):
        if not scaled.issuperset(loop.ids):
            yield _flapping_found(seen.history, loop)


class Loop(NamedTuple):
    """A client that is lost and comes back, over and over.

    :ivar lives: all of its member ids, in order of their start
    :ivar returns: those of the busiest window
    :ivar at_once: how many consumers have its name
    """

    name: str
    lives: list[MemberLife]
    returns: list[MemberLife]
    at_once: int

    @property
    def ids(self) -> set[str]:
        return {life.member_id for life in self.lives}


def loops_of(seen: Seen) -> Iterator[Loop]:
    """Yield the clients that come back again and again, as `flapping_member` counts.

    Several clients that take one group.instance.id from each other are none: that is a refusal (`refused`). Those that
    `tight_heartbeats` explains are none, either.
    """
    members = [life for life in _with_restarts(seen.history) if client_at(life) not in seen.too_tight]
    for name, lives in _clients(members).items():
        at_once = _most_at_once(lives)
        returns = busiest(lives[at_once:], lambda life: life.joined_ns, WINDOW_NS)
        if len(returns) >= FLAPPING_MEMBER_THRESHOLD * at_once and not _take_turns(lives, seen):
            yield Loop(name, lives, returns, at_once)


def _take_turns(lives: Sequence[MemberLife], seen: Seen) -> bool:
    """Whether several processes take one group.instance.id from each other.

    On the wire the end of a process is seen: one that was replaced and did not end lives on.
    """
    gone = [life for life in lives if life.left_ns is not None]
    if len({(life.client_id, life.client_host) for life in lives}) > 1:
        return all(life.why_left == "replaced" for life in gone)
    ends = Counter(map(_end_of, gone)).most_common(1)
    return seen.exchanges is not None and [end for end, _ in ends] == ["replaced"]


def _flapping_found(history: GroupHistory, loop: Loop) -> DetectorResult:
    name, lives, returns, ids = loop.name, loop.lives, loop.returns, loop.ids
    first, last = returns[0].joined_ns, returns[-1].joined_ns
    ended = [life for life in lives if first - WINDOW_NS <= _gone_ns(life) <= last and _end_of(life)]
    ways = Counter(_end_of(life) for life in ended).most_common()
    return DetectorResult(
        severity="warning",
        from_ns=lives[0].joined_ns,
        to_ns=last,
        subject=name,
        text=f"{name} came back {len(returns)} times within {_span(last - lives[0].joined_ns)}"
        + _lost_by(ways)
        + _cost(history, ids),
        advice=_ADVICE.get(ways[0][0], _NO_REASON) if ways else _NO_REASON,
        value=len(returns) / loop.at_once,
        threshold=FLAPPING_MEMBER_THRESHOLD,
        rebalances=[row.number for row in history.rebalances if concerns(row, ids)],
        evidence=_evidence(returns, ended),
        cost_ms=unclaimed_ms(history, ids),
    )


def _with_restarts(history: GroupHistory) -> list[MemberLife]:
    """Return the lives, with the end of those whose client was another process before their sessions were over."""
    ended = {
        each.life.member_id: each.again.joined_ns
        for expiries in read_expiries(history)
        if is_restarted(expiries)
        for each in expiries
        if each.is_early and each.again is not None
    }
    return [
        replace(life, died_ns=ended[life.member_id], end=_RESTARTED) if life.member_id in ended else life
        for life in history.members
    ]


def _lost_by(ways: Sequence[tuple[str, int]]) -> str:
    if not ways:
        return ""
    loop = ", a crash loop" if ways[0][0] in _CRASHES else ""
    return f"{loop}; it was lost by {', '.join(f'{way} ({count} x)' for way, count in ways)}"


def _evidence(returns: Sequence[MemberLife], ended: Sequence[MemberLife]) -> list[Evidence]:
    facts = [Evidence(life.joined_ns, "", -1, f"it joins as {life.member_id}") for life in returns]
    facts += [Evidence(_gone_ns(life), "", -1, f"{life.member_id}: {_end_of(life)}") for life in ended]
    return sorted(facts, key=lambda fact: fact.time_ns)


def _cost(history: GroupHistory, ids: set[str]) -> str:
    """How long rebalances waited for its dead incarnations; a second in which they waited for two counts once."""
    waits = [wait for row in history.rebalances for wait in row.waited_for if wait.died_ns and wait.member_id in ids]
    waited = [row for row in history.rebalances if any(wait in waits for wait in row.waited_for)]
    if not waited:
        return ""
    times = "a rebalance" if len(waited) == 1 else f"rebalances {len(waited)} times"
    ns = covered_ns((wait.from_ns, wait.from_ns + round(wait.ms * NS_PER_MS)) for wait in waits)
    return f"; {times} waited for a dead incarnation of it, {ns / SECOND_NS:.1f} s in all"


def _span(length_ns: int) -> str:
    if length_ns < MINUTE_NS * 2:
        return f"{max(1, round(length_ns / SECOND_NS))} s"
    return f"{round(length_ns / MINUTE_NS)} min"


def _end_of(life: MemberLife) -> str:
    """How it ended, as `_ADVICE` has it; empty for a life that goes on."""
    if life.end in (None, "left", "gone"):
        return life.why_left or life.end or ""
    return life.end or ""


def _gone_ns(life: MemberLife) -> int:
    """When it was gone: dead, removed or last seen."""
    if life.died_ns is not None:
        return life.died_ns
    return life.over_ns


def _clients(members: list[MemberLife]) -> dict[str, list[MemberLife]]:
    """Return the lives of each client, in order of their start."""
    clients: dict[str, list[MemberLife]] = defaultdict(list)
    for life in sorted(members, key=lambda life: life.joined_ns):
        if name := life.instance_id or " at ".join(filter(None, [life.client_id, life.client_host])):
            clients[name].append(life)
    return clients


def _most_at_once(lives: list[MemberLife]) -> int:
    """Return how many of them there were at the same time, at most; 1 at least."""
    moments = [(life.joined_ns, 1) for life in lives]
    moments += [(_gone_ns(life), -1) for life in lives]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return max(most, 1)


# ---- frozen member

INTERVALS: Final = 3
LEAST_NS: Final = 3 * SECOND_NS
_BEATS: Final = 4  # heartbeats from which on their interval is known
_LEAST_OTHERS: Final = 2  # answers to other members meanwhile
_BEATING: Final = ["Heartbeat", *EPOCH_APIS]


class _Gap(NamedTuple):
    """A silence of a member.

    :ivar interval_ns: between its heartbeats; 0 where it has sent too few
    """

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
    def least_ns(self) -> float:
        """From which length on it counts."""
        return max(INTERVALS * self.interval_ns or (self.life.session_timeout_ms or 0) * NS_PER_MS, LEAST_NS)

    @property
    def usual(self) -> str:
        """What it is compared with."""
        if not self.interval_ns:
            return f"longer than its session timeout of {lasting((self.life.session_timeout_ms or 0) * NS_PER_MS)}"
        return f"with a heartbeat every {lasting(self.interval_ns)} before"

    @property
    def is_long(self) -> bool:
        return self.was_removed or 2 * self.ns >= (self.life.session_timeout_ms or 0) * NS_PER_MS > 0


@detector(39, basis="absence")
def frozen_member(seen: Seen) -> Iterator[DetectorResult]:
    """Frozen member: a member sends nothing for much longer than its heartbeat interval, and then it goes on.

    The process stood still (garbage collection, a paused VM or container, a CPU limit) or its network carried nothing;
    it did not die, for the same member id sends again. A gap counts from the last response on, so that a member that
    waits for its JoinGroup, or for a broker that does not answer, is not silent. The broker that had answered it has to
    answer others meanwhile: else the capture paused, or the broker, or its traffic was not captured. A member that goes
    on by another connection, and whose former one carries a request behind that, was not silent: that was held up.
    A member that was cut off is one of `outage`.

    Threshold: three of the member's own heartbeat intervals, and three seconds; the session timeout where it has sent
    fewer than four heartbeats, as one whose first batch holds it up. Warning where half of the session timeout passed,
    or where the coordinator had removed the member when it went on; else info.
    """
    if seen.exchanges is None:
        return
    gaps = _not_busy(_silences(seen.history, seen.exchanges), handled(seen))
    gaps = [gap for gap in gaps if not was_cut_off(seen.history, gap.life.member_id, gap.from_ns, gap.to_ns)]
    gaps = [gap for gap in gaps if not _has_hole(seen.history, gap)]
    for is_long in (True, False):
        if chosen := [gap for gap in gaps if gap.is_long is is_long]:
            yield _finding(seen.history, chosen, "warning" if is_long else "info")


def _not_busy(gaps: Iterable[_Gap], busy: Sequence[Handled]) -> list[_Gap]:
    """Return the silences that are not those of members that `slow_handler` has."""
    spans = [(each.life.member_id, each.news_ns, each.news_ns + each.took_ns) for each in busy]
    return [
        gap
        for gap in gaps
        if not any(gap.life.member_id == name and gap.from_ns < end and gap.to_ns > begin for name, begin, end in spans)
    ]


def _has_hole(history: GroupHistory, gap: _Gap) -> bool:
    """Whether something of the member is missing there: it may wait for the answer to a join that is, or have that."""
    name = gap.life.member_id
    return any(
        (name in hole.members or not hole.connection) and hole.from_ns <= gap.to_ns and hole.to_ns >= gap.from_ns
        for hole in history.holes
    )


def _silences(history: GroupHistory, exchanges: pa.Table) -> list[_Gap]:
    """Return the gaps in which others were answered, by member life."""
    asked = pc.and_(pc.is_valid(exchanges["asked_ns"]), pc.not_equal(exchanges["member_id"], ""))
    lives: dict[str, list[tuple[int, MemberLife]]] = defaultdict(list)  # an id may come back
    for number, life in enumerate(history.members):
        lives[life.member_id].append((number, life))
    by_life: dict[int, list[_Gap]] = {}
    for member_id, times, done, beats in _by_member(exchanges, asked):
        for number, life in lives.get(member_id, ()):
            if found := list(_gaps(life, times, done, beats)):
                by_life[number] = found
    if not by_life:
        return []
    rows = exchanges.select(["answered_ns", "connection"]).append_column("member", exchanges["member_id"])
    answers = _Answers(rows.filter(asked))
    gaps = [gap for _, found in sorted(by_life.items()) for gap in found]
    return [gap for gap in gaps if answers.of_others(gap) >= _LEAST_OTHERS and not _was_held_up(gap, exchanges)]


def _was_held_up(gap: _Gap, exchanges: pa.Table) -> bool:
    """Whether the connection that a member had before a gap carried a request after the first one on another."""
    asked = pc.and_(pc.equal(exchanges["member_id"], gap.life.member_id), pc.is_valid(exchanges["asked_ns"]))
    rows = exchanges.select(["asked_ns", "connection"]).filter(asked).sort_by("asked_ns")
    times, names = rows["asked_ns"].to_numpy(), rows["connection"].to_pylist()
    at = int(np.searchsorted(times, gap.to_ns))
    return 0 < at < len(names) and names[at - 1] != names[at] and names[at - 1] in names[at + 1 :]


def _by_member(
    exchanges: pa.Table, asked: pa.ChunkedArray
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]]:
    """Yield of each member when it asked, when that was answered (else asked), and which of it are heartbeats.

    :param asked: which rows have the time and the member
    """
    rows = in_order(exchanges, ["member_id", "asked_ns"], asked)
    codes = np.concatenate([pc.fill_null(chunk.indices, -1).to_numpy() for chunk in exchanges["member_id"].chunks])
    times = pc.fill_null(exchanges["asked_ns"], 0).to_numpy()
    done = pc.fill_null(exchanges["answered_ns"], 0).to_numpy()
    beats = pc.is_in(exchanges["api"], value_set=pa.array(_BEATING)).to_numpy()
    names = exchanges["member_id"].chunk(0).dictionary
    starts = np.flatnonzero(np.diff(codes[rows], prepend=-1))
    for own in np.split(rows, starts[1:]) if len(starts) else ():
        answered = np.where(done[own] > 0, done[own], times[own])
        yield names[int(codes[own[0]])].as_py(), times[own], answered, beats[own]


def _gaps(
    life: MemberLife, asked: NDArray[np.int64], done: NDArray[np.int64], beats: NDArray[np.bool_]
) -> Iterator[_Gap]:
    times = asked[beats]
    interval = float(np.median(np.diff(times))) if len(times) >= _BEATS else 0.0
    least = INTERVALS * interval or (life.session_timeout_ms or 0) * NS_PER_MS
    if not least:
        return
    silent = asked[1:] - np.maximum.accumulate(done)[:-1]
    for at in np.flatnonzero(silent >= max(least, LEAST_NS)).tolist():
        from_ns, to_ns = int(asked[at + 1] - silent[at]), int(asked[at + 1])
        if life.is_there(from_ns):
            yield _Gap(life, from_ns, to_ns, interval)


class _Answers:
    """The answers to members, by broker and time.

    :param rows: requests of members, with their connections
    """

    def __init__(self, rows: pa.Table) -> None:
        done = rows.filter(pc.is_valid(rows["answered_ns"]))
        names = done["connection"].unify_dictionaries().combine_chunks()
        brokers = pc.extract_regex(names.dictionary, BROKER_IN_NAME)
        codes = pc.struct_field(brokers, "broker").fill_null("").dictionary_encode()
        broker = codes.indices.to_numpy()[names.indices.to_numpy()]
        members = done["member"].unify_dictionaries().combine_chunks()
        self._members = {name: code for code, name in enumerate(members.dictionary.to_pylist())}
        times = done["answered_ns"].to_numpy()
        order = np.lexsort((times, broker))
        self._times, self._broker, self._member = times[order], broker[order], members.indices.to_numpy()[order]

    def of_others(self, gap: _Gap) -> int:
        """Count the answers to other members in a gap, of the broker that had answered its member last."""
        mine = self._members.get(gap.life.member_id)
        own = np.flatnonzero((self._member == mine) & (self._times <= gap.from_ns))
        if not len(own):
            return 0
        broker = self._broker[own[np.argmax(self._times[own])]]
        start, end = np.searchsorted(self._broker, [broker, broker + 1])
        first, last = start + np.searchsorted(self._times[start:end], [gap.from_ns, gap.to_ns])
        return int(np.count_nonzero(self._member[first:last] != mine))


def _finding(history: GroupHistory, gaps: list[_Gap], severity: str) -> DetectorResult:
    worst = max(gaps, key=lambda gap: gap.ns)
    names = sorted({person(gap.life.client_id, gap.life.client_host) for gap in gaps})
    end = ", when the coordinator had removed it" if worst.was_removed else ""
    more = f"; {len(gaps)} such pauses ({first_of(names)})" if len(gaps) > 1 else ""
    return DetectorResult(
        severity=severity,
        from_ns=min(gap.from_ns for gap in gaps),
        to_ns=max(gap.to_ns for gap in gaps),
        subject=only(sorted({client_of(gap.life) for gap in gaps})),
        text=f"{person(worst.life.client_id, worst.life.client_host)} was silent for {lasting(worst.ns)}, "
        f"{worst.usual}, and then went on as the same process{end}: it was frozen, or its network "
        f"carried nothing{more}",
        advice="Look at that process and host at that time: garbage collection, a paused or migrated VM, a container "
        "without CPU, a suspended laptop, the network. The process did not end, so its own log has a gap as well.",
        value=worst.ns / NS_PER_MS,
        threshold=worst.least_ns / NS_PER_MS,
        rebalances=[
            row.number
            for row in history.rebalances
            if any(gap.life.member_id in [gone.member_id for gone in row.removed] for gap in gaps if gap.was_removed)
        ],
        evidence=(
            Evidence(gap.to_ns, "", -1, f"{client_of(gap.life)} goes on after {lasting(gap.ns)}") for gap in gaps
        ),
        rests_on=frozenset(gap.life.member_id for gap in gaps),
    )


# ---- slow polls


class _Late(NamedTuple):
    """A member that did not poll in time.

    :ivar took_ns: how long its poll took at least; 0 where its max.poll.interval.ms is not known
    """

    life: MemberLife
    is_back: bool
    took_ns: int

    @property
    def name(self) -> str:
        return person(self.life.client_id, self.life.client_host)


@detector(35)
def slow_polls(seen: Seen) -> Iterator[DetectorResult]:
    """Slow polls: members that left the group because their application had not polled within max.poll.interval.ms.

    Normal is none. How long the poll took shows when the same client joins again: the interval, and the time until
    then.

    Threshold: 1; warning.
    """
    late = [_late(life, seen.history.members) for life in seen.history.members if life.why_left == "poll timeout"]
    if not late:
        return
    yield _slow_polls_found(seen.history, late)


def _slow_polls_found(history: GroupHistory, late: list[_Late]) -> DetectorResult:
    names = sorted({each.name for each in late})
    longest = max(late, key=lambda each: each.took_ns)
    lefts = [each.life.left_ns or each.life.last_seen_ns for each in late]
    limit_ns = (longest.life.rebalance_timeout_ms or 0) * NS_PER_MS
    within = f" ({lasting(limit_ns)})" if limit_ns else ""
    times = f", {len(late)} times" if len(late) > 1 else ""
    return DetectorResult(
        severity="warning",
        from_ns=min(lefts),
        to_ns=max(lefts),
        subject=only(sorted({client_of(each.life) for each in late})),
        text=f"{first_of(names)} did not poll within max.poll.interval.ms{within} and left the group{times}"
        f"{_measured(longest)}",
        advice=_advice(longest),
        value=len(late),
        rebalances=[row.number for row in history.rebalances if row.cause == Cause.POLL_TIMEOUT],
        evidence=(Evidence(left_ns, "", -1, f"{each.name} leaves") for each, left_ns in zip(late, lefts, strict=False)),
        rests_on=frozenset(each.life.member_id for each in late),
    )


def _late(life: MemberLife, members: list[MemberLife]) -> _Late:
    left_ns = life.left_ns or life.last_seen_ns
    back = [
        other.joined_ns
        for other in members
        if (other.client_id, other.client_host) == (life.client_id, life.client_host) and other.joined_ns >= left_ns
    ]
    limit_ns = (life.rebalance_timeout_ms or 0) * NS_PER_MS
    return _Late(life, bool(back), limit_ns + min(back) - left_ns if back and limit_ns else limit_ns)


def _measured(late: _Late) -> str:
    if not late.took_ns:
        return ""
    if not late.is_back:
        return f"; the poll took more than {lasting(late.took_ns)}: the client has not come back"
    return f"; the longest took {lasting(late.took_ns)}, by when it joined again"


def _advice(late: _Late) -> str:
    """Return what to change, with the measured time where there is one."""
    bound = (
        f"above {lasting(late.took_ns)}" if late.took_ns and late.is_back else "above the longest time between polls"
    )
    return (
        "Find out what the application of that member does between two polls. Set max.poll.records "
        f"so that a batch fits into the interval, or max.poll.interval.ms {bound}; the session timeout has nothing to "
        "do with it, since heartbeats went on."
    )
