"""What the wire shows of heartbeat.interval.ms and session.timeout.ms: how far apart a client's heartbeats are, and
which of them came after its session.

The heartbeats of a member are those of one connection, that to its coordinator, which states its session timeout in
JoinGroup. Members of KIP-848 state none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.coded import whole
from kcoord_wire.forensics.model import NS_PER_MS
from kcoord_wire.protocol.error_codes import ErrorCode

_COLUMNS: Final = [
    *("api", "connection", "client_id", "client_host", "member_id", "asked_ns", "error_code", "session_timeout_ms"),
    *("source", "seq"),
]
_APIS: Final = pa.array(["Heartbeat", "JoinGroup", "SyncGroup"])
_LEAST: Final = 3  # intervals from which on their length is known
_TIGHT: Final = (2, 3)  # the share of its session that an interval may take; Kafka's documentation asks for a third
_ALIVE: Final = 2  # sessions within which a process that is alive was heard again
_OVER: Final = 0.95  # of a session: the coordinator counts from when it handles a request, and in ticks of its timer


class LateBeat(NamedTuple):
    """A request that came when the coordinator had removed its member already.

    :ivar gap_ns: since the member was heard last
    """

    time_ns: int
    gap_ns: int
    source: str
    seq: int


class Beats(NamedTuple):
    """The heartbeats of one member, or of several one after the other, on one connection.

    :ivar interval_ns: between two of them without a delay, which is that of the setting
    :ivar late: those that came after the session, of a process that was alive
    """

    client_id: str
    client_host: str
    session_ns: int
    interval_ns: float
    late: Sequence[LateBeat]


def read_tight(exchanges: pa.Table | None) -> list[Beats]:
    """Return the connections whose heartbeats are so far apart that the session leaves no room for a late one.

    Heartbeats that are late as a rule, as kafkajs sends them between batches, are not set to be so.

    :param exchanges: rows of `Exchange`; None where the source is a log
    """
    if exchanges is None or not exchanges.num_rows:
        return []
    rows = exchanges.select(_COLUMNS)
    if rows["asked_ns"].null_count:
        rows = rows.filter(pc.is_valid(rows["asked_ns"]))
    joins = rows.filter(pc.equal(rows["api"], "JoinGroup")).select(["connection", "session_timeout_ms"]).to_pylist()
    sessions = {row["connection"]: (row["session_timeout_ms"] or 0) * NS_PER_MS for row in joins}
    intervals = {name: ns for name, ns in _intervals(rows).items() if sessions.get(name)}
    tight = sorted(name for name, ns in intervals.items() if _is_tight(ns, sessions[name]))
    if not tight:
        return []
    of_them = pc.is_in(rows["connection"].cast(pa.string()), value_set=pa.array(tight, pa.string()))
    asked: dict[str, list[dict[str, Any]]] = {name: [] for name in tight}
    for row in rows.filter(pc.and_(of_them, pc.is_in(rows["api"].cast(pa.string()), value_set=_APIS))).to_pylist():
        asked[row["connection"]].append(row)
    return [each for name, own in asked.items() for each in _beats(own, sessions[name])]


def _is_tight(interval_ns: float, session_ns: int) -> bool:
    return interval_ns * _TIGHT[1] >= session_ns * _TIGHT[0]


def _intervals(rows: pa.Table) -> dict[str, float]:
    """Return the median time between two heartbeats of each connection that has some."""
    beats = rows.select(["connection", "asked_ns"]).filter(pc.equal(rows["api"], "Heartbeat"))
    if beats.num_rows <= _LEAST:
        return {}
    names = whole(beats["connection"])
    names = names if pa.types.is_dictionary(names.type) else names.dictionary_encode()
    codes, times = names.indices.to_numpy(), beats["asked_ns"].to_numpy()
    del beats
    order = np.lexsort((times, codes))
    found, starts = np.unique(codes[order], return_index=True)
    each = zip(found.tolist(), np.split(times[order], starts[1:]), strict=True)
    known = names.dictionary.to_pylist()
    return {known[code]: float(np.median(np.diff(own))) for code, own in each if len(own) > _LEAST}


def _beats(rows: list[dict[str, Any]], session_ns: int) -> Iterator[Beats]:
    """Yield the heartbeats of a connection if they are tight; none are where a join lies between all of them."""
    rows.sort(key=itemgetter("asked_ns"))
    first = rows[0]
    gaps = [
        after["asked_ns"] - before["asked_ns"]
        for before, after in pairwise(rows)
        if before["api"] == after["api"] == "Heartbeat"
    ]
    usual_ns = median(gaps or [0])
    set_ns = min((gap for gap in gaps if 2 * gap > usual_ns), default=0)  # delays only add to the setting
    if _is_tight(set_ns, session_ns):
        late = list(_late(rows, session_ns))
        yield Beats(first["client_id"] or "", first["client_host"] or "", session_ns, set_ns, late)


def _late(rows: Sequence[dict[str, Any]], session_ns: int) -> Iterator[LateBeat]:
    """Yield the requests by which a member, or the broker, says that its session was over.

    A leader's SyncGroup comes when its assignor has ended, so that how late it is says nothing of heartbeats.
    """
    heard_ns = None
    for row in rows:
        now_ns = row["asked_ns"]
        is_over = row["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID or (
            row["api"] == "JoinGroup" and not row["member_id"]
        )
        if is_over:
            is_known = heard_ns is not None and row["api"] != "SyncGroup"
            if is_known and _OVER * session_ns < now_ns - heard_ns <= _ALIVE * session_ns:
                yield LateBeat(now_ns, now_ns - heard_ns, row["source"] or "", row["seq"] or 0)
            heard_ns = None
        elif row["error_code"] is not None:
            heard_ns = now_ns
