"""What lines of logs say beyond the history of a group: refusals, brokers in trouble, logins, records, losses.

What a line means, and what is reported of it, is a row of `kcoord_wire.forensics.lines.meanings`.

Laws:

* Lines of a broker that name no group are about all groups of its log: `share_lines` gives what they say to the groups
  that were there at that time.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple

from kcoord_wire.forensics.detectors.finding import (
    MINUTE_NS,
    SECOND_NS,
    DetectorResult,
    Seen,
    by_importance,
    detector,
    lasting,
    person,
    plural,
)
from kcoord_wire.forensics.lines.meanings import MEANINGS, Reported
from kcoord_wire.forensics.lines.tables import evidence_of
from kcoord_wire.forensics.model import SEVERITIES, Finding, GroupHistory, LogLine
from kcoord_wire.protocol.wording import first_of, only

READ: Final = frozenset(
    {"broker_stopping", "broker_stopped", "broker_started", "coordinator_stopping", "coordinator_started"}
    | {"elected", "resigned"}
    | {"coordinator_lost", "coordinator_moved", "coordinator_loading", "coordinator_found", "unloaded"}
)
"""Kinds of lines that are read here without a row of `Reported`."""

_OUT: Final = frozenset({"FENCED", "FATAL", "STALE"})  # states of a member of KIP-848 that is out of its group
_STARTED_NS: Final = MINUTE_NS  # after which a client that takes the position of auto.offset.reset is no new one
_LOADING_MS: Final = 10_000  # for which members without a coordinator wait
_HAS_MOVED: Final = "NotLeaderOrFollowerException"  # loading ends where another broker takes the partition over
_SHOWN: Final = 160


# ---- kinds that have a row of `Reported`


@detector(12)
def logged_brokers(seen: Seen) -> Iterator[DetectorResult]:
    """Logged, of brokers: a full or broken disk, log directories that fail, too few replicas, a broker that was fenced.

    Normal is none. Threshold: 1 line.
    """
    yield from _reported(seen, "brokers")


@detector(18)
def logged_logins(seen: Seen) -> Iterator[DetectorResult]:
    """Logged, of connections: TLS handshakes and logins that fail, brokers that a client does not reach.

    Normal is an attempt or two while a broker starts. Threshold: 1 line of a login, 3 of an attempt to connect.
    """
    yield from _reported(seen, "logins")


@detector(23)
def logged_refusals(seen: Seen) -> Iterator[DetectorResult]:
    """Logged, of refusals: clients that the coordinator does not let into the group, or fences.

    Normal is none. Threshold: 1 line.
    """
    yield from _reported(seen, "refusals")


@detector(31)
def logged_records(seen: Seen) -> Iterator[DetectorResult]:
    """Logged, of records: one that cannot be read, responses too large for the client, a consumer that ended with one.

    Normal is none. Threshold: 1 line.
    """
    yield from _reported(seen, "records")


@detector(65)
def logged_losses(seen: Seen) -> Iterator[DetectorResult]:
    """Logged, of losses: clients that lost their place in the group, or did not do in time what it waits for.

    One finding, about the kind of line that is nearest to the cause; what follows from it is named behind it. Members
    that did not poll in time are `slow_polls` where the history has them.

    Normal is none. Threshold: 1 line; 3 of ids that are never used.
    """
    found = _by_kind(seen, "losses")
    if not found:
        return
    order = [kind for kind in MEANINGS if kind in found]
    main = next((kind for kind in _NEAREST if kind in found), order[0])
    others = [f"{len(found[kind])} x {kind.replace('_', ' ')}" for kind in order if kind != main]
    result = _result(found[main], _of(main))
    severity = min((_of(kind).severity for kind in found), key=SEVERITIES.index)
    yield result._replace(severity=severity, text=result.text + (f"; besides: {', '.join(others)}" if others else ""))


@detector(81)
def logged_course(seen: Seen) -> Iterator[DetectorResult]:
    """Logged, of course: what an administrator did, a change of protocol, static members replaced again and again.

    Always info.
    """
    for kind, rows in _by_kind(seen, "course").items():
        if kind != _REPLACED or not _is_once_each(rows):
            yield _result(rows, _of(kind))


_REPLACED: Final = "static_replaced"
_FENCED: Final = ("broker_fenced", "fenced")


@detector(83)
def static_deploy(seen: Seen) -> Iterator[DetectorResult]:
    """Static deploy, in a log: a new process took the place of a static member, of each at most once.

    Not where the old process is fenced afterwards, because it lives. Always info, and a note of a group in which
    nothing else happened. A capture shows it as members that go on.
    """
    refused = _by_kind(seen, "refusals")
    fenced = {row.instance_id for kind in _FENCED for row in refused.get(kind, [])}
    rows = [row for row in _by_kind(seen, "course").get(_REPLACED, []) if row.instance_id not in fenced]
    if rows and _is_once_each(rows):
        reported = _of(_REPLACED)
        who = first_of(_who(row, reported.subject) for row in rows)
        yield _result(rows, reported)._replace(
            text=f"{reported.text.format(who=who)}, of each once, as a deploy does it"
        )


def _is_once_each(rows: Iterable[LogLine]) -> bool:
    names = [row.instance_id for row in rows]
    return len(set(names)) == len(names)


_NEAREST: Final = (
    *(
        "removed_late",
        "none_rejoined",
        "slow_stop",
        "slow_handler",
        "poll_timeout",
        "epoch_transition",
        "missed_rebalance",
    ),
    *("session_lost", "unknown_member", "stale_generation", "pending_expired", "lost"),
)
"""Kinds of losses, the nearest to a cause first."""


def _of(kind: str) -> Reported:
    reported = MEANINGS[kind].reported
    assert reported is not None
    return reported


def _reported(seen: Seen, subject: str) -> Iterator[DetectorResult]:
    for kind, rows in _by_kind(seen, subject).items():
        yield _result(rows, _of(kind))


def _by_kind(seen: Seen, subject: str) -> dict[str, list[LogLine]]:
    """Return the lines of a subject that are worth a finding, by kind."""
    found: dict[str, list[LogLine]] = defaultdict(list)
    begun: dict[str, int] = {}
    polls_late = any(life.why_left == "poll timeout" for life in seen.history.members)
    for row in seen.lines:
        began_ns = begun.setdefault(row.client_id or row.source, row.time_ns)
        reported = MEANINGS[row.kind].reported
        if reported is None or reported.subject != subject or (row.kind == "poll_timeout" and polls_late):
            continue
        if not _is_of_course(row, began_ns):
            found[row.kind].append(row)
    return {kind: rows for kind, rows in found.items() if _times(rows) >= _of(kind).least}


def _times(rows: Iterable[LogLine]) -> int:
    """Return how often something was logged; librdkafka says how many identical lines it has left out."""
    return sum(1 + sum(map(int, _LEFT_OUT.findall(row.text))) for row in rows)


_LEFT_OUT: Final = re.compile(r"(\d{1,9}) identical error\(s\) suppressed")


def _is_of_course(row: LogLine, began_ns: int) -> bool:
    """Whether a line says nothing unusual, unlike others of its kind.

    :param began_ns: of the first line of its client
    """
    return (
        (row.kind == "epoch_transition" and row.state not in _OUT)
        or (row.kind == "offset_reset" and row.time_ns - began_ns < _STARTED_NS)
        or (row.kind == "delayed_assignment" and not row.took_ms)
        or (row.kind == "loading_done" and (row.took_ms or 0) < _LOADING_MS)
        or (row.kind == "loading_failed" and _HAS_MOVED in (row.reason or ""))
    )


def _result(rows: Sequence[LogLine], reported: Reported) -> DetectorResult:
    first, last = rows[0], rows[-1]
    names = list(dict.fromkeys(_who(row, reported.subject) for row in rows))
    stated = Counter((row.reason or row.state or _tail(row.text)).strip().rstrip(".")[:_SHOWN] for row in rows)
    text = reported.text.format(who=first_of(names), reason=stated.most_common(1)[0][0])
    longest = max((row.took_ms or 0 for row in rows), default=0)
    times = _times(rows)
    if times > 1:
        text += f", {times} times" + (f" in {lasting(last.time_ns - first.time_ns)}" if len(rows) > 1 else "")
    if longest and first.kind in _TIMES:
        text += _TIMES[first.kind].format(lasting(longest * _NS_PER_MS))
    return DetectorResult(
        severity=reported.severity,
        from_ns=first.time_ns,
        to_ns=last.time_ns,
        subject=only(names),
        text=text,
        advice=MEANINGS[first.kind].look,
        value=times,
        threshold=reported.least,
        evidence=map(evidence_of, rows),
    )


_NS_PER_MS: Final = 1_000_000
_TIMES: Final = {
    "poll_timeout": "; the longest time between two polls was {} at least",
    "loading_done": "; the longest took {}",
    "delayed_assignment": "; the longest delay was {} (scheduled.rebalance.max.delay.ms)",
}


def _tail(text: str) -> str:
    """Return what a line says behind its last colon, as far as that is something."""
    return text.rpartition(": ")[2] or text


def _who(row: LogLine, subject: str) -> str:
    if row.program == "broker":
        if subject == "brokers":
            return _broker(row)
        return row.instance_id or row.client_id or row.client_host or row.member_id or _broker(row)
    return row.instance_id or person(row.client_id, row.client_host)


def _broker(row: LogLine) -> str:
    return f"broker {row.coordinator}" if row.coordinator else "a broker"


# ---- brokers that are restarted


class _Restart(NamedTuple):
    """A time in which a broker was down.

    :ivar stopping: the line with which it was shut down; None where it has none, so that it crashed or was killed
    :ivar started: the line with which it was up again; None where it did not come back
    """

    broker: str
    from_ns: int
    stopping: LogLine | None
    started: LogLine | None


@detector(47)
def logged_restarts(seen: Seen) -> Iterator[DetectorResult]:
    """Logged, of restarts: brokers that were shut down and started again, as their own logs say.

    Normal is that brokers are restarted one after another, in order. A broker that starts without having been shut down
    was killed, or has crashed. Its start before anything else in its log is none, and no end after which no other
    source goes on.

    Threshold: 1; a warning where a broker was not shut down in order, else info.
    """
    found = list(_restarts(seen.lines))
    killed = [each for each in found if each.stopping is None]
    for rows in (killed, [each for each in found if each.stopping is not None]):
        if rows:
            yield _restarts_found(seen, rows, is_killed=rows is killed)


def _restarts(lines: Sequence[LogLine]) -> Iterator[_Restart]:
    last_ns = max((row.time_ns for row in lines), default=0)
    brokers = sorted((row for row in lines if row.program == "broker"), key=lambda row: (_broker(row), row.time_ns))
    for name, rows in groupby(brokers, _broker):
        yield from _restarts_of(name, list(rows), last_ns)


def _restarts_of(name: str, rows: Sequence[LogLine], last_ns: int) -> Iterator[_Restart]:
    """:param rows: the lines of one broker, in order of time"""
    # The coordinator is part of the broker: its lines count where a log has been reduced to those about groups.
    part = "broker" if any(row.kind == "broker_started" for row in rows) else "coordinator"
    before: LogLine | None = None
    stopping: LogLine | None = None
    for row in rows:
        is_start = row.kind == f"{part}_started"
        if row.kind in _OF_STARTS and not is_start:
            continue
        if row.kind == f"{part}_stopping":
            stopping = row
        elif is_start and before is not None:
            yield _Restart(name, (stopping or before).time_ns, stopping, row)
            stopping = None
        before = row
    if stopping is not None and last_ns - stopping.time_ns > _GONE_NS:
        yield _Restart(name, stopping.time_ns, stopping, None)


_OF_STARTS: Final = frozenset({"elected", "resigned", "coordinator_started"})
"""Kinds of lines that a broker may write while it starts."""

_GONE_NS: Final = 10 * SECOND_NS  # for which other sources go on after a broker was shut down


def _restarts_found(seen: Seen, rows: list[_Restart], *, is_killed: bool) -> DetectorResult:
    names = list(dict.fromkeys(each.broker for each in rows))
    ended_ns = max((each.started.time_ns if each.started else each.from_ns) for each in rows)
    from_ns = min(each.from_ns for each in rows)
    text = f"{first_of(names)} started again without having been shut down: killed, or crashed"
    if not is_killed:
        text = _planned(names, rows, lasting(ended_ns - from_ns))
    moved = sum(row.kind == "resigned" and from_ns <= row.time_ns <= ended_ns for row in seen.lines)
    if moved:
        text += f"; {moved} {plural('partition', range(moved))} of __consumer_offsets moved to other coordinators"
    return DetectorResult(
        severity="warning" if is_killed else "info",
        from_ns=from_ns,
        to_ns=ended_ns,
        subject=only(names),
        text=text,
        advice=_KILLED if is_killed else _PLANNED,
        value=len(rows),
        evidence=(evidence_of(row) for each in rows for row in (each.stopping, each.started) if row is not None),
    )


_KILLED: Final = "Look why it ended: its exit code and the end of its log before, the OOM killer, a full disk."
_PLANNED: Final = "If that was intended, nothing is wrong: members find their new coordinator by themselves."


def _planned(names: list[str], rows: list[_Restart], span: str) -> str:
    """Return what is said of brokers that were shut down in order, and for how long they were away."""
    downs = [each.started.time_ns - each.from_ns for each in rows if each.started is not None]
    is_rolling = len(names) > 1 and len(downs) == len(rows)
    text = f"{first_of(names)} {plural('was', names, 'were')} shut down in order"
    if is_rolling:
        text = f"a rolling restart of {first_of(names)}, within {span}"
    if downs:
        text += f"; back after {lasting(min(downs))}" + (f" to {lasting(max(downs))}" if len(downs) > 1 else "")
    return text + (", and not started again in these logs" if len(downs) < len(rows) else "")


# ---- coordinators that clients lose

_LOST: Final = frozenset({"coordinator_lost", "coordinator_moved", "coordinator_loading", "unloaded"})
_FOUND: Final = frozenset({"coordinator_found", "joined", "synced", "loaded"})
_THE_GROUP: Final = "the group"  # whose coordinator the brokers' own lines are about
_SHORT_NS: Final = SECOND_NS
_LONG_NS: Final = 10 * SECOND_NS


class _Gap(NamedTuple):
    """A time without a coordinator, of one client or of the group.

    :ivar lost: the first line about it; of a group that a broker loads which had not given it up: the line before
    :ivar found: the line that ends it; None where the source ended first
    """

    lost: LogLine
    found: LogLine | None
    until_ns: int

    @property
    def ns(self) -> int:
        return self.until_ns - self.lost.time_ns

    @property
    def is_move(self) -> bool:
        """Whether another broker coordinates a group that has members."""
        found = self.found
        is_of_group = found is not None and found.program == self.lost.program == "broker" and found.members != 0
        return is_of_group and found is not None and found.coordinator != self.lost.coordinator

    @property
    def is_known(self) -> bool:
        """Whether it is known how long it lasted."""
        return self.lost.kind in _LOST

    @property
    def text(self) -> str:
        if self.found is None or self.lost.program != "broker":
            ended = "" if self.found is not None else ", and had found none when the source ended"
            return f"had no coordinator for {lasting(self.ns)}{ended}: {self.lost.text[:_SHOWN]}"
        move = f"moved from {_broker(self.lost)} to {_broker(self.found)}"
        if not self.is_known:
            return f"{move}, without having been given up before"
        is_move = self.found.coordinator != self.lost.coordinator
        how = f"it {move}" if is_move else f"{_broker(self.lost)} had given it up, and loaded it again"
        return f"had no coordinator for {lasting(self.ns)}: {how}"


@detector(48)
def logged_coordinator(seen: Seen) -> Iterator[DetectorResult]:
    """Logged, of the coordinator: a client, or the group, had none, from where it was given up until another was found.

    Normal is that it is found within a second, by the same broker. Threshold: 1 s, or a group with members that another
    broker coordinates from then on. A warning there, from 10 s on, and where none was found; else info.
    """
    gaps = [gap for gap in _gaps(seen.lines) if (gap.is_known and gap.ns >= _SHORT_NS) or gap.is_move]
    if gaps:
        yield _gaps_found(gaps)


def _gaps_found(gaps: Sequence[_Gap]) -> DetectorResult:
    worst = max(gaps, key=lambda gap: gap.ns if gap.is_known else 0)
    names = list(dict.fromkeys(_THE_GROUP if gap.lost.program == "broker" else _who(gap.lost, "") for gap in gaps))
    is_warning = worst.ns >= _LONG_NS or any(gap.is_move for gap in gaps)
    return DetectorResult(
        severity="warning" if is_warning else "info",
        from_ns=min(gap.lost.time_ns for gap in gaps),
        to_ns=None if worst.found is None else max(gap.until_ns for gap in gaps),
        subject=only(names),
        text=f"{first_of(names)} {worst.text}",
        advice=_MOVED if worst.lost.program == "broker" else MEANINGS[worst.lost.kind].look,
        value=worst.ns / SECOND_NS,
        threshold=_SHORT_NS / SECOND_NS,
        evidence=(evidence_of(row) for gap in gaps for row in (gap.lost, gap.found) if row is not None),
    )


_MOVED: Final = (
    "Look at why its broker gave the group up: a restart, a crash (no line says that it was shut down then), or a "
    "partition of __consumer_offsets that was reassigned. Members find the new coordinator by themselves."
)


def _gaps(lines: Sequence[LogLine]) -> Iterator[_Gap]:
    """Yield the times in which a client, or the group, had no coordinator, and the moves of a group."""
    lost: dict[str, LogLine] = {}
    served: LogLine | None = None  # the last line of the coordinator that the group had
    for row in lines:
        name = _THE_GROUP if row.program == "broker" else row.client_id or row.source
        if row.kind in _LOST:
            lost.setdefault(name, row)
        elif row.kind in _FOUND and name in lost:
            yield _Gap(lost.pop(name), row, row.time_ns)
        elif row.kind == "loaded" and served is not None and served.coordinator != row.coordinator:
            yield _Gap(served, row, row.time_ns)
        served = row if row.program == "broker" and row.coordinator is not None else served
    last_ns = lines[-1].time_ns if lines else 0
    lost.pop(_THE_GROUP, None)  # the log of its next coordinator need not be here
    yield from (_Gap(row, None, last_ns) for row in lost.values() if last_ns - row.time_ns >= _LONG_NS)


# ---- lines that are about several groups, and captures of the same group

_OF_ALL: Final = frozenset({"logged_brokers", "logged_restarts", "logged_logins"})
_AROUND_NS: Final = MINUTE_NS


def share_lines(histories: Iterable[GroupHistory], groups: Iterable[str] | None = None) -> list[GroupHistory]:
    """Return the histories, what lines without a group say given to all groups that it is about.

    :param histories: a capture and a log of one group as one (`witnesses.join_witnesses`)
    :param groups: only these; None for all
    """
    kept = list(histories)
    nameless = next((each for each in kept if each.group.origin == "text" and not each.group.group_id), None)
    if nameless is None:
        return kept
    given = [each for each in kept if each is not nameless and each.group.origin in ("text", "wire")]
    is_more = _share(nameless, given) or bool(nameless.members or nameless.rebalances)
    if groups is None and (is_more or not given):
        return kept
    return [each for each in kept if each is not nameless]


def _share(nameless: GroupHistory, groups: Sequence[GroupHistory]) -> bool:
    """Give groups what lines without a group say of all; return whether some of it is about none of them."""
    of_all = [each for each in nameless.findings if each.detector in _OF_ALL]
    shared = [each for each in of_all if sum(_give(each, history) for history in groups)]
    return len(shared) < len(nameless.findings)


def _give(finding: Finding, history: GroupHistory) -> bool:
    """Add a finding to a group that was there at its time; return whether it was."""
    until_ns = finding.until_ns(history.group.last_ns)
    if until_ns < history.group.first_ns - _AROUND_NS or finding.from_ns > history.group.last_ns + _AROUND_NS:
        return False
    _add(history, [replace(finding, group_id=history.group.group_id)])
    return True


def _add(history: GroupHistory, findings: Iterable[Finding]) -> None:
    history.findings = by_importance([*history.findings, *findings])
