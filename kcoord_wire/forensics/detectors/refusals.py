"""Refusals: requests of a client that the broker answers with an error, again and again, or once for good.

Normal are the errors that the protocol uses: REBALANCE_IN_PROGRESS and MEMBER_ID_REQUIRED always, NOT_COORDINATOR
and its like while a coordinator moves (outages are reported apart), UNKNOWN_MEMBER_ID once after a session timeout. The
table of `refusal_advice` says how often each error is normal. Commits of members that have lost their place are those
of `commit_after_revoke`, and assignors that do not fit those of `mixed_assignors`.

Threshold: more refusals of one client within 10 minutes than the table tolerates. Critical where only a change from
outside helps (`Refusal.is_fatal`), the client tries to be a member or to commit, and nothing of it was accepted
afterwards; info where a tool is refused once because the group has members; else warning.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.detectors import commit_after_revoke
from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, error_name, lasting, listed, only, person, plural
from kcoord_wire.forensics.detectors.windows import MINUTE_NS, SECOND_NS, busiest
from kcoord_wire.forensics.model import Evidence, GroupHistory
from kcoord_wire.forensics.refusal_advice import ALWAYS, refusal_of
from kcoord_wire.protocol.error_codes import ErrorCode

WINDOW_NS: Final = 10 * MINUTE_NS
_COLUMNS: Final = [
    *("api", "error_code", "client_id", "client_host", "member_id", "instance_id", "asked_ns", "answered_ns"),
    *("seq", "answer_seq", "source", "connection", "session_timeout_ms", "given_member_id"),
]
_MEMBERSHIP: Final = frozenset({"JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat"})
_REPEATED: Final = 2  # look-ups or commits of a client that is no tool
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


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for each error code, and one for tools."""
    if exchanges is None or not exchanges.num_rows:
        return
    rows = _refused_rows(exchanges)
    tools = [row for row in rows if _is_from_outside(row)]
    if tools:
        yield _of_tools(tools)
    by_code: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if not _is_from_outside(row) and not _is_reported_elsewhere(row):
            by_code[row["error_code"]].append(row)
    joins = _joins(exchanges) if ErrorCode.FENCED_INSTANCE_ID in by_code else []
    for code, of_code in sorted(by_code.items()):
        if code == ErrorCode.FENCED_INSTANCE_ID:
            yield from _of_fenced(of_code, joins)
        else:
            yield from _of_code(code, of_code, exchanges, history)


def _refused_rows(exchanges: pa.Table) -> list[dict[str, Any]]:
    """Return the refusals that are not always normal, in order of time."""
    failed = exchanges.filter(pc.not_equal(pc.fill_null(exchanges["error_code"], 0), 0)).select(_COLUMNS)
    codes = [code for code in pc.unique(failed["error_code"]).to_pylist() if refusal_of(code).tolerated < ALWAYS]
    failed = failed.filter(pc.is_in(failed["error_code"], value_set=pa.array(codes, failed["error_code"].type)))
    rows = [row for row in failed.to_pylist() if row["asked_ns"] is not None]
    return sorted(rows, key=lambda row: (row["asked_ns"], row["source"] or "", row["seq"] or 0))


def _is_from_outside(row: dict[str, Any]) -> bool:
    return row["api"] == "OffsetCommit" and not row["member_id"] and row["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def _is_reported_elsewhere(row: dict[str, Any]) -> bool:
    api, code = row["api"], row["error_code"]
    if api == "LeaveGroup":  # of a member that was removed before: it has what it asked for
        return True
    if api == "OffsetCommit":
        return code in commit_after_revoke.REFUSALS
    return bool(api == "JoinGroup" and code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _client(row: dict[str, Any]) -> Client:
    return row["client_id"] or "", row["client_host"] or ""


def _answered(row: dict[str, Any]) -> int:
    return int(row["asked_ns"] if row["answered_ns"] is None else row["answered_ns"])


def _evidence(row: dict[str, Any], more: str = "") -> Evidence:
    seq = row["seq"] if row["answer_seq"] is None else row["answer_seq"]
    text = f"{row['api']} of {person(*_client(row))} is answered with {error_name(row['error_code'])}{more}"
    return Evidence(_answered(row), row["source"] or "", -1 if seq is None else seq, text)


# ---- any error


def _of_code(code: int, rows: list[dict[str, Any]], exchanges: pa.Table, history: GroupHistory) -> Iterator[Found]:
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
    yield Found(
        severity="critical" if is_lasting else "warning",
        from_ns=_answered(shown[0]),
        to_ns=_answered(shown[-1]),
        subject=only([each.client[0] for each in refused]),
        text=f"{listed(names)} {plural('was', names, 'were')} refused with {error_name(code)}, {_times(shown)}: "
        f"{refusal.meaning}{_asked(code, shown)}; {_outcome(refused, history)}",
        advice=refusal.advice,
        value=float(len(shown)),
        threshold=float(refusal.tolerated + 1),
        rebalances=[],
        evidence=[_evidence(row) for row in shown[:MAX_EVIDENCE]],
    )


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


def _asked(code: int, rows: list[dict[str, Any]]) -> str:
    """Return what it had asked for, where the request shows what is wrong with it."""
    asked = sorted({row["session_timeout_ms"] for row in rows if row["session_timeout_ms"] is not None})
    if code != ErrorCode.INVALID_SESSION_TIMEOUT or not asked:
        return ""
    return f" (it asks for {', '.join(f'{ms:,} ms' for ms in asked[:3])})"


def _outcome(refused: list[_Refused], history: GroupHistory) -> str:
    lasting_ones = [each for each in refused if each.accepted_ns is None]
    if not lasting_ones:
        ns = max((each.accepted_ns or 0) - _answered(each.rows[-1]) for each in refused)
        return f"accepted again {lasting(ns)} after the last refusal"
    if len(lasting_ones) < len(refused):
        return f"of {listed([each.name for each in lasting_ones])} nothing was accepted afterwards"
    rest_ns = max(0, history.group.last_ns - max(_answered(each.rows[-1]) for each in refused))
    return "nothing was accepted afterwards" + (f", in {lasting(rest_ns)}" if rest_ns >= SECOND_NS else "")


def _of_tools(rows: list[dict[str, Any]]) -> Found:
    names = sorted({person(*_client(row)) for row in rows})
    return Found(
        severity="info" if len(rows) <= _RETRIES else "warning",
        from_ns=_answered(rows[0]),
        to_ns=_answered(rows[-1]),
        subject=only(sorted({_client(row)[0] for row in rows})),
        text=f"{listed(names)} tried to set offsets of the group from outside, without being a member, "
        f"{_times(rows)}, and was refused with UNKNOWN_MEMBER_ID: the group has members",
        advice="Stop all members before offsets are set from outside; a consumer that uses assign() needs a group.id "
        "of its own.",
        value=float(len(rows)),
        threshold=1.0,
        rebalances=[],
        evidence=[_evidence(row) for row in rows[:MAX_EVIDENCE]],
    )


# ---- static members


def _joins(exchanges: pa.Table) -> list[dict[str, Any]]:
    """Return the JoinGroup and first ConsumerGroupHeartbeat requests of static members, in order of time."""
    api = pc.is_in(exchanges["api"], value_set=pa.array(["JoinGroup", "ConsumerGroupHeartbeat"]))
    good = pc.equal(pc.fill_null(exchanges["error_code"], 0), 0)
    rows = exchanges.filter(pc.and_(pc.and_(api, good), pc.is_valid(exchanges["instance_id"]))).select(_COLUMNS)
    return sorted((row for row in rows.to_pylist() if row["asked_ns"] is not None), key=lambda row: row["asked_ns"])


def _of_fenced(rows: list[dict[str, Any]], joins: list[dict[str, Any]]) -> Iterator[Found]:
    """Yield one finding for each group.instance.id that two processes use."""
    by_instance: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_instance[row["instance_id"] or ""].append(row)
    for instance_id, fenced in sorted(by_instance.items()):
        pairs = [(row, _successor(row, instance_id, joins)) for row in fenced]
        pairs = [(row, after) for row, after in pairs if after is None or not _is_retry(row, after)]
        if pairs:
            yield _of_instance(instance_id, pairs)


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


def _of_instance(instance_id: str, pairs: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> Found:
    refusal = refusal_of(ErrorCode.FENCED_INSTANCE_ID)
    rows = [row for row, _ in pairs]
    fenced = list(dict.fromkeys(_process(row) for row in rows))
    others = list(dict.fromkeys(_process(after) for _, after in pairs if after is not None))
    by = f" when {listed(others)} joined with the same group.instance.id" if others else f": {refusal.meaning}"
    return Found(
        severity="critical",
        from_ns=_answered(rows[0]),
        to_ns=_answered(rows[-1]),
        subject=instance_id or None,
        text=f"{listed(fenced)} {plural('was', fenced, 'were')} fenced (FENCED_INSTANCE_ID, {_times(rows)})"
        f"{by} ({instance_id}); a client that is fenced stops for good",
        advice=refusal.advice,
        value=float(len(rows)),
        threshold=1.0,
        rebalances=[],
        evidence=[_evidence(row, f", group.instance.id {instance_id}") for row in rows[:MAX_EVIDENCE]],
    )


def _process(row: dict[str, Any]) -> str:
    """Return the name of a process, with its address and port: two copies may have one client id and host."""
    return person(row["client_id"], (row["connection"] or "").partition("-")[0] or row["client_host"])
