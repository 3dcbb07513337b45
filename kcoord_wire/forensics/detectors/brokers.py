"""What brokers answer: outages, moves of the coordinator, and errors, in groups and outside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors.finding import (
    MINUTE_NS,
    OF_HOSTS,
    SECOND_NS,
    DetectorResult,
    Seen,
    busiest,
    client_at,
    detector,
    error_name,
    finding_of,
    lasting,
    person,
    plural,
)
from kcoord_wire.forensics.detectors.load import is_throttling, throttled_clients, throttled_found
from kcoord_wire.forensics.detectors.offsets import LOST_PLACE
from kcoord_wire.forensics.model import (
    EPOCH_APIS,
    NS_PER_MS,
    TLS,
    Evidence,
    GroupHistory,
    GroupSummary,
    MemberLife,
    Outage,
    Sighting,
    broker_address,
)
from kcoord_wire.forensics.refusal_advice import ALWAYS, refusal_of
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.wording import counted, first_of, only

# ---- outage

# Outages: times in which no coordinator answered the members of a group (`model.Outage`).
#
# Normal is that a member is answered within milliseconds. An outage that is shorter than the members' sessions costs no
# rebalance, and yet no member could commit, join or leave in the meantime. A move of the coordinator belongs to every
# rolling restart of brokers, and takes a second or two.
#
# Threshold: any. Critical if members still try to reach a coordinator at its end, which is that of the source, after
# `LASTING_MS` or more; a warning if it was survived.


LASTING_MS: Final = 10_000

_MOVED: Final = "coordinator moved"
_OF_OUTAGES: Final = frozenset({Cause.OUTAGE, Cause.COORDINATOR_FAILOVER})
_ADVICE: Final = MappingProxyType(
    {
        "broker down": "Look at this broker and its log at that time: it was stopped, killed or restarted, or a "
        "firewall turned its clients away. The clients are not at fault; they need no change of their timeouts.",
        "loading": "The broker had to read the group from __consumer_offsets first: look at why it was restarted or "
        "became the coordinator, and at the size of that partition if it took long.",
        "silence": "Look at the network between the members and this broker, and at the broker itself: a full stop "
        "(paused machine, long garbage collection, full disk) looks the same. Not a member is at fault, for all of "
        "them went unanswered together.",
        "log not written": "Look at the replicas of __consumer_offsets (kafka-topics.sh --describe --topic "
        "__consumer_offsets --under-min-isr-partitions) and at the brokers that hold them: one is dead or slow, so "
        "that min.insync.replicas is not reached, or a write takes longer than offsets.commit.timeout.ms. The "
        "coordinator is there, and no client is at fault.",
        "host blocked": "Look at what lies between that host and this broker: a firewall, a security group or network "
        "policy, a route, a full table of connections. Neither the process nor the broker is at fault, and a restart "
        "changes nothing.",
        "connection forgotten": "Look for the idle timeout of what lies between (350 s of a NAT gateway, 240 s of a "
        "load balancer, a firewall's table of sessions): set connections.max.idle.ms below it, or TCP keepalive "
        "(socket.keepalive.enable of librdkafka, tcp_keepalive_time). Until then a request on such a connection waits "
        "for request.timeout.ms.",
        _MOVED: "A broker was restarted, or the partition of __consumer_offsets was reassigned or lost its leader: "
        "find out whether that was intended. Members find the new coordinator by themselves.",
    }
)


_UNANSWERED: Final = ("silence",)
"""Kinds of outages that only missing answers show; connections that end, and errors, are frames."""


@detector(10)
def outage(seen: Seen) -> Iterator[DetectorResult]:
    """Outage: a time in which no coordinator answered the members of the group, other than a move."""
    others = (_MOVED, *OF_HOSTS)
    return (_outage(outage, seen.history) for outage in seen.history.outages if outage.kind not in others)


@detector(11, basis="frames")
def host_cut_off(seen: Seen) -> Iterator[DetectorResult]:
    """Host cut off: a host that a broker does not hear, or that does not hear it, while the broker serves others.

    Its SYNs stay without an answer, or what either sends is sent again and again without an acknowledgement, which the
    kernel of a process gives that is frozen or busy. So it is neither the process nor the broker.

    Threshold: 3 SYNs, or bytes of which nothing was acknowledged for 3 s (`wire.blocked`).
    """
    return (_outage(outage, seen.history) for outage in seen.history.outages if outage.kind in OF_HOSTS)


@detector(46, basis="frames")
def coordinator_move(seen: Seen) -> Iterator[DetectorResult]:
    """Coordinator move: the group got another coordinator."""
    return (_outage(outage, seen.history) for outage in seen.history.outages if outage.kind == _MOVED)


def _outage(outage: Outage, history: GroupHistory) -> DetectorResult:
    tried_ns = max((fact.time_ns for fact in outage.evidence), default=outage.from_ns)  # members try it no longer
    ms = max(0, (tried_ns if outage.to_ns is None else outage.to_ns) - outage.from_ns) / NS_PER_MS
    lasts = outage.to_ns is None and ms >= LASTING_MS
    rebalances = [] if outage.rebalance is None else [outage.rebalance]
    cost = f"; rebalance #{outage.rebalance} followed" if rebalances else _without_rebalance(outage, history)
    return DetectorResult(
        severity="critical" if lasts else "warning",
        from_ns=outage.from_ns,
        to_ns=outage.to_ns,
        subject=outage.broker,
        text=outage.text + ("" if outage.to_ns is None else cost),
        advice=_ADVICE[outage.kind],
        value=ms,
        threshold=0,
        rebalances=[*rebalances, *_that_follow(outage, history)],
        evidence=outage.evidence,
        cost_ms=ms,
        rests_on=None if outage.kind in _UNANSWERED else frozenset(),
    )


_FOLLOWS_NS: Final = MINUTE_NS  # within which the members of an outage have rejoined: sessions are no longer


def _without_rebalance(outage: Outage, history: GroupHistory) -> str:
    """Return that an outage cost no rebalance, if none began meanwhile or soon after it."""
    until_ns = (outage.from_ns if outage.to_ns is None else outage.to_ns) + _FOLLOWS_NS
    is_any = any(outage.from_ns <= row.started_ns <= until_ns for row in history.rebalances)
    return "" if is_any else "; it cost no rebalance"


def _that_follow(outage: Outage, history: GroupHistory) -> list[int]:
    """Return the numbers of the other rebalances that it explains: those with that cause until the next outage."""
    later = [other.from_ns for other in history.outages if other.from_ns > outage.from_ns]
    until_ns = min(later, default=history.group.last_ns)
    return [
        row.number
        for row in history.rebalances
        if row.cause in _OF_OUTAGES and outage.from_ns <= row.started_ns <= until_ns and row.number != outage.rebalance
    ]


# ---- refusals

WINDOW_NS: Final = 10 * MINUTE_NS
_COLUMNS: Final = [
    *("api", "error_code", "client_id", "client_host", "member_id", "instance_id", "asked_ns", "answered_ns"),
    *("seq", "answer_seq", "source", "connection", "session_timeout_ms", "given_member_id"),
    "generation_id",
]
_MEMBERSHIP: Final = frozenset({"JoinGroup", "SyncGroup", "Heartbeat", *EPOCH_APIS})
_REPEATED: Final = 2  # look-ups or commits of a client that is no tool
_AT_ONCE_NS: Final = SECOND_NS  # KafkaJS 2.2 sends two heartbeats when its event loop goes on
_RETRIES: Final = 2  # of a tool that resets offsets

Client = tuple[str, str]
"""Client id and host."""


@dataclass(slots=True)
class _Refused:
    """The refusals of one client with one error.

    :ivar accepted_ns: when a request of the API that was refused last was accepted again; None where none was
    """

    client: Client
    rows: list[dict[str, Any]]
    accepted_ns: int | None = None

    @property
    def name(self) -> str:
        return person(*self.client)

    @property
    def is_at_work(self) -> bool:
        """Whether it tries to be a member or to commit, other than a tool that asks once."""
        apis = Counter(row["api"] for row in self.rows)
        return bool(_MEMBERSHIP & apis.keys()) or apis["FindCoordinator"] + apis["OffsetCommit"] >= _REPEATED


@detector(20, basis="frames")
def refused(seen: Seen) -> Iterator[DetectorResult]:
    """Refusals: requests of a client that the broker answers with an error, again and again, or once for good.

    Normal are the errors that the protocol uses: REBALANCE_IN_PROGRESS and MEMBER_ID_REQUIRED always, NOT_COORDINATOR
    and its like while a coordinator moves (outages are reported apart), UNKNOWN_MEMBER_ID once after a session timeout.
    The table of `refusal_advice` says how often each error is normal. Commits of members that have lost their place are
    those of `commit_after_revoke`, and assignors that do not fit those of `mixed_assignors`.

    Threshold: more refusals of one client within 10 minutes than the table tolerates. Critical where only a change from
    outside helps (`Refusal.is_fatal`), the client tries to be a member or to commit, and nothing of it was accepted
    afterwards; info where a tool is refused once because the group has members; else warning.
    """
    if seen.exchanges is None:
        return
    joins = _joins(seen.exchanges)
    shared = _shared_instances(joins)
    replaced = {join["given_member_id"] for of_instance in shared.values() for join in of_instance}
    rows = [row for row in _refused_rows(seen.exchanges) if not _is_explained(row, seen.too_tight, replaced)]
    rows = list(_without_first_news(rows, seen.history))
    yield from _of_tools([row for row in rows if _is_without_member(row)], seen.exchanges)
    by_code: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if not _is_without_member(row) and not _is_reported_elsewhere(row):
            by_code[row["error_code"]].append(row)
    yield from _of_fenced(by_code.pop(ErrorCode.FENCED_INSTANCE_ID, []), joins, shared)
    for code, of_code in sorted(by_code.items()):
        yield from _of_code(code, of_code, seen.exchanges, seen.history)


def _refused_rows(exchanges: pa.Table) -> list[dict[str, Any]]:
    """Return the refusals that are not always normal, in order of time."""
    failed = exchanges.filter(pc.not_equal(pc.fill_null(exchanges["error_code"], 0), 0)).select(_COLUMNS)
    codes = [code for code in pc.unique(failed["error_code"]).to_pylist() if refusal_of(code).tolerated < ALWAYS]
    failed = failed.filter(pc.is_in(failed["error_code"], value_set=pa.array(codes, failed["error_code"].type)))
    rows = [row for row in failed.to_pylist() if row["asked_ns"] is not None]
    return sorted(rows, key=lambda row: (row["asked_ns"], row["source"] or "", row["seq"] or 0))


def _is_without_member(row: dict[str, Any]) -> bool:
    """Whether it is a commit without a member id and without a generation: of a tool, or of a member that was removed.

    aiokafka's members commit like this once they know that they have no place (aiokafka 0.12, `_on_join_prepare`).
    """
    is_alone = not row["member_id"] and (row["generation_id"] is None or row["generation_id"] < 0)
    return row["api"] == "OffsetCommit" and is_alone and row["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def _of_members(exchanges: pa.Table) -> frozenset[str]:
    """Return the connections on which members have joined or sent heartbeats."""
    own = pc.is_in(exchanges["api"], value_set=pa.array(sorted(_MEMBERSHIP)))
    return frozenset(pc.unique(exchanges["connection"].filter(own)).to_pylist())


def _is_reported_elsewhere(row: dict[str, Any]) -> bool:
    api, code = row["api"], row["error_code"]
    if api == "LeaveGroup":  # of a member that was removed before: it has what it asked for
        return True
    if api == "OffsetCommit":
        return code in LOST_PLACE
    return bool(api == "JoinGroup" and code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _is_explained(row: dict[str, Any], too_tight: Collection[Client], replaced: Collection[str]) -> bool:
    """Whether `tight_heartbeats`, or another process with its group.instance.id, is why the client was removed."""
    is_removed = row["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    return is_removed and (_client(row) in too_tight or row["member_id"] in replaced)


def _without_first_news(rows: Iterable[dict[str, Any]], history: GroupHistory) -> Iterator[dict[str, Any]]:
    """Yield the refusals but those by which a member learns that its session had ended: that is another finding's."""
    silent = {life.member_id for life in history.members if life.why_left == "session timeout" and life.end == "silent"}
    news: dict[str, int] = {}
    for row in rows:
        is_theirs = row["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID and row["member_id"] in silent
        first_ns = news.setdefault(row["member_id"], _answered(row)) if is_theirs else 0
        if not is_theirs or _answered(row) - first_ns > _AT_ONCE_NS:
            yield row


def _client(row: dict[str, Any]) -> Client:
    return row["client_id"] or "", row["client_host"] or ""


def _answered(row: dict[str, Any]) -> int:
    return int(row["asked_ns"] if row["answered_ns"] is None else row["answered_ns"])


def _refusal(row: dict[str, Any], more: str = "") -> Evidence:
    text = f"{row['api']} of {person(*_client(row))} is answered with {error_name(row['error_code'])}{more}"
    return _evidence(row, text)


def _evidence(row: dict[str, Any], text: str) -> Evidence:
    """Return evidence at the frame of the answer; of the request where there is none."""
    seq = row["seq"] if row["answer_seq"] is None else row["answer_seq"]
    return Evidence(_answered(row), row["source"] or "", -1 if seq is None else seq, text)


# ---- any error


def _of_code(
    code: int, rows: list[dict[str, Any]], exchanges: pa.Table, history: GroupHistory
) -> Iterator[DetectorResult]:
    """Yield one finding for the clients that were refused more often than is normal."""
    refusal = refusal_of(code)
    by_client: dict[Client, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_client[_client(row)].append(row)
    refused = [
        _Refused(client, own, _accepted_ns(exchanges, client, own[-1]))
        for client, own in by_client.items()
        if len(busiest(own, _answered, WINDOW_NS)) > refusal.tolerated
    ]
    if not refused:
        return
    refused.sort(key=lambda each: (-len(each.rows), each.client))
    shown = sorted((row for each in refused for row in each.rows), key=_answered)
    is_lasting = refusal.is_fatal and any(each.accepted_ns is None and each.is_at_work for each in refused)
    names = [each.name for each in refused]
    yield DetectorResult(
        severity="critical" if is_lasting else "warning",
        from_ns=_answered(shown[0]),
        to_ns=_answered(shown[-1]),
        subject=refused[0].client[0] if len(refused) == 1 else None,
        text=f"{first_of(names)} {plural('was', names, 'were')} refused with {error_name(code)}, {_times(shown)}: "
        f"{refusal.meaning}{_asked(code, shown, history)}; {_outcome(refused, history)}",
        advice=refusal.advice,
        value=len(shown),
        threshold=refusal.tolerated + 1,
        rebalances=_set_off(history, refused),
        evidence=map(_refusal, shown),
    )


def _set_off(history: GroupHistory, refused: list[_Refused]) -> list[int]:
    """Return the numbers of the rebalances in which the group lost a member because it was refused."""
    ids = {row["member_id"] for each in refused for row in each.rows}
    return [row.number for row in history.rebalances if row.cause == Cause.REFUSED and row.member_id in ids]


def _accepted_ns(exchanges: pa.Table, client: Client, last: dict[str, Any]) -> int | None:
    """Return when a request like the last one that was refused was accepted for the first time after it."""
    good = pc.and_(pc.equal(exchanges["api"], last["api"]), pc.equal(exchanges["error_code"], 0))
    good = pc.and_(good, pc.greater(exchanges["asked_ns"], _answered(last)))
    for name, value in zip(("client_id", "client_host"), client, strict=True):
        good = pc.and_(good, pc.equal(pc.fill_null(exchanges[name], ""), value))
    found: int | None = pc.min(exchanges["asked_ns"].filter(pc.fill_null(good, False))).as_py()
    return found


def _times(rows: list[dict[str, Any]]) -> str:
    apis = ", ".join(f"{count:,} {api}" for api, count in Counter(row["api"] for row in rows).most_common(3))
    ns = _answered(rows[-1]) - _answered(rows[0])
    return f"{len(rows):,} {plural('time', rows)}" + (f" in {lasting(ns)}" if len(rows) > 1 else "") + f" ({apis})"


def _asked(code: int, rows: list[dict[str, Any]], history: GroupHistory) -> str:
    """Return what it had asked for, where the request shows what is wrong with it."""
    if code == ErrorCode.UNRELEASED_INSTANCE_ID:
        return _holders(sorted({row["instance_id"] for row in rows if row["instance_id"]}), history)
    asked = sorted({row["session_timeout_ms"] for row in rows if row["session_timeout_ms"] is not None})
    if code != ErrorCode.INVALID_SESSION_TIMEOUT or not asked:
        return ""
    return f" (it asks for {', '.join(f'{ms:,} ms' for ms in asked[:3])})"


def _holders(instance_ids: list[str], history: GroupHistory) -> str:
    """Return the instance ids that are in use, with the members that have them."""
    held = {life.instance_id: person(life.client_id, life.client_host) for life in history.members}
    parts = [f"{name}, held by {held[name]}" if name in held else name for name in instance_ids]
    return f" ({first_of(parts)})" if parts else ""


def _outcome(refused: list[_Refused], history: GroupHistory) -> str:
    lasting_ones = [each for each in refused if each.accepted_ns is None]
    if not lasting_ones:
        ns = max((each.accepted_ns or 0) - _answered(each.rows[-1]) for each in refused)
        return f"accepted again {lasting(ns)} after the last refusal"
    if len(lasting_ones) < len(refused):
        return f"of {first_of([each.name for each in lasting_ones])} nothing was accepted afterwards"
    rest_ns = max(0, history.group.last_ns - max(_answered(each.rows[-1]) for each in refused))
    return "nothing was accepted afterwards" + (f", in {lasting(rest_ns)}" if rest_ns >= SECOND_NS else "")


def _of_tools(rows: list[dict[str, Any]], exchanges: pa.Table) -> Iterator[DetectorResult]:
    """Yield one finding for the tools among these commits, whose connections no member uses."""
    of_members = _of_members(exchanges) if rows else frozenset()
    rows = [row for row in rows if row["connection"] not in of_members]
    if not rows:
        return
    names = sorted({person(*_client(row)) for row in rows})
    yield DetectorResult(
        severity="info" if len(rows) <= _RETRIES else "warning",
        from_ns=_answered(rows[0]),
        to_ns=_answered(rows[-1]),
        subject=only(sorted({_client(row)[0] for row in rows})),
        text=f"{first_of(names)} tried to set offsets of the group from outside, without being a member, "
        f"{_times(rows)}, and was refused with UNKNOWN_MEMBER_ID: the group has members",
        advice="Stop all members before offsets are set from outside; a consumer that uses assign() needs a group.id "
        "of its own.",
        value=len(rows),
        evidence=map(_refusal, rows),
    )


# ---- static members

_OWN_NAME: Final = (
    "Give each process a group.instance.id of its own (the pod's ordinal, not a constant in a shared file)"
)


def _joins(exchanges: pa.Table) -> list[dict[str, Any]]:
    """Return the JoinGroup requests and first heartbeats in `EPOCH_APIS` of static members, in order of time."""
    api = pc.is_in(exchanges["api"], value_set=pa.array(["JoinGroup", *EPOCH_APIS]))
    good = pc.equal(pc.fill_null(exchanges["error_code"], 0), 0)
    rows = exchanges.filter(pc.and_(pc.and_(api, good), pc.is_valid(exchanges["instance_id"]))).select(_COLUMNS)
    return sorted((row for row in rows.to_pylist() if row["asked_ns"] is not None), key=lambda row: row["asked_ns"])


def _shared_instances(joins: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the joins under each group.instance.id that two processes take from each other.

    A connection that has joined under a name joins under it again after another connection has: so both processes were
    alive all the time. Clients whose heartbeats do not carry the name (aiokafka) get UNKNOWN_MEMBER_ID instead of
    FENCED_INSTANCE_ID, and join again.
    """
    by_instance: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for join in joins:
        by_instance[join["instance_id"]].append(join)
    return {name: rows for name, rows in by_instance.items() if _takes_back(rows)}


def _takes_back(joins: list[dict[str, Any]]) -> int:
    """Return how often a connection took a name back that another one had taken meanwhile."""
    seen: set[str] = set()
    count = 0
    for before, join in pairwise(joins):
        seen.add(before["connection"])
        is_another = join["given_member_id"] not in (None, before["given_member_id"])
        count += is_another and join["connection"] != before["connection"] and join["connection"] in seen
    return count


def _of_shared(instance_id: str, joins: list[dict[str, Any]]) -> DetectorResult:
    names = sorted(set(map(_process, joins)))
    return DetectorResult(
        severity="critical",
        from_ns=_answered(joins[0]),
        to_ns=_answered(joins[-1]),
        subject=instance_id,
        text=f"{first_of(names)} use one group.instance.id ({instance_id}) and take it from each other: of "
        f"{len(joins)} joins under it {_takes_back(joins)} took it back",
        advice=f"{_OWN_NAME}. With each join the coordinator removes the process that had the name, and that one joins "
        "again.",
        value=len(joins),
        evidence=(_evidence(row, f"{_process(row)} joins with group.instance.id {instance_id}") for row in joins),
    )


def _of_fenced(
    rows: list[dict[str, Any]], joins: list[dict[str, Any]], shared: Mapping[str, list[dict[str, Any]]]
) -> Iterator[DetectorResult]:
    """Yield one finding for each group.instance.id that two processes use.

    :param shared: see `_shared_instances`
    """
    by_instance: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_instance[row["instance_id"] or ""].append(row)
    for instance_id, fenced in sorted(by_instance.items()):
        pairs = [(row, _successor(row, instance_id, joins)) for row in fenced]
        pairs = [(row, after) for row, after in pairs if after is None or not _is_retry(row, after)]
        if pairs:
            yield _of_instance(instance_id, pairs)
    yield from (_of_shared(name, turns) for name, turns in sorted(shared.items()) if name not in by_instance)


def _successor(row: dict[str, Any], instance_id: str, joins: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the join with which another process took the name."""
    others = [
        join
        for join in joins
        if join["instance_id"] == instance_id
        and join["asked_ns"] <= _answered(row)
        and row["member_id"] not in (join["member_id"], join["given_member_id"])
    ]
    return others[-1] if others else None


def _is_retry(row: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a client only repeated its join: the one before it, still parked, is answered with the same error."""
    is_parked = row["api"] in ("JoinGroup", "SyncGroup") and row["asked_ns"] < after["asked_ns"]
    return is_parked and _client(row) == _client(after)


def _of_instance(instance_id: str, pairs: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> DetectorResult:
    refusal = refusal_of(ErrorCode.FENCED_INSTANCE_ID)
    rows = [row for row, _ in pairs]
    takers = [after for _, after in pairs if after is not None]
    refused = f"FENCED_INSTANCE_ID, {_times(rows)}"
    if _take_turns(rows, takers):
        names = sorted({person(*_client(row)) for row in (*rows, *takers)})
        text = f"{first_of(names)} use one group.instance.id ({instance_id}) and fence each other ({refused}): each "
        text += "that was fenced was started again, and took the name back"
        advice = f"{_OWN_NAME}. Until then each start of one of them fences the other; their supervisors do no more."
    else:
        fenced, others = (list(dict.fromkeys(map(_process, each))) for each in (rows, takers))
        by = f" when {first_of(others)} joined with the same group.instance.id" if others else f": {refusal.meaning}"
        text = f"{first_of(fenced)} {plural('was', fenced, 'were')} fenced ({refused}){by} ({instance_id}); a client "
        text += "that is fenced stops for good"
        advice = refusal.advice
    return DetectorResult(
        severity="critical",
        from_ns=_answered(rows[0]),
        to_ns=_answered(rows[-1]),
        subject=instance_id or None,
        text=text,
        advice=advice,
        value=len(rows),
        evidence=(_refusal(row, f", group.instance.id {instance_id}") for row in rows),
    )


def _take_turns(rows: list[dict[str, Any]], takers: list[dict[str, Any]]) -> bool:
    """Whether one that was fenced took the name back later, so that a supervisor restarts it."""
    fenced_ns = {_client(row): _answered(row) for row in reversed(rows)}
    return any(after["asked_ns"] > fenced_ns.get(_client(after), after["asked_ns"]) for after in takers)


def _process(row: dict[str, Any]) -> str:
    """Return the name of a process, with its address and port: two copies may have one client id and host."""
    return person(row["client_id"], (row["connection"] or "").partition("-")[0] or row["client_host"])


# ---- outside

# Errors that clients get outside groups: refused versions, credentials and topics.
#
# They are findings of the groups whose members the clients are, by client id and host; those of all other clients are
# the findings of one more history, without a group (origin ``clients``), so that every report and table has them.
#
# Threshold: 1 for each client and error, 3 for refused ApiVersions. Critical where only a change from outside helps
# (`Refusal.is_fatal`), a topic's error only if a client got it twice and it goes on, TLS from 3 connections on; else
# warning. TLS handshakes that fail: 1 where the client, or an alert in the clear, says so (Java's clients try once), or
# 5 of a host at a port within a minute, since a client tries again at once, and a check of the port's health less
# often; critical from 5 on.


VERSIONS_REFUSED: Final = 3
"""Refused ApiVersions requests; a client may be about to ask with a lower version at the end of a source."""

_QUIET_NS: Final = 3 * SECOND_NS  # without a refusal of a topic that was refused again and again


def outside_findings(history: GroupHistory, errors: Iterable[Sighting]) -> Iterator[DetectorResult]:
    """Yield what the members of a group were refused outside it.

    :param errors: rows of ERROR
    """
    lives = _by_client([history])
    rows = [row for row in errors if _is_of(row, lives.get(row.client, ()))]
    yield from _outside_found(rows, history.group.last_ns)


def history_of_clients(histories: Sequence[GroupHistory], errors: Sequence[Sighting]) -> GroupHistory | None:
    """Return a history without a group, of the clients that belong to none of these; None without errors of such.

    :param errors: rows of ERROR
    """
    lives = _by_client(histories)
    rows = [row for row in errors if not _is_of(row, lives.get(row.client, ()))]
    if not rows:
        return None
    times = [row.time_ns for row in rows]
    group = GroupSummary("", "clients", None, min(times), max(times), 0, 0, 0, 0, 0, 0.0, [])
    history = GroupHistory(group)
    history.findings = [finding_of("refused", found, history) for found in _outside_found(rows, group.last_ns)]
    for client, of_client in throttled_clients(rows).items():
        history.findings += [
            finding_of("throttled", each, history) for each in throttled_found(client, of_client, history)
        ]
    return history if history.findings else None


def clients_of(history: GroupHistory) -> set[Client]:
    """Return the clients of a group."""
    return set(_by_client([history]))


def _by_client(histories: Iterable[GroupHistory]) -> dict[Client, list[MemberLife]]:
    lives: dict[Client, list[MemberLife]] = defaultdict(list)
    for history in histories:
        for life in history.members:
            lives[client_at(life)].append(life)
    return lives


def _is_of(row: Sighting, lives: Iterable[MemberLife]) -> bool:
    """Whether an error is that of one of its client's lives: by its topic, where it has one."""
    return any(row.topic is None or not life.topics or row.topic in life.topics for life in lives)


def _outside_found(rows: Iterable[Sighting], last_ns: int) -> Iterator[DetectorResult]:
    """Yield one finding for each API and error but throttling, and for each host that does not agree on TLS."""
    alike: dict[tuple[str, int], list[Sighting]] = defaultdict(list)
    of_tls: dict[tuple[str, str, str], list[Sighting]] = defaultdict(list)
    handshakes: dict[tuple[str, str], list[Sighting]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.time_ns):
        if row.api == TLS and row.text is not None:
            handshakes[row.client[1], broker_address(row.connection)].append(row)
        elif row.api == TLS:
            of_tls[row.client[1], broker_address(row.connection), row.by or ""].append(row)
        elif not is_throttling(row):
            alike[row.api or "", row.error_code or 0].append(row)
    for (api, code), found in sorted(alike.items()):
        if api != "ApiVersions" or len(found) >= VERSIONS_REFUSED:
            yield _of_error(api, code, found, last_ns)
    for place, found in sorted(of_tls.items()):
        yield _of_tls(*place, found)
    for pair, found in sorted(handshakes.items()):
        if _have_failed(found := _distinct(found)):
            yield _of_handshakes(*pair, found)


_PROBES: Final = 2  # connections of a scanner of ports


def _of_tls(host: str, broker: str, by: str, rows: list[Sighting]) -> DetectorResult:
    """Return that one side speaks TLS, and the other does not."""
    rows = _distinct(rows)
    names = sorted({row.client_id for row in rows if row.client_id})
    who = person(first_of(names), host) if names else host
    what = "speaks TLS to" if by == "client" else "speaks no TLS to"
    expects = "expects none" if by == "client" else "expects it"
    span = f" in {lasting(rows[-1].time_ns - rows[0].time_ns)}" if len(rows) > 1 else ""
    return DetectorResult(
        severity="critical" if len(rows) > _PROBES else "warning",
        from_ns=rows[0].time_ns,
        to_ns=rows[-1].time_ns,
        subject=names[0] if len(names) == 1 else host,
        text=f"{who} {what} the port {broker}, which {expects}, {len(rows):,} {plural('time', rows)}{span}: the broker "
        "ends each such connection, and the client never gets in",
        advice="Set security.protocol of the client (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL) to what the listener of "
        "that port has (listeners, listener.security.protocol.map), or use the port of the other listener.",
        value=len(rows),
        evidence=(
            Evidence(row.time_ns, row.source, -1, f"{row.connection}: the {row.by or 'peer'} sends a record of TLS")
            for row in rows
        ),
    )


def _distinct(rows: list[Sighting]) -> list[Sighting]:
    """Return a row for each connection, in whichever source it was seen."""
    found: dict[str, Sighting] = {}
    for row in rows:
        found.setdefault((row.connection or "").rpartition("#")[0], row)
    return list(found.values())


HANDSHAKES: Final = 5
"""TLS handshakes that fail within a minute."""


def _have_failed(rows: Sequence[Sighting]) -> bool:
    """Whether one of these handshakes is known to have failed, or so many that they are no check of a port."""
    is_said = any(row.text and not row.text.endswith("encrypted alert of the broker") for row in rows)
    return is_said or len(busiest(rows, lambda row: row.time_ns, MINUTE_NS)) >= HANDSHAKES


def _of_handshakes(host: str, broker: str, rows: list[Sighting]) -> DetectorResult:
    """Return that a client and a port that speaks TLS do not agree."""
    alerts = Counter(row.text for row in rows if row.text)
    span = f" in {lasting(rows[-1].time_ns - rows[0].time_ns)}" if len(rows) > 1 else ""
    seen = [f"{alert} ({counted(times, 'time')})" for alert, times in alerts.most_common()]
    how = first_of(seen) if seen else "no alert is in the clear"
    ended = "1 connection" if len(rows) == 1 else f"{len(rows):,} connections"
    return DetectorResult(
        severity="critical" if len(rows) >= HANDSHAKES else "warning",
        from_ns=rows[0].time_ns,
        to_ns=rows[-1].time_ns,
        subject=host,
        text=f"{ended} of {host} to {broker} ended in the TLS handshake{span}, {how}: "
        "one side refuses the certificate of the other, or its version or ciphers of TLS",
        advice="Look at the certificate of that side and the authorities that the other one trusts (ssl.truststore of "
        "Java, ssl.ca.location of librdkafka), at its dates and names, and at ssl.enabled.protocols of both.",
        value=len(rows),
        threshold=HANDSHAKES,
        evidence=(
            Evidence(row.time_ns, row.source, -1, f"{row.connection}: the handshake failed: {row.text or 'no alert'}")
            for row in rows
        ),
    )


def _of_error(api: str, code: int, rows: list[Sighting], last_ns: int) -> DetectorResult:
    refusal = refusal_of(code)
    clients = list(dict.fromkeys(row.client for row in rows))
    names = [person(*client) for client in clients]
    topics = sorted({row.topic for row in rows if row.topic})
    name = error_name(code)
    about = f" of {plural('topic', topics)} {first_of(topics)}" if topics else ""
    quiet_ns = _quiet_ns(rows, last_ns) if topics else 0
    over = f"; not again in the {lasting(quiet_ns)} after that" if quiet_ns else ""
    span = f" in {lasting(rows[-1].time_ns - rows[0].time_ns)}" if len(rows) > 1 else ""
    return DetectorResult(
        severity="critical" if refusal.is_fatal and (not topics or len(rows) > 1) and not quiet_ns else "warning",
        from_ns=rows[0].time_ns,
        to_ns=rows[-1].time_ns,
        subject=clients[0][0] if len(clients) == 1 else None,
        text=f"{api}{about} was refused to {first_of(names)} with {name}, {len(rows):,} {plural('time', rows)}{span}: "
        f"{refusal.meaning}{over}",
        advice=refusal.advice,
        value=len(rows),
        evidence=(
            Evidence(row.time_ns, row.source, -1, f"{api} of {person(*row.client)} is answered with {name}")
            for row in rows
        ),
    )


def _quiet_ns(rows: list[Sighting], last_ns: int) -> int:
    """Return for how long there was no refusal after the last; 0 if that is not longer than between two of them."""
    quiet_ns = last_ns - rows[-1].time_ns
    gaps = (after.time_ns - before.time_ns for before, after in pairwise(rows))
    return quiet_ns if quiet_ns > max(_QUIET_NS, 3 * max(gaps, default=0)) else 0
