"""Rebalances that come too often, do not end, or reset the group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.compute as pc

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.course import resets_of
from kcoord_wire.forensics.detectors.finding import (
    MINUTE_NS,
    DetectorResult,
    Seen,
    busiest,
    client_at,
    detector,
    first_evidence,
    lasting,
    plural,
    runs,
    subscription_traits,
)
from kcoord_wire.forensics.detectors.membership import loops_of
from kcoord_wire.forensics.detectors.rounds import Round
from kcoord_wire.forensics.detectors.sizes import swinging_ids
from kcoord_wire.forensics.model import (
    NS_PER_MS,
    Evidence,
    Generation,
    GroupHistory,
    Rebalance,
    RemovedMember,
    StateInterval,
)
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.wording import first_of, only

if TYPE_CHECKING:
    import pyarrow as pa


# ---- storm

WINDOW_NS: Final = 10 * MINUTE_NS
STORM_THRESHOLD: Final = 10
STORM_CRITICAL: Final = 30

_JOINS: Final = frozenset({Cause.NEW_MEMBER})
_LEAVES: Final = frozenset({Cause.MEMBER_LEFT, Cause.SESSION_EXPIRED})


@detector(64, basis="frames")
def storm(seen: Seen) -> Iterator[DetectorResult]:
    """Storm: a group that rebalances again and again, more often than its members come and go.

    Normal is one rebalance for each client that joins and one for each that leaves, with the second round of a
    cooperative assignor after it: the start of a hundred members, or a rolling bounce of them, is not a storm. The
    rebalances that a client causes beyond its first join and its first leave within the window are excess. Those of a
    client that is lost and comes back over and over (`flapping_member`), of members that are added and taken away
    (`swinging_size`), and of heartbeats without room (`tight_heartbeats`) are named there.

    Threshold: 10 excess rebalances within 10 minutes; critical from 30 on (KAFKA-15106 had 200).
    """
    worst = busiest(_excess(_without_reason(seen)), lambda rebalance: rebalance.started_ns, WINDOW_NS)
    if len(worst) < STORM_THRESHOLD:
        return
    first, last = worst[0], worst[-1]
    minutes = max(1.0, (last.started_ns - first.started_ns) / MINUTE_NS)
    causes = Counter(rebalance.cause for rebalance in worst).most_common(3)
    client, times = Counter(_client(rebalance) for rebalance in worst).most_common(1)[0]
    yield DetectorResult(
        severity="critical" if len(worst) >= STORM_CRITICAL else "warning",
        from_ns=first.started_ns,
        to_ns=last.ended_ns or last.started_ns,
        text=f"{len(worst)} rebalances in {minutes:.0f} min beyond its members' first joins and leaves: "
        f"{', '.join(f'{count} x {cause}' for cause, count in causes)}; {client} set off {times} of them",
        advice=next((cause for cause in Cause if cause == causes[0][0]), Cause.UNKNOWN).facts.in_a_storm,
        value=len(worst),
        threshold=STORM_THRESHOLD,
        rebalances=[rebalance.number for rebalance in worst],
        evidence=(_storm_evidence(rebalance) for rebalance in worst),
    )


def _without_reason(seen: Seen) -> list[Rebalance]:
    """Return the rebalances that no change of the group's size, and no client with a reason of its own, set off.

    Where most clients are in loops, it is the group that throws them out.
    """
    history, named, loops = seen.history, swinging_ids(seen.history), list(loops_of(seen))
    clients = {(life.client_id, life.client_host) for life in history.members}
    if len(loops) == 1 or 2 * len(loops) <= len(clients):
        named = named.union(*(loop.ids for loop in loops))
    return [row for row in history.rebalances if row.member_id not in named and client_at(row) not in seen.too_tight]


def _excess(rebalances: list[Rebalance]) -> Iterator[Rebalance]:
    """Yield the rebalances that are not a client's first join or first leave within the window."""
    last: dict[tuple[str, bool], int] = {}
    is_explained = False
    for rebalance in rebalances:
        if rebalance.cause == Cause.COOPERATIVE_FOLLOW_UP:
            if not is_explained:
                yield rebalance
            is_explained = False  # the second round is normal, a third is not
            continue
        is_explained = False
        if rebalance.cause in _JOINS | _LEAVES:
            key = (_client(rebalance), rebalance.cause in _JOINS)
            is_explained = key not in last or rebalance.started_ns - last[key] > WINDOW_NS
        if is_explained:
            last[key] = rebalance.started_ns
        else:
            yield rebalance


def _client(rebalance: Rebalance) -> str:
    name = " at ".join(filter(None, [rebalance.client_id, rebalance.client_host]))
    return name or rebalance.member_id or "an unknown member"


def _storm_evidence(rebalance: Rebalance) -> Evidence:
    if rebalance.evidence:
        return rebalance.evidence[0]
    return Evidence(rebalance.started_ns, "", -1, f"rebalance {rebalance.number}: {rebalance.detail}")


# ---- stuck: a rebalance does not get on, because the group waits for one member

PREPARING_MS: Final = 30_000
COMPLETING_MS: Final = 10_000
_ADVICE_ON_DEAD: Final = (
    "The coordinator learns of the end of a process only when its session is over, and all others wait until then. "
    "Look at that process first: its exit code and log, the OOM killer, a frozen host. A restart with a "
    "group.instance.id takes its place at once; closing the consumer on SIGTERM leaves the group in order."
)
_FUTILE: Final = 2  # waits that ended in another rebalance; one alone may be chance


class _Wait(NamedTuple):
    """An interval that lasted long, with the last rebalance that had begun by then."""

    interval: StateInterval
    ms: float
    rebalance: Rebalance | None


class _Waits:
    """The intervals of a state that lasted `threshold_ms` or longer, in order of time."""

    def __init__(self, history: GroupHistory, state: str, threshold_ms: float) -> None:
        self._threshold_ms = threshold_ms
        self.found: list[_Wait] = []
        for interval in history.states:
            end = history.group.last_ns if interval.to_ns is None else interval.to_ns
            ms = (end - interval.from_ns) / NS_PER_MS
            if interval.state == state and ms >= threshold_ms:
                begun = [item for item in history.rebalances if item.started_ns <= interval.from_ns]
                self.found.append(_Wait(interval, ms, begun[-1] if begun else None))
        self.rebalances = [wait.rebalance for wait in self.found if wait.rebalance is not None]
        self.worst = max(self.found, key=lambda wait: wait.ms, default=None)
        self.is_open = self.worst is not None and self.worst.interval.to_ns is None

    def finding(
        self, severity: str, subject: str | None, text: str, details: str, advice: str, silent: Sequence[str] = ()
    ) -> DetectorResult:
        """Return one finding for all of them; `text` says what the group waits for, `silent` are leaders like that."""
        assert self.worst is not None
        still = ", still waiting" if self.is_open else ""
        return DetectorResult(
            severity=severity,
            from_ns=self.found[0].interval.from_ns,
            to_ns=self.found[-1].interval.to_ns,
            subject=subject,
            text=f"{len(self.found)} x longer than {self._threshold_ms // 1000} s waiting for {text}, the longest "
            f"{self.worst.ms / 1000:.1f} s{still}{details}",
            advice=advice,
            value=self.worst.ms,
            threshold=self._threshold_ms,
            rebalances=[rebalance.number for rebalance in self.rebalances],
            evidence=first_evidence(self.rebalances, 2),
            suspects=tuple(silent),
            traits=frozenset({"silent leader"} if silent else ()),
        )


@detector(40)
def stuck_preparing(seen: Seen) -> Iterator[DetectorResult]:
    """Stuck in PreparingRebalance: the group waits for a member that does not rejoin.

    An eager group does no work meanwhile. Normal is about a heartbeat interval (3 s): members learn of the rebalance by
    heartbeat and rejoin at the end of their poll. The coordinator waits for the largest rebalance timeout of all
    members (max.poll.interval.ms, 5 minutes by default).

    Threshold: 30 s; critical when the timeout ended the wait, or when it has not ended. A wait for a member that is
    dead or silent ends with its session, so that it is a warning.
    """
    waits = _Waits(seen.history, "PreparingRebalance", PREPARING_MS)
    if not waits.found:
        return
    if dead := _dead(waits.rebalances):
        yield waits.finding("warning", only(dead), f"{first_of(dead)}, dead or silent by then", "", _ADVICE_ON_DEAD)
        return
    missed, slow = _missed(waits.rebalances), _slow(waits.rebalances)
    details = f"; {', '.join(missed)} did not rejoin" if missed else f"; {', '.join(slow)} came last" if slow else ""
    yield waits.finding(
        "critical" if missed or waits.is_open else "warning",
        next(iter(missed or slow), None),
        "members to rejoin",
        details,
        "Find out what the late member does between two polls: it learns of a rebalance only there. A shorter "
        "max.poll.interval.ms bounds the wait of all others.",
    )


def _dead(rebalances: list[Rebalance]) -> list[str]:
    """Return the clients that were waited for although they were dead or silent."""
    waits = [wait for rebalance in rebalances for wait in rebalance.waited_for]
    long = [wait for wait in waits if wait.died_ns is not None and wait.ms >= PREPARING_MS / 2]
    return sorted({wait.client_id or wait.member_id for wait in long})


def _missed(rebalances: list[Rebalance]) -> list[str]:
    """Return the clients that did not rejoin in time."""
    removed = [gone for rebalance in rebalances for gone in rebalance.removed if gone.why == "rebalance timeout"]
    return sorted({gone.client_id or gone.member_id for gone in removed})


def _slow(rebalances: list[Rebalance]) -> list[str]:
    """Return the clients that rejoined long after all others."""
    late = [rebalance for rebalance in rebalances if (rebalance.late_ms or 0) >= PREPARING_MS / 2]
    return sorted({rebalance.last_client_id or rebalance.last_member_id or "" for rebalance in late} - {""})


@detector(42)
def stuck_completing(seen: Seen) -> Iterator[DetectorResult]:
    """Stuck in CompletingRebalance: all members have joined, and the leader does not send the assignment.

    Normal is the time that the leader's assignor needs, milliseconds to a second. With an assignor that takes longer
    than the timeouts the group never becomes stable: its members are removed, rejoin, and it starts over
    (aiokafka#1176, 84 members, 45 minutes). Or the leader is gone and the group does not know (KAFKA-12890).

    Threshold: 10 s; critical when two such waits or more ended in another rebalance, when a sync timeout ended one, or
    when it has not ended.
    """
    waits = _Waits(seen.history, "CompletingRebalance", COMPLETING_MS)
    if not waits.found:
        return
    futile = sum(rebalance.outcome != "stable" for rebalance in waits.rebalances)
    timeouts = any(rebalance.cause == Cause.SYNC_EXPIRED for rebalance in seen.history.rebalances)
    names = seen.names
    leaders = {rebalance.leader_id for rebalance in waits.rebalances if rebalance.leader_id is not None}
    led = sorted(names.get(leader, leader) for leader in leaders)
    assignors = sorted({rebalance.assignor for rebalance in waits.rebalances if rebalance.assignor})
    yield waits.finding(
        "critical" if futile >= _FUTILE or timeouts or waits.is_open else "warning",
        only(led),
        "the leader's assignment",
        f"; {futile} of them led to nothing"
        + (f"; the leader was {', '.join(led[:3])}" if led else "")
        + (f" with {', '.join(assignors)}" if assignors else ""),
        "Look at the leader: an assignor that is too slow for this many members and partitions (take another one, or "
        "equal subscriptions), or a leader that is gone. Until then larger session and rebalance timeouts let it end.",
        _silent(seen.history, waits.found),
    )


def _silent(history: GroupHistory, waits: Sequence[_Wait]) -> list[str]:
    """Return the leaders that have sent nothing, not even a heartbeat, since they received the list of members."""
    lives = {life.member_id: life for life in history.members}
    led = {(wait.rebalance.leader_id or "", wait.interval.from_ns) for wait in waits if wait.rebalance is not None}
    return sorted(who for who, since in led if who in lives and lives[who].last_seen_ns <= since)


# ---- cooperative loop

COOPERATIVE_LOOP_THRESHOLD: Final = 3
COOPERATIVE_LOOP_CRITICAL: Final = 10


@detector(45)
def cooperative_loop(seen: Seen) -> Iterator[DetectorResult]:
    """Cooperative loop: the second round of a cooperative rebalance is followed by a third, a fourth, and so on.

    Normal are two rounds: the first revokes the partitions that are to move, the second assigns them (KIP-429). When
    members disagree about who owns what (stale owned partitions, or two members that claim the same one), each round
    revokes something and requires another (librdkafka#4783).

    Threshold: 3 follow-up rounds in a row in which no member joins, leaves or changes anything.
    """
    for run in runs(seen.history.rebalances, lambda rebalance: rebalance.cause == Cause.COOPERATIVE_FOLLOW_UP):
        if len(run) < COOPERATIVE_LOOP_THRESHOLD:
            continue
        yield DetectorResult(
            severity="critical" if len(run) >= COOPERATIVE_LOOP_CRITICAL else "warning",
            from_ns=run[0].started_ns,
            to_ns=run[-1].ended_ns,
            subject=only(sorted({rebalance.client_id for rebalance in run if rebalance.client_id})),
            text=f"{len(run)} follow-up rounds in a row, where one is normal; {sum(r.moved for r in run)} partitions "
            f"moved, {sum(r.moved_needlessly for r in run)} of them needlessly",
            advice="Members disagree about who owns what. Update the client library, and have all members on the same "
            "one; stopping the group once ends the loop.",
            value=len(run),
            threshold=COOPERATIVE_LOOP_THRESHOLD,
            rebalances=[rebalance.number for rebalance in run],
            evidence=first_evidence(run, 1),
            suspects=tuple(sorted({rebalance.leader_id for rebalance in run if rebalance.leader_id})),
            traits=subscription_traits(seen.history.members),
        )


# ---- generation reset

_SURE: Final = 0.9

_DELETED: Final = (
    "Its committed offsets are gone with it, so that its consumers begin where auto.offset.reset says: compare the "
    "offsets with those before, and look who deletes the group (kafka-consumer-groups --delete, a script, an operator, "
    "or the broker, after offsets.retention.minutes without members)."
)
_LOST: Final = (
    "The coordinator lost its log: compare the committed offsets with those before, and look at the replication factor "
    "of __consumer_offsets and at unclean leader elections."
)


@detector(32)
def generation_reset(seen: Seen) -> Iterator[DetectorResult]:
    """Generation reset: the group's generation decreases.

    Normal is that generations only grow, also over restarts of the coordinator, which keeps them in its log. A
    generation that decreases, or begins again at the same number, means one of two things. If the group was empty by
    then, it was deleted and formed again: by DeleteGroups, or by the coordinator once it had no offsets left. If it had
    members, the coordinator has lost its log (an offsets topic with one replica, an unclean leader election). Its
    offsets are gone in either case. It is critical where members had to rejoin because the coordinator did not know
    them any more.

    Threshold: any.
    """
    for before, after in resets_of(seen.history):
        led = [row for row in seen.history.rebalances if row.generation_id == after.generation_id]
        led = [row for row in led if before.joined_ns < row.started_ns <= after.joined_ns]
        was_empty = _was_empty(seen.history, before, after)
        what = "the group was deleted when it was empty, and formed again" if was_empty else "the group was lost"
        yield DetectorResult(
            severity="warning" if was_empty or not _is_known(led) else "critical",
            from_ns=before.joined_ns,
            to_ns=after.joined_ns,
            text=f"generation {after.generation_id} follows generation {before.generation_id}: {what}",
            advice=_DELETED if was_empty else _LOST,
            value=max(before.generation_id - after.generation_id, 1),
            rebalances=[row.number for row in led],
            evidence=[_generation_reset_evidence(before), _generation_reset_evidence(after)],
        )


def _was_empty(history: GroupHistory, before: Generation, after: Generation) -> bool:
    return any(
        row.state == "Empty" and before.joined_ns < row.from_ns <= after.joined_ns for row in history.states
    ) or (before.members == 0)


def _is_known(led: list[Rebalance]) -> bool:
    """Whether members came back from the loss: else frames between the two generations may be missing."""
    return any(row.cause == Cause.COORDINATOR_FAILOVER and row.confidence >= _SURE for row in led)


def _generation_reset_evidence(row: Generation) -> Evidence:
    return Evidence(row.joined_ns, "", -1, f"generation {row.generation_id} of {row.members} members")


# ---- leader

LEADER_THRESHOLD: Final = 3
LEADER_CRITICAL: Final = 10


@detector(41)
def leader_does_not_assign(seen: Seen) -> Iterator[DetectorResult]:
    """Leader does not assign: the leader gets the list of members, and joins again instead of sending the assignment.

    Normal is one SyncGroup for each list. A leader whose assignor fails, or that refuses what it returned, rejoins at
    once and fails again: the group never leaves the rebalance, although all members are alive (KAFKA-13406).

    Threshold: 3 lists in a row without a SyncGroup, each followed by another JoinGroup of the same leader.
    """
    rounds = seen.rounds
    last_join = {each.leader_id: each.asked_ns for each in rounds}

    def is_given_up(each: Round) -> bool:
        return not each.is_synced and last_join[each.leader_id] > each.listed_ns

    stretches = [run for run in runs(rounds, is_given_up) if len(run) >= LEADER_THRESHOLD]
    if not stretches:
        return
    lists = [each for run in stretches for each in run]
    longest = max(map(len, stretches))
    leaders = sorted({each.leader for each in lists})
    yield DetectorResult(
        severity="critical" if longest >= LEADER_CRITICAL else "warning",
        from_ns=lists[0].listed_ns,
        to_ns=lists[-1].listed_ns,
        subject=only(leaders),
        text=f"the leader ({first_of(leaders)}) got the members {len(lists)} times and joined again instead of "
        f"assigning, {longest} times in a row ({first_of(sorted({each.assignor for each in lists if each.assignor}))})",
        advice="Look at the leader's log: its assignor raises, or it refuses the assignment. Restart that member, so "
        "that another one leads; update its client library.",
        value=longest,
        threshold=LEADER_THRESHOLD,
        rebalances=seen.rebalances_of(lists),
        evidence=(each.evidence("no SyncGroup, but another JoinGroup") for each in lists),
        suspects=tuple(sorted({each.leader_id for each in lists})),
    )


# ---- slow leader

THRESHOLD_MS: Final = 1_000
_STREAMS: Final = "stream"  # its assignor, StreamsPartitionAssignor
_SLOW_MS: Final = 3_000  # heartbeats, which bring the news of a rebalance, are that far apart by default
_OFTEN: Final = 3


@detector(43, basis="frames")
def slow_leader(seen: Seen) -> Iterator[DetectorResult]:
    """Slow leader: the group waits for the leader's assignor.

    From the JoinGroup response with the list of members to the leader's SyncGroup only the assignor works, and all
    others wait. Normal are milliseconds. Waits of ten seconds or more, and those that end in another rebalance, are
    `stuck_completing`. Both frames were seen, and name the same generation: no lost packet makes the wait longer.

    Threshold: 1 s, with another member that waits; a warning from 3 s on, or where it happened three times, else info:
    a group that is rebalanced for another reason waits for its members' heartbeats as long. Of Kafka
    Streams always info: its leader asks for the ends of all changelogs and makes internal topics before it assigns.
    """
    rounds = [each for each in seen.rounds if each.given is not None]
    slow = [each for each in rounds if THRESHOLD_MS <= _took_ms(each) < COMPLETING_MS and len(each.claims) > 1]
    if not slow:
        return
    worst = max(slow, key=_took_ms)
    is_slow = _took_ms(worst) >= _SLOW_MS or len(slow) >= _OFTEN
    leaders = sorted({each.leader for each in slow})
    yield DetectorResult(
        severity="warning" if worst.assignor != _STREAMS and is_slow else "info",
        from_ns=slow[0].listed_ns,
        to_ns=slow[-1].synced_ns,
        subject=only(leaders),
        text=f"the leader {worst.leader} took {lasting(_took_ms(worst) * NS_PER_MS)} in its assignor "
        f"({worst.assignor}), and {len(worst.claims) - 1} {plural('other', range(len(worst.claims) - 1))} waited for it"
        + (f"; {len(slow)} of {len(rounds)} rounds were as slow ({first_of(leaders)})" if len(slow) > 1 else ""),
        advice="Look what the assignor of that member does: a custom one that asks other systems, or sticky assignment "
        "of many partitions to members with different subscriptions; else a process that stood still (garbage "
        "collection, CPU limit). Another assignor avoids the wait, or the consumer protocol (KIP-848), with which the "
        "broker assigns.",
        value=_took_ms(worst),
        threshold=THRESHOLD_MS,
        rebalances=seen.rebalances_of(slow),
        evidence=(each.evidence(f"its SyncGroup comes {lasting(_took_ms(each) * NS_PER_MS)} later") for each in slow),
    )


def _took_ms(each: Round) -> float:
    return (each.synced_ns - each.listed_ns) / NS_PER_MS


# ---- commits instead of joining

_COMMITS: Final = 3
_IN_BACKGROUND: Final = ("sarama", "franz-go", "kafkajs")  # their commits go on while a handler works


class _Removal(NamedTuple):
    """A member that was removed while it committed."""

    rebalance: Rebalance
    member_id: str
    client: str
    commits: list[Evidence]


@detector(44)
def commits_instead_of_joining(seen: Seen) -> Iterator[DetectorResult]:
    """Commits instead of joining: a member goes on committing in a rebalance, and is removed at the rebalance timeout.

    Normal is that a member commits once, when it gives its partitions up, and rejoins. One whose commit before the join
    is never done commits again at each poll (KAFKA-14024); one that does not poll while its client commits in the
    background looks the same, and its application is too slow. Libraries that commit in the background while a handler
    works (sarama, franz-go, kafkajs) are left to `slow_handler`.

    Threshold: 1 member that committed 3 times or more between its heartbeat with REBALANCE_IN_PROGRESS and its removal.
    """
    removals = [] if seen.exchanges is None else list(_removals(seen.history, seen.exchanges))
    if not removals:
        return
    clients = sorted({removal.client for removal in removals})
    most = max(len(removal.commits) for removal in removals)
    yield DetectorResult(
        severity="warning",
        from_ns=removals[0].rebalance.started_ns,
        to_ns=removals[-1].rebalance.ended_ns,
        subject=only(clients),
        text=f"{first_of(clients)} went on committing instead of rejoining, and {plural('was', clients, 'were')} "
        f"removed at the rebalance timeout, {len(removals)} {plural('time', removals)}; {most} commits in one "
        f"rebalance",
        advice="Find out whether the application polls. If it does, the client waits for a commit that it repeats: "
        "update it, or commit synchronously before the rebalance.",
        value=len(clients),
        rebalances=[removal.rebalance.number for removal in removals],
        evidence=(removal.commits[-1] for removal in removals),
        suspects=tuple(sorted({removal.member_id for removal in removals})),
    )


def _removals(history: GroupHistory, exchanges: pa.Table) -> Iterator[_Removal]:
    software = {life.member_id: life.software or life.library or "" for life in history.members}
    heard_ns = _last_news(exchanges)
    for rebalance in history.rebalances:
        for gone in rebalance.removed:
            has_heard = heard_ns.get(gone.member_id, -1) >= rebalance.started_ns
            commits = _commits(exchanges, gone, rebalance) if has_heard and gone.why == "rebalance timeout" else []
            if software.get(gone.member_id, "").startswith(_IN_BACKGROUND):
                continue
            if len(commits) >= _COMMITS:
                yield _Removal(rebalance, gone.member_id, gone.client_id or gone.member_id, commits)


def _last_news(exchanges: pa.Table) -> dict[str, int]:
    """Return when members asked last what was answered with REBALANCE_IN_PROGRESS, by member id."""
    is_news = pc.fill_null(pc.equal(exchanges["error_code"], int(ErrorCode.REBALANCE_IN_PROGRESS)), False)
    rows = exchanges.filter(is_news).select(["member_id", "asked_ns"]).to_pylist()
    found: dict[str, int] = {}
    for row in rows:
        found[row["member_id"]] = max(row["asked_ns"], found.get(row["member_id"], -1))
    return found


def _commits(exchanges: pa.Table, gone: RemovedMember, rebalance: Rebalance) -> list[Evidence]:
    """Return the accepted commits of a member from its first REBALANCE_IN_PROGRESS to the end of the join."""
    end_ns = rebalance.ended_ns if rebalance.joined_ns is None else rebalance.joined_ns
    own = exchanges.filter(pc.equal(exchanges["member_id"], gone.member_id))
    own = own.select(["api", "error_code", "asked_ns", "answered_ns", "source", "seq"])
    rows = [row for row in own.sort_by("asked_ns").to_pylist() if rebalance.started_ns <= row["asked_ns"]]
    notices = [row["answered_ns"] for row in rows if row["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS]
    return [
        Evidence(row["asked_ns"], row["source"], row["seq"], f"{gone.client_id or gone.member_id} commits")
        for row in rows
        if row["api"] == "OffsetCommit" and row["error_code"] == ErrorCode.NONE
        if notices and notices[0] <= row["asked_ns"] and (end_ns is None or row["asked_ns"] <= end_ns)
    ]
