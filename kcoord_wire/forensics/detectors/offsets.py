"""Offsets: commits of what was lost, positions that are set back, partitions that are not read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.detectors.assignment import COOPERATIVE
from kcoord_wire.forensics.detectors.finding import (
    MINUTE_NS,
    NEAR_NS,
    SECOND_NS,
    DetectorResult,
    Seen,
    client_of,
    detector,
    lasting,
    person,
    plural,
    was_cut_off,
)
from kcoord_wire.forensics.detectors.rounds import Partition, Round, label
from kcoord_wire.forensics.model import (
    NS_PER_MS,
    Evidence,
    GroupHistory,
    Lag,
    MemberLife,
    OffsetReset,
    Ownership,
    Reread,
    ResetKind,
)
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.wording import clock, first_of, only

if TYPE_CHECKING:
    from numpy.typing import NDArray

# ---- commit after revoke

_AGAIN: Final = "What it had read since its last commit is read again by the next owner"
_ADVICE_ON_REFUSAL: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID: "The coordinator had removed it before it committed: the removal is what to look at. "
    f"{_AGAIN}.",
    ErrorCode.ILLEGAL_GENERATION: "The group had gone on without it: it learns of a rebalance by its next heartbeat, "
    f"and takes part only when it polls. {_AGAIN}.",
    ErrorCode.REBALANCE_IN_PROGRESS: "Commit in onPartitionsRevoked and nowhere later, and stop the work on a "
    "partition before it is given up; a commit during a rebalance is refused and can be repeated after it.",
    ErrorCode.FENCED_MEMBER_EPOCH: "The coordinator had fenced it, as it does with a member that gives partitions up "
    f"too late or was silent: see why. {_AGAIN}.",
    ErrorCode.STALE_MEMBER_EPOCH: "It committed with an epoch that was over; a client takes the new one from its next "
    "heartbeat and repeats the commit.",
}
LOST_PLACE: Final = frozenset(_ADVICE_ON_REFUSAL)
"""Error codes with which the coordinator refuses the commit of a member that has lost its place. A member that is
fenced by another with its group.instance.id is refused whatever it asks, which is a finding of its own."""

_NO_END: Final = np.iinfo(np.int64).max
_REFUSED: Final = "refused"
_ACCEPTED: Final = "of partitions that it had lost, and accepted: they may undo those of the next owner"
_ADVICE_ON_ACCEPTED: Final = (
    "Commit in onPartitionsRevoked and nowhere later; stop the work on a partition before it is given up."
)


class _Commit(NamedTuple):
    """A commit of a client.

    :ivar offsets: how many are concerned
    :ivar code: with which it was refused; 0 where it was accepted
    """

    fact: Evidence
    member_id: str
    offsets: int
    code: int


@detector(90, basis="frames")
def commit_after_revoke(seen: Seen) -> Iterator[DetectorResult]:
    """Commit after revoke: a member commits offsets of partitions that it does not hold any more.

    Either the coordinator refuses the commit (see `LOST_PLACE`): then the records since the last commit are processed
    twice. Or it accepts the commit, because the group is still joining, or because the member is in the new generation:
    the coordinator does not check which partitions it owns there. Then the commit may set back what the next owner
    committed.

    Normal is none: a consumer commits in onPartitionsRevoked, before it rejoins. So a partition counts as lost from the
    member's next JoinGroup on, or once another member holds it, not from the assignment that takes it away. What a hole
    may have hidden counts as kept.

    Threshold: 1 accepted commit of a lost partition (critical), or 1 refused commit of a member that had lost its
    place: a warning where nothing shows why, info where it had been removed, which says more, or only came too early
    (REBALANCE_IN_PROGRESS).
    """
    if seen.exchanges is None:
        return
    names = seen.names
    held = _Held(seen.history, _joins(seen.exchanges), _APART_NS if seen.clocks else 0)
    refused: dict[str, list[_Commit]] = defaultdict(list)
    accepted: dict[str, list[_Commit]] = defaultdict(list)
    for row in _suspects(seen.history, seen.exchanges):
        name = names.get(row["member_id"], row["client_id"] or row["member_id"])
        if row["error_code"] in LOST_PLACE:
            code = ErrorCode(row["error_code"])
            refused[name].append(_commit(row, f"in generation {row['generation_id']}: {code.name}", name))
        elif lost := held.lost_of(row):
            accepted[name].append(
                _commit(row, f"{lost[0]['topic']}-{lost[0]['partition']}, which it has lost", name, lost)
            )
    for name, commits in sorted(refused.items()):
        yield _refused_found(seen.history, name, commits)
    for name, commits in sorted(accepted.items()):
        yield _found(seen.history, name, commits, "critical", _ACCEPTED, _ADVICE_ON_ACCEPTED)


def _commit(row: dict[str, Any], what: str, name: str, offsets: list[Any] | None = None) -> _Commit:
    """Return a commit; of its offsets, it is about `offsets`, or all."""
    count = len(row["offsets"] or ()) if offsets is None else len(offsets)
    fact = Evidence(row["asked_ns"], row["source"], row["seq"], f"{name} commits {what}")
    return _Commit(fact, row["member_id"], count, row["error_code"] or 0)


def _refused_found(history: GroupHistory, name: str, commits: list[_Commit]) -> DetectorResult:
    """Return what refused commits follow from, where the member had been removed before the first of them."""
    codes = Counter(ErrorCode(each.code) for each in commits)
    (code, _), *_ = codes.most_common(1)
    removals = [
        (life.left_ns, life.why_left)
        for life in history.members
        if life.left_ns is not None and life.why_left and life.member_id in {each.member_id for each in commits}
    ]
    before = [(at_ns, why) for at_ns, why in removals if at_ns <= commits[-1].fact.time_ns]
    outcome = _REFUSED
    if before:
        outcome += f"; this follows from its removal at {clock(before[0][0])} UTC ({before[0][1]})"
    severity = "info" if before or set(codes) == {ErrorCode.REBALANCE_IN_PROGRESS} else "warning"
    return _found(history, name, commits, severity, f"{outcome} ({code.name})", _ADVICE_ON_REFUSAL[code])


def _joins(exchanges: pa.Table) -> dict[str, list[int]]:
    joins: dict[str, list[int]] = defaultdict(list)
    rows = exchanges.filter(pc.equal(exchanges["api"], "JoinGroup")).select(["member_id", "asked_ns"])
    for row in rows.sort_by("asked_ns").to_pylist():
        joins[row["member_id"]].append(row["asked_ns"])
    return joins


_APART_NS: Final = 500 * NS_PER_MS
"""By which times of sources may still differ whose clocks were corrected (`wire.clocks`)."""


class _Held:
    """Who held each partition, and until when.

    :param apart_ns: by how much the times of two members may differ
    """

    def __init__(self, history: GroupHistory, joins: dict[str, list[int]], apart_ns: int) -> None:
        self._joins, self._holes, self._apart_ns = joins, history.holes, apart_ns
        self._spans: dict[tuple[str, int], list[Ownership]] = defaultdict(list)
        for row in sorted(history.ownership, key=lambda row: row.from_ns):
            self._spans[row.topic, row.partition].append(row)

    def lost_of(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the offsets of an accepted commit whose partitions the member had lost."""
        offsets = [] if row["error_code"] else row["offsets"] or []
        return [o for o in offsets if self._was_lost(row["member_id"], (o["topic"], o["partition"]), row["asked_ns"])]

    def _was_lost(self, member_id: str, place: tuple[str, int], at_ns: int) -> bool:
        """Whether the member had held the partition before, and has rejoined without it, or another holds it."""
        spans = self._spans.get(place, [])
        begun = spans[: bisect_right(spans, at_ns, key=lambda span: span.from_ns)]
        last = next((span for span in reversed(begun) if span.member_id == member_id), None)
        if last is None or last.to_ns is None or self._is_hidden(last.to_ns, at_ns):
            return False
        other = begun[-1]
        if other.member_id != member_id and (other.to_ns is None or other.to_ns > at_ns):
            return at_ns - other.from_ns >= self._apart_ns
        joins = self._joins.get(member_id, [])
        rejoined = bisect_left(joins, last.to_ns)
        return rejoined < len(joins) and joins[rejoined] < at_ns

    def _is_hidden(self, lost_ns: int, at_ns: int) -> bool:
        """Whether an assignment that the source lacks may have left a partition with its owner, or given it back."""
        return any(hole.to_ns >= lost_ns - NEAR_NS and hole.from_ns <= at_ns for hole in self._holes)


def _suspects(history: GroupHistory, exchanges: pa.Table) -> list[dict[str, Any]]:
    """Return commits that were refused, that fell into a rebalance, or that name a partition another member holds.

    A rebalance matters because a cooperative member commits, between its assignment and its next join, what it gives
    up; that partition has no owner then.
    """
    columns = ["asked_ns", "source", "seq", "member_id", "client_id", "generation_id", "error_code", "offsets"]
    rows: list[dict[str, Any]] = []
    for batch in exchanges.select([*columns, "api"]).to_batches():
        commits = batch.filter(pc.equal(batch.column("api"), "OffsetCommit")).select(columns)
        if len(commits):
            rows += commits.filter(_is_suspicious(history, commits)).to_pylist()
    return sorted(rows, key=lambda row: (row["asked_ns"], row["source"], row["seq"]))


def _is_suspicious(history: GroupHistory, commits: pa.RecordBatch) -> pa.Array:
    suspicious = pc.is_in(pc.fill_null(commits["error_code"], 0), pa.array(sorted(map(int, LOST_PLACE)), pa.int16()))
    for rebalance in history.rebalances:
        end = history.group.last_ns if rebalance.ended_ns is None else rebalance.ended_ns
        is_after = pc.greater_equal(commits["asked_ns"], rebalance.started_ns)
        suspicious = pc.or_(suspicious, pc.and_(is_after, pc.less_equal(commits["asked_ns"], end)))
    suspicious = pc.or_(suspicious, pa.array(_held_by_others(history.ownership, commits)))
    # A commit without a member id is from a tool, or from a consumer that assigns partitions to itself.
    return pc.and_(suspicious, pc.not_equal(commits["member_id"], ""))


def _held_by_others(held: list[Ownership], commits: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return, per commit, whether it names a partition that another member holds at that time.

    There may be millions of offsets, so none is looked up by itself: holdings and offsets become one column, holdings
    first, sorted by partition and time; the last holding before an offset is the one that may be another's.
    """
    found = np.zeros(len(commits), np.bool_)
    lists = pc.fill_null(commits["offsets"], [])
    offsets = pc.list_flatten(lists)
    if not held or not len(offsets):
        return found
    commit_of = pc.list_parent_indices(lists).to_numpy()
    topics = _numbered([row.topic for row in held], pc.fill_null(offsets.field("topic"), "").dictionary_encode())
    senders = pc.fill_null(commits["member_id"], "").dictionary_encode()
    members = _numbered([row.member_id for row in held], senders.take(pa.array(commit_of)))
    partitions = np.concatenate([[row.partition for row in held], pc.fill_null(offsets.field("partition"), -1)])
    place = topics.astype(np.int64) << 32 | partitions.astype(np.int64)
    asked = pc.fill_null(commits["asked_ns"], 0).to_numpy()
    at = np.concatenate([[row.from_ns for row in held], asked[commit_of]]).astype(np.int64)
    ends = np.array([_NO_END if row.to_ns is None else row.to_ns for row in held], np.int64)
    order = np.lexsort((np.arange(len(at)), at, place))
    last = np.maximum.accumulate(np.where(order < len(held), np.arange(len(order)), -1))
    holding = order[last]
    is_anothers = (order >= len(held)) & (last >= 0)
    is_anothers &= (place[holding] == place[order]) & (members[holding] != members[order])
    is_anothers &= ends[np.minimum(holding, len(held) - 1)] > at[order]
    found[commit_of[order[is_anothers] - len(held)]] = True
    return found


def _numbered(names: list[str], more: pa.Array) -> NDArray[np.int32]:
    """Return a number for each of the names and of the codes `more`, the same for the same name."""
    known = pa.chunked_array([pa.array(names, pa.string()), more.dictionary])
    numbers: NDArray[np.int32] = pc.dictionary_encode(known).combine_chunks().indices.to_numpy()
    return np.concatenate([numbers[: len(names)], numbers[len(names) :][more.indices.to_numpy()]])


def _found(
    history: GroupHistory, name: str, commits: list[_Commit], severity: str, outcome: str, advice: str
) -> DetectorResult:
    evidence = [each.fact for each in commits]
    times, offsets = len(commits), sum(each.offsets for each in commits)
    were = "were" if times > 1 else "was"
    return DetectorResult(
        severity=severity,
        from_ns=evidence[0].time_ns,
        to_ns=evidence[-1].time_ns,
        subject=name,
        text=f"{times} commit{'s' * (times > 1)} of {name} ({offsets} offset{'s' * (offsets > 1)}) {were} {outcome}",
        advice=advice,
        value=times,
        rebalances=[
            rebalance.number
            for rebalance in history.rebalances
            if any(rebalance.started_ns <= e.time_ns <= (rebalance.ended_ns or e.time_ns) for e in evidence)
        ],
        evidence=evidence,
    )


# ---- offset reset

_TOGETHER_NS: Final = 10 * SECOND_NS
_MS_PER_S: Final = 1_000
_DID: Final = {
    ResetKind.ADMIN: "{who}, no member of the group, set the committed offset of {places}",
    ResetKind.COMMIT: "{who} committed less than was committed of {places}",
    ResetKind.UNSEEN: "The committed offset of {places} is another one than was committed last",
    ResetKind.OUT_OF_RANGE: "{who} asked for an offset that the log does not have (OFFSET_OUT_OF_RANGE) of {places}",
    ResetKind.SEEK: "{who} reads again what was committed of {places}",
}
_OFFSET_RESET_ADVICE: Final = {
    ResetKind.ADMIN: "If this (kafka-consumer-groups.sh --reset-offsets) was not intended, find out who uses this "
    "client. After a step back records are read again, after a step ahead some are never read.",
    ResetKind.COMMIT: "Records are read again. Look for a process that commits positions of its own, such as an old "
    "checkpoint or a retry that comes late.",
    ResetKind.UNSEEN: "Offsets expire while a group is empty (offsets.retention.minutes) and are gone with a deleted "
    "group; a tool may have set them from where this source does not see.",
    ResetKind.OUT_OF_RANGE: "The records were deleted before they were read (retention.ms, retention.bytes), or the "
    "topic was made again. auto.offset.reset decides where reading goes on: latest skips what is there.",
    ResetKind.SEEK: "The application seeks, or keeps positions of its own: the records are read again.",
}
_WARNINGS: Final = (ResetKind.COMMIT, ResetKind.UNSEEN, ResetKind.OUT_OF_RANGE, ResetKind.ADMIN)


@detector(33, basis="frames")
def offset_reset(seen: Seen) -> Iterator[DetectorResult]:
    """Offset reset: the position of a group was set back, or ahead, by something else than reading on.

    Normal is that committed offsets rise, and that a consumer reads on from where it was. They are set by an operator
    (``kafka-consumer-groups.sh --reset-offsets``), by a member that commits less than was committed, by the expiry of
    committed offsets, by an offset that the log does not have any more (auto.offset.reset), and by seeking.

    A member that goes back to one offset again and again is `same_offset`.

    Threshold: 1 partition. Partitions that one client changed in one way within `_TOGETHER_NS` are one finding.
    """
    again = {(each.topic, each.partition, each.offset) for each in _endless(seen.history)}
    apart = [row for row in seen.history.resets if (row.topic, row.partition, row.to_offset) not in again]
    for resets in _together(apart):
        first, kind = resets[0], ResetKind(resets[0].kind)
        places = [f"{each.topic}-{each.partition}" for each in resets]
        who = person(first.client_id, first.client_host)
        text = _DID[kind].format(who=who, places=f"{len(places)} {plural('partition', places)}")
        yield DetectorResult(
            severity="warning" if kind in _WARNINGS else "info",
            from_ns=first.time_ns,
            to_ns=resets[-1].time_ns,
            subject=first.client_id if kind != ResetKind.UNSEEN else only(places),
            text=f"{text}: {first_of([_change(each) for each in resets])}{_cost(resets)}.",
            advice=_OFFSET_RESET_ADVICE[kind],
            value=len(resets),
            evidence=(Evidence(each.time_ns, "", -1, _change(each)) for each in resets),
            cost_ms=sum(_work_ms(seen.history, each) for each in resets),
        )


def _together(resets: Sequence[OffsetReset]) -> Iterator[list[OffsetReset]]:
    """Yield the resets of one client, kind and time; several of one partition stay apart."""
    open_: dict[tuple[str, str | None, str | None], list[OffsetReset]] = {}
    for each in resets:
        key = (each.kind, each.client_id, each.client_host)
        held = open_.get(key)
        is_again = held is not None and any((each.topic, each.partition) == (one.topic, one.partition) for one in held)
        if held is None or is_again or each.time_ns - held[-1].time_ns > _TOGETHER_NS:
            if held is not None:
                yield held
            open_[key] = held = []
        held.append(each)
    yield from open_.values()


def _change(reset: OffsetReset) -> str:
    after = "none" if reset.to_offset is None else f"{reset.to_offset:,}"
    return f"{reset.topic}-{reset.partition} from {reset.from_offset:,} to {after}"


def _cost(resets: Sequence[OffsetReset]) -> str:
    """Return how many records are read again, and how many are skipped."""
    moves = [each.to_offset - each.from_offset for each in resets if each.to_offset is not None]
    again, skipped = -sum(move for move in moves if move < 0), sum(move for move in moves if move > 0)
    counts = ((again, "are read again"), (skipped, "are skipped"))
    return "".join(f"; {count:,} records {what}" for count, what in counts if count)


def _work_ms(history: GroupHistory, reset: OffsetReset) -> float:
    """Return how long the group takes for the records that are read again or skipped, as it commits that partition."""
    rows = [row for row in history.commits if (row.topic, row.partition) == (reset.topic, reset.partition)]
    read = sum(max(row.last_offset - row.first_offset, 0) for row in rows if row.first_offset >= 0)
    moved = abs((0 if reset.to_offset is None else reset.to_offset) - reset.from_offset)
    return moved * sum(row.interval_s for row in rows) * _MS_PER_S / read if read else 0.0


# ---- same offset

SAME_OFFSET_THRESHOLD: Final = 4
_SAME_LEAST_NS: Final = 5 * SECOND_NS
_SAME_LASTS_NS: Final = 10 * SECOND_NS  # retries of a record that succeed in the end are over by then
_ADVICE_ON_RECORD: Final = (
    "Look at that record (kafka-console-consumer.sh --topic {topic} --partition {partition} --offset {offset} "
    "--max-messages 1) and at the application's own error at that time: it cannot process the record, and takes its "
    "position back. Bound its retries, and set such a record aside (a dead letter topic) or skip it; a restart reads "
    "it again, and a rebalance gives it to the next member."
)
_ADVICE_ON_SIZE: Final = (
    "Its own log says which limit it is, of a response or of a buffer (receive.message.max.bytes of librdkafka, "
    "Fetch.Max and MaxResponseSize of sarama, max_partition_fetch_bytes of the Python clients): raise it above that "
    "size, or write smaller batches (message.max.bytes, batch.size). A restart does not help."
)


@detector(49, basis="frames")
def same_offset(seen: Seen) -> Iterator[DetectorResult]:
    """Same offset: a member is sent records from one offset on, again and again, and does not get beyond them.

    Either the application takes its position back, because it cannot process the record there; or the client ends its
    connection when the response comes, because that is larger than it takes. Normal is that what was sent once is not
    asked for again by the same owner; retries that end well within some seconds are normal, too.

    Threshold: 4 responses with records from one offset on, over five seconds at least; info where it was over within
    ten seconds, else warning.
    """
    by_member: dict[tuple[str, bool], list[Reread]] = defaultdict(list)
    for each in _endless(seen.history):
        by_member[each.member_id, _is_cut_off(each)].append(each)
    for (member_id, is_cut_off), rows in by_member.items():
        yield _same_offset(seen, member_id, rows, is_cut_off)


def _endless(history: GroupHistory) -> list[Reread]:
    return [
        row
        for row in history.rereads
        if row.times >= SAME_OFFSET_THRESHOLD and row.to_ns - row.from_ns >= _SAME_LEAST_NS
    ]


def _is_cut_off(row: Reread) -> bool:
    return 2 * row.cut_off > row.times


def _same_offset(seen: Seen, member_id: str, rows: list[Reread], is_cut_off: bool) -> DetectorResult:
    worst = max(rows, key=lambda row: row.times)
    name = seen.names.get(member_id, worst.client_id or member_id)
    place = f"{worst.topic}-{worst.partition}"
    others = sorted({f"{row.topic}-{row.partition}" for row in rows} - {place})
    what = f"{worst.times} times in {lasting(worst.to_ns - worst.from_ns)}"
    more = f"; the same of {first_of(others)}" if others else ""
    if is_cut_off:
        text = (
            f"{name} fetches offset {worst.offset:,} of {place} again and again and never gets on ({what}): it ends "
            f"its connection after each response, which carries {worst.size:,}"
            f" bytes of records, more than it takes{more}"
        )
        advice = _ADVICE_ON_SIZE
    else:
        text = (
            f"{name} reads offset {worst.offset:,} of {place} again and again ({what}): it takes its position back to "
            f"a record that it cannot process{_behind(seen.history, worst)}{more}"
        )
        advice = _ADVICE_ON_RECORD.format(topic=worst.topic, partition=worst.partition, offset=worst.offset)
    last_ns = max(row.to_ns for row in rows)
    from_ns = min(row.from_ns for row in rows)
    goes_on = last_ns >= seen.history.group.last_ns - _SAME_LEAST_NS
    return DetectorResult(
        severity="warning" if goes_on or last_ns - from_ns >= _SAME_LASTS_NS else "info",
        from_ns=from_ns,
        to_ns=None if goes_on else last_ns,
        subject=place if not others else name,
        text=text,
        advice=advice,
        value=worst.times,
        threshold=SAME_OFFSET_THRESHOLD,
        evidence=(
            Evidence(row.to_ns, "", -1, f"{row.topic}-{row.partition}: offset {row.offset:,}, {row.times} times")
            for row in rows
        ),
        cost_ms=sum(row.to_ns - row.from_ns for row in rows) / NS_PER_MS,
    )


def _behind(history: GroupHistory, row: Reread) -> str:
    """Return how many records came behind the offset meanwhile."""
    ends = [
        each.end_offset
        for each in history.lag
        if (each.topic, each.partition) == (row.topic, row.partition) and each.time_ns <= row.to_ns + SECOND_NS
    ]
    behind = max(ends, default=0) - row.offset
    return f", {behind:,} {plural('record', range(behind))} from the end" if behind > 0 else ""


# ---- stuck partition

STUCK_NS: Final = 10 * SECOND_NS
_IDLE_NS: Final = 30 * SECOND_NS  # as LEAST_SILENCE_NS of Burrow's STOPPED
_CRITICAL_NS: Final = MINUTE_NS
_STUCK_PARTITION_ADVICE: Final = (
    "If the application pauses it (pause(), back pressure, retries), look at what it waits for; otherwise restart this "
    "member and update its client library."
)
_ADVICE_IDLE: Final = (
    "Its heartbeats go on, so that no rebalance takes the partitions away. Look at what the application does between "
    "two polls (a thread dump): a batch that takes long, a call without a timeout, pause() without resume()."
)


class Stuck(NamedTuple):
    """A partition whose owner has left it as it was.

    :ivar since: the first row at that position
    :ivar last: the last one
    :ivar reads_others: its owner read on elsewhere in that time
    """

    since: Lag
    last: Lag
    reads_others: bool = True

    @property
    def place(self) -> tuple[str, int]:
        return self.since.topic, self.since.partition

    @property
    def ns(self) -> int:
        return self.last.time_ns - self.since.time_ns


@detector(50, basis="absence")
def stuck_partition(seen: Seen) -> Iterator[DetectorResult]:
    """Stuck partition: its member is at work, and neither fetches nor commits it while its end moves.

    Seen in spring-kafka#4687.

    Normal is that an owner which is behind the end of a partition reads it: its next request has a higher offset. An
    owner that reads its other partitions and leaves one as it is has paused it, has lost it in its own state, or waits
    for something of the application. A source that shows the owner reading another partition shows that at once. An
    owner that reads none may be busy with a batch, so that it takes longer until that is unusual, and its Fetch
    requests have to be in the source: those to a broker that was not captured are not missing.

    Threshold: 10 s without a change of the owner's position, committed or fetched, behind an end that has moved; 30 s
    for an owner that reads no other partition, and has fetched this one before. Critical from a minute on, if the owner
    reads others and has not read the partition at all.
    """
    by_member: dict[tuple[str, bool], list[Stuck]] = defaultdict(list)
    for each in stuck_partitions(seen.history):
        by_member[each.since.member_id or "", each.reads_others].append(each)
    for (member_id, reads_others), found in by_member.items():
        yield _finding(seen.history, member_id, found, reads_others)


def _finding(history: GroupHistory, member_id: str, found: list[Stuck], reads_others: bool) -> DetectorResult:
    who = Seen(history, None).names.get(member_id, member_id)
    longest = max(found, key=lambda each: each.ns)
    names = [f"{each.since.topic}-{each.since.partition}" for each in found]
    unread = any(each.since.fetch_offset is None for each in found)
    behind = sum(each.last.end_offset - each.since.end_offset for each in found)
    last_ns = max(each.last.time_ns for each in found)
    return DetectorResult(
        severity="critical" if unread and longest.ns >= _CRITICAL_NS else "warning",
        from_ns=min(each.since.time_ns for each in found),
        to_ns=None if last_ns >= history.group.last_ns - STUCK_NS else last_ns,
        subject=only(names) or who,
        text=(
            f"{who} has {plural('partition', names)} {first_of(names)} and does not read "
            f"{plural('it', names, 'them')}: no fetch and no commit for {lasting(longest.ns)}, in which {behind:,} "
            f"records came, while it {'read others' if reads_others else 'read nothing else and stayed a member'}."
        ),
        advice=_STUCK_PARTITION_ADVICE if reads_others else _ADVICE_IDLE,
        value=longest.ns / SECOND_NS,
        threshold=STUCK_NS / SECOND_NS,
        evidence=(_evidence(each) for each in found),
        rests_on=frozenset({member_id}),
        suspects=(member_id,),
        cost_ms=sum(each.ns for each in found) / NS_PER_MS,
    )


def _evidence(stuck: Stuck) -> Evidence:
    since, last = stuck.since, stuck.last
    text = (
        f"{since.topic}-{since.partition}: end {since.end_offset:,} to {last.end_offset:,}, "
        f"committed {_known(last.committed_offset)}, fetched {_known(last.fetch_offset)}"
    )
    return Evidence(last.time_ns, "", -1, text)


def stuck_partitions(history: GroupHistory) -> list[Stuck]:
    """Return the longest time of each partition, in order of time.

    Those that are read in vain are `same_offset`, and those whose owner was cut off are of that `outage`.
    """
    reads = _reads(history.lag)
    longest: dict[tuple[str, int], Stuck] = {}
    running: dict[tuple[str, int], Stuck] = {}
    for row in history.lag:
        place = (row.topic, row.partition)
        before = running.get(place)
        if row.member_id is None:
            running.pop(place, None)
        elif before is None or _has_read(before.since, row):
            running[place] = Stuck(row, row)
        else:
            running[place] = now = Stuck(before.since, row)
            has_moved = row.end_offset > now.since.end_offset
            if has_moved and now.ns >= STUCK_NS and now.ns > longest.get(place, Stuck(row, row)).ns:
                longest[place] = now
    in_vain = _in_vain(history)
    found = [
        each._replace(reads_others=_reads_others(reads.get(each.since.member_id or "", []), each))
        for each in longest.values()
        if (*each.place, each.since.member_id) not in in_vain
    ]
    found = [each for each in found if (each.reads_others or _is_idle(each)) and not _was_cut_off(history, each)]
    return sorted(found, key=lambda each: (each.since.time_ns, each.place))


def _was_cut_off(history: GroupHistory, each: Stuck) -> bool:
    return was_cut_off(history, each.since.member_id, each.since.time_ns, each.last.time_ns)


def _in_vain(history: GroupHistory) -> set[tuple[str, int, str | None]]:
    """Return partitions that are read in vain, with their owners: of responses that are cut off, all in them."""
    endless = _endless(history)
    members = {row.member_id for row in endless if _is_cut_off(row)}
    cut_off = {(row.topic, row.partition, row.member_id) for row in history.ownership if row.member_id in members}
    return cut_off | {(row.topic, row.partition, row.member_id) for row in endless}


def _has_read(before: Lag, row: Lag) -> bool:
    return _position(before) != _position(row) or row.end_offset <= (row.fetch_offset or -1)


def _position(row: Lag) -> tuple[str | None, int | None, int | None]:
    return row.member_id, row.committed_offset, row.fetch_offset


_Reads = dict[str, list[tuple[int, tuple[str, int]]]]


def _reads(rows: list[Lag]) -> _Reads:
    """Return when each member was seen to read on, or to commit more, and of which partition."""
    found: _Reads = defaultdict(list)
    last: dict[tuple[str, int], tuple[str | None, int | None, int | None]] = {}
    for row in rows:
        place, now = (row.topic, row.partition), _position(row)
        is_known = row.fetch_offset is not None or row.committed_offset is not None
        if row.member_id is not None and is_known and last.get(place) != now:
            found[row.member_id].append((row.time_ns, place))
        last[place] = now
    return found


def _reads_others(reads: list[tuple[int, tuple[str, int]]], stuck: Stuck) -> bool:
    """Whether the member has read on elsewhere in the second half of that time."""
    middle = stuck.since.time_ns + stuck.ns // 2
    return any(middle <= at <= stuck.last.time_ns and place != stuck.place for at, place in reads)


def _is_idle(stuck: Stuck) -> bool:
    return stuck.ns >= _IDLE_NS and stuck.since.fetch_offset is not None


def _known(offset: int | None) -> str:
    return "unknown" if offset is None else f"{offset:,}"


# ---- assigned not read

READ_WITHIN_NS: Final = 10 * SECOND_NS


class _Left(NamedTuple):
    """Partitions of an assignment that their member does not read."""

    round: Round
    life: MemberLife
    partitions: frozenset[Partition]


@detector(51, basis="absence")
def assigned_not_read(seen: Seen) -> Iterator[DetectorResult]:
    """Assigned, not read: a member gets partitions, fetches the offsets of some of them, and never those of the others.

    Normal is that a consumer fetches the committed offsets of all partitions that it was assigned and does not claim to
    own already. In an eager group it may leave out what it had before, too, because it has those positions still
    (kafka-python). One that leaves out others behaves as if it read them (franz-go#686): no member does; only their lag
    grows.

    Partitions that a source shows to be left behind are `stuck_partition`'s, and not named again here.

    Threshold: 1 partition that no OffsetFetch, Fetch or commit of the member's client names, for 10 s after the
    assignment; the client has fetched or committed others of the same assignment in that time.
    """
    rounds = seen.assigned_rounds
    reads = None if seen.exchanges is None else _FetchedOffsets(seen.exchanges, rounds)
    left = [] if reads is None else list(_left(seen.history, rounds, reads))
    stuck = {each.place for each in stuck_partitions(seen.history)}
    left = [item._replace(partitions=item.partitions - stuck - _read_since(seen.history, item)) for item in left]
    left = [item for item in left if item.partitions]
    if not left:
        return
    concerned = {partition for item in left for partition in item.partitions}
    clients = sorted({client_of(item.life) for item in left})
    is_assigned = plural("partition is assigned", concerned, "partitions are assigned")
    yield DetectorResult(
        severity="critical",
        from_ns=left[0].round.listed_ns,
        subject=only(clients),
        text=f"{len(concerned)} {is_assigned} to {first_of(clients)} and not read: {first_of(label(concerned))}",
        advice="Their lag grows, and nothing else shows it: restart the member, and update its client library.",
        value=len(concerned),
        rebalances=seen.rebalances_of(item.round for item in left),
        evidence=(
            item.round.evidence(
                f"{client_of(item.life)} gets {first_of(label(item.partitions))}, and fetches no offset"
            )
            for item in left
        ),
        suspects=tuple(sorted({item.life.member_id for item in left})),
    )


def _read_since(history: GroupHistory, item: _Left) -> set[Partition]:
    """Return the partitions that were fetched after all: kafka-python keeps the position that it has."""
    since_ns = item.round.listed_ns
    return {(row.topic, row.partition) for row in history.partitions if (row.read_ns or 0) > since_ns}


_PARTITION_BITS: Final = 32
_LEAST_PARTITION: Final = -(1 << 31)  # a damaged row may have a negative one


class _FetchedOffsets:
    """Which partitions each client fetched the offsets of, or committed, and when; in columns, by client and time.

    Of those of a client and partition between two ends of rounds, which no question tells apart, one is kept.

    :param exchanges: coded rows of `Exchange` of the group
    :param rounds: that are asked about, with their ends
    """

    def __init__(self, exchanges: pa.Table, rounds: list[tuple[Round, int]]) -> None:
        edges = np.unique([edge for each, end_ns in rounds for edge in (each.listed_ns, end_ns + 1)]).astype(np.int64)
        wanted = pc.is_in(exchanges["api"], value_set=pa.array(["OffsetFetch", "OffsetCommit"]))
        wanted = pc.and_(wanted, pc.is_valid(exchanges["asked_ns"]))
        rows = exchanges.select(["client_id", "client_host", "asked_ns", "offsets"]).filter(wanted)
        numbers: dict[str | None, int] = {}
        parts = [_distinct(batch, edges, numbers) for batch in rows.to_batches()]
        none = np.zeros(0, np.int64)
        who, asked, place = (np.concatenate([none, *column]) for column in zip(*parts, (none,) * 3, strict=True))
        self._topics = list(numbers)
        order = np.lexsort((asked, who))
        self._asked, self._place = asked[order], place[order]
        clients = _clients(exchanges["client_id"]), _clients(exchanges["client_host"])
        found, starts, counts = np.unique(who[order], return_index=True, return_counts=True)
        spans = zip(found.tolist(), starts.tolist(), (starts + counts).tolist(), strict=True)
        self._spans = {
            (clients[0][client >> _PARTITION_BITS], clients[1][client & (1 << _PARTITION_BITS) - 1]): (start, end)
            for client, start, end in spans
        }

    def read(self, client_id: str | None, host: str, from_ns: int, to_ns: int) -> frozenset[Partition]:
        """Return the partitions that a client read between two times, both included."""
        start, end = self._spans.get((client_id, host), (0, 0))
        asked = self._asked[start:end]
        chosen = slice(start + np.searchsorted(asked, from_ns), start + np.searchsorted(asked, to_ns, "right"))
        places = np.unique(self._place[chosen]).tolist()
        number = (1 << _PARTITION_BITS) - 1
        return frozenset(
            (self._topics[place >> _PARTITION_BITS], (place & number) + _LEAST_PARTITION) for place in places
        )


def _clients(column: pa.ChunkedArray) -> list[str | None]:
    """Return what the codes of a column stand for, the one of null first."""
    return [None, *(column.chunk(0).dictionary.to_pylist() if column.num_chunks else [])]


def _distinct(
    rows: pa.RecordBatch, edges: NDArray[np.int64], numbers: dict[str | None, int]
) -> tuple[NDArray[np.int64], ...]:
    """Return clients, times and partitions of offsets, without those that nothing tells from another.

    :param edges: times, sorted: only what lies on its two sides is distinguished
    :param numbers: of the topics; new ones are added
    """
    row, flat = pc.list_parent_indices(rows["offsets"]).to_numpy(), pc.list_flatten(rows["offsets"])
    topics = pc.dictionary_encode(pc.struct_field(flat, "topic"), "encode")
    known = np.array([numbers.setdefault(name, len(numbers)) for name in topics.dictionary.to_pylist()], np.int64)
    partition = pc.fill_null(pc.struct_field(flat, "partition"), -1).to_numpy().astype(np.int64)
    place = known[topics.indices.to_numpy()] << _PARTITION_BITS | (partition - _LEAST_PARTITION)
    names, hosts = (
        pc.fill_null(rows[name].indices, -1).to_numpy().astype(np.int64) + 1 for name in ("client_id", "client_host")
    )
    who, asked = (names << _PARTITION_BITS | hosts)[row], rows["asked_ns"].to_numpy()[row]
    columns = who, np.searchsorted(edges, asked, "right"), place
    order = np.lexsort(columns)
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    firsts = order[is_new]
    return who[firsts], asked[firsts], place[firsts]


def _left(history: GroupHistory, rounds: list[tuple[Round, int]], reads: _FetchedOffsets) -> Iterator[_Left]:
    """Yield what members leave out, in the generations that lasted long enough."""
    lives = {life.member_id: life for life in history.members}
    kept: dict[str, frozenset[Partition]] = {}  # by member, what it was given before, of an eager assignor
    for each, end_ns in rounds:
        given = each.given or {}
        if each.assignor in COOPERATIVE:
            kept.clear()
        for member_id in given if end_ns - each.listed_ns >= READ_WITHIN_NS else ():
            life = lives.get(member_id)
            missing = frozenset() if life is None else _missing(each, end_ns, life, reads)
            if life is not None and (missing := missing - kept.get(member_id, frozenset())):
                yield _Left(each, life, missing)
        kept.update(given)


def _missing(each: Round, end_ns: int, life: MemberLife, reads: _FetchedOffsets) -> frozenset[Partition]:
    """Return the new partitions of a member that it does not read until the next generation."""
    given = (each.given or {})[life.member_id]
    new = given - each.claims[life.member_id].partitions if life.member_id in each.claims else frozenset()
    read = reads.read(life.client_id, life.client_host or "", each.listed_ns, end_ns)
    return new - read if read & given else frozenset()
